"""`make bench`: ratios on this machine, each measured in one interleaved run. Absolute times are printed for orientation only: machines are noisy.

KDA, chunkwise against the plain recurrence, forward and backward, on one thread
a checkpoint saved and restored by our manager against torch.save and torch.load of the same tensors
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROUNDS = 5


def main() -> int:
    """Run all and print one line each."""
    torch.set_num_threads(1)
    say(f"{'what':<58} {'ours':>10} {'other':>10} {'ratio':>8}")
    compare("KDA 1024 tokens x 4 heads x 32, fwd+bwd: chunkwise / recurrence", *kda())
    with tempfile.TemporaryDirectory(prefix="samite-bench-") as place:
        save, load = checkpoint(Path(place))
        compare("save 64 MB to a folder, verified format: ours / torch.save", *save)
        compare("load 64 MB from a folder, checksums on: ours / torch.load", *load)
    return 0


def kda() -> tuple[Callable[[], object], Callable[[], object]]:
    """The layer's operator both ways, on the same raw inputs."""
    from samite_kernels.kda import chunk_kda, recurrent_kda

    torch.manual_seed(0)
    shape = (1, 1024, 4, 32)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(4)]
    beta, a_log, dt_bias = torch.randn(shape[:3], requires_grad=True), torch.zeros(4), torch.zeros(4 * 32)

    def run(operator: Callable[..., tuple[torch.Tensor, object]]) -> None:
        output, _ = operator(*inputs, beta, a_log, dt_bias)
        torch.autograd.grad(output.sum(), inputs)

    return lambda: run(chunk_kda), lambda: run(recurrent_kda)


def checkpoint(place: Path) -> tuple[tuple[Callable[[], object], Callable[[], object]], tuple[Callable[[], object], Callable[[], object]]]:
    """Save and load of eight tensors of 8 MB."""
    from samite_workloads.checkpoint import CheckpointManager

    tensors = {f"t{n}": torch.randn(2 << 20) for n in range(8)}
    manager = CheckpointManager(str(place / "ours"), run_uid="bench", epoch=1, rank=0, world_size=1)
    steps = iter(range(1, 1000))
    file = place / "other.pt"

    def save() -> None:
        manager.save(next(steps), tensors, {}, asynchronous=False)

    return (save, lambda: torch.save(tensors, file)), (lambda: manager.restore("latest", tensors), lambda: torch.load(file))


def compare(what: str, ours: Callable[[], object], other: Callable[[], object]) -> None:
    """Time both in turn, after one warm-up each; prints medians and the median of the paired ratios."""
    ours(), other()
    pairs = [(seconds(ours), seconds(other)) for _ in range(ROUNDS)]
    mine, theirs = statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
    say(f"{what:<58} {mine * 1e3:>7.1f} ms {theirs * 1e3:>7.1f} ms {statistics.median(a / b for a, b in pairs):>7.2f}x")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
