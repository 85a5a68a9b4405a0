"""Any interleaving of faults, crashes of the engine, and old or repeated observations: promises are kept, and the run converges."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from samite.lifecycle import Memory, Observed, Phase, Request, RequestKind, RunPlan, StagePlan
from samite.lifecycle.plan import DetectionPolicy, RestartPolicy
from samite.lifecycle.simulation import Engine, World, faults

CARRY = (("weights", "Carry"), ("optimizer", "Carry"), ("lrSchedule", "Carry"), ("dataCursor", "Carry"))
RANKS = st.integers(0, 1)
SETTLED = (Phase.SUCCEEDED, Phase.HELD, Phase.FAILED, Phase.CANCELLED)


def plan() -> RunPlan:
    first = StagePlan(name="short", steps=12, batch_tokens=10, min_workers=2, max_workers=2)
    second = replace(first, name="long", steps=9, context_length=2048, handover=CARRY)
    return RunPlan(
        name="demo",
        uid="u1",
        stages=(first, second),
        detection=DetectionPolicy(hang_restarts=True, hang_floor_s=10, first_step_s=20, load_s=20, start_s=40, provision_s=60),
        restart=RestartPolicy(level_timeouts_s=(20.0, 40.0, 60.0), backoff_initial_s=2.0, backoff_cap_s=20.0, hold_release_s=20.0),
    )


class AnyInterleaving(RuleBasedStateMachine):
    """The world raises when a promise is broken; what is left to check is convergence."""

    @initialize(turns=st.integers(1, 12), submit_takes_s=st.sampled_from([0.0, 3.0, 6.0]))
    def begin(self, turns: int = 9, submit_takes_s: float = 0.0) -> None:
        self.world = World(uid="u1", stage_steps=(12, 9), checkpoint_every=4)
        self.world.submit_takes_s = submit_takes_s
        self.engine = Engine(plan(), self.world)
        self.kept: list[Observed] = []
        self.asked = 0
        self.engine.run(turns)

    @rule(turns=st.integers(1, 25))
    def time_passes(self, turns: int) -> None:
        self.kept.append(self.engine.look())
        self.engine.run(turns)

    @rule(applied=st.integers(0, 2), stored=st.booleans())
    def the_engine_crashes_between_two_actions(self, applied: int, stored: bool) -> None:
        self.engine.turn(apply=applied, store=stored)
        self.engine.restart()
        self.world.tick()

    @rule(seconds=st.integers(5, 4000))
    def nobody_watches_for_a_while(self, seconds: int) -> None:
        for _ in range(min(seconds, 60)):
            self.world.tick(1.0)
        self.world.now += max(0, seconds - 60)

    @rule(index=st.integers(0, 50))
    def an_old_observation_arrives(self, index: int) -> None:
        if self.kept:
            self.engine.turn(self.kept[index % len(self.kept)])

    @rule()
    def the_same_observation_arrives_twice(self) -> None:
        observed = self.engine.look()
        self.engine.turn(observed)
        self.engine.turn(observed)

    @rule(index=st.integers(0, 50), parts=st.sets(st.sampled_from(["jobs", "clusters", "listing"]), min_size=1))
    def some_sources_lag_behind(self, index: int, parts: set[str]) -> None:
        """Parts of a fresh observation are old, and say how old they are."""
        if not self.kept:
            return
        old, now = self.kept[index % len(self.kept)], self.engine.look()
        age = now.at_s - old.at_s
        if "jobs" in parts:
            now = replace(now, attempts=tuple(replace(item, job_age_s=age) for item in old.attempts))
        if "clusters" in parts:
            now = replace(now, cluster=tuple(replace(item, age_s=age) for item in old.cluster))
        if "listing" in parts and old.checkpoints is not None:
            now = replace(now, checkpoints=replace(old.checkpoints, age_s=age))
        self.engine.turn(now)
        self.world.tick()

    @rule(parts=st.sets(st.sampled_from(["attempts", "cluster", "ranks", "checkpoints", "handovers", "storage"]), min_size=1))
    def some_sources_are_silent(self, parts: set[str]) -> None:
        nothing = {"attempts": (), "cluster": (), "ranks": (), "checkpoints": None, "handovers": None, "storage": None}
        self.engine.turn(replace(self.engine.look(), **{part: nothing[part] for part in parts}))
        self.world.tick()

    @rule(number=RANKS)
    def a_rank_is_killed(self, number: int) -> None:
        faults.kill_rank(self.world, number)

    @rule(number=RANKS)
    def a_rank_is_stopped(self, number: int) -> None:
        faults.stop_rank(self.world, number)

    @rule(number=RANKS)
    def a_rank_falls_asleep(self, number: int) -> None:
        faults.put_rank_to_sleep(self.world, number)

    @rule(number=RANKS)
    def a_node_is_killed(self, number: int) -> None:
        faults.kill_node(self.world, number)

    @rule()
    def the_head_is_killed(self) -> None:
        faults.kill_head(self.world)

    @rule(orphans=st.booleans())
    def the_driver_is_killed(self, orphans: bool) -> None:
        faults.kill_driver(self.world, leaving_orphans=orphans)

    @rule(seconds=st.integers(1, 200))
    def the_dashboard_is_silent(self, seconds: int) -> None:
        faults.silence_dashboard(self.world, seconds)

    @rule(seconds=st.integers(1, 200))
    def the_storage_is_silent(self, seconds: int) -> None:
        faults.silence_storage(self.world, seconds)

    @rule(step=st.integers(0, 20), failure_class=st.sampled_from(["application", "oom", "infra"]))
    def a_rank_will_raise(self, step: int, failure_class: str) -> None:
        faults.raise_at(self.world, step, failure_class)

    @rule(step=st.integers(0, 20))
    def a_data_window_is_poisoned(self, step: int) -> None:
        faults.poison(self.world, (step, step + 1))

    @rule(number=RANKS)
    def a_preemption_is_announced(self, number: int) -> None:
        faults.announce_preemption(self.world, number)

    @rule()
    def the_newest_checkpoint_is_damaged(self) -> None:
        # Damage to what a stage handed over holds the run for good; that is a test of its own.
        newest = self.world.checkpoints[-1:]
        ends_a_stage = any(item.stage_step >= self.world.stage_steps[item.stage_index] for item in newest)
        if len([item for item in self.world.checkpoints if item.verified]) > 1 and not ends_a_stage:
            faults.damage_newest(self.world)

    @rule(suspend=st.booleans())
    def somebody_suspends_or_resumes(self, suspend: bool) -> None:
        self.world.suspend = suspend

    @rule(kind=st.sampled_from([RequestKind.RESUME, RequestKind.RESTART]), argument=st.sampled_from(["", "L3"]))
    def somebody_asks(self, kind: RequestKind, argument: str) -> None:
        self.asked += 1
        request = Request(request_id=f"r{self.asked}", kind=kind, argument=argument)
        self.engine.turn(replace(self.engine.look(), requests=(request,)))

    @invariant()
    def attempts_grow(self) -> None:
        numbers = self.world.attempts_seen
        assert numbers == sorted(set(numbers))

    @invariant()
    def every_hand_over_is_put_once(self) -> None:
        assert all(count == 1 for count in self.world.handover_puts.values())

    @invariant()
    def the_memory_survives_storing(self) -> None:
        memory = self.engine.memory
        assert Memory.from_json(memory.to_json()) == memory

    def teardown(self) -> None:
        """Faults stop: the run ends, or holds with a reason; and with a person who says go on, it succeeds."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.suspend = False
        world.raising_at.clear()
        world.poisoned.clear()
        for asked in range(4):
            decision = self.engine.run(1200)
            assert decision.status.phase in SETTLED, (decision.status.phase, decision.status.message)
            assert decision.status.reason
            if decision.status.phase is not Phase.HELD:
                break
            assert decision.status.message
            request = Request(request_id=f"end{asked}", kind=RequestKind.RESUME)
            self.engine.turn(replace(self.engine.look(), requests=(request,)))
        assert decision.status.phase is Phase.SUCCEEDED, (decision.status.phase, decision.status.reason, decision.status.message)


AnyInterleaving.TestCase.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_interleaving_of_faults_keeps_every_promise_and_converges = AnyInterleaving.TestCase
