"""Faults on demand: what drills, `samite chaos` and tests make a rank do wrong.

Nothing happens unless somebody asks: by a file `control/faults.json` in the run folder (may appear while the run trains), or by the
environment variable SAMITE_FAULTS of an attempt. Both hold `{"faults": [{"kind": "nan", "rank": 1, "step": 12}, ...]}`.

    nan        one gradient value of the rank becomes NaN in step `step`
    spike      the rank's gradient is `factor` times what it was, in each of `times` steps from `step` on
    sleep      the rank sleeps `seconds` inside the step, as a blocked training function does
    slow       each of `times` steps from `step` on takes `factor` times as long
    exception  the rank raises InjectedFaultError
    oom        the rank raises MemoryError, as a failed host allocation does
    kill       the rank sends itself SIGKILL when it reaches `point`
    stop       the rank sends itself SIGSTOP: it lives, answers nothing, and trains nothing

A fault fires `times` times over the whole run: each firing first leaves a marker in `control/fired/`, so that a restarted rank does not
repeat what its predecessor already suffered. Points of `kill` are reached by name: `step` in the loop, `checkpoint.<phase>` in the writer.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

FAULTS_VARIABLE = "SAMITE_FAULTS"
NEXT_STEP = -1
"""As `step`: the first step that the rank runs after it has read the fault."""
KINDS = ("nan", "spike", "sleep", "slow", "exception", "oom", "kill", "stop")


class InjectedFaultError(RuntimeError):
    """Raised on request only; never a fault of the run itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing to go wrong. `step` counts optimizer steps of the run, beginning with the 1st; `rank` -1 means every rank."""

    kind: str
    id: str = ""
    rank: int = 0
    step: int = NEXT_STEP
    times: int = 1
    seconds: float = 0.0
    factor: float = 2.0
    point: str = "step"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault kind {self.kind!r}: wanted one of {', '.join(KINDS)}")


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Faults of one JSON document; raises ValueError that names the faulty entry. Entries without an id get their place as id."""
    entries = json.loads(text).get("faults", [])
    known = {f.name for f in fields(Fault)}
    faults = []
    for index, entry in enumerate(entries):
        unknown = sorted(set(entry) - known)
        if unknown:
            raise ValueError(f"faults[{index}]: unknown {', '.join(unknown)}; wanted some of {', '.join(sorted(known))}")
        faults.append(Fault(**{"id": f"fault-{index}", **entry}))
    return tuple(faults)


class FaultPlan:
    """The faults that concern one rank, re-read when the control file changes. One `stat` a step when nobody asks for any."""

    def __init__(self, run_folder: Path, rank: int, environment: Mapping[str, str] = os.environ) -> None:
        self._control = run_folder / "control" / "faults.json"
        self._fired = run_folder / "control" / "fired"
        self._rank = rank
        self._fixed = parse_faults(environment[FAULTS_VARIABLE]) if environment.get(FAULTS_VARIABLE) else ()
        self._seen_ns = 0
        self._active: tuple[Fault, ...] = self._mine(self._fixed)

    def begin_step(self, step: int) -> None:
        """Run what is due before the forward pass of optimizer step `step` (counted from 1)."""
        self._refresh()
        for fault in self._due(step, kinds=("sleep", "exception", "oom", "kill", "stop")):
            if fault.kind == "kill" and fault.point != "step":
                continue
            if not self._claim(fault):
                continue
            if fault.kind == "sleep":
                time.sleep(fault.seconds)
            elif fault.kind == "exception":
                raise InjectedFaultError(f"fault {fault.id} was asked for: rank {self._rank} raises in step {step}")
            elif fault.kind == "oom":
                raise MemoryError(f"fault {fault.id} was asked for: rank {self._rank} is out of memory in step {step}")
            elif fault.kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                _kill_this_process()

    def poisons_gradient(self, step: int) -> bool:
        """Whether the rank must write a NaN into its gradient in this step."""
        return any(self._claim(fault) for fault in self._due(step, kinds=("nan",)))

    def swells_gradient(self, step: int) -> float:
        """What the rank must multiply its gradient by in this step; 1 but for a fault."""
        return next((fault.factor for fault in self._due(step, kinds=("spike",)) if self._claim(fault)), 1.0)

    def drag(self, step: int, busy_s: float) -> None:
        """Sleep so long that a step that worked for `busy_s` seconds takes `factor` times as long."""
        for fault in self._active:
            if fault.kind == "slow" and step >= fault.step and self._claim(fault):
                time.sleep(max(0.0, fault.factor - 1.0) * busy_s)

    def reach(self, point: str, step: int) -> None:
        """Called where a kill is worth testing; kills the process if a fault names this point and a step up to `step`."""
        for fault in self._active:
            if fault.kind == "kill" and fault.point == point and step >= fault.step and self._claim(fault):
                _kill_this_process()

    def _due(self, step: int, kinds: tuple[str, ...]) -> list[Fault]:
        return [f for f in self._active if f.kind in kinds and (f.step in (NEXT_STEP, step) or (f.times > 1 and step > f.step))]

    def _refresh(self) -> None:
        try:
            changed_ns = self._control.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed_ns != self._seen_ns:
            self._seen_ns = changed_ns
            self._active = self._mine(self._fixed + parse_faults(self._control.read_text(encoding="utf-8")))

    def _mine(self, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        return tuple(f for f in faults if f.rank in (-1, self._rank))

    def _claim(self, fault: Fault) -> bool:
        """True once for each of the fault's `times`, over all incarnations of the rank."""
        self._fired.mkdir(parents=True, exist_ok=True)
        for shot in range(fault.times):
            try:
                (self._fired / f"{fault.id}.rank-{self._rank}.{shot}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


_plan: FaultPlan | None = None
_last_words: Callable[[], object] | None = None


def install(plan: FaultPlan | None) -> None:
    """Make `plan` the one that `reach` asks; None switches faults off."""
    global _plan
    _plan = plan


def before_kill(last_words: Callable[[], object] | None) -> None:
    """Call `last_words` before a `kill`: the mark that it has fired must leave a pod whose folder nobody else sees. None: nothing is called."""
    global _last_words
    _last_words = last_words


def _kill_this_process() -> None:
    if _last_words is not None:
        _last_words()
    os.kill(os.getpid(), signal.SIGKILL)


def reach(point: str, step: int = 0) -> None:
    """Mark a point of the code that a drill may kill the process at. Costs one comparison when nothing is installed."""
    if _plan is not None:
        _plan.reach(point, step)
