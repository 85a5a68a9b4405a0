"""`dcp.save`, `async_save` and `load` with one argument changed: what comes back is what went in, and nothing damaged is ever loaded."""

import secrets
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner, _EmptyStateDictLoadPlanner

from samite.checkpoint import Catalog, Level, State, StoreOptions, open_store
from samite.checkpoint.fence import open_session, read_fences
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions
from samite_workloads.checkpoint.dcp import SamiteSavePlanner, SamiteStorageReader, SamiteStorageWriter
from samite_workloads.checkpoint.dcp import writer as writing

torch.set_num_threads(1)
FAST = StoreOptions(durable=False)


@pytest.fixture(autouse=True)
def alone():
    """PyTorch says on each call that it runs without a process group; a fresh process has no sessions and no cached plans."""
    writing._sessions.clear()
    for cache in ("_cached_save_plan", "_cached_final_save_plan", "_cached_all_plans", "_cached_global_plan", "_cached_metadata"):
        getattr(dcp.SavePlanner, cache).clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "run")


def state(step: int = 1) -> dict:
    make = torch.Generator().manual_seed(step)
    shared = torch.randn(33, 7, generator=make)
    return {
        "model": {
            "rows": torch.randn(100, 31, generator=make),
            "half": torch.randn(5, 3, generator=make).bfloat16(),
            "scales": torch.randn(8, generator=make).to(torch.float8_e4m3fn),
            "odd/naïve % name": torch.arange(7).to(torch.uint16),
            "tied": shared,
            "also tied": shared,
            "none": torch.empty(0, 5),
            "scalar": torch.tensor(step, dtype=torch.int64),
            "columns": torch.randn(6, 4, generator=make).t(),
        },
        "optimizer": {"state": [{"step": torch.tensor(float(step)), "lr": 0.5}, {"betas": (0.9, 0.95), "name": "adam"}]},
        "cursor": {"epoch": step, "seen": {3, 4}},
    }


def empty(like):
    if isinstance(like, torch.Tensor):
        return torch.zeros_like(like)
    if isinstance(like, dict):
        return {key: empty(value) for key, value in like.items()}
    return [empty(value) for value in like] if isinstance(like, list) else None


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(same, one, other)) if isinstance(one, list) else one == other


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def test_what_dcp_saves_it_loads_bit_for_bit_with_every_kind_of_value(uri):
    writer = SamiteStorageWriter(uri, step=7, extra={"cursor": 99}, options=FAST)
    dcp.save(state(), storage_writer=writer)
    target, reader = empty(state()), SamiteStorageReader(uri)
    dcp.load(target, storage_reader=reader)
    assert same(target, state())
    assert (reader.manifest.step, reader.manifest.extra, reader.manifest.checkpoint_id) == (7, {"cursor": 99}, writer.committed)
    assert Catalog(open_store(uri)).newest_verified(Level.FULL).checkpoint_id == writer.committed


def test_a_state_can_be_rebuilt_from_the_checkpoint_alone(uri):
    dcp.save(state(), storage_writer=SamiteStorageWriter(uri, step=1, options=FAST))
    found: dict = {}
    reader = SamiteStorageReader(uri)
    metadata = reader.read_metadata()
    planner = _EmptyStateDictLoadPlanner()
    planner.set_up_planner(found, metadata, is_coordinator=True)
    reader.read_data(planner.create_local_plan(), planner)
    assert same(found, state())


def test_the_step_comes_from_the_checkpoint_id_or_the_writer_and_never_from_both_differently(uri):
    writer = SamiteStorageWriter(uri, options=FAST)
    for step in (100, 200):
        dcp.save(state(step), checkpoint_id=f"runs/a/step-{step}", storage_writer=writer)
    assert [entry.step for entry in Catalog(open_store(uri)).list()] == [200, 100]
    target = empty(state())
    dcp.load(target, checkpoint_id="step-100", storage_reader=SamiteStorageReader(uri))
    assert same(target, state(100))
    with pytest.raises(CheckpointException, match="which step is this"):
        dcp.save(state(), checkpoint_id="best", storage_writer=writer)
    with pytest.raises(CheckpointException, match="say it once"):
        dcp.save(state(), checkpoint_id="step-3", storage_writer=SamiteStorageWriter(uri, step=4, options=FAST))


def test_saving_the_same_step_again_replaces_nothing(uri):
    for value in (1, 2):
        dcp.save(state(value), storage_writer=SamiteStorageWriter(uri, step=5, options=FAST))
    older = Catalog(open_store(uri)).list()[1]
    target = empty(state())
    dcp.load(target, storage_reader=SamiteStorageReader(uri, checkpoint=older.checkpoint_id))
    assert same(target, state(1))
    assert len(read_fences(open_store(uri))) == 1


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_asynchronous_saves_are_the_same_checkpoints(uri, kind, tmp_path):
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        for step in (1, 2):
            dcp.async_save(
                state(step),
                storage_writer=SamiteStorageWriter(uri, step=step, options=FAST),
                async_checkpointer_type=AsyncCheckpointerType(kind),
            ).result(60)
    finally:
        dist.destroy_process_group()
        if kind == "process":
            _end_of_daemon()
    for step in (1, 2):
        target = empty(state())
        dcp.load(target, storage_reader=SamiteStorageReader(uri, checkpoint=step))
        assert same(target, state(step))


def _end_of_daemon() -> None:
    from torch.distributed.checkpoint import _async_process_executor as executor

    if executor._CHECKPOINT_PROCESS is not None:
        executor._CHECKPOINT_PROCESS.__del__()
        executor._CHECKPOINT_PROCESS = None


def test_a_flipped_bit_and_a_lost_object_are_refused_and_never_loaded(uri):
    store = open_store(f"memory://{secrets.token_hex(6)}")
    writer = SamiteStorageWriter(store, step=1)
    dcp.save(state(), storage_writer=writer)
    key = f"ckpt/{writer.committed}/data/00000-0.bin"
    store.corrupt(key, flip_byte=9000)
    with pytest.raises(CheckpointException, match="do not have the checksum"):
        dcp.load(empty(state()), storage_reader=SamiteStorageReader(store))
    store.delete([key])
    with pytest.raises(CheckpointException, match="no such object"):
        dcp.load(empty(state()), storage_reader=SamiteStorageReader(store))
    Catalog(store).quarantine(writer.committed, "found damaged")
    with pytest.raises(CheckpointException, match="is quarantined: found damaged"):
        dcp.load(empty(state()), storage_reader=SamiteStorageReader(store, checkpoint=1))


def test_a_target_of_another_dtype_is_refused_unless_conversion_is_asked_for(uri):
    dcp.save({"w": torch.full((4, 4), 1.5), "b": torch.ones(3)}, storage_writer=SamiteStorageWriter(uri, step=1, options=FAST))
    target = {"w": torch.zeros(4, 4, dtype=torch.bfloat16), "b": torch.zeros(3)}
    with pytest.raises(CheckpointException, match=r"w: wanted torch\.bfloat16, the checkpoint has torch\.float32"):
        dcp.load(target, storage_reader=SamiteStorageReader(uri))
    assert not target["b"].any()
    dcp.load(target, storage_reader=SamiteStorageReader(uri, convert_dtypes=True))
    assert target["w"].eq(1.5).all()


def test_a_tensor_without_a_place_in_the_format_is_refused_by_name(uri):
    sparse = torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), check_invariants=False)
    with pytest.raises(CheckpointException, match="crooked: wanted a dense tensor"):
        dcp.save({"crooked": sparse, "w": torch.ones(2)}, storage_writer=SamiteStorageWriter(uri, step=1, options=FAST))
    assert Catalog(open_store(uri)).newest_committed() is None


def test_cached_plans_write_each_save_under_its_own_name(uri):
    for step in (1, 2, 3):
        dcp.save(state(step), storage_writer=SamiteStorageWriter(uri, step=step, options=FAST), planner=SamiteSavePlanner())
    for step in (1, 2, 3):
        target = empty(state())
        dcp.load(target, storage_reader=SamiteStorageReader(uri, checkpoint=step))
        assert same(target, state(step))


def test_a_planner_whose_cached_plans_name_an_older_save_is_refused_before_anything_is_overwritten(uri):
    for step in (1, 2):
        writer = SamiteStorageWriter(uri, step=step, options=FAST)
        if step == 1:
            dcp.save(state(step), storage_writer=writer, planner=DefaultSavePlanner(enable_plan_caching=True))
            continue
        with pytest.raises(CheckpointException, match="cached plans carry the name of an earlier save"):
            dcp.save(state(step), storage_writer=writer, planner=DefaultSavePlanner(enable_plan_caching=True))
    found = Catalog(open_store(uri)).newest_verified(Level.FULL)
    assert found.step == 1


def test_a_process_of_an_older_attempt_commits_nothing_any_more(uri):
    dcp.save(state(1), storage_writer=SamiteStorageWriter(uri, step=1, epoch=1, options=FAST))
    open_session(open_store(uri), run_uid=read_fences(open_store(uri))[0].run_uid, epoch=2, nonce="newer")
    with pytest.raises(CheckpointException, match="must not commit any more"):
        dcp.save(state(2), storage_writer=SamiteStorageWriter(uri, step=2, epoch=1, options=FAST))
    assert [entry.step for entry in Catalog(open_store(uri)).list() if entry.usable] == [1]


def test_what_the_manager_wrote_dcp_loads_and_the_other_way_round(uri):
    tensors = {"model.w": torch.randn(40, 5), "model.b": torch.randn(3).half()}
    manager = CheckpointManager(uri, run_uid="run", epoch=1, options=CheckpointOptions(store=FAST, probe=False))
    manager.save(3, tensors, {"cursor": 1}, asynchronous=False)
    target = {"model": empty({"w": tensors["model.w"], "b": tensors["model.b"]})}
    dcp.load(target, storage_reader=SamiteStorageReader(uri))
    assert same(target["model"]["w"], tensors["model.w"])
    dcp.save(
        {"model": {"w": torch.ones(40, 5), "b": torch.ones(3).half()}, "step": 4},
        storage_writer=SamiteStorageWriter(uri, step=4, epoch=1, options=FAST),
    )
    restored = manager.restore("latest", tensors)
    assert (restored.step, tensors["model.w"].eq(1).all().item(), tensors["model.b"].eq(1).all().item()) == (4, True, True)
    manager.close()


def test_partial_loads_follow_the_planner(uri):
    dcp.save({"a": torch.ones(2), "b": torch.ones(2)}, storage_writer=SamiteStorageWriter(uri, step=1, options=FAST))
    target = {"a": torch.zeros(2), "new": torch.zeros(1)}
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: new"):
        dcp.load(target, storage_reader=SamiteStorageReader(uri))
    dcp.load(target, storage_reader=SamiteStorageReader(uri), planner=DefaultLoadPlanner(allow_partial_load=True))
    assert target["a"].eq(1).all()
    assert not [entry for entry in Catalog(open_store(uri)).list() if entry.state is State.QUARANTINED]
