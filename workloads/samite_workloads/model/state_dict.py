"""Weights in and out under the names, shapes and types of the released K3 checkpoint.

    model --to_k3--> {K3 name: tensor} --from_k3--> model        sharded models included

Float32 islands (convolutions, A_log, dt_bias, KDA output norm, router bias) leave and enter bit for bit whatever the type of the rest. Called by
import and export; training checkpoints store our own tensors and do not come through here.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from samite_workloads.config import ModelConfig
from samite_workloads.model import mxfp4
from samite_workloads.model.decoder import MultimodalDecoder
from samite_workloads.model.names import Weight, weights
from samite_workloads.model.shard import assign, holds

_PACKED, _SCALE = "_packed", "_scale"


def key_table(config: ModelConfig, *, packed: bool = False) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of every tensor of a released checkpoint; `packed` lists routed experts in four bits, as K3 ships them."""
    table: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for weight in weights(config):
        if packed and weight.routed:
            rows, columns = weight.shape
            table[weight.k3_name + _PACKED] = ((rows, columns // 2), torch.uint8)
            table[weight.k3_name + _SCALE] = ((rows, columns // mxfp4.BLOCK), torch.uint8)
        else:
            table[weight.k3_name] = (weight.shape, torch.float32 if weight.float32 else torch.bfloat16)
    return table


@torch.no_grad()
def to_k3(model: MultimodalDecoder, *, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """A detached tensor per K3 name: islands as the model holds them (float32), the others in `dtype` (as they are when None).

    May share memory with the model. On a sharded model every rank must call it (it gathers) and gets everything.
    """
    tensors = _tensors(model)
    whole: tuple[str, Tensor] = ("", torch.empty(0))
    exported: dict[str, Tensor] = {}
    for weight in weights(model.config):
        if whole[0] != weight.name:
            tensor = tensors[weight.name].detach()
            whole = weight.name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        value = whole[1][weight.index]
        if weight.rows is not None:
            value = torch.nn.functional.pad(value, (0, weight.shape[0] - weight.rows))
        exported[weight.k3_name] = value if weight.float32 else value.to(dtype or value.dtype)
    return exported


def from_k3(model: MultimodalDecoder, tensors: Mapping[str, Tensor], *, allow_rounded_islands: bool = False) -> None:
    """Copies weights under K3 names into the model, four-bit experts included. On a sharded model each rank keeps its part.

    Raises ValueError with every missing, unknown and misshapen tensor before anything is touched; also for an island that is not in float32,
    unless `allow_rounded_islands`.
    """
    wanted = list(weights(model.config))
    problems = [*_problems(wanted, tensors, allow_rounded_islands=allow_rounded_islands)]
    if problems:
        shown = problems[:20] + ([f"... and {len(problems) - 20} more"] if len(problems) > 20 else [])
        raise ValueError("these weights do not fit the model; nothing was loaded:\n" + "\n".join(f"  - {p}" for p in shown))
    ours = _tensors(model)
    for weight in wanted:
        target = ours[weight.name]
        if holds(target, weight.index):
            assign(target, weight.index, _value(weight, tensors))


def _tensors(model: MultimodalDecoder) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _value(weight: Weight, tensors: Mapping[str, Tensor]) -> Tensor:
    if weight.k3_name not in tensors:
        return mxfp4.unpack(tensors[weight.k3_name + _PACKED], tensors[weight.k3_name + _SCALE])
    value = tensors[weight.k3_name]
    return value if weight.rows is None else value[: weight.rows]


def _problems(wanted: list[Weight], tensors: Mapping[str, Tensor], *, allow_rounded_islands: bool) -> Iterator[str]:
    known: set[str] = set()
    for weight in wanted:
        name = weight.k3_name
        pair = [name + _PACKED, name + _SCALE]
        known |= {name, *pair} if weight.routed else {name}
        if weight.routed and name not in tensors and any(part in tensors for part in pair):
            yield from _packed_problems(weight, tensors)
            continue
        if name not in tensors:
            yield f"{name} is missing"
            continue
        found = tensors[name]
        if tuple(found.shape) != weight.shape and not _is_padded(weight, found):
            yield f"{name} must have shape {list(weight.shape)}, found {list(found.shape)}"
        elif not found.dtype.is_floating_point:
            yield f"{name} must hold floating-point numbers, found {found.dtype}"
        elif weight.float32 and found.dtype not in (torch.float32, torch.float64) and not allow_rounded_islands:
            yield f"{name} must be float32, found {found.dtype}: its bits are gone; export it again, or allow rounded islands"
    yield from (f"{name} is not a tensor of this model" for name in sorted(set(tensors) - known))


def _is_padded(weight: Weight, found: Tensor) -> bool:
    """Whether `found` holds the entries in use and zeros behind them, in any number: it is narrowed, never reshaped."""
    return weight.rows is not None and found.dim() == 1 and found.shape[0] > weight.rows and not found[weight.rows :].any()


def _packed_problems(weight: Weight, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    rows, columns = weight.shape
    for suffix, width in ((_PACKED, columns // 2), (_SCALE, columns // mxfp4.BLOCK)):
        name = weight.k3_name + suffix
        if name not in tensors:
            yield f"{name} is missing"
        elif tuple(tensors[name].shape) != (rows, width) or tensors[name].dtype != torch.uint8:
            yield f"{name} must be uint8 {[rows, width]}, found {tensors[name].dtype} {list(tensors[name].shape)}"
