"""Broken specs and what is said about them, word for word: errors that a newcomer can act on.

After a deliberate change of a message: SAMITE_UPDATE_SNAPSHOTS=1 python -m pytest tests/platform/spec/test_broken_specs.py, then read the
difference as a newcomer would.
"""

import os
import shlex
from pathlib import Path

import pytest

from samite.cli.validate import format_problems
from samite.errors import SpecError
from samite.spec import load_run

BROKEN = Path(__file__).parent / "broken"
FILES = sorted(BROKEN.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_message_is_what_was_agreed_on(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(BROKEN)
    with pytest.raises(SpecError) as refused:
        load_run(Path(file.name))
    text = format_problems(refused.value)
    for folder in (shlex.quote(str(BROKEN / "no-such-corpus")), str(BROKEN / "no-such-corpus")):
        text = text.replace(folder, "<folder>/no-such-corpus")
    text += "\n"
    expected = file.with_suffix(".expected")
    if os.environ.get("SAMITE_UPDATE_SNAPSHOTS"):
        expected.write_text(text, encoding="utf-8")
    agreed = expected.read_text(encoding="utf-8")
    if "<folder>" in agreed:  # where such a line is folded depends on where the clone lies
        text, agreed = " ".join(text.split()), " ".join(agreed.split())
    assert text == agreed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_problem_names_a_line_of_the_file(file: Path):
    num_lines = len(file.read_text(encoding="utf-8").splitlines())
    with pytest.raises(SpecError) as refused:
        load_run(file)
    assert [problem for problem in refused.value.problems if not 1 <= (problem.line or 0) <= num_lines] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_secret_is_repeated_in_a_message(file: Path):
    with pytest.raises(SpecError) as refused:
        load_run(file)
    text = format_problems(refused.value)
    assert [secret for secret in ("hf_0123456789", "wJalrXUtnFEMI", "AKIAEXAMPLE", "password@") if secret in text] == []


def test_there_are_at_least_twelve():
    assert len(FILES) >= 12
    assert {file.stem for file in BROKEN.glob("*.expected")} == {file.stem for file in FILES}
