"""`make bench-checkpoint`: our saves and loads against PyTorch's writers, the S3 connector's, and raw sockets; paired and interleaved.

Four gloo ranks hold an MoE-shaped state (`--mib` in all) and write it to an S3 server in memory on this machine, which shares its processors with them: ratios
in one run are what counts. In each round every engine saves once, in changing order; a ratio is the median over rounds of ours by theirs.
Engines whose packages are not installed are left out and named: FsspecWriter wants s3fs, S3StorageWriter wants s3torchconnector[dcp].
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

from checkpoint_engines import WORLD, forget, our_loads, ours, raw, saves, their_loads, theirs

_copies: list[float] = []


def main() -> int:
    """Start the server and the ranks; print what rank 0 measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="state of all ranks together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of the server, to the first byte")
    parser.add_argument("--connection-mbps", type=float, default=0.0, help="of each connection, megabytes a second")
    parser.add_argument("--engines", default="", help="only those whose name contains one of these words, by commas")
    parser.add_argument("--limit-s", type=float, default=180.0)
    options = parser.parse_args()
    command = [sys.executable, "-m", "samite.checkpoint.store.sink", "--any-parts", f"--latency-ms={options.latency_ms}"]
    server = subprocess.Popen(
        [*command, f"--connection-mbps={options.connection_mbps}"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="samite-bench-") as place:
        ranks = [context.Process(target=rank_main, args=(rank, endpoint, place, options), daemon=True) for rank in range(WORLD)]
        try:
            for rank in ranks:
                rank.start()
            deadline_s = time.monotonic() + options.limit_s
            for rank in ranks:
                rank.join(max(0.0, deadline_s - time.monotonic()))
            return 0 if all(rank.exitcode == 0 for rank in ranks) else 1
        finally:
            for rank in ranks:
                if rank.is_alive():
                    rank.kill()
            server.kill()
            server.wait()


def rank_main(rank: int, endpoint: str, place: str, options: argparse.Namespace) -> None:
    """One rank: all engines in turn, each save between two barriers."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/rendezvous", rank=rank, world_size=WORLD)
    state = moe_state(options.mib << 20)
    own = sum(local(tensor).numel() * local(tensor).element_size() for tensor in state.values()) / (1 << 30)
    total = torch.tensor(own)
    dist.all_reduce(total)
    engines = {"raw sockets with CRC64": raw(endpoint, rank, int(own * (1 << 30)))} | ours(endpoint, rank, state) | theirs(endpoint, state)
    engines = chosen(engines, options.engines)
    copy_s = copier(state)
    times: dict[str, list[float]] = {name: [] for name in engines}
    cpu: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(options.rounds + 1):  # the first is a warm-up
        for name in rotated(list(engines), number):
            seconds, processor_s = timed(lambda name=name, number=number: engines[name](number))
            if number:
                times[name].append(seconds)
                cpu[name].append(processor_s)
        dist.barrier()
        _copies.append(copy_s())
        if rank == 0:
            forget(endpoint, number)
        dist.barrier()
    if rank == 0:
        report("save", times, cpu, float(total), mine=tuple(ours(endpoint, rank, state)))
        phases()
    loads = chosen(our_loads(endpoint, rank, state) | their_loads(endpoint, state), options.engines)
    times, cpu = {name: [] for name in loads}, {name: [] for name in loads}
    for number in range(options.rounds + 1):
        for name in rotated(list(loads), number):
            seconds, processor_s = timed(lambda name=name: loads[name](0))
            if number:
                times[name].append(seconds)
                cpu[name].append(processor_s)
    if rank == 0:
        report("load, same ranks", times, cpu, float(total), mine=tuple(our_loads(endpoint, rank, state)))
    dist.destroy_process_group()


def moe_state(num_bytes: int) -> dict:
    """Grouped experts and dense weights as sharded parameters with fp32 moments, and a few replicated norms."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, layers, state = init_device_mesh("cpu", (WORLD,)), 4, {}
    rows = max(WORLD, num_bytes // layers // (2 + 4 + 4 + 4) // 1024)
    for layer in range(layers):
        weight = distribute_tensor(torch.randn(rows, 1024), mesh, [Shard(0)])
        state[f"layers.{layer}.experts.weight"] = weight.bfloat16()
        for name in ("master", "exp_avg", "exp_avg_sq"):
            state[f"layers.{layer}.experts.{name}"] = weight.clone()
        for norm in range(8):
            state[f"layers.{layer}.norm{norm}.weight"] = torch.ones(1024)
    return state


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds until every rank is through, and processor seconds of all ranks."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    dist.barrier()
    seconds = time.perf_counter() - began_s
    processor_s = torch.tensor(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    dist.all_reduce(processor_s)
    return seconds, float(processor_s)


def chosen(engines: dict[str, Callable[[int], object]], words: str) -> dict[str, Callable[[int], object]]:
    """Those that `--engines` names; ours are always among them."""
    wanted = words.split(",") if words else [""]
    return {name: work for name, work in engines.items() if name.startswith("ours") or any(word in name for word in wanted)}


def rotated(names: list[str], number: int) -> list[str]:
    """Another order in each round."""
    shift = number % len(names)
    return names[shift:] + names[:shift]


def report(what: str, times: dict[str, list[float]], cpu: dict[str, list[float]], gib: float, *, mine: tuple[str, ...]) -> None:
    """One line an engine: MiB/s, processor seconds a GiB, and how many times faster ours are."""
    say(f"\n{what}, {gib:.2f} GiB on {WORLD} ranks, medians of {len(next(iter(times.values())))} rounds")
    columns = [name for name in mine if name.startswith("ours")]
    say(f"{'':<34}{'MiB/s':>8}{'CPU s/GiB':>11}" + "".join(f"{f'x of {name[6:]}':>16}" for name in columns))
    for name, seconds in times.items():
        ratios = [statistics.median(other / own for other, own in zip(seconds, times[column], strict=True)) for column in columns]
        rate = gib * 1024 / statistics.median(seconds)
        say(f"{name:<34}{rate:>8.0f}{statistics.median(cpu[name]) / gib:>11.2f}" + "".join(f"{ratio:>15.2f}x" for ratio in ratios))


def local(tensor: object) -> object:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def copier(state: dict) -> Callable[[], float]:
    """Seconds of a plain copy of this rank's part into memory that is there already: what a snapshot cannot be faster than."""
    import torch

    parts = [local(tensor) for tensor in state.values()]
    places = [torch.zeros_like(part) for part in parts]

    def copy() -> float:
        began_s = time.perf_counter()
        for place, part in zip(places, parts, strict=True):
            place.copy_(part)
        return time.perf_counter() - began_s

    return copy


def phases() -> None:
    """Where the manager's time went, on rank 0."""
    if saves:
        names = ("stall_s", "snapshot_s", "upload_s", "commit_s")
        say("   manager: " + ", ".join(f"{name[:-2]} {statistics.median(getattr(one, name) for one in saves):.3f} s" for name in names))
        stall_s, copied_s = statistics.median(one.stall_s for one in saves[1:]), statistics.median(_copies[1:])
        say(f"   stall of training {stall_s:.3f} s; a plain copy of as many bytes {copied_s:.3f} s, {stall_s / copied_s:.2f}x")


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
