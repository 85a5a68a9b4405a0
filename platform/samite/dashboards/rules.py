"""Alerts as files: a rule file of Prometheus, a PrometheusRule for the chart, and what silences what in Alertmanager. Pure text from values."""

from collections.abc import Iterable, Sequence
from typing import Any

from samite.dashboards.alerts import ALERTS, GROUPS, Alert

RUNBOOKS = "https://github.com/samite-dev/samite/blob/main/docs/runbooks/"


def rule(alert: Alert) -> dict[str, Any]:
    """One entry of a rule file."""
    document: dict[str, Any] = {"alert": alert.name, "expr": alert.expr}
    if alert.lasts != "0m":
        document["for"] = alert.lasts
    document["labels"] = {"severity": alert.severity}
    document["annotations"] = {
        "summary": alert.summary,
        "description": alert.means,
        "runbook_url": f"{RUNBOOKS}{alert.runbook}.md",
        "dashboard": alert.board,
    }
    return document


def rule_groups(groups: Sequence[str] = GROUPS, alerts: Iterable[Alert] = ALERTS) -> dict[str, Any]:
    """A rule file with the chosen groups."""
    found = list(alerts)
    return {
        "groups": [
            {"name": f"samite-{group}", "rules": [rule(alert) for alert in found if alert.group == group]}
            for group in GROUPS
            if group in groups
        ]
    }


def prometheus_rule(groups: Sequence[str] = GROUPS, *, name: str = "samite") -> dict[str, Any]:
    """The same for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "samite"}},
        "spec": rule_groups(groups),
    }


def inhibitions() -> dict[str, Any]:
    """The part of Alertmanager's configuration that keeps one cause from ringing ten bells."""
    run = ["samite_run_uid"]
    of_engine = "|".join(alert.name for alert in ALERTS if alert.group == "runs")
    return {
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="SamiteRunHeld"'],
                "target_matchers": ['alertname=~"Samite.+"', 'alertname!="SamiteRunHeld"'],
                "equal": run,
            },
            {"source_matchers": ['alertname=~"SamiteOperatorBlind|SamiteOperatorDown"'], "target_matchers": [f'alertname=~"{of_engine}"']},
            {
                "source_matchers": ['alertname="SamiteHangConfirmed"'],
                "target_matchers": ['alertname="SamiteRunNotProgressing"'],
                "equal": run,
            },
        ]
    }


def to_yaml(document: dict[str, Any]) -> str:
    """YAML with long lines kept whole."""
    import yaml

    return yaml.safe_dump(document, sort_keys=False, width=10_000, allow_unicode=True)
