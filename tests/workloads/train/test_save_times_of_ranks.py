"""What a rank's heartbeat and the events say of the newest save: how long it took, and how long of that training waited."""

import json
from pathlib import Path


def test_a_rank_tells_how_long_its_newest_save_took_and_how_long_training_waited(new_attempt, run_attempt, result_of, events_of):
    attempt = new_attempt(ranks=2)
    assert run_attempt(attempt) == [0, 0]
    for rank in (0, 1):
        beat = json.loads((Path(attempt.run_folder) / "heartbeats" / f"rank-{rank}.json").read_text())
        assert beat["checkpoint_step"] == result_of(attempt).step
        assert 0.0 < beat["save_stall_s"] <= beat["save_s"] < 60.0
    told = events_of(attempt, "samite.checkpoint.committed")
    assert told
    for event in told:
        assert 0.0 < event["attributes"]["samite.duration.stall"] <= event["attributes"]["samite.duration"]
