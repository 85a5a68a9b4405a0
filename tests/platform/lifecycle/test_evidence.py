"""The two-evidence rule as a table."""

import pytest

from samite.lifecycle import Evidence, FactClass, Source
from samite.lifecycle.evidence import CLASS_OF, PERIOD_S, missing, sufficient


def fact(source: Source, age_s: float = 0.0, *, final: bool = False) -> Evidence:
    return Evidence(source=source, subject="rank 1", says="broken", age_s=age_s, final=final)


DATA = [source for source in Source if CLASS_OF[source] is FactClass.DATA_PLANE]
OTHER = [source for source in Source if CLASS_OF[source] is not FactClass.DATA_PLANE]


@pytest.mark.parametrize("source", list(Source))
def test_one_fact_is_never_enough_whoever_says_it(source: Source):
    assert not sufficient([fact(source), fact(source), fact(source)])


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("other", OTHER)
def test_a_data_plane_fact_and_one_of_another_plane_are_enough(data: Source, other: Source):
    assert sufficient([fact(data), fact(other)])


@pytest.mark.parametrize("first", DATA)
@pytest.mark.parametrize("second", DATA)
def test_two_data_plane_facts_are_enough_if_their_sources_differ(first: Source, second: Source):
    assert sufficient([fact(first), fact(second)]) is (first is not second)


@pytest.mark.parametrize("first", OTHER)
@pytest.mark.parametrize("second", OTHER)
def test_no_number_of_facts_is_enough_without_one_from_the_training(first: Source, second: Source):
    assert not sufficient([fact(first), fact(second), fact(Source.RAY_JOB), fact(Source.KUBERNETES)])


@pytest.mark.parametrize("source", list(Source))
def test_a_fact_is_fresh_for_twice_its_period_and_a_final_one_for_ever(source: Source):
    limit = 2.0 * PERIOD_S[source]
    assert fact(source, limit).fresh
    assert not fact(source, limit + 0.1).fresh
    assert fact(source, 1e9, final=True).fresh


@pytest.mark.parametrize("data", DATA)
def test_stale_facts_do_not_count(data: Source):
    assert not sufficient([fact(data, 1000.0), fact(Source.RAY_JOB)])
    assert not sufficient([fact(data), fact(Source.RAY_JOB, 1000.0)])


def test_what_is_missing_is_said_in_words():
    assert missing([]) == "no fresh fact"
    assert "second, independent fact" in missing([fact(Source.HEARTBEAT)])
    assert "no fact from the training" in missing([fact(Source.RAY_JOB), fact(Source.KUBERNETES)])
    assert missing([fact(Source.HEARTBEAT), fact(Source.RAY_JOB)]) == ""
