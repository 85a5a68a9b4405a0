"""The hand-over between stages: which checkpoint the next stage starts from, committed before the next stage may begin.

Created once per stage and identified by the hash of its content: writing the same decision twice is the same hand-over, writing another one is refused.
A trainer compares the hash it was given with what storage holds and with the checkpoint's manifest, and does not start without a match.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samite.checkpoint.layout import HANDOVERS, MANIFEST, checkpoint_key
from samite.checkpoint.store import MissingKeyError, Store
from samite.errors import CheckpointDamagedError, ConflictError, NotFoundError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Handover:
    """What one finished stage gives to the next. Holds no time of day, so that deciding again gives the same hash."""

    stage_index: int
    stage: str
    checkpoint_id: str
    manifest_sha256: str
    """Of the checkpoint's MANIFEST object."""
    mapping: Mapping[str, str] = field(default_factory=dict)
    """State -> carry, reset or rescale, as the next stage will treat it."""
    gate: Mapping[str, Any] = field(default_factory=dict)
    """Checks and the numbers they were decided on."""

    @property
    def key(self) -> str:
        """Key in the store."""
        return handover_key(self.stage_index, self.stage)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        body = {
            "version": 1,
            "stage_index": self.stage_index,
            "stage": self.stage,
            "checkpoint_id": self.checkpoint_id,
            "manifest_sha256": self.manifest_sha256,
            "mapping": dict(self.mapping),
            "gate": dict(self.gate),
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    @property
    def sha256(self) -> str:
        """Hash of the content: `AttemptSpec.handover`."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def handover_key(stage_index: int, stage: str) -> str:
    """Key of a stage's hand-over. Raises ValueError if the name cannot be part of a key."""
    if not _NAME.fullmatch(stage):
        raise ValueError(f"stage name {stage!r}: wanted letters, digits, dot, dash and underscore")
    return f"{HANDOVERS}{stage_index:02d}-{stage}.json"


def decide_handover(store: Store, handover: Handover) -> str:
    """Commit `handover`; returns its hash. Deciding the same again is fine, ConflictError if this stage was handed over differently."""
    actual = manifest_sha256(store, handover.checkpoint_id)
    if actual != handover.manifest_sha256:
        raise CheckpointDamagedError(
            f"{handover.checkpoint_id}: its manifest has SHA-256 {actual[:12]}, the hand-over expects {handover.manifest_sha256[:12]}"
        )
    if not store.put_if_absent(handover.key, handover.to_bytes()):
        found = read_handover(store, handover.stage_index, handover.stage)
        raise ConflictError(
            f"{store.uri}/{handover.key}: stage {handover.stage!r} was already handed over with {found.checkpoint_id}, "
            f"this would be {handover.checkpoint_id}; a stage is handed over once"
        )
    return handover.sha256


def read_handover(store: Store, stage_index: int, stage: str) -> Handover:
    """The committed hand-over of a stage; NotFoundError if there is none, CheckpointDamagedError if it does not parse."""
    key = handover_key(stage_index, stage)
    try:
        document = store.get(key)
    except MissingKeyError as error:
        raise NotFoundError(f"{store.uri}/{key}: stage {stage!r} has not been handed over; the next stage must not start") from error
    return _parse(document, f"{store.uri}/{key}")


def check_handover(store: Store, stage_index: int, stage: str, sha256: str) -> Handover:
    """The hand-over of a stage if it is the one with hash `sha256` and its checkpoint is the one it named; raises otherwise."""
    handover = read_handover(store, stage_index, stage)
    if handover.sha256 != sha256:
        raise ConflictError(f"{store.uri}/{handover.key}: has hash {handover.sha256[:12]}, this attempt was told {sha256[:12] or 'none'}")
    actual = manifest_sha256(store, handover.checkpoint_id)
    if actual != handover.manifest_sha256:
        raise CheckpointDamagedError(
            f"{handover.checkpoint_id}: is not what was handed over (manifest {actual[:12]}, wanted {handover.manifest_sha256[:12]})"
        )
    return handover


def manifest_sha256(store: Store, checkpoint_id: str) -> str:
    """SHA-256 of a checkpoint's MANIFEST object; NotFoundError if it is not committed."""
    try:
        return hashlib.sha256(store.get(checkpoint_key(checkpoint_id, MANIFEST))).hexdigest()
    except MissingKeyError as error:
        raise NotFoundError(f"{store.uri}: checkpoint {checkpoint_id} is not committed") from error


def referenced_checkpoints(store: Store) -> dict[str, str]:
    """Checkpoint id -> hand-over key, for every hand-over that can be read."""
    found = {}
    for name in store.children(HANDOVERS):
        if name.endswith(".json"):
            handover = _parse(store.get(HANDOVERS + name), f"{store.uri}/{HANDOVERS}{name}")
            found[handover.checkpoint_id] = HANDOVERS + name
    return found


def _parse(document: bytes, name: str) -> Handover:
    try:
        body = json.loads(document)
        return Handover(
            stage_index=body["stage_index"],
            stage=body["stage"],
            checkpoint_id=body["checkpoint_id"],
            manifest_sha256=body["manifest_sha256"],
            mapping=body["mapping"],
            gate=body["gate"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(f"{name}: does not parse ({error!r})") from error
