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

WORLD = 4
BUCKET = "bench"


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


def local(tensor: object) -> object:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def raw(endpoint: str, rank: int, num_bytes: int) -> Callable[[int], object]:
    """The bound: as many staged bytes through bare sockets, eight connections, one checksum pass."""
    from concurrent.futures import ThreadPoolExecutor
    from http.client import HTTPConnection

    from samite.checkpoint.checksum import crc64, to_header

    staged, part = memoryview(bytearray(os.urandom(1 << 20) * (num_bytes >> 20))), 16 << 20
    host = endpoint.partition("://")[2]
    connections = [HTTPConnection(host) for _ in range(8)]

    def send(worker: int) -> None:
        connection = connections[worker]
        for start in range(worker * part, len(staged), 8 * part):
            view = staged[start : start + part]
            connection.putrequest("PUT", f"/raw/{rank}-{start}")
            connection.putheader("Content-Length", str(len(view)))
            connection.putheader("x-amz-checksum-crc64nvme", to_header(crc64(view)))
            connection.endheaders()
            connection.sock.sendall(view)
            connection.getresponse().read()

    def save(number: int) -> None:
        del number
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(send, range(8)))

    return save


_managers: dict[str, object] = {}
_phases: list = []
_copies: list[float] = []


def ours(endpoint: str, rank: int, state: dict) -> dict[str, Callable[[int], object]]:
    """The manager, and our writer behind PyTorch's own save."""
    import torch.distributed.checkpoint as dcp

    from samite.checkpoint import StoreOptions
    from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions
    from samite_workloads.checkpoint.dcp import SamiteSavePlanner, SamiteStorageWriter

    options = StoreOptions(endpoint=endpoint)
    if "ours" not in _managers:
        _managers["ours"] = CheckpointManager(
            f"s3://{BUCKET}/manager", run_uid="bench", epoch=1, rank=rank, world_size=WORLD, options=CheckpointOptions(store=options)
        )
    manager = _managers["ours"]

    def save_dcp(number: int) -> None:
        dcp.save(
            state,
            storage_writer=SamiteStorageWriter(f"s3://{BUCKET}/dcp", step=number, options=options),
            planner=SamiteSavePlanner(),
        )

    def save_manager(number: int) -> None:
        manager.save(number, state, asynchronous=False)
        _phases.extend(manager.poll())

    return {"ours, manager": save_manager, "ours, dcp.save": save_dcp}


def theirs(endpoint: str, state: dict) -> dict[str, Callable[[int], object]]:
    """PyTorch's writers and the S3 connector's, where installed."""
    import torch.distributed.checkpoint as dcp

    found: dict[str, Callable[[int], object]] = {}
    try:
        import s3fs  # noqa: F401
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
    except ImportError:
        pass
    else:
        keys = {"client_kwargs": {"endpoint_url": endpoint}, "key": "key", "secret": "secret"}
        for name, sync in (("FsspecWriter, default", True), ("FsspecWriter, sync_files=False", False)):
            found[name] = lambda number, sync=sync: dcp.save(
                state, storage_writer=FsspecWriter(f"s3://{BUCKET}/fsspec-{sync}/{number}", sync_files=sync, **keys)
            )
    try:
        from s3torchconnector.dcp import S3StorageWriter
    except ImportError:
        pass
    else:
        found["s3torchconnector"] = lambda number: dcp.save(
            state, storage_writer=pointed(S3StorageWriter("us-east-1", f"s3://{BUCKET}/connector/{number}/", overwrite=True), endpoint)
        )
    return found


def our_loads(endpoint: str, rank: int, state: dict) -> dict[str, Callable[[int], object]]:
    """Restore of what was saved above."""
    import torch.distributed.checkpoint as dcp

    from samite.checkpoint import StoreOptions
    from samite_workloads.checkpoint.dcp import SamiteStorageReader

    ours(endpoint, rank, state)
    manager = _managers["ours"]
    return {
        "ours, manager": lambda _: manager.restore("latest", state),
        "ours, dcp.load": lambda _: dcp.load(
            state, storage_reader=SamiteStorageReader(f"s3://{BUCKET}/dcp", options=StoreOptions(endpoint=endpoint))
        ),
    }


def their_loads(endpoint: str, state: dict) -> dict[str, Callable[[int], object]]:
    """The others' readers."""
    import torch.distributed.checkpoint as dcp

    found: dict[str, Callable[[int], object]] = {}
    try:
        import s3fs  # noqa: F401
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
    except ImportError:
        pass
    else:
        keys = {"client_kwargs": {"endpoint_url": endpoint}, "key": "key", "secret": "secret"}
        found["FsspecReader"] = lambda _: dcp.load(state, storage_reader=FsspecReader(f"s3://{BUCKET}/fsspec-False/1", **keys))
    try:
        from s3torchconnector.dcp import S3StorageReader
    except ImportError:
        pass
    else:
        found["s3torchconnector"] = lambda _: dcp.load(
            state, storage_reader=pointed(S3StorageReader("us-east-1", f"s3://{BUCKET}/connector/1/"), endpoint)
        )
    return found


def pointed(engine: object, endpoint: str) -> object:
    """The connector's classes take no endpoint: its client is replaced."""
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    engine.fs._client = S3Client(  # noqa: SLF001
        region="us-east-1", endpoint=endpoint, s3client_config=S3ClientConfig(force_path_style=True)
    )
    return engine


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


def forget(endpoint: str, number: int) -> None:
    """Rank 0: the server keeps everything in memory, so all but the newest saves go."""
    from http.client import HTTPConnection

    from samite.checkpoint import Catalog, StoreOptions, open_store
    from samite.checkpoint.retention import KeepPolicy, carry_out, plan_for

    for place in ("manager", "dcp"):
        catalog = Catalog(open_store(f"s3://{BUCKET}/{place}", StoreOptions(endpoint=endpoint)))
        carry_out(catalog, plan_for(catalog, KeepPolicy(last=1)))
    for place in ("fsspec-True", "fsspec-False", "connector"):
        if number > 1:
            connection = HTTPConnection(endpoint.partition("://")[2])
            connection.request("DELETE", f"/{BUCKET}?prefix={place}/{number}/")
            connection.getresponse().read()
            connection.close()


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
    if _phases:
        names = ("stall_s", "snapshot_s", "upload_s", "commit_s")
        say("   manager: " + ", ".join(f"{name[:-2]} {statistics.median(getattr(one, name) for one in _phases):.3f} s" for name in names))
        stall_s, copied_s = statistics.median(one.stall_s for one in _phases[1:]), statistics.median(_copies[1:])
        say(f"   stall of training {stall_s:.3f} s; a plain copy of as many bytes {copied_s:.3f} s, {stall_s / copied_s:.2f}x")


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
