# ruff: noqa: E402 - the imports need the path set first
"""Times every kernel of KDA alone: where the time of a call goes. Prints a table, writes benchmarks/<date>-stages.{json,md}.

    python3 benchmarks/bench_stages.py [--shapes 65536x32,65536x16,65536x4] [--repeats 15]

Medians of device events in ms over a whole sequence at once, without the segments that hide the scans; then calls end to end.
`bytes` are what the kernel must move at 4.3 TB/s.
"""

import argparse
import datetime as dt
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "gpu_tests")]

import torch
from bench_kda import median_ms
from cases import make_inputs

from samite_kernels.kda import chunk_kda, counted_chunk_kda
from samite_kernels.kda import sm90_launch as kernels
from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_counts import TALLY_ROW, VARIABLE
from samite_kernels.kda.sm90_pieces import pieces_of
from samite_kernels.kda.sm90_schedule import BACKWARD_FACTORS, FORWARD_FACTORS, States, Work
from samite_kernels.kda.sm90_segments import whole_of
from samite_kernels.runtime.launch import num_multiprocessors

COPY = 4.3e9
PREPARE, REBUILD, GRADIENT = 1026 + 1160, 898 + 776, 3080 + 1026


def whole(num_tokens, num_heads, regime="mixed"):
    """Inputs, outputs and factors of one long document as one segment, and the addresses of everything."""
    device = torch.device("cuda")
    inputs = {name.lower(): x for name, x in make_inputs(num_tokens, num_heads, regime).items()}
    table = kernels.chunk_table(Documents((0, num_tokens)), device)
    tiles = table.num_chunks * num_heads
    like = {
        "o": "v",
        "d_o": "v",
        "d_q": "q",
        "d_k": "k",
        "d_v": "v",
        "d_g": "g",
        "d_beta": "beta",
        "d_a_log": "a_log",
        "d_dt_bias": "dt_bias",
    }
    made = {name: torch.randn_like(inputs[of]) for name, of in like.items()}
    made |= {"d_a_log_parts": torch.zeros(tiles, device=device), "d_dt_bias_parts": torch.zeros(tiles, 128, device=device)}
    made["counts"] = torch.zeros(num_heads, TALLY_ROW, dtype=torch.int64, device=device)
    segment = whole_of(Documents((0, num_tokens)), device)
    end = torch.zeros(1, num_heads, 128, 128, device=device)
    factors = dict.fromkeys((*FORWARD_FACTORS, *BACKWARD_FACTORS, "states", "v_new"))
    addresses = kernels.addresses_of(inputs | made | {"chunks": table.chunks})
    numbers = {"num_heads": num_heads, "scale": 128**-0.5, "lower_bound": -5.0}
    work = Work((segment,), addresses, numbers, tuple(factors), States.passing((segment,), None, end))
    return work, segment, work.part(0, segment), (inputs, made, table, end)


def time_stages(num_tokens, num_heads, repeats):
    work, segment, part, alive = whole(num_tokens, num_heads)
    sizes, chains, device = work.sizes(segment), work.chains(segment), work.device
    part["final_state"] = part["d_initial_state"] = alive[3].data_ptr()
    token_heads = num_tokens * num_heads

    def row(name, run, num_bytes=None):
        floor = None if num_bytes is None else num_bytes * token_heads / COPY
        return {"shape": f"{num_tokens}x{num_heads}", "what": name, "ms": median_ms(run, repeats), "bytes_ms": floor}

    def prepare(who="beside", **more):
        os.environ[VARIABLE] = who
        work.prepare(part | {"counts": 0, "inverse": 0} | more, segment)

    yield row("prepare", prepare, PREPARE)
    for who in ("beside", "idle"):
        yield row(f"prepare, counting {who}", lambda w=who: prepare(w, counts=part["counts"]), PREPARE)
    os.environ[VARIABLE] = "beside"
    yield row("prepare, inverse kept", lambda: prepare(inverse=part["inverse"]), PREPARE + 128)
    rebuild = kernels.fill(kernels.RebuildArguments, part, **sizes)
    yield row("rebuild", lambda: kernels.rebuild(rebuild, device), REBUILD)
    for name, without, num_bytes in (
        ("outputs", {"states": 0, "v_new": 0}, 1416),
        ("outputs and states", {}, 2184),
        ("states", {"o": 0}, 1544),
    ):
        scan = kernels.fill(kernels.ScanArguments, part | without, **chains)
        yield row(f"scan, {name}", lambda s=scan: kernels.scan(s, device), num_bytes)
    yield from time_pieces(row, part, work, num_tokens)
    output = kernels.fill(kernels.OutputArguments, part, num_chunks=sizes["num_chunks"], num_heads=num_heads)
    yield row("output", lambda: kernels.output(output, device), 1408)
    reverse = kernels.fill(kernels.ReverseScanArguments, part, **chains)
    yield row("reverse scan", lambda: kernels.reverse_scan(reverse, device), 2058)
    gradient = kernels.fill(kernels.GradientArguments, part, **sizes)
    yield row("gradient", lambda: kernels.gradient(gradient, device), GRADIENT)
    reduce = kernels.fill(kernels.ReduceArguments, part, num_chunks=sizes["num_chunks"], num_heads=num_heads)
    yield row("reduce", lambda: kernels.reduce(reduce, device))


def time_pieces(row, part, work, num_tokens):
    """The kernels of a forward that is cut into pieces, where that is possible."""
    device = work.device
    documents, multiprocessors = Documents((0, num_tokens)), num_multiprocessors(device)
    pieces = pieces_of(documents, work.num_heads, device, multiprocessors)
    if pieces is None:
        return
    memory = {name: torch.zeros(pieces.count, work.num_heads, 128, 128, device=device) for name in ("maps", "ends", "starts")}
    part = part | kernels.addresses_of(memory | {"first_chunk": pieces.first_chunk, "first_piece": pieces.first_piece})
    maps = kernels.fill(kernels.MapsArguments, part, num_pieces=pieces.count, num_heads=work.num_heads)
    yield row(f"maps of {pieces.count} pieces", lambda: kernels.maps(maps, device), 776)
    fold = kernels.fill(kernels.FoldArguments, part, num_documents=1, num_heads=work.num_heads)
    yield row(f"fold of {pieces.count} pieces", lambda: kernels.fold(fold, device))
    scanned = part | kernels.addresses_of({"initial_state": memory["starts"], "final_state": memory["ends"]}) | {"states": 0, "v_new": 0}
    scan = kernels.fill(kernels.ScanArguments, scanned, num_documents=pieces.count, num_heads=work.num_heads)
    yield row(f"scan, outputs, {pieces.count} pieces", lambda: kernels.scan(scan, device), 1416)


def time_calls(num_tokens, num_heads, repeats):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(num_tokens, num_heads, "mixed").items()}
    d_o = torch.randn_like(inputs["v"])

    def forward(call=chunk_kda):
        with torch.no_grad():
            call(**inputs, backend="sm90")

    def both(**options):
        torch.autograd.grad(chunk_kda(**inputs, backend="sm90", **options)[0], list(inputs.values()), d_o)

    def show(what, run):
        run()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ms = median_ms(run, repeats)
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30
        return {"shape": f"{num_tokens}x{num_heads}", "what": what, "ms": ms, "peak_gib": peak}

    yield show("forward", forward)
    yield show("forward, counting", lambda: forward(counted_chunk_kda))
    yield show("both", both)
    yield show("both, recomputing", lambda: both(recompute_states=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="65536x32,65536x16,65536x4")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", default=str(Path(__file__).parent))
    args = parser.parse_args()
    date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    stem = Path(args.output) / f"{date[:10]}-stages"
    report = {"date": date, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "times": []}
    lines = [
        f"# Kernels of KDA on {report['device']}, {date[:10]}",
        "",
        "| shape | what | ms | bytes, ms | peak GiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    for shape in args.shapes.split(","):
        size = [int(part) for part in shape.split("x")]
        for measure in (time_stages, time_calls):
            for row in measure(*size, args.repeats):
                report["times"].append(row)
                cells = [f"{row[key]:.3f}" if row.get(key) is not None else "" for key in ("ms", "bytes_ms", "peak_gib")]
                lines.append(f"| {row['shape']} | {row['what']} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
                stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
                stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
