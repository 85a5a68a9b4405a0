"""The page `docs/signals.md`, written from the registry: `python -m samite.telemetry.reference > docs/signals.md`. A test keeps it equal."""

import sys
from collections.abc import Iterable, Sequence

from samite.telemetry.agent_metrics import NODE_METRICS, RANK_METRICS
from samite.telemetry.attributes import EVENT_ATTRIBUTES, METRIC_ATTRIBUTES, RESOURCE_ATTRIBUTES, STAGE_ATTRIBUTES
from samite.telemetry.event_names import ALL_EVENTS
from samite.telemetry.instruments import Attribute
from samite.telemetry.metrics import (
    ALL_METRICS,
    CHECKPOINT_METRICS,
    DECAY_METRICS,
    OPERATOR_METRICS,
    ROUTER_METRICS,
    RUN_METRICS,
    TRAINING_METRICS,
)

_SECTIONS = (
    ("Training", TRAINING_METRICS),
    ("Decay of linear attention", DECAY_METRICS),
    ("Experts", ROUTER_METRICS),
    ("Checkpoints", CHECKPOINT_METRICS),
    ("Run", RUN_METRICS),
    ("Operator", OPERATOR_METRICS),
    ("Node agent: of the node", NODE_METRICS),
    ("Node agent: once per rank", RANK_METRICS),
)

_HEAD = """# Signals

Every metric, event and attribute of Samite. Written by `python -m samite.telemetry.reference`; edit the tables in
`platform/samite/telemetry/`, not this page. *Reserved* names are fixed, but nothing records them yet.

Signals always go to the run folder as JSON lines: one line for all metrics of a step in `metrics/rank-<r>.jsonl`, one line for each event in
`events.jsonl`. With `telemetry.otlpEndpoint` (gRPC, such as `http://collector:4317`) they also go out over OTLP: metrics, events as log
records with an event name, and the spans of each attempt. An endpoint that does not answer costs one warning, a count in
`samite.telemetry.dropped`, and at most 5 seconds at the end; never time of a step.

Each attempt is one trace: `attempt` with `provision` and `start` from the engine, `load`, `train` with a `save` for each checkpoint, and `stop` from the
trainer. Its ids are a hash of run and submission, so nobody has to tell them to anybody; each attempt links to the one before, and its log records carry it.

A line of metrics, and one of events. Numbers that JSON does not have are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.

```json
{"time": 1764600017.2, "step": 1, "attempt": "demo-s00-a1", "incarnation": 0, "stage": {"samite.stage.name": "short"},
 "points": [["samite.loss", 7.66, {"samite.loss.kind": "total"}]]}
{"time": 1764600017.3, "name": "samite.training.started", "severity": "INFO", "attributes": {"samite.step.index": 1},
 "resource": {"service.name": "samite-trainer", "samite.run.name": "demo"}}
```

Prometheus turns dots into underscores and adds the unit: `samite.step.duration` is `samite_step_duration_seconds`, a ratio ends in `_ratio`, a
counter in `_total`.

## To Prometheus and Grafana

Trainer and local supervisor send OTLP; the operator and the node agents (docs/node-agent.md) send OTLP and also answer at `/metrics`. A Prometheus that
receives OTLP itself (`--web.enable-otlp-receiver`) or a collector in between must turn the resource into labels, because boards and alerts ask for them:

```yaml
otlp:  # in prometheus.yml; a collector's Prometheus exporter says resource_to_telemetry_conversion: {enabled: true}
  promote_resource_attributes: [service.name, samite.run.name, samite.run.uid, k8s.namespace.name, k8s.node.name, k8s.pod.name]
```

`samite dashboards export --out DIR` writes nine Grafana dashboards (`--format configmap` for its sidecar), `samite alerts export --out DIR` the alert
rules; the chart brings both with `monitoring.dashboards` and `monitoring.prometheusRule`. Each alert has a page under `docs/runbooks/`. A query that names
a metric or a label which is not on this page fails the tests.

A counter that begins with its first event has nothing to increase from: `increase(samite_failures_total[10m])` misses the first failure. The alerts ask for
`max_over_time(x[10m]) unless x offset 10m or increase(x[10m])`.
"""


def markdown() -> str:
    """The whole page."""
    parts = [_HEAD, f"## Metrics\n\n{len(ALL_METRICS)} metrics. Each may carry {_names(a.name for a in STAGE_ATTRIBUTES)} as well.\n"]
    for title, metrics in _SECTIONS:
        rows = [(f"`{m.name}`", str(m.instrument), f"`{m.unit}`", _names(m.attributes), m.source, m.brief) for m in metrics]
        parts.append(f"### {title}\n\n{_table(('metric', 'instrument', 'unit', 'attributes', 'from', 'what'), rows)}")
    events = [
        (f"`{event.name}`", str(event.severity).lower(), _names(event.attributes), event.brief + (" (reserved)" if event.reserved else ""))
        for event in ALL_EVENTS
    ]
    parts.append(
        f"## Events\n\n{len(ALL_EVENTS)} events. Any may carry further attributes.\n\n{_table(('event', 'severity', 'attributes', 'what'), events)}"
    )
    parts.append("## Attributes\n")
    for title, attributes in (
        ("Of the resource", RESOURCE_ATTRIBUTES),
        ("Of every metric", STAGE_ATTRIBUTES),
        ("Of metrics and events", METRIC_ATTRIBUTES),
        ("Of events only", EVENT_ATTRIBUTES),
    ):
        parts.append(f"### {title}\n\n{_table(('attribute', 'type', 'values', 'what'), map(_attribute_row, attributes))}")
    return "\n".join(parts)


def _attribute_row(attribute: Attribute) -> tuple[str, ...]:
    return f"`{attribute.name}`", attribute.type, ", ".join(attribute.values), attribute.brief


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    sys.stdout.write(markdown())
