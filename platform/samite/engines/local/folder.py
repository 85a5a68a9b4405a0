"""The run folder: every path of a local run, its atomic documents, its lock, and the requests a person leaves in it.

run.yaml spec.json     the spec as given, and validated with every default
status.json memory.json  what `samite status` shows; what the supervisor must not forget
supervisor.lock/.beat/.log
requests/*.json        suspend, resume, cancel, ...: left by the CLI, taken by the supervisor
cluster.json           the Ray nodes and their process groups
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samite.errors import ConflictError, NotFoundError
from samite.spec.attempt import write_atomically
from samite.telemetry.jsonlines import without_nonfinite


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one local run. Creating the value touches nothing on disk."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name is the folder's."""
        return self.path.name

    @property
    def spec_file(self) -> Path:
        """The validated document; its presence is what makes a folder a run."""
        return self.path / "spec.json"

    @property
    def status_file(self) -> Path:
        """The last status the supervisor wrote."""
        return self.path / "status.json"

    @property
    def memory_file(self) -> Path:
        """What the lifecycle remembers between two decisions."""
        return self.path / "memory.json"

    @property
    def cluster_file(self) -> Path:
        """The Ray nodes of this run."""
        return self.path / "cluster.json"

    @property
    def events_file(self) -> Path:
        """Events of engine and trainer."""
        return self.path / "events.jsonl"

    @property
    def lock_file(self) -> Path:
        """Held by the run's one supervisor for as long as it lives."""
        return self.path / "supervisor.lock"

    @property
    def beat_file(self) -> Path:
        """Changed by the supervisor every second; the guards of the nodes watch it change."""
        return self.path / "supervisor.beat"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor printed."""
        return self.path / "supervisor.log"

    @property
    def heartbeats(self) -> Path:
        """One heartbeat file for each rank."""
        return self.path / "heartbeats"

    @property
    def control(self) -> Path:
        """Requests to the trainer."""
        return self.path / "control"

    @property
    def requests(self) -> Path:
        """Requests to the supervisor."""
        return self.path / "requests"

    @property
    def node_logs(self) -> Path:
        """One log file for each Ray node, growing over its restarts."""
        return self.path / "logs"

    def attempt(self, submission_id: str) -> Path:
        """Folder of one attempt."""
        return self.path / "attempts" / submission_id

    def exists(self) -> bool:
        """True if a run was submitted here."""
        return self.spec_file.is_file()

    def require(self) -> "RunFolder":
        """This folder, or NotFoundError naming the runs that do exist."""
        if self.exists():
            return self
        known = ", ".join(run.name for run in list_runs(self.path.parent)) or "none yet"
        raise NotFoundError(f"no run named {self.name!r} in {self.path.parent}. Known runs: {known}.")

    def create(self) -> None:
        """Make the folder and its fixed subfolders."""
        for folder in (
            self.path,
            self.heartbeats,
            self.control,
            self.requests,
            self.node_logs,
            self.path / "attempts",
            self.path / "metrics",
        ):
            folder.mkdir(parents=True, exist_ok=True)

    def read_json(self, file: Path) -> dict[str, Any] | None:
        """A document of this folder, or None if it does not exist. A damaged one raises ValueError naming the file."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise ValueError(f"{file} is not valid JSON ({error}); restore it or cancel the run") from error
        return dict(found)

    def write_json(self, file: Path, document: dict[str, Any]) -> None:
        """Replace a document atomically. Strict JSON: a loss that is NaN is null, or jq and every other reader would choke on the status."""
        try:
            text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        except ValueError:
            text = json.dumps(without_nonfinite(document), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(file, text + "\n")

    def leave_request(self, verb: str, **details: Any) -> Path:
        """Leave one request for the supervisor. Requests are taken in the order they were left."""
        self.requests.mkdir(parents=True, exist_ok=True)
        file = self.requests / f"{time.time_ns():020d}-{verb}-{secrets.token_hex(3)}.json"
        write_atomically(file, json.dumps({"verb": verb, **details}) + "\n")
        return file

    def pending_requests(self) -> list[tuple[Path, dict[str, Any]]]:
        """Requests not yet taken, oldest first."""
        if not self.requests.is_dir():
            return []
        files = sorted(file for file in self.requests.iterdir() if file.suffix == ".json" and not file.name.startswith("."))
        return [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files]

    @contextmanager
    def supervised(self, *, patience_s: float = 2.0) -> Iterator[None]:
        """Hold the supervisor's lock. Raises ConflictError if another process holds it for longer than `patience_s`.

        Guards probe the lock for an instant, which is why one refusal is not yet a conflict.
        """
        handle = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + patience_s
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ConflictError(
                            f"run {self.name!r} already has a supervisor (process {self._holder()}); it goes on with that one."
                        ) from None
                    time.sleep(0.1)
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(handle)

    def is_supervised(self) -> bool:
        """True if a living supervisor holds the lock."""
        return lock_is_held(self.lock_file)

    def _holder(self) -> str:
        text = self.lock_file.read_text(encoding="utf-8", errors="replace").strip()
        return text or "unknown"


def lock_is_held(lock_file: Path) -> bool:
    """True if some process holds the exclusive lock on `lock_file`; taken and given back for an instant to find out."""
    try:
        handle = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def list_runs(runs: Path) -> list[RunFolder]:
    """Every run below `runs`, by name."""
    if not runs.is_dir():
        return []
    return sorted((RunFolder(path) for path in runs.iterdir() if (path / "spec.json").is_file()), key=lambda run: run.name)
