"""The small model (1.59 B parameters) takes its first steps on one CUDA GPU: `make test-gpu` runs this. No Ray, no pydantic, no cloud library.

    python workloads/gpu_smoke.py                    20 steps of preset small on cuda
    python workloads/gpu_smoke.py --device cpu --preset tiny --steps 3

Passes when every step's loss and gradient norm are finite and the loss fell. Stores nothing. Prints speed and memory.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("platform", "workloads", "kernels") if str(ROOT / folder) not in sys.path]


def main() -> int:
    """Train; returns 0 if all is well, 1 with the reason on stderr."""
    options = _options()
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            sys.stdout.write("gpu_smoke: skipped, there is no CUDA GPU\n")
            return 0
    with tempfile.TemporaryDirectory(prefix="samite-gpu-smoke-") as place:
        return _train(Path(place), options)


def _train(place: Path, options: argparse.Namespace) -> int:
    from samite.spec.attempt import AttemptSpec
    from samite_workloads.entrypoint import run_rank
    from samite_workloads.train.ranks import plain_facts

    began_s = time.monotonic()
    attempt = AttemptSpec(
        run=_document(_corpus(place / "corpus", options.preset), options),
        run_uid="gpu-smoke",
        stage_index=0,
        attempt=1,
        submission_id="gpu-smoke-s00-a1",
        run_folder=str(place / "run"),
        num_workers=1,
        checkpoint_uri="",
        resume="none",
    )
    (place / "run" / "control").mkdir(parents=True)
    code = run_rank(attempt, plain_facts({}, device_type=options.device))
    steps = _steps(place / "run" / "metrics" / "rank-0.jsonl")
    problems = _problems(code, steps, options.steps)
    for problem in problems:
        sys.stderr.write(f"gpu_smoke: {problem}\n")
    if steps:
        _show(steps, options, time.monotonic() - began_s)
    return 1 if problems else 0


def _problems(code: int, steps: list[dict[str, float]], wanted: int) -> list[str]:
    if code:
        return [f"the trainer ended with exit code {code}"]
    if len(steps) != wanted:
        return [f"wanted {wanted} steps, found {len(steps)}"]
    bad = [f"step {n + 1}: {name} is {value}" for n, step in enumerate(steps) for name, value in step.items() if not math.isfinite(value)]
    if not bad and wanted >= 10 and not steps[-1]["loss"] < steps[0]["loss"]:
        bad = [f"the loss did not fall: {steps[0]['loss']:.3f} at step 1, {steps[-1]['loss']:.3f} at step {wanted}"]
    return bad


def _show(steps: list[dict[str, float]], options: argparse.Namespace, total_s: float) -> None:
    step_s = statistics.median(step["seconds"] for step in steps[len(steps) // 2 :])
    memory = max(step.get("memory", 0.0) for step in steps) / 2**30
    sys.stdout.write(
        f"gpu_smoke: preset {options.preset} on {options.device}: {len(steps)} steps of {options.tokens} tokens, "
        f"loss {steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f}, {step_s * 1000:.0f} ms a step, {options.tokens / step_s:.0f} tokens/s, "
        f"peak memory {memory:.1f} GiB, {total_s:.0f} s in all\n"
    )


def _steps(metrics: Path) -> list[dict[str, float]]:
    """Loss, gradient norm, duration and device memory of each step."""
    steps = []
    for line in metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else ():
        record = json.loads(line)
        if record["step"] is None:
            continue
        values = {(name, *attributes.values()): value for name, value, attributes in record["points"]}
        step = {
            "loss": values.get(("samite.loss", "total"), math.nan),
            "grad_norm": values.get(("samite.grad.norm", "global"), math.nan),
            "seconds": values[("samite.step.duration", "total")],
            "memory": values.get(("samite.device.memory.peak", "allocated"), 0.0),
        }
        steps.append(step)
    return steps


def _corpus(folder: Path, preset: str) -> str:
    """Text of the Python standard library, and pictures of noise with captions: enough to keep every part of the model busy."""
    import numpy as np

    from samite_workloads.data import prepare
    from samite_workloads.data.documents import Document, MemorySource, Picture
    from samite_workloads.data.stdlib import StandardLibrary

    side = 56 if preset == "small" else 8
    chance = np.random.default_rng(0)
    pictures = [
        Document(
            parts=(Picture(pixels=chance.integers(0, 256, (side, side, 3), dtype=np.uint8)), f"a picture of noise, number {n % 10}"),
            origin=f"noise:{n}",
        )
        for n in range(200)
    ]
    prepare(folder, [StandardLibrary(max_bytes=4 << 20), MemorySource(pictures, name="pictures")], vocab_size=2048)
    return str(folder)


def _document(corpus: str, options: argparse.Namespace) -> dict[str, Any]:
    """The part of a run's document that the trainer reads; by hand, because reading YAML and checking it needs pydantic."""
    return {
        "metadata": {"name": "gpu-smoke"},
        "spec": {
            "seed": 0,
            "model": {"preset": options.preset},
            "data": {"uri": corpus, "mixture": [{"source": "text", "weight": 9}, {"source": "pictures", "weight": 1}]},
            "stages": [
                {
                    "name": "smoke",
                    "contextLength": options.context,
                    "gpusPerWorker": 1 if options.device == "cuda" else 0,
                    "batch": {"tokens": options.tokens, "microBatch": options.micro},
                    "budget": {"steps": options.steps},
                }
            ],
            "optimizer": {
                "name": "Muon",
                "learningRate": options.rate,
                "minLearningRateFraction": 0.1,
                "warmupFraction": 0.1,
                "decayFraction": 0.2,
                "schedule": "Cosine",
                "weightDecay": 0.1,
                "momentum": 0.95,
                "betas": [0.9, 0.95],
                "epsilon": 1e-8,
                "gradClipNorm": 1.0,
            },
            "checkpoint": {"interval": {"steps": 1000000}, "verify": "OnSave"},
        },
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--preset", choices=["small", "tiny"], default="small")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of one step")
    parser.add_argument("--micro", type=int, default=2, help="rows of one micro-batch")
    parser.add_argument("--rate", type=float, default=3e-4, help="peak learning rate")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
