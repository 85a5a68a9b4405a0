"""Whether a stage may hand over: measured numbers against what the gate asks for. The lines carry the numbers; they go into the hand-over."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from samite.lifecycle.actions import GateQuestion

CHECKPOINT_VERIFIED = "checkpoint_verified"
"""Built-in check that needs no measurement: 1 when the stage's last checkpoint has verified."""


class GateVerdict(StrEnum):
    """Outcome of a check or of a whole gate."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    FAIL = "fail"
    UNKNOWN = "unknown"
    """A number is missing: neither passed nor failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """One check with its number."""

    metric: str
    verdict: GateVerdict
    value: float | None
    wanted: str

    @property
    def line(self) -> str:
        """As people read it: `loss 2.310 (wanted < 2.5, median of 50 steps): pass`."""
        shown = "not measured" if self.value is None else f"{self.value:.6g}"
        return f"{self.metric} {shown} (wanted {self.wanted}): {self.verdict}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """All checks of a gate."""

    verdict: GateVerdict
    checks: tuple[CheckResult, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each check."""
        return tuple(check.line for check in self.checks)


def judge_gate(questions: tuple[GateQuestion, ...], values: Mapping[str, float], *, verified: bool) -> GateResult:
    """Judge every check. One failure fails the gate; otherwise one missing number makes it unknown. NaN fails every comparison."""
    checks = tuple(_check(question, _value(question.metric, values, verified=verified)) for question in questions)
    verdicts = {check.verdict for check in checks}
    for verdict in (GateVerdict.FAIL, GateVerdict.UNKNOWN):
        if verdict in verdicts:
            return GateResult(verdict=verdict, checks=checks)
    return GateResult(verdict=GateVerdict.PASS, checks=checks)


def needs_measurement(questions: tuple[GateQuestion, ...]) -> tuple[GateQuestion, ...]:
    """The checks whose number the engine must measure."""
    return tuple(question for question in questions if question.metric != CHECKPOINT_VERIFIED)


def _value(metric: str, values: Mapping[str, float], *, verified: bool) -> float | None:
    return float(verified) if metric == CHECKPOINT_VERIFIED else values.get(metric)


def _check(question: GateQuestion, value: float | None) -> CheckResult:
    statistic = "median" if question.quantile == 0.5 else f"quantile {question.quantile:g}"
    wanted = f"{question.op} {question.value:g}, {statistic} of {question.window} steps"
    if question.metric == CHECKPOINT_VERIFIED:
        wanted = f"{question.op} {question.value:g}"
    return CheckResult(metric=question.metric, verdict=_verdict(value, question), value=value, wanted=wanted)


def _verdict(value: float | None, question: GateQuestion) -> GateVerdict:
    if value is None:
        return GateVerdict.UNKNOWN
    return GateVerdict.PASS if _compare(value, question.op, question.value) else GateVerdict.FAIL


def _compare(value: float, op: str, bound: float) -> bool:
    if op == "<":
        return value < bound
    if op == "<=":
        return value <= bound
    if op == ">":
        return value > bound
    if op == ">=":
        return value >= bound
    raise ValueError(f"gate check: op must be one of < <= > >=; got {op!r}")
