# ruff: noqa: E402, E501 - the imports need the path set first
"""Times and checks KDA on this GPU against the peers that are installed: prints a table, writes benchmarks/<date>-kda.{json,md}.

    python3 benchmarks/bench_kda.py [--peers sm90,fla] [--shapes 65536x32,8192x32] [--regimes mixed,init] [--no-accuracy]

Times are medians of device events, in ms, on raw bfloat16 inputs; the floor counts the fewest bytes and operations at 4.3 TB/s and
790 TFLOP/s. The peak is device memory above the inputs during forward and backward.
"""

import argparse
import datetime as dt
import json
import math
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("FLA_CACHE_RESULTS", "0")
sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "gpu_tests")]

import torch
from cases import make_inputs, relative_error, run

from samite_kernels.conv import short_conv
from samite_kernels.kda import chunk_kda
from samite_kernels.kda.documents import Documents

SHAPES = "65536x32,65536x16,65536x96,262144x16,65536x32u,8192x32,8192x16,65536x8,65536x4"
MUST = {
    "65536x32": (2.2, 8.0, 10.2),
    "65536x16": (None, None, 5.3),
    "65536x96": (None, None, 30.0),
    "262144x16": (None, None, 21.0),
    "65536x32u": (None, None, 10.5),
    "8192x32": (None, None, 1.5),
    "8192x16": (None, None, 1.2),
    "65536x8": (1.6, None, None),
    "65536x4": (1.0, None, None),
}
UNEVEN = [210 + round(7272 * (i / 31) ** 1.93) for i in range(32)]


def floors(token_heads):
    forward = token_heads * 1282 / 4.3e9
    backward = max(token_heads * 2308 / 4.3e9, token_heads * 508e3 / 790e9)
    return forward, backward, forward + backward


def median_ms(function, repeats, warmups=2):
    for _ in range(warmups):
        function()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in events)[repeats // 2]


def time_shape(shape, regime, peer, repeats):
    num_tokens, num_heads = (int(part) for part in shape.rstrip("u").split("x"))
    cu_seqlens = None
    if shape.endswith("u"):
        lengths = [round(n * num_tokens / sum(UNEVEN)) for n in UNEVEN]
        lengths[-1] += num_tokens - sum(lengths)
        cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
        cu_seqlens = cu_seqlens.to("cuda", torch.int64) if peer == "fla" else cu_seqlens.to(torch.int32)
    inputs = {name: x.requires_grad_() for name, x in make_inputs(num_tokens, num_heads, regime).items()}
    d_o = torch.randn_like(inputs["v"])

    def forward():
        with torch.no_grad():
            chunk_kda(**inputs, cu_seqlens=cu_seqlens, backend=peer)

    def both():
        o, _ = chunk_kda(**inputs, cu_seqlens=cu_seqlens, backend=peer)
        o.backward(d_o)
        for x in inputs.values():
            x.grad = None

    both()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    both()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    backward_ms = time_backward(inputs, cu_seqlens, peer, d_o, repeats)
    row = {"shape": shape, "regime": regime, "peer": peer, "forward_ms": median_ms(forward, repeats), "backward_ms": backward_ms}
    row |= {"both_ms": median_ms(both, repeats), "peak_gib": peak}
    floor = floors(num_tokens * num_heads)
    row["floor_ms"] = floor
    row["multiples"] = [row[key] / f for key, f in zip(("forward_ms", "backward_ms", "both_ms"), floor, strict=True)]
    return row


def time_backward(inputs, cu_seqlens, peer, d_o, repeats):
    o, _ = chunk_kda(**inputs, cu_seqlens=cu_seqlens, backend=peer)
    leaves = list(inputs.values())
    return median_ms(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True), repeats)


def time_convolution(repeats, num_tokens=65536, num_channels=4096):
    x = [torch.randn(1, num_tokens, num_channels, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    weights = [torch.randn(num_channels, 4, device="cuda", requires_grad=True) for _ in range(3)]
    d_y = torch.randn_like(x[0])

    def both():
        for tensor, weight in zip(x, weights, strict=True):
            y, _ = short_conv(tensor, weight)
            torch.autograd.grad(y, [tensor, weight], d_y)

    def forward():
        with torch.no_grad():
            for tensor, weight in zip(x, weights, strict=True):
                short_conv(tensor, weight)

    return {"forward_ms": median_ms(forward, repeats), "both_ms": median_ms(both, repeats)}


def accuracy(peer, regime, seed):
    inputs = make_inputs(1000, 8, regime, seed=seed)
    documents = Documents((0, 1000))
    found, wanted = run(inputs, documents, backend=peer), run(inputs, documents, backend="exact")
    return {name: relative_error(found[name], wanted[name]) for name in wanted}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="sm90,fla" if find_spec("fla") else "sm90")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--regimes", default="steep,init,mixed,none")
    parser.add_argument("--peer-shapes", default="65536x32,8192x32", help="shapes at which peers other than ours are timed")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-accuracy", action="store_true")
    parser.add_argument("--output", default=str(Path(__file__).parent))
    args = parser.parse_args()
    report = {"date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "device": torch.cuda.get_device_name()}
    report |= {"torch": torch.__version__, "fla": version("fla-core") if find_spec("fla") else None, "times": [], "errors": []}
    stem = Path(args.output) / f"{report['date'][:10]}-kda"
    lines = [
        f"# KDA on {report['device']}, {report['date'][:10]}",
        "",
        f"torch {report['torch']}, fla {report['fla']}. {' '.join(__doc__.strip().splitlines()[4:6])}",
        "",
    ]

    def say(line):
        print(line, flush=True)
        lines.append(line)

    def save():
        stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        stem.with_suffix(".md").write_text("\n".join(lines) + "\n")

    say("| shape | regime | peer | forward | backward | both | x floor | peak GiB | must |")
    say("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for peer in args.peers.split(","):
        for shape in args.shapes.split(","):
            if peer != "sm90" and shape not in args.peer_shapes.split(","):
                continue
            for regime in args.regimes.split(",") if peer == "sm90" else ["mixed"]:
                row = time_shape(shape, regime, peer, args.repeats)
                report["times"].append(row)
                must = " / ".join("-" if m is None else f"{m:g}" for m in MUST.get(shape, ())) if peer == "sm90" else ""
                multiples = " / ".join(f"{m:.1f}" for m in row["multiples"])
                say(
                    f"| {shape} | {regime} | {peer} | {row['forward_ms']:.3f} | {row['backward_ms']:.3f} | {row['both_ms']:.3f} | {multiples} | {row['peak_gib']:.2f} | {must} |"
                )
                torch.cuda.empty_cache()
                save()
    report["convolution"] = time_convolution(args.repeats)
    say("")
    say(
        "Short convolution of q, k and v, 3 x [65536, 4096]: forward {forward_ms:.3f} ms, both {both_ms:.3f} ms".format(
            **report["convolution"]
        )
    )
    if not args.no_accuracy:
        names = ["o", "state", "dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dh0"]
        say("")
        say("Relative error against float64, x 1e-3, T = 1000, H = 8, mean of 3 seeds:")
        say("")
        say("| regime | peer | " + " | ".join(names) + " |")
        say("| --- | --- |" + " --- |" * len(names))
        for regime in ("steep", "init", "mixed", "tiles", "none", "floor"):
            for peer in args.peers.split(","):
                errors = [accuracy(peer, regime, seed) for seed in range(3)]
                mean = {name: math.fsum(e[name] for e in errors) / len(errors) for name in names}
                report["errors"].append({"regime": regime, "peer": peer, **mean})
                say(f"| {regime} | {peer} | " + " | ".join(f"{1e3 * mean[name]:.2f}" for name in names) + " |")
                save()


if __name__ == "__main__":
    main()
