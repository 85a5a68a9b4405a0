"""The engines that `checkpoint.py` compares: ours, PyTorch's and the S3 connector's writers and readers, and bare sockets as the bound."""

import os
from collections.abc import Callable

WORLD = 4
BUCKET = "bench"

_managers: dict[str, object] = {}
saves: list = []
"""What the manager told of each save: its stall, snapshot, upload and commit in seconds."""


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
        saves.extend(manager.poll())

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
