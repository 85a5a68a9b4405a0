"""How long the newest save took, and how long training waited for it: from a rank's heartbeat through the Lease to the status of a run on Kubernetes."""

from typing import Any

from samite.engines.kuberay.heartbeats import ranks_of
from samite.lifecycle.simulation.view import SAVE_S, SAVE_STALL_S
from samite.spec.attempt import Heartbeat
from samite.spec.lease import HEARTBEATS, SUBMISSION, RankSign, heartbeats_annotation, read_lease


def test_the_newest_save_and_its_stall_are_in_the_status_until_the_end_and_after_it(operator: Any):
    operator.until("Succeeded")
    assert (operator.status["lastSaveS"], operator.status["lastSaveStallS"]) == (SAVE_S, SAVE_STALL_S)


def test_a_run_that_has_saved_nothing_yet_says_nothing_of_it(operator: Any):
    operator.until("Provisioning")
    assert "lastSaveS" not in operator.status


def test_a_rank_tells_of_its_save_through_the_lease_and_an_older_rank_that_says_nothing_is_understood():
    facts = {
        "rank": 0,
        "node": "n",
        "pid": 1,
        "submission_id": "demo-s00-a1",
        "incarnation": 0,
        "step": 5,
        "tokens": 9,
        "phase": "training",
    }
    beat = Heartbeat(**facts, monotonic_s=90.0, time_unix_s=0.0, checkpoint_step=4, save_s=3.5, save_stall_s=0.25)
    annotation = heartbeats_annotation([RankSign(heartbeat=beat, heard_at_s=95.0)], now_s=100.0)
    for text, wanted in ((annotation, (3.5, 0.25)), (annotation.replace("save_", "other_"), (0.0, 0.0))):
        (rank,) = ranks_of(read_lease({HEARTBEATS: text, SUBMISSION: "demo-s00-a1"}, seen_at_s=100.0), {}, 100.0)
        assert (rank.save_s, rank.save_stall_s) == wanted
