"""What people ask for, answered once for each request id: cancel, suspend, resume, restart, skip, approve, exclude, uncordon."""

from collections.abc import Callable

from samite.lifecycle import blame
from samite.lifecycle.memory import Memory
from samite.lifecycle.people import Request, RequestKind
from samite.lifecycle.phases import ACTIVE, TERMINAL, TRAINING, Level, Phase
from samite.lifecycle.respond import request_restart
from samite.lifecycle.trust import apply_verdict
from samite.lifecycle.turn import Turn

_REMEMBERED = 64


def answer_requests(turn: Turn) -> None:
    """Cancel wins over suspend, and both over everything else."""
    phase = turn.memory.phase
    if phase in TERMINAL or phase is Phase.CANCELLING:
        return
    if turn.observed.cancel:
        turn.emit("samite.run.cancelled", actor="user")
        turn.goto(Phase.CANCELLING, "Requested")
        return
    for request in turn.observed.requests:
        if request.request_id in turn.memory.handled_requests:
            continue
        turn.remember(handled_requests=(*turn.memory.handled_requests, request.request_id)[-_REMEMBERED:])
        _ANSWERS[request.kind](turn, request)
    if turn.observed.suspend and turn.memory.phase in ACTIVE:
        turn.emit("samite.run.suspended", actor="user")
        turn.goto(Phase.SUSPENDING, "Requested")


def _resume(turn: Turn, request: Request) -> None:
    if turn.memory.phase is not Phase.HELD:
        return
    turn.emit("samite.run.resumed", actor=request.by or "user")
    turn.remember(**fresh_trust(turn.memory))
    if turn.memory.reason == "DecayUnderflow":
        turn.remember(decay_acknowledged_stage=turn.memory.stage_index)
    if turn.memory.reason == "ExpertCollapse":
        turn.remember(collapse_accepted_stage=turn.memory.stage_index)
    if turn.memory.reason == "GateFailed":
        turn.remember_stage(gate_tries=turn.stage_memory.gate_tries + 1)
    turn.goto(Phase.QUEUED, "Resumed", request.argument)


def fresh_trust(memory: Memory) -> dict[str, object]:
    """A person says go on: what counted against the run is forgotten, except for the record of what happened."""
    failed = memory.last_failure.failure_class if memory.last_failure is not None else None
    return {
        "spent": {key: times for key, times in memory.spent.items() if key is not failed},
        "cycles_without_commit": 0,
        "backoff_exponent": 0,
        "failures": (),
        "pause": None,
        "recovery": None,
        "roll_back": None,
    }


def _restart(turn: Turn, request: Request) -> None:
    if turn.memory.phase not in TRAINING:
        return
    level = Level.L3_CLUSTER if request.argument == "L3" else Level.L2_ATTEMPT
    request_restart(turn, level=level, reason=f"restart asked for by {request.by or 'user'}")


def _skip(turn: Turn, request: Request) -> None:
    known = turn.memory.skip_data_windows
    new = tuple(window for window in request.windows if window not in known)
    if not new:
        return
    turn.remember(skip_data_windows=(*known, *new))
    for window in new:
        turn.emit("samite.numeric.window.skipped", data_window=list(window), actor=request.by or "user")
    if turn.memory.phase in TRAINING:
        request_restart(turn, level=Level.L2_ATTEMPT, reason=f"data windows left out by {request.by or 'user'}")


def _approve(turn: Turn, request: Request) -> None:
    if request.argument in turn.memory.approvals or request.argument not in {s.name for s in turn.plan.stages}:
        return
    turn.remember(approvals=(*turn.memory.approvals, request.argument))
    if turn.memory.phase is Phase.HELD and turn.memory.reason == "GateFailed":
        turn.goto(Phase.QUEUED, "Approved", f"by {request.by or 'user'}")


def _exclude(turn: Turn, request: Request) -> None:
    machine = turn.machine_of(request.argument)
    verdict = blame.quarantine(
        turn.memory.blame,
        node=machine,
        reason=f"excluded by {request.by or 'user'}",
        pool=max(1, len(turn.cluster_seen().nodes)),
        policy=turn.plan.nodes,
        now_s=turn.now_s,
        by_request=True,
    )
    apply_verdict(turn, machine, f"excluded by {request.by or 'user'}", verdict)


def _uncordon(turn: Turn, request: Request) -> None:
    turn.remember(blame=blame.release(turn.memory.blame, turn.machine_of(request.argument)))
    turn.emit("samite.node.released", node=turn.machine_of(request.argument), reason=f"by {request.by or 'user'}")


_ANSWERS: dict[RequestKind, Callable[[Turn, Request], None]] = {
    RequestKind.RESUME: _resume,
    RequestKind.RESTART: _restart,
    RequestKind.SKIP: _skip,
    RequestKind.APPROVE: _approve,
    RequestKind.EXCLUDE: _exclude,
    RequestKind.UNCORDON: _uncordon,
}
