"""How an attempt arrives where engine and driver share no file system: packed in the environment, unpacked into this pod's own run folder."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from samite.settings import Settings
from samite.spec.attempt import ATTEMPT_VARIABLE, AttemptSpec


def local_run_folder(attempt: AttemptSpec) -> Path:
    """The run's folder on this pod, `$SAMITE_HOME/runs/<run>`. Raises UsageError if SAMITE_HOME is not absolute."""
    return Settings.from_environment().runs / str(attempt.run["metadata"]["name"])


def attempt_from_environment(environment: Mapping[str, str] = os.environ) -> AttemptSpec:
    """The attempt with this pod's run folder, kept there as `attempts/<id>/attempt.json`. Raises ValueError that says what is missing."""
    text = environment.get(ATTEMPT_VARIABLE, "")
    if not text:
        raise ValueError(
            f"--attempt-env wants the packed attempt in {ATTEMPT_VARIABLE}, which is not set; --attempt FILE reads one from a file"
        )
    attempt = AttemptSpec.unpack(text)
    folder = local_run_folder(attempt)
    place = folder / "attempts" / attempt.submission_id
    for part in (place / "logs", place / "failures", folder / "control", folder / "heartbeats", folder / "metrics"):
        part.mkdir(parents=True, exist_ok=True)
    here = replace(attempt, run_folder=str(folder))
    here.write(place / "attempt.json")
    return here


def keep_a_copy(log: Path) -> None:
    """From now on what this process prints, native writes included, goes to `log` too. Its end is the end of the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    # In a session of its own: what ends the job's process group must not cut its last words off.
    subprocess.Popen(["tee", "-a", str(log)], stdin=reading, close_fds=True, start_new_session=True)
    os.close(reading)
    for stream in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(writing, stream)
    os.close(writing)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
