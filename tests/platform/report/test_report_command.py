"""`samite report`: where the file goes, what is said, and how it fails."""

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from samite.cli import report as command
from samite.errors import NotFoundError, SamiteError


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    command.register(app)
    return app


def test_it_writes_into_the_run_folder_and_prints_the_path(
    app: typer.Typer, whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path))
    folder = shutil.copytree(whole_run, tmp_path / "runs" / "quickstart")
    result = CliRunner().invoke(app, ["quickstart"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in folder.iterdir() if path.suffix == ".tmp"] == []


def test_a_copied_run_folder_is_enough_and_the_output_may_lie_anywhere(app: typer.Typer, whole_run: Path, tmp_path: Path):
    target = tmp_path / "[v1] ü" / "out.html"
    result = CliRunner().invoke(app, [f"{whole_run}/", "-o", str(target)], catch_exceptions=False)
    assert result.stdout.strip() == str(target)
    assert "not stored" in target.read_text()


def test_a_dash_writes_the_page_to_stdout(app: typer.Typer, whole_run: Path):
    result = CliRunner().invoke(app, [f"{whole_run}/", "-o", "-"], catch_exceptions=False)
    assert result.stdout.startswith("<!doctype html>")


def test_a_store_that_cannot_be_read_is_said_and_the_events_step_in(app: typer.Typer, whole_run: Path, tmp_path: Path):
    folder = shutil.copytree(whole_run, tmp_path / "run")
    (folder / "spec.json").write_text(json.dumps({"run": {"kind": "Other"}}))
    result = CliRunner().invoke(app, [f"{folder}/"], catch_exceptions=False)
    assert "The checkpoint store was not read" in result.stderr
    assert "verified" in (folder / "report.html").read_text()


def test_an_unknown_run_or_folder_is_not_found(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path))
    for name in ("nope", "./nope", f"{tmp_path}/nope"):
        with pytest.raises(NotFoundError):
            CliRunner().invoke(app, [name], catch_exceptions=False)


def test_a_place_that_cannot_be_written_is_named(app: typer.Typer, whole_run: Path):
    with pytest.raises(SamiteError, match=r"cannot write the report to /proc/x/report\.html"):
        CliRunner().invoke(app, [f"{whole_run}/", "-o", "/proc/x/report.html"], catch_exceptions=False)
