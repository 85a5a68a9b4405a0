"""The hand-over between two stages: what is carried, what is reset, from which checkpoint, with which gate numbers.

It is a document with a content hash, committed to storage *before* the stage counts as done. The next stage's trainer refuses to start without a
hand-over of that hash, so that none is skipped; the commit is a conditional put, so that none is doubled.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from samite.lifecycle.memory import StageMemory
from samite.lifecycle.observed import HandoverFound
from samite.lifecycle.plan import RunPlan

FORMAT = 1


def handover_document(plan: RunPlan, stage_index: int, stage: StageMemory) -> dict[str, Any]:
    """The hand-over from stage `stage_index` to the next one. Holds no time and no attempt number: the same end of a stage gives the same bytes."""
    following = plan.stages[stage_index + 1]
    return {
        "format": FORMAT,
        "runUid": plan.uid,
        "stageIndex": stage_index,
        "stage": stage.name,
        "nextStage": following.name,
        "checkpointId": stage.final_checkpoint,
        "step": stage.final_step,
        "tokens": stage.final_tokens,
        "contextLength": {"from": plan.stages[stage_index].context_length, "to": following.context_length},
        "states": dict(following.handover),
        "gate": list(stage.gate_lines),
    }


def content_hash(document: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces, UTF-8), in hexadecimal."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def carried(plan: RunPlan, stage_index: int) -> tuple[str, ...]:
    """States that stage `stage_index` hands to the next one as they are, or fitted."""
    return tuple(state for state, action in plan.stages[stage_index + 1].handover if action != "Reset")


def reset(plan: RunPlan, stage_index: int) -> tuple[str, ...]:
    """States that the next stage starts anew."""
    return tuple(state for state, action in plan.stages[stage_index + 1].handover if action == "Reset")


def committed(found: Iterable[HandoverFound] | None, stage_index: int) -> HandoverFound | None:
    """The committed hand-over of a stage, if storage answered and has one."""
    return next((item for item in found or () if item.stage_index == stage_index), None)


def stages_done(found: Iterable[HandoverFound] | None, *, run_uid: str) -> int:
    """How many leading stages of this run have a committed hand-over: where a run goes on whose memory was lost."""
    mine = {item.stage_index for item in found or () if item.run_uid == run_uid}
    done = 0
    while done in mine:
        done += 1
    return done
