"""Stored hand-overs: `handover/<stage>.json`, which checkpoint the next stage starts from, committed before that stage may begin.

The document and its content hash are made by `samite.lifecycle.handover`; here it is stored once, listed, and looked at by retention.
A trainer compares the hash it was given with what storage holds and does not start without a match.
"""

import json
from collections.abc import Mapping
from typing import Any

from samite.checkpoint.layout import HANDOVERS
from samite.checkpoint.store import MissingKeyError, Store
from samite.errors import CheckpointDamagedError, ConflictError, NotFoundError

_REQUIRED = ("runUid", "stageIndex", "stage", "checkpointId")


def handover_key(stage: str) -> str:
    """Key of a stage's hand-over. Stage names are unique in a run and fit a key by the spec's rules."""
    return f"{HANDOVERS}{stage}.json"


def commit_document(store: Store, stage: str, document: Mapping[str, Any]) -> None:
    """Store the hand-over of `stage` once. The same again is fine; ConflictError if this stage was handed over differently."""
    key = handover_key(stage)
    if store.put_if_absent(key, json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"):
        return
    found = read_document(store, stage)
    if found != json.loads(json.dumps(document)):
        raise ConflictError(
            f"{store.uri}/{key}: stage {stage!r} was already handed over with {found['checkpointId']}, "
            f"this would be {document.get('checkpointId')}; a stage is handed over once"
        )


def read_document(store: Store, stage: str) -> dict[str, Any]:
    """The committed hand-over of a stage; NotFoundError if there is none, CheckpointDamagedError if it cannot be one."""
    key = handover_key(stage)
    try:
        return _parse(store.get(key), f"{store.uri}/{key}")
    except MissingKeyError as error:
        raise NotFoundError(f"{store.uri}/{key}: stage {stage!r} has not been handed over; the next stage must not start") from error


def committed_handovers(store: Store) -> list[dict[str, Any]]:
    """Every stored hand-over."""
    names = [name for name in store.children(HANDOVERS) if name.endswith(".json")]
    return [_parse(store.get(HANDOVERS + name), f"{store.uri}/{HANDOVERS}{name}") for name in names]


def referenced_checkpoints(store: Store) -> dict[str, str]:
    """Checkpoint id -> hand-over key: what retention must never delete."""
    return {document["checkpointId"]: handover_key(document["stage"]) for document in committed_handovers(store)}


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
        missing = [key for key in _REQUIRED if key not in document]
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(f"{name}: is no hand-over ({error})") from error
    if missing:
        raise CheckpointDamagedError(f"{name}: is no hand-over, {', '.join(missing)} missing")
    return dict(document)
