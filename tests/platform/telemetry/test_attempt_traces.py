"""One trace for each attempt, the same for engine and trainer without a word between them, each linked to the one before."""

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from samite.telemetry.setup import setup_telemetry
from samite.telemetry.traces import SpanRecord, ids_of, trace_parent_of

pytestmark = pytest.mark.timeout(60)
FIRST, SECOND = trace_parent_of("u1", "demo-s00-a1"), trace_parent_of("u1", "demo-s00-a2")


def telemetry_to(endpoint: str, service: str, attempt: str = ""):
    return setup_telemetry(service=service, run="demo", uid="u1", otlp_endpoint=endpoint, attempt=attempt)


def ids(span) -> tuple[str, str, str]:
    return span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()


def test_the_ids_follow_from_run_and_submission():
    assert trace_parent_of("u1", "demo-s00-a1") == FIRST
    assert len({FIRST, SECOND, trace_parent_of("u2", "demo-s00-a1")}) == 3
    assert FIRST.startswith("00-")
    assert FIRST.endswith("-01")
    assert all(ids_of(FIRST))


def test_a_traceparent_that_is_none_is_refused():
    with pytest.raises(ValueError, match="traceparent"):
        ids_of("00-12-34-01")


def test_spans_of_the_trainer_lie_below_the_root_that_the_engine_sends_later(receiver):
    with telemetry_to(receiver.endpoint, "samite-trainer", "demo-s00-a1") as trainer, trainer.span("train"), trainer.span("save"):
        pass
    with telemetry_to(receiver.endpoint, "samite-supervisor") as engine:
        engine.finished_span(
            SpanRecord(
                name="attempt",
                trace_parent=FIRST,
                start_unix_s=100.0,
                end_unix_s=160.5,
                attributes={"samite.attempt.number": 1},
                is_root=True,
            )
        )
        engine.finished_span(SpanRecord(name="start", trace_parent=FIRST, start_unix_s=101.0, end_unix_s=110.0))
    spans = {span.name: span for span in receiver.spans}
    trace, root = FIRST.split("-")[1:3]
    assert ids(spans["attempt"]) == (trace, root, "")
    assert ids(spans["start"])[::2] == (trace, root)
    assert ids(spans["train"])[::2] == (trace, root)
    assert ids(spans["save"]) == (trace, spans["save"].span_id.hex(), spans["train"].span_id.hex())
    assert (spans["attempt"].start_time_unix_nano, spans["attempt"].end_time_unix_nano) == (100 * 10**9, int(160.5e9))


def test_an_attempt_links_to_the_one_before_and_says_how_it_failed(receiver):
    with telemetry_to(receiver.endpoint, "samite-supervisor") as engine:
        engine.finished_span(
            SpanRecord(name="attempt", trace_parent=SECOND, start_unix_s=1.0, end_unix_s=2.0, is_root=True, link=FIRST, failed="NodeLost")
        )
    (span,) = receiver.spans
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [tuple(FIRST.split("-")[1:3])]
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "NodeLost")
    assert {a.key: a.value.string_value for a in span.attributes}["error.type"] == "NodeLost"


def test_an_exception_leaves_its_type_and_never_its_message(receiver):
    with telemetry_to(receiver.endpoint, "samite-trainer", "demo-s00-a1") as trainer, pytest.raises(RuntimeError), trainer.span("load"):
        raise RuntimeError("password=hunter2")
    (span,) = receiver.spans
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "RuntimeError")
    assert "hunter2" not in str(span)


def test_without_an_endpoint_a_span_costs_nothing(tmp_path):
    with setup_telemetry(service="samite-supervisor", run="demo", uid="u1", events_path=tmp_path / "events.jsonl") as telemetry:
        telemetry.finished_span(SpanRecord(name="attempt", trace_parent=FIRST, start_unix_s=1.0, end_unix_s=2.0, is_root=True))
        with telemetry.span("train"):
            pass
    assert list(tmp_path.iterdir()) == [], "no file, and nowhere else to go"


def test_events_carry_the_trace_of_their_attempt(receiver):
    with telemetry_to(receiver.endpoint, "samite-trainer", "demo-s00-a1") as trainer:
        trainer.event("samite.training.started", step_index=1)
    assert receiver.logs[0].trace_id.hex() == FIRST.split("-")[1]
