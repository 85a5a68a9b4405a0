"""Who sees a failure is not to blame for it, and the status tells the level at which it was answered in the end."""

import pytest

from samite.lifecycle import FailureClass, Phase
from samite.lifecycle.memory import FailureRecord
from samite.lifecycle.observed import Observed
from samite.lifecycle.respond import respond
from samite.lifecycle.signatures import SIGNATURES, WITNESSES
from samite.lifecycle.simulation import faults, impatient, small_plan, small_run
from samite.lifecycle.turn import Turn


def blamed_after(error_type: str, failure_class: FailureClass) -> set[str]:
    """Machines with strikes after a failure of this kind that rank 0 on n0 reported."""
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    turn = Turn(engine.plan, Observed(at_s=engine.world.now), engine.memory, engine.world.now)
    live = engine.memory.live.submission_id
    failure = FailureRecord(
        failure_class=failure_class, error_type=error_type, message="m", ranks=(0,), nodes=("n0",), submission_id=live, step=3
    )
    respond(turn, failure, over=False)
    return {item.node for item in turn.memory.blame if item.strikes}


@pytest.mark.parametrize("error_type", sorted(WITNESSES))
@pytest.mark.parametrize("failure_class", [FailureClass.INFRA, FailureClass.HANG])
def test_a_rank_that_lost_its_peer_is_a_witness_and_no_suspect(error_type: str, failure_class: FailureClass):
    assert blamed_after(error_type, failure_class) == set()


@pytest.mark.parametrize(
    "error_type", sorted({item.error_type for item in SIGNATURES if item.failure_class is FailureClass.INFRA} - WITNESSES)
)
def test_the_first_to_fail_of_itself_gets_its_strike(error_type: str):
    assert blamed_after(error_type, FailureClass.INFRA) == {"n0"}


def test_the_last_failure_shows_the_level_that_it_took_and_not_the_first_that_was_tried():
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    engine.run(6)
    engine.world.ray_reacts_s = 1e9  # Ray's own restart of the group never comes
    faults.kill_rank(engine.world, 1)
    decision = engine.run(400)
    levels = [event.attributes["restart_level"] for event in engine.events if event.name == "samite.restart.decided"]
    assert levels[0] == "L1"
    assert levels[-1] != "L1"
    assert f"L{decision.status.last_failure.level}" == levels[-1]
