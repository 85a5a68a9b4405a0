"""Something looks wrong on too little evidence: said once, diagnosed once, confirmed or forgotten. Nothing is stopped here."""

from dataclasses import replace

from samite.lifecycle.actions import CollectDiagnostics
from samite.lifecycle.doubts import Suspicion
from samite.lifecycle.judge import Verdict
from samite.lifecycle.respond import describe
from samite.lifecycle.turn import Turn, live_of


def suspect(turn: Turn, verdict: Verdict) -> None:
    """Open, confirm or close a suspicion. Diagnostics are collected once for each; nothing else happens on one fact."""
    live, still = live_of(turn), verdict.still
    kind = ""
    if still.over_limit:
        kind = "storage" if still.storage else "hang"
    elif verdict.suspicion:
        kind = "failure"
    open_one = turn.memory.suspicion
    if not kind:
        if open_one is not None:
            turn.remember(suspicion=None)
        return
    if open_one is None or open_one.kind != kind or open_one.incarnation != turn.ranks.incarnation:
        turn.remember(
            suspicion=Suspicion(
                kind=kind,
                submission_id=live.submission_id,
                incarnation=turn.ranks.incarnation,
                since_s=turn.now_s,
                since_watched_s=turn.watched_s,
                diagnostics_id=f"{live.submission_id}-i{turn.ranks.incarnation}-s{max(live.last_step, 0)}",
                detail=verdict.suspicion,
            )
        )
        _announce_suspicion(turn, kind, verdict)
    _confirm(turn, kind, verdict)
    suspicion = turn.memory.suspicion
    if kind == "hang" and suspicion is not None and suspicion.diagnostics_id not in turn.observed.diagnostics:
        turn.act(CollectDiagnostics(diagnostics_id=suspicion.diagnostics_id, submission_id=live.submission_id, reason="hang suspected"))


def _announce_suspicion(turn: Turn, kind: str, verdict: Verdict) -> None:
    still = verdict.still
    if kind == "storage":
        turn.emit("samite.storage.stall", storage_operation="put", duration=still.age_s)
    elif kind == "hang":
        turn.emit(
            "samite.hang.suspected",
            heartbeat_seconds=still.age_s,
            threshold=still.limit_s,
            ranks=list(still.suspects),
        )
    else:
        turn.emit("samite.restart.withheld", evidence_missing=verdict.suspicion, evidence=[describe(item) for item in verdict.evidence])  # fmt: skip


def _confirm(turn: Turn, kind: str, verdict: Verdict) -> None:
    suspicion = turn.memory.suspicion
    if kind != "hang" or suspicion is None or suspicion.confirmed or not verdict.sufficient:
        return
    turn.remember(suspicion=replace(suspicion, confirmed=True))
    turn.emit(
        "samite.hang.confirmed",
        heartbeat_seconds=verdict.still.age_s,
        ranks=list(verdict.still.suspects),
        evidence=[describe(item) for item in verdict.evidence],
    )
