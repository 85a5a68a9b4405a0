"""Budgets, back-off, the ladder and the reasons to stop: the defaults of the recovery page, as tables."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samite.lifecycle import FailureClass, Level, Memory
from samite.lifecycle import budgets as b
from samite.lifecycle.ladder import Restart, Stop, next_step
from samite.lifecycle.memory import FailureRecord
from samite.lifecycle.plan import NumericPolicy, RestartPolicy
from samite.lifecycle.simulation import small_plan

POLICY = RestartPolicy()
PLAN = small_plan()
C = FailureClass


def failure(failure_class: FailureClass = C.APPLICATION, **more) -> FailureRecord:
    values = {"error_type": "RuntimeError", "message": "boom", "ranks": (1,), "nodes": ("n1",), **more}
    return FailureRecord(failure_class=failure_class, **values)


def step(failed: FailureRecord, memory: Memory | None = None, *, plan=PLAN, now_s: float = 0.0, in_place: bool = True):
    return next_step(plan, memory or Memory(), failed, now_s=now_s, in_place=in_place)


@pytest.mark.parametrize(
    ("failure_class", "limit", "window_s"),
    [
        (C.INFRA, 20, 86400.0),
        (C.PREEMPTION, 6, 3600.0),
        (C.APPLICATION, 3, None),
        (C.HANG, 5, 86400.0),
        (C.OOM, 1, None),
        (C.NUMERIC, 2, None),
    ],
)
def test_default_budgets_are_those_of_the_page(failure_class, limit, window_s):
    budget = POLICY.budgets[failure_class]
    assert (budget.limit, budget.window_s) == (limit, window_s)


@pytest.mark.parametrize("failure_class", [C.INFRA, C.PREEMPTION, C.APPLICATION, C.HANG, C.OOM, C.NUMERIC, C.OPERATOR])
def test_a_budget_gives_exactly_its_limit(failure_class):
    spent: dict = {}
    for used in range(POLICY.budgets[failure_class].limit):
        assert b.left(POLICY, spent, failure_class, 10.0) == POLICY.budgets[failure_class].limit - used
        spent = b.spend(POLICY, spent, failure_class, 10.0)
    assert b.left(POLICY, spent, failure_class, 10.0) == 0


def test_infra_is_refilled_by_time():
    spent: dict = {}
    for index in range(20):
        spent = b.spend(POLICY, spent, C.INFRA, float(index))
    assert b.left(POLICY, spent, C.INFRA, 86399.0) == 0
    assert b.left(POLICY, spent, C.INFRA, 86400.0) == 1
    assert b.left(POLICY, spent, C.INFRA, 86410.0) == 11


def test_the_application_budget_is_full_again_after_three_commits():
    spent = b.spend(POLICY, {}, C.APPLICATION, 0.0)
    assert b.after_commits(POLICY, spent, 2) == spent
    assert b.after_commits(POLICY, spent, 3) == {}


def test_memory_and_numeric_budgets_are_per_stage():
    spent = b.spend(POLICY, b.spend(POLICY, b.spend(POLICY, {}, C.OOM, 0.0), C.NUMERIC, 0.0), C.INFRA, 0.0)
    assert set(b.for_new_stage(POLICY, spent)) == {C.INFRA}


@given(st.lists(st.floats(0, 1e6), max_size=60), st.sampled_from(list(POLICY.budgets)))
def test_a_budget_is_never_overdrawn_and_its_record_stays_small(times, failure_class):
    spent: dict = {}
    for at_s in sorted(times):
        if b.left(POLICY, spent, failure_class, at_s) > 0:
            spent = b.spend(POLICY, spent, failure_class, at_s)
        counted = b.counted(spent, failure_class, POLICY.budgets[failure_class], at_s)
        assert len(counted) <= POLICY.budgets[failure_class].limit
    assert len(spent.get(failure_class, ())) <= 20


@given(st.integers(0, 40), st.integers(1, 10_000), st.sampled_from([C.APPLICATION, C.HANG, C.NUMERIC, C.OOM]))
def test_back_off_is_between_zero_and_ten_seconds_doubled_and_capped(exponent, attempt, failure_class):
    wait = b.backoff_s(POLICY, uid="u", attempt=attempt, exponent=exponent, failure_class=failure_class)
    assert 0.0 <= wait <= min(600.0, 10.0 * 2.0 ** min(exponent, 20))


def test_jitter_is_full_deterministic_and_differs_between_runs():
    values = [b.jitter("u", attempt) for attempt in range(2000)]
    assert 0.45 < sum(values) / len(values) < 0.55
    assert min(values) < 0.01
    assert max(values) > 0.99
    assert values == [b.jitter("u", attempt) for attempt in range(2000)]
    assert b.jitter("u", 1) != b.jitter("v", 1)


@pytest.mark.parametrize(("failure_class", "waits"), [(C.INFRA, False), (C.PREEMPTION, False), (C.USER, False), (C.APPLICATION, True)])
def test_the_first_restart_of_a_lost_node_does_not_wait(failure_class, waits):
    assert (b.backoff_s(POLICY, uid="u", attempt=7, exponent=0, failure_class=failure_class) > 0.0) is waits


@pytest.mark.parametrize(
    ("failed", "in_place", "level"),
    [
        (failure(C.APPLICATION), True, Level.L1_WORKER_GROUP),
        (failure(C.APPLICATION), False, Level.L2_ATTEMPT),
        (failure(C.INFRA), True, Level.L1_WORKER_GROUP),
        (failure(C.INFRA, lost_nodes=True), True, Level.L2_ATTEMPT),
        (failure(C.INFRA, lost_head=True), True, Level.L3_CLUSTER),
        (failure(C.HANG), True, Level.L1_WORKER_GROUP),
        (failure(C.NUMERIC), True, Level.L2_ATTEMPT),
        (failure(C.OOM), True, Level.L2_ATTEMPT),
        (failure(C.PREEMPTION), True, Level.L2_ATTEMPT),
        (failure(C.OPERATOR), True, Level.L2_ATTEMPT),
    ],
)
def test_each_class_starts_at_its_level(failed, in_place, level):
    decided = step(failed, in_place=in_place)
    assert isinstance(decided, Restart)
    assert decided.level is level


def test_the_third_hang_in_a_row_goes_to_a_new_attempt():
    twice = Memory(failures=(failure(C.HANG, ranks=(0,)), failure(C.HANG, ranks=(2,))))
    assert step(failure(C.HANG), Memory(failures=twice.failures[:1])).level is Level.L1_WORKER_GROUP
    assert step(failure(C.HANG), twice).level is Level.L2_ATTEMPT


@pytest.mark.parametrize("start_level", [1, 2, 3])
def test_a_run_can_begin_higher_on_the_ladder(start_level: int):
    plan = replace(PLAN, restart=RestartPolicy(start_level=start_level))
    assert step(failure(), plan=plan).level == start_level


def test_a_level_above_the_highest_allowed_one_stops():
    plan = replace(PLAN, restart=RestartPolicy(max_level=1))
    decided = step(failure(C.INFRA, lost_nodes=True), plan=plan)
    assert isinstance(decided, Stop)
    assert "maxLevel" in decided.message


@pytest.mark.parametrize("on_exhausted", ["Hold", "Fail"])
@pytest.mark.parametrize("failure_class", [C.INFRA, C.APPLICATION, C.HANG, C.OOM, C.NUMERIC])
def test_an_empty_budget_stops_as_the_run_says(failure_class, on_exhausted):
    plan = replace(PLAN, restart=RestartPolicy(on_exhausted=on_exhausted))
    spent = {failure_class: tuple(float(index) for index in range(POLICY.budgets[failure_class].limit))}
    decided = step(failure(failure_class), Memory(spent=spent), plan=plan, now_s=50.0)
    assert isinstance(decided, Stop)
    assert (decided.outcome, decided.reason) == (on_exhausted, "BudgetExhausted")
    assert str(failure_class) in decided.message


def test_an_empty_preemption_budget_waits_for_its_window():
    spent = {C.PREEMPTION: tuple(float(index) for index in range(6))}
    decided = step(failure(C.PREEMPTION), Memory(spent=spent), now_s=100.0)
    assert isinstance(decided, Restart)
    assert decided.not_before_s == 3600.0


def test_memory_that_ran_out_twice_says_what_would_fit():
    decided = step(failure(C.OOM), Memory(spent={C.OOM: (0.0,)}))
    assert isinstance(decided, Stop)
    assert "batch.microBatch" in decided.message


@pytest.mark.parametrize("cycles", [0, 1, 2, 3])
def test_three_failures_without_a_checkpoint_in_between_stop(cycles: int):
    decided = step(failure(C.INFRA, ranks=(cycles,), nodes=(f"n{cycles}",)), Memory(cycles_without_commit=cycles))
    assert isinstance(decided, Stop) is (cycles >= 2)
    if cycles >= 2:
        assert decided.reason == "NoProgress"


def test_preemptions_make_no_cycle_without_progress():
    assert isinstance(step(failure(C.PREEMPTION), Memory(cycles_without_commit=9)), Restart)


def test_the_same_failure_after_eviction_stops():
    first = failure(C.APPLICATION, evicted=False)
    second = failure(C.APPLICATION, evicted=True)
    decided = step(failure(C.APPLICATION), Memory(failures=(first, second)))
    assert isinstance(decided, Stop)
    assert decided.reason == "SameFailureAfterEviction"
    assert isinstance(step(failure(C.APPLICATION, ranks=(0,)), Memory(failures=(first, second))), Restart)
    assert isinstance(step(failure(C.HANG), Memory(failures=(first, second))), Restart)


def test_the_same_failure_long_ago_is_forgotten_after_three_checkpoints():
    evicted = failure(C.APPLICATION, evicted=True, commits=0)
    assert isinstance(step(failure(C.APPLICATION), Memory(failures=(evicted,), commits=2)), Stop)
    assert isinstance(step(failure(C.APPLICATION), Memory(failures=(evicted,), commits=3)), Restart)


def test_two_lost_nodes_are_not_the_same_failure():
    lost = failure(C.INFRA, lost_nodes=True, nodes=("n1",), evicted=True)
    assert isinstance(step(failure(C.INFRA, lost_nodes=True, nodes=("n2",)), Memory(failures=(lost,))), Restart)


def test_a_failure_that_repeats_in_one_place_evicts_the_node():
    decided = step(failure(C.INFRA, error_type="SIGSEGV"), Memory(failures=(failure(C.INFRA),)), in_place=False)
    assert isinstance(decided, Restart)
    assert decided.evict == ("n1",)


def test_a_program_that_asks_not_to_be_restarted_is_not():
    decided = step(failure(restartable=False))
    assert isinstance(decided, Stop)
    assert decided.reason == "NoRestart"


def test_a_numeric_failure_rolls_back_and_leaves_out_its_window():
    decided = step(failure(C.NUMERIC, data_window=(8, 16)))
    assert isinstance(decided, Restart)
    assert decided.skip_window == (8, 16)


def test_the_same_data_window_a_second_time_holds():
    decided = step(failure(C.NUMERIC, data_window=(8, 16)), Memory(skip_data_windows=((8, 16),)))
    assert isinstance(decided, Stop)
    assert (decided.outcome, decided.reason) == ("Hold", "SameDataWindow")


@pytest.mark.parametrize("answer", ["Hold", "Fail"])
def test_a_stage_can_hold_or_fail_on_numeric_failures_at_once(answer: str):
    strict = replace(PLAN.stages[0], numeric=NumericPolicy(on_nonfinite=answer))
    decided = step(failure(C.NUMERIC), plan=replace(PLAN, stages=(strict, *PLAN.stages[1:])))
    assert isinstance(decided, Stop)
    assert (decided.outcome, decided.reason) == (answer, "Numeric")
    later = replace(PLAN, stages=(PLAN.stages[0], strict))
    assert not isinstance(step(failure(C.NUMERIC), plan=later), Stop), "another stage's answer is not this one's"


@given(st.integers(0, 5), st.integers(0, 25), st.integers(0, 5), st.integers(0, 4))
def test_ray_is_never_given_more_restarts_than_a_budget_has(application, infra, cycles, cap):
    policy = replace(POLICY, in_place_restarts=cap)
    spent = {C.APPLICATION: (0.0,) * application, C.INFRA: (0.0,) * infra}
    given_away = b.in_place_restarts(policy, spent, cycles, 10.0)
    assert 0 <= given_away <= cap
    assert given_away <= b.left(policy, spent, C.APPLICATION, 10.0)
    assert given_away <= b.left(policy, spent, C.INFRA, 10.0)
    assert given_away + cycles < policy.no_progress_cycles or given_away == 0
