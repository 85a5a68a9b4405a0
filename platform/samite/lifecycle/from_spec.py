"""From the TrainingRun document to the plan that decisions are made on. The only place of the lifecycle that meets the spec's models."""

from typing import TYPE_CHECKING

from samite.lifecycle.actions import GateQuestion
from samite.lifecycle.phases import FailureClass
from samite.lifecycle.plan import (
    HANDOVER_STATES,
    Budget,
    CheckpointPolicy,
    DetectionPolicy,
    ExitCodeRule,
    NodePolicy,
    NumericPolicy,
    RestartPolicy,
    RunPlan,
    StagePlan,
)

if TYPE_CHECKING:
    from samite.spec import TrainingRun
    from samite.spec.detection import DetectionSpec, NumericSpec, StageNumeric
    from samite.spec.restart import RestartSpec
    from samite.spec.stages import Stage


def plan_from_run(run: "TrainingRun", *, uid: str) -> RunPlan:
    """The plan of a validated run."""
    spec = run.spec
    wishes = (("Succeeded", spec.retention.on_success), ("Failed", spec.retention.on_failure))
    return RunPlan(
        name=run.metadata.name,
        uid=uid,
        stages=tuple(_stage(stage, spec.detection.numeric, first=index == 0) for index, stage in enumerate(spec.stages)),
        restart=_restart(spec.restart),
        detection=_detection(spec.detection),
        checkpoint=CheckpointPolicy(
            interval_steps=spec.checkpoint.interval.steps,
            interval_s=spec.checkpoint.interval.seconds,
            stall_s=spec.checkpoint.stall_seconds,
            deadline_s=spec.checkpoint.deadline_seconds,
        ),
        nodes=NodePolicy(
            spares=spec.nodes.spares,
            exclude_blamed=spec.nodes.exclude_blamed,
            max_cordon_fraction=spec.nodes.max_cordon_fraction,
        ),
        suspend_checkpoint=spec.suspend_policy.checkpoint,
        suspend_grace_s=spec.suspend_policy.grace_seconds,
        keep_cluster_after=frozenset(outcome for outcome, wish in wishes if wish == "Keep"),
        keep_head_after=frozenset(outcome for outcome, wish in wishes if wish == "DeleteWorkers"),
    )


def _numeric(stage: "StageNumeric | None", run: "NumericSpec") -> NumericPolicy:
    """The run's answers, where the stage gives none of its own."""
    own = (None, None, None) if stage is None else (stage.on_nonfinite, stage.on_spike, stage.on_collapse)
    steps = None if stage is None else stage.roll_back_steps
    return NumericPolicy(
        on_nonfinite=own[0] or run.on_nonfinite,
        spike_pauses=(own[1] or run.on_spike) == "Pause",
        collapse_pauses=(own[2] or run.on_collapse) == "Pause",
        roll_back_steps=run.roll_back_steps if steps is None else steps,
    )


def _stage(stage: "Stage", numeric: "NumericSpec", *, first: bool) -> StagePlan:
    taken: tuple[tuple[str, str], ...] = ()
    if stage.handover is not None and not first:
        document = stage.handover.to_document()
        taken = tuple((state, document[state]) for state in HANDOVER_STATES)
    return StagePlan(
        name=stage.name,
        kind=stage.kind,
        context_length=stage.context_length,
        min_workers=stage.workers.min,
        max_workers=stage.workers.max,
        gpus_per_worker=stage.gpus_per_worker,
        rank_multiple=stage.parallel.tensor * stage.parallel.pipeline * stage.parallel.context,
        batch_tokens=stage.batch.tokens,
        steps=stage.num_steps,
        tokens=stage.budget.tokens,
        wall_s=stage.budget.wall_seconds,
        handover=taken,
        checks=tuple(
            GateQuestion(metric=check.metric, op=check.op, value=check.value, window=check.window, quantile=check.quantile)
            for check in stage.gate.checks
        ),
        on_gate_fail=stage.gate.on_fail,
        manual_gate=stage.gate.manual,
        numeric=_numeric(stage.numeric, numeric),
    )


def _restart(restart: "RestartSpec") -> RestartPolicy:
    budgets: dict[FailureClass, Budget] = {}
    for failure_class, budget in (
        (FailureClass.INFRA, restart.budgets.infra),
        (FailureClass.PREEMPTION, restart.budgets.preemption),
        (FailureClass.APPLICATION, restart.budgets.application),
        (FailureClass.HANG, restart.budgets.hang),
        (FailureClass.OOM, restart.budgets.oom),
        (FailureClass.NUMERIC, restart.budgets.numeric),
        (FailureClass.OPERATOR, restart.budgets.operator),
    ):
        resets = failure_class in (FailureClass.APPLICATION, FailureClass.OPERATOR) and budget.window_seconds is None
        budgets[failure_class] = Budget(
            limit=budget.limit,
            window_s=budget.window_seconds,
            reset_after_commits=restart.reset_after_checkpoints if resets else None,
            per_stage=failure_class in (FailureClass.OOM, FailureClass.NUMERIC),
            waits=failure_class is FailureClass.PREEMPTION,
        )
    return RestartPolicy(
        budgets=budgets,
        backoff_initial_s=restart.backoff.initial_seconds,
        backoff_cap_s=restart.backoff.cap_seconds,
        start_level=restart.start_level,
        max_level=restart.max_level,
        level_timeouts_s=(
            restart.level_timeouts.l1_seconds,
            restart.level_timeouts.l2_seconds,
            restart.level_timeouts.l3_seconds,
        ),
        no_progress_cycles=restart.no_progress_cycles,
        forget_after_commits=restart.reset_after_checkpoints,
        on_exhausted=restart.on_exhausted,
        exit_codes=tuple(
            ExitCodeRule(codes=frozenset(rule.codes), action=rule.action, failure_class=FailureClass(rule.failure_class))
            for rule in restart.exit_codes
        ),
    )


def _detection(detection: "DetectionSpec") -> DetectionPolicy:
    return DetectionPolicy(
        heartbeat_period_s=detection.heartbeat.period_seconds,
        hang_restarts=detection.hang.mode == "Restart",
        hang_floor_s=detection.hang.floor_seconds,
        hang_factor=detection.hang.factor,
        first_step_s=detection.hang.first_step_seconds,
        save_s=detection.hang.save_seconds,
        load_s=detection.hang.load_seconds,
        eval_s=detection.hang.eval_seconds,
        learning_windows=detection.hang.learning_windows,
        straggler_reports=detection.straggler.mode == "Report",
        straggler_factor=detection.straggler.factor,
        straggler_steps=detection.straggler.steps,
        decay_pauses=detection.decay.action == "Pause",
        provision_s=detection.provision_seconds,
        start_s=detection.start_seconds,
    )
