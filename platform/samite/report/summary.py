"""The six lines of a run, and the sentence that says how it went. Used by the report, by `samite describe` and by the demo."""

from dataclasses import dataclass

from samite.report import figures
from samite.report.run_data import RunData


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryLine:
    """One line: what, how much, and a remark."""

    label: str
    value: str
    remark: str = ""


def summary_lines(run: RunData) -> list[SummaryLine]:
    """Steps, tokens, restarts, detection and recovery, recomputed steps, effective-time ratio. A dash stands for what nobody recorded."""
    recoveries = run.recoveries
    worst_detect = max((recovery.detect_s for recovery in recoveries), default=None)
    worst_total = max((recovery.total_s for recovery in recoveries), default=None)
    restarts = num_restarts(run)
    share = effective_share(run)
    steps, tokens = num_steps(run), num_tokens(run)
    recomputed = num_recomputed(run)
    many = len(recoveries) > 1
    return [
        SummaryLine(label="Steps", value=figures.grouped(steps) if steps is not None else figures.UNKNOWN, remark=_stages(run)),
        SummaryLine(label="Tokens", value=figures.compact(tokens) if tokens is not None else figures.UNKNOWN, remark=_throughput(run)),
        SummaryLine(label="Restarts", value=str(restarts) if steps or run.events else figures.UNKNOWN, remark=_failure_classes(run)),
        SummaryLine(
            label="Detect, recover",
            value=f"{figures.brief(worst_detect)}, {figures.brief(worst_total)}" if recoveries else figures.UNKNOWN,
            remark="slowest of each; from the fault" if many else "from the fault" if recoveries else "",
        ),
        SummaryLine(
            label="Recomputed steps",
            value=figures.grouped(recomputed) if steps else figures.UNKNOWN,
            remark=f"{figures.percent(recomputed / (steps + recomputed))} of all steps" if steps and recomputed else "",
        ),
        SummaryLine(label="Effective time", value=figures.percent(share), remark=_lost(run)),
    ]


def headline(run: RunData) -> str:
    """One sentence that a person would say about the run."""
    steps, tokens = num_steps(run), num_tokens(run)
    if not steps:
        return "No step was recorded yet."
    done = f"{figures.grouped(steps)} steps" + (f" on {figures.compact(tokens)} tokens" if tokens else "")
    wall_s = run.number("ettr", "wallS") or (run.times[1] - run.times[0] if run.times else None)
    took = f" in {figures.seconds(wall_s)}" if wall_s else ""
    failures, recovered = num_failures(run), len(run.recoveries)
    if not failures:
        return f"{done}{took}{', without interruption' if run.events and not num_restarts(run) else ''}."
    slowest = max((recovery.total_s for recovery in run.recoveries), default=0.0)
    times = "one failure" if failures == 1 else f"{failures} failures"
    if recovered < failures:
        return (
            f"{done}{took}; {times}, {recovered or 'none'} of them recovered."
            if failures > 1
            else f"{done}{took}; one failure, not recovered."
        )
    return f"{done}{took}; {times}, training again {figures.seconds(slowest)} after the fault{' at most' if failures > 1 else ''}."


def num_steps(run: RunData) -> int | None:
    """Optimizer steps that count."""
    reached = max((segment.last_step for segment in run.curves.segments), default=None)
    of_status = run.number("progress", "step")
    found = [int(value) for value in (reached, of_status) if value is not None]
    return max(found) if found else None


def num_tokens(run: RunData) -> float | None:
    """Tokens trained, padding and recomputed ones left out."""
    return run.number("progress", "tokens") or run.curves.total("samite.tokens", kind="trained") or None


def num_failures(run: RunData) -> int:
    """Failures that were detected or recovered from."""
    return max(len(run.recoveries), sum(event.name == "samite.failure.detected" for event in run.events))


def num_restarts(run: RunData) -> int:
    """Restarts over the whole run."""
    by_class = run.status.get("restarts")
    if isinstance(by_class, dict):
        return int(sum(value for value in by_class.values() if isinstance(value, (int, float))))
    return max(len(run.recoveries), len(run.curves.restarts))


def num_recomputed(run: RunData) -> int:
    """Steps that were trained again."""
    of_status = run.number("recomputedSteps")
    return max(run.curves.recomputed_steps, int(of_status or 0))


def effective_share(run: RunData) -> float | None:
    """Effective training time over wall time, in [0, 1]."""
    share = run.number("ettr", "percent")
    return None if share is None else share / 100.0


def _stages(run: RunData) -> str:
    names = [segment.stage for segment in run.curves.stage_starts if segment.stage]
    planned = run.spec.get("spec", {}).get("stages") if isinstance(run.spec.get("spec"), dict) else None
    if isinstance(planned, list) and len(planned) > len(names) > 0:
        return f"{len(names)} of {len(planned)} stages"
    return f"{len(names)} stage{'s' if len(names) != 1 else ''}" if names else ""


def _throughput(run: RunData) -> str:
    rate = run.number("progress", "tokensPerS")
    if rate:
        return f"{figures.compact(rate)} tokens/s now"
    stepping_s = run.curves.total("samite.step.duration", part="total")
    trained = run.curves.total("samite.tokens", kind="trained") + run.curves.total("samite.tokens", kind="recomputed")
    return f"{figures.compact(trained / stepping_s)} tokens/s in steps" if trained and stepping_s else ""


def _failure_classes(run: RunData) -> str:
    counts: dict[str, int] = {}
    for recovery in run.recoveries:
        counts[recovery.failure_class] = counts.get(recovery.failure_class, 0) + 1
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    windows = run.status.get("skippedDataWindows")
    if not isinstance(windows, list) or not windows:
        return found
    rows = sum(int(window[1]) - int(window[0]) for window in windows)
    return "; ".join([*([found] if found else []), f"{figures.grouped(rows)} data rows left out"])


def _lost(run: RunData) -> str:
    lost = run.status.get("ettr", {}).get("lost") if isinstance(run.status.get("ettr"), dict) else None
    if not isinstance(lost, dict):
        return ""
    seconds = {name: value for name, value in lost.items() if isinstance(value, (int, float)) and value > 0}
    if not seconds:
        return "no time lost"
    worst = max(seconds, key=lambda name: seconds[name])
    return f"most lost to {worst}: {figures.seconds(seconds[worst])}"
