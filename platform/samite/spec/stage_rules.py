"""Rules about the order of the stages, their budgets, and what passes from one to the next."""

from collections.abc import Iterator
from typing import Any

from samite.spec.cel import CelRule, computed, first_with, indices, let, only_one, repeats, template
from samite.spec.rules import Document, Finding, Rule, exactly_one, part, stages
from samite.spec.yaml_tree import Path as YamlPath

BUDGETS = ("tokens", "steps", "wallSeconds")


def _unique_names(document: Document) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, stage in stages(document):
        name = stage.get("name")
        if name is None:
            continue
        if name in first:
            path = ("spec", "stages", index, "name")
            yield Finding(
                path=path,
                wanted="a name of its own for each stage",
                found=f'"{name}", which stages[{first[name]}] has already',
                hint=f"such as {name}-{index + 1}",
            )
        first.setdefault(name, index)


def _context_never_shrinks(document: Document) -> Iterator[Finding]:
    longest, owner = 0, ""
    for index, stage in stages(document):
        length = stage.get("contextLength")
        if length is None or stage.get("kind") == "RL":
            continue
        if length < longest:
            wanted = f"at least {longest}, the contextLength of {owner}: the context never shrinks before RL"
            yield Finding(
                path=("spec", "stages", index, "contextLength"),
                wanted=wanted,
                found=str(length),
                hint=f"write {longest} or more, or put this stage first",
            )
        if length > longest:
            longest, owner = length, stage.get("name") or f"stages[{index}]"


def _rl_comes_last(document: Document) -> Iterator[Finding]:
    rl_stage = ""
    for index, stage in stages(document):
        if stage.get("kind") == "RL":
            rl_stage = rl_stage or stage.get("name") or f"stages[{index}]"
        elif rl_stage:
            yield Finding(
                path=("spec", "stages", index),
                wanted="no other kind after RL",
                found=f"{stage.get('kind')} after {rl_stage}",
                hint=f"move {rl_stage} to the end",
            )


def _one_budget(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        budget = stage.get("budget")
        if isinstance(budget, dict) and (odd := exactly_one(budget, BUDGETS)):
            path = ("spec", "stages", index, "budget")
            yield Finding(
                path=path, wanted="exactly one of tokens, steps and wallSeconds", found=odd[0], hint=odd[1] or "such as steps: 100"
            )


def _handover_is_said(document: Document) -> Iterator[Finding]:
    from_checkpoint = "loadFrom" in (part(document, "spec", "checkpoint") or {})
    for index, stage in stages(document):
        path = ("spec", "stages", index, "handover")
        if not stage:
            continue
        name = stage.get("name") or "this stage"
        if index > 0 and "handover" not in stage:
            wanted = f"what {name} takes over from the stage before it: optimizer, lrSchedule and dataCursor have no default"
            yield Finding(
                path=path,
                wanted=wanted,
                found="nothing",
                hint="to continue as before: handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}",
            )
        if index == 0 and from_checkpoint and "handover" not in stage:
            wanted = f"what {name} takes over from checkpoint.loadFrom: optimizer, lrSchedule and dataCursor have no default"
            hint = "for the weights alone: handover: {optimizer: Reset, lrSchedule: Reset, dataCursor: Reset, stepCounter: Reset, tokenCounter: Reset}"
            yield Finding(path=path, wanted=wanted, found="nothing", hint=hint)


def _nothing_to_hand_over(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        checkpoint = part(document, "spec", "checkpoint")
        if index == 0 and "handover" in stage and isinstance(checkpoint, dict) and "loadFrom" not in checkpoint:
            wanted = "no handover in the first stage: nothing comes before it"
            yield Finding(
                path=("spec", "stages", 0, "handover"),
                wanted=wanted,
                found="a handover",
                hint="remove it, or name a checkpoint in checkpoint.loadFrom",
            )


def _new_data_needs_a_new_cursor(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        cursor = part(stage, "handover", "dataCursor")
        for key in ("uri", "shuffleSeed"):
            if part(stage, "data", key) is not None and cursor not in {None, "Reset"}:
                path = ("spec", "stages", index, "handover", "dataCursor")
                wanted = f"Reset, because data.{key} changes and a place in the old order means nothing in the new one"
                yield Finding(path=path, wanted=wanted, found=str(cursor), hint=f"write Reset, or remove data.{key}")


def _unique_sources(document: Document) -> Iterator[Finding]:
    places: list[tuple[YamlPath, Any]] = [(("spec", "data", "mixture"), part(document, "spec", "data", "mixture"))]
    places += [(("spec", "stages", index, "data", "mixture"), part(stage, "data", "mixture")) for index, stage in stages(document)]
    for path, mixture in places:
        seen: set[str] = set()
        for position, entry in enumerate(mixture if isinstance(mixture, list) else []):
            source = (entry or {}).get("source")
            if source is not None and source in seen:
                yield Finding(
                    path=(*path, position, "source"), wanted="each source once", found=f'"{source}" again', hint="add the two weights"
                )
            if source is not None:
                seen.add(source)


MAX_STAGES = 16
MAX_SOURCES = 64
_HANDOVERS = f"{indices(MAX_STAGES)}.all(i, i == 0 || i >= self.size() || has(self[i].handover))"


def _shrinking() -> str:
    """CEL: the message about the first stage whose context is shorter than one before it."""
    before = f"{indices(MAX_STAGES)}.filter(j, j < i && self[j].kind != 'RL')"
    shorter = f"self[i].kind != 'RL' && {before}.exists(j, self[j].contextLength > self[i].contextLength)"
    says = template(
        "[<<i>>].contextLength: wanted at least <<m>>, the contextLength of <<self.filter(s, s.kind != 'RL' && s.contextLength == m)[0].name>>: "
        "the context never shrinks before RL; found <<self[i].contextLength>>; write <<m>> or more, or put this stage first"
    )
    return let("i", first_with(shorter, MAX_STAGES), let("m", f"{before}.map(j, self[j].contextLength).max()", says))


def _after_rl() -> str:
    """CEL: the message about the first stage that follows RL and is none."""
    first = first_with(f"self[i].kind != 'RL' && {indices(MAX_STAGES)}.exists(j, j < i && self[j].kind == 'RL')", MAX_STAGES)
    says = template("[<<i>>]: wanted no other kind after RL; found <<self[i].kind>> after <<r>>; move <<r>> to the end")
    return let("i", first, let("r", "self.filter(s, s.kind == 'RL')[0].name", says))


def _unsaid() -> str:
    """CEL: the message about the first stage after the first one that has no hand-over."""
    says = template(
        "[<<i>>].handover: wanted what <<self[i].name>> takes over from the stage before it: optimizer, lrSchedule and dataCursor have no default; "
        "found nothing; to continue as before: handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}"
    )
    return let("i", first_with("i > 0 && !has(self[i].handover)", MAX_STAGES), says)


def _same_name() -> str:
    """CEL: the message about the first stage that has the name of one before it."""
    says = template(
        "[<<i>>].name: wanted a name of its own for each stage; "
        f'found "<<self[i].name>>", which stages[<<{indices(MAX_STAGES)}.filter(j, j < i && self[j].name == self[i].name)[0]>>] has already; '
        "such as <<self[i].name>>-<<i + 1>>"
    )
    return let("i", repeats("name", MAX_STAGES), says)


def _unique_source(at: str) -> CelRule:
    says = template('[<<i>>].source: wanted each source once; found "<<self[i].source>>" again; add the two weights')
    return CelRule(
        at=at,
        holds="self.all(a, self.exists_one(b, b.source == a.source))",
        says=computed(let("i", repeats("source", MAX_SOURCES), says)),
    )


STAGE_RULES = (
    Rule(
        name="stage-names-are-unique",
        check=_unique_names,
        message="each stage needs a name of its own",
        cel=(CelRule(at="spec.stages", holds="self.all(a, self.exists_one(b, b.name == a.name))", says=computed(_same_name())),),
    ),
    Rule(
        name="context-never-shrinks",
        check=_context_never_shrinks,
        message="contextLength never shrinks from stage to stage before RL",
        cel=(
            CelRule(
                at="spec.stages", holds="self.filter(s, s.kind != 'RL').map(s, s.contextLength).isSorted()", says=computed(_shrinking())
            ),
        ),
    ),
    Rule(
        name="rl-comes-last",
        check=_rl_comes_last,
        message="no other kind of stage after RL",
        cel=(CelRule(at="spec.stages", holds="self.map(s, s.kind == 'RL' ? 1 : 0).isSorted()", says=computed(_after_rl())),),
    ),
    Rule(
        name="one-budget",
        check=_one_budget,
        message="exactly one of tokens, steps and wallSeconds",
        cel=(only_one("spec.stages[].budget", BUDGETS, otherwise="such as steps: 100"),),
    ),
    Rule(
        name="handover-is-said",
        check=_handover_is_said,
        message="every stage but the first needs a handover, and the first one too when checkpoint.loadFrom is set",
        cel=(
            CelRule(at="spec.stages", holds=_HANDOVERS, says=computed(_unsaid())),
            CelRule(
                at="spec",
                field=".stages",
                holds="!has(self.checkpoint.loadFrom) || has(self.stages[0].handover)",
                says="[0].handover: wanted what <<self.stages[0].name>> takes over from checkpoint.loadFrom: optimizer, lrSchedule and dataCursor have "
                "no default; found nothing; for the weights alone: handover: {optimizer: Reset, lrSchedule: Reset, dataCursor: Reset, "
                "stepCounter: Reset, tokenCounter: Reset}",
            ),
        ),
    ),
    Rule(
        name="nothing-to-hand-over",
        check=_nothing_to_hand_over,
        message="the first stage has no handover unless checkpoint.loadFrom is set",
        cel=(
            CelRule(
                at="spec",
                field=".stages",
                holds="has(self.checkpoint.loadFrom) || !has(self.stages[0].handover)",
                says="[0].handover: wanted no handover in the first stage: nothing comes before it; found a handover; "
                "remove it, or name a checkpoint in checkpoint.loadFrom",
            ),
        ),
    ),
    Rule(
        name="new-data-needs-a-new-cursor",
        check=_new_data_needs_a_new_cursor,
        message="handover.dataCursor must be Reset when the stage changes data.uri or data.shuffleSeed",
        cel=(
            CelRule(
                at="spec.stages[]",
                field=".handover.dataCursor",
                holds="!has(self.handover) || self.handover.dataCursor == 'Reset' || !has(self.data) || "
                "!(has(self.data.uri) || has(self.data.shuffleSeed))",
                says="wanted Reset, because data.<<has(self.data.uri) ? 'uri' : 'shuffleSeed'>> changes and a place in the old order means nothing in "
                "the new one; found <<self.handover.dataCursor>>; write Reset, or remove data.<<has(self.data.uri) ? 'uri' : 'shuffleSeed'>>",
            ),
        ),
    ),
    Rule(
        name="sources-are-unique",
        check=_unique_sources,
        message="each source stands once in a mixture",
        cel=(_unique_source("spec.data.mixture"), _unique_source("spec.stages[].data.mixture")),
    ),
)
