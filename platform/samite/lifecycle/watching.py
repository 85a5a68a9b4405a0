"""A submission under watch: what its heartbeats, reports and result say is noted, judged and answered. Used in Starting, Running and Recovering."""

from dataclasses import replace

from samite.lifecycle.actions import KillRanks, StopSubmission
from samite.lifecycle.capacity import replace_lost_nodes
from samite.lifecycle.classify import classify
from samite.lifecycle.evidence import Evidence, Source
from samite.lifecycle.facts import orphans, submission_ended
from samite.lifecycle.judge import judge, record_of
from samite.lifecycle.notices import heed_notices, pause_on_numbers
from samite.lifecycle.observed import ENDED, JobStatus
from samite.lifecycle.phases import FailureClass, Phase
from samite.lifecycle.ranks import LOADED, STEPPING
from samite.lifecycle.respond import end_attempt, respond
from samite.lifecycle.stragglers import report_stragglers
from samite.lifecycle.suspicion import suspect
from samite.lifecycle.turn import Turn, live_of

LINGER_S = 30.0
"""How long a driver may stay after its result was written."""
ORPHAN_GRACE_S = 10.0


def watch(turn: Turn) -> bool:
    """Look after the live attempt for one turn. True if that changed the phase."""
    before = turn.memory.phase
    _note_job(turn)
    if _finished(turn):
        return turn.memory.phase is not before
    if _restarted_unseen(turn):
        return True
    _note_progress(turn)
    verdict = judge(turn)
    if verdict.failure is not None:
        respond(turn, verdict.failure, over=verdict.over, kill_ranks=verdict.kill_ranks)
        return True
    suspect(turn, verdict)
    heed_notices(turn)
    pause_on_numbers(turn)
    report_stragglers(turn)
    replace_lost_nodes(turn)
    return turn.memory.phase is not before


def retire(turn: Turn) -> bool:
    """End a submission whose work is done. True once nothing of it is alive; a driver that lingers is stopped."""
    live = turn.memory.live
    if live is None:
        return True
    result = turn.live_seen.result
    if submission_ended(turn):
        end_attempt(turn, outcome=result.outcome if result is not None else "failed")
        return True
    if live.result_seen_at_s is None:
        turn.remember_live(result_seen_at_s=turn.now_s)
    elif turn.live_seen.job_status in ENDED:
        kill_orphans(turn)
    elif turn.now_s - live.result_seen_at_s >= LINGER_S:
        turn.act(
            StopSubmission(
                cluster_id=live.cluster_id,
                submission_id=live.submission_id,
                reason="its work is done and its driver lingers",
                finished=True,
            )
        )
    turn.wait_for("the finished submission to leave")
    return False


def kill_orphans(turn: Turn) -> None:
    """Ranks that outlive their job are ended: two facts, Ray's word and the process table."""
    live = live_of(turn)
    numbers = orphans(turn)
    if not numbers or live.ended_seen_at_s is None or turn.now_s - live.ended_seen_at_s < ORPHAN_GRACE_S:
        return
    evidence = (
        Evidence(source=Source.RAY_JOB, subject=f"job {live.submission_id}", says=f"Ray says {turn.live_seen.job_status}", final=True),
        Evidence(source=Source.PROCESS_TABLE, subject=f"ranks {', '.join(map(str, numbers[:16]))}", says="live on without their job"),
    )  # fmt: skip
    turn.act(
        KillRanks(
            submission_id=live.submission_id,
            incarnation=turn.ranks.incarnation,
            ranks=numbers,
            reason="orphans of a job that ended",
            evidence=evidence,
        )
    )


def _note_job(turn: Turn) -> None:
    live, job = live_of(turn), turn.live_seen
    changes: dict[str, object] = {}
    if not live.known_to_ray and job.job_status not in (None, JobStatus.NOT_FOUND):
        changes["known_to_ray"] = True
    if live.ended_seen_at_s is None and job.job_status in ENDED:
        changes["ended_seen_at_s"] = turn.now_s
    if not live.heartbeat_seen and turn.ranks.current:
        changes["heartbeat_seen"] = True
    if changes:
        turn.remember_live(**changes)


def _finished(turn: Turn) -> bool:
    """The attempt says that it has done what it was asked to."""
    result, live = turn.live_seen.result, live_of(turn)
    if result is None or result.submission_id != live.submission_id or result.outcome not in ("stage_complete", "stopped"):
        return False
    if live.result_seen_at_s is None:
        turn.remember_live(result_seen_at_s=turn.now_s)
    if result.outcome == "stage_complete":
        turn.remember_stage(
            final_checkpoint=result.checkpoint_id,
            final_step=result.step,
            final_tokens=result.tokens,
        )
        turn.remember(recovery=None, suspicion=None, best_step=max(turn.memory.best_step, result.step))
        turn.goto(Phase.GATING, "BudgetReached", f"step {result.step}, {result.tokens} tokens")
        return True
    if not retire(turn):
        return True
    pause = turn.memory.pause
    if pause is not None:
        turn.remember(pause=None, recovery=None)
        turn.goto(Phase.HELD, pause.reason, pause.message)
        turn.emit("samite.run.held", reason=pause.reason, message=pause.message)
        return True
    cause = classify(job_message="stopped at a checkpoint without being asked to", policy=turn.plan.restart)
    respond(turn, record_of(turn, cause, ()), over=True)
    return True


def _restarted_unseen(turn: Turn) -> bool:
    """Ray restarted the worker group before anybody saw the failure: it is answered now, so that it counts."""
    live, ranks = live_of(turn), turn.ranks
    if ranks.incarnation - 1 <= max(live.handled, live.incarnation - 1):
        return False
    first = live.handled + 1
    reports = [report for report in turn.live_seen.reports if first <= report.incarnation < ranks.incarnation]
    grown = Evidence(
        source=Source.HEARTBEAT,
        subject=f"job {live.submission_id}",
        says=f"the worker group was restarted: incarnation {live.incarnation} became {ranks.incarnation}",
        final=True,
    )
    told = [
        Evidence(source=Source.FAILURE_REPORT, subject=f"rank {item.rank}", says=f"{item.error_type}: {item.message}"[:300], final=True)
        for item in reports[:1]
    ]  # fmt: skip
    cause = classify(reports=reports, log_tail=turn.live_seen.log_tail, policy=turn.plan.restart)
    if cause.error_type == "Unexplained":
        cause = replace(
            cause, failure_class=FailureClass.INFRA, error_type="WorkerLost", message="Ray restarted the worker group; no rank said why"
        )
    record = record_of(turn, cause, (*told, grown))
    # Nothing was trained since the old group's last step, though nobody knew: that is what noticing it took.
    stood_s = max(0.0, turn.now_s - live.last_step_at_s) if live.last_step >= 0 else 0.0
    begin_incarnation(turn, ranks.incarnation)
    record = replace(record, incarnation=ranks.incarnation - 1, detect_s=stood_s)
    respond(turn, record, over=False, already_in_place=True)
    return True


def begin_incarnation(turn: Turn, incarnation: int) -> None:
    """A new worker group of the live attempt reports: rates and limits are learnt anew."""
    turn.remember_live(
        incarnation=incarnation,
        start_step=-1,
        first_step_at_s=None,
        last_step=-1,
        recompute_until=turn.memory.best_step,
    )


def _note_progress(turn: Turn) -> None:
    live, ranks = live_of(turn), turn.ranks
    lead = ranks.lead
    if lead is None:
        return
    if ranks.incarnation > live.incarnation:
        begin_incarnation(turn, ranks.incarnation)
        live = live_of(turn)
    if lead.phase in LOADED and live.start_step < 0:
        recomputed = max(0, live.recompute_until - lead.step)
        turn.remember(recomputed_steps=turn.memory.recomputed_steps + recomputed)
        turn.remember_live(
            start_step=lead.step,
            start_stage_step=lead.stage_step,
            start_tokens=lead.tokens,
            last_step=lead.step,
            last_step_at_s=turn.now_s - (lead.progress_age_s or 0.0),
        )
        live = live_of(turn)
    if lead.step > live.last_step and lead.phase in STEPPING:
        at_s = turn.now_s - (lead.progress_age_s or 0.0)
        changes: dict[str, object] = {"last_step": lead.step, "last_step_at_s": at_s}
        if live.first_step_at_s is None:
            changes.update(first_step_at_s=at_s, first_step=lead.step)
        turn.remember_live(**changes)
        turn.remember(best_step=max(turn.memory.best_step, lead.step))
