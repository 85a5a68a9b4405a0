"""The hang rule: limits by what a rank is doing, learning, second facts."""

from dataclasses import replace

import pytest

from samite.lifecycle import ProcessState, RankObserved, Source, StorageObserved
from samite.lifecycle.evidence import sufficient
from samite.lifecycle.hang import LEARNING_WINDOW_STEPS, limits_s, stillness
from samite.lifecycle.memory import AttemptMemory
from samite.lifecycle.plan import DetectionPolicy
from samite.lifecycle.ranks import look_at_ranks
from samite.spec.attempt import Heartbeat

POLICY = DetectionPolicy()
LEARNT = AttemptMemory(
    submission_id="a1", attempt=1, stage_index=0, cluster_id="c", num_workers=4, num_nodes=4, worker_group_restarts=2, resume="none",
    start_step=0, last_step=1000,
)  # fmt: skip


def ranks(age_s: float, *, phase: str = "training", median_s: float = 1.0, count: int = 4, **more) -> list[RankObserved]:
    return [
        RankObserved(rank=number, node=f"n{number}", submission_id="a1", phase=phase, progress_age_s=age_s, step=1000, step_median_s=median_s, **more)
        for number in range(count)
    ]  # fmt: skip


def judged(seen: list[RankObserved], live: AttemptMemory = LEARNT, *, storage: StorageObserved | None = None):
    return stillness(look_at_ranks(seen, live), live, storage, POLICY)


@pytest.mark.parametrize(
    ("phase", "limit"),
    [("starting", 600), ("loading", 900), ("first_step", 900), ("training", 120), ("evaluating", 900), ("saving", 900), ("finishing", 900)],
)
def test_each_phase_has_its_limit(phase: str, limit: float):
    assert not judged(ranks(limit - 0.5, phase=phase)).over_limit
    assert judged(ranks(limit + 0.5, phase=phase)).over_limit


@pytest.mark.parametrize(("median", "limit"), [(0.1, 120.0), (24.0, 120.0), (30.0, 150.0), (600.0, 3000.0)])
def test_the_limit_is_the_floor_or_five_median_steps(median: float, limit: float):
    assert limits_s(LEARNT, median, POLICY)["training"] == limit


@pytest.mark.parametrize("windows", [0, 1, 2, 3])
def test_until_three_clean_windows_only_the_first_step_limit_counts(windows: int):
    live = replace(LEARNT, start_step=100, last_step=100 + windows * LEARNING_WINDOW_STEPS)
    assert limits_s(live, 1.0, POLICY)["training"] == (120.0 if windows >= 3 else 900.0)


def test_one_old_heartbeat_among_young_ones_is_no_hang():
    seen = ranks(1.0)
    assert not judged([replace(seen[0], progress_age_s=5000.0), *seen[1:]]).over_limit


def test_without_any_heartbeat_nothing_is_known():
    assert not judged([]).over_limit
    assert not judged([RankObserved(rank=0, submission_id="a1")]).over_limit


def test_heartbeats_of_another_submission_and_of_an_older_incarnation_do_not_count():
    old = [replace(rank, submission_id="a0") for rank in ranks(5000.0)]
    earlier = ranks(5000.0)
    now = [replace(rank, incarnation=1) for rank in ranks(1.0, count=2)]
    assert not judged([*old, *earlier, *now]).over_limit


def test_a_heartbeat_alone_is_one_fact():
    assert not sufficient(judged(ranks(500.0)).evidence)
    assert not sufficient(judged(ranks(500.0, process=ProcessState.ALIVE)).evidence)


@pytest.mark.parametrize(("share", "enough"), [(0.0, True), (0.04, True), (0.06, False), (1.0, False)])
def test_idle_processes_are_the_second_fact(share: float, enough: bool):
    found = judged(ranks(500.0, cpu_share=share, cpu_window_s=10.0))
    assert sufficient(found.evidence) is enough


def test_a_short_measurement_of_the_cpu_does_not_count():
    assert not sufficient(judged(ranks(500.0, cpu_share=0.0, cpu_window_s=1.0)).evidence)


def test_a_busy_rank_among_idle_ones_is_the_suspect():
    seen = ranks(500.0, cpu_share=0.0, cpu_window_s=10.0)
    found = judged([seen[0], replace(seen[1], cpu_share=1.0), *seen[2:]])
    assert sufficient(found.evidence)
    assert found.suspects == (1,)


def test_half_of_the_ranks_idle_is_enough_only_after_twice_the_limit():
    seen = ranks(130.0, cpu_share=0.0, cpu_window_s=10.0, count=2)
    half = [seen[0], replace(seen[1], cpu_share=1.0)]
    assert not sufficient(judged(half).evidence)
    assert sufficient(judged([replace(rank, progress_age_s=250.0) for rank in half]).evidence)


def test_devices_at_rest_are_the_second_fact():
    found = judged(ranks(500.0, device_share=0.01))
    assert {item.source for item in found.evidence} == {Source.HEARTBEAT, Source.DEVICE}
    assert sufficient(found.evidence)


def test_a_minority_of_stacks_is_the_second_fact_and_names_the_ranks():
    seen = ranks(500.0, stack_group="all_reduce")
    found = judged([*seen[:3], replace(seen[3], stack_group="load_batch")])
    assert sufficient(found.evidence)
    assert found.suspects == (3,)


def test_stacks_without_a_minority_say_nothing():
    seen = ranks(500.0, stack_group="all_reduce", count=2)
    assert not sufficient(judged([seen[0], replace(seen[1], stack_group="load")]).evidence)
    assert not sufficient(judged(seen).evidence)


def test_saving_while_the_storage_fails_is_a_storage_stall():
    assert judged(ranks(5000.0, phase="saving"), storage=StorageObserved(failing_for_s=100.0)).storage
    assert not judged(ranks(5000.0, phase="saving"), storage=StorageObserved()).storage
    assert not judged(ranks(5000.0, phase="training"), storage=StorageObserved(failing_for_s=100.0)).storage


def test_the_oldest_heartbeat_is_the_suspect_when_nothing_else_is_known():
    seen = ranks(500.0)
    assert judged([*seen[:2], replace(seen[2], progress_age_s=900.0), seen[3]]).suspects == (2,)


def test_a_heartbeat_from_before_a_reboot_belongs_to_a_process_that_is_gone():
    heartbeat = Heartbeat(
        rank=0, node="n0", pid=1, submission_id="a1", incarnation=0, step=3, tokens=30, phase="training",
        monotonic_s=5000.0, time_unix_s=0.0,
    )  # fmt: skip
    assert RankObserved.from_heartbeat(heartbeat, monotonic_s=12.0).process is ProcessState.GONE
    alive = RankObserved.from_heartbeat(heartbeat, monotonic_s=5003.0, process=ProcessState.ALIVE)
    assert (alive.process, alive.progress_age_s, alive.step) == (ProcessState.ALIVE, 3.0, 3)
