"""Events are counted by whoever emits them, and named in Prometheus as a real receiver would name them."""

import pytest

from samite.telemetry import names
from samite.telemetry.counted import points_of_event
from samite.telemetry.metrics import ALL_METRICS
from samite.telemetry.prometheus import labels_of, prometheus_name, series, series_names
from samite.telemetry.setup import setup_telemetry


@pytest.mark.parametrize("name", names.EVENTS)
def test_every_event_is_counted_by_its_name(name: str):
    first, *_ = [point.checked() for point in points_of_event(name, {})]
    assert (first.name, first.value, first.attributes) == ("samite.events", 1.0, {"samite.event.name": name})


def test_ended_attempts_damaged_checkpoints_and_committed_bytes_follow_from_their_events():
    ended = points_of_event("samite.attempt.ended", {"samite.attempt.outcome": "stopped"})[1].checked()
    assert (ended.name, ended.attributes) == ("samite.attempts", {"samite.attempt.outcome": "stopped"})
    assert points_of_event("samite.attempt.ended", {"samite.attempt.outcome": "lost"})[1].attributes == {"samite.attempt.outcome": "failed"}
    assert points_of_event("samite.checkpoint.verify.failed", {})[1].checked().name == "samite.checkpoint.verify.failures"
    written = points_of_event("samite.checkpoint.committed", {"samite.checkpoint.bytes": 4096})[1].checked()
    assert (written.name, written.value, written.attributes["samite.io.direction"]) == ("samite.checkpoint.io", 4096.0, "write")
    assert len(points_of_event("samite.checkpoint.committed", {})) == 1


def test_counted_events_arrive_over_otlp_and_leave_the_run_folder_alone(receiver, tmp_path):
    with setup_telemetry(
        service="samite-supervisor",
        run="demo",
        uid="u",
        metrics_path=tmp_path / "metrics.jsonl",
        events_path=tmp_path / "events.jsonl",
        otlp_endpoint=receiver.endpoint,
    ) as telemetry:
        telemetry.event("samite.run.held", reason="x")
        telemetry.event("samite.run.held", reason="y")
    assert {key: point.as_double for key, point in receiver.points("samite.events").items()} == {("samite.run.held",): 2.0}
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("samite.step.duration", "samite_step_duration_seconds"),
        ("samite.tokens", "samite_tokens_total"),
        ("samite.time", "samite_time_seconds_total"),
        ("samite.checkpoint.io", "samite_checkpoint_io_bytes_total"),
        ("samite.ettr", "samite_ettr_ratio"),
        ("samite.loss", "samite_loss"),
        ("samite.run.status", "samite_run_status"),
    ],
)
def test_a_metric_has_the_name_that_prometheus_gives_it(metric: str, expected: str):
    assert prometheus_name(names.metric(metric)) == expected


def test_no_two_metrics_share_a_series():
    assert len(series()) == sum(len(series_names(metric)) for metric in ALL_METRICS)


def test_a_series_may_carry_the_labels_of_metric_stage_resource_and_target():
    labels = labels_of(names.metric("samite.step.duration"))
    assert {"samite_step_part", "samite_stage_name", "samite_run_name", "instance", "le"} <= labels
    assert "samite_loss_kind" not in labels
