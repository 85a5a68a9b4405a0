"""The learning-rate curve over stages, and what a plan takes from the attempt's document or refuses."""

import pytest

from samite.errors import SpecError
from samite_workloads.train.plan import OptimizerPlan, StagePlan, plan_of
from samite_workloads.train.schedule import learning_rate, stage_curve


def optimizer(schedule="Cosine", **changes):
    values = {
        "name": "Muon", "learning_rate": 1.0, "minimum_fraction": 0.1, "warmup_fraction": 0.01, "decay_fraction": 0.2, "schedule": schedule,
        "weight_decay": 0.1, "momentum": 0.95, "betas": (0.9, 0.95), "epsilon": 1e-8, "grad_clip_norm": 1.0,
    }  # fmt: skip
    return OptimizerPlan(**{**values, **changes})


def stage(index, steps=None, *, wall_s=None, action=None, tokens=1000):
    handover = {"lrSchedule": action} if action else {}
    return StagePlan(
        index=index, name=f"s{index}", kind="Pretrain", context_length=10, tokens_per_step=tokens, micro_rows=1, num_steps=steps, wall_s=wall_s,
        handover=handover,
    )  # fmt: skip


def test_the_rate_rises_over_one_percent_and_falls_to_the_minimum():
    rates = [learning_rate(optimizer(), step / 1000) for step in range(1, 1001)]
    assert rates[4] == pytest.approx(0.5)
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 9
    assert rates[-1] == pytest.approx(0.1)
    assert rates[504] == pytest.approx(0.55, abs=1e-3)


def test_wsd_keeps_the_peak_until_its_decay_and_constant_never_falls():
    assert learning_rate(optimizer("WSD"), 0.8) == 1.0
    assert learning_rate(optimizer("WSD"), 0.9) == pytest.approx(0.55)
    assert learning_rate(optimizer("WSD"), 1.0) == pytest.approx(0.1)
    assert learning_rate(optimizer("Constant"), 1.0) == 1.0


def test_stages_that_carry_lie_on_one_curve():
    stages = [stage(0, 60), stage(1, 20, action="Carry"), stage(2, 20, action="Carry")]
    curves = [stage_curve(stages, index) for index in range(3)]
    assert [(c.start, c.end) for c in curves] == [(0.0, 0.6), (0.6, 0.8), (0.8, 1.0)]


def test_a_reset_begins_a_curve_of_its_own():
    stages = [stage(0, 60), stage(1, 30, action="Reset"), stage(2, 10, action="Carry")]
    assert [(stage_curve(stages, i).start, stage_curve(stages, i).end) for i in range(3)] == [(0.0, 1.0), (0.0, 0.75), (0.75, 1.0)]


def test_rescaling_follows_the_square_root_of_the_batch():
    stages = [stage(0, 50, tokens=1000), stage(1, 50, action="Rescale", tokens=4000)]
    assert (stage_curve(stages, 0).factor, stage_curve(stages, 1).factor) == (1.0, 2.0)


def test_stages_in_seconds_lie_on_the_curve_by_their_seconds():
    stages = [stage(0, wall_s=30.0), stage(1, wall_s=10.0, action="Carry")]
    assert stage_curve(stages, 1).progress(0.5) == pytest.approx(0.875)


def test_a_plan_has_the_steps_of_a_token_budget(new_attempt, document):
    document["spec"]["stages"][0]["budget"] = {"tokens": 1000}
    assert plan_of(new_attempt()).stage.num_steps == 4  # 288 tokens a step, rounded up


def test_a_plan_refuses_everything_it_cannot_follow_at_once(new_attempt, document):
    document["spec"]["stages"][0]["parallel"] = {"tensor": 2, "expert": 4}
    document["spec"]["stages"][0]["kind"] = "RL"
    with pytest.raises(SpecError) as refused:
        plan_of(new_attempt(ranks=5))
    assert [p.path for p in refused.value.problems] == [
        "spec.stages[0].parallel.tensor",
        "spec.stages[0].parallel.expert",
        "spec.stages[0].kind",
        "spec.stages[0].batch.tokens",
    ]


def test_model_overrides_that_do_not_fit_are_a_spec_error(new_attempt, document):
    document["spec"]["model"]["overrides"]["experts_per_token"] = 8
    with pytest.raises(SpecError, match="1 problem"):
        plan_of(new_attempt())
