"""Which charts a report has, from the curves of a run. A chart without data is left out; the page says so for whole sections."""

import functools
from collections.abc import Callable, Sequence

from samite.report import figures
from samite.report.chart import Chart, Line, Mark
from samite.report.curves import Curve, Curves, Piece, spread, together
from samite.report.run_data import RunData

_LOSSES = (("total", "all tokens", 1), ("text", "text", 2), ("vision", "image captions", 3), ("router", "router", 4), ("z", "z", 5))
_GROUPS = ("global", "attention", "expert", "dense", "router", "embedding", "vision", "other")
_PARTS = (("compute", 1), ("communication", 2), ("data", 3), ("optimizer", 4))
_MANY_LAYERS = 6
"""Up to so many layers get a line each; more are drawn as lowest, median and highest."""


def marks_of(curves: Curves) -> list[Mark]:
    """Where stages begin (but for the first) and where the run was restarted."""
    stages = [Mark(step=s.first_step, kind="stage", label=s.stage) for s in curves.stage_starts[1:]]
    restarts = [
        Mark(step=s.first_step, kind="restart", label=f"restart: {s.attempt or 'attempt'} goes on at step {s.first_step}")
        for s in curves.restarts
    ]
    return stages + restarts


def learning(run: RunData) -> list[Chart]:
    """Loss, gradient norm, learning rate."""
    curves, marks = run.curves, marks_of(run.curves)
    losses = [_line(curves, label, curves.get("samite.loss", kind=kind), color) for kind, label, color in _LOSSES]
    norms = curves.family("samite.grad.norm", "samite.param.group")
    lines = [
        _line(curves, "all parameters" if group == "global" else group, norms.get(group), index) for index, group in enumerate(_GROUPS, 1)
    ]
    return [
        Chart(
            key="loss",
            title="Loss",
            note="Mean cross entropy over supervised tokens, in nats.",
            lines=_present(losses),
            marks=marks,
            wide=True,
        ),
        Chart(
            key="grad-norm",
            title="Gradient norm",
            note="Before clipping, by group of parameters.",
            lines=_present(lines),
            marks=marks,
            log=True,
        ),
        Chart(
            key="learning-rate",
            title="Learning rate",
            note="As the optimizer used it.",
            lines=_present([_line(curves, "learning rate", curves.get("samite.optimizer.learning_rate"), 1)]),
            marks=marks,
            zero=True,
        ),
    ]


def speed(run: RunData) -> list[Chart]:
    """Where a step's time goes, and how many tokens it trains in a second."""
    curves, marks = run.curves, marks_of(run.curves)
    found = [(part, color, curve) for part, color in _PARTS if (curve := curves.get("samite.step.duration", part=part)) is not None]
    total = curves.get("samite.step.duration", part="total")
    *parts, whole = together([*(curve for _, _, curve in found), total], curves) if found and total is not None else (None,)
    lines = [Line(label=part, pieces=[piece], color=color) for (part, color, _), piece in zip(found, parts, strict=False) if piece]
    if whole is not None:
        lines.append(Line(label="everything else", pieces=[_rest(whole, [piece for piece in parts if piece])], color=0))
    return [
        Chart(
            key="step-time",
            title="Step time",
            note="Seconds of a step, by what they were spent on.",
            lines=lines,
            marks=marks,
            stacked=True,
            number=figures.span,
        ),
        Chart(
            key="throughput",
            title="Throughput",
            note="Trained tokens in a second of step time, over all ranks.",
            lines=_throughput(curves),
            marks=marks,
            zero=True,
            number=figures.compact,
        ),
    ]


def experts(run: RunData) -> list[Chart]:
    """Expert load against what chance alone shows."""
    curves, marks = run.curves, marks_of(run.curves)
    maxvio = curves.family("samite.moe.expert.load.maxvio", "samite.layer.block")
    floors = curves.family("samite.moe.expert.load.maxvio_floor", "samite.layer.block")
    load = _by_layer(curves, maxvio)
    if floors:
        load.append(Line(label="floor: a perfectly balanced router", pieces=[spread(floors, curves)["median"]], color=0, dashed=True))
    return [
        Chart(
            key="maxvio",
            title="Expert load: MaxVio against its floor",
            note="Largest load over mean load, minus 1. Chance alone shows the floor, so only what lies above it is imbalance.",
            lines=load,
            marks=marks,
            log=True,
            wide=True,
        ),
        _layers(run, "load-cv", "Load variation", "Standard deviation over mean of expert loads.", "samite.moe.expert.load.cv", zero=True),
        _layers(run, "idle", "Idle experts", "Experts that got no token in a step.", "samite.moe.expert.idle.count", zero=True),
        _layers(
            run,
            "entropy",
            "Router entropy",
            "Nats per token; a fall towards 0 is a router that made up its mind.",
            "samite.moe.router.entropy",
        ),
    ]


def decay(run: RunData) -> list[Chart]:
    """The decay signals of linear attention."""
    share = functools.partial(_layers, run, number=figures.share, zero=True)
    margin = _layers(run, "tile-margin", "Overflow margin", "Nats left before a tile leaves float32.", "samite.decay.tile.margin")
    return [
        share(
            "gate-saturated",
            "Saturated gates",
            "Share of gates at their lower bound: their gradient is nearly dead.",
            "samite.decay.gate.saturated",
        ),
        share("memoryless", "Memoryless heads", "Share of heads that forget everything within a chunk.", "samite.decay.head.memoryless"),
        Chart(
            key=margin.key,
            title=margin.title,
            note=margin.note,
            lines=margin.lines,
            marks=margin.marks,
            zero=True,
            limit=0.0 if not margin.is_empty() else None,
            limit_label="overflow below",
        ),
        share(
            "forgotten",
            "Forgotten chunks",
            "Share of channels that carry nothing over a chunk.",
            "samite.decay.chunk.forgotten",
            threshold="normal",
        ),
        share("gate-open", "Open gates", "Share of gates that never forget.", "samite.decay.gate.open"),
        share("beta-saturated", "Saturated beta", "Share of write strengths below 0.001 or above 0.999.", "samite.decay.beta.saturated"),
    ]


def memory(run: RunData) -> list[Chart]:
    """Host memory of each rank, device memory against its limit."""
    marks = marks_of(run.curves)
    host = _ranks(run, "process.memory.usage")
    device = _ranks(run, "samite.device.memory.peak", kind="reserved")
    limit = run.curves.get("samite.device.memory.limit")
    return [
        Chart(
            key="host-memory",
            title="Host memory",
            note="Resident memory of each rank's process.",
            lines=host,
            marks=marks,
            zero=True,
            binary=True,
            number=figures.size,
        ),
        Chart(
            key="device-memory",
            title="Device memory",
            note="Peak of what the allocator holds, by rank.",
            lines=device,
            marks=marks,
            zero=True,
            binary=True,
            number=figures.size,
            limit=max(limit.values) if limit is not None and len(limit) else None,
            limit_label="limit",
        ),
    ]


def _layers(
    run: RunData,
    key: str,
    title: str,
    note: str,
    metric: str,
    *,
    zero: bool = False,
    number: Callable[[float, int], str] = figures.significant,
    **fixed: str,
) -> Chart:
    found = run.curves.family(metric, "samite.layer.block", **fixed)
    lines = _by_layer(run.curves, found)
    return Chart(key=key, title=title, note=note, lines=lines, marks=marks_of(run.curves), zero=zero, number=number)


def _by_layer(curves: Curves, found: dict[str, Curve]) -> list[Line]:
    if len(found) > _MANY_LAYERS:
        band = spread(found, curves)
        return [
            Line(label=f"{name} of {len(found)} layers", pieces=[band[name]], color=color)
            for name, color in (("highest", 2), ("median", 1), ("lowest", 3))
        ]
    ordered = sorted(found, key=lambda block: (len(block), block))
    return _present([_line(curves, f"layer {block}", found[block], index) for index, block in enumerate(ordered, 1)])


def _ranks(run: RunData, metric: str, **attributes: str) -> list[Line]:
    found = {rank: curve for rank, curves in run.ranks.items() if (curve := curves.get(metric, **attributes)) is not None}
    if len(found) > _MANY_LAYERS:
        steps = run.ranks[min(found)]
        band = spread({str(rank): curve for rank, curve in found.items()}, steps)
        return [
            Line(label=f"{name} of {len(found)} ranks", pieces=[band[name]], color=color)
            for name, color in (("highest", 2), ("median", 1), ("lowest", 3))
        ]
    return _present([_line(run.ranks[rank], f"rank {rank}", curve, index) for index, (rank, curve) in enumerate(sorted(found.items()), 1)])


def _throughput(curves: Curves) -> list[Line]:
    total = curves.get("samite.step.duration", part="total")
    kinds = [
        curve
        for (name, labels), curve in curves.curves.items()
        if name == "samite.tokens" and ("samite.token.kind", "padded") not in labels
    ]
    if total is None or not kinds:
        return []
    tokens: dict[float, float] = {}
    for curve in kinds:
        piece = curves.counting(curve)
        for step, value in zip(piece.steps, piece.values, strict=True):
            tokens[step] = tokens.get(step, 0.0) + value
    durations = curves.counting(total)
    pairs = [
        (step, tokens[step] / seconds)
        for step, seconds in zip(durations.steps, durations.values, strict=True)
        if step in tokens and seconds > 0
    ]
    return [Line(label="tokens per second", pieces=[Piece([s for s, _ in pairs], [v for _, v in pairs])], color=1)] if pairs else []


def _rest(whole: Piece, parts: Sequence[Piece]) -> Piece:
    """What of the whole the parts leave."""
    sums = [sum(values) for values in zip(*(part.values for part in parts), strict=True)]
    return Piece(whole.steps, [max(0.0, value - used) for value, used in zip(whole.values, sums, strict=True)])


def _line(curves: Curves, label: str, curve: Curve | None, color: int) -> Line | None:
    return None if curve is None else Line(label=label, pieces=curves.pieces(curve), color=color)


def _present(lines: Sequence[Line | None]) -> list[Line]:
    return [line for line in lines if line is not None]
