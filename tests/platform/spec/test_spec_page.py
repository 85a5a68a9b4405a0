"""docs/spec.md says what is true."""

import re
from pathlib import Path

import pytest

from samite.spec import load_run
from samite.spec.load import MAX_BYTES
from samite.spec.scalars import ScalarError, resolve_plain

PAGE = (Path(__file__).parents[3] / "docs" / "spec.md").read_text(encoding="utf-8")


def scalars_in(row: str) -> list[str]:
    cell = next(line for line in PAGE.splitlines() if row in line).split("|")[1]
    return re.findall(r"`([^`]+)`", cell)


def test_the_least_document_is_one():
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert text is not None
    assert load_run(text[1]).run.total_steps == 60


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("| numbers |", [1e-5, 3e-4, 0.5, 1000]),
        ("| 1000 |", [1000]),
        ("| 31, 15, 3 |", [31, 15, 3]),
        ("| true and false |", [True, True, False, False, True]),
        ("| text |", ["12:30", "2026-11-30"]),
        ("| the field is left out |", [None]),
    ],
)
def test_the_table_says_how_words_and_numbers_are_read(row: str, values: list[object]):
    assert [resolve_plain(text) for text in scalars_in(row)] == values


@pytest.mark.parametrize("row", ["depending on the reader", "JSON has no infinity"])
def test_the_table_says_what_is_refused(row: str):
    for text in scalars_in(row):
        with pytest.raises(ScalarError):
            resolve_plain(text)


def test_the_size_limit_is_the_one_named():
    assert MAX_BYTES == 256 * 1024
    assert "at most 256 KiB" in PAGE
