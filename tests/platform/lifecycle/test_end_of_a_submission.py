"""When a stopped submission is over, where the heartbeats of its ranks travel through its driver and so end with it."""

from dataclasses import replace

import pytest

from samite.lifecycle import JobStatus, Phase, ProcessState, Request, RequestKind
from samite.lifecycle.facts import ORPHAN_SILENCE_S, SUBMIT_GRACE_S
from samite.lifecycle.observed import ENDED, Observed
from samite.lifecycle.simulation import Engine, impatient, small_plan, small_run

PHASES = ["starting", "loading", "first_step", "training", "evaluating", "saving", "finishing"]


def stopping() -> Engine:
    """A run whose submission was asked to stop by a person."""
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    engine.run(3)
    wish = Request(request_id="r", kind=RequestKind.RESTART)
    engine.turn(replace(engine.look(), requests=(wish,)))
    assert engine.memory.phase is Phase.RECOVERING
    return engine


def told(engine: Engine, *, status: JobStatus, phase: str, actors_left: int | None, heard_ago_s: float) -> Observed:
    """Ray's word about the job, and last signs of its ranks that nobody can look at."""
    seen, live = engine.look(), engine.memory.live
    assert live is not None
    return replace(
        seen,
        attempts=tuple(
            replace(item, job_status=status, actors_left=actors_left) if item.submission_id == live.submission_id else item
            for item in seen.attempts
        ),
        ranks=tuple(replace(rank, process=None, phase=phase, progress_age_s=heard_ago_s) for rank in seen.ranks),
    )


@pytest.mark.parametrize("status", sorted(ENDED))
@pytest.mark.parametrize("phase", PHASES)
def test_a_job_that_ended_is_over_at_once_if_ray_holds_none_of_its_actors(phase: str, status: JobStatus):
    engine = stopping()
    first = engine.memory.live.submission_id
    engine.world.tick()
    decision = engine.turn(told(engine, status=status, phase=phase, actors_left=0, heard_ago_s=1.0), apply=0)
    assert decision.memory.live is None or decision.memory.live.submission_id != first


@pytest.mark.parametrize("actors_left", [None, 1, 7])
@pytest.mark.parametrize("phase", PHASES)
def test_a_job_that_ended_is_waited_for_while_its_ranks_may_live(phase: str, actors_left: int | None):
    engine = stopping()
    first = engine.memory.live.submission_id
    engine.world.tick()
    decision = engine.turn(told(engine, status=JobStatus.STOPPED, phase=phase, actors_left=actors_left, heard_ago_s=1.0), apply=0)
    assert decision.memory.live is not None
    assert decision.memory.live.submission_id == first


@pytest.mark.parametrize("phase", PHASES)
def test_without_an_answer_of_ray_silence_decides_in_the_end(phase: str):
    engine = stopping()
    first = engine.memory.live.submission_id
    engine.world.tick()
    seen = told(engine, status=JobStatus.STOPPED, phase=phase, actors_left=None, heard_ago_s=ORPHAN_SILENCE_S + 1.0)
    decision = engine.turn(seen, apply=0)
    assert decision.memory.live is None or decision.memory.live.submission_id != first


@pytest.mark.parametrize("status", [JobStatus.PENDING, JobStatus.RUNNING])
def test_no_actor_says_nothing_about_a_job_that_has_not_ended(status: JobStatus):
    engine = stopping()
    first = engine.memory.live.submission_id
    engine.world.tick()
    decision = engine.turn(told(engine, status=status, phase="training", actors_left=0, heard_ago_s=1.0), apply=0)
    assert decision.memory.live is not None
    assert decision.memory.live.submission_id == first


@pytest.mark.parametrize(("age_s", "ended"), [(0.0, True), (SUBMIT_GRACE_S, True), (39.0, False), (500.0, False)])
def test_an_answer_from_before_a_submission_arrived_does_not_end_it_although_its_ranks_are_dead(age_s: float, ended: bool):
    engine = stopping()
    first = engine.memory.live.submission_id
    engine.world.now = engine.memory.live.asked_at_s + 40.0
    seen = engine.look()
    gone = replace(
        seen,
        attempts=tuple(replace(item, job_status=JobStatus.NOT_FOUND, job_age_s=age_s) for item in seen.attempts),
        ranks=tuple(replace(rank, process=ProcessState.GONE) for rank in seen.ranks),
    )
    decision = engine.turn(gone, apply=0)
    assert (decision.memory.live is None or decision.memory.live.submission_id != first) is ended
