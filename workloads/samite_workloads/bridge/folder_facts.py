"""What the driver's run folder says about one submission, in the words of the Lease. Only reads; what is damaged or half there says nothing."""

import json
import time
from contextlib import suppress
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


class FolderFacts:
    """Of one submission in one run folder."""

    def __init__(self, run_folder: Path, submission_id: str) -> None:
        self._path, self._submission_id = run_folder, submission_id
        self._events = Follower(run_folder / "events.jsonl")
        self._newest: dict[str, Any] = {}

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
        """Every rank's sign, and how many ranks answered which stack request."""
        signs: list[RankSign] = []
        answered: dict[str, int] = {}
        for file in (self._path / "heartbeats").glob("rank-*.json"):
            with suppress(OSError, ValueError):
                text = file.read_text(encoding="utf-8")
                beat, more = Heartbeat.from_json(text), json.loads(text)
                if beat.submission_id != self._submission_id:
                    continue
                # Ranks of the driver's own pod write the file themselves: they were heard when they wrote it.
                signs.append(
                    RankSign(
                        heartbeat=beat,
                        heard_at_s=float(more.get("heard_s", beat.monotonic_s)),
                        cpu_share=more.get("cpu_share"),
                        cpu_window_s=float(more.get("cpu_window_s", 0.0)),
                    )
                )
                if more.get("answered"):
                    answered[str(more["answered"])] = answered.get(str(more["answered"]), 0) + 1
        return signs, answered

    def _read_events(self) -> None:
        for document in self._events.poll():
            if document.get("name") == "samite.checkpoint.committed":
                attributes = document.get("attributes", {})
                self._newest = {"id": attributes.get("samite.checkpoint.id", ""), "step": attributes.get("samite.step.index", -1)}
