# ruff: noqa: E402 - the imports need the path set first
"""Times what is built but not the default, against the default: prints a table, writes benchmarks/<date>-variants.{json,md}.

    python3 benchmarks/bench_variants.py [--only pieces,counts] [--rounds 40]

The two take turns, so that a clock that drifts meets both: medians in ms, and the median of the ratios of neighbours with their quartiles.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "gpu_tests")]

import torch
from cases import make_inputs
from report import Report

from samite_kernels.kda import chunk_kda, counted_chunk_kda, sm90_counts, sm90_pieces

PIECES = (("65536x4", 0.6), ("65536x8", 0.9), ("65536x16", None), ("8192x4", None), ("262144x16", None))
"""Shapes, and the goal of the forward in ms."""
COUNTS = ("65536x32", "65536x16", "65536x96")
MOST_FOR_COUNTS = 1.02


def in_turns(variants, rounds):
    """Times in ms by variant, [rounds]; every round runs each once. `variants`: environment and function by name."""
    events = {name: [] for name in variants}
    for n in range(rounds + 3):
        for name, (environment, function) in variants.items():
            os.environ.update(environment)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            function()
            end.record()
            if n >= 3:
                events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()}


def quartiles(values):
    ordered = sorted(values)
    return [ordered[len(ordered) * i // 4] for i in (1, 2, 3)]


def compare(report, shape, what, variants, rounds, goal=None):
    times = in_turns(variants, rounds)
    base = next(iter(times))
    for name, found in times.items():
        ratios = quartiles([a / b for a, b in zip(found, times[base], strict=True)])
        values = {"shape": shape, "what": what, "variant": name, "ms": quartiles(found), "ratio": ratios, "goal_ms": goal}
        spread = "" if name == base else f"{ratios[1]:.4f} ({ratios[0]:.4f} to {ratios[2]:.4f})"
        report.row("times", values, shape, what, name, quartiles(found)[1], spread, "" if goal is None else goal)


def sizes_of(shape):
    return (int(part) for part in shape.split("x"))


def bench_pieces(report, rounds):
    for shape, goal in PIECES:
        inputs = make_inputs(*sizes_of(shape), "mixed")
        leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
        d_o = torch.randn_like(inputs["v"])

        def forward(inputs=inputs):
            chunk_kda(**inputs, backend="sm90")

        def both(leaves=leaves, d_o=d_o):
            torch.autograd.grad(chunk_kda(**leaves, backend="sm90")[0], list(leaves.values()), d_o)

        for what, function, wanted in (("forward", forward, goal), ("both", both, None)):
            variants = {name: ({sm90_pieces.VARIABLE: switch}, function) for name, switch in (("scan", "0"), ("pieces", "1"))}
            compare(report, shape, what, variants, rounds if what == "forward" else rounds // 4 + 1, wanted)
        os.environ[sm90_pieces.VARIABLE] = "0"
        torch.cuda.empty_cache()


def bench_counts(report, rounds):
    for shape in COUNTS:
        inputs = make_inputs(*sizes_of(shape), "mixed")
        variants = {"not counting": ({}, lambda x=inputs: chunk_kda(**x, backend="sm90"))}
        for who in ("beside", "idle"):
            variants[f"counting, {who}"] = ({sm90_counts.VARIABLE: who}, lambda x=inputs: counted_chunk_kda(**x, backend="sm90"))
        # The same once more: what two that don't differ show.
        variants["not counting, again"] = variants["not counting"]
        compare(report, shape, "forward", variants, rounds)
        torch.cuda.empty_cache()


BENCHES = {"pieces": bench_pieces, "counts": bench_counts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BENCHES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--output", default=str(Path(__file__).parent))
    args = parser.parse_args()
    note = f"Medians in ms of calls that take turns. Counting must cost less than {MOST_FOR_COUNTS - 1:.0%} of the forward."
    report = Report(args.output, "variants", "Variants of KDA", note)
    report.head("shape", "what", "variant", "ms", "of the first (quartiles)", "goal")
    for name in args.only.split(","):
        BENCHES[name](report, args.rounds)


if __name__ == "__main__":
    main()
