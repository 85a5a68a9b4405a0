# ruff: noqa: E402, E501 - the imports need the path set first
"""Times KDA on this GPU against the peers that are installed: prints a table, writes benchmarks/<date>-kda.{json,md}.

    python3 benchmarks/bench_kda.py [--peers sm90,fla] [--shapes 65536x32,8192x32] [--regimes mixed,init] [--no-large]

Times are medians of device events, in ms, on raw bfloat16 inputs; the floor counts the fewest bytes and operations at 4.3 TB/s and
790 TFLOP/s. The peak is device memory above the inputs during forward and backward. cudnn is given prepared inputs, whose making isn't timed.
"""

import argparse
import datetime as dt
import json
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("FLA_CACHE_RESULTS", "0")
sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "gpu_tests")]

import torch
from cases import make_inputs

from samite_kernels.kda import chunk_kda
from samite_kernels.kda.gate import bounded_log_decay, l2_normalize

SHAPES = "65536x32,65536x16,65536x96,262144x16,65536x32u,8192x32,8192x16,65536x8,65536x4"
LARGE = "1048576x16,262144x96"
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
PACKAGES = {"fla": "fla-core", "cudnn": "nvidia-cudnn-frontend"}
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


def prepared(inputs):
    """What cudnn's kernels take: q and k normalised, log-decay and write strength in float32, no batch; making it is not timed."""
    plain = {name: x.detach()[0] for name, x in inputs.items() if x.dim() > 2}
    decay = bounded_log_decay(inputs["g"].detach().float(), inputs["A_log"].detach(), inputs["dt_bias"].detach(), lower_bound=-5.0)[0]
    ready = {name: l2_normalize(plain[name].float()).bfloat16() for name in ("q", "k")}
    ready |= {"v": plain["v"].clone(), "g": decay, "beta": plain["beta"].float().sigmoid()}
    return {name: x.contiguous().requires_grad_() for name, x in ready.items()}


def caller(peer, num_tokens, cu_seqlens):
    """o of the leaves, through a peer."""
    if peer != "cudnn":
        return lambda **leaves: chunk_kda(**leaves, cu_seqlens=cu_seqlens, backend=peer)[0]
    from cudnn.linear_attention.ops import kimi_delta_attention

    offsets = torch.tensor([0, num_tokens]) if cu_seqlens is None else cu_seqlens
    offsets = offsets.to("cuda", torch.int32)

    def run(**leaves):
        o = kimi_delta_attention(**leaves, cu_seqlens=offsets, scale=128**-0.5, plan_name="kda_hopper_cuda")
        return o[0] if isinstance(o, tuple) else o

    return run


def time_shape(shape, regime, peer, repeats):
    num_tokens, num_heads = (int(part) for part in shape.rstrip("u").split("x"))
    cu_seqlens = None
    if shape.endswith("u"):
        lengths = [round(n * num_tokens / sum(UNEVEN)) for n in UNEVEN]
        lengths[-1] += num_tokens - sum(lengths)
        cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
        cu_seqlens = cu_seqlens.to("cuda", torch.int64) if peer == "fla" else cu_seqlens.to(torch.int32)
    inputs = {name: x.requires_grad_() for name, x in make_inputs(num_tokens, num_heads, regime).items()}
    if peer == "cudnn":
        inputs = prepared(inputs)
    d_o = torch.randn_like(inputs["v"])
    call = caller(peer, num_tokens, cu_seqlens)

    def forward():
        with torch.no_grad():
            call(**inputs)

    def both():
        o = call(**inputs)
        o.backward(d_o)
        for x in inputs.values():
            x.grad = None

    both()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    both()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    backward_ms = time_backward(inputs, call, d_o, repeats)
    row = {"shape": shape, "regime": regime, "peer": peer, "forward_ms": median_ms(forward, repeats), "backward_ms": backward_ms}
    row |= {"both_ms": median_ms(both, repeats), "peak_gib": peak}
    floor = floors(num_tokens * num_heads)
    row["floor_ms"] = floor
    row["multiples"] = [row[key] / f for key, f in zip(("forward_ms", "backward_ms", "both_ms"), floor, strict=True)]
    return row


def time_backward(inputs, call, d_o, repeats):
    o = call(**inputs)
    leaves = list(inputs.values())
    return median_ms(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True), repeats)


def regimes_of(peer, shape, wanted):
    """Only cudnn's speed depends on the gates: its best and its worst."""
    if shape in LARGE.split(","):
        return ["mixed"]
    return {"sm90": wanted.split(","), "cudnn": ["steep", "init"]}.get(peer, ["mixed"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(["sm90", *(peer for peer in ("fla", "cudnn") if find_spec(peer))]))
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--regimes", default="steep,init,mixed,none")
    parser.add_argument("--peer-shapes", default="65536x32,8192x32,65536x32u", help="shapes at which peers other than ours are timed")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-large", action="store_true", help="leave out the shapes that must fit, of up to 110 GiB")
    parser.add_argument("--output", default=str(Path(__file__).parent))
    args = parser.parse_args()
    report = {"date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "device": torch.cuda.get_device_name()}
    versions = {peer: version(package) if find_spec(peer) else None for peer, package in PACKAGES.items()}
    report |= {"torch": torch.__version__, **versions, "times": []}
    stem = Path(args.output) / f"{report['date'][:10]}-kda"
    lines = [
        f"# KDA on {report['device']}, {report['date'][:10]}",
        "",
        f"torch {report['torch']}, fla {report['fla']}, cudnn {report['cudnn']}. {' '.join(__doc__.strip().splitlines()[4:7])}",
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
        for shape in [*args.shapes.split(","), *(LARGE.split(",") if peer == "sm90" and not args.no_large else [])]:
            if peer != "sm90" and shape not in args.peer_shapes.split(","):
                continue
            for regime in regimes_of(peer, shape, args.regimes):
                try:
                    row = time_shape(shape, regime, peer, args.repeats)
                except Exception as problem:
                    if peer == "sm90":
                        raise
                    say(f"| {shape} | {regime} | {peer} | not timed: {str(problem).splitlines()[0][:150]} | | | | | |")
                    continue
                report["times"].append(row)
                must = " / ".join("-" if m is None else f"{m:g}" for m in MUST.get(shape, ())) if peer == "sm90" else ""
                multiples = " / ".join(f"{m:.1f}" for m in row["multiples"])
                say(
                    f"| {shape} | {regime} | {peer} | {row['forward_ms']:.3f} | {row['backward_ms']:.3f} | {row['both_ms']:.3f} | {multiples} | {row['peak_gib']:.2f} | {must} |"
                )
                torch.cuda.empty_cache()
                save()


if __name__ == "__main__":
    main()
