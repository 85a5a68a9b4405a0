"""Spans of an attempt from two memories in a row: once for each attempt, with its cluster if that was made for it."""

from dataclasses import replace

from samite.engines.local.attempt_spans import AttemptSpans
from samite.lifecycle.memory import AttemptMemory, ClusterMemory, FailureRecord, Memory
from samite.lifecycle.phases import FailureClass
from samite.telemetry.traces import trace_parent_of

CLUSTER = ClusterMemory(cluster_id="c1", stage_index=0, shape="", nodes=("node-1",), since_s=100.0)
LIVE = AttemptMemory(
    submission_id="demo-s00-a1",
    attempt=1,
    stage_index=0,
    cluster_id="c1",
    num_workers=2,
    num_nodes=2,
    worker_group_restarts=0,
    resume="",
    since_s=110.0,
    first_step_at_s=125.0,
    last_step=40,
)
TRAINING = Memory(now_s=150.0, cluster=CLUSTER, live=LIVE)
FAILURE = FailureRecord(failure_class=FailureClass.INFRA, error_type="NodeLost", message="gone", submission_id="demo-s00-a1")


def names(spans) -> dict[str, tuple[float, float]]:
    return {span.name: (span.start_unix_s, span.end_unix_s) for span in spans}


def test_an_attempt_is_told_once_when_it_is_over():
    spans = AttemptSpans("u")
    assert spans.take(TRAINING) == []
    assert spans.take(replace(TRAINING, now_s=160.0)) == []
    ended = spans.take(replace(TRAINING, now_s=161.0, live=None))
    assert names(ended) == {"attempt": (100.0, 161.0), "provision": (100.0, 110.0), "start": (110.0, 125.0)}
    assert {span.trace_parent for span in ended} == {trace_parent_of("u", "demo-s00-a1")}
    assert [span.is_root for span in ended] == [True, False, False]
    assert spans.take(replace(TRAINING, now_s=162.0, live=None)) == []


def test_the_next_attempt_links_back_and_has_no_cluster_of_its_own():
    spans = AttemptSpans("u")
    spans.take(TRAINING)
    (first, *_) = spans.take(replace(TRAINING, now_s=161.0, live=None, last_failure=FAILURE))
    assert (first.link, first.failed) == ("", "NodeLost")
    second = replace(LIVE, submission_id="demo-s00-a2", attempt=2, since_s=170.0, first_step_at_s=None)
    spans.take(replace(TRAINING, now_s=170.0, live=second, attempt_ended_at_s=161.0, last_failure=FAILURE))
    ended = spans.take(replace(TRAINING, now_s=180.0, live=None, attempt_ended_at_s=180.0, last_failure=FAILURE))
    assert names(ended) == {"attempt": (170.0, 180.0)}
    assert ended[0].link == trace_parent_of("u", "demo-s00-a1")
    assert ended[0].failed == ""


def test_a_submission_that_follows_at_once_ends_the_one_before():
    spans = AttemptSpans("u")
    spans.take(TRAINING)
    after = replace(LIVE, submission_id="demo-s01-a2", attempt=2, since_s=161.0)
    assert spans.take(replace(TRAINING, now_s=161.0, live=after))[0].attributes["samite.attempt.submission"] == "demo-s00-a1"


def test_a_supervisor_that_begins_with_a_run_at_rest_tells_nothing():
    assert AttemptSpans("u").take(Memory()) == []
