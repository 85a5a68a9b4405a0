"""Events and metric records go out and come back unchanged, and the disk never stops a run."""

import enum
import logging
from pathlib import Path

import pytest

from samite.telemetry.events import EventLog, EventRecord, read_events
from samite.telemetry.instruments import Severity
from samite.telemetry.records import MetricRecord, Point, read_metrics
from samite.telemetry.setup import setup_telemetry


def test_an_event_comes_back_as_it_was_emitted(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl", resource={"samite.run.name": "demo"})
    written = log.emit("samite.failure.detected", failure_class="infra", node="node-2", evidence=["exit 137"], fault_time=1.5)
    (read,), lines = read_events(log.path)
    assert lines.damaged == 0
    assert read.attributes == written.attributes
    assert (read.name, read.severity, read.resource) == (written.name, Severity.ERROR, {"samite.run.name": "demo"})
    assert read.time_unix_s == pytest.approx(written.time_unix_s, abs=1e-5)


@pytest.mark.parametrize("severity", ["warn", "WARN", Severity.WARN])
def test_the_emitter_may_choose_the_severity(tmp_path: Path, severity: str):
    assert EventLog(tmp_path / "e.jsonl").emit("samite.attempt.ended", severity, attempt_number=1).severity is Severity.WARN


class Level(enum.StrEnum):
    L2 = "L2"


def test_enums_paths_and_numbers_of_arrays_become_plain(tmp_path: Path):
    class Scalar:
        def item(self) -> float:
            return 2.5

    log = EventLog(tmp_path / "e.jsonl")
    log.emit("samite.restart.decided", restart_level=Level.L2, bundle_uri=tmp_path, value=Scalar(), data_window=(3, 9))
    (event,), _ = read_events(log.path)
    assert event.attributes == {
        "samite.restart.level": "L2",
        "samite.bundle.uri": str(tmp_path),
        "samite.value": 2.5,
        "samite.data.window": [3, 9],
    }


@pytest.mark.parametrize("text", ["[/red]", "<script>alert(1)</script>", "shape [2, 3] got [/A]", "a\nb\x1b[31m\0", "\ud800"])
def test_any_text_is_kept_verbatim(tmp_path: Path, text: str):
    log = EventLog(tmp_path / "e.jsonl")
    log.emit("samite.run.held", reason=text)
    (event,), lines = read_events(log.path)
    assert (event.attributes["samite.reason"], lines.damaged) == (text, 0)


def test_lines_that_are_not_events_are_counted_and_skipped(tmp_path: Path):
    log = EventLog(tmp_path / "e.jsonl")
    log.path.write_text('{"name": "no time"}\n{"time": "noon", "name": "x"}\n{"time": 1, "name": "future.event", "attributes": 3}\n')
    events, lines = read_events(log.path)
    assert [event.name for event in events] == ["future.event"]
    assert (events[0].attributes, lines.damaged) == ({}, 2)


def test_a_full_disk_costs_events_but_never_raises(caplog: pytest.LogCaptureFixture):
    log = EventLog(Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        log.emit("samite.run.held", reason="x")
        log.emit("samite.run.held", reason="x")
    assert log.dropped == 2
    assert len(caplog.records) == 1


def test_a_step_is_one_line_with_all_its_points(tmp_path: Path):
    stage = {"samite.stage.name": "extend", "samite.stage.kind": "Extend"}
    path = tmp_path / "metrics" / "rank-0.jsonl"
    telemetry = setup_telemetry(
        service="samite-trainer", run="demo", uid="u1", metrics_path=path, stage=stage, attempt="demo-s01-a2", incarnation=1
    )
    telemetry.record_step(7, [Point("samite.loss", 2.5, {"samite.loss.kind": "total"}), Point("samite.grad.norm", float("nan"))])
    telemetry.record("samite.checkpoint.age", 3)
    assert telemetry.shutdown()
    (step, single), lines = read_metrics(path)
    assert lines.damaged == 0
    assert (step.step, step.attempt, step.incarnation, step.stage) == (7, "demo-s01-a2", 1, stage)
    assert step.points[0] == Point("samite.loss", 2.5, {"samite.loss.kind": "total"})
    assert step.points[1].value != step.points[1].value
    assert (single.step, single.points) == (None, (Point("samite.checkpoint.age", 3.0),))


@pytest.mark.parametrize("point", [Point("samite.tokens", -1.0), Point("samite.unknown", 1.0), Point("samite.loss", 1.0, {"rank": "0"})])
def test_a_point_outside_the_registry_is_refused_and_nothing_of_its_step_is_written(tmp_path: Path, point: Point):
    telemetry = setup_telemetry(service="samite-trainer", run="r", uid="u", metrics_path=tmp_path / "m.jsonl")
    with pytest.raises(ValueError, match="samite"):
        telemetry.record_step(1, [Point("samite.loss", 1.0), point])
    assert not (tmp_path / "m.jsonl").exists()


@pytest.mark.parametrize("points", [None, 3, [[1, 2, 3]], [["samite.loss", "x", {}]], [["samite.loss", 1.0]], [["samite.loss", True, {}]]])
def test_points_that_make_no_sense_are_left_out(points: object):
    record = MetricRecord.from_document({"time": 1.0, "points": points, "step": "x", "stage": 4})
    assert record is None or (record.points, record.step, record.stage) == ((), None, {})


def test_an_event_without_a_log_file_is_still_checked():
    telemetry = setup_telemetry(service="samite-cli", run="r", uid="u")
    assert isinstance(telemetry.event("samite.run.held", reason="x"), EventRecord)
    with pytest.raises(ValueError, match="unknown event"):
        telemetry.event("samite.run.hold")
