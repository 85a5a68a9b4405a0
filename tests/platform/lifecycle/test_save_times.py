"""How long the newest save took, and how long training waited for it, stand in the status, whatever becomes of the attempt that told it."""

from samite.lifecycle import Phase
from samite.lifecycle.simulation import small_run
from samite.lifecycle.simulation.view import SAVE_S, SAVE_STALL_S


def test_the_newest_save_is_remembered_until_the_end_of_the_run():
    engine = small_run(checkpoint_every=5)
    before = engine.turn().status
    assert (before.last_save_s, before.last_save_stall_s) == (None, None)
    status = engine.run_until(Phase.SUCCEEDED).status
    assert (status.last_save_s, status.last_save_stall_s) == (SAVE_S, SAVE_STALL_S)
    assert status.to_document()["lastSaveStallS"] == SAVE_STALL_S
