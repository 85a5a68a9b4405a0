"""Metrics as Prometheus names them: what dashboards and alert rules ask for, and what the operator's /metrics tells.

The rules are OpenTelemetry's: dots become underscores, the unit goes to the end (`_seconds`, `_bytes`; a gauge of unit 1 ends in `_ratio`; units
in braces vanish), a counter ends in `_total`, a histogram is three series. A collector or a Prometheus that receives OTLP does the same.
"""

from collections.abc import Mapping

from samite.telemetry.attributes import RESOURCE_ATTRIBUTES, STAGE_ATTRIBUTES
from samite.telemetry.instruments import Instrument, Metric
from samite.telemetry.metrics import ALL_METRICS

_SUFFIX = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}
TARGET_LABELS = frozenset({"job", "instance", "k8s_namespace_name", "k8s_node_name", "k8s_pod_name"})
"""Labels that the scrape or the collector adds to any series."""


def prometheus_name(metric: Metric) -> str:
    """`samite.step.duration` in seconds is `samite_step_duration_seconds`; counters end in `_total`, ratios in `_ratio`."""
    name = metric.name.replace(".", "_") + _SUFFIX.get(metric.unit, "")
    return name + "_total" if metric.instrument is Instrument.COUNTER else name


def series_names(metric: Metric) -> tuple[str, ...]:
    """The names of its series: one, or three of a histogram."""
    name = prometheus_name(metric)
    return tuple(name + suffix for suffix in ("_bucket", "_sum", "_count")) if metric.instrument is Instrument.HISTOGRAM else (name,)


def label(attribute: str) -> str:
    """The label of an attribute: `samite.stage.name` is `samite_stage_name`."""
    return attribute.replace(".", "_")


def labels_of(metric: Metric) -> frozenset[str]:
    """Labels that its series may carry: its own, those of the stage, of the resource and of the target; `le` for a histogram's buckets."""
    own = {label(name) for name in metric.attributes}
    shared = {label(attribute.name) for attribute in (*STAGE_ATTRIBUTES, *RESOURCE_ATTRIBUTES)}
    return frozenset(own | shared | TARGET_LABELS | ({"le"} if metric.instrument is Instrument.HISTOGRAM else set()))


def series() -> Mapping[str, Metric]:
    """Every series name with its metric."""
    return {name: metric for metric in ALL_METRICS for name in series_names(metric)}
