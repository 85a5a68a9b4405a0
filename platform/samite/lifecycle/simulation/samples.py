"""A small run to simulate: two stages of growing context on two nodes, with limits of seconds."""

from dataclasses import replace

from samite.lifecycle.plan import DetectionPolicy, RestartPolicy, RunPlan, StagePlan
from samite.lifecycle.simulation.engine import Engine
from samite.lifecycle.simulation.world import World

STEPS = (20, 12)
HANDOVER = (
    ("weights", "Carry"),
    ("optimizer", "Carry"),
    ("lrSchedule", "Carry"),
    ("stepCounter", "Carry"),
    ("tokenCounter", "Carry"),
    ("dataCursor", "Reset"),
    ("routerBias", "Carry"),
)


def small_plan(*, detection: DetectionPolicy | None = None, restart: RestartPolicy | None = None) -> RunPlan:
    """Stage `short` of 20 steps and stage `long` of 12, ten tokens a step. Without arguments, policies have their defaults."""
    first = StagePlan(name="short", steps=STEPS[0], batch_tokens=10, min_workers=2, max_workers=2)
    second = replace(first, name="long", steps=STEPS[1], context_length=2048, handover=HANDOVER)
    return RunPlan(
        name="demo",
        uid="u1",
        stages=(first, second),
        detection=detection or DetectionPolicy(),
        restart=restart or RestartPolicy(),
    )


def impatient() -> DetectionPolicy:
    """Limits of seconds, and hangs are restarted."""
    return DetectionPolicy(hang_restarts=True, hang_floor_s=10, first_step_s=20, load_s=20, start_s=40, provision_s=60)


def small_run(plan: RunPlan | None = None, *, checkpoint_every: int = 5) -> Engine:
    """An engine with a world for `plan` (`small_plan()` if None)."""
    plan = plan or small_plan()
    steps = tuple(stage.steps or 10 for stage in plan.stages)
    return Engine(plan, World(uid=plan.uid, stage_steps=steps, checkpoint_every=checkpoint_every))
