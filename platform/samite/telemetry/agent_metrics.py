"""The metrics of the node agent: the host, its devices, and the only series that exist once per rank. Looked up through `samite.telemetry.names`.

`system.` and `hw.` are OpenTelemetry's own conventions. A node with eight devices and eight ranks has at most 25 + 40 series.
"""

from samite.telemetry.instruments import Instrument, Metric

_COUNTER, _COUNT, _GAUGE = Instrument.COUNTER, Instrument.UP_DOWN_COUNTER, Instrument.GAUGE


def _metric(name: str, instrument: Instrument, unit: str, brief: str, *attributes: str) -> Metric:
    return Metric(name=name, instrument=instrument, unit=unit, source="agent", brief=brief, attributes=attributes)


NODE_METRICS: tuple[Metric, ...] = (
    _metric("system.memory.usage", _COUNT, "By", "Host memory that is not available to new programs"),
    _metric("system.memory.limit", _GAUGE, "By", "Host memory that exists"),
    _metric("hw.gpu.memory.usage", _COUNT, "By", "Device memory in use, by whatever process", "hw.id"),
    _metric("hw.gpu.memory.limit", _GAUGE, "By", "Device memory that exists, of the node's smallest device"),
    _metric("hw.gpu.utilization", _GAUGE, "1", "Share of the last sample period in which a kernel ran", "hw.id"),
    _metric("hw.errors", _COUNTER, "{error}", "Errors of the node's devices since their driver was loaded", "error.type"),
    _metric("samite.node.device.count", _COUNT, "{device}", "Devices of the node that are not well", "samite.device.state"),
    _metric("samite.node.drain.count", _COUNT, "{notice}", "1 while there is a notice that the machine will be taken away"),
)

RANK_METRICS: tuple[Metric, ...] = (
    _metric("samite.rank.heartbeat.age", _GAUGE, "s", "Time since the rank's last sign", "samite.rank"),
    _metric("samite.rank.step.number", _GAUGE, "{step}", "Optimizer steps that the rank has finished", "samite.rank"),
    _metric("samite.rank.compute.time", _GAUGE, "s", "Median of what a step costs this rank itself, without waiting", "samite.rank"),
    _metric("samite.rank.process.count", _COUNT, "{process}", "1 while the rank's process runs; 0: stopped, dead or gone", "samite.rank"),
    _metric("samite.rank.memory.usage", _COUNT, "By", "Resident host memory of the rank's process", "samite.rank"),
)
"""At most five: each is one series for each rank of the run."""

AGENT_METRICS = (*NODE_METRICS, *RANK_METRICS)
