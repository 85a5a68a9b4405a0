"""What an agent reads, as values by registered name, and as Prometheus' text. Values are absolute: a counter's is its total, not an increment."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from samite.telemetry import names
from samite.telemetry.instruments import Instrument
from samite.telemetry.prometheus import label, prometheus_name

_KINDS = {Instrument.COUNTER: "counter", Instrument.UP_DOWN_COUNTER: "gauge", Instrument.GAUGE: "gauge"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Which run a rank belongs to. `namespace` is empty on a machine without Kubernetes."""

    name: str = ""
    uid: str = ""
    namespace: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """As attributes; nothing for no run."""
        found = {"samite.run.name": self.name, "samite.run.uid": self.uid, "k8s.namespace.name": self.namespace}
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One value of a metric of the registry, at this moment."""

    name: str
    value: float
    attributes: Mapping[str, str] = field(default_factory=dict)
    run: Run = Run()

    def checked(self) -> "Reading":
        """Itself; ValueError for a name or attribute outside the registry."""
        names.metric_attributes(self.name, self.attributes)
        return self

    @property
    def labels(self) -> dict[str, str]:
        """Attributes of the series, those of its run included."""
        return {**self.run.labels, **self.attributes}


def exposition(readings: Iterable[Reading], resource: Mapping[str, str]) -> str:
    """Prometheus' text format, version 0.0.4. `resource` becomes labels of every series."""
    families: dict[str, list[Reading]] = {}
    for reading in readings:
        families.setdefault(reading.name, []).append(reading)
    lines = [line for name in sorted(families) for line in _family(name, families[name], resource)]
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, readings: list[Reading], resource: Mapping[str, str]) -> Iterator[str]:
    metric = names.metric(name)
    told = prometheus_name(metric)
    yield f"# HELP {told} {metric.brief}"
    yield f"# TYPE {told} {_KINDS[metric.instrument]}"
    for reading in readings:
        labels = ",".join(f'{label(key)}="{_escaped(value)}"' for key, value in sorted({**resource, **reading.labels}.items()))
        yield f"{told}{{{labels}}} {reading.value:.17g}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
