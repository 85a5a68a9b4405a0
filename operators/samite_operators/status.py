"""The one writer of a run's status: what is written, and when.

Status and memory go in one merge patch that carries the resourceVersion that the turn began with, *before* any action is applied. So nobody acts on
what is not stored, and of two operators that both believe to lead, only one gets its patch through. Progress alone is written every 10 s at most:
history belongs in telemetry, not in etcd.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from samite.engines.kuberay.api import TRAINING_RUN, Document, KubernetesApi, PermanentApiError
from samite.engines.kuberay.dropped import dropped_fields, without_fields
from samite.engines.kuberay.stored_memory import pack
from samite.lifecycle import Action, Condition, ConditionStatus, Memory, Status
from samite.lifecycle.codec import to_document

_NUMBERS = re.compile(r"\d+(\.\d+)?")
_PROGRESS = ("progress", "ettr", "budgetsLeft", "columns")
"""Parts of a status that move by themselves."""
_MEMORY_CLOCKS = ("now_s", "watched_s", "observed_at_s", "ledger", "best_step")
_LIVE_CLOCKS = ("last_step", "last_step_at_s", "asked_at_s")
MESSAGE_CHARACTERS = 4096
"""Longest message in a condition or status; Kubernetes allows 32,768."""
_SUSPICION_CLOCKS = ("detail",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A condition of the operator's own, beside the lifecycle's thirteen."""

    type: str
    holds: bool
    """What healthy runs have; a note that holds and was never false is left out."""
    reason: str
    message: str = ""


def wanted_status(
    status: Status,
    *,
    before: Mapping[str, Any],
    run: Mapping[str, Any],
    now_s: float,
    committed_at_s: float | None = None,
    notes: Iterable[Note] = (),
    extra: Mapping[str, Any],
) -> Document:
    """The status document without memory. `before`: the stored one; `extra`: what the operator adds (its runtime).

    `now_s`, and `committed_at_s` of the newest checkpoint, are seconds since the epoch.
    """
    generation = int(run["metadata"].get("generation", 0))
    document: Document = without_nulls(status.to_document())
    found = [*status.conditions, *_notes(notes, before)]
    document["conditions"] = conditions_document(found, before.get("conditions") or (), generation=generation, now_s=now_s)
    document["message"] = status.message[:MESSAGE_CHARACTERS]
    document["observedGeneration"] = generation
    document["columns"] = columns(status, run)
    if committed_at_s is not None:
        document["columns"]["lastCheckpointTime"] = timestamp(committed_at_s)
    if status.next_retry_at_s is not None:
        document["nextRetryAt"] = timestamp(status.next_retry_at_s)
    return {**document, **{key: value for key, value in extra.items() if value}}


def columns(status: Status, run: Mapping[str, Any]) -> Document:
    """What `kubectl get trun` prints and no other field says in one word."""
    stage = run["spec"]["stages"][status.stage_index] if status.stage_index < len(run["spec"]["stages"]) else {}
    found: Document = {"restarts": sum(status.restarts.values())}
    if stage.get("contextLength"):
        found["contextLength"] = stage["contextLength"]
    if status.progress.percent is not None:
        found["percent"] = f"{status.progress.percent:.1f}"
    if status.ettr.percent is not None:
        found["ettr"] = f"{status.ettr.percent:.1f}"
    if status.nodes_ready is not None:
        wanted = (stage.get("workers") or {}).get("max")
        found["nodes"] = f"{status.nodes_ready}/{wanted}" if wanted else str(status.nodes_ready)
    return found


def conditions_document(
    conditions: Sequence[Condition], before: Iterable[Mapping[str, Any]], *, generation: int, now_s: float
) -> list[Document]:
    """Conditions as Kubernetes has them: the transition time moves when the status does, and only then."""
    old = {item.get("type"): item for item in before}
    made = []
    for condition in conditions:
        same = old.get(condition.type, {}).get("status") == condition.status.value
        made.append(
            {
                "type": condition.type,
                "status": condition.status.value,
                "reason": _reason(condition.reason),
                "message": condition.message[:MESSAGE_CHARACTERS],
                "observedGeneration": generation,
                "lastTransitionTime": old[condition.type]["lastTransitionTime"] if same else timestamp(now_s),
            }
        )
    return made


def refused_status(before: Mapping[str, Any], *, run: Mapping[str, Any], reason: str, message: str, now_s: float) -> Document:
    """The status of a run whose spec makes no sense: Failed if nothing of it was ever begun, as it was otherwise; `Validated` says what is wrong.

    It keeps the stored memory: a run that trains goes on training, and a spec that is repaired is taken up again.
    """
    begun = bool(before.get("memory"))
    generation = int(run["metadata"].get("generation", 0))
    others = {item["type"]: item for item in before.get("conditions") or ()}
    made = conditions_document(
        [
            Condition(type="Validated", status=ConditionStatus.FALSE, reason=reason, message=message),
            *([] if begun else [Condition(type="Failed", status=ConditionStatus.TRUE, reason=reason, message=message)]),
        ],
        others.values(),
        generation=generation,
        now_s=now_s,
    )
    document = dict(before)
    document["conditions"] = list({**others, **{item["type"]: item for item in made}}.values())
    document["observedGeneration"] = generation
    if not begun:
        document |= {"phase": "Failed", "reason": reason, "message": message[:MESSAGE_CHARACTERS]}
    return document


def with_note(note: Note, before: Mapping[str, Any], *, run: Mapping[str, Any], now_s: float) -> list[Document]:
    """The stored conditions with this one among them, for a turn that decides nothing."""
    others = {item["type"]: item for item in before.get("conditions") or ()}
    generation = int(run["metadata"].get("generation", 0))
    made = conditions_document(_notes([note], before), others.values(), generation=generation, now_s=now_s)
    return list({**others, **{item["type"]: item for item in made}}.values())


_OLDER = (
    "the API server does not keep {fields}: its definition of TrainingRuns is older than this operator. See `samite crds diff`; "
    "upgrade the chart, or `samite crds apply`"
)
TRY_AGAIN_S = 300.0
"""Fields that the API server dropped are written again after this: its definitions may be newer by then."""


class StatusWriter:
    """Decides for one run whether this turn's status is written, and writes it."""

    def __init__(self, *, progress_s: float) -> None:
        self._progress_s = progress_s
        self._written_at_s: float | None = None
        self._actions: tuple[Action, ...] = ()
        self._dropped: tuple[str, ...] = ()
        self._dropped_at_s = -1e9

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the API server does not keep of what is written, with the remedy; for a condition."""
        return (_OLDER.format(fields=", ".join(f"status.{path}" for path in self._dropped[:8])),) if self._dropped else ()

    def due(
        self,
        before: Mapping[str, Any],
        wanted: Mapping[str, Any],
        *,
        memory: tuple[Memory, Memory],
        actions: tuple[Action, ...],
        settled: bool = False,
        now_s: float,
    ) -> str:
        """Why it must be written now: `actions`, `change` or `progress`; empty if it need not be.

        `memory`: stored and new. `settled`: nothing moves any more, only ages grow, and those are not worth a write. `now_s`: monotonic.
        """
        if _essence_of_memory(memory[0]) != _essence_of_memory(memory[1]):
            return "actions" if actions else "change"
        wanted = without_fields(wanted, self._dropped)
        if self._written_at_s is None:
            self._written_at_s = now_s  # what the process before wrote is as good as ours
        late = now_s - self._written_at_s >= self._progress_s and not settled
        if actions and (late or (actions != self._actions and not settled)):
            # The same actions once more follow from what is stored already.
            return "actions"
        if _essence(before) != _essence(wanted):
            return "change"
        return "progress" if late and _without(before, "memory") != dict(wanted) else ""

    def write(
        self, api: KubernetesApi, run: Document, wanted: Document, memory: Memory | None, *, actions: tuple[Action, ...] = (), now_s: float
    ) -> Document:
        """Write status and memory in one patch; returns the run as it is stored then. ConflictApiError if somebody else wrote since.

        `memory` None keeps the stored one. Raises PermanentApiError where the server does not keep the memory: nothing may be done then.
        """
        before = run.get("status") or {}
        after = {**wanted, "memory": pack(memory)} if memory is not None else wanted
        if now_s - self._dropped_at_s > TRY_AGAIN_S:
            self._dropped = ()
        after = without_fields(after, self._dropped)
        patch = {"metadata": {"resourceVersion": run["metadata"]["resourceVersion"]}, "status": merge_patch(before, after)}
        stored = api.patch(TRAINING_RUN, run["metadata"]["namespace"], run["metadata"]["name"], patch, subresource="status")
        self._written_at_s, self._actions = now_s, actions
        if lost := dropped_fields(after, stored.get("status") or {}):
            if "memory" in lost:
                raise PermanentApiError(_OLDER.format(fields="status.memory") + "; until then nothing is done for this run")
            self._dropped, self._dropped_at_s = (*self._dropped, *lost), now_s
        return stored


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Document:
    """The JSON merge patch (RFC 7386) that makes `after` of `before`."""
    patch: Document = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            inner = merge_patch(old, value)
            if inner:
                patch[key] = inner
        elif old != value or key not in before:
            patch[key] = value
    return patch


def without_nulls(value: Any) -> Any:
    """`value` without keys that are None, at any depth: to Kubernetes, unknown is absent."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds, as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _notes(notes: Iterable[Note], before: Mapping[str, Any]) -> list[Condition]:
    known = {item.get("type") for item in before.get("conditions") or ()}
    return [
        Condition(
            type=note.type,
            status=ConditionStatus.TRUE if note.holds else ConditionStatus.FALSE,
            reason=note.reason,
            message=note.message,
        )
        for note in notes
        if not note.holds or note.type in known
    ]


def _essence(document: Mapping[str, Any]) -> str:
    """What makes a status worth writing at once: everything but progress, numbers in messages, and when a condition changed."""
    kept = {key: value for key, value in document.items() if key not in (*_PROGRESS, "memory", "conditions", "message")}
    kept["message"] = _NUMBERS.sub("#", str(document.get("message", "")))
    kept["conditions"] = [
        (item.get("type"), item.get("status"), item.get("reason"), _NUMBERS.sub("#", str(item.get("message", ""))))
        for item in document.get("conditions") or ()
    ]
    return json.dumps(kept, sort_keys=True)


def _essence_of_memory(memory: Memory) -> str:
    document = to_document(replace(memory, live=None, suspicion=None))
    for key in _MEMORY_CLOCKS:
        document.pop(key)
    if memory.live is not None:
        document["live"] = {key: value for key, value in to_document(memory.live).items() if key not in _LIVE_CLOCKS}
    if memory.suspicion is not None:
        document["suspicion"] = {key: value for key, value in to_document(memory.suspicion).items() if key not in _SUSPICION_CLOCKS}
    return json.dumps(document, sort_keys=True)


def _without(document: Mapping[str, Any], key: str) -> Document:
    return {name: value for name, value in document.items() if name != key}


def _reason(reason: str) -> str:
    """Kubernetes wants a word that begins with a letter."""
    word = re.sub(r"[^A-Za-z0-9_,:]", "", reason)
    return word if word[:1].isalpha() else f"R{word}" if word else "Unknown"
