"""Every name that the source emits as a literal is in the registry: a typo on a failure path must not wait for the failure."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from samite.telemetry import names

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted(path for folder in ("platform", "operators", "workloads") for path in (ROOT / folder).rglob("*.py"))
OPTIONS = {"severity", "time_unix_s"}


def emissions(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(kind, name, keywords) of each `.emit("samite...")`, `.event(...)`, `.record(...)` and `Point(...)` with a literal name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
            continue
        name = node.args[0].value
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        kind = {"emit": "event", "event": "event", "_tell": "event", "record": "metric", "Point": "metric"}.get(called)
        if kind and isinstance(name, str) and name.startswith("samite."):
            yield kind, name, [keyword.arg for keyword in node.keywords if keyword.arg and keyword.arg not in OPTIONS]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_literal_names_are_registered(path: Path):
    for kind, name, keywords in emissions(path):
        if kind == "event":
            names.event_attributes(name, dict.fromkeys(keywords))
        else:
            names.metric(name)


def test_the_scan_sees_emissions(tmp_path: Path):
    (path := tmp_path / "a.py").write_text('log.emit("samite.run.held", severity="warn", reason="x")\nPoint("samite.loss", 1)\n')
    assert list(emissions(path)) == [("event", "samite.run.held", ["reason"]), ("metric", "samite.loss", [])]


def test_every_name_that_is_not_reserved_is_emitted_by_something():
    tables = {"metrics.py", "event_names.py", "attributes.py", "reference.py"}
    writers = [path for path in SOURCES if path.name not in tables and "report" not in path.parts]
    text = "\n".join(path.read_text(encoding="utf-8") for path in writers)
    expected = [metric.name for metric in names.METRICS.values() if metric.source != "reserved"]
    expected += [event.name for event in names.EVENTS.values() if not event.reserved]
    assert [name for name in expected if f'"{name}"' not in text] == []
