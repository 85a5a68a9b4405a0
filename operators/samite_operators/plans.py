"""From the TrainingRun object to the plan that decisions are made on, once for each generation of the spec; and what is wrong if there is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay.api import Document
from samite.errors import SpecError
from samite.lifecycle import RunPlan
from samite.spec import TrainingRun
from samite.spec.stored import run_from_object

MANAGER = "samite.dev/operator"
"""`spec.managedBy` of runs that are ours, beside those that say nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A valid run."""

    generation: int
    run: TrainingRun
    plan: RunPlan
    spec: Document
    """The spec with every default filled in."""

    def document(self, run: Document) -> Document:
        """The object `run` with that spec."""
        return {**run, "spec": self.spec}


def plan_of(run: Mapping[str, Any]) -> Planned:
    """The plan of an object as the API server gave it. Raises SpecError with every problem, whatever CEL let through."""
    checked = run_from_object(run)
    return Planned(
        generation=int(run["metadata"].get("generation", 0)),
        run=checked,
        plan=RunPlan.from_run(checked, uid=run["metadata"]["uid"]),
        spec=checked.to_document()["spec"],
    )


def problems_of(error: SpecError) -> str:
    """All problems as one message for a condition."""
    lines = [
        f"{problem.path or 'document'}: wanted {problem.wanted}; found {problem.found}" + (f" ({problem.hint})" if problem.hint else "")
        for problem in error.problems
    ]
    return "; ".join(lines)


def is_ours(run: Mapping[str, Any]) -> bool:
    """Whether this operator looks after the run."""
    return (run.get("spec") or {}).get("managedBy") in (None, "", MANAGER)
