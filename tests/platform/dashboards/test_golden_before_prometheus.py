"""A real Prometheus that receives everything in the registry over OTLP knows each series by the name, type, unit and labels of the golden file."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "telemetry"))

import every_signal
from live_prometheus import running

from samite.telemetry.prometheus import TARGET_LABELS, label, series

pytestmark = [pytest.mark.boards, pytest.mark.timeout(240)]
GOLDEN = (Path(every_signal.__file__).parent / "golden" / "prometheus.txt").read_text(encoding="utf-8").splitlines()
UNITS = {"s": "seconds", "By": "bytes"}
SHARED = {
    "__name__",
    "__type__",
    "__unit__",
    "le",
    "job",
    "instance",
    "service_name",
    "samite_run_name",
    "samite_run_uid",
    *TARGET_LABELS,
} | {label(name) for name in every_signal.STAGE}


def test_prometheus_knows_every_series_as_the_golden_file_says(prometheus: Path, tmp_path: Path):
    """Type and unit come as labels of their own: its metadata endpoint knows of scrapes alone."""
    with running(prometheus, tmp_path / "prometheus", groups=(), feature="type-and-unit-labels") as live:
        every_signal.send(live.otlp, tmp_path)
        ends_s = time.monotonic() + 60
        while not set(series()) <= (told := set(live.ask("label/__name__/values"))) and time.monotonic() < ends_s:
            time.sleep(0.5)
        assert set(series()) - told == set()
        found = {item["metric"]["__name__"]: item["metric"] for item in live.ask("query", query='{__name__=~".+"}')["result"]}
    lines = []
    for line in GOLDEN:
        name, _, unit, wanted = line.split(" ", 3)
        labels = found.get(name) or found[f"{name}_bucket"]
        own = sorted(set(labels) - SHARED | (set(wanted.split(",")) & set(labels)), key=wanted.split(",").index)
        told_unit = labels.get("__unit__")
        assert told_unit == UNITS.get(unit), name  # "1" and braces vanish
        lines.append(f"{name} {labels['__type__']} {unit} {','.join(own) or '-'}")
    assert lines == GOLDEN
