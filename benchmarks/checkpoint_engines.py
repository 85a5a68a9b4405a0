"""The engines that `checkpoint.py` compares: ours, PyTorch's and the S3 connector's writers and readers, and bare sockets as the bound."""

import os
import statistics
from collections.abc import Callable
from typing import Any

from checkpoint_measures import say

BUCKET = "bench"


class Place:
    """One rank's way to the server, and what is kept between saves."""

    def __init__(self, *, endpoint: str, rank: int, connections: int) -> None:
        self.endpoint, self.rank, self.connections = endpoint, rank, connections
        self.read_bytes = 0
        self._managers: dict[int, Any] = {}
        self._stores: dict[str, Any] = {}
        self._saves: list[Any] = []

    def store(self, name: str) -> Any:
        """A store below `name`, one for all engines' saves: connections are kept."""
        from samite.checkpoint.store.s3 import S3Options, S3Store

        if name not in self._stores:
            number = {"connections": self.connections, "most_connections": self.connections} if self.connections else {}
            self._stores[name] = S3Store(BUCKET, name, S3Options(endpoint=self.endpoint, **number))
        return self._stores[name]

    def manager(self, world: int, group: Any = None) -> Any:
        """The manager over the first `world` ranks."""
        from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions

        if world not in self._managers:
            self._managers[world] = CheckpointManager(
                self.store("manager"),
                run_uid="bench",
                epoch=9 - world,
                rank=self.rank,
                world_size=world,
                group=group,
                options=CheckpointOptions(threads=max(4, self.connections or 8)),
            )
        return self._managers[world]

    def save(self, number: int, state: dict, *, world: int) -> None:
        """Through the manager, until it is committed."""
        self.manager(world).save(number, state, asynchronous=False)
        self._saves += self.manager(world).poll()

    def restore(self, state: dict, world: int, group: Any) -> None:
        """Through the manager."""
        self.read_bytes = self.manager(world, group).restore("latest", state).read_bytes

    def told(self) -> None:
        """Where the manager's time went, on this rank."""
        names = ("stall_s", "snapshot_s", "upload_s", "commit_s")
        say(
            "   manager: "
            + ", ".join(f"{name[:-2]} {statistics.median(getattr(one, name) for one in self._saves):.3f} s" for name in names)
        )

    def forget(self, name: str, number: int) -> None:
        """Rank 0: the server keeps everything in memory, so all but an engine's newest save and its first go."""
        import torch.distributed as dist

        dist.barrier()
        if self.rank == 0:
            from http.client import HTTPConnection

            from samite.checkpoint import Catalog
            from samite.checkpoint.retention import KeepPolicy, carry_out, plan_for

            if name.startswith("ours"):
                catalog = Catalog(self.store("manager" if "manager" in name else "dcp"))
                carry_out(catalog, plan_for(catalog, KeepPolicy(last=1)))
            elif number > 1 or name.startswith("raw"):
                connection = HTTPConnection(self.endpoint.partition("://")[2])
                connection.request("DELETE", f"/{BUCKET}?prefix={_PREFIXES.get(name, 'none')}/{number}/")
                connection.getresponse().read()
                connection.close()
        dist.barrier()


_PREFIXES = {
    "raw sockets with CRC64": "raw",
    "FsspecWriter, default": "fsspec-True",
    "FsspecWriter, sync_files=False": "fsspec-False",
    "s3torchconnector": "connector",
}


def chosen(engines: dict[str, Any], words: str) -> dict[str, Any]:
    """Those that `--engines` names; ours are always among them."""
    wanted = words.split(",") if words else [""]
    return {name: work for name, work in engines.items() if name.startswith("ours") or any(word in name for word in wanted)}


def raw(place: Place, num_bytes: int) -> Callable[[int], object]:
    """The bound: as many staged bytes through bare sockets, eight connections, one checksum pass."""
    from concurrent.futures import ThreadPoolExecutor
    from http.client import HTTPConnection

    from samite.checkpoint.checksum import crc64, to_header

    count = place.connections or 8
    staged, part = memoryview(bytearray(os.urandom(1 << 20) * (num_bytes >> 20))), min(16 << 20, max(5 << 20, -(-num_bytes // count)))
    connections = [HTTPConnection(place.endpoint.partition("://")[2]) for _ in range(count)]

    def send(worker: int, number: int) -> None:
        connection = connections[worker]
        for start in range(worker * part, len(staged), count * part):
            view = staged[start : start + part]
            connection.putrequest("PUT", f"/{BUCKET}/raw/{number}/{place.rank}-{start}")
            connection.putheader("Content-Length", str(len(view)))
            connection.putheader("x-amz-checksum-crc64nvme", to_header(crc64(view)))
            connection.endheaders()
            connection.sock.sendall(view)
            connection.getresponse().read()

    def save(number: int) -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(send, range(count), [number] * count))

    return save


def saves(place: Place, state: dict, num_bytes: int) -> dict[str, Callable[[int], object]]:
    """The bound, the manager, our writer behind PyTorch's own save, PyTorch's writers and the S3 connector's where installed."""
    import torch.distributed.checkpoint as dcp

    from samite_workloads.checkpoint.dcp import SamiteSavePlanner, SamiteStorageWriter

    found: dict[str, Callable[[int], object]] = {
        "raw sockets with CRC64": raw(place, num_bytes),
        "ours, manager": lambda number: place.save(number, state, world=4),
        "ours, dcp.save": lambda number: dcp.save(
            state, storage_writer=SamiteStorageWriter(place.store("dcp"), step=number), planner=SamiteSavePlanner()
        ),
    }
    for name, make in their_writers(place).items():
        found[name] = lambda number, make=make: dcp.save(state, storage_writer=make(number))
    return found


def without_waiting(place: Place, state: dict) -> dict[str, Callable[[int], Callable[[], object]]]:
    """Saves in the background; each returns what waits for its end."""
    import torch.distributed.checkpoint as dcp

    def ours(number: int) -> Callable[[], object]:
        place.manager(4).save(number, state)
        return lambda: place.manager(4).wait(120)

    found: dict[str, Callable[[int], Callable[[], object]]] = {"ours, manager": ours}
    for name, make in their_writers(place).items():
        if name != "FsspecWriter, default":
            found[name] = lambda number, make=make: dcp.async_save(state, storage_writer=make(number)).result
    return found


def their_writers(place: Place) -> dict[str, Callable[[int], object]]:
    """PyTorch's over s3fs, and the S3 connector's, where installed."""
    found: dict[str, Callable[[int], object]] = {}
    try:
        import s3fs  # noqa: F401
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
    except ImportError:
        pass
    else:
        for name, sync in (("FsspecWriter, default", True), ("FsspecWriter, sync_files=False", False)):
            found[name] = lambda number, name=name, sync=sync: FsspecWriter(
                f"s3://{BUCKET}/{_PREFIXES[name]}/{number}", sync_files=sync, **_keys(place)
            )
    try:
        from s3torchconnector.dcp import S3StorageWriter
    except ImportError:
        pass
    else:
        found["s3torchconnector"] = lambda number: pointed(
            S3StorageWriter("us-east-1", f"s3://{BUCKET}/connector/{number}/", overwrite=True), place.endpoint
        )
    return found


def loads(place: Place, state: dict, world: int, group: Any) -> dict[str, Callable[[int], object]]:
    """Loads of what was saved, onto the first `world` ranks; the others look on."""
    import torch.distributed.checkpoint as dcp

    from samite_workloads.checkpoint.dcp import SamiteStorageReader

    readers: dict[str, Callable[[], object]] = {"ours, dcp.load": lambda: SamiteStorageReader(place.store("dcp"))}
    try:
        import s3fs  # noqa: F401
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
    except ImportError:
        pass
    else:
        readers["FsspecReader"] = lambda: FsspecReader(f"s3://{BUCKET}/fsspec-False/0", **_keys(place))
    try:
        from s3torchconnector.dcp import S3StorageReader
    except ImportError:
        pass
    else:
        readers["s3torchconnector"] = lambda: pointed(S3StorageReader("us-east-1", f"s3://{BUCKET}/connector/0/"), place.endpoint)
    found: dict[str, Callable[[int], object]] = {"ours, manager": lambda _: place.restore(state, world, group)}
    for name, make in readers.items():
        found[name] = lambda _, make=make: dcp.load(state, storage_reader=make(), process_group=group)
    return found if place.rank < world else dict.fromkeys(found, lambda _: None)


def pointed(engine: Any, endpoint: str) -> object:
    """The connector's classes take no endpoint: its client is replaced."""
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    engine.fs._client = S3Client(  # noqa: SLF001
        region="us-east-1", endpoint=endpoint, s3client_config=S3ClientConfig(force_path_style=True)
    )
    return engine


def _keys(place: Place) -> dict[str, Any]:
    return {"client_kwargs": {"endpoint_url": place.endpoint}, "key": "key", "secret": "secret"}
