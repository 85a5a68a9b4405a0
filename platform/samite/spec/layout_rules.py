"""Rules about numbers that must divide: workers, parallel layout, context and batch."""

from collections.abc import Iterator
from math import lcm

from samite.spec.rules import Document, Finding, Rule, nearest, part, stages


def _range_is_a_range(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        low, high = part(stage, "workers", "min"), part(stage, "workers", "max")
        if low is not None and high is not None and low > high:
            path = ("spec", "stages", index, "workers", "max")
            yield Finding(path=path, wanted=f"at least workers.min ({low})", found=str(high), hint=f"write max: {low}, or min: {high}")


def _layout_divides(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        sizes = [part(stage, "parallel", name) for name in ("tensor", "pipeline", "context")]
        if (ranks := _ranks(stage, "min")) is None or None in sizes:
            continue
        product = sizes[0] * sizes[1] * sizes[2]
        if ranks % product:
            wanted = f"parallel.tensor x pipeline x context to divide the {ranks} ranks of workers.min"
            found = f"{sizes[0]} x {sizes[1]} x {sizes[2]} = {product}"
            yield Finding(path=("spec", "stages", index, "parallel"), wanted=wanted, found=found, hint=_workers_hint(stage, product, ranks))


def _experts_divide(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        pipeline, expert = part(stage, "parallel", "pipeline"), part(stage, "parallel", "expert")
        if (ranks := _ranks(stage, "min")) is None or pipeline is None or expert is None:
            continue
        if ranks % (pipeline * expert):
            wanted = f"parallel.pipeline x expert to divide the {ranks} ranks of workers.min"
            found = f"{pipeline} x {expert} = {pipeline * expert}"
            yield Finding(
                path=("spec", "stages", index, "parallel", "expert"),
                wanted=wanted,
                found=found,
                hint=_workers_hint(stage, pipeline * expert, ranks),
            )


def _data_fits(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        sizes = [part(stage, "parallel", name) for name in ("data", "tensor", "pipeline", "context")]
        low, high = _ranks(stage, "min"), _ranks(stage, "max")
        if None in sizes or low is None or high is None:
            continue
        product = sizes[0] * sizes[1] * sizes[2] * sizes[3]
        if low != product or high != product:
            path = ("spec", "stages", index, "parallel", "data")
            wanted = f"data x tensor x pipeline x context to be the number of ranks ({low if low == high else f'{low} to {high}'})"
            found = f"{' x '.join(str(size) for size in sizes)} = {product}"
            model_ranks = product // sizes[0]
            hint = (
                f"write {high // model_ranks}, or leave data out: it is derived"
                if low == high and high % model_ranks == 0
                else "leave data out: it is derived"
            )
            yield Finding(path=path, wanted=wanted, found=found, hint=hint)


def _context_halves(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        length, context = stage.get("contextLength"), part(stage, "parallel", "context")
        if length is not None and context is not None and length % (2 * context):
            path = ("spec", "stages", index, "contextLength")
            yield Finding(
                path=path,
                wanted=f"a multiple of {2 * context} (2 x parallel.context)",
                found=str(length),
                hint=nearest(length, 2 * context),
            )


def _batch_is_whole_rows(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        length, tokens = stage.get("contextLength"), part(stage, "batch", "tokens")
        if length is not None and tokens is not None and tokens % length:
            path = ("spec", "stages", index, "batch", "tokens")
            wanted = f"a multiple of contextLength ({length}): a step sees whole rows"
            yield Finding(path=path, wanted=wanted, found=str(tokens), hint=nearest(tokens, length * _unit_rows(stage)))


def _rows_divide(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        length, tokens, micro = stage.get("contextLength"), part(stage, "batch", "tokens"), part(stage, "batch", "microBatch")
        groups = _data_groups(stage)
        if length is None or tokens is None or micro is None or groups is None or tokens % length:
            continue
        rows, unit = tokens // length, _unit_rows(stage)
        if rows % unit:
            counted = " and ".join(str(group) for group in sorted(set(groups)))
            wanted = f"rows of {length} tokens that divide over {counted} data-parallel ranks in micro-batches of {micro}: a multiple of {unit} rows"
            path = ("spec", "stages", index, "batch", "tokens")
            yield Finding(path=path, wanted=wanted, found=f"{tokens} tokens = {rows} rows", hint=nearest(tokens, unit * length))


def _ranks(stage: Document, end: str) -> int | None:
    workers, gpus = part(stage, "workers", end), stage.get("gpusPerWorker")
    return None if workers is None or gpus is None else workers * max(gpus, 1)


def _data_groups(stage: Document) -> list[int] | None:
    """Data-parallel ranks with the fewest and with all workers; None if they are not whole, which another rule says."""
    sizes = [part(stage, "parallel", name) for name in ("tensor", "pipeline", "context")]
    ends = [_ranks(stage, "min"), _ranks(stage, "max")]
    if None in sizes or None in ends:
        return None
    product = sizes[0] * sizes[1] * sizes[2]
    return None if any(ranks is None or ranks % product for ranks in ends) else [ranks // product for ranks in ends if ranks is not None]


def _unit_rows(stage: Document) -> int:
    """Smallest number of rows that every width of the stage can share out evenly."""
    groups, micro = _data_groups(stage), part(stage, "batch", "microBatch")
    return lcm(*groups) * micro if groups and micro else 1


def _workers_hint(stage: Document, product: int, ranks: int) -> str:
    """The next number of workers that a layout of `product` ranks divides."""
    gpus = max(stage.get("gpusPerWorker", 0), 1)
    unit = lcm(product, gpus) // gpus
    workers = -(-ranks // gpus // unit) * unit
    return f"such as workers: {{min: {workers}, max: {max(workers, part(stage, 'workers', 'max') or 0)}}}, or make the layout smaller"


_RANKS = "(self.workers.{end} * (self.gpusPerWorker > 0 ? self.gpusPerWorker : 1))"
_MIN, _MAX = _RANKS.format(end="min"), _RANKS.format(end="max")
_MODEL = "(self.parallel.tensor * self.parallel.pipeline * self.parallel.context)"

LAYOUT_RULES = (
    Rule(
        name="workers-range-is-a-range",
        check=_range_is_a_range,
        at="spec.stages[].workers",
        cel="self.min <= self.max",
        message="workers.min is at most workers.max",
    ),
    Rule(
        name="layout-divides-the-ranks",
        check=_layout_divides,
        at="spec.stages[]",
        cel=f"{_MIN} % {_MODEL} == 0",
        message="parallel.tensor x pipeline x context divides the ranks of workers.min",
    ),
    Rule(
        name="experts-divide-the-ranks",
        check=_experts_divide,
        at="spec.stages[]",
        cel=f"{_MIN} % (self.parallel.pipeline * self.parallel.expert) == 0",
        message="parallel.pipeline x expert divides the ranks of workers.min",
    ),
    Rule(
        name="data-fits-the-ranks",
        check=_data_fits,
        at="spec.stages[]",
        cel=f"!has(self.parallel.data) || ({_MIN} == self.parallel.data * {_MODEL} && {_MAX} == self.parallel.data * {_MODEL})",
        message="parallel.data x tensor x pipeline x context is the number of ranks; leave data out to have it derived",
    ),
    Rule(
        name="context-splits-in-halves",
        check=_context_halves,
        at="spec.stages[]",
        cel="self.contextLength % (2 * self.parallel.context) == 0",
        message="contextLength is a multiple of 2 x parallel.context",
    ),
    Rule(
        name="batch-is-whole-rows",
        check=_batch_is_whole_rows,
        at="spec.stages[]",
        cel="self.batch.tokens % self.contextLength == 0",
        message="batch.tokens is a multiple of contextLength",
    ),
    Rule(
        name="rows-divide-over-the-ranks",
        check=_rows_divide,
        at="spec.stages[]",
        cel=f"self.batch.tokens % self.contextLength != 0 || {_MIN} % {_MODEL} != 0 || {_MAX} % {_MODEL} != 0 || "
        f"(self.batch.tokens / self.contextLength % ({_MIN} / {_MODEL} * self.batch.microBatch) == 0 && "
        f"self.batch.tokens / self.contextLength % ({_MAX} / {_MODEL} * self.batch.microBatch) == 0)",
        message="the rows of a step divide over the data-parallel ranks, in micro-batches, with workers.min and with workers.max",
    ),
)
