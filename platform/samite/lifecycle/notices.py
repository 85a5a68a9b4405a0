"""News that ask for a checkpoint: a node that will be taken away, decay that no restart can repair, numbers that the stage does not accept."""

from samite.lifecycle.actions import RequestCheckpoint
from samite.lifecycle.alarms import Pause
from samite.lifecycle.observed import NodeSays
from samite.lifecycle.turn import Turn, live_of


def heed_notices(turn: Turn) -> None:
    """A node that will be taken away: save early. Ranks that die there later count as preempted."""
    live = live_of(turn)
    for node in turn.cluster_seen().nodes:
        notice = next((fact for fact in node.facts if fact.says is NodeSays.PREEMPTION_NOTICE), None)
        if notice is None:
            continue
        if node.name not in dict(turn.memory.preempted):
            turn.remember(preempted=(*turn.memory.preempted, (node.name, turn.now_s))[-256:])
            numbers = [rank.rank for rank in turn.ranks.current if rank.node == node.name]
            turn.emit("samite.preemption.notice", node=node.name, ranks=numbers[:64], message=notice.detail)
        noticed_at_s = dict(turn.memory.preempted)[node.name]
        if turn.memory.newest_commit_at_s is None or turn.memory.newest_commit_at_s < noticed_at_s:
            turn.act(
                RequestCheckpoint(
                    request_id=f"{live.submission_id}-preempt-{node.name}",
                    submission_id=live.submission_id,
                    stop_after=False,
                    reason=f"{node.name} will be taken away: {notice.detail}",
                )
            )


def pause_on_numbers(turn: Turn) -> None:
    """Stop at the next checkpoint and ask a person: after decay that loses products, and after a spike or a collapse where the stage says so."""
    _note_decay(turn)
    _note_alarm(turn)
    _ask_for_pause(turn)


def _note_alarm(turn: Turn) -> None:
    alarm, policy, memory = turn.observed.alarm, turn.stage.numeric, turn.memory
    if alarm is None or memory.pause is not None or alarm.step == memory.alarm_paused_step:
        return
    collapsed = alarm.kind == "ExpertCollapse"
    if not (policy.collapse_pauses if collapsed else policy.spike_pauses) or (
        collapsed and memory.collapse_accepted_stage == memory.stage_index
    ):
        return
    accepts = " and accepts it for this stage" if collapsed else ""
    turn.remember(
        alarm_paused_step=alarm.step,
        pause=Pause(
            reason=alarm.kind,
            message=f"step {alarm.step}: {alarm.message}; `samite resume {turn.plan.name}` goes on{accepts}",
            request_id=f"numeric-{alarm.step}",
            since_watched_s=turn.watched_s,
        ),
    )


def _note_decay(turn: Turn) -> None:
    decay = turn.observed.decay
    accepted = turn.memory.decay_acknowledged_stage == turn.memory.stage_index
    news = decay is not None and decay.step != turn.memory.decay_paused_step
    if decay is not None and news and turn.plan.detection.decay_pauses and not accepted and turn.memory.pause is None:
        where = f" in {decay.layer}" if decay.layer else ""
        turn.remember(
            decay_paused_step=decay.step,
            pause=Pause(
                reason="DecayUnderflow",
                message=(
                    f"step {decay.step}: {decay.lossy_flushes:g} decay products lost{where}, limit {decay.limit:g}; "
                    f"a restart cannot repair it; `samite resume {turn.plan.name}` goes on and accepts it for this stage"
                ),
                request_id=f"decay-s{turn.memory.stage_index:02d}",
                since_watched_s=turn.watched_s,
            ),
        )


def _ask_for_pause(turn: Turn) -> None:
    pause, live = turn.memory.pause, live_of(turn)
    if pause is not None and turn.ranks.current:
        turn.act(
            RequestCheckpoint(
                request_id=f"{live.submission_id}-{pause.request_id}",
                submission_id=live.submission_id,
                stop_after=True,
                reason=pause.message,
            )
        )
