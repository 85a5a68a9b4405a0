"""The end of a stage and the end of a run: gate, hand-over, next stage, and the three terminal phases."""

from samite.lifecycle.actions import CommitHandover, EvaluateGate, Finish, VerifyCheckpoint
from samite.lifecycle.budgets import for_new_stage
from samite.lifecycle.capacity import release_workers, remove_cluster
from samite.lifecycle.gates import GateResult, GateVerdict, judge_gate, needs_measurement
from samite.lifecycle.handover import carried, committed, content_hash, handover_document, reset
from samite.lifecycle.memory import FailureRecord, StageMemory
from samite.lifecycle.phases import FailureClass, Level, Phase
from samite.lifecycle.preparing import announce_stage
from samite.lifecycle.respond import request_restart, respond
from samite.lifecycle.turn import Turn
from samite.lifecycle.watching import retire

MEASURE_S = 120.0
"""How long a gate waits for its numbers."""
MISSING_S = 60.0
"""How long a final checkpoint may be missing from the listing before it counts as lost."""
GATE_TRIES = 3


def gating(turn: Turn) -> None:
    """The stage has used its budget: its last checkpoint must verify, its numbers must pass, a person may have to agree."""
    if not retire(turn):
        return
    stage, record = turn.stage, turn.stage_memory
    found = committed(turn.observed.handovers, turn.memory.stage_index)
    if found is not None and found.run_uid == turn.plan.uid and found.checkpoint_id == record.final_checkpoint:
        # The engine died between the commit and storing that it happened: the gate had passed.
        turn.remember_stage(gate_passed=True)
        turn.goto(Phase.HANDING_OVER, "AlreadyCommitted", f"hand-over {found.content_hash[:12]}")
        return
    if not _final_checkpoint_good(turn):
        return
    if not record.gate_passed:
        result = _measure(turn)
        if result is None:
            return
        if result.verdict is not GateVerdict.PASS and stage.name not in turn.memory.approvals:
            _gate_failed(turn, result)
            return
        turn.remember_stage(gate_passed=True, gate_lines=result.lines)
    if stage.manual_gate and stage.name not in turn.memory.approvals:
        turn.goto(
            Phase.GATING,
            "AwaitingApproval",
            f"every check passed; `samite stages approve {turn.plan.name} {stage.name}` starts the next stage",
        )
        return
    turn.emit("samite.stage.finished", stage_name=stage.name, tokens_trained=record.final_tokens, step_last=record.final_step)
    if turn.memory.stage_index + 1 < len(turn.plan.stages):
        turn.goto(Phase.HANDING_OVER, "GatePassed", "; ".join(turn.stage_memory.gate_lines))
    else:
        turn.goto(Phase.SUCCEEDED, "Completed", f"{len(turn.plan.stages)} stages, {record.final_tokens} tokens")


def handing_over(turn: Turn) -> None:
    """Commit the hand-over; only what storage is seen to hold opens the next stage."""
    plan, index = turn.plan, turn.memory.stage_index
    document = handover_document(plan, index, turn.stage_memory)
    digest = content_hash(document)
    found = committed(turn.observed.handovers, index)
    if found is None:
        turn.act(CommitHandover(stage_index=index, stage_name=turn.stage.name, content_hash=digest, document=document))
        turn.wait_for("the hand-over to be stored")
        return
    mine = found.run_uid == plan.uid and found.checkpoint_id == turn.stage_memory.final_checkpoint
    if found.content_hash != digest and not mine:
        message = (
            f"another hand-over of stage {turn.stage.name} is committed already (checkpoint {found.checkpoint_id}, hash "
            f"{found.content_hash[:12]}; this one: {turn.stage_memory.final_checkpoint}, {digest[:12]})"
        )
        turn.goto(Phase.HELD, "HandoverConflict", message)
        turn.emit("samite.run.held", reason="HandoverConflict", message=message)
        return
    turn.remember_stage(handover_hash=found.content_hash)
    turn.emit(
        "samite.stage.handover.committed",
        checkpoint_id=found.checkpoint_id,
        handover_hash=found.content_hash,
        handover_carried=list(carried(plan, index)),
        handover_reset=list(reset(plan, index)),
    )
    following = StageMemory(
        name=plan.stages[index + 1].name,
        started_at_s=turn.now_s,
        start_tokens=turn.stage_memory.final_tokens,
        start_productive_s=turn.memory.ledger.productive,
    )
    turn.remember(
        stages=(*turn.memory.stages, following),
        stage_index=index + 1,
        spent=for_new_stage(plan.restart, turn.memory.spent),
        roll_back=None,
        # A cursor that begins anew counts its rows from zero: windows of the old numbering would leave out good rows.
        skip_data_windows=() if "dataCursor" in reset(plan, index) else turn.memory.skip_data_windows,
    )
    announce_stage(turn)
    turn.goto(Phase.PROVISIONING, "NextStage", f"stage {following.name}")


def ended(turn: Turn) -> None:
    """Succeeded, Failed, Cancelled: the cluster goes as far as it should, the record is closed."""
    outcome = turn.memory.phase.value
    reason = f"the run is {outcome}"
    if outcome in turn.plan.keep_cluster_after:
        done = True
    elif outcome in turn.plan.keep_head_after:
        done = release_workers(turn, reason=reason)
    else:
        done = remove_cluster(turn, reason=reason, by_request=turn.memory.phase is Phase.CANCELLED)
    if done:
        turn.act(Finish(outcome=outcome))


def _final_checkpoint_good(turn: Turn) -> bool:
    listing, record = turn.observed.checkpoints, turn.stage_memory
    wanted = record.final_checkpoint
    if listing is None:
        turn.wait_for("the storage to show the final checkpoint")
        return False
    found = next((item for item in listing.recent if item.checkpoint_id == wanted), None)
    if found is not None and found.verified:
        return True
    if found is not None and found.verified is None:
        turn.act(VerifyCheckpoint(checkpoint_id=wanted))
        turn.wait_for(f"checkpoint {wanted} to be verified")
        return False
    if wanted not in listing.quarantined and turn.in_phase_s < MISSING_S:
        turn.wait_for(f"checkpoint {wanted} to appear in the storage")
        return False
    what = "did not verify" if wanted in listing.quarantined else "is not in the storage"
    failure = FailureRecord(
        failure_class=FailureClass.INFRA,
        error_type="FinalCheckpointLost",
        message=f"the final checkpoint {wanted or '(unnamed)'} of stage {turn.stage.name} {what}",
        attempt=turn.memory.attempt,
        at_s=turn.now_s,
        commits=turn.memory.commits,
    )
    turn.remember_stage(final_checkpoint="", gate_passed=False)
    respond(turn, failure, over=True, at_least=Level.L2_ATTEMPT)
    return False


def _measure(turn: Turn) -> GateResult | None:
    stage, record = turn.stage, turn.stage_memory
    questions = needs_measurement(stage.checks)
    gate_id = f"{turn.plan.name}-s{turn.memory.stage_index:02d}-{record.final_checkpoint}-g{record.gate_tries}"
    gate = turn.observed.gate
    answered = gate is not None and gate.gate_id == gate_id
    values = gate.values if gate is not None and answered else {}
    if questions and not answered and turn.in_phase_s < MEASURE_S:
        turn.act(
            EvaluateGate(
                gate_id=gate_id,
                stage_index=turn.memory.stage_index,
                stage_name=stage.name,
                checkpoint_id=record.final_checkpoint,
                checks=questions,
            )
        )
        turn.wait_for("the gate's numbers")
        return None
    result = judge_gate(stage.checks, values, verified=True)
    for check in result.checks:
        turn.emit(
            "samite.stage.gate.evaluated",
            stage_name=stage.name,
            gate_check=check.metric,
            value=check.value,
            threshold=check.wanted,
            gate_verdict=check.verdict.value,
        )
    return result


def _gate_failed(turn: Turn, result: GateResult) -> None:
    stage, record = turn.stage, turn.stage_memory
    message = "; ".join(check.line for check in result.checks if check.verdict is not GateVerdict.PASS)
    tries = record.gate_tries + 1
    turn.remember_stage(gate_tries=tries, gate_lines=result.lines)
    if result.verdict is GateVerdict.FAIL and stage.on_gate_fail == "Fail":
        turn.goto(Phase.FAILED, "GateFailed", message)
        return
    if result.verdict is GateVerdict.FAIL and stage.on_gate_fail == "Retry" and tries < GATE_TRIES:
        turn.remember_stage(final_checkpoint="")
        request_restart(turn, level=Level.L2_ATTEMPT, error_type="Gate", reason=f"gate failed, try {tries} of {GATE_TRIES}: {message}")
        return
    if result.verdict is GateVerdict.FAIL and stage.on_gate_fail == "Rollback" and not record.rolled_back_attempt:
        turn.remember_stage(final_checkpoint="", rolled_back_attempt=turn.memory.attempt)
        turn.remember(best_step=-1)
        request_restart(turn, level=Level.L2_ATTEMPT, error_type="Gate", reason=f"gate failed, the stage starts over: {message}")
        return
    hint = f"`samite stages approve {turn.plan.name} {stage.name}` lets it pass"
    turn.goto(Phase.HELD, "GateFailed", f"{message}; {hint}")
    turn.emit("samite.run.held", reason="GateFailed", message=turn.memory.message)
