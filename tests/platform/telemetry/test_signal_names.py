"""The registry keeps OpenTelemetry's naming rules, and refuses what it does not know."""

import re

import pytest

from samite.telemetry import names
from samite.telemetry.agent_metrics import RANK_METRICS
from samite.telemetry.attributes import ALL_ATTRIBUTES, METRIC_ATTRIBUTES, RESOURCE_ATTRIBUTES
from samite.telemetry.event_names import ALL_EVENTS
from samite.telemetry.instruments import Instrument, Severity
from samite.telemetry.metrics import ALL_METRICS

NAME = re.compile(r"^[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+$")
UNITS_IN_NAMES = {"seconds", "second", "s", "ms", "bytes", "byte", "by", "total", "percent", "ratio"}
FOREIGN_ROOTS = {"error", "service", "process", "system", "k8s", "hw", "gen_ai"}


@pytest.mark.parametrize("name", [*names.METRICS, *names.EVENTS, *names.ATTRIBUTES])
def test_a_name_is_lower_case_dotted_words(name: str):
    assert NAME.match(name), name


@pytest.mark.parametrize("name", [*names.METRICS, *names.EVENTS, *names.ATTRIBUTES])
def test_a_name_lies_under_our_root_or_in_a_convention_that_exists(name: str):
    assert name.split(".")[0] in {"samite", *FOREIGN_ROOTS}


@pytest.mark.parametrize("name", names.METRICS)
def test_a_metric_name_holds_no_unit(name: str):
    assert not UNITS_IN_NAMES & set(name.split("."))


@pytest.mark.parametrize("entry", ALL_METRICS, ids=lambda entry: entry.name)
def test_a_unit_is_ucum(entry: names.Metric):
    assert entry.unit in {"s", "By", "1"} or re.match(r"^\{[a-z0-9]+\}$", entry.unit)


@pytest.mark.parametrize("entry", ALL_METRICS, ids=lambda entry: entry.name)
def test_only_counters_of_things_are_plural_and_only_present_counts_end_in_count(entry: names.Metric):
    last = entry.name.split(".")[-1]
    assert last.endswith("count") <= (entry.instrument is Instrument.UP_DOWN_COUNTER)
    if entry.instrument is Instrument.UP_DOWN_COUNTER:
        assert last in {"count", "status", "usage"}
    if last.endswith("s") and last not in {"status", "loss", "rms", "progress", "memoryless"}:
        assert entry.instrument is Instrument.COUNTER


@pytest.mark.parametrize("entry", ALL_METRICS, ids=lambda entry: entry.name)
def test_reserved_last_words_keep_their_meaning(entry: names.Metric):
    last = entry.name.split(".")[-1]
    if last == "duration":
        assert (entry.instrument, entry.unit) == (Instrument.HISTOGRAM, "s")
        assert entry.buckets == tuple(sorted(entry.buckets)) != ()
    if last == "utilization":
        assert entry.unit == "1"
    if last in {"usage", "limit"} and "memory" in entry.name:
        assert entry.unit == "By"


@pytest.mark.parametrize("entry", ALL_METRICS, ids=lambda entry: entry.name)
def test_a_metric_carries_only_metric_attributes_and_never_the_resource(entry: names.Metric):
    keys = {attribute.name for attribute in METRIC_ATTRIBUTES}
    assert set(entry.attributes) <= keys
    assert not set(entry.attributes) & {attribute.name for attribute in RESOURCE_ATTRIBUTES}


@pytest.mark.parametrize("entry", ALL_METRICS, ids=lambda entry: entry.name)
def test_a_metric_stays_within_its_number_of_series(entry: names.Metric):
    series = 1
    for key in entry.attributes:
        series *= len(names.ATTRIBUTES[key].values) or 100
    assert series <= 2000, "the SDK keeps at most 2,000 attribute sets per metric"


def test_no_step_rank_attempt_or_checkpoint_id_is_a_metric_attribute():
    keys = {key for entry in ALL_METRICS if entry not in RANK_METRICS for key in entry.attributes}
    assert not keys & {"samite.step.index", "samite.rank", "samite.attempt.number", "samite.attempt.submission", "samite.checkpoint.id"}


def test_at_most_five_families_exist_once_per_rank_and_the_node_agent_tells_them_all():
    assert len(RANK_METRICS) <= 5
    assert {(entry.source, entry.attributes) for entry in RANK_METRICS} == {("agent", ("samite.rank",))}


@pytest.mark.parametrize("entry", ALL_EVENTS, ids=lambda entry: entry.name)
def test_the_attributes_of_an_event_are_registered(entry: names.Event):
    assert set(entry.attributes) <= set(names.ATTRIBUTES)
    assert entry.severity in Severity


def test_no_name_is_registered_twice():
    assert len(ALL_METRICS) == len(names.METRICS)
    assert len(ALL_EVENTS) == len(names.EVENTS)
    assert len(ALL_ATTRIBUTES) == len(names.ATTRIBUTES)


def test_no_attribute_is_also_a_metric():
    assert not set(names.ATTRIBUTES) & set(names.METRICS)


def test_keywords_of_attributes_are_identifiers_and_unique():
    keywords = [attribute.keyword for attribute in ALL_ATTRIBUTES]
    assert len(set(keywords)) == len(keywords)
    assert all(keyword.isidentifier() for keyword in keywords)
    assert not {"severity", "time_unix_s"} & set(keywords)


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"unknown metric 'samite.los'; did you mean samite.loss\?"):
        names.metric("samite.los")
    with pytest.raises(ValueError, match=r"did you mean samite.failure.detected\?"):
        names.event("samite.failure.detectd")
    with pytest.raises(ValueError, match=r"did you mean samite.loss.kind\?"):
        names.metric_attributes("samite.loss", {"samite.loss.kin": "total"})
    with pytest.raises(ValueError, match=r"did you mean failure_class\?"):
        names.event_attributes("samite.failure.detected", {"failure_clas": "infra"})


def test_an_attribute_of_another_metric_is_refused():
    with pytest.raises(ValueError, match=r"unknown attribute 'samite\.param\.group'"):
        names.metric_attributes("samite.loss", {"samite.param.group": "global"})


def test_a_value_outside_a_closed_set_is_refused():
    with pytest.raises(ValueError, match="must be one of total, text, vision, router, z; got 'txt'"):
        names.metric_attributes("samite.loss", {"samite.loss.kind": "txt"})


def test_every_metric_may_carry_the_stage():
    stage = {"samite.stage.name": "extend", "samite.stage.kind": "Extend"}
    assert names.metric_attributes("samite.step.number", stage) == stage


def test_event_attributes_come_by_keyword_or_by_full_name_and_none_is_left_out():
    given = {"failure_class": "infra", "samite.rank": 3, "node": None, "evidence": ("a", "b")}
    assert names.event_attributes("samite.failure.detected", given) == {
        "samite.failure.class": "infra",
        "samite.rank": 3,
        "samite.evidence": ["a", "b"],
    }
