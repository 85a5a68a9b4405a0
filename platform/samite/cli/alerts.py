"""`samite alerts`: the alert rules of this version, for Prometheus, the Prometheus operator and Alertmanager. Asks no server."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from samite.cli.dashboards import write_files
from samite.cli.output import Column, OutputFormat, OutputOption, hint, print_items, print_text

alerts_app = typer.Typer(help="Alert rules on runs, training, the operator and hardware: list them, write them to files.")

COLUMNS = (
    Column(title="NAME", value=lambda item: str(item["name"])),
    Column(title="GROUP", value=lambda item: str(item["group"])),
    Column(title="SEVERITY", value=lambda item: str(item["severity"])),
    Column(title="MEANS", value=lambda item: str(item["means"])),
    Column(title="EXPRESSION", value=lambda item: str(item["expr"]), wide=True),
    Column(title="RUNBOOK", value=lambda item: str(item["runbook"]), wide=True),
)


class AlertFormat(StrEnum):
    """How rules are written."""

    rules = "rules"
    prometheusrule = "prometheusrule"
    inhibit = "inhibit"


GroupOption = Annotated[
    list[str] | None,
    typer.Option("--group", help="runs, training, operator or hardware; may be repeated. Default all.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add `alerts`."""
    app.add_typer(alerts_app, name="alerts", no_args_is_help=True)


@alerts_app.command(name="ls")
def list_(group: GroupOption = None, output: OutputOption = OutputFormat.table) -> None:
    """List the alerts, what each means, and where its runbook is."""
    from samite.dashboards.alerts import ALERTS
    from samite.dashboards.rules import RUNBOOKS

    wanted = _groups(group)
    items = [
        {
            "name": alert.name,
            "group": alert.group,
            "severity": alert.severity,
            "means": alert.means,
            "expr": alert.expr,
            "for": alert.lasts,
            "runbook": f"{RUNBOOKS}{alert.runbook}.md",
        }
        for alert in ALERTS
        if alert.group in wanted
    ]
    print_items(items, output, kind="Alert", columns=COLUMNS)


@alerts_app.command()
def export(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write the file into; without it the text goes to stdout.", show_default=False)
    ] = None,
    format_: Annotated[
        AlertFormat,
        typer.Option(
            "--format", help="rules: a rule file of Prometheus; prometheusrule: for the Prometheus operator; inhibit: for Alertmanager."
        ),
    ] = AlertFormat.rules,
    group: GroupOption = None,
) -> None:
    """Write the alert rules. Where no operator is scraped, leave its group out: --group runs --group training."""
    from samite.dashboards.rules import inhibitions, prometheus_rule, rule_groups, to_yaml

    wanted = _groups(group)
    match format_:
        case AlertFormat.rules:
            document = rule_groups(wanted)
        case AlertFormat.prometheusrule:
            document = prometheus_rule(wanted)
        case AlertFormat.inhibit:
            document = inhibitions()
    text = to_yaml(document)
    if out is None:
        print_text(text.rstrip("\n"))
        return
    write_files(out, {f"samite-{format_.value}.yaml": text})
    if format_ is AlertFormat.rules:
        hint("Check it with `promtool check rules FILE`, and name it under rule_files in prometheus.yml.")


def _groups(chosen: list[str] | None) -> tuple[str, ...]:
    from samite.dashboards.alerts import GROUPS
    from samite.errors import UsageError

    unknown = [name for name in chosen or () if name not in GROUPS]
    if unknown:
        raise UsageError(f"no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    return tuple(chosen) if chosen else GROUPS
