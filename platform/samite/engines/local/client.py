"""What the CLI calls (`samite.engines.base.RunClient`): submit a run, list runs, ask things of one, and see that each has a living supervisor.

Submitting is one rename: a client that dies before it leaves nothing, one that dies after it leaves a whole run, which the next command
on this machine starts.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samite.checkpoint import Store
from samite.engines.base import TERMINAL_PHASES, Blow, EventFeed, LogChoice, Logs, Submitted
from samite.engines.local import requests
from samite.engines.local.folder import RunFolder, list_runs
from samite.errors import ConflictError, NotFoundError, SamiteError, UsageError
from samite.lifecycle import Memory, RequestKind
from samite.settings import Settings
from samite.telemetry.events import EventRecord
from samite.telemetry.jsonlines import Follower

_BIRTH_S = 15.0
_NEVER_LOOKED = {"engine": "Local", "phase": "Pending", "reason": "Created", "message": "no supervisor has looked yet"}


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """The runs of this machine."""

    settings: Settings

    @property
    def place(self) -> str:
        """For messages."""
        return "this machine"

    @property
    def flags(self) -> tuple[str, ...]:
        """None: this machine is where commands look first."""
        return ()

    @property
    def refresh_s(self) -> float:
        """The supervisor's own period."""
        return 0.5

    def submit(self, document: dict[str, Any], source: str) -> Submitted[RunFolder]:
        """Make the run and start its supervisor. The same name with the same document is no error; with another it is a ConflictError."""
        folder = self.folder(document["metadata"]["name"])
        self.check_home()
        if folder.exists():
            _require_same(folder, document)
            self.ensure_supervisor(folder)
            return Submitted(run=folder, existed=True)
        birth = RunFolder(folder.path.with_name(f".{folder.name}.{os.getpid()}.new"))
        try:
            birth.create()
            (birth.path / "run.yaml").write_text(source, encoding="utf-8")
            birth.write_json(birth.spec_file, {"uid": uuid.uuid4().hex, "submittedAt": time.time(), "run": document})
            birth.path.rename(folder.path)
        except OSError as error:
            if folder.exists():
                raise ConflictError(
                    f"a run named {folder.name!r} was submitted at the same moment; see: samite status {folder.name}"
                ) from error
            raise SamiteError(
                f"cannot write the run to {folder.path}: {error.strerror or error}. SAMITE_HOME chooses another place."
            ) from error
        finally:
            shutil.rmtree(birth.path, ignore_errors=True)
        self.ensure_supervisor(folder)
        return Submitted(run=folder, existed=False)

    def folder(self, name: str) -> RunFolder:
        """The folder of a run of this name, whether it exists or not. UsageError if the name could leave the folder of runs."""
        if not name or "/" in name or name.startswith("."):
            raise UsageError(f"{name!r} is not the name of a run; see: samite list")
        return RunFolder(self.settings.runs / name)

    def find(self, name: str) -> RunFolder:
        """An existing run: by name, or the only active one if `name` is empty."""
        if name:
            return self.folder(name).require()
        active = [run for run in self.runs() if phase_of(run) not in TERMINAL_PHASES]
        if len(active) == 1:
            return active[0]
        if active:
            raise UsageError(f"which run? Active: {', '.join(run.name for run in active)}")
        raise NotFoundError("no run is active; name one of: " + (", ".join(run.name for run in self.runs()) or "(none was ever submitted)"))

    def runs(self) -> list[RunFolder]:
        """Every run of this machine, by name."""
        return list_runs(self.settings.runs)

    def status(self, folder: RunFolder) -> dict[str, Any]:
        """The last status, or a Pending one if no supervisor has looked yet."""
        return folder.read_json(folder.status_file) or {"name": folder.name, **_NEVER_LOOKED}

    def record(self, folder: RunFolder) -> dict[str, Any]:
        """`spec.json`: uid, time of submission, and the document with every default."""
        return folder.read_json(folder.spec_file) or {}

    def memory(self, folder: RunFolder) -> Memory:
        """`memory.json`."""
        try:
            return Memory.from_json(folder.memory_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Memory()
        except (ValueError, TypeError, AttributeError) as error:
            raise SamiteError(f"{folder.memory_file}: wanted what the supervisor remembers, found: {error}") from error

    def details(self, folder: RunFolder) -> dict[str, Any]:
        """Attempts, and where things are."""
        uri = self.record(folder).get("run", {}).get("spec", {}).get("checkpoint", {}).get("uri")
        return {
            "attempts": sorted(path.name for path in (folder.path / "attempts").glob("*-a*")),
            "supervised": folder.is_supervised(),
            "folder": str(folder.path),
            "checkpoints": uri or str(folder.path / "checkpoints"),
        }

    def attended(self, folder: RunFolder) -> bool:
        """Whether the run has a living supervisor."""
        return folder.is_supervised()

    def attend(self, folder: RunFolder) -> None:
        """Start a supervisor if one is needed."""
        self.ensure_supervisor(folder)

    def wish(self, folder: RunFolder, *, suspend: bool | None = None, cancel: bool | None = None) -> None:
        """Leave the wish for the supervisor."""
        requests.wish(folder, suspend=suspend, cancel=cancel)

    def ask(
        self, folder: RunFolder, kind: RequestKind, *, argument: str = "", by: str = "", windows: tuple[tuple[int, int], ...] = ()
    ) -> str:
        """Leave the request for the supervisor."""
        return requests.ask(folder, kind, argument=argument, by=by, windows=windows)

    def events(self, folder: RunFolder) -> EventFeed:
        """The run's `events.jsonl`."""
        return _EventFile(folder)

    def logs(self, folder: RunFolder, choice: LogChoice) -> Logs:
        """The run's log files."""
        from samite.engines.local.log_files import LogFiles

        return LogFiles(folder.path, choice)

    def store(self, folder: RunFolder) -> Store:
        """The checkpoints, where the spec says or in the run folder."""
        from samite.engines.local.supervisor import open_checkpoints
        from samite.spec import TrainingRun

        return open_checkpoints(TrainingRun.model_validate(self.record(folder)["run"]), folder)

    @contextmanager
    def records(self, folder: RunFolder) -> Iterator[Path]:
        """The run folder itself."""
        yield folder.path

    def strike(self, folder: RunFolder, blow: Blow) -> str:
        """Signals and fault documents."""
        from samite.engines.local.chaos import strike

        return strike(folder, blow)

    def ensure_supervisor(self, folder: RunFolder) -> bool:
        """Start a supervisor if the run needs one and has none; returns whether one was started."""
        if not needs_supervisor(folder) or folder.is_supervised():
            return False
        with folder.supervisor_log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "samite.engines.local.supervisor", str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=folder.path,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
        deadline = time.monotonic() + _BIRTH_S
        while time.monotonic() < deadline and not folder.is_supervised():
            if process.poll() not in {None, 0, ConflictError.exit_code}:
                tail = folder.supervisor_log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
                raise SamiteError(f"the supervisor of {folder.name!r} ended at once: {' / '.join(tail)}. Its log: {folder.supervisor_log}")
            time.sleep(0.05)
        return True

    def revive(self) -> list[str]:
        """Start supervisors for runs whose own was killed or whose machine rebooted; returns their names."""
        return [run.name for run in self.runs() if self.ensure_supervisor(run)]

    def delete(self, folder: RunFolder) -> None:
        """Remove everything of a run that is over, its own checkpoints too. ConflictError while it is not."""
        if phase_of(folder) not in TERMINAL_PHASES or folder.is_supervised():
            raise ConflictError(f"run {folder.name!r} is {phase_of(folder)}, not over; first: samite cancel {folder.name} --wait")
        shutil.rmtree(folder.path)

    def check_home(self) -> None:
        """Refuse a home that cannot hold runs before anything is started in it. Raises SamiteError with the remedy."""
        runs = self.settings.runs
        trial = runs / f".trial-{os.getpid()}"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            trial.write_text("x", encoding="utf-8")
        except OSError as error:
            raise SamiteError(
                f"cannot keep runs in {runs}: {error.strerror or error}. Choose another place: export SAMITE_HOME=/some/folder"
            ) from error
        finally:
            with suppress(OSError):
                trial.unlink()


class _EventFile:
    """`EventFeed` of one file."""

    def __init__(self, folder: RunFolder) -> None:
        self._follower = Follower(folder.events_file)

    def poll(self) -> list[EventRecord]:
        """What came since the last call."""
        return [record for record in map(EventRecord.from_document, self._follower.poll()) if record is not None]


def phase_of(folder: RunFolder) -> str:
    """The phase of the last status."""
    return str((folder.read_json(folder.status_file) or {}).get("phase", "Pending"))


def needs_supervisor(folder: RunFolder) -> bool:
    """True unless the run is settled and nobody has asked for anything since."""
    status = folder.read_json(folder.status_file)
    if status is None or not status.get("settled", False):
        return True
    phase, wishes = status["phase"], requests.read_wishes(folder)
    if phase in TERMINAL_PHASES:
        return False
    return bool(folder.pending_requests()) or wishes.cancel or (phase == "Suspended" and not wishes.suspend)


def spec_hash(document: dict[str, Any]) -> str:
    """What "the same document" means."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _require_same(folder: RunFolder, document: dict[str, Any]) -> None:
    found = (folder.read_json(folder.spec_file) or {}).get("run", {})
    if spec_hash(found) != spec_hash(document):
        raise ConflictError(
            f"a run named {folder.name!r} exists with another spec ({phase_of(folder)}). "
            f"Submit under another name (--name), or remove it: samite delete {folder.name}"
        )
