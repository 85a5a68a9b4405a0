"""Metrics by registered names, told in Prometheus' words, forgotten with their run."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from samite_operators.instruments import Instruments, RunLabels

RUN = RunLabels(namespace="team", name="demo", uid="u-1")


def families(instruments: Instruments) -> dict[str, dict[tuple[str, ...], float]]:
    found = {}
    for family in text_string_to_metric_families(instruments.exposition()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(f"{k}={v}" for k, v in sorted(sample.labels.items()))] = sample.value
    return found


def test_counters_add_up_and_gauges_are_replaced():
    instruments = Instruments()
    for _ in range(3):
        instruments.record("samite.operator.turns", 1, {"samite.turn.outcome": "done"})
        instruments.record("samite.operator.run.count", 7)
    found = families(instruments)
    assert found["samite_operator_turns_total"] == {("samite_turn_outcome=done",): 3.0}
    assert found["samite_operator_run_count"] == {(): 7.0}


def test_a_histogram_counts_into_its_buckets():
    instruments = Instruments()
    for seconds in (0.004, 0.005, 0.2, 99.0):
        instruments.record("samite.operator.turn.duration", seconds)
    found = families(instruments)
    buckets = found["samite_operator_turn_duration_seconds_bucket"]
    assert buckets[("le=0.005",)] == 2
    assert buckets[("le=0.25",)] == 3
    assert buckets[("le=+Inf",)] == 4
    assert found["samite_operator_turn_duration_seconds_count"][()] == 4
    assert found["samite_operator_turn_duration_seconds_sum"][()] == pytest.approx(99.209)


def test_values_of_a_run_carry_its_name_and_go_with_it():
    instruments = Instruments()
    instruments.record("samite.ettr", 0.9, run=RUN)
    instruments.record("samite.operator.run.count", 1)
    labels = ("k8s_namespace_name=team", "samite_run_name=demo", "samite_run_uid=u-1")
    assert families(instruments)["samite_ettr_ratio"] == {labels: 0.9}
    instruments.forget("u-1")
    assert set(families(instruments)) == {"samite_operator_run_count"}


def test_label_values_are_escaped():
    instruments = Instruments()
    instruments.record("samite.failures", 1, {"samite.failure.class": "infra", "error.type": 'a "b"\n\\c'})
    assert "error_type=" + 'a "b"\n\\c' in next(iter(families(instruments)["samite_failures_total"]))


def test_a_name_or_value_outside_the_registry_is_refused():
    instruments = Instruments()
    with pytest.raises(ValueError, match="unknown metric"):
        instruments.record("samite.operator.turnz", 1)
    with pytest.raises(ValueError, match="must be one of"):
        instruments.record("samite.operator.turns", 1, {"samite.turn.outcome": "fine"})


def test_a_timed_body_is_recorded_even_if_it_raises():
    instruments = Instruments()
    with pytest.raises(KeyError), instruments.timed("samite.operator.turn.duration"):
        raise KeyError
    assert families(instruments)["samite_operator_turn_duration_seconds_count"][()] == 1
