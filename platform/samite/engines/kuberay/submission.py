"""What is submitted to Ray for one attempt: the entry point and its environment. Pure.

The attempt travels in `SAMITE_ATTEMPT` (base64 of zlib of its JSON): the head's pod has no file of ours before its driver runs. The driver's command
line sets it, not the job's `env_vars`: Ray gives those to every process of the job and starts each anew for them, while ranks without any get
processes that have loaded what they need already (`RAY_preload_python_modules`).
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.environment import literal_environment
from samite.engines.kuberay.runtime import Runtime
from samite.lifecycle import Submit
from samite.spec.attempt import ATTEMPT_VARIABLE, AttemptSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """One call of Ray's Jobs API."""

    submission_id: str
    entrypoint: str
    environment: dict[str, str]
    """For every process of the job: the spec's own literal variables."""


def submission_of(action: Submit, run: Mapping[str, Any], runtime: Runtime) -> Submission:
    """The submission for `action`. `run` is the TrainingRun object with every default filled in."""
    attempt = attempt_of(action, run)
    program = [
        "env",
        f"{ATTEMPT_VARIABLE}={attempt.packed()}",
        runtime.python,
        "-m",
        "samite_workloads.entrypoint",
        "--attempt-env",
        "--ray",
    ]
    return Submission(submission_id=action.submission_id, entrypoint=f"exec {shlex.join(program)}", environment=dict(attempt.environment))


def attempt_in(entrypoint: str) -> AttemptSpec:
    """The attempt that an entry point carries. Raises ValueError if it carries none."""
    given = [word for word in shlex.split(entrypoint) if word.startswith(f"{ATTEMPT_VARIABLE}=")]
    if not given:
        raise ValueError(f"wanted {ATTEMPT_VARIABLE}=... in the entry point; found {entrypoint[:200]!r}")
    return AttemptSpec.unpack(given[0].partition("=")[2])


def attempt_of(action: Submit, run: Mapping[str, Any]) -> AttemptSpec:
    """The attempt document. Only the run's own words go in: status, managed fields and other bookkeeping of the API server stay out."""
    metadata = run["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if metadata.get(key)}
    return AttemptSpec(
        run={"apiVersion": run["apiVersion"], "kind": run["kind"], "metadata": kept, "spec": run["spec"]},
        run_uid=metadata["uid"],
        stage_index=action.stage_index,
        attempt=action.attempt,
        submission_id=action.submission_id,
        run_folder=names.run_folder(metadata["name"]),
        num_workers=action.num_workers,
        checkpoint_uri=run["spec"]["checkpoint"]["uri"],
        worker_group_restarts=action.worker_group_restarts,
        resume=action.resume,
        handover=action.handover,
        skip_data_windows=action.skip_data_windows,
        environment=literal_environment(run),
    )
