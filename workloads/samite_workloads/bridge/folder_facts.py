"""What the driver's run folder says about one submission, in the words of the Lease. Only reads; what is damaged or half there says nothing."""

import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samite.spec.attempt import AttemptResult, FailureReport, Heartbeat
from samite.spec.lease import (
    CHECKPOINTS,
    FAILURES,
    HEARTBEATS,
    RESULT,
    STACKS,
    RankSign,
    failures_annotation,
    heartbeats_annotation,
    result_annotation,
)
from samite.telemetry.jsonlines import Follower


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """A heartbeat file as it was read."""

    signature: tuple[int, int]
    sign: RankSign
    answered: str


class FolderFacts:
    """Of one submission in one run folder."""

    def __init__(self, run_folder: Path, submission_id: str) -> None:
        self._path, self._submission_id = run_folder, submission_id
        self._events = Follower(run_folder / "events.jsonl")
        self._newest: dict[str, Any] = {}
        self._known: dict[str, _Read] = {}

    def annotations(self) -> dict[str, str]:
        """The driver's annotations as they are now; those that have nothing to say are left out."""
        attempt = self._path / "attempts" / self._submission_id
        found = {}
        signs, answered = self.signs()
        if signs:
            found[HEARTBEATS] = heartbeats_annotation(signs, now_s=time.monotonic())
        if answered:
            found[STACKS] = json.dumps(answered)
        with suppress(OSError, ValueError):
            found[RESULT] = result_annotation(AttemptResult.read(attempt / "result.json"))
        reports = []
        for file in sorted(attempt.glob("failures/incarnation-*.json")):
            with suppress(OSError, ValueError):
                reports.append(FailureReport.read(file))
        if reports:
            found[FAILURES] = failures_annotation(reports)
        self._read_events()
        if self._newest:
            found[CHECKPOINTS] = json.dumps(self._newest)
        return found

    def signs(self) -> tuple[list[RankSign], dict[str, int]]:
        """Every rank's sign, and how many ranks answered which stack request. A file is read again only when it was replaced."""
        answered: Counter[str] = Counter()
        known: dict[str, _Read] = {}
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._path / "heartbeats"):
                with suppress(OSError, ValueError):
                    if entry.name.startswith("rank-") and entry.name.endswith(".json"):
                        known[entry.name] = self._read(entry)
        self._known = known
        mine = [read for read in known.values() if read.sign.heartbeat.submission_id == self._submission_id]
        answered.update(read.answered for read in mine if read.answered)
        return [read.sign for read in mine], dict(answered)

    def _read(self, entry: os.DirEntry[str]) -> "_Read":
        status = entry.stat()
        signature = (status.st_mtime_ns, status.st_ino)
        before = self._known.get(entry.name)
        if before is not None and before.signature == signature:
            return before
        text = Path(entry.path).read_text(encoding="utf-8")
        beat, more = Heartbeat.from_json(text), json.loads(text)
        # Ranks that share the driver's folder write the file themselves: they were heard when they wrote it.
        sign = RankSign(
            heartbeat=beat,
            heard_at_s=float(more.get("heard_s", beat.monotonic_s)),
            cpu_share=more.get("cpu_share"),
            cpu_window_s=float(more.get("cpu_window_s", 0.0)),
        )
        return _Read(signature=signature, sign=sign, answered=str(more.get("answered", "")))

    def _read_events(self) -> None:
        for document in self._events.poll():
            if document.get("name") == "samite.checkpoint.committed":
                attributes = document.get("attributes", {})
                self._newest = {"id": attributes.get("samite.checkpoint.id", ""), "step": attributes.get("samite.step.index", -1)}
