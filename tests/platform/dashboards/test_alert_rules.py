"""Alerts in a real promtool: the rules parse, each one fires on what it is for, and none does on a healthy run or a near miss."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from alert_cases import CASES, HEALTHY, Series

from samite.dashboards.alerts import ALERTS, GROUPS
from samite.dashboards.boards import BOARDS
from samite.dashboards.checked import problems_of
from samite.dashboards.rules import inhibitions, prometheus_rule, rule_groups, to_yaml
from samite.telemetry.prometheus import labels_of, series

by_name = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
ANY_CLOCK = {"run": ".*", "uid": ".*", "stage": ".*", "__rate_interval": "1m", "__interval": "1m", "__range": "1h"}


def told(promtool: Path, *arguments: str, folder: Path) -> str:
    done = subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@by_name
def test_an_alert_names_only_what_exists(alert):
    assert problems_of(alert.expr) == []


@by_name
def test_an_alert_says_what_it_means_and_whom_it_wakes(alert):
    assert alert.name.startswith("Samite")
    assert alert.severity in {"page", "ticket"}
    assert alert.group in GROUPS
    assert re.fullmatch(r"\d+m", alert.lasts)
    assert alert.means.endswith(".")
    assert not alert.summary.endswith(".")


@by_name
def test_the_labels_of_a_summary_are_labels_of_the_expression(alert):
    named = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    known = set().union(*(labels_of(metric) for name, metric in series().items() if name in alert.expr), {"Hostname", "gpu"})
    assert named <= known


def test_names_are_unique():
    assert len({alert.name for alert in ALERTS}) == len({alert.runbook for alert in ALERTS}) == len(ALERTS) == 32


def test_groups_can_be_left_out_and_the_prometheus_rule_holds_the_same_rules():
    assert [group["name"] for group in rule_groups(("training", "runs"))["groups"]] == ["samite-runs", "samite-training"]
    assert prometheus_rule(GROUPS)["spec"] == rule_groups()


def test_what_is_silenced_exists():
    text = to_yaml(inhibitions())
    assert set(re.findall(r"Samite[A-Z]\w+", text)) <= {alert.name for alert in ALERTS}


def test_every_alert_has_a_case():
    assert set(CASES) == {alert.name for alert in ALERTS}


def test_the_rules_are_valid(promtool: Path, tmp_path: Path):
    (tmp_path / "rules.yaml").write_text(to_yaml(rule_groups()))
    assert told(promtool, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", folder=tmp_path) == ""


def test_every_query_of_the_boards_is_valid_promql(promtool: Path, tmp_path: Path):
    queries = [query.expr for board in BOARDS for panel in board.panels for query in panel.queries]
    for name, value in ANY_CLOCK.items():
        queries = [query.replace(f"${name}", value) for query in queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert told(promtool, "check", "rules", "rules.yaml", folder=tmp_path) == ""


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_on_its_fault_and_stays_silent_on_a_near_miss(name: str, promtool: Path, tmp_path: Path):
    (tmp_path / "rules.yaml").write_text(to_yaml(rule_groups()))
    case = CASES[name]
    present = {key: value for key, value in HEALTHY.items() if key not in case.without}
    fires = expectation(f"{name} fires", present | case.fires, name, case.at, case.count)
    silent = expectation(f"{name} stays silent", HEALTHY | case.silent, name, case.at, 0)
    assert verdict(promtool, [fires, silent], tmp_path) == ""


def test_nothing_at_all_fires_on_a_healthy_run(promtool: Path, tmp_path: Path):
    (tmp_path / "rules.yaml").write_text(to_yaml(rule_groups()))
    tests = [expectation(f"healthy after {at}", HEALTHY, ".*", at, 0) for at in ("1m", "20m", "2h", "9h")]
    assert verdict(promtool, tests, tmp_path) == ""


def test_a_test_that_should_fail_does(promtool: Path, tmp_path: Path):
    (tmp_path / "rules.yaml").write_text(to_yaml(rule_groups()))
    wrong = expectation("healthy", HEALTHY, "SamiteRunHeld", "20m", 1)
    assert "FAILED" in verdict(promtool, [wrong], tmp_path)


def expectation(title: str, present: Series, alert: str, at: str, count: int) -> dict:
    asked = f'count(ALERTS{{alertname=~"{alert}", alertstate="firing"}})'
    return {
        "name": title,
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in present.items()],
        "promql_expr_test": [{"expr": asked, "eval_time": at, "exp_samples": [{"labels": "{}", "value": count}] if count else []}],
    }


def verdict(promtool: Path, tests: list[dict], folder: Path) -> str:
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(document))
    return told(promtool, "test", "rules", "tests.yaml", folder=folder)
