"""A TrainingRun as commands see it, and the documents they send: pure functions between the API server's objects and the CLI's."""

import re
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from samite.engines.kuberay.api import TRAINING_RUN, Document
from samite.engines.kuberay.wishes import request_annotation
from samite.lifecycle import Request, RequestKind

if TYPE_CHECKING:
    from samite.spec import TrainingRun

RESTING = frozenset({"Succeeded", "Failed", "Cancelled", "Held", "Suspended"})
_NEVER_LOOKED = {"phase": "Pending", "reason": "Created", "message": "no operator has looked yet: samite doctor tells whether one runs"}
_OURS = re.compile(r"^(samite\.dev/|kubectl\.kubernetes\.io/|kopf\.|.*last-handled-configuration)")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRun:
    """A run of a namespace. `document` is the object as it was when the run was found; ask the engine for newer facts."""

    namespace: str
    name: str
    document: Document = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Document) -> "ClusterRun":
        """The handle of an object."""
        metadata = document["metadata"]
        return cls(namespace=str(metadata.get("namespace", "")), name=str(metadata["name"]), document=document)

    @property
    def uid(self) -> str:
        """The API server's own name for this very object."""
        return str(self.document["metadata"].get("uid", ""))

    @property
    def checkpoint(self) -> dict[str, Any]:
        """`spec.checkpoint`."""
        return dict(self.document.get("spec", {}).get("checkpoint") or {})

    @property
    def phase(self) -> str:
        """The phase when the run was found."""
        return str((self.document.get("status") or {}).get("phase") or "Pending")


def manifest(document: dict[str, Any], namespace: str) -> Document:
    """What is sent for a checked run: the whole document with its defaults, so that a later version changes nothing of it."""
    metadata = {**document["metadata"], "namespace": namespace}
    return {"apiVersion": TRAINING_RUN.api_version, "kind": TRAINING_RUN.kind, "metadata": metadata, "spec": document["spec"]}


def status_document(document: Document) -> dict[str, Any]:
    """`.status` in the form that every command shows, without what only the operator reads."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    status = {key: value for key, value in (document.get("status") or {}).items() if key != "memory"}
    shown: dict[str, Any] = {
        "apiVersion": TRAINING_RUN.api_version,
        "kind": "TrainingRunStatus",
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "uid": metadata.get("uid", ""),
        "engine": spec.get("engine", "RayCluster"),
        "totalSteps": total_steps(document),
        "stages": [stage.get("name", "") for stage in spec.get("stages") or ()],
        **(_NEVER_LOOKED if not status.get("phase") else {}),
        **status,
    }
    shown.setdefault("settled", shown["phase"] in RESTING)
    if metadata.get("deletionTimestamp"):
        shown["deleting"] = metadata["deletionTimestamp"]
    return shown


def total_steps(document: Document) -> int | None:
    """Optimizer steps of all stages; None if one is budgeted by time, or if this version cannot read the spec."""
    try:
        return _read(document).total_steps
    except ValueError:
        return None


def record(document: Document) -> dict[str, Any]:
    """uid, time of submission, and the run as it was submitted."""
    metadata = document["metadata"]
    run = {
        "apiVersion": TRAINING_RUN.api_version,
        "kind": TRAINING_RUN.kind,
        "metadata": own_metadata(document),
        "spec": document.get("spec"),
    }
    return {"uid": metadata.get("uid", ""), "submittedAt": seconds(metadata.get("creationTimestamp")) or time.time(), "run": run}


def same_run(existing: Document, wanted: Document) -> bool:
    """Whether both describe the same run once every default is filled in; what people asked of it since does not count."""
    try:
        return _comparable(existing) == _comparable(wanted)
    except ValueError:
        return bool(existing.get("spec") == wanted.get("spec"))


def request_patch(kind: RequestKind, *, argument: str, by: str, windows: tuple[tuple[int, int], ...]) -> tuple[str, dict[str, str]]:
    """Id and annotation of one request. Ids sort by time, as those of the local engine do."""
    request_id = f"{time.time_ns():020d}-{kind.value}-{secrets.token_hex(3)}"
    name, text = request_annotation(Request(request_id=request_id, kind=kind, argument=argument, by=by, windows=windows))
    return request_id, {name: text}


def own_metadata(document: Document) -> dict[str, Any]:
    """Name, namespace, labels and annotations that a person wrote."""
    metadata = document["metadata"]
    found: dict[str, Any] = {key: metadata[key] for key in ("name", "namespace") if metadata.get(key)}
    for key in ("labels", "annotations"):
        kept = {name: value for name, value in (metadata.get(key) or {}).items() if not _OURS.match(name)}
        if kept:
            found[key] = kept
    return found


def pod_document(pod: Document) -> dict[str, Any]:
    """What `samite describe` shows of a pod."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    return {
        "name": pod["metadata"]["name"],
        "phase": "Terminating" if pod["metadata"].get("deletionTimestamp") else str(status.get("phase", "Unknown")),
        "ready": any(item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or ()),
        "restarts": sum(int(item.get("restartCount", 0)) for item in containers),
        "node": str(pod["spec"].get("nodeName", "")),
    }


def seconds(timestamp: Any) -> float | None:
    """Seconds since the epoch of `2026-11-30T19:00:00Z`, with or without a fraction; None for anything else."""
    try:
        moment = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _comparable(document: Document) -> dict[str, Any]:
    spec = _read(document).spec.model_copy(update={"suspend": False, "approvals": ()})
    return spec.to_document()


def _read(document: Document) -> "TrainingRun":
    from samite.spec import TrainingRun

    metadata = {"name": document["metadata"]["name"]}
    return TrainingRun.model_validate(
        {"apiVersion": TRAINING_RUN.api_version, "kind": TRAINING_RUN.kind, "metadata": metadata, "spec": document.get("spec")}
    )
