"""The ways out that people choose, and the waiting room: Suspending, Suspended, Held, Cancelling."""

from samite.lifecycle.actions import RequestCheckpoint, StopSubmission
from samite.lifecycle.capacity import remove_cluster
from samite.lifecycle.facts import submission_ended
from samite.lifecycle.observed import ENDED, ClusterState
from samite.lifecycle.phases import Phase
from samite.lifecycle.respond import end_attempt
from samite.lifecycle.turn import Turn
from samite.lifecycle.watching import kill_orphans

RELEASE_PATIENCE_S = 60.0
"""After a submission was asked to stop for so long, its cluster is taken down with it."""


def suspending(turn: Turn) -> None:
    """A last checkpoint if wished, then everything is given back."""
    grace = turn.plan.suspend_grace_s if turn.plan.suspend_checkpoint else 0.0
    if _out(turn, grace_s=grace, reason="suspended by request"):
        turn.remember(recovery=None, pause=None)
        turn.goto(Phase.SUSPENDED, "Suspended", "resources are released; `samite resume` goes on at the last checkpoint")


def suspended(turn: Turn) -> None:
    """Nothing runs until `suspend` is taken back."""
    if turn.observed.suspend is False:
        turn.emit("samite.run.resumed", actor="user")
        turn.goto(Phase.QUEUED if turn.memory.stages else Phase.VALIDATING, "Resumed")


def held(turn: Turn) -> None:
    """A person is asked. The cluster is kept for a while to look around, then released."""
    waited = turn.in_phase_s
    if waited >= turn.plan.restart.hold_release_s or turn.observed.suspend:
        remove_cluster(turn, reason="the run is held")


def cancelling(turn: Turn) -> None:
    """Everything goes, within the cap."""
    if _out(turn, grace_s=0.0, reason="cancelled by request"):
        turn.remember(recovery=None, pause=None)
        turn.goto(Phase.CANCELLED, "Cancelled")
    elif turn.in_phase_s > turn.plan.cancel_cap_s:
        cluster = turn.memory.cluster
        name = cluster.cluster_id if cluster is not None else ""
        turn.remember(live=None, recovery=None)
        turn.goto(Phase.CANCELLED, "CancelledLate", f"cluster {name} did not go within {turn.plan.cancel_cap_s:.0f} s: look for leftovers")


def _out(turn: Turn, *, grace_s: float, reason: str) -> bool:
    """Checkpoint, stop, release, in that order. True once nothing is left."""
    live = turn.memory.live
    if live is None:
        return remove_cluster(turn, reason=reason, by_request=True)
    result, job = turn.live_seen.result, turn.live_seen
    if result is not None and result.outcome == "stage_complete" and result.submission_id == live.submission_id:
        turn.remember_stage(final_checkpoint=result.checkpoint_id, final_step=result.step, final_tokens=result.tokens)
    if live.ended_seen_at_s is None and job.job_status in ENDED:
        turn.remember_live(ended_seen_at_s=turn.now_s)
    if submission_ended(turn):
        end_attempt(turn, outcome=result.outcome if result is not None else "stopped")
        return remove_cluster(turn, reason=reason, by_request=True)
    waiting = result is None and job.job_status not in ENDED
    if waiting and turn.ranks.current and turn.in_phase_s < grace_s:
        turn.act(
            RequestCheckpoint(
                request_id=f"{live.submission_id}-suspend",
                submission_id=live.submission_id,
                stop_after=True,
                reason=reason,
            )
        )
        turn.wait_for(f"a last checkpoint, {grace_s - turn.in_phase_s:.0f} s at most")
        return False
    if job.job_status in ENDED:
        kill_orphans(turn)
    else:
        turn.act(StopSubmission(cluster_id=live.cluster_id, submission_id=live.submission_id, reason=reason, by_request=True))
    turn.wait_for(f"{live.submission_id} to stop")
    _release_anyway(turn, grace_s, reason)
    return False


def _release_anyway(turn: Turn, grace_s: float, reason: str) -> None:
    """A submission that cannot be stopped goes with its cluster; one whose cluster never came up has nothing to stop."""
    seen, cluster = turn.cluster_seen(), turn.memory.cluster
    never_up = seen.state in (ClusterState.ABSENT, ClusterState.STARTING) and cluster is not None and not cluster.was_ready
    if turn.in_phase_s >= grace_s + RELEASE_PATIENCE_S or never_up or (cluster is not None and cluster.leaving):
        remove_cluster(turn, reason=reason, by_request=True)
