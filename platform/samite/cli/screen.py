"""One run on one screen: facts gathered once, then rendered as plain lines. `status` prints them, `watch` redraws them.

quickstart   Running   stage 2/2 extend-1k (1024)   step 52/80  65.0 %   ETA 1m20s   ETTR 81.2 %
stages   pretrain ok   extend running
nodes    2 up: node-1, node-3
lost     start 22 s   detect 1.2 s   restart 14 s
saved    step 50 committed 12s ago, verified
failure  40s ago infra: node-2: its process group has ended; L2; recovered in 21.4 s; 19 infra restarts left
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samite.cli.output import ago, duration, one_line

if TYPE_CHECKING:
    from samite.engines.base import RunClient

EXIT_CODES = {"Failed": 8, "Cancelled": 9, "Cancelling": 9, "Suspended": 10, "Suspending": 10, "Held": 10}


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A run's status document and what the spec adds to it."""

    status: dict[str, Any]
    stages: list[dict[str, Any]]
    now_unix_s: float
    remark: str = ""
    """Why this is not the newest there is."""


def facts(client: "RunClient[Any]", run: Any) -> Facts:
    """Read what there is to show of a run."""
    record = client.record(run)
    return Facts(
        status=client.status(run),
        stages=list(record.get("run", {}).get("spec", {}).get("stages", [])),
        now_unix_s=time.time(),
    )


def exit_code(phase: str) -> int:
    """What `status --exit-code` and a finished wait exit with."""
    return EXIT_CODES.get(phase, 0)


def lines(shown: Facts, *, wide: bool = False) -> list[str]:
    """The screen, without colour."""
    found = [headline(shown), _stages(shown), *_nodes(shown), *_lost(shown), *_saved(shown), *_left_out(shown), *_failure(shown)]
    if shown.status.get("message") and shown.status["phase"] != "Running":
        found.append(f"why      {shown.status.get('reason', '')}: {short(shown.status['message'])}")
    if shown.remark:
        found.append(f"seen     {short(shown.remark)}")
    if wide:
        found += [f"{c['type']:<17} {c['status']:<8} {c['reason']} {c['message']}".rstrip() for c in shown.status.get("conditions", [])]
    return found


def headline(shown: Facts) -> str:
    """Name, phase, stage, step, percent, ETA and ETTR."""
    status, progress = shown.status, shown.status.get("progress", {})
    parts = [status["name"], status["phase"]]
    if shown.stages and status.get("currentStage"):
        index = int(status.get("stageIndex", 0))
        parts.append(f"stage {index + 1}/{len(shown.stages)} {status['currentStage']} ({shown.stages[index]['contextLength']} tokens)")
    total = status.get("totalSteps")
    parts.append(f"step {progress.get('step', 0)}" + (f"/{total}" if total else ""))
    if progress.get("percent") is not None:
        parts.append(f"{progress['percent']:.1f} %")
    if progress.get("etaS") is not None and status["phase"] == "Running":
        parts.append(f"ETA {duration(progress['etaS'])}")
    if progress.get("tokensPerS") and status["phase"] == "Running":
        parts.append(f"{progress['tokensPerS']:,.0f} tokens/s")
    ettr = status.get("ettr", {}).get("percent")
    if ettr is not None:
        parts.append(f"ETTR {ettr:.1f} %")
    return "   ".join(parts)


def _stages(shown: Facts) -> str:
    current, phase = int(shown.status.get("stageIndex", 0)), shown.status["phase"]
    words = []
    for index, stage in enumerate(shown.stages):
        done = index < current or phase == "Succeeded"
        words.append(f"{stage['name']} {'ok' if done else phase.lower() if index == current else '-'}")
    return "stages   " + "   ".join(words)


def _nodes(shown: Facts) -> list[str]:
    nodes = shown.status.get("nodes") or []
    excluded = shown.status.get("excludedNodes") or []
    count = len(nodes) or int(shown.status.get("nodesReady") or 0)
    text = f"{count} up" + (f": {', '.join(nodes)}" if 0 < len(nodes) <= 8 else "")
    return [f"nodes    {text}" + (f"   excluded: {', '.join(excluded)}" if excluded else "")] if count or excluded else []


def _lost(shown: Facts) -> list[str]:
    lost = shown.status.get("ettr", {}).get("lost", {})
    words = [
        f"{_words(name)} {duration(seconds)}" for name, seconds in lost.items() if isinstance(seconds, int | float) and seconds >= 0.05
    ]
    return ["lost     " + "   ".join(words)] if words else []


def _words(camel: str) -> str:
    name = camel.removesuffix("S")
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name)


def _saved(shown: Facts) -> list[str]:
    step = shown.status.get("lastCheckpointStep")
    if step is None:
        return []
    healthy = next((c for c in shown.status.get("conditions", []) if c["type"] == "CheckpointHealthy"), None)
    note = f"   ({healthy['message']})" if healthy and healthy["status"] == "False" else ""
    took, stall = shown.status.get("lastSaveS"), shown.status.get("lastSaveStallS")
    how = f"   in {took:.1f} s, training waited {stall:.2f} s" if took is not None and stall is not None else ""
    return [f"saved    step {step} committed: {shown.status.get('lastCheckpoint', '')}{how}{note}"]


def _left_out(shown: Facts) -> list[str]:
    windows = shown.status.get("skippedDataWindows") or []
    return [f"left out data rows {', '.join(f'{first} to {end - 1}' for first, end in windows[-5:])}"] if windows else []


def _failure(shown: Facts) -> list[str]:
    failure = shown.status.get("lastFailure")
    if not failure:
        return []
    klass = failure.get("failureClass", "")
    age = f"{ago(shown.now_unix_s - failure['atS'])} ago " if failure.get("atS") else ""
    words = [f"{age}{klass}: {short(failure.get('message', ''))}", f"L{failure.get('level', 0)}"]
    recovery = next((r for r in reversed(shown.status.get("recoveries", [])) if r.get("atS", 0) >= failure.get("atS", 0)), None)
    if recovery:
        words.append(f"recovered in {duration(recovery_seconds(recovery))}")
    left = shown.status.get("budgetsLeft", {}).get(klass)
    if left is not None:
        words.append(f"{left} {klass} restarts left")
    retry = shown.status.get("nextRetryAtS")
    if retry and retry > shown.now_unix_s:
        words.append(f"next try in {duration(retry - shown.now_unix_s)}")
    return ["failure  " + "; ".join(words)]


def short(text: str, limit: int = 220) -> str:
    """A message as one line of at most `limit` characters; `samite describe` and the events have the whole of it."""
    line = one_line(" ".join(str(text).split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def recovery_seconds(recovery: dict[str, Any]) -> float:
    """From the fault to the first new step."""
    return sum(float(recovery.get(part, 0.0)) for part in ("detectS", "restartS", "loadS", "firstStepS"))
