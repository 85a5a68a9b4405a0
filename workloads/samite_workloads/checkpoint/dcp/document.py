"""What distributed checkpoints keep beside tensors, in Samite's format: pickled values as bytes, and the planner's paths as JSON.

    .dcp/bytes/<name>     a value that is no tensor, as the planner serialised it
    .dcp/planner          zlib of {"paths": [[name, [key, ...]], ...]}: where each flat name belongs in the nested state

Both are tensors of bytes with checksums like any other. Reading this module's documents executes nothing.
"""

import dataclasses
import json
import re
import zlib
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from samite.checkpoint.layout import RESERVED, CheckpointId
from samite.checkpoint.store import Store, StoreOptions, open_store
from samite.errors import CheckpointDamagedError, UsageError

PLANNER = f"{RESERVED}planner"
BYTES = f"{RESERVED}bytes/"


class SamiteSavePlanner(DefaultSavePlanner):
    """PyTorch's default planner for a writer that names each checkpoint in its plan: with cached plans, too, the name is the new one.

    `enable_plan_caching` is on: from the second save of an unchanged state no plan travels between ranks.
    """

    def __init__(self, *, enable_plan_caching: bool = True, **options: Any) -> None:
        super().__init__(enable_plan_caching=enable_plan_caching, **options)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """The cached plan with this save's name."""
        self.plan = dataclasses.replace(super().finish_plan(new_plan), storage_data=new_plan.storage_data)
        return self.plan


_opened: dict[tuple[str, StoreOptions | None], Store] = {}


def opened(place: str | Store, options: StoreOptions | None) -> Store:
    """The store at `place`, one for this process: a client of S3 costs a quarter of a second to make, and its connections are kept."""
    if not isinstance(place, str):
        return place
    key = (place, options)
    if key not in _opened:
        _opened[key] = open_store(place, options)
    return _opened[key]


def encode_paths(planner_data: object) -> bytes:
    """The planner's document. Data of a planner that flattens otherwise than PyTorch's own is not kept: its names stand for themselves."""
    paths: list[list[object]] = []
    if isinstance(planner_data, dict):
        for name, path in planner_data.items():
            if not isinstance(name, str) or not isinstance(path, tuple) or not all(isinstance(one, str | int) for one in path):
                paths = []
                break
            paths.append([name, list(path)])
    return zlib.compress(json.dumps({"paths": paths}, separators=(",", ":")).encode(), 1)


def decode_paths(document: bytes, *, name: str) -> dict[str, tuple[str | int, ...]]:
    """Name -> path in the nested state. Raises CheckpointDamagedError naming `name`."""
    try:
        return {flat: tuple(path) for flat, path in json.loads(zlib.decompress(document))["paths"]}
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise CheckpointDamagedError(f"{name}: the planner's document does not parse ({error!r})") from error


def step_in(text: str) -> int | None:
    """The step that a checkpoint's name means: that of an id, or the number that its last part ends in (`run/step-100`, `100`)."""
    last = text.rstrip("/").rpartition("/")[2]
    parsed = CheckpointId.parse(last)
    if parsed is not None:
        return parsed.step
    found = re.search(r"(\d{1,18})$", last)
    return int(found[1]) if found else None


def wanted_step(step: int | None, checkpoint_id: str) -> int:
    """The step to save under. Raises UsageError if neither argument says one, or if they differ."""
    named = step_in(checkpoint_id) if checkpoint_id else None
    if step is None and named is None:
        raise UsageError(
            f"which step is this? Wanted SamiteStorageWriter(..., step=100) or a checkpoint_id that ends in the step (step-100), found {checkpoint_id!r}"
        )
    if step is not None and named is not None and step != named:
        raise UsageError(f"checkpoint_id {checkpoint_id!r} says step {named}, the writer was made for step {step}; say it once")
    return named if step is None else step  # type: ignore[return-value]
