"""Mixture weights as whole numbers, and the credit rule that realises them."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite_workloads.data import CorpusError
from samite_workloads.data.mixture import owed_most_first, whole_weights

SOURCES = ("digits", "text", "web")


@dataclass
class Entry:
    source: str
    weight: float


@pytest.mark.parametrize(
    "mixture",
    [
        {"text": 0.8, "digits": 0.2},
        [{"source": "digits", "weight": 0.2}, {"source": "text", "weight": 0.8}],
        [Entry("text", 8), Entry("digits", 2)],
        [Entry("text", 8), Entry("digits", 2), Entry("web", 0)],
    ],
)
def test_every_spelling_of_a_mixture_means_the_same(mixture: object):
    assert whole_weights(mixture, SOURCES) == {"digits": 1, "text": 4}


def test_an_empty_mixture_takes_all_sources_alike():
    assert whole_weights([], SOURCES) == {"digits": 1, "text": 1, "web": 1}


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        ({"txt": 1}, "no source 'txt'; it has digits, text, web. Did you mean 'text'?"),
        ({"text": -1}, "weight of 'text' is -1; wanted a number, 0 or more"),
        ({"text": 0}, "every weight is 0"),
        ({"text": float("nan")}, "weight of 'text' is nan"),
        ({"text": float("inf")}, "weight of 'text' is inf"),
        ([Entry("text", 1), Entry("text", 2)], "'text' is named twice"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_with_the_way_out(mixture: object, words: str):
    with pytest.raises(CorpusError) as caught:
        whole_weights(mixture, SOURCES)
    assert words in str(caught.value)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(SOURCES), st.integers(1, 1000), min_size=1), st.integers(1, 500))
def test_with_equal_pieces_no_source_is_ever_a_piece_away_from_its_share(weights: dict[str, int], count: int):
    given_tokens = dict.fromkeys(weights, 0)
    for _ in range(count):
        given_tokens[owed_most_first(weights, given_tokens)[0]] += 1
    total = sum(weights.values())
    assert all(abs(given_tokens[name] - count * weights[name] / total) <= len(weights) - 1 or len(weights) == 1 for name in weights)
    assert sum(given_tokens.values()) == count
