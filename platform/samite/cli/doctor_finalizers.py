"""Deletions that wait for a finalizer of Samite's and for an operator that does not come: found by `samite doctor`, freed by `--fix-finalizers`."""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from samite.cli.doctor import Finding
from samite.errors import NotAllowedError, NotFoundError

if TYPE_CHECKING:
    from samite.engines.kuberay.client import ClusterEngine

CAP_S = 300.0
"""The operator itself gives up after so long."""


def findings_of_finalizers(engine: "ClusterEngine") -> Iterator[Finding]:
    """Whether a deletion is stuck."""
    runs = stuck_runs(engine)
    names = [run.name for run in runs] + [f"RoleBinding {_place(binding)}" for binding in stuck_bindings(engine, freed=runs)]
    if names:
        remedy = f"samite doctor --fix-finalizers {' '.join(engine.flags)}"
        yield Finding(name="finalizers", ok=False, found=f"deletion is stuck: {', '.join(names)}", remedy=remedy)
    else:
        yield Finding(name="finalizers", ok=True, found="no deletion is stuck")


def stuck_runs(engine: "ClusterEngine") -> list[Any]:
    """Runs whose deletion waits for our finalizer: longer than the operator's own cap, or at all if there is no operator."""
    from samite.engines.kuberay.names import FINALIZER

    deleted = [run for run in engine.runs() if run.document["metadata"].get("deletionTimestamp")]
    cap_s = _cap_s(engine) if deleted else CAP_S
    return [run for run in deleted if _waits(run.document["metadata"], FINALIZER, cap_s)]


def stuck_bindings(engine: "ClusterEngine", *, freed: Iterable[Any]) -> list[dict[str, Any]]:
    """RoleBindings of the operator whose deletion waits although, but for `freed`, no run in their namespace does. None if they may not be listed."""
    from samite.engines.kuberay.api import ROLE_BINDING
    from samite.engines.kuberay.names import FINALIZER, HOLD

    try:
        found = engine.api.list(ROLE_BINDING, "" if engine.all_namespaces else engine.where.namespace).items
    except NotAllowedError:
        return []
    deleted = [binding for binding in found if binding["metadata"].get("deletionTimestamp")]
    if not deleted:
        return []
    gone = {run.uid for run in freed}
    needed = {
        run.namespace for run in engine.runs() if run.uid not in gone and FINALIZER in (run.document["metadata"].get("finalizers") or ())
    }
    cap_s = _cap_s(engine)
    return [
        binding
        for binding in deleted
        if binding["metadata"].get("namespace", "") not in needed and _waits(binding["metadata"], HOLD, cap_s)
    ]


def fix_finalizers(engine: "ClusterEngine", *, yes: bool) -> None:
    """Take Samite's finalizers from what is stuck, after asking. What runs had in the cluster goes with them by ownership; storage stays."""
    from samite.cli.output import confirm, note
    from samite.engines.kuberay.api import ROLE_BINDING, TRAINING_RUN
    from samite.engines.kuberay.names import FINALIZER, HOLD

    runs = stuck_runs(engine)
    bindings = stuck_bindings(engine, freed=runs)
    if not runs and not bindings:
        note(f"no deletion is stuck in {engine.place}; nothing was changed")
        return
    questions = [f"the finalizer {FINALIZER} from {', '.join(run.name for run in runs)}"] if runs else []
    questions += [f"{HOLD} from the RoleBinding {', '.join(map(_place, bindings))}"] if bindings else []
    if not confirm(f"Take {' and '.join(questions)}? They are deleted at once; the storage of runs stays.", yes=yes):
        return
    for run in runs:
        _take(engine, TRAINING_RUN, run.document, FINALIZER, run.name, note)
    for binding in bindings:
        _take(engine, ROLE_BINDING, binding, HOLD, f"RoleBinding {_place(binding)}", note)


def _take(engine: "ClusterEngine", kind: Any, document: dict[str, Any], finalizer: str, name: str, note: Any) -> None:
    metadata = document["metadata"]
    kept = [one for one in metadata.get("finalizers") or () if one != finalizer]
    patch = {"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": kept}}
    try:
        engine.api.patch(kind, metadata.get("namespace", ""), metadata["name"], patch)
    except NotFoundError:
        return  # it went by itself meanwhile
    note(f"{name}: finalizer taken away" + (f"; others hold it still: {', '.join(kept)}" if kept else ""))


def _waits(metadata: dict[str, Any], finalizer: str, cap_s: float) -> bool:
    from samite.engines.kuberay.client_run import seconds

    since_s = seconds(metadata.get("deletionTimestamp"))
    return since_s is not None and finalizer in (metadata.get("finalizers") or ()) and time.time() - since_s > cap_s


def _cap_s(engine: "ClusterEngine") -> float:
    """How long an operator may take; no time at all where there is none."""
    from samite.cli.doctor_cluster import operator_may_be_alive

    return CAP_S if operator_may_be_alive(engine) else float("-inf")


def _place(document: dict[str, Any]) -> str:
    return f"{document['metadata'].get('namespace', '')}/{document['metadata']['name']}"
