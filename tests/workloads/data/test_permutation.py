"""The order of an epoch: every item once, no table, the same for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite_workloads.data.permutation import Permutation


@settings(deadline=None)
@given(size=st.integers(1, 600), seed=st.integers(0, 2**64 - 1), name=st.text(max_size=8), epoch=st.integers(0, 5))
def test_every_item_comes_exactly_once(size: int, seed: int, name: str, epoch: int):
    order = Permutation(size=size, seed=seed, name=name, epoch=epoch)
    assert sorted(order(index) for index in range(size)) == list(range(size))


def test_a_trillion_items_cost_no_more_than_a_thousand():
    order = Permutation(size=10**12, seed=1, name="text", epoch=0)
    places = [order(index) for index in range(200)]
    assert len(set(places)) == 200
    assert all(0 <= place < 10**12 for place in places)


def test_the_order_is_the_one_that_written_cursors_refer_to():
    order = Permutation(size=20, seed=7, name="text", epoch=0)
    assert [order(index) for index in range(20)] == [15, 7, 0, 18, 12, 3, 14, 9, 6, 10, 2, 11, 17, 5, 16, 13, 8, 4, 19, 1]


@pytest.mark.parametrize("other", [{"seed": 2}, {"name": "b"}, {"epoch": 1}])
def test_seed_source_and_epoch_each_change_the_order(other: dict):
    key = {"size": 1000, "seed": 1, "name": "a", "epoch": 0}
    first, second = Permutation(**key), Permutation(**{**key, **other})
    same = sum(first(index) == second(index) for index in range(1000))
    assert same < 20


def test_neighbours_do_not_stay_together():
    order = Permutation(size=4096, seed=3, name="text", epoch=0)
    steps = [abs(order(index + 1) - order(index)) for index in range(4095)]
    assert 1100 < sum(steps) / len(steps) < 1650  # a uniform shuffle has 4096 / 3


def test_an_index_outside_is_refused():
    with pytest.raises(ValueError, match=r"outside 0\.\.4"):
        Permutation(size=5, seed=0, name="", epoch=0)(5)
