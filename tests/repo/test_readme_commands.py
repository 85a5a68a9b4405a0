"""Commands that README and docs show exist, with the options they are shown with."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown_commands() -> list[str]:
    """Every `samite ...` in a console block or in backticks."""
    found = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.findall(r"^\$ (samite [^#\n]+)|`(samite [^`\n]+)`", text, flags=re.MULTILINE):
            found.add((match[0] or match[1]).strip())
    return sorted(found)


def shown_targets() -> set[str]:
    return {
        target
        for page in PAGES
        for target in re.findall(r"\bmake ([a-z][a-z-]+)\b", page.read_text(encoding="utf-8"))
        if target in page.read_text()
    }


def test_there_are_commands_to_check():
    assert len(shown_commands()) > 10


@pytest.mark.parametrize("command", shown_commands())
def test_the_command_and_its_options_exist(command: str):
    words = [word for word in shlex.split(command)[1:] if word]
    verbs = [
        word for word in words if not word.startswith("-") and word.islower() and "." not in word and "/" not in word and "=" not in word
    ]
    for depth in (2, 1):
        done = subprocess.run(
            [sys.executable, "-m", "samite", *verbs[:depth], "--help"], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    for option in (word for word in words if re.fullmatch(r"--?[a-z-]+", word)):
        assert option in done.stdout, f"{option} is not an option of: samite {' '.join(verbs[:depth])}"


def test_the_make_targets_that_pages_name_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = {name for line in makefile.splitlines() if line.startswith(".PHONY") for name in line.split()[1:]}
    named = {"demo", "test", "lint", "format", "bench", "setup", "test-fast", "test-gpu", "bench-gpu", "soak-local"}
    assert named <= phony
    assert {target for target in shown_targets() if "-" in target} <= phony
