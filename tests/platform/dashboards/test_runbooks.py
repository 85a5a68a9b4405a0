"""Every alert has a page that a tired engineer can follow, and every command on it is one that `samite` takes."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from samite.cli.app import app, run
from samite.dashboards.alerts import ALERTS
from samite.dashboards.rules import RUNBOOKS, rule

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "runbooks"
PAGES = sorted(FOLDER.glob("*.md"))
PARTS = ("## What it means", "## What to look at", "## What to do", "## When to wake someone")

by_name = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


def commands(page: Path) -> list[str]:
    return re.findall(r"`(samite [^`]+)`", page.read_text(encoding="utf-8"))


def parse(words: list[str]) -> None:
    """Let Click take the words as a command line (the rest of a group's line is in `_protected_args`), without running it. Raises a usage error."""
    command, context = typer.main.get_command(app), None
    while True:
        name = words[0] if context else "samite"
        rest = words[1:] if context else words
        context = command.make_context(name, list(rest), parent=context, resilient_parsing=False)
        if not hasattr(command, "commands"):
            return
        words = [*context._protected_args, *context.args]
        _, command, words_left = command.resolve_command(context, words)
        words = [words[0], *words_left]


@by_name
def test_an_alert_has_a_page_with_all_parts_in_order(alert):
    page = (FOLDER / f"{alert.runbook}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {alert.name}\n")
    places = [page.index(part) for part in PARTS]
    assert places == sorted(places)
    assert rule(alert)["annotations"]["runbook_url"] == f"{RUNBOOKS}{alert.runbook}.md"


@by_name
def test_a_page_says_what_to_type(alert):
    assert commands(FOLDER / f"{alert.runbook}.md")


def test_no_page_is_left_over_and_all_are_on_the_first_one():
    assert {page.stem for page in PAGES} == {alert.runbook for alert in ALERTS} | {"README"}
    start = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [alert.name for alert in ALERTS if f"[{alert.name}]({alert.runbook}.md) | {alert.severity}" not in start] == []


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in commands(page)}))
def test_a_command_is_one_that_samite_takes(line: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").touch()
    words = shlex.split(line)[1:]
    if "--help" in words:
        words.remove("--help")
        assert words[0] in typer.main.get_command(app).commands
        return
    parse(words)
    if words[0] == "explain":
        assert run(words) == 0


@pytest.mark.parametrize("line", ["samite frobnicate RUN", "samite status RUN --loud", "samite nodes exclude RUN"])
def test_a_command_that_does_not_exist_is_noticed(line: str):
    with pytest.raises(Exception, match=r"(?i)no such|missing"):
        parse(shlex.split(line)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_other_pages_that_a_page_names_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\bsee ([A-Z]\w+[a-z])\b", text)
    assert set(named) <= {alert.name.removeprefix("Samite") for alert in ALERTS}, named
