"""The report's colours are readable in both themes: WCAG contrast, computed from the stylesheet itself."""

import re
from importlib.resources import files

import pytest

STYLE = files("samite.report").joinpath("assets/report.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)[:2]
)
PAIRS = [(f"{tone}", f"{tone}-ground") for tone in ("good", "warn", "bad", "fine", "quiet")]


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    bright, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), [("ink", "sheet"), ("ink", "ground"), ("soft", "sheet"), ("soft", "ground"), *PAIRS])
def test_text_has_a_contrast_of_at_least_four_and_a_half(theme: dict[str, str], text: str, ground: str):
    assert contrast(theme[text], theme[ground]) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("line", [f"c{index}" for index in range(9)])
def test_lines_have_a_contrast_of_at_least_three(theme: dict[str, str], line: str):
    assert contrast(theme[line], theme["sheet"]) >= 3.0


def test_both_themes_name_the_same_colours():
    assert set(LIGHT) == set(DARK)


def test_every_colour_that_is_used_is_defined():
    used = set(re.findall(r"var\(--([\w-]+)", STYLE))
    assert used <= set(LIGHT) | {"color", "at", "shadow"}
