"""The run's Lease: what an attempt's driver tells the operator through it, and what the operator asks of the trainer (docs/heartbeat.md).

One Lease per run, `<run>-heartbeat`. The operator makes it and writes `submission` and `control`; the driver of that submission renews it every
2 s and writes the rest, all as annotations. Written by `samite_workloads.bridge.lease`, read by `samite.engines.kuberay`. Only ages travel: wall
and monotonic clocks of other machines mean nothing here.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from samite.spec.attempt import AttemptResult, FailureReport, Heartbeat
from samite.telemetry import jsonlines

SUBMISSION = "samite.dev/submission"
"""The operator's: submission whose driver may write. A driver that finds another, newer one stops its ranks."""
CONTROL = "samite.dev/control"
"""The operator's: JSON map from file name (`stop.json`) to the document that the trainer shall find in `control/`. Left out: taken away again."""
HEARTBEATS = "samite.dev/heartbeats"
RESULT = "samite.dev/result"
FAILURES = "samite.dev/failures"
CHECKPOINTS = "samite.dev/checkpoints"
STACKS = "samite.dev/stacks"
"""JSON map from the request of a `stacks.json` to the number of ranks that have answered it."""
WRITTEN_BY_DRIVER = (HEARTBEATS, RESULT, FAILURES, CHECKPOINTS, STACKS)
"""Who names a new submission takes these away with the same write: they were the last one's."""
RUN_UID_LABEL = "samite.dev/run-uid"

RENEW_S = 2.0
"""How often the driver renews."""
LISTED_IN_FULL = 64
"""Ranks that are listed one by one; of more, only a summary with the slowest travels."""
SLOWEST = 16
FAILURES_BYTES = 32_000
_TRACEBACK_CHARACTERS = 4000


def lease_name(run: str) -> str:
    """Name of the run's Lease, in the run's namespace."""
    return f"{run}-heartbeat"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSign:
    """A rank's newest heartbeat and when its process was last heard. Both times are on the holder's own monotonic clock, in seconds."""

    heartbeat: Heartbeat
    heard_at_s: float
    """The process answers even while its training function is blocked; a young one says that it lives."""
    cpu_share: float | None = None
    """CPU seconds per second of the rank's process over `cpu_window_s`. None: not measured yet."""
    cpu_window_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseReport:
    """What a driver said, as its reader holds it."""

    submission_id: str
    signs: tuple[RankSign, ...] = ()
    """Every rank up to `LISTED_IN_FULL`; of more ranks the slowest, the lead and the one with the youngest heartbeat."""
    num_ranks: int = 0
    min_step: int = -1
    max_step: int = -1
    result: AttemptResult | None = None
    failures: tuple[FailureReport, ...] = ()
    checkpoint_id: str = ""
    checkpoint_step: int = -1
    stacks: Mapping[str, int] | None = None


def read_lease(annotations: Mapping[str, str], *, seen_at_s: float) -> LeaseReport:
    """The report in a Lease's annotations; `seen_at_s` is when its last renewal was seen, on the reader's monotonic clock.

    Damaged parts are left out, and so are heartbeats and a result of another submission than the Lease names: a driver's last words about itself.
    """
    table = _parsed(annotations.get(HEARTBEATS), list | dict) or []
    rows = table if isinstance(table, list) else table.get("slowest", [])
    submission = annotations.get(SUBMISSION, "")
    signs = tuple(sign for row in rows if (sign := _sign(row, seen_at_s)) is not None and sign.heartbeat.submission_id == submission)
    summary = table if isinstance(table, dict) else {}
    steps = [sign.heartbeat.step for sign in signs]
    result = _document(AttemptResult, _parsed(annotations.get(RESULT), dict))
    newest = _parsed(annotations.get(CHECKPOINTS), dict) or {}
    stacks = _parsed(annotations.get(STACKS), dict) or {}
    return LeaseReport(
        submission_id=submission,
        signs=signs,
        num_ranks=int(summary.get("ranks", len(signs))),
        min_step=int(summary.get("min_step", min(steps, default=-1))),
        max_step=int(summary.get("max_step", max(steps, default=-1))),
        result=result if result is not None and result.submission_id == submission else None,
        failures=tuple(
            report for row in _parsed(annotations.get(FAILURES), list) or [] if (report := _document(FailureReport, row)) is not None
        ),
        checkpoint_id=str(newest.get("id", "")),
        checkpoint_step=int(newest.get("step", -1)),
        stacks={str(request): int(count) for request, count in stacks.items()},
    )


def heartbeats_annotation(signs: Sequence[RankSign], *, now_s: float) -> str:
    """JSON of all ranks, or of the summary when there are many; ages as of `now_s` on the clock of the signs."""
    if len(signs) <= LISTED_IN_FULL:
        return _json([_row(sign, now_s) for sign in sorted(signs, key=lambda sign: sign.heartbeat.rank)])
    by_pace = sorted(signs, key=lambda sign: (sign.heartbeat.step, sign.heartbeat.monotonic_s))
    youngest = max(signs, key=lambda sign: sign.heartbeat.monotonic_s)
    chosen = {sign.heartbeat.rank: sign for sign in (*by_pace[:SLOWEST], by_pace[-1], youngest)}
    return _json(
        {
            "ranks": len(signs),
            "min_step": by_pace[0].heartbeat.step,
            "max_step": by_pace[-1].heartbeat.step,
            "phases": dict(Counter(sign.heartbeat.phase for sign in signs)),
            "slowest": [_row(sign, now_s) for _, sign in sorted(chosen.items())],
        }
    )


def result_annotation(result: AttemptResult) -> str:
    """JSON of how the attempt ended; a long traceback keeps its end."""
    failure = result.failure and {**result.failure, "traceback": str(result.failure.get("traceback", ""))[-_TRACEBACK_CHARACTERS:]}
    return replace(result, failure=failure).to_json()


def failures_annotation(reports: Iterable[FailureReport]) -> str:
    """JSON list, earliest first, within `FAILURES_BYTES`: what comes late loses its traceback, then its place."""
    rows: list[str] = []
    left = FAILURES_BYTES - 2
    for report in sorted(reports, key=lambda report: report.time_unix_s):
        row = _json(asdict(replace(report, traceback=report.traceback[-_TRACEBACK_CHARACTERS:], message=report.message[:4000])))
        if len(row) + 1 > (left - FAILURES_BYTES // 4 if rows else left):
            row = _json(asdict(replace(report, traceback="", message=report.message[:400])))
        if len(row) + 1 > left:
            break
        rows.append(row)
        left -= len(row) + 1
    return f"[{','.join(rows)}]"


def attempt_number(submission_id: str) -> int:
    """The fencing number in `<run>-s<NN>-a<attempt>`; -1 if the text is no submission id."""
    number = submission_id.rpartition("-a")[2]
    return int(number) if number.isdigit() else -1


def _row(sign: RankSign, now_s: float) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(sign.heartbeat.to_json())
    del row["monotonic_s"]
    row |= {"age_s": round(max(0.0, now_s - sign.heartbeat.monotonic_s), 3), "heard_age_s": round(max(0.0, now_s - sign.heard_at_s), 3)}
    if sign.cpu_share is not None:
        row |= {"cpu_share": round(sign.cpu_share, 4), "cpu_window_s": round(sign.cpu_window_s, 1)}
    return row


def _sign(row: Any, seen_at_s: float) -> RankSign | None:
    beat = _document(Heartbeat, {**row, "monotonic_s": seen_at_s - float(row.get("age_s", 0.0))} if isinstance(row, dict) else None)
    if beat is None:
        return None
    return RankSign(
        heartbeat=beat,
        heard_at_s=seen_at_s - float(row.get("heard_age_s", 0.0)),
        cpu_share=row.get("cpu_share"),
        cpu_window_s=float(row.get("cpu_window_s", 0.0)),
    )


Kind = TypeVar("Kind", Heartbeat, FailureReport, AttemptResult)


def _document(kind: type[Kind], row: Any) -> Kind | None:
    if not isinstance(row, dict):
        return None
    known = {field.name for field in fields(kind)}
    try:
        return kind(**{key: value for key, value in row.items() if key in known})
    except TypeError:
        return None


def _parsed(text: str | None, wanted: Any) -> Any:
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    # A number that JSON does not have makes ages that are neither small nor large: such a part is damaged.
    return found if isinstance(found, wanted) and found == jsonlines.without_nonfinite(found) else None


def _json(document: Any) -> str:
    return jsonlines.encode(document).decode("ascii").rstrip("\n")
