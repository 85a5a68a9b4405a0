"""Whose fault a failure is, and what came first.

The visible error is often not the cause: when one rank dies, the others report a broken connection, and Ray reports a dead actor. Reports, exit codes,
Ray's message and the last log lines are therefore read together, known *consequences* are set aside as long as a cause is left, and the class is
chosen by precedence:

    preemption > oom > numeric > infra (lost node or head) > application > infra (a killed process, the network) > hang

Exit code 93 from the trainer means: do not restart. 137 is no policy code: the kernel produces it (SIGKILL).
"""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from samite.lifecycle.phases import FailureClass
from samite.lifecycle.plan import RestartPolicy
from samite.lifecycle.signatures import Signature, first_cause, match
from samite.spec.attempt import FailureReport

_SIGNAL_NAMES = {item.value: item.name for item in signal.Signals}
_PROGRAM_SIGNALS = frozenset({3, 4, 6, 8, 11})
"""Signals that a program earns by its own doing; the others come from outside."""

_DRIVER_ENDED = re.compile(r"entrypoint command failed with exit code (-?\d+)")
"""How Ray's job server tells of it; below zero is a signal."""
_PLAIN_INFRA = frozenset({"NodeLost", "HeadLost", "DeviceFault", "Storage"})
"""Infrastructure failures that explain an exception; the other kinds may be explained by one."""

PEER_LOST = "PeerLostError"
"""Error type of a rank's report about a collective that failed because another rank is gone."""

_PRECEDENCE = (
    FailureClass.USER,
    FailureClass.PREEMPTION,
    FailureClass.OOM,
    FailureClass.NUMERIC,
    FailureClass.INFRA,
    FailureClass.APPLICATION,
    FailureClass.HANG,
    FailureClass.OPERATOR,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How the process of a rank ended."""

    rank: int
    node: str = ""
    code: int | None = None
    signal: int | None = None

    @property
    def killed_by(self) -> int | None:
        """The signal, also when a shell wrapped it as 128 + n."""
        if self.signal is not None:
            return self.signal
        return self.code - 128 if self.code is not None and 128 < self.code <= 128 + 31 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A classified failure."""

    failure_class: FailureClass
    error_type: str
    message: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    traceback: str = ""
    step: int = -1
    data_window: tuple[int, int] | None = None
    good_step: int = -1
    restartable: bool = True
    verdict: str = ""
    """`Hold` or `Fail` if an exit-code rule of the run says so."""
    consequence: bool = False
    from_log: bool = False
    """Found in a log or in Ray's message, not reported."""


def classify(
    *,
    reports: Iterable[FailureReport] = (),
    exits: Iterable[RankExit] = (),
    job_message: str = "",
    log_tail: Sequence[str] = (),
    lost_nodes: Sequence[str] = (),
    lost_head: bool = False,
    preempted_nodes: frozenset[str] = frozenset(),
    policy: RestartPolicy,
) -> Cause:
    """The class and the first cause of a failure, from everything that is known about it. Says `operator` only if nothing at all is known."""
    causes = [*(_of_report(report, policy) for report in reports), *(_of_exit(item, policy) for item in exits)]
    outside = (cause for cause in causes if cause.failure_class is FailureClass.INFRA or cause.consequence)
    blamed = {node for cause in outside for node in cause.nodes} | set(lost_nodes)
    if preempted_nodes & blamed:
        gone = tuple(sorted(preempted_nodes & blamed))
        return Cause(
            failure_class=FailureClass.PREEMPTION,
            error_type="Preempted",
            message=f"{', '.join(gone)} had a preemption notice",
            ranks=_ranks(causes),
            nodes=gone,
        )
    refused = next((cause for cause in causes if not cause.restartable or cause.verdict), None)
    if refused is not None:
        return refused
    if lost_head or lost_nodes:
        what = "the head node" if lost_head else f"node {', '.join(lost_nodes)}"
        lost = Cause(
            failure_class=FailureClass.INFRA,
            error_type="HeadLost" if lost_head else "NodeLost",
            message=f"{what} was lost",
            ranks=_ranks(cause for cause in causes if cause.consequence or cause.failure_class is FailureClass.INFRA),
            nodes=tuple(lost_nodes),
        )
        # Memory and numbers may have gone wrong before; exceptions of the survivors may not be trusted once a node is gone.
        causes = [cause for cause in causes if cause.failure_class in (FailureClass.OOM, FailureClass.NUMERIC)] + [lost]
    found = first_cause(log_tail)
    if found is not None and not found[1].consequence:
        causes.append(_of_line(*found))
    if job_message:
        causes.append(_of_message(job_message))
    if not causes and found is not None:
        causes.append(_of_line(*found))
    if not causes:
        return Cause(
            failure_class=FailureClass.OPERATOR,
            error_type="Unexplained",
            message="the attempt ended and nothing says why: no report, no exit code, no message from Ray",
        )
    return _choose(causes)


def exit_description(item: RankExit) -> str:
    """`exit code 1` or `SIGKILL`."""
    number = item.killed_by
    if number is not None:
        return _SIGNAL_NAMES.get(number, f"signal {number}")
    return f"exit code {item.code}" if item.code is not None else "exit code unknown"


def _choose(causes: Sequence[Cause]) -> Cause:
    """Causes before consequences, then precedence of class, then the order in which they were reported."""
    best = min(
        enumerate(causes),
        key=lambda item: (item[1].consequence, _rank_of(item[1]), not item[1].message, item[0]),
    )[1]
    same = [cause for cause in causes if cause.failure_class is best.failure_class and not cause.consequence]
    return best if best.ranks or not same else _with_ranks(best, _ranks(same))


def _rank_of(cause: Cause) -> tuple[int, int]:
    # A killed process, a network that would not connect and a line in a log say less than an exception that some rank raised.
    bare = cause.failure_class is FailureClass.INFRA and cause.error_type not in _PLAIN_INFRA
    if cause.from_log or bare:
        return _PRECEDENCE.index(FailureClass.APPLICATION), 1 if cause.from_log else 2
    return _PRECEDENCE.index(cause.failure_class), 0


def _of_report(report: FailureReport, policy: RestartPolicy) -> Cause:
    try:
        failure_class = FailureClass(report.failure_class)
    except ValueError:
        failure_class = FailureClass.APPLICATION
    error_type, consequence = report.error_type, False
    code = _exit_code_of(report.error_type)
    if not report.restartable or code == policy.no_restart_code:
        return _from_report(report, failure_class, error_type, restartable=False)
    signature = match(f"{report.error_type}: {report.message}") or match(report.traceback[-2000:])
    vague = failure_class in (FailureClass.APPLICATION, FailureClass.INFRA, FailureClass.HANG)
    if signature is not None and (vague or signature.failure_class is failure_class):
        failure_class, error_type, consequence = signature.failure_class, signature.error_type, signature.consequence
    elif report.error_type == PEER_LOST:
        consequence = True
    return _from_report(report, failure_class, error_type, consequence=consequence)


def _from_report(
    report: FailureReport, failure_class: FailureClass, error_type: str, *, restartable: bool = True, consequence: bool = False
) -> Cause:
    window = report.data_window
    return Cause(
        failure_class=failure_class,
        error_type=error_type,
        message=f"{report.error_type}: {report.message}" if report.error_type not in report.message else report.message,
        ranks=(report.rank,) if report.rank >= 0 else (),
        nodes=(report.node,) if report.node else (),
        traceback=report.traceback,
        step=report.step,
        data_window=(int(window[0]), int(window[1])) if window else None,
        good_step=report.good_step,
        restartable=restartable,
        consequence=consequence,
    )


def _of_exit(item: RankExit, policy: RestartPolicy) -> Cause:
    described = exit_description(item)
    ranks, nodes = (item.rank,), (item.node,) if item.node else ()
    message = f"rank {item.rank} ended with {described}"
    if item.code == policy.no_restart_code:
        return Cause(
            failure_class=FailureClass.APPLICATION,
            error_type=described,
            message=f"{message}: the training program asks not to be restarted",
            ranks=ranks,
            nodes=nodes,
            restartable=False,
        )
    killed_by = item.killed_by
    for rule in policy.exit_codes:
        if item.code in rule.codes and killed_by is None:
            verdict = "" if rule.action == "Restart" else rule.action
            return Cause(
                failure_class=rule.failure_class,
                error_type=described,
                message=message,
                ranks=ranks,
                nodes=nodes,
                verdict=verdict,
            )
    if killed_by is None and item.code is None:
        message = f"the process of rank {item.rank} is gone"
        return Cause(failure_class=FailureClass.INFRA, error_type="ProcessGone", message=message, ranks=ranks, nodes=nodes)
    outside = killed_by is not None and killed_by not in _PROGRAM_SIGNALS
    return Cause(
        failure_class=FailureClass.INFRA if outside else FailureClass.APPLICATION,
        error_type=described,
        message=message,
        ranks=ranks,
        nodes=nodes,
        # An exit code alone adds nothing to an exception that the rank reported.
        consequence=killed_by is None,
    )


def _of_line(line: str, signature: Signature) -> Cause:
    return Cause(
        failure_class=signature.failure_class,
        error_type=signature.error_type,
        message=line[:500],
        consequence=signature.consequence,
        from_log=True,
    )


def _of_message(message: str) -> Cause:
    signature = match(message)
    if signature is not None:
        return _of_line(message.strip(), signature)
    killed = _DRIVER_ENDED.search(message)
    number = RankExit(rank=-1, code=abs(int(killed[1])) + (128 if int(killed[1]) < 0 else 0)).killed_by if killed is not None else None
    if number is not None and number not in _PROGRAM_SIGNALS:
        name = _SIGNAL_NAMES.get(number, f"signal {number}")
        return Cause(failure_class=FailureClass.INFRA, error_type=name, message=f"the driver of the submission ended with {name}")
    # Ray repeats the traceback of the driver: some program failed, but a rank's own report knows better.
    return Cause(failure_class=FailureClass.APPLICATION, error_type="JobFailed", message=message.strip()[:500], consequence=True)


def _exit_code_of(error_type: str) -> int | None:
    found = re.fullmatch(r"(?:exit(?: code)?[ _:]?|SystemExit[ _:]?)?(\d{1,3})", error_type.strip(), re.IGNORECASE)
    return int(found.group(1)) if found else None


def _ranks(causes: Iterable[Cause]) -> tuple[int, ...]:
    return tuple(sorted({rank for cause in causes for rank in cause.ranks}))


def _with_ranks(cause: Cause, ranks: tuple[int, ...]) -> Cause:
    return Cause(
        failure_class=cause.failure_class,
        error_type=cause.error_type,
        message=cause.message,
        ranks=ranks,
        nodes=cause.nodes,
        traceback=cause.traceback,
        step=cause.step,
        data_window=cause.data_window,
        good_step=cause.good_step,
        consequence=cause.consequence,
    )
