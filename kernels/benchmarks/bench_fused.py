# ruff: noqa: E402 - the imports need the path set first
"""Times the fused neighbours of KDA against what runs without them.

    python3 benchmarks/bench_fused.py [--only conv,router,decode,residual] [--repeats 15]

Medians of device events in ms; `goal` is what was set for the operator. Writes benchmarks/<date>-fused.{json,md}.
"""

import argparse
import datetime as dt
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("FLA_CACHE_RESULTS", "0")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "gpu_tests")]

import torch
from bench_kda import median_ms
from cases import make_inputs

from samite_kernels.conv import short_conv, short_conv_qkv
from samite_kernels.kda import recurrent_kda
from samite_kernels.residual import attention_residual, attention_residual_reference, freeze
from samite_kernels.router import count_margins, count_margins_reference, route, route_reference

COPY = 4.3e9
"""Bytes per ms that a copy moves on an H200."""


def timed(name, function, repeats):
    """The median, or None and a line that says why: peers change their interfaces."""
    try:
        return median_ms(function, repeats)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as problem:
        print(f"{name}: not timed, {problem}", flush=True)
        return None


def bench_conv(repeats):
    """Three tensors [65536, 4096]; the goal is 0.95 ms a tensor forward and backward."""
    streams = [torch.randn(1, 65536, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    taps = [torch.randn(4096, 4, device="cuda", requires_grad=True) for _ in range(3)]
    d_y = [torch.randn_like(x) for x in streams]
    documents = torch.tensor([0, *sorted(torch.randperm(65535)[:31].add(1).tolist()), 65536])

    def fused(cu_seqlens=None):
        return list(short_conv_qkv(*streams, tuple(taps), cu_seqlens=cu_seqlens)[0])

    def separate():
        return [short_conv(x, w)[0] for x, w in zip(streams, taps, strict=True)]

    peers = {"one launch": fused, "one launch, 32 documents": lambda: fused(documents), "three launches": separate}

    def of_fla():
        from fla.modules.causal_conv1d import causal_conv1d

        return [causal_conv1d(x, w, activation="silu")[0] for x, w in zip(streams, taps, strict=True)]

    if find_spec("fla"):
        peers["fla"] = of_fla
    floor = 3 * 65536 * 4096 * 2 * 5 / COPY
    for name, function in peers.items():
        with torch.no_grad():
            forward = timed(name, function, repeats)
        both = timed(name, lambda f=function: torch.autograd.grad(f(), [*streams, *taps], d_y), repeats)
        yield {"operator": "conv q, k, v 3 x 65536x4096", "peer": name, "forward": forward, "both": both, "floor": floor, "goal": 2.85}


def bench_router(repeats):
    """Everything after the product at 65536x896, top 16, 1000 bins; the goal counts choice, weights and histogram."""
    logits = torch.randn(65536, 896, device="cuda")
    bias = 0.1 * torch.randn(896, device="cuda")
    counts = torch.zeros(896, 1001, dtype=torch.int32, device="cuda")
    leaf = logits.clone().requires_grad_()
    d_weight = torch.randn(65536, 16, device="cuda")
    chosen, _, threshold = route_reference(logits, bias, top_k=16, scaling_factor=1.0)

    def ours():
        routes = route(logits, bias, top_k=16)
        count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, counts)

    def plain():
        picked, _, limit = route_reference(logits, bias, top_k=16, scaling_factor=1.0)
        count_margins_reference(logits, bias, limit, picked, counts, None)

    parts = {
        "choice alone": lambda: route(logits, bias, top_k=16),
        "counts alone": lambda: count_margins(logits, bias, threshold, chosen, counts),
        "choice and its gradient": lambda: torch.autograd.grad(route(leaf, bias, top_k=16).weight_TK, leaf, d_weight),
    }
    floor = logits.numel() * 4 / COPY
    for name, function in {"ours": ours, **parts, "torch": plain, "torch.compile": torch.compile(plain)}.items():
        yield {"operator": "router 65536x896", "peer": name, "forward": timed(name, function, repeats), "floor": floor, "goal": 0.30}


def bench_decode(repeats):
    """One token for each of 64 sequences of 96 heads: 403 MB of state, read and written once."""
    inputs = make_inputs(1, 96, batch=64)
    state = torch.randn(64, 96, 128, 128, device="cuda")

    def step():
        recurrent_kda(**inputs, initial_state=state, output_final_state=True)

    def of_fla():
        from fla.ops.kda import fused_recurrent_kda

        flags = dict.fromkeys(("use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "use_qk_l2norm_in_kernel"), True)
        fused_recurrent_kda(**inputs, initial_state=state, output_final_state=True, lower_bound=-5.0, **flags)

    peers = {"ours": ("sm90", step), "torch": ("reference", step)}
    if find_spec("fla"):
        peers["fla"] = ("reference", of_fla)
    for name, (backend, function) in peers.items():
        os.environ["SAMITE_KERNELS_DECODE"] = backend
        row = {"operator": "decode 64 sequences x 96 heads", "peer": name, "forward": timed(name, function, repeats)}
        yield row | {"floor": state.numel() * 8 / COPY}


def bench_residual(repeats):
    """Nine sources [32768, 7168] with the norm, each gradient written; then two readers of the same blocks, whose gradients meet in place."""
    values = [torch.randn(32768, 7168, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(9)]
    query = (torch.randn(7168, device="cuda") / 84).requires_grad_()
    weight = torch.ones(7168, device="cuda", requires_grad=True)
    d_y = torch.randn_like(values[0])
    leaves = [query, weight, *values]

    def ours():
        return attention_residual(values, query, norm_weight_D=weight)

    peers = {"ours": ours, "torch.compile": torch.compile(lambda: attention_residual_reference(values, query, weight, 1e-5))}

    def of_fla():
        from fla.ops.attnres import fused_attnres

        return fused_attnres(query.bfloat16(), values, torch.ones_like(query).bfloat16(), weight.bfloat16(), 1e-5)

    if find_spec("fla"):
        peers["fla"] = of_fla
    floor = values[0].numel() * 2 * (10 + 19) / COPY
    for name, function in peers.items():
        with torch.no_grad():
            forward = timed(name, function, repeats)
        both = timed(name, lambda f=function: torch.autograd.grad(f(), leaves, d_y), repeats)
        yield {"operator": "residual 9 x 32768x7168", "peer": name, "forward": forward, "both": both, "floor": floor, "goal": 4.1}

    def two_readers(shared):
        blocks = [freeze(v) for v in values] if shared else values
        first = attention_residual(blocks, query, norm_weight_D=weight)
        second = attention_residual(blocks, weight, norm_weight_D=query)
        return torch.autograd.grad([first, second], leaves, [d_y, d_y])

    for name, shared in (("two readers, one buffer a block", True), ("two readers, added by autograd", False)):
        yield {"operator": "residual 9 x 32768x7168", "peer": name, "both": median_ms(lambda s=shared: two_readers(s), repeats)}


BENCHES = {"conv": bench_conv, "router": bench_router, "decode": bench_decode, "residual": bench_residual}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BENCHES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", default=str(Path(__file__).parent))
    args = parser.parse_args()
    date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    stem = Path(args.output) / f"{date[:10]}-fused"
    report = {"date": date, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "times": []}
    lines = [f"# Fused neighbours of KDA on {report['device']}, {date[:10]}", "", f"torch {report['torch']}. Times in ms.", ""]
    lines += ["| operator | peer | forward | both | floor | goal |", "| --- | --- | --- | --- | --- | --- |"]
    print("\n".join(lines), flush=True)
    for name in args.only.split(","):
        for row in BENCHES[name](args.repeats):
            report["times"].append(row)
            cells = [f"{row[key]:.3f}" if row.get(key) is not None else "" for key in ("forward", "both", "floor", "goal")]
            lines.append(f"| {row['operator']} | {row['peer']} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
            stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
            stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
