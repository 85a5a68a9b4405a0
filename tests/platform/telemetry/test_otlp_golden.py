"""Names, types, units and event names as a real OTLP receiver gets them, of everything in the registry. A change is a change for other people."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import every_signal

from samite.telemetry import names

GOLDEN = Path(__file__).parent / "golden" / "otlp.txt"
pytestmark = pytest.mark.timeout(60)


def line_of(metric: Any) -> str:
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    words = [metric.name, kind, metric.unit]
    if kind == "sum":
        words += ["monotonic" if data.is_monotonic else "up-and-down"]
    if kind != "gauge":
        words += [{1: "delta", 2: "cumulative"}[data.aggregation_temporality]]
    keys = sorted({attribute.key for point in data.data_points for attribute in point.attributes} - set(every_signal.STAGE))
    return " ".join([*words, ",".join(keys) or "-"])


def test_what_a_receiver_gets_changes_only_on_purpose(receiver: Any, tmp_path: Path):
    """After a wanted change: UPDATE_GOLDEN=1 pytest tests/platform/telemetry/test_otlp_golden.py, and read the difference."""
    every_signal.send(receiver.endpoint, tmp_path)
    assert set(receiver.metrics) == set(names.METRICS)
    found = sorted(line_of(metric) for metric in receiver.metrics.values())
    found += sorted({f"event {record.event_name} {record.severity_text}" for record in receiver.logs})
    assert {record.event_name for record in receiver.logs} == set(names.EVENTS)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8").splitlines()
