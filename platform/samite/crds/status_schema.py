"""The status of a TrainingRun as a structural schema: the lifecycle's `Status`, field by field, and what Kubernetes adds to it.

Generated from the dataclasses, so that a status that `decide` returns always fits. Texts have no bound here: a status that the API server refused
would stop the operator, which cuts them instead. What rules look at is bounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, IntEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from samite.crds.structural import Schema
from samite.lifecycle.status import Condition, Status
from samite.spec.documentation import attribute_docstrings, one_line

MAX_MEMORY = 524_288
"""Characters of `status.memory`. A run that restarted for weeks needs a tenth; an object may have 1.5 MB in etcd."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimePin:
    """The runtime that the run was admitted with. It stays, whatever happens to the object."""

    kind: str
    """ClusterTrainingRuntime or TrainingRuntime; empty for the built-in one."""
    name: str
    """Its name."""
    generation: int
    """Its generation at admission."""
    digest: str
    """First half of the SHA-256 of its content."""
    content: str
    """The whole of it, opaque: base64 of zlib of JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """What `kubectl get trun` prints and no other field says in one word."""

    context_length: int | None = None
    """Context length of the current stage. Unit: tokens."""
    percent: str | None = None
    """Share of the whole run that is done, in percent, with one digit behind the point."""
    ettr: str | None = None
    """Share of the wall time that trained, in percent, with one digit behind the point."""
    restarts: int | None = None
    """Restarts over all classes of failure."""
    nodes: str | None = None
    """Worker nodes that are ready, of those wanted: 3/4."""
    last_checkpoint_time: str | None = None
    """When the newest committed checkpoint was first seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesStatus:
    """What a status holds beside the lifecycle's. Times are RFC 3339."""

    observed_generation: int
    """Generation of the object that this status is about."""
    memory: str
    """What the operator remembers between two turns; opaque. Without it a run begins again from its checkpoints."""
    next_retry_at: str | None = None
    """When the next attempt may start."""
    columns: Columns | None = None
    """What `kubectl get trun` prints and no other field says in one word."""
    runtime: RuntimePin | None = None
    """The runtime that the run was admitted with."""


_MAPS = {Condition: "type"}
"""Lists of these are merged item by item, by this field."""

_BOUNDS: Mapping[tuple[str, ...], Schema] = {
    ("startedStages",): {"maxItems": 16},
    ("startedStages", "[]"): {"maxLength": 40},
    ("memory",): {"maxLength": MAX_MEMORY},
    ("runtime", "content"): {"maxLength": 131_072},
}

_CONDITION_EXTRA: Mapping[str, Schema] = {
    "lastTransitionTime": {"description": "When `status` last changed, RFC 3339.", "type": "string", "format": "date-time"},
    "observedGeneration": {"description": "Generation of the object that this is about.", "type": "integer", "format": "int64"},
}


def status_schema() -> Schema:
    """The schema of `status`."""
    ours, theirs = _of_dataclass(Status, ()), _of_dataclass(KubernetesStatus, ())
    ours["properties"] = theirs["properties"] | ours["properties"]
    ours["properties"]["nextRetryAt"]["format"] = "date-time"
    ours["properties"]["columns"]["properties"]["lastCheckpointTime"]["format"] = "date-time"
    ours["properties"]["conditions"]["items"]["properties"] |= _CONDITION_EXTRA
    return {"description": "Where the run is. Written by the operator alone.", "type": "object", "properties": ours["properties"]}


def _of_dataclass(kind: type, path: tuple[str, ...]) -> Schema:
    texts = attribute_docstrings(kind.__module__).get(kind.__name__, {})
    hints = get_type_hints(kind)
    properties = {}
    for item in fields(kind):
        name = _camel(item.name)
        text = {"description": texts[item.name]} if item.name in texts else {}
        properties[name] = text | _of_hint(hints[item.name], (*path, name))
    return {"description": one_line((kind.__doc__ or "").partition("\n\n")[0]), "type": "object", "properties": properties}


def _of_hint(hint: Any, path: tuple[str, ...]) -> Schema:
    bounds = dict(_BOUNDS.get(path, {}))
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _of_hint(next(part for part in parts if part is not NoneType), path) | {"nullable": True}
    if origin in (tuple, frozenset):
        key = _MAPS.get(parts[0])
        kind: Schema = (
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {"x-kubernetes-list-type": "atomic"}
        )
        items = _of_hint(parts[0], (*path, "[]")) | ({"required": [key]} if key else {})
        return {"type": "array"} | bounds | kind | {"items": items}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of_hint(parts[1], (*path, "{}"))}
    if isinstance(hint, type) and is_dataclass(hint):
        return _of_dataclass(hint, path)
    return _of_scalar(hint) | bounds


def _of_scalar(kind: type) -> Schema:
    if kind is bool:
        return {"type": "boolean"}
    if issubclass(kind, IntEnum) or kind is int:
        return {"type": "integer", "format": "int64"}
    if kind is float:
        return {"type": "number"}
    assert kind is str or issubclass(kind, Enum), f"a status holds no {kind}"
    return {"type": "string"}


def _camel(name: str) -> str:
    """The name as `codec.to_document` writes it."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
