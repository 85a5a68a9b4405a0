"""What each rank does in the multi-process checkpoint tests. Started by the `ranks` fixture through runpy, with its facts as globals."""

import contextlib
import json
import os
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from samite.checkpoint import Catalog
from samite.checkpoint.store import StoreOptions, open_store
from samite.checkpoint.store.faulty import Action, Fault, FaultyStore
from samite.errors import SamiteError
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions
from samite_workloads.checkpoint.tiers import TieredManager

RANK, WORLD, ARGUMENTS = globals()["RANK"], globals()["WORLD"], globals()["ARGUMENTS"]

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{globals()['RENDEZVOUS']}", rank=RANK, world_size=WORLD)


def full_tensors() -> dict[str, torch.Tensor]:
    """The same values on every rank and in every run."""
    make = torch.Generator().manual_seed(7)
    return {
        "rows": torch.randn(10, 33, generator=make),
        "one_row": torch.randn(1, 17, generator=make).bfloat16(),
        "big": torch.randn(1500, 1111, generator=make),
        "columns": torch.randn(7, 13, generator=make),
        "both": torch.randn(9, 10, generator=make).half(),
        "no_rows": torch.empty(0, 5),
        "step": torch.tensor(41, dtype=torch.int64),
        "flags": torch.rand(50, generator=make) > 0.5,
        "replicated_big": torch.randn(900_001, generator=make),
        "replicated_small": torch.randn(12, generator=make),
    }


def sharded(full: dict[str, torch.Tensor], size: int = WORLD) -> dict[str, torch.Tensor]:
    """Several kinds of sharding of `full` over the first `size` ranks."""
    mesh = meshes(size)[0]
    result = dict(full)
    for name in ("rows", "one_row", "big", "no_rows"):
        result[name] = distribute_tensor(full[name], mesh, [Shard(0)])
    result["columns"] = distribute_tensor(full["columns"], mesh, [Shard(1)])
    if size == 4:
        square = meshes(size)[1]
        result["both"] = distribute_tensor(full["both"], square, [Replicate(), Shard(1)])
        result["rows"] = distribute_tensor(full["rows"], square, [Shard(0), Shard(0)])
    else:
        result["both"] = distribute_tensor(full["both"], mesh, [Shard(0)])
    return result


@cache
def meshes(size: int) -> list[DeviceMesh]:
    """A line of the first `size` ranks, and of four also a square. All ranks must call it, as making groups is collective."""
    line = DeviceMesh("cpu", list(range(size)))
    return [line, DeviceMesh("cpu", [[0, 1], [2, 3]])] if size == 4 else [line]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def manager(uri: str, *, epoch: int = 1, store=None, world_size: int = WORLD, group=None, **options) -> CheckpointManager:
    settings = {"store": StoreOptions(durable=False), "deadline_s": 20.0, "stall_s": 5.0, "probe": False, **options}
    return CheckpointManager(
        store or uri, run_uid="run", epoch=epoch, rank=RANK, world_size=world_size, group=group, options=CheckpointOptions(**settings)
    )


def save_and_leave(uri: str) -> dict:
    saver = manager(uri)
    saver.save(41, sharded(full_tensors()), {"cursor": 7})
    commits = saver.wait(20)
    saver.close()
    return {"commits": [commit.checkpoint_id for commit in commits], "bytes": [commit.data_bytes for commit in commits]}


def reshard_everywhere(uri: str) -> dict:
    """Save with the first ARGUMENTS["writers"] ranks, load with the first 1, 2, 3 and 4 of this world."""
    report: dict = {"loads": []}
    for epoch, size in enumerate((ARGUMENTS["writers"], 1, 2, 3, 4)):
        group = dist.new_group(list(range(size)), backend="gloo")
        meshes(size)
        if size <= RANK:
            continue
        saver = manager(uri, epoch=epoch, world_size=size, group=group)
        expected = full_tensors()
        if epoch == 0:
            saver.save(41, sharded(expected, size), {"cursor": 7})
            report["ids"] = [commit.checkpoint_id for commit in saver.wait(20)]
        else:
            targets = sharded({name: torch.zeros_like(tensor) for name, tensor in expected.items()}, size)
            restored = saver.restore("latest", targets)
            wrong = [name for name, tensor in targets.items() if not torch.equal(whole(tensor), expected[name])]
            facts = (restored.step, restored.extra, restored.world_size, restored.checkpoint_id)
            report["loads"].append([size, wrong, *facts])
        saver.close()
    return report


def fsdp_round_trip(uri: str) -> dict:
    """Uneven FSDP2 shards of parameters and optimizer state, saved at one world size and loaded at another."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.Linear(7, 3, bias=False))
    model[1].weight.requires_grad_(True)
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    saver = manager(uri, epoch=ARGUMENTS["epoch"])
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if ARGUMENTS["save"]:
        saver.save(1, tensors)
        saver.wait(20)
    else:
        with torch.no_grad():
            for tensor in tensors.values():
                tensor.zero_()
        saver.restore("latest", tensors)
    saver.close()
    return {"sums": {name: whole(tensor).double().sum().item() for name, tensor in tensors.items()}}


def fsdp_over_tensor_parallel(uri: str) -> dict:
    """FSDP2 over tensor parallelism on a square of four ranks, whose shards PyTorch calls strided; saved there, loaded there and as whole tensors."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(ARGUMENTS["width"], 2 * ARGUMENTS["width"]), torch.nn.Linear(2 * ARGUMENTS["width"], 5))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for layer in model:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    kinds = sorted({type(placement).__name__ for tensor in tensors.values() for placement in tensor.placements})
    full = {name: tensor.full_tensor().clone() for name, tensor in tensors.items()}
    saver, error = manager(uri), ""
    saver.save(1, tensors, asynchronous=False)
    for tensor in tensors.values():
        tensor.to_local().zero_()
    saver.restore("latest", tensors)
    plain = {name: torch.zeros_like(tensor) for name, tensor in full.items()}
    saver.restore("latest", plain)
    wrong = [
        name
        for name, tensor in full.items()
        if not torch.equal(plain[name], tensor) or not torch.equal(tensors[name].full_tensor(), tensor)
    ]
    apart = DTensor.from_local(
        torch.zeros(2, 3), mesh, [Shard(0), _StridedShard(0, split_factor=2)], run_check=False, shape=torch.Size((8, 3)), stride=(3, 1)
    )
    try:
        saver.save(2, {"apart": apart}, asynchronous=False)
    except SamiteError as found:
        error = str(found)
    return {"kinds": kinds, "refused": error, "wrong": wrong}


def tiers_of_ranks(uri: str) -> dict:
    """Five saves in two tiers, the near one perhaps another folder on each rank; the next attempt restores the newest."""
    near = ARGUMENTS["near"] if ARGUMENTS["shared"] else f"{ARGUMENTS['near']}-{RANK}"
    options = CheckpointOptions(store=StoreOptions(durable=False), deadline_s=20.0, probe=False)
    facts = {"run_uid": "run", "rank": RANK, "world_size": WORLD, "options": options, "store_every": 2}
    first = TieredManager(near, uri, epoch=1, **facts)
    for step in range(1, 6):
        first.save(step, sharded({name: tensor + step for name, tensor in full_tensors().items() if name != "flags"}), asynchronous=False)
    first.close()
    expected = {name: tensor + 5 for name, tensor in full_tensors().items() if name != "flags"}
    targets = sharded({name: torch.zeros_like(tensor) for name, tensor in expected.items()})
    restored = TieredManager(near, uri, epoch=2, **facts).restore("latest", targets)
    wrong = [name for name, tensor in targets.items() if not torch.equal(whole(tensor), expected[name])]
    stored = sorted(entry.step for entry in Catalog(open_store(uri)).list())
    return {"problem": first.near_problem, "step": restored.step, "wrong": wrong, "stored": stored}


def differing_replicas(uri: str) -> dict:
    saver = manager(uri)
    saver.save(1, {"rng": torch.full((4,), float(RANK)), "same": torch.ones(3)})
    with contextlib.suppress(SamiteError):
        saver.wait(20)
        return {"error": ""}
    return {"error": "committed although replicas differ"} if saver.poll() else {"error": "refused"}


def one_rank_cannot_write(uri: str) -> dict:
    store = FaultyStore(open_store(uri, StoreOptions(durable=False)))
    if RANK == 2:
        store.add(Fault("put", "*/data/*", Action(ARGUMENTS["action"])))
    saver, tensors = manager(uri, store=store, deadline_s=3.0), sharded(full_tensors())
    began_s = time.monotonic()
    saver.save(5, tensors)
    steps, failure = 0, None
    while failure is None and time.monotonic() - began_s < 20:
        steps += 1
        time.sleep(0.01)
        failure = next(iter(saver.take_failures()), None)
    seconds = time.monotonic() - began_s
    store.clear()
    saver.save(6, tensors)
    commits = saver.wait(20)
    return {"reason": failure and failure.reason, "seconds": seconds, "steps": steps, "next": [commit.step for commit in commits]}


def ranks_skip_together(uri: str) -> dict:
    store = FaultyStore(open_store(uri, StoreOptions(durable=False)))
    if RANK == 1:
        store.add(Fault("put", "*/data/*", Action.STALL))
    saver = manager(uri, store=store, stall_s=0.2)
    stalls = []
    for step in (1, 2, 3):
        began_s = time.monotonic()
        saver.save(step, {"replicated": torch.full((3_000_000,), float(step))})
        stalls.append(time.monotonic() - began_s)
    skipped, began_s = [], time.monotonic()
    while not skipped and time.monotonic() - began_s < 10:  # the rank that could save hears of it in its background
        skipped = [failure.step for failure in saver.take_failures()]
        time.sleep(0.01)
    store.clear()
    return {"skipped": skipped, "commits": sorted(commit.step for commit in saver.wait(20)), "stalls": stalls}


def walk_back_together(uri: str) -> dict:
    targets = sharded({name: torch.zeros_like(tensor) for name, tensor in full_tensors().items()})
    restored = manager(uri, epoch=9).restore("latest", targets)
    return {"id": restored.checkpoint_id, "step": restored.step, "walked": [one for one, _ in restored.walked_past]}


def save_two(uri: str) -> dict:
    saver = manager(uri)
    for step in (1, 2):
        saver.save(step, sharded(full_tensors()), {"cursor": step})
    commits = saver.wait(20)
    return {"ids": [commit.checkpoint_id for commit in sorted(commits, key=lambda commit: commit.step)]}


def peer_dies(uri: str) -> dict:
    store = FaultyStore(open_store(uri, StoreOptions(durable=False)))
    if RANK == WORLD - 1:
        store.add(Fault("put", "*/data/*", Action.KILL_BEFORE))
    saver, tensors = manager(uri, store=store, deadline_s=2.0), sharded(full_tensors())
    began_s = time.monotonic()
    saver.save(5, tensors)
    while not (failures := saver.take_failures()) and time.monotonic() - began_s < 20:
        time.sleep(0.01)
    return {"reason": failures[0].reason, "seconds": time.monotonic() - began_s}


def mismatched_targets(uri: str) -> dict:
    targets = sharded({name: torch.zeros_like(tensor) for name, tensor in full_tensors().items()})
    del targets["flags"]
    targets["one_row"] = torch.zeros(2, 17)
    targets["unknown"] = torch.zeros(3)
    error = ""
    try:
        manager(uri, epoch=2).restore("latest", targets)
    except SamiteError as found:
        error = str(found)
    return {"error": error, "touched": [name for name, tensor in targets.items() if whole(tensor).any()]}


def save_until_killed(uri: str) -> dict:
    """Save step after step, each with other values in every element, until somebody kills this process."""
    faults = [Fault(operation, key, Action(action), skip=skip) for operation, key, action, skip in ARGUMENTS.get("faults", [])]
    store = FaultyStore(open_store(uri, StoreOptions(durable=False)), faults if ARGUMENTS.get("victim", 0) == RANK else [])
    saver = manager(uri, store=store, epoch=ARGUMENTS["epoch"], deadline_s=5.0)
    tensors = stepped(0)
    restored = saver.restore("latest", tensors)
    step = restored.step if restored else 0
    wrong = [name for name, tensor in stepped(step).items() if not torch.equal(whole(tensor), whole(tensors[name]))]
    Path(ARGUMENTS["started"] + f"-{RANK}").write_text(
        json.dumps({"step": step, "wrong": wrong, "extra": restored.extra if restored else {}})
    )
    for _ in range(ARGUMENTS.get("saves", 1000)):
        step += 1
        for name, tensor in stepped(step).items():
            tensors[name].copy_(tensor)
        saver.save(step, tensors, {"cursor": step})
        time.sleep(ARGUMENTS.get("pause_s", 0.0))
    saver.wait(20)
    return {"step": step}


def stepped(step: int) -> dict[str, torch.Tensor]:
    """The state after `step`, the same at every number of ranks, cut into rows or columns where there are several."""
    values = (torch.arange(699_300, dtype=torch.float32) % 9973 + step * 10_000).view(999, 700)
    full = {"rows": values, "columns": -values, "r": values[:40].clone(), "s": torch.tensor(float(step))}
    if WORLD > 1:
        for name, dim in (("rows", 0), ("columns", 1)):
            full[name] = distribute_tensor(full[name], meshes(WORLD)[0], [Shard(dim)])
    return full


CUTS = {
    "rows": lambda: (meshes(WORLD)[0], [Shard(0)]),
    "columns": lambda: (meshes(WORLD)[0], [Shard(1)]),
    "square": lambda: (meshes(WORLD)[1], [Shard(0), Shard(1)]),
    "halves": lambda: (meshes(WORLD)[1], [Shard(0), Replicate()]),
    "copies": lambda: (meshes(WORLD)[0], [Replicate()]),
}


def shared_reads(uri: str) -> dict:
    """Save rows, load another cut of them, and count the bytes that this rank asks storage for."""
    make = torch.Generator().manual_seed(5)
    shapes = {"matrix": (2003, 1500), "experts": (8, 300, 701), "small": (64, 60)}
    full = {
        name: torch.randn(shape, generator=make).to(torch.bfloat16 if name == "experts" else torch.float32)
        for name, shape in shapes.items()
    }
    saver = manager(uri)
    saver.save(1, {name: distribute_tensor(tensor, *CUTS["rows"]()) for name, tensor in full.items()})
    saver.wait(20)
    store, asked = open_store(uri, StoreOptions(durable=False)), []
    read_into = store.read_into
    store.read_into = lambda key, offset, target: (asked.append(len(target)), read_into(key, offset, target))
    targets = {name: distribute_tensor(torch.zeros_like(tensor), *CUTS[ARGUMENTS["target"]]()) for name, tensor in full.items()}
    manager(uri, epoch=2, store=store, share_reads=ARGUMENTS["share"]).restore("latest", targets)
    wrong = [name for name, tensor in targets.items() if not torch.equal(whole(tensor), full[name])]
    return {"wrong": wrong, "asked": sum(asked), "stored": sum(t.numel() * t.element_size() for t in full.values())}


def restore_with_a_lost_peer(uri: str) -> dict:
    """Rank 2 is killed or stopped at its first read, while all restore columns from rows."""
    saver = manager(uri)
    saver.save(1, sharded(full_tensors()))
    saver.wait(20)
    store = FaultyStore(open_store(uri, StoreOptions(durable=False)))
    if RANK == 2 and ARGUMENTS["how"] == "killed":
        store.add(Fault("read_into", "*", Action.KILL_BEFORE))
    elif RANK == 2:
        subprocess.Popen(["sh", "-c", f"sleep 15; kill -9 {os.getpid()}"])  # nobody else ends a stopped rank
        store.read_into = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    loader, error, began_s = manager(uri, epoch=2, store=store), "", time.monotonic()
    targets = {name: torch.zeros_like(tensor) for name, tensor in full_tensors().items()}
    try:
        loader.restore("latest", targets)
    except SamiteError as found:
        error = str(found)
    return {"error": error, "seconds": time.monotonic() - began_s}


def restore_with_a_slow_rank(uri: str) -> dict:
    saver = manager(uri)
    saver.save(1, sharded(full_tensors()))
    saver.wait(20)
    store = FaultyStore(open_store(uri, StoreOptions(durable=False)))
    if RANK == 1:
        store.add(Fault("read_into", "*", Action.SLOW, seconds=ARGUMENTS["slow_s"], times=1))
    began_s, targets = time.monotonic(), {name: torch.zeros_like(tensor) for name, tensor in full_tensors().items()}
    manager(uri, epoch=2, store=store, peer_silence_s=ARGUMENTS["silence_s"]).restore("latest", targets)
    wrong = [name for name, tensor in targets.items() if not torch.equal(tensor, full_tensors()[name])]
    return {"wrong": wrong, "seconds": time.monotonic() - began_s}


def s3_saves(uri: str) -> dict:
    """Save the steps of ARGUMENTS one after the other to an S3 service, say how each ended and when, and load the newest."""
    options = StoreOptions(endpoint=ARGUMENTS["endpoint"], access_key="a", secret_key="s", region="r", timeout_s=2.0)
    store = FaultyStore(open_store(uri, options))
    if ARGUMENTS.get("victim") == RANK:
        store.add(Fault(*ARGUMENTS["fault"][:2], Action(ARGUMENTS["fault"][2]), skip=ARGUMENTS.get("skip", 0)))
    saver = manager(uri, store=store, epoch=ARGUMENTS.get("epoch", 1), deadline_s=ARGUMENTS.get("deadline_s", 30.0))
    ends = []
    for step in ARGUMENTS["steps"]:
        began_s, end = time.monotonic(), ""
        tensors = sharded({name: tensor.clone() for name, tensor in full_tensors().items()})
        saver.save(step, tensors, {"cursor": step})
        while not end and time.monotonic() - began_s < 40:
            time.sleep(0.01)
            failed, done = saver.take_failures(), saver.poll()
            end = failed[0].reason if failed else "committed" if done else ""
        ends.append([step, end, time.monotonic() - began_s])
    report = {"ends": ends}
    if ARGUMENTS.get("victim") == RANK:
        time.sleep(5)  # what it dies of may come after the commit
    if ARGUMENTS.get("load"):
        targets = sharded({name: torch.zeros_like(tensor) for name, tensor in full_tensors().items()})
        restored = saver.restore("latest", targets)
        report |= {"step": restored.step, "walked": [one for one, _ in restored.walked_past]}
        report["wrong"] = [name for name, tensor in targets.items() if not torch.equal(whole(tensor), full_tensors()[name])]
    return report


def dcp_round_trip(uri: str) -> dict:
    """PyTorch's own save and load, with our writer and reader, over every rank of this world."""
    import torch.distributed.checkpoint as dcp

    from samite_workloads.checkpoint.dcp import SamiteSavePlanner, SamiteStorageReader, SamiteStorageWriter

    full = full_tensors()
    if ARGUMENTS["save"]:
        for step in (1, 2):
            state = {"model": sharded({name: tensor.clone() for name, tensor in full.items()}), "note": {"step": step}}
            dcp.save(
                state, storage_writer=SamiteStorageWriter(uri, step=step, options=StoreOptions(durable=False)), planner=SamiteSavePlanner()
            )
        return {}
    state = {"model": sharded({name: torch.zeros_like(tensor) for name, tensor in full.items()}), "note": {"step": 0}}
    reader = SamiteStorageReader(uri)
    dcp.load(state, storage_reader=reader)
    wrong = [name for name, tensor in state["model"].items() if not torch.equal(whole(tensor), full[name])]
    return {"wrong": wrong, "note": state["note"], "writers": reader.manifest.world_size}


def dcp_rank_cannot_write(uri: str) -> dict:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    from samite_workloads.checkpoint.dcp import SamiteStorageWriter

    store = FaultyStore(open_store(uri, StoreOptions(durable=False)))
    if RANK == 1:
        store.add(Fault("put", "*/data/*", Action.FULL))
    reasons = []
    for step in (1, 2):
        try:
            dcp.save({"model": sharded(full_tensors())}, storage_writer=SamiteStorageWriter(store, step=step))
        except CheckpointException as error:
            reasons.append(str(error))
        store.clear()
    return {"reasons": reasons}


answer = globals()[globals()["SCENARIO"]](ARGUMENTS.pop("uri"))
Path(globals()["RESULT"]).write_text(json.dumps(answer))
if globals()["SCENARIO"] not in {"peer_dies", "restore_with_a_lost_peer"} and ARGUMENTS.get("victim") is None:
    dist.destroy_process_group()
else:
    os._exit(0)
