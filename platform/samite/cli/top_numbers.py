"""The numbers of `samite top`: the newest metrics and heartbeats of a run folder, as rows. No drawing here, and no waiting.

Reads only the end of each metrics file, so that a run of weeks opens as quickly as one of minutes.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samite.cli.output import duration, size
from samite.telemetry import jsonlines
from samite.telemetry.records import MetricRecord

TREND = 60
"""Values that a trend shows."""
TAIL_BYTES = 1_000_000
MOST_RANKS = 16
_BARS = "▁▂▃▄▅▆▇█"

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the screen: a name, its newest value, how it went lately, and a word about it."""

    title: str
    value: str
    trend: tuple[float, ...] = ()
    note: str = ""
    bad: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """One rank: what it does, and how long it has been silent."""

    rank: int
    node: str
    phase: str
    step: int
    age_s: float
    step_s: float
    host_bytes: float | None = None
    device_bytes: float | None = None


@dataclass(slots=True)
class Numbers:
    """What a run folder says about its metrics and ranks; `poll` takes in what is new."""

    folder: Path
    curves: dict[Key, "deque[float]"] = field(default_factory=dict)
    """Of rank 0."""
    memory: dict[int, dict[str, float]] = field(default_factory=dict)
    """Newest memory by rank and metric."""
    beats: list[RankRow] | None = None
    """The ranks as they were when the folder was there; None: read them from the folder."""
    _followers: dict[int, jsonlines.Follower] = field(default_factory=dict)

    def poll(self) -> None:
        """Read what was written since the last call."""
        for file in sorted(self.folder.glob("metrics/rank-*.jsonl"))[:64]:
            rank = file.stem.removeprefix("rank-")
            if rank.isdigit() and int(rank) not in self._followers:
                self._followers[int(rank)] = jsonlines.Follower(file, tail_bytes=TAIL_BYTES)
        for rank_, follower in self._followers.items():
            for record in filter(None, map(MetricRecord.from_document, follower.poll())):
                self._take(rank_, record)

    def _take(self, rank: int, record: MetricRecord) -> None:
        for point in record.points:
            if point.name in ("process.memory.usage", "samite.device.memory.peak"):
                self.memory.setdefault(rank, {})[point.name] = point.value
            if rank == 0:
                key = point.name, tuple(sorted(point.attributes.items()))
                self.curves.setdefault(key, deque(maxlen=TREND)).append(point.value)

    def trend(self, name: str, **attributes: str) -> tuple[float, ...]:
        """The last values of a metric with exactly these attribute values."""
        wanted = set(attributes.values())
        for (metric, labels), values in self.curves.items():
            if metric == name and {value for _, value in labels} == wanted:
                return tuple(values)
        return ()

    def by_layer(self, name: str) -> dict[str, float]:
        """Newest value by layer."""
        found = {}
        for (metric, labels), values in self.curves.items():
            layer = dict(labels).get("samite.layer.block")
            if metric == name and layer is not None and values:
                found[layer] = values[-1]
        return found

    def ranks(self, now_unix_s: float | None = None) -> list[RankRow]:
        """The ranks, the most silent first; at most `MOST_RANKS`."""
        from samite.spec.attempt import Heartbeat

        if self.beats is not None:
            return self.beats
        now_s, found = time.time() if now_unix_s is None else now_unix_s, []
        for file in self.folder.glob("heartbeats/rank-*.json"):
            try:
                beat = Heartbeat.read(file)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            memory = self.memory.get(beat.rank, {})
            found.append(
                RankRow(
                    rank=beat.rank,
                    node=beat.node,
                    phase=beat.phase,
                    step=beat.step,
                    age_s=max(0.0, now_s - beat.time_unix_s),
                    step_s=beat.compute_s or beat.step_median_s,
                    host_bytes=memory.get("process.memory.usage"),
                    device_bytes=memory.get("samite.device.memory.peak"),
                )
            )
        loudest = sorted(found, key=lambda row: (-round(row.age_s), row.rank))[:MOST_RANKS]
        return sorted(loudest, key=lambda row: row.rank)


def rows(numbers: Numbers) -> list[Row]:
    """The screen's rows; what was never measured is left out."""
    return [row for row in (*_learning(numbers), *_speed(numbers), *_decay(numbers), *_experts(numbers)) if row is not None]


def spark(values: Sequence[float]) -> str:
    """A trend as bars, lowest to highest; `x` for what is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "x" * len(values)
    low, high = min(finite), max(finite)
    width = (high - low) or 1.0
    return "".join(_BARS[min(7, int(8 * (value - low) / width))] if math.isfinite(value) else "x" for value in values)


def _learning(numbers: Numbers) -> Iterable[Row | None]:
    yield _number("loss", numbers.trend("samite.loss", kind="total"), "nats")
    vision = numbers.trend("samite.loss", kind="vision")
    yield _number("loss of captions", vision, "nats") if vision else None
    clipped = numbers.trend("samite.grad.clipped")
    share = f"{100 * sum(clipped) / len(clipped):.0f} % of the last {len(clipped)} steps clipped" if clipped else ""
    yield _number("gradient norm", numbers.trend("samite.grad.norm", group="global"), share)
    yield _number("learning rate", numbers.trend("samite.optimizer.learning_rate"), "")


def _speed(numbers: Numbers) -> Iterable[Row | None]:
    total = numbers.trend("samite.step.duration", part="total")
    compute = numbers.trend("samite.step.duration", part="compute")
    if total:
        waiting = f"{100 * max(0.0, 1 - sum(compute) / sum(total)):.0f} % waiting for other ranks" if compute and sum(total) else ""
        yield Row(title="step time", value=duration(total[-1]), trend=total, note=waiting)
    ratio = numbers.trend("samite.step.straggler")
    yield _number("slowest rank", ratio, "times the median", bad=bool(ratio) and ratio[-1] > 1.15)


def _decay(numbers: Numbers) -> Iterable[Row | None]:
    margins = numbers.by_layer("samite.decay.tile.margin")
    if margins:
        layer = min(margins, key=margins.__getitem__)
        yield Row(
            title="decay margin",
            value=f"{margins[layer]:.1f} nats",
            trend=numbers.trend("samite.decay.tile.margin", block=layer),
            note=f"lowest, in layer {layer}; below 0 a factor overflows",
            bad=margins[layer] < 0,
        )
    lost = numbers.by_layer("samite.decay.underflow")
    if lost:
        worst = max(lost, key=lost.__getitem__)
        note = f"in layer {worst}: information is lost" if lost[worst] > 0 else "none"
        yield Row(title="lost decay products", value=f"{100 * lost[worst]:.3g} %", note=note, bad=lost[worst] > 0)
    gates = numbers.by_layer("samite.decay.gate.saturated")
    if gates:
        worst = max(gates, key=gates.__getitem__)
        trend = numbers.trend("samite.decay.gate.saturated", block=worst)
        yield Row(title="gates at their bound", value=f"{100 * gates[worst]:.1f} %", trend=trend, note=f"most, in layer {worst}")


def _experts(numbers: Numbers) -> Iterable[Row | None]:
    loads, floors = numbers.by_layer("samite.moe.expert.load.maxvio"), numbers.by_layer("samite.moe.expert.load.maxvio_floor")
    if loads:
        worst = max(loads, key=loads.__getitem__)
        floor = floors.get(worst)
        note = f"worst, in layer {worst}" + (f"; chance alone shows {floor:.2f}" if floor is not None else "")
        trend = numbers.trend("samite.moe.expert.load.maxvio", block=worst)
        yield Row(title="expert load over mean", value=f"{loads[worst]:.2f}", trend=trend, note=note)
    idle = numbers.by_layer("samite.moe.expert.idle.count")
    if idle and max(idle.values()) > 0:
        worst = max(idle, key=idle.__getitem__)
        yield Row(title="idle experts", value=f"{idle[worst]:.0f}", note=f"in layer {worst}")


def _number(title: str, trend: tuple[float, ...], note: str, *, bad: bool = False) -> Row | None:
    if not trend:
        return None
    return Row(title=title, value=f"{trend[-1]:.4g}", trend=trend, note=note, bad=bad or not math.isfinite(trend[-1]))


def rank_cells(row: RankRow) -> list[str]:
    """The cells of a rank's line."""
    memory = [size(value) if value else "-" for value in (row.host_bytes, row.device_bytes)]
    return [str(row.rank), row.node, row.phase, str(row.step), duration(row.age_s), duration(row.step_s or None), *memory]


RANK_TITLES = ("RANK", "NODE", "PHASE", "STEP", "SILENT", "STEP TIME", "HOST", "DEVICE")
