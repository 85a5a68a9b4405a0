"""Layers by time: colours for values, the worst value of a bucket, words for whoever sees none, and a size that stays small."""

import math
import re
from pathlib import Path

import pytest

from samite.report import build_report
from samite.report.curves import Piece
from samite.report.heatmap import COLUMNS, LEVELS, Heatmap, render, render_maps
from samite.report.scale import Scale

STEPS = Scale(0.0, 100.0)


def heatmap(*rows: list[float], low_is_worse: bool = False) -> Heatmap:
    named = [(f"layer {index}", Piece([10.0 * i for i in range(len(row))], row)) for index, row in enumerate(rows)]
    return Heatmap(key="map", title="Title", note="Note.", rows=named, low_is_worse=low_is_worse)


def cells(drawn: str) -> dict[int, list[tuple[float, float, float]]]:
    """Level -> (left, top, width) of its rectangles."""
    found = {}
    for path, level in re.findall(r'<path d="([^"]*)" class="heat h(\d)"', drawn):
        numbers = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)", path)
        found[int(level)] = [(float(left), float(top), float(width)) for left, top, width in numbers]
    return found


def test_the_highest_value_is_darkest_and_lies_in_its_row_and_at_its_step():
    drawn = cells(render(heatmap([0.0] * 11, [0.0] * 5 + [1.0] + [0.0] * 5), STEPS))
    ((left, top, width),) = drawn[LEVELS - 1]
    assert (round(left), round(top)) == (500, 200)
    assert width == pytest.approx(100, abs=10)


def test_where_low_is_worse_the_lowest_value_is_darkest():
    drawn = render(heatmap([0.0, -5.0, -80.0], low_is_worse=True), STEPS)
    assert len(cells(drawn)[LEVELS - 1]) == 1
    assert "Lowest: -80 in layer 0 at step 20." in drawn


def test_a_bucket_shows_its_worst_value():
    many = Piece([50.0 + i / 1000 for i in range(100)], [0.0] * 99 + [1.0])
    drawn = render(Heatmap(key="map", title="T", note="N.", rows=[("layer 0", many)]), STEPS)
    assert cells(drawn).keys() == {LEVELS - 1}


def test_nothing_is_drawn_after_the_last_sample_or_for_what_is_not_finite():
    drawn = cells(render(heatmap([0.0, 1.0, math.nan, math.inf]), STEPS))
    assert max(left + width for rectangles in drawn.values() for left, _, width in rectangles) <= 1000 * 12 / 100


def test_maps_with_nothing_to_tell_apart_are_left_out():
    assert render_maps([heatmap([3.0, 3.0]), heatmap([]), heatmap([math.nan])], STEPS) is None


def test_the_worst_value_is_told_in_words():
    assert 'aria-label="Title. Note. Highest: 7 in layer 1 at step 10."' in render(heatmap([1.0, 2.0], [3.0, 7.0]), STEPS)


def test_ninety_layers_and_ten_thousand_samples_stay_small():
    rows = [[math.sin(layer * step / 50.0) for step in range(10)] for layer in range(93)]
    drawn = render(heatmap(*rows), STEPS)
    assert len(drawn) < 30 * 93 * COLUMNS
    assert len(drawn) < 150_000
    assert drawn.count('class="y-label"') <= 16


def test_the_report_of_a_run_has_maps_of_decay_and_expert_load(whole_run: Path):
    text = build_report(whole_run, now_unix_s=1_764_700_000.0)
    assert re.search(r'<figure class="chart wide" id="gate-saturated-map">', text)
    assert re.search(r'<figure class="chart wide" id="expert-load-map">', text)
    assert '<div class="plot heat" role="img"' in text
