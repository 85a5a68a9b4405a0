"""Every dtype, shape and kind of view comes back bit for bit, or is refused by name (S14)."""

import secrets

import pytest
import torch

from samite.checkpoint import Catalog, open_store
from samite.checkpoint.layout import ITEM_BYTES
from samite.errors import SamiteError
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions, RestoreMismatchError

torch.set_num_threads(1)


@pytest.fixture
def saver():
    manager = CheckpointManager(open_store(f"memory://{secrets.token_hex(6)}"), run_uid="run", epoch=1)
    yield manager
    manager.close()


def random_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """All bit patterns, NaNs with payloads and denormals among them (bool: 0 and 1)."""
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    width = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * width), dtype=torch.uint8).view(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def round_trip(
    saver: CheckpointManager, tensors: dict[str, torch.Tensor], targets: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    saver.save(1, tensors, asynchronous=False)
    targets = targets or {name: torch.zeros(tensor.shape).to(tensor.dtype) for name, tensor in tensors.items()}
    saver.restore("latest", targets)
    for name, tensor in tensors.items():
        assert targets[name].dtype is tensor.dtype, name
        assert bits(targets[name]) == bits(tensor), name
    return targets


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", sorted(ITEM_BYTES))
def test_every_dtype_of_the_format_comes_back_bit_for_bit(saver, name: str):
    dtype = getattr(torch, name)
    assert torch.empty(0, dtype=dtype).element_size() == ITEM_BYTES[name]
    round_trip(saver, {"matrix": random_bits(dtype, 33, 7), "scalar": random_bits(dtype, 1).reshape(()), "empty": torch.empty((0, 5), dtype=dtype)},
               {"matrix": torch.empty((33, 7), dtype=dtype), "scalar": torch.empty((), dtype=dtype), "empty": torch.empty((0, 5), dtype=dtype)})  # fmt: skip


def test_a_dtype_the_format_does_not_know_is_refused_by_name_with_all_others(saver):
    tensors = {
        "fine": torch.ones(3),
        "sparse": torch.eye(3).to_sparse(),
        "": torch.ones(1),
    }
    with pytest.raises(SamiteError) as found:
        saver.save(1, tensors)
    assert all(text in str(found.value) for text in ("sparse", "its name is empty"))
    assert "fine" not in str(found.value)
    assert Catalog(saver.store).list() == []


def test_views_of_every_kind_are_written_as_what_they_show(saver):
    base = torch.arange(60.0).reshape(5, 12)
    round_trip(
        saver,
        {
            "transposed": base.t(),
            "strided": base[::2, 1::3],
            "expanded": torch.arange(4.0).expand(3, 4),
            "offset": base.reshape(-1)[7:20],
            "conjugated": torch.randn(4, dtype=torch.complex64).conj(),
            "negated": torch.randn(4, dtype=torch.complex64).conj().imag,
            "flipped": base.flip(0),
            "permuted_f8": random_bits(torch.float8_e4m3fn, 4, 6, 8).permute(2, 0, 1),
        },
    )


def test_targets_of_every_layout_are_filled(saver):
    base = torch.arange(60.0).reshape(5, 12)
    tensors = {"a": base, "b": base, "c": base.to(torch.bfloat16)}
    targets = {"a": torch.zeros(12, 5).t(), "b": torch.zeros(10, 24)[::2, ::2], "c": torch.zeros(60, dtype=torch.bfloat16).reshape(5, 12)}
    round_trip(saver, {**tensors, "b": base.clone()}, targets)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (torch.zeros(3).expand(4, 3), "several elements share one place"),
        (torch.zeros(4, 3, dtype=torch.complex64).conj(), "lazily conjugated"),
    ],
)
def test_a_target_that_cannot_be_written_to_is_refused_by_name(saver, target, said):
    saver.save(1, {"w": torch.ones(4, 3, dtype=target.dtype)}, asynchronous=False)
    with pytest.raises(RestoreMismatchError, match=f"w: .*{said}"):
        saver.restore("latest", {"w": target})


def test_tied_weights_are_stored_once_and_come_back_tied_or_not(saver):
    weight = torch.randn(1000, 100)
    saver.save(1, {"embed": weight, "head": weight, "view": weight.t()}, asynchronous=False)
    assert Catalog(saver.store).newest_committed().manifest.data_bytes < 2.1 * 400_000
    shared = torch.zeros(1000, 100)
    saver.restore("latest", {"embed": shared, "head": shared, "view": shared.t()})
    assert torch.equal(shared, weight)
    parted = {"embed": torch.zeros(1000, 100), "head": torch.zeros(1000, 100), "view": torch.zeros(100, 1000)}
    saver.restore("latest", parted)
    assert torch.equal(parted["embed"], weight)
    assert torch.equal(parted["head"], weight)
    assert torch.equal(parted["view"], weight.t())


def test_names_of_every_kind_are_kept(saver):
    names = ["a/b", "100%", "ü", "x" * 900, "..", " ", "a\nb", "MANIFEST", "😀", '"quoted"', "model.layers.0", "a\\b"]
    round_trip(saver, {name: torch.tensor([float(number)]) for number, name in enumerate(names)})


def test_a_chunk_larger_than_an_object_is_split_and_padding_between_objects_is_not_read(saver):
    options = CheckpointOptions(object_bytes=5 * 1024 * 1024 + 13)
    manager = CheckpointManager(open_store(f"memory://{secrets.token_hex(6)}"), run_uid="run", epoch=1, options=options)
    tensors = {"large": torch.randn(4_000_001), "small": torch.randn(3), "other": torch.randn(1_300_000)}
    round_trip(manager, tensors)
    assert Catalog(manager.store).newest_committed().manifest.num_objects >= 5
    manager.close()


def test_ten_saves_of_changing_shapes_leave_no_trace_of_each_other(saver):
    for step in range(10):
        round_trip(saver, {f"t{n}": torch.randn(step * 37 + n, 3) for n in range(4)})
