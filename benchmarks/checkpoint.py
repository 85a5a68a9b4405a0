"""`make bench-checkpoint`: our saves and loads against PyTorch's writers, the S3 connector's, and raw sockets; paired and interleaved.

Four gloo ranks hold an MoE-shaped state (`--mib` in all) and write it to an S3 server in memory on this machine, which shares its processors with them: ratios
in one run are what counts. In each round every engine saves once, in changing order; a ratio is the median over rounds of its time by ours.
Engines whose packages are not installed are left out: FsspecWriter wants s3fs, S3StorageWriter wants s3torchconnector[dcp].

    --phases save,load,fewer,stall,plan     which parts: saves, loads on the same ranks, loads on two, stalls of saves that do not wait, planning alone
    --connections 8                         as many for the bound and for us, neither more nor fewer; without it ours find out by themselves
"""

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from http.client import HTTPConnection

from checkpoint_engines import BUCKET, Place, chosen, loads, saves, without_waiting
from checkpoint_measures import WORLD, copier, local, planning, report, rounds, say, stalls

FEWER = 2
MEMORY_OF_THE_SERVER = (
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=34359738368:glibc.malloc.mmap_threshold=4294967296"
)
"""It uses again what it had instead of asking the kernel: what the server costs is taken from the ranks, and from some engines more than from others."""


def main() -> int:
    """Start the server and the ranks; print what rank 0 measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="state of all ranks together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of the server, to the first byte")
    parser.add_argument("--connection-mbps", type=float, default=0.0, help="of each connection, megabytes a second")
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--engines", default="", help="only those whose name contains one of these words, by commas; ours always")
    parser.add_argument("--phases", default="save,load,fewer,stall,plan")
    parser.add_argument("--tensors", type=int, default=500, help="a rank, for planning")
    parser.add_argument("--limit-s", type=float, default=280.0)
    options = parser.parse_args()
    command = [sys.executable, "-m", "samite.checkpoint.store.sink", "--any-parts", f"--latency-ms={options.latency_ms}"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a limit from outside leaves no process behind
    began_s = time.monotonic()
    server = subprocess.Popen(
        [*command, f"--connection-mbps={options.connection_mbps}"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"GLIBC_TUNABLES": MEMORY_OF_THE_SERVER},
    )
    assert server.stdout is not None
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="samite-bench-") as place:
        ranks = []
        try:
            endpoint = server.stdout.readline().strip()
            if not options.connection_mbps:
                warm(endpoint, 5 * options.mib)
            ranks = [context.Process(target=rank_main, args=(rank, endpoint, place, options), daemon=True) for rank in range(WORLD)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(max(0.0, began_s + options.limit_s - time.monotonic()))
            return 0 if all(rank.exitcode == 0 for rank in ranks) else 1
        finally:
            for rank in ranks:
                if rank.is_alive():
                    rank.kill()
            server.kill()
            server.wait()


def warm(endpoint: str, mib: int) -> None:
    """Have the server touch its memory before anything is measured: the first engines would pay for it otherwise."""
    connection, body = HTTPConnection(endpoint.partition("://")[2]), bytes(16 << 20)
    for method, path, sent in (
        *(("PUT", f"/{BUCKET}/warm/{number}", body) for number in range(mib >> 4)),
        ("DELETE", f"/{BUCKET}?prefix=warm/", b""),
    ):
        connection.request(method, path, sent)
        connection.getresponse().read()
    connection.close()


def rank_main(rank: int, endpoint: str, rendezvous: str, options: argparse.Namespace) -> None:
    """One rank: all engines in turn, each between two barriers."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}/file", rank=rank, world_size=WORLD)
    phases = options.phases.split(",")
    if "plan" in phases:
        planning(options.tensors, rank, WORLD)
    state = moe_state(options.mib << 20, WORLD)
    total = torch.tensor(sum(local(tensor).numel() * local(tensor).element_size() for tensor in state.values()) / (1 << 30))
    own_bytes = int(float(total) * (1 << 30))
    dist.all_reduce(total)
    gib = float(total)
    place = Place(endpoint=endpoint, rank=rank, connections=options.connections)
    place.manager(WORLD).prepare(state)
    if phases != ["plan"]:
        engines = chosen(saves(place, state, own_bytes), options.engines)
        found = rounds(engines, options.rounds if "save" in phases else 0, after=place.forget)
        if rank == 0 and "save" in phases:
            report(f"save, {WORLD} ranks", found, gib)
            place.told()
    if "stall" in phases:
        stalls(chosen(without_waiting(place, state), options.engines), copier(state), options.rounds, after=place.forget)
    if "load" in phases:
        found = rounds(chosen(loads(place, state, WORLD, None), options.engines), options.rounds)
        if rank == 0:
            report(f"load, {WORLD} ranks to {WORLD}", found, gib)
    if "fewer" in phases:
        group = dist.new_group(list(range(FEWER)), backend="gloo")
        few = moe_state(options.mib << 20, FEWER)
        found = rounds(chosen(loads(place, few, FEWER, group), options.engines), options.rounds)
        if rank == 0:
            report(f"load, {WORLD} ranks to {FEWER}", found, gib)
            say(f"   the manager read {place.read_bytes / (gib * (1 << 30) / FEWER):.3f} times what rank 0 holds")
    dist.destroy_process_group()


def moe_state(num_bytes: int, size: int) -> dict:
    """Grouped experts and dense weights as parameters sharded over the first `size` ranks, with fp32 moments, and a few replicated norms."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, layers, state = DeviceMesh("cpu", list(range(size))), 4, {}
    rows = max(WORLD, num_bytes // layers // (2 + 4 + 4 + 4) // 1024) // WORLD * WORLD
    inside = mesh.get_coordinate() is not None
    for layer in range(layers):
        for name in ("weight", "master", "exp_avg", "exp_avg_sq"):
            dtype = torch.bfloat16 if name == "weight" else torch.float32
            part = torch.randn(rows // size if inside else 0, 1024).to(dtype)
            state[f"layers.{layer}.experts.{name}"] = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
        for norm in range(8):
            state[f"layers.{layer}.norm{norm}.weight"] = torch.ones(1024)
    return state


if __name__ == "__main__":
    sys.exit(main())
