"""docs/signals.md is what the registry says."""

from pathlib import Path

from samite.telemetry import names
from samite.telemetry.reference import markdown

PAGE = Path(__file__).resolve().parents[3] / "docs" / "signals.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run: python -m samite.telemetry.reference > docs/signals.md"


def test_every_name_is_on_the_page():
    page = markdown()
    missing = [name for name in (*names.METRICS, *names.EVENTS, *names.ATTRIBUTES) if f"| `{name}` |" not in page]
    assert missing == []
