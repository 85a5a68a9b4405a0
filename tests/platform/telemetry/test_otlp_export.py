"""What a real OTLP receiver gets: names, units, types, events with their names, spans of the attempt's trace."""

import time
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from samite.telemetry.records import Point
from samite.telemetry.setup import Telemetry, setup_telemetry

STAGE = {"samite.stage.name": "extend", "samite.stage.kind": "Extend"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

pytestmark = pytest.mark.timeout(30)


def telemetry_to(endpoint: str, folder: Path, **options) -> Telemetry:
    return setup_telemetry(
        service="samite-trainer",
        run="demo",
        uid="u1",
        metrics_path=folder / "metrics.jsonl",
        events_path=folder / "events.jsonl",
        otlp_endpoint=endpoint,
        stage=STAGE,
        **options,
    )


def test_metrics_arrive_with_the_registered_name_unit_type_and_stage(receiver, tmp_path):
    with telemetry_to(receiver.endpoint, tmp_path) as telemetry:
        telemetry.record_step(1, [Point("samite.loss", 2.5, {"samite.loss.kind": "total"})])
        telemetry.record_step(2, [Point("samite.loss", 2.25, {"samite.loss.kind": "total"})])
    metric = receiver.metrics["samite.loss"]
    assert (metric.unit, metric.WhichOneof("data")) == ("{loss}", "gauge")
    assert receiver.points("samite.loss")["total", "Extend", "extend"].as_double == 2.25


def test_counters_add_up_and_are_cumulative(receiver, tmp_path):
    with telemetry_to(receiver.endpoint, tmp_path) as telemetry:
        for step in range(3):
            telemetry.record_step(step, [Point("samite.tokens", 100, {"samite.token.kind": "trained"})])
    sum_ = receiver.metrics["samite.tokens"].sum
    assert (sum_.is_monotonic, sum_.aggregation_temporality) == (True, AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE)
    assert sum_.data_points[0].as_double == 300


def test_a_present_count_is_set_and_not_added(receiver, tmp_path):
    with telemetry_to(receiver.endpoint, tmp_path) as telemetry:
        for running in (0, 1, 1, 0, 1):
            telemetry.record("samite.run.status", running, {"samite.run.state": "running"})
            telemetry.record("samite.run.status", 1 - running, {"samite.run.state": "held"})
    sum_ = receiver.metrics["samite.run.status"].sum
    assert not sum_.is_monotonic
    values = {key[0]: point.as_double for key, point in receiver.points("samite.run.status").items()}
    assert values == {"running": 1, "held": 0}


def test_durations_arrive_as_histograms_with_buckets_for_seconds(receiver, tmp_path):
    with telemetry_to(receiver.endpoint, tmp_path) as telemetry:
        for seconds in (0.02, 0.3, 400.0):
            telemetry.record("samite.step.duration", seconds, {"samite.step.part": "total"})
    point = receiver.metrics["samite.step.duration"].histogram.data_points[0]
    assert (point.count, list(point.explicit_bounds)[:2], point.bucket_counts[-1]) == (3, [0.01, 0.025], 1)


def test_the_resource_says_which_process_of_which_run(receiver, tmp_path):
    with telemetry_to(receiver.endpoint, tmp_path, instance="rank-0") as telemetry:
        telemetry.record("samite.step.number", 1)
    resource = receiver.resources[-1]
    expected = {"service.name": "samite-trainer", "service.instance.id": "rank-0", "samite.run.name": "demo", "samite.run.uid": "u1"}
    assert expected.items() <= resource.items()
    assert resource["service.version"]


def test_an_event_arrives_as_a_log_record_with_its_event_name(receiver, tmp_path):
    with telemetry_to(receiver.endpoint, tmp_path, trace_parent=TRACE) as telemetry:
        telemetry.event("samite.failure.detected", failure_class="infra", evidence=["exit 137"], time_unix_s=1000.5, message="[/red]")
    (record,) = receiver.logs
    assert (record.event_name, record.severity_text, record.severity_number) == ("samite.failure.detected", "ERROR", 17)
    assert (record.time_unix_nano, record.body.string_value) == (1000_500_000_000, "[/red]")
    assert record.trace_id.hex() == TRACE.split("-")[1]
    attributes = {a.key: a.value for a in record.attributes}
    assert attributes["samite.failure.class"].string_value == "infra"
    assert attributes["samite.evidence"].array_value.values[0].string_value == "exit 137"


def test_spans_belong_to_the_trace_of_the_attempt_and_nest(receiver, tmp_path):
    with (
        telemetry_to(receiver.endpoint, tmp_path, trace_parent=TRACE) as telemetry,
        telemetry.span("load"),
        telemetry.span("read", shard=3),
    ):
        pass
    spans = {span.name: span for span in receiver.spans}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE.split("-")[1]}
    assert spans["load"].parent_span_id.hex() == TRACE.split("-")[2]
    assert spans["read"].parent_span_id == spans["load"].span_id


def test_shutdown_says_that_everything_arrived_and_may_be_called_twice(receiver, tmp_path):
    telemetry = telemetry_to(receiver.endpoint, tmp_path)
    telemetry.record("samite.step.number", 1)
    telemetry.event("samite.run.held", reason="x")
    assert telemetry.shutdown()
    assert telemetry.shutdown()
    assert "dropped" not in (tmp_path / "metrics.jsonl").read_text()


def test_what_comes_after_shutdown_still_reaches_the_json_lines(receiver, tmp_path):
    telemetry = telemetry_to(receiver.endpoint, tmp_path)
    telemetry.shutdown()
    telemetry.record("samite.step.number", 1)
    telemetry.event("samite.run.held", reason="x")
    assert "samite.step.number" in (tmp_path / "metrics.jsonl").read_text()
    assert "samite.run.held" in (tmp_path / "events.jsonl").read_text()


def test_an_endpoint_without_a_scheme_is_plain_grpc(receiver, tmp_path):
    with telemetry_to(receiver.endpoint.removeprefix("http://"), tmp_path) as telemetry:
        telemetry.record("samite.step.number", 1)
    assert "samite.step.number" in receiver.metrics


def test_delivery_resumes_when_the_receiver_comes_back(receiver, tmp_path, caplog):
    receiver.refuse_after_s = 3600
    telemetry = telemetry_to(receiver.endpoint, tmp_path, export_interval_s=0.1)
    telemetry.record("samite.step.number", 1)
    _wait_until(lambda: caplog.records)
    receiver.refuse_after_s = None
    telemetry.record("samite.step.number", 2)
    _wait_until(lambda: "samite.telemetry.dropped" in receiver.metrics)
    telemetry.shutdown()
    assert next(iter(receiver.points("samite.step.number").values())).as_double == 2
    assert receiver.points("samite.telemetry.dropped")["metrics",].as_double >= 1


def _wait_until(condition, limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
