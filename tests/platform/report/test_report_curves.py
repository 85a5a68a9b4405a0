"""Curves, scales, time spans and the summary: the arithmetic under the report."""

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from samite.report import figures, summary_lines
from samite.report.chart import Chart, Line, render
from samite.report.curves import Curves, Piece, collect, spread, thin, together
from samite.report.run_data import read_run
from samite.report.scale import Scale, scale_for
from samite.report.timeline import state_spans
from samite.telemetry.records import MetricRecord, Point


def records(*attempts: tuple[str, range], stage: str = "one") -> list[MetricRecord]:
    found = []
    for attempt, steps in attempts:
        for step in steps:
            point = Point("samite.loss", step + len(found) / 1000, {"samite.loss.kind": "total"})
            found.append(
                MetricRecord(time_unix_s=float(len(found)), step=step, attempt=attempt, stage={"samite.stage.name": stage}, points=(point,))
            )
    return found


def test_steps_that_a_later_attempt_trained_again_are_superseded():
    curves = collect(records(("a1", range(1, 11)), ("a2", range(6, 16))))
    pieces = curves.pieces(curves.get("samite.loss", kind="total"))
    assert [(list(piece.steps), piece.superseded) for piece in pieces] == [
        ([6, 7, 8, 9, 10], True),
        ([1, 2, 3, 4, 5], False),
        (list(range(6, 16)), False),
    ]
    assert curves.recomputed_steps == 5
    assert list(curves.counting(curves.get("samite.loss", kind="total")).steps) == list(range(1, 16))


def test_a_second_restart_supersedes_parts_of_both_earlier_attempts():
    curves = collect(records(("a1", range(1, 11)), ("a2", range(8, 12)), ("a3", range(5, 13))))
    assert [(s.attempt, s.superseded_from) for s in curves.segments] == [("a1", 5), ("a2", 8), ("a3", None)]
    assert curves.recomputed_steps == 6 + 4


def test_a_restart_inside_an_attempt_is_seen_by_steps_going_back():
    curves = collect(records(("a1", range(1, 6)), ("a1", range(4, 9))))
    assert [segment.first_step for segment in curves.restarts] == [4]
    assert curves.recomputed_steps == 2


def test_a_new_stage_is_no_restart():
    one, two = records(("a1", range(1, 5))), records(("a2", range(5, 9)), stage="two")
    curves = collect([*one, *two])
    assert curves.restarts == []
    assert [segment.stage for segment in curves.stage_starts] == ["one", "two"]


def test_records_without_a_step_are_no_curve():
    assert collect([MetricRecord(time_unix_s=1.0, points=(Point("samite.loss", 1.0),))]).curves == {}


@pytest.mark.parametrize("count", [1, 7, 400, 401, 5000])
def test_thinning_keeps_lowest_highest_and_order(count: int):
    steps = list(range(count))
    values = [math.sin(step * 0.7) * step for step in steps]
    thin_steps, thin_values = thin(steps, values, 400)
    assert len(thin_steps) <= 402
    assert thin_steps == sorted(thin_steps)
    assert (min(thin_values), max(thin_values)) == (min(values), max(values))


def test_thinning_keeps_what_is_not_finite():
    values = [1.0] * 5000
    values[1234] = math.nan
    assert any(math.isnan(value) for value in thin(list(range(5000)), values, 100)[1])


def test_stacked_curves_share_steps_and_keep_their_mean():
    curves = collect(
        MetricRecord(
            time_unix_s=1.0,
            step=step,
            points=(
                Point("samite.step.duration", 1.0, {"samite.step.part": "compute"}),
                Point("samite.step.duration", 0.5, {"samite.step.part": "data"}),
            ),
        )
        for step in range(1000)
    )
    one, two = together([curves.get("samite.step.duration", part="compute"), curves.get("samite.step.duration", part="data")], curves)
    assert one.steps == two.steps
    assert (set(one.values), set(two.values)) == ({1.0}, {0.5})
    assert together([], curves) == []


def test_many_layers_become_lowest_median_highest():
    points = tuple(Point("samite.decay.tile.margin", float(layer), {"samite.layer.block": str(layer)}) for layer in range(9))
    curves = collect([MetricRecord(time_unix_s=1.0, step=1, points=points)])
    band = spread(curves.family("samite.decay.tile.margin", "samite.layer.block"), curves)
    assert [band[name] for name in ("lowest", "median", "highest")] == [Piece([1], [0.0]), Piece([1], [4.0]), Piece([1], [8.0])]


@pytest.mark.parametrize("values", [[0.0, 1.0], [3.0], [0.0], [-5.0, 7.0], [1e-9, 2e-9], [1e12, 3e12], [], [math.nan], [2.0, 2.0 + 1e-15]])
@pytest.mark.parametrize("zero", [True, False])
def test_a_scale_shows_all_finite_values_between_its_ends(values: list[float], zero: bool):
    scale = scale_for(values, zero=zero)
    assert scale.low < scale.high
    assert all(-1e-9 <= scale(value) <= 1 + 1e-9 for value in values if math.isfinite(value))
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 12
    assert all(scale.low - 1e-9 * abs(scale.low) <= tick <= scale.high + 1e-9 * abs(scale.high) for tick in ticks)


@pytest.mark.parametrize(("low", "high"), [(0.01, 5.0), (1e-6, 1e6), (0.5, 60.0), (3.0, 31.0)])
def test_a_logarithmic_scale_has_round_ticks(low: float, high: float):
    scale = scale_for([low, high], log=True)
    assert scale.log
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 14
    assert all(f"{tick:e}"[0] in "125" for tick in ticks)


def test_a_logarithmic_scale_needs_positive_values_over_a_decade():
    assert not scale_for([0.0, 100.0], log=True).log
    assert not scale_for([1.0, 2.0], log=True).log


def test_binary_ticks_are_round_in_their_unit():
    ticks = Scale(0.0, 3.3 * 2**30).ticks(binary=True)
    assert [figures.size(tick) for tick in ticks] == ["0 B", "1 GiB", "2 GiB", "3 GiB"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.0, "1"),
        (1234.5, "1234"),
        (0.00123, "0.00123"),
        (1.5e-7, "1.5e-7"),
        (2e9, "2e9"),
        (-3.14159, "-3.14"),
        (math.nan, "NaN"),
        (-math.inf, "-∞"),
    ],
)
def test_significant_digits(value: float, text: str):
    assert figures.significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (0.05, "50 ms"),
        (12.34, "12.3 s"),
        (245, "4 min 05 s"),
        (7800, "2 h 10 min"),
        (273_600, "3 d 4 h"),
        (math.inf, "-"),
    ],
)
def test_durations(value: float | None, text: str):
    assert figures.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.12, "0.1 s"), (18.4, "18 s"), (96.2, "96 s"), (840, "14 min"), (11_520, "3.2 h")]
)
def test_brief_durations(value: float | None, text: str):
    assert figures.brief(value) == text


@pytest.mark.parametrize(
    ("values", "number", "labels"),
    [
        ([2.0575, 2.0601, 2.0649], figures.significant, ["2.058", "2.06", "2.062", "2.064"]),
        ([0.0, 1.0], figures.span, ["0 s", "0.25 s", "0.5 s", "0.75 s", "1 s"]),
        ([0.0, 1.2], figures.span, ["0 s", "0.5 s", "1 s"]),
        ([0.0, 0.9], figures.share, ["0 %", "20 %", "40 %", "60 %", "80 %"]),
        ([0.0, 30_500.0], figures.compact, ["0", "10 k", "20 k", "30 k"]),
    ],
)
def test_labels_of_an_axis_say_their_ticks_exactly(values: list[float], number: Callable[[float, int], str], labels: list[str]):
    line = Line(label="x", pieces=[Piece([1, 2, 3][: len(values)], values)], color=1)
    page = render(Chart(key="k", title="t", note="n", lines=[line], number=number, zero=min(values) == 0), Scale(1, 3))
    assert re.findall(r'class="y-label"[^>]*>([^<]*)<', page) == labels


def test_time_is_split_into_states_without_gap_or_overlap(whole_run: Path):
    run = read_run(whole_run)
    spans = state_spans(run)
    assert all(math.isclose(before.end_s, after.start_s, abs_tol=1e-5) for before, after in itertools.pairwise(spans))
    assert {"productive", "detect", "restart", "load", "first_step", "start"} <= {span.kind for span in spans}
    restart = next(span for span in spans if span.kind == "restart")
    assert restart.end_s - restart.start_s == pytest.approx(14.0)


def test_the_summary_needs_nothing_but_metrics(whole_run: Path, tmp_path: Path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/rank-0.jsonl").write_bytes((whole_run / "metrics/rank-0.jsonl").read_bytes())
    lines = {line.label: line.value for line in summary_lines(read_run(tmp_path))}
    assert lines == {
        "Steps": "210",
        "Tokens": "3.38 M",
        "Restarts": "1",
        "Detect, recover": "-",
        "Recomputed steps": "17",
        "Effective time": "-",
    }


def test_an_empty_run_has_an_empty_summary():
    assert Curves().recomputed_steps == 0
    lines = summary_lines(read_run(Path("/nonexistent")))
    assert len(lines) == 6
    assert {line.value for line in lines} == {"-"}
