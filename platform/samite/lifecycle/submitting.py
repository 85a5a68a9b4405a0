"""The next attempt: its number, its size, where it resumes. Gives `Submit` until Ray or a heartbeat shows that it arrived."""

from samite.lifecycle import blame, budgets
from samite.lifecycle.actions import QuarantineCheckpoints, Submit
from samite.lifecycle.memory import AttemptMemory
from samite.lifecycle.observed import CheckpointsObserved, JobStatus
from samite.lifecycle.phases import Phase
from samite.lifecycle.rollback import last_step_to_keep, withdrawn
from samite.lifecycle.turn import Turn, live_of


def submission_id(run: str, stage_index: int, attempt: int) -> str:
    """`<run>-s<NN>-a<attempt>`."""
    return f"{run}-s{stage_index:02d}-a{attempt}"


def next_attempt(turn: Turn, *, num_nodes: int) -> bool:
    """Make the next attempt the live one. False while it is not known where it may resume (or for good, then the run is held)."""
    memory, stage = turn.memory, turn.stage
    assert memory.live is None, "one submission at a time"
    assert memory.cluster is not None
    resume = _resume(turn)
    if resume is None:
        return False
    attempt = max(memory.attempt, turn.observed.highest_attempt) + 1
    live = AttemptMemory(
        submission_id=submission_id(turn.plan.name, memory.stage_index, attempt),
        attempt=attempt,
        stage_index=memory.stage_index,
        cluster_id=memory.cluster.cluster_id,
        num_workers=num_nodes * stage.ranks_per_node,
        num_nodes=num_nodes,
        worker_group_restarts=budgets.in_place_restarts(turn.plan.restart, memory.spent, memory.cycles_without_commit, turn.now_s)
        if turn.plan.restart.start_level <= 1
        else 0,
        resume=resume,
        handover=memory.stages[memory.stage_index - 1].handover_hash if memory.stage_index else "",
        skip_data_windows=memory.skip_data_windows,
        since_s=turn.now_s,
        since_watched_s=turn.watched_s,
        recompute_until=memory.best_step,
    )
    turn.remember(live=live, attempt=attempt, suspicion=None, stragglers=())
    turn.emit(
        "samite.attempt.started",
        attempt_number=attempt,
        attempt_submission=live.submission_id,
        stage_name=stage.name,
        stage_workers=num_nodes,
        nodes=[node.name for node in turn.cluster_seen().nodes if node.ready and not node.head][:64],
    )
    give_submit(turn)
    return True


def give_submit(turn: Turn) -> None:
    """Ask for the live attempt to be submitted, unless it is known to have arrived."""
    live, job = live_of(turn), turn.live_seen
    if live.known_to_ray or live.heartbeat_seen or job.job_status not in (None, JobStatus.NOT_FOUND):
        return
    turn.remember_live(asked_at_s=turn.now_s)
    turn.act(
        Submit(
            cluster_id=live.cluster_id,
            submission_id=live.submission_id,
            attempt=live.attempt,
            stage_index=live.stage_index,
            num_workers=live.num_workers,
            num_nodes=live.num_nodes,
            worker_group_restarts=live.worker_group_restarts,
            resume=live.resume,
            handover=live.handover,
            skip_data_windows=live.skip_data_windows,
            exclude_nodes=blame.excluded(turn.memory.blame, turn.now_s) if turn.plan.nodes.exclude_blamed else frozenset(),
        )
    )


def _resume(turn: Turn) -> str | None:
    """`latest` if a checkpoint exists, `none` if it is certain that there never was one. Otherwise wait, or hold: never from scratch by mistake."""
    memory, listing = turn.memory, turn.observed.checkpoints
    rolled_back = turn.stage_memory.rolled_back_attempt
    if listing is None or not turn.after(listing.age_s, memory.attempt_ended_at_s):
        turn.wait_for("the storage to say which checkpoints exist")
        return None
    withdrawn = [item for item in listing.recent if item.stage_index == memory.stage_index and item.attempt <= rolled_back]
    if withdrawn:
        turn.act(
            QuarantineCheckpoints(
                stage_index=memory.stage_index,
                attempts_up_to=rolled_back,
                reason=f"the gate of stage {turn.stage.name} rolled it back",
            )
        )
        turn.wait_for(f"{len(withdrawn)} checkpoints of stage {turn.stage.name} to be withdrawn")
        return None
    if not _rolled_back(turn, listing):
        return None
    if memory.stage_index and not any(item.stage_index == memory.stage_index for item in listing.recent):
        before = memory.stages[memory.stage_index - 1]
        if before.final_checkpoint in listing.quarantined:
            hint = f"see `samite checkpoints show {turn.plan.name} {before.final_checkpoint}`"
            _hold(
                turn,
                "HandoverCheckpointLost",
                f"checkpoint {before.final_checkpoint}, which stage {before.name} handed over, is damaged; {hint}",
            )
            return None
    if listing.recent:
        return "latest"
    never = not listing.quarantined and not memory.commits and memory.newest_commit_step < 0
    if memory.stage_index == 0 and (never or rolled_back):
        return "none"
    _hold(
        turn,
        "NoCheckpoint",
        f"no usable checkpoint is left ({len(listing.quarantined)} quarantined): "
        f"see `samite checkpoints ls {turn.plan.name}`; starting again from nothing is not done without being asked",
    )
    return None


def _rolled_back(turn: Turn, listing: CheckpointsObserved) -> bool:
    """Whether no checkpoint from after bad numbers can be resumed from any more. False while they are withdrawn, or held."""
    back = turn.memory.roll_back
    if back is None or back.stage_index != turn.memory.stage_index or not listing.recent:
        return True
    keep = last_step_to_keep(back, listing.recent)
    if keep is None:
        hint = f"see `samite checkpoints ls {turn.plan.name}`; `samite resume {turn.plan.name}` goes on from the newest all the same"
        _hold(turn, "NoCheckpoint", f"every checkpoint that is left was taken after step {back.good_step}, the last good one: {hint}")
        return False
    late = withdrawn(back, listing.recent, after_step=keep)
    if not late:
        return True
    reason = f"rolled back to step {keep}: {back.reason}"
    turn.act(QuarantineCheckpoints(stage_index=back.stage_index, attempts_up_to=back.attempts_up_to, reason=reason, after_step=keep))
    turn.wait_for(f"{len(late)} checkpoints from after step {keep} to be withdrawn")
    return False


def _hold(turn: Turn, reason: str, message: str) -> None:
    turn.remember(recovery=None)
    turn.goto(Phase.HELD, reason, message)
    turn.emit("samite.run.held", reason=reason, message=message)
