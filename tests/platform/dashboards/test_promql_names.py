"""The metric and label names of a PromQL expression, and what a query may name."""

import pytest

from samite.dashboards.checked import problems_of
from samite.dashboards.promql import names_in


def metrics(expr: str) -> list[str]:
    return [selector.metric for selector in names_in(expr).selectors]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("up", ["up"]),
        ("sum(rate(a_total[5m]))", ["a_total"]),
        ("sum by (x) (a) / on (x, y) group_left (z) b", ["a", "b"]),
        ("sum(a) by (x)", ["a"]),
        ("a unless b offset 1m or increase(a[$__rate_interval])", ["a", "b", "a"]),
        ("histogram_quantile(0.9, sum by (le) (h_bucket))", ["h_bucket"]),
        ('a{x=~"b|c", y!="d{e}"} > bool 3', ["a"]),
        ("absent(a) and -1e-3 * b ^ 2", ["a", "b"]),
        ("avg_over_time((a > 1)[6h:1m])", ["a"]),
        ("topk(3, a) # b", ["a"]),
    ],
)
def test_metrics_are_found_and_nothing_else(expr: str, expected: list[str]):
    assert metrics(expr) == expected


def test_labels_of_matchers_and_of_groupings_are_told_apart():
    found = names_in('sum by (x, y) (a{z="1", w!~"2"}) / on (v) group_left (u) b')
    assert found.selectors[0].matchers == {"z", "w"}
    assert found.grouping == {"x", "y", "v", "u"}


@pytest.mark.parametrize("expr", ["a ? b", "sum by (x a", 'a{x="1"'])
def test_what_is_no_promql_is_refused(expr: str):
    with pytest.raises(ValueError, match=r"PromQL|no [)}]"):
        names_in(expr)


@pytest.mark.parametrize(
    ("expr", "legend", "problem"),
    [
        ("samite_lost", "", "samite_lost: no such metric"),
        ('samite_loss{samite_step_part="total"}', "", "samite_loss: no label samite_step_part"),
        ("sum by (samite_layer_block) (samite_loss)", "", "no metric of the query has the label samite_layer_block"),
        ("samite_loss", "{{samite_rank}}", "no metric of the query has the label samite_rank"),
        ("samite_update_norm_ratio", "", "samite_update_norm_ratio: nothing records it yet"),
        ("samite_step_duration_seconds", "", "samite_step_duration_seconds: no such metric"),
        ("1 + 1", "", "names no metric"),
        ('samite_events_total{samite_event_name=~"samite.(run.held|run.hold)"}', "", "no event samite.run.hold"),
        ('DCGM_FI_DEV_GPU_TEMP{samite_run_name="x"}', "", "DCGM_FI_DEV_GPU_TEMP: no label samite_run_name"),
    ],
)
def test_a_query_that_could_never_return_data_is_told(expr: str, legend: str, problem: str):
    assert problem in problems_of(expr, legend)
