"""Every example in the repository loads, and tells editors where its schema is."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPECS = sorted(file for file in (ROOT / "examples").rglob("*.yaml") if "kind: TrainingRun" in file.read_text(encoding="utf-8"))


def test_there_are_examples():
    assert SPECS != []


@pytest.mark.parametrize("file", SPECS, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_example_validates(file: Path):
    from samite.spec import load_run

    assert load_run(file).run.metadata.name


@pytest.mark.parametrize("file", SPECS, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_example_carries_the_modeline_for_editors(file: Path):
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (file.parent / first.partition("$schema=")[2].strip()).resolve().is_file()
