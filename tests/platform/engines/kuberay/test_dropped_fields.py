"""Fields that an API server drops because its definitions are older (scenario S21)."""

from typing import Any

import pytest

from samite.engines.kuberay.dropped import dropped_fields, without_fields


@pytest.mark.parametrize(
    ("wanted", "stored", "lost"),
    [
        ({"a": 1}, {"a": 1}, ()),
        ({"a": 1}, {"a": 2, "more": 3}, ()),
        ({"a": 1, "b": 0}, {"a": 1}, ("b",)),
        ({"a": {"b": {"c": False}}}, {"a": {"b": {}}}, ("a.b.c",)),
        ({"a": {"b": 1}}, {}, ("a",)),
        ({"a": [{"b": 1}, {"c": 2}]}, {"a": [{"b": 1}, {}]}, ("a[1].c",)),
        ({"a": [1, 2]}, {"a": [1]}, ()),
        ({"a": None, "b": {}, "c": []}, {}, ()),
        ({"a": ""}, {}, ("a",)),
    ],
)
def test_what_is_missing_is_named_and_what_was_changed_or_added_is_not(wanted: Any, stored: Any, lost: tuple[str, ...]):
    assert dropped_fields(wanted, stored) == lost


def test_the_path_of_the_part_comes_first():
    assert dropped_fields({"x": {"y": 1}}, {"x": {}}, "spec") == ("spec.x.y",)


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        ((), {"a": {"b": 1, "c": 2}, "d": [3]}),
        (("a.b",), {"a": {"c": 2}, "d": [3]}),
        (("a", "d"), {}),
        (("d[0].x", "nowhere"), {"a": {"b": 1, "c": 2}, "d": [3]}),
    ],
)
def test_known_losses_are_left_out(paths: tuple[str, ...], left: dict[str, Any]):
    assert without_fields({"a": {"b": 1, "c": 2}, "d": [3]}, paths) == left
