"""The smallest engine: the loop that every engine has, over the simulated world, with the places where a real one can crash."""

from samite.lifecycle.decide import Decision, decide
from samite.lifecycle.memory import Memory
from samite.lifecycle.observed import Observed
from samite.lifecycle.phases import TERMINAL, Phase
from samite.lifecycle.plan import RunPlan
from samite.lifecycle.simulation.world import World
from samite.lifecycle.turn import Event


class Engine:
    """Looks, decides, stores, applies. `memory` is all that survives a crash."""

    def __init__(self, plan: RunPlan, world: World) -> None:
        self.plan, self.world = plan, world
        self.memory = Memory()
        """What was stored last."""
        self.events: list[Event] = []
        self.phases: list[Phase] = []

    def restart(self) -> None:
        """The engine comes back after a crash with what it had stored."""
        self.memory = Memory.from_json(self.memory.to_json())

    def look(self) -> Observed:
        """What is seen now."""
        return self.world.observe(self.memory)

    def turn(self, observed: Observed | None = None, *, apply: int | None = None, store: bool = True) -> Decision:
        """One turn without letting time pass. A crash is `store=False` (before storing) or `apply=n` (after n actions)."""
        decision = decide(self.plan, self.look() if observed is None else observed, self.memory, self.world.now)
        if not store:
            return decision
        self.memory = decision.memory
        self.events.extend(decision.events)
        if not self.phases or self.phases[-1] is not decision.status.phase:
            self.phases.append(decision.status.phase)
        for action in decision.actions[:apply]:
            self.world.apply(action)
        return decision

    def run(self, turns: int, *, seconds: float = 1.0) -> Decision:
        """Several turns with time between them; ends early when nothing is left to watch."""
        decision = self.turn()
        for _ in range(turns - 1):
            if self.world.finished or decision.settled:
                break
            self.world.tick(seconds)
            decision = self.turn()
        else:
            self.world.tick(seconds)
        return decision

    def run_until(self, phase: Phase, *, limit: int = 2000) -> Decision:
        """Turns until the run is in `phase`; AssertionError with the status if it does not get there."""
        for _ in range(limit):
            decision = self.turn()
            if decision.status.phase is phase:
                return decision
            if decision.status.phase in TERMINAL:
                break
            self.world.tick()
        raise AssertionError(f"{phase} was not reached: {decision.status.phase} {decision.status.reason}: {decision.status.message}")
