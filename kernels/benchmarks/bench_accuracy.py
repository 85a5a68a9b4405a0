# ruff: noqa: E402 - the imports need the path set first
"""Relative errors of KDA against float64, ours beside fla's in one run: prints a table, writes benchmarks/<date>-accuracy.{json,md}.

    python3 benchmarks/bench_accuracy.py [--peers sm90,fla] [--seeds 3] [--output benchmarks]

Kernels of fla take one of their configurations here instead of timing them all: that changes the order of sums and no more, and ends in a
minute or two instead of many.
"""

import argparse
import math
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "gpu_tests")]

from cases import REGIMES, make_inputs, relative_error, run
from report import Report

from samite_kernels.kda.documents import Documents

NAMES = ("o", "state", "dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dh0")
MUST = 1.2
"""Largest error over that of fla."""


def take_one_configuration():
    """Leaves every autotuned Triton kernel one configuration, of few stages and about 4 warps; call before fla is imported."""
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.__init__

    def limited(self, fn, arg_names, configs, *more, **options):
        plain = sorted(
            configs or [], key=lambda c: (c.num_stages, abs(c.num_warps - 4), sum(v for v in c.kwargs.values() if isinstance(v, int)))
        )
        original(self, fn, arg_names, plain[:1] or configs, *more, **options)

    Autotuner.__init__ = limited


def errors_of(peer, regime, seed):
    inputs, documents = make_inputs(1000, 8, regime, seed=seed), Documents((0, 1000))
    found, wanted = run(inputs, documents, backend=peer), run(inputs, documents, backend="exact")
    return {name: relative_error(found[name], wanted[name]) for name in NAMES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="sm90,fla" if find_spec("fla") else "sm90")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", default=str(Path(__file__).parent))
    args = parser.parse_args()
    peers = args.peers.split(",")
    if "fla" in peers:
        take_one_configuration()
    note = f"Relative error against float64, x 1e-3, T = 1000, H = 8, mean of {args.seeds} seeds. Last row of a regime: ours over fla's."
    report = Report(args.output, "accuracy", "Accuracy of KDA", note)
    report.head("regime", "peer", *NAMES)
    worst = {}
    for regime in REGIMES:
        means = {}
        for peer in peers:
            try:
                errors = [errors_of(peer, regime, seed) for seed in range(args.seeds)]
            except Exception as problem:
                if peer == "sm90":
                    raise
                report.say(f"| {regime} | {peer} | not run: {str(problem).splitlines()[0][:150]} |")
                continue
            means[peer] = {name: math.fsum(e[name] for e in errors) / len(errors) for name in NAMES}
            report.row("errors", {"regime": regime, "peer": peer, **means[peer]}, regime, peer, *(1e3 * means[peer][n] for n in NAMES))
        if len(means) > 1:
            ratios = {name: means["sm90"][name] / max(means["fla"][name], 1e-30) for name in NAMES}
            report.row("ratios", {"regime": regime, **ratios}, regime, "ratio", *ratios.values())
            # A gradient that vanishes in a regime is noise over noise.
            alive = {name: ratio for name, ratio in ratios.items() if means["fla"][name] < 0.5}
            worst[regime] = max(alive, key=alive.get), max(alive.values())
    if worst:
        verdict = "kept" if all(ratio <= MUST for _, ratio in worst.values()) else "NOT kept"
        largest = ", ".join(f"{regime}: {name} {ratio:.2f}" for regime, (name, ratio) in worst.items())
        report.say("", f"At most {MUST} times fla: {verdict}. Largest ratios: {largest}.")


if __name__ == "__main__":
    main()
