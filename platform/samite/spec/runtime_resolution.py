"""From a run and the runtimes of the cluster to what its pods will be: a pure function, done once at admission and pinned in the run's status.

A runtime that changes later changes nothing about runs that were admitted before: what was resolved is kept whole in `status.runtime`, with the
generation it came from. A run may change what the runtime's allow-list names and nothing else.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from pydantic import ValidationError

from samite.errors import Problem, SpecError
from samite.spec.base import NonNegativeInt, SpecModel
from samite.spec.cluster_fields import RuntimeOverrides, RuntimeReference
from samite.spec.run import TrainingRun
from samite.spec.runtime import PodPieces, RuntimeSpec

DEFAULT_NAME = "default"
"""A run without runtimeRef takes the ClusterTrainingRuntime of this name, if there is one."""

BUILT_IN = RuntimeSpec.defaults(
    description="built in", allow_overrides=("Image", "Env", "CPU", "Memory", "NodeSelector", "Tolerations", "Queue")
)
"""For clusters whose administrator made no runtime: nothing to protect, so everything may be changed."""


class ResolvedRuntime(SpecModel):
    """What the pods of one run are made from: the runtime with the run's changes in it."""

    kind: str
    """Kind of the runtime it came from; empty for the built-in one."""
    name: str
    """Its name; empty for the built-in one."""
    generation: NonNegativeInt
    """Its generation when the run was admitted; 0 for the built-in one."""
    spec: RuntimeSpec
    """Image, pods and queue, the run's changes included. Environment is the runtime's alone: the run's own variables win over it."""

    def pin(self) -> dict[str, Any]:
        """What `status.runtime` holds: who it was, and the whole of it as opaque text."""
        text = json.dumps(self.to_document(), separators=(",", ":"), sort_keys=True)
        return {
            "kind": self.kind,
            "name": self.name,
            "generation": self.generation,
            "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
            "content": base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii"),
        }

    @classmethod
    def unpin(cls, pinned: Mapping[str, Any]) -> Self:
        """The runtime that `pin` stored. Raises ValueError if the text is not one."""
        try:
            document = json.loads(zlib.decompress(base64.b64decode(pinned["content"], validate=True)))
            return cls.from_document(document)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise ValueError(f"status.runtime.content is no pinned runtime: {error}") from error


def resolve(run: TrainingRun, runtimes: Iterable[Mapping[str, Any]]) -> ResolvedRuntime:
    """The runtime of `run` out of the objects in `runtimes` (ClusterTrainingRuntime, and TrainingRuntime of the run's namespace; others are skipped).

    Raises SpecError with every problem: no such runtime, one that is itself wrong, or changes that its allow-list does not name.
    """
    wanted = run.spec.runtime_ref or RuntimeReference(name=DEFAULT_NAME)
    known = [stored for stored in runtimes if _is_usable(stored, run)]
    found = next((stored for stored in known if stored["kind"] == wanted.kind and stored["metadata"]["name"] == wanted.name), None)
    if found is None and run.spec.runtime_ref is None:
        return ResolvedRuntime(kind="", name="", generation=0, spec=_with_changes(BUILT_IN, run))
    if found is None:
        raise SpecError([_missing(wanted, known)], run.name)
    try:
        spec = RuntimeSpec.from_document(found.get("spec") or {})
    except ValidationError as error:
        raise SpecError([_broken(wanted, error)], run.name) from error
    if problems := list(_refused(run, wanted, spec)):
        raise SpecError(problems, run.name)
    generation = int(found["metadata"].get("generation", 0))
    return ResolvedRuntime(kind=wanted.kind, name=wanted.name, generation=generation, spec=_with_changes(spec, run))


def _is_usable(stored: Mapping[str, Any], run: TrainingRun) -> bool:
    kind, namespace = stored.get("kind"), (stored.get("metadata") or {}).get("namespace")
    return kind == "ClusterTrainingRuntime" or (kind == "TrainingRuntime" and namespace == run.metadata.namespace)


def _missing(wanted: RuntimeReference, known: list[Mapping[str, Any]]) -> Problem:
    names = sorted(f"{stored['kind']} {stored['metadata']['name']}" for stored in known)
    return Problem(
        path="spec.runtimeRef",
        wanted=f"a {wanted.kind} {wanted.name}",
        found=f"only {', '.join(names[:10])}" if names else "no runtime at all",
        hint="name one of these" if names else "ask the administrator of the cluster for one, or remove runtimeRef",
    )


def _broken(wanted: RuntimeReference, error: ValidationError) -> Problem:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return Problem(
        path="spec.runtimeRef",
        wanted=f"a {wanted.kind} {wanted.name} of this version's format",
        found=f"spec.{place} in it: {first['msg']}",
        hint="its administrator must change it; `samite crds diff` shows whether the cluster's CRDs are of this version",
    )


def _changes(run: TrainingRun) -> Iterator[tuple[str, str, Any]]:
    """(name in the allow-list, path in the run, value) of everything that a run can change in its runtime."""
    spec = run.spec
    overrides = spec.runtime_ref.overrides if spec.runtime_ref is not None else None
    yield "Image", "spec.image", spec.image
    yield "Env", "spec.env", spec.env
    yield "Queue", "spec.queue", spec.queue
    if overrides is not None:
        place = "spec.runtimeRef.overrides"
        yield "CPU", f"{place}.cpu", overrides.cpu
        yield "Memory", f"{place}.memory", overrides.memory
        yield "NodeSelector", f"{place}.nodeSelector", overrides.node_selector
        yield "Tolerations", f"{place}.tolerations", overrides.tolerations


def _refused(run: TrainingRun, wanted: RuntimeReference, runtime: RuntimeSpec) -> Iterator[Problem]:
    allowed = ", ".join(runtime.allow_overrides) or "nothing"
    for name, path, value in _changes(run):
        if value and name not in runtime.allow_overrides:
            shown = value if isinstance(value, str) else "a value"
            yield Problem(
                path=path,
                wanted=f"no {path.rpartition('.')[2]}, because {wanted.kind} {wanted.name} allows {allowed}",
                found=shown,
                hint=f"remove it, choose another runtime, or ask for {name} in spec.allowOverrides of {wanted.name}",
            )
    for key, value in (run.spec.runtime_ref.overrides.node_selector if run.spec.runtime_ref is not None else {}).items():
        if runtime.worker.node_selector.get(key, value) != value:
            yield Problem(
                path="spec.runtimeRef.overrides.nodeSelector",
                wanted=f'{key}: "{runtime.worker.node_selector[key]}", which {wanted.kind} {wanted.name} demands',
                found=f'"{value}"',
                hint=f"remove {key}",
            )


def _with_changes(runtime: RuntimeSpec, run: TrainingRun) -> RuntimeSpec:
    spec = run.spec
    changes: dict[str, Any] = {"image": spec.image} if spec.image else {}
    if spec.queue is not None:
        level = spec.queue.topology_level or (runtime.queue.topology_level if runtime.queue is not None else None)
        changes["queue"] = spec.queue.model_copy(update={"topology_level": level})
    if spec.runtime_ref is not None:
        changes["worker"] = _with_overrides(runtime.worker, spec.runtime_ref.overrides)
    return runtime.model_copy(update=changes)


def _with_overrides(worker: PodPieces, overrides: RuntimeOverrides) -> PodPieces:
    changes: dict[str, Any] = {"cpu": overrides.cpu, "memory": overrides.memory}
    if overrides.node_selector:
        changes["node_selector"] = worker.node_selector | overrides.node_selector
    if overrides.tolerations:
        changes["tolerations"] = (*worker.tolerations, *overrides.tolerations)
    return worker.model_copy(update={name: value for name, value in changes.items() if value is not None})
