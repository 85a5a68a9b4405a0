"""Names, types and units as Prometheus sees them. Other people's boards and alerts are built on these: a change is a change for them."""

from pathlib import Path

from samite.telemetry.instruments import Instrument
from samite.telemetry.metrics import ALL_METRICS
from samite.telemetry.prometheus import label, prometheus_name

GOLDEN = Path(__file__).parent / "golden" / "prometheus.txt"
TYPES = {Instrument.COUNTER: "counter", Instrument.HISTOGRAM: "histogram"}


def lines() -> list[str]:
    return sorted(
        f"{prometheus_name(metric)} {TYPES.get(metric.instrument, 'gauge')} {metric.unit} {','.join(map(label, metric.attributes)) or '-'}"
        for metric in ALL_METRICS
    )


def test_names_types_units_and_labels_change_only_on_purpose():
    assert GOLDEN.read_text(encoding="utf-8").splitlines() == lines()
