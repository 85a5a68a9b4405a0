"""The report tells for each checkpoint how long writing it took and how long training waited."""

from pathlib import Path

from samite.report.run_data import CheckpointRow, read_run
from samite.report.tables import checkpoint_table
from samite.telemetry.events import EventLog


def test_write_and_stall_of_each_checkpoint_come_from_its_event_and_stay_when_the_catalogue_knows_it(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl", resource={"samite.run.name": "demo"})
    log.emit(
        "samite.checkpoint.committed",
        checkpoint_id="a",
        step_index=10,
        checkpoint_bytes=5,
        checkpoint_shards=2,
        duration=4.25,
        duration_stall=0.031,
    )
    log.emit("samite.checkpoint.verified", checkpoint_id="a", step_index=10)
    log.emit("samite.checkpoint.committed", checkpoint_id="b", step_index=20, checkpoint_bytes=5, checkpoint_shards=2, duration=4.5)
    told = {row.checkpoint_id: (row.duration_s, row.stall_s) for row in read_run(tmp_path).checkpoints}
    assert told == {"a": (4.25, 0.031), "b": (4.5, None)}
    rows = read_run(tmp_path, [CheckpointRow(checkpoint_id="a", step=10, state="verified", num_bytes=7)]).checkpoints
    text = str(checkpoint_table(rows, None))
    assert "Stall" in text
    assert "31 ms" in text
    assert "4.2 s" in text or "4.3 s" in text
