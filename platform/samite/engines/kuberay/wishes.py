"""What people ask of a run on Kubernetes: the run object itself says it. Pure.

spec.suspend: true                     a state
samite.dev/cancel: "true"              a state; so is the deletion of the object
samite.dev/request-<id>: {"verb": "resume", "argument": "", "by": "ada", "windows": []}     answered once for each id
spec.approvals: [{"stage": "pretrain", "by": "ada"}]     opens the manual gate of a stage; the admission policy says who may add one
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay import names
from samite.lifecycle import Memory, Request, RequestKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What is wanted of the run as a whole."""

    suspend: bool
    cancel: bool
    requests: tuple[Request, ...]


def wishes_of(run: Mapping[str, Any], memory: Memory) -> Wishes:
    """Every wish that is not answered yet. A request that makes no sense is left out: one bad annotation must not stop the others."""
    metadata = run["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    requests = [
        request
        for name, text in sorted(annotations.items())
        if name.startswith(names.REQUEST_PREFIX)
        and (request := _request(name.removeprefix(names.REQUEST_PREFIX), text)) is not None
        and request.request_id not in memory.handled_requests
    ]
    requests += [
        request
        for approval in run["spec"].get("approvals") or ()
        if (request := _approval(approval)).request_id not in memory.handled_requests
    ]
    return Wishes(
        suspend=bool(run["spec"].get("suspend", False)),
        cancel=bool(metadata.get("deletionTimestamp")) or annotations.get(names.CANCEL, "").lower() in {"true", "1", "yes"},
        requests=tuple(requests),
    )


def request_annotation(request: Request) -> tuple[str, str]:
    """Name and text of the annotation that asks for `request`."""
    document: dict[str, Any] = {"verb": request.kind.value, "argument": request.argument, "by": request.by}
    if request.windows:
        document["windows"] = [list(window) for window in request.windows]
    return f"{names.REQUEST_PREFIX}{request.request_id}", json.dumps(document)


def answered(run: Mapping[str, Any], memory: Memory) -> tuple[str, ...]:
    """Annotations whose requests have been answered: the operator may remove them."""
    known = {f"{names.REQUEST_PREFIX}{request_id}" for request_id in memory.handled_requests}
    return tuple(sorted(known & (run["metadata"].get("annotations") or {}).keys()))


def _approval(approval: Mapping[str, Any]) -> Request:
    """The schema has one approval for each stage, so the stage names the request."""
    stage = str(approval.get("stage", ""))
    return Request(request_id=f"approval-{stage}", kind=RequestKind.APPROVE, argument=stage, by=str(approval.get("by", "")))


def _request(request_id: str, text: str) -> Request | None:
    try:
        document = json.loads(text)
        return Request(
            request_id=request_id,
            kind=RequestKind(document.get("verb") or document.get("kind")),
            argument=str(document.get("argument", "")),
            by=str(document.get("by", "")),
            windows=tuple((int(begin), int(end)) for begin, end in document.get("windows", ())),
        )
    except (ValueError, TypeError, AttributeError):
        return None
