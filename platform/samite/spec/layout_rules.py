"""Rules about numbers that must divide: workers, parallel layout, context and batch."""

from collections.abc import Iterator
from math import lcm

from samite.spec.cel import CelRule, computed, let, nearest_multiples, template
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


_GPUS = "(self.gpusPerWorker > 0 ? self.gpusPerWorker : 1)"
_MIN, _MAX = f"self.workers.min * {_GPUS}", f"self.workers.max * {_GPUS}"
_MODEL = "self.parallel.tensor * self.parallel.pipeline * self.parallel.context"
_EXPERTS = "self.parallel.pipeline * self.parallel.expert"
_DIVISORS = (*range(1, 65), 72, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 2048, 4096)
"""Common divisors that CEL looks for, because it has no loop that Euclid's algorithm needs."""


def _common_divisor(a: str, b: str) -> str:
    """CEL: the greatest of `_DIVISORS` that divides both."""
    return f"[{', '.join(map(str, _DIVISORS))}].filter(d, {a} % d == 0 && {b} % d == 0).max()"


def _more_workers(product: str) -> str:
    """CEL: the hint of `_workers_hint`."""
    unit = f"p / {_common_divisor('p', 'g')}"
    says = template("such as workers: {min: <<w>>, max: <<w > self.workers.max ? w : self.workers.max>>}, or make the layout smaller")
    return let("g", _GPUS, let("p", product, let("u", unit, let("w", "(self.workers.min + u - 1) / u * u", says))))


def _unit(low: str, high: str) -> str:
    """CEL: rows that both widths share out evenly, without the micro-batch; the least such number if their common divisor is in `_DIVISORS`."""
    return f"({high} % {low} == 0 ? {high} : {low} / {_common_divisor(low, high)} * {high})"


def _rows() -> str:
    """CEL: the message about rows that cannot be shared out."""
    counted = "l == h ? '%s'.format([l]) : '%s and %s'.format(l < h ? [l, h] : [h, l])"
    says = template(
        f"wanted rows of <<self.contextLength>> tokens that divide over <<{counted}>> data-parallel ranks in "
        "micro-batches of <<self.batch.microBatch>>: a multiple of <<u>> rows; found <<self.batch.tokens>> tokens = "
        "<<self.batch.tokens / self.contextLength>> rows; " + computed(nearest_multiples("self.batch.tokens", "u * self.contextLength"))
    )
    return let("l", f"{_MIN} / ({_MODEL})", let("h", f"{_MAX} / ({_MODEL})", let("u", f"{_unit('l', 'h')} * self.batch.microBatch", says)))


def _whole_rows() -> str:
    """CEL: the message about a step that is no whole number of rows."""
    fits = f"{_MIN} % ({_MODEL}) == 0 && {_MAX} % ({_MODEL}) == 0"
    low, high = f"({_MIN} / ({_MODEL}))", f"({_MAX} / ({_MODEL}))"
    unit = f"({fits} ? {let('l', low, let('h', high, _unit('l', 'h')))} * self.batch.microBatch : 1)"
    says = template(
        "wanted a multiple of contextLength (<<self.contextLength>>): a step sees whole rows; found <<self.batch.tokens>>; "
        + computed(nearest_multiples("self.batch.tokens", "u * self.contextLength"))
    )
    return let("u", unit, says)


_ALL_RANKS = f"self.parallel.data * {_MODEL}"

LAYOUT_RULES = (
    Rule(
        name="workers-range-is-a-range",
        check=_range_is_a_range,
        message="workers.min is at most workers.max",
        cel=(
            CelRule(
                at="spec.stages[].workers",
                field=".max",
                holds="self.min <= self.max",
                says="wanted at least workers.min (<<self.min>>); found <<self.max>>; write max: <<self.min>>, or min: <<self.max>>",
            ),
        ),
    ),
    Rule(
        name="layout-divides-the-ranks",
        check=_layout_divides,
        message="parallel.tensor x pipeline x context divides the ranks of workers.min",
        cel=(
            CelRule(
                at="spec.stages[]",
                field=".parallel",
                holds=f"{_MIN} % ({_MODEL}) == 0",
                says=f"wanted parallel.tensor x pipeline x context to divide the <<{_MIN}>> ranks of workers.min; found <<self.parallel.tensor>> x "
                f"<<self.parallel.pipeline>> x <<self.parallel.context>> = <<{_MODEL}>>; {computed(_more_workers(_MODEL))}",
            ),
        ),
    ),
    Rule(
        name="experts-divide-the-ranks",
        check=_experts_divide,
        message="parallel.pipeline x expert divides the ranks of workers.min",
        cel=(
            CelRule(
                at="spec.stages[]",
                field=".parallel.expert",
                holds=f"{_MIN} % ({_EXPERTS}) == 0",
                says=f"wanted parallel.pipeline x expert to divide the <<{_MIN}>> ranks of workers.min; found <<self.parallel.pipeline>> x "
                f"<<self.parallel.expert>> = <<{_EXPERTS}>>; {computed(_more_workers(_EXPERTS))}",
            ),
        ),
    ),
    Rule(
        name="data-fits-the-ranks",
        check=_data_fits,
        message="parallel.data x tensor x pipeline x context is the number of ranks; leave data out to have it derived",
        cel=(
            CelRule(
                at="spec.stages[]",
                field=".parallel.data",
                holds=f"!has(self.parallel.data) || ({_MIN} == {_ALL_RANKS} && {_MAX} == {_ALL_RANKS})",
                says=f"wanted data x tensor x pipeline x context to be the number of ranks (<<self.workers.min == self.workers.max ? '%s'.format([{_MIN}]) : "
                f"'%s to %s'.format([{_MIN}, {_MAX}])>>); found <<self.parallel.data>> x <<self.parallel.tensor>> x "
                f"<<self.parallel.pipeline>> x <<self.parallel.context>> = <<{_ALL_RANKS}>>; <<self.workers.min == self.workers.max && "
                f"{_MAX} % ({_MODEL}) == 0 ? 'write %s, or '.format([{_MAX} / ({_MODEL})]) : ''>>leave data out: it is derived",
            ),
        ),
    ),
    Rule(
        name="context-splits-in-halves",
        check=_context_halves,
        message="contextLength is a multiple of 2 x parallel.context",
        cel=(
            CelRule(
                at="spec.stages[]",
                field=".contextLength",
                holds="self.contextLength % (2 * self.parallel.context) == 0",
                says="wanted a multiple of <<2 * self.parallel.context>> (2 x parallel.context); found <<self.contextLength>>; "
                + computed(nearest_multiples("self.contextLength", "2 * self.parallel.context")),
            ),
        ),
    ),
    Rule(
        name="batch-is-whole-rows",
        check=_batch_is_whole_rows,
        message="batch.tokens is a multiple of contextLength",
        cel=(
            CelRule(
                at="spec.stages[]",
                field=".batch.tokens",
                holds="self.batch.tokens % self.contextLength == 0",
                says=computed(_whole_rows()),
            ),
        ),
    ),
    Rule(
        name="rows-divide-over-the-ranks",
        check=_rows_divide,
        message="the rows of a step divide over the data-parallel ranks, in micro-batches, with workers.min and with workers.max",
        cel=(
            CelRule(
                at="spec.stages[]",
                field=".batch.tokens",
                holds=f"self.batch.tokens % self.contextLength != 0 || {_MIN} % ({_MODEL}) != 0 || {_MAX} % ({_MODEL}) != 0 || "
                f"[{_MIN}, {_MAX}].all(r, self.batch.tokens / self.contextLength % (r / ({_MODEL}) * self.batch.microBatch) == 0)",
                says=computed(_rows()),
            ),
        ),
    ),
)
