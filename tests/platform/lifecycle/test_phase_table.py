"""Every phase meets every event, and each row of the phase table is walked once."""

from dataclasses import replace
from functools import cache

import pytest

from samite.lifecycle import (
    TERMINAL,
    AttemptObserved,
    ClusterObserved,
    ClusterState,
    CommitHandover,
    EvaluateGate,
    Finish,
    GateMeasured,
    GateQuestion,
    HandoverFound,
    JobStatus,
    Memory,
    Observed,
    Phase,
    ProbeStorage,
    ReleaseCluster,
    Request,
    RequestKind,
    StartCluster,
    StorageObserved,
    Submit,
    decide,
)
from samite.lifecycle.phases import ACTIVE, TRAINING, followers
from samite.lifecycle.plan import RestartPolicy
from samite.lifecycle.simulation import Engine, faults, impatient, small_plan, small_run
from samite.lifecycle.simulation.samples import HANDOVER
from samite.lifecycle.status import CONDITIONS

PLAN = small_plan(detection=impatient(), restart=RestartPolicy(hold_release_s=5.0))


@cache
def in_phase(phase: Phase) -> tuple[Memory, Observed, float]:
    """A run in `phase`: memory, what would be seen next, and the time."""
    engine = small_run(PLAN)
    world = engine.world
    if phase is Phase.PENDING:
        return Memory(), engine.look(), world.now
    if phase in (Phase.RECOVERING, Phase.HELD, Phase.SUSPENDING, Phase.SUSPENDED, Phase.CANCELLING, Phase.CANCELLED):
        engine.run_until(Phase.RUNNING)
        engine.run(5)
    if phase is Phase.RECOVERING:
        faults.kill_node(world, 0)
    if phase is Phase.HELD:
        world.always_raising = "application"
    if phase is Phase.FAILED:
        world.probe = False
    world.suspend = phase in (Phase.SUSPENDING, Phase.SUSPENDED)
    world.cancel = phase in (Phase.CANCELLING, Phase.CANCELLED)
    for _ in range(2000):
        memory, seen = engine.memory, engine.look()
        if memory.phase is phase:
            return memory, seen, world.now
        decision = engine.turn()
        if phase in engine.phases and decision.status.phase is not phase:
            # Several phases passed in one turn: stop on the way by hiding what lets it go on.
            break
        world.tick()
    return _stopped_on_the_way(phase)


def _stopped_on_the_way(phase: Phase) -> tuple[Memory, Observed, float]:
    engine = small_run(PLAN)
    hide = {
        Phase.QUEUED: {"admitted": False},
        Phase.GATING: {"checkpoints": None},
        Phase.PROVISIONING: {"cluster": ()},
        Phase.HANDING_OVER: {"handovers": None},
    }[phase]
    for _ in range(2000):
        seen = (
            replace(engine.look(), **hide)
            if phase is not Phase.GATING or (engine.memory.live is not None and engine.memory.live.heartbeat_seen)
            else engine.look()
        )
        engine.turn(seen)
        if engine.memory.phase is phase:
            return engine.memory, replace(engine.look(), **hide), engine.world.now
        engine.world.tick()
    raise AssertionError(phase)


PHASES = list(Phase)


@pytest.mark.parametrize("phase", PHASES)
def test_the_helper_reaches_every_phase(phase: Phase):
    assert in_phase(phase)[0].phase is phase


def _event(name: str, seen: Observed, memory: Memory) -> Observed:
    cluster = memory.cluster.cluster_id if memory.cluster else "none"
    live = memory.live.submission_id if memory.live else "none"
    return {
        "nothing new": seen,
        "everything silent": Observed(at_s=seen.at_s, admitted=None, suspend=None),
        "an old observation": replace(seen, at_s=seen.at_s - 500.0),
        "suspend": replace(seen, suspend=True),
        "cancel": replace(seen, cancel=True),
        "suspend and cancel": replace(seen, suspend=True, cancel=True),
        "resume asked": replace(seen, requests=(Request(request_id="r", kind=RequestKind.RESUME),)),
        "restart asked": replace(seen, requests=(Request(request_id="r", kind=RequestKind.RESTART),)),
        "skip asked": replace(seen, requests=(Request(request_id="r", kind=RequestKind.SKIP, windows=((1, 2),)),)),
        "approve asked": replace(seen, requests=(Request(request_id="r", kind=RequestKind.APPROVE, argument="short"),)),
        "ray says failed": replace(seen, attempts=(AttemptObserved(submission_id=live, job_status=JobStatus.FAILED),)),
        "ray says stopped": replace(seen, attempts=(AttemptObserved(submission_id=live, job_status=JobStatus.STOPPED),)),
        "ray knows nothing": replace(seen, attempts=(AttemptObserved(submission_id=live, job_status=JobStatus.NOT_FOUND),)),
        "cluster absent": replace(seen, cluster=(ClusterObserved(cluster_id=cluster, state=ClusterState.ABSENT),)),
        "storage broken": replace(seen, storage=StorageObserved(failing_for_s=100.0), checkpoints=None, handovers=None),
    }[name]


EVENTS = [
    "nothing new",
    "everything silent",
    "an old observation",
    "suspend",
    "cancel",
    "suspend and cancel",
    "resume asked",
    "restart asked",
    "skip asked",
    "approve asked",
    "ray says failed",
    "ray says stopped",
    "ray knows nothing",
    "cluster absent",
    "storage broken",
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_answers_every_event_with_an_allowed_phase(phase: Phase, event: str):
    memory, seen, now = in_phase(phase)
    decision = decide(PLAN, _event(event, seen, memory), memory, now + 1.0)
    after = decision.status.phase
    reachable, last = {phase}, {phase}
    for _ in range(4):
        last = {follower for one in last for follower in followers(one)}
        reachable |= last
    assert after in reachable
    assert tuple(condition.type for condition in decision.status.conditions) == CONDITIONS
    assert Memory.from_json(decision.memory.to_json()) == decision.memory
    if phase in TERMINAL:
        assert after is phase
    if event == "cancel" and phase not in TERMINAL:
        assert after in (Phase.CANCELLING, Phase.CANCELLED)
    if event == "suspend" and phase in ACTIVE:
        assert after in (Phase.SUSPENDING, Phase.SUSPENDED)


@pytest.mark.parametrize("event", ["everything silent", "an old observation"])
@pytest.mark.parametrize("phase", PHASES)
def test_silence_changes_no_phase_and_destroys_nothing(phase: Phase, event: str):
    memory, seen, now = in_phase(phase)
    assert memory.recovery is None or not memory.recovery.by_request
    for later in (1.0, 50.0, 100_000.0):
        decision = decide(PLAN, _event(event, seen, memory), memory, now + later)
        if phase not in (Phase.PENDING, Phase.HELD, Phase.SUSPENDING, Phase.CANCELLING):
            assert decision.status.phase in (phase, Phase.RUNNING) if phase is Phase.RECOVERING else decision.status.phase is phase
        if phase not in (Phase.SUSPENDING, Phase.CANCELLING, Phase.HELD, Phase.RECOVERING):
            assert decision.destructive == ()


@pytest.mark.parametrize("phase", PHASES)
def test_deciding_twice_gives_the_same_answer(phase: Phase):
    memory, seen, now = in_phase(phase)
    assert decide(PLAN, seen, memory, now + 1.0) == decide(PLAN, seen, memory, now + 1.0)


@pytest.mark.parametrize("phase", PHASES)
def test_a_clock_that_goes_back_changes_nothing(phase: Phase):
    memory, seen, now = in_phase(phase)
    decision = decide(PLAN, seen, memory, now - 100_000.0)
    assert decision.memory.now_s >= memory.now_s or memory.started_at_s is None
    assert decision.memory.ledger.wall >= memory.ledger.wall


# The rows of the phase table.


def kinds(decision) -> list[type]:
    return [type(action) for action in decision.actions]


def test_pending_validates_by_a_storage_probe():
    decision = small_run(PLAN).turn()
    assert decision.status.phase is Phase.VALIDATING
    assert kinds(decision) == [ProbeStorage]


def test_a_failed_validation_fails_without_a_retry():
    engine = small_run(PLAN)
    engine.world.probe = False
    decision = engine.run(10)
    assert (decision.status.phase, decision.status.reason) == (Phase.FAILED, "ValidationFailed")
    assert engine.world.finished == "Failed"


def test_validation_waits_while_the_storage_is_silent():
    engine = small_run(PLAN)
    faults.silence_storage(engine.world, 500.0)
    assert engine.run(400).status.phase is Phase.VALIDATING
    assert engine.run(400).status.phase is Phase.SUCCEEDED


def test_queued_waits_for_quota_and_the_clock_of_provisioning_starts_at_admission():
    engine = small_run(PLAN)
    engine.turn()
    for _ in range(300):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), admitted=False))
    assert decision.status.phase is Phase.QUEUED
    assert decision.actions == ()
    engine.world.tick()
    decision = engine.turn()
    assert decision.status.phase is Phase.PROVISIONING
    assert kinds(decision) == [StartCluster]


def test_provisioning_submits_once_all_nodes_are_ready():
    engine = small_run(PLAN)
    decision = engine.run_until(Phase.STARTING)
    submit = next(action for action in decision.actions if isinstance(action, Submit))
    assert (submit.submission_id, submit.attempt, submit.num_workers, submit.resume) == ("demo-s00-a1", 1, 2, "none")


def test_a_cluster_that_cannot_start_is_held_with_the_reason_after_a_minute():
    engine = small_run(PLAN)
    engine.turn()
    engine.world.tick()
    engine.turn()
    cluster = engine.memory.cluster.cluster_id
    began = engine.world.now
    for _ in range(200):
        engine.world.tick()
        bad = ClusterObserved(cluster_id=cluster, state=ClusterState.STARTING, cannot_start="image samite:9 cannot be pulled")
        decision = engine.turn(replace(engine.look(), cluster=(bad,)), apply=0)
        if decision.status.phase is Phase.HELD:
            break
    assert "cannot be pulled" in decision.status.message
    assert 60.0 <= engine.world.now - began <= 63.0


@pytest.mark.parametrize("recovering", [False, True], ids=["provisioning", "recovering"])
def test_what_cannot_start_is_not_waited_for_if_the_stage_may_train_on_fewer_nodes(recovering: bool):
    """A quota that shrank lets one of two workers run: the stage takes it after the same minute, instead of being held."""
    plan = replace(PLAN, stages=tuple(replace(stage, min_workers=1) for stage in PLAN.stages))
    engine = small_run(plan)
    if recovering:
        engine.run_until(Phase.RUNNING)
        engine.run(5)
        faults.kill_node(engine.world, 1)
        engine.run_until(Phase.RECOVERING)
    engine.world.node_up_s = 1e9 if recovering else 5.0
    began = engine.world.now
    for _ in range(300):
        engine.world.tick()
        seen = engine.look()
        fewer = tuple(replace(item, nodes=item.nodes[:2], cannot_start="KubeRay cannot make pods: exceeded quota") for item in seen.cluster)
        decision = engine.turn(replace(seen, cluster=fewer) if fewer else seen)
        assert decision.status.phase is not Phase.HELD
        if submits := [action for action in decision.actions if isinstance(action, Submit)]:
            break
    assert submits[0].num_workers == 1
    assert engine.world.now - began < 90.0


def test_a_cluster_that_does_not_come_up_in_time_is_replaced_and_then_held():
    engine = small_run(PLAN)
    engine.world.node_up_s = 1e9
    decision = engine.run(2000)
    assert decision.status.phase is Phase.HELD
    assert "0 of 2 nodes are ready" in decision.status.message
    assert engine.memory.generation >= 2


def test_the_first_heartbeat_makes_it_running():
    engine = small_run(PLAN)
    engine.run_until(Phase.RUNNING)
    assert engine.memory.live.heartbeat_seen


def test_a_start_that_takes_too_long_is_a_failure_with_two_facts():
    engine = small_run(PLAN)
    engine.world.start_s = 1e9
    engine.run_until(Phase.RECOVERING)
    failure = engine.memory.last_failure
    assert failure.error_type == "StartTimeout"
    assert len({item.source for item in failure.evidence}) == 2


def test_the_budget_reached_opens_the_gate_and_then_the_hand_over():
    engine = small_run(PLAN)
    engine.run(400)
    order = [phase for phase in engine.phases if phase is not Phase.RECOVERING]
    assert order[-1] is Phase.SUCCEEDED
    changes = [
        (event.attributes["phase_from"], event.attributes["phase_to"])
        for event in engine.events
        if event.name == "samite.run.phase.changed"
    ]
    assert ("Running", "Gating") in changes
    assert ("Gating", "HandingOver") in changes
    assert ("HandingOver", "Provisioning") in changes
    assert ("Gating", "Succeeded") in changes


def test_succeeded_releases_the_cluster_and_finishes_after_it_is_gone():
    memory, seen, now = in_phase(Phase.SUCCEEDED)
    first = decide(PLAN, seen, memory, now + 1.0)
    assert kinds(first) == [ReleaseCluster]
    gone = replace(seen, at_s=now + 9.0, cluster=(ClusterObserved(cluster_id=memory.cluster.cluster_id, state=ClusterState.ABSENT),))
    second = decide(PLAN, gone, first.memory, now + 9.0)
    assert kinds(second) == [Finish]
    assert second.settled


def gate_engine(**gate) -> Engine:
    stages = (replace(PLAN.stages[0], checks=(GateQuestion(metric="loss", op="<", value=2.0),), **gate), PLAN.stages[1])
    return small_run(replace(PLAN, stages=stages))


def test_a_gate_that_passes_hands_over_with_its_numbers():
    engine = gate_engine()
    engine.world.gate_values = {"loss": 1.5}
    assert engine.run(400).status.phase is Phase.SUCCEEDED
    assert engine.memory.stages[0].gate_lines == ("loss 1.5 (wanted < 2, median of 50 steps): pass",)


@pytest.mark.parametrize(
    ("on_fail", "wanted"), [("Hold", Phase.HELD), ("Retry", Phase.HELD), ("Rollback", Phase.HELD), ("Fail", Phase.FAILED)]
)
def test_a_gate_that_fails_for_good_ends_as_the_stage_says(on_fail: str, wanted: Phase):
    engine = gate_engine(on_gate_fail=on_fail)
    engine.world.gate_values = {"loss": 2.5}
    decision = engine.run(1000)
    assert (decision.status.phase, decision.status.reason) == (wanted, "GateFailed")
    assert "loss 2.5 (wanted < 2" in decision.status.message
    assert not engine.world.handovers
    submissions = len(engine.world.attempts_seen)
    assert submissions == {"Hold": 1, "Fail": 1, "Retry": 3, "Rollback": 2}[on_fail]


def test_a_rolled_back_stage_starts_over_from_its_beginning():
    engine = gate_engine(on_gate_fail="Rollback")
    engine.world.gate_values = {"loss": 2.5}
    engine.run_until(Phase.RECOVERING)
    engine.world.gate_values = {"loss": 1.0}
    assert engine.run(600).status.phase is Phase.SUCCEEDED
    assert [job.submit.resume for job in engine.world.jobs.values()][:2] == ["none", "none"]
    assert sorted(engine.world.quarantined) == ["00000005-1", "00000010-1", "00000015-1", "00000020-1"]


def test_a_gate_without_its_number_neither_passes_nor_fails_but_holds():
    engine = gate_engine(on_gate_fail="Fail")
    decision = engine.run(1000)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "GateFailed")
    assert "not measured" in decision.status.message


def test_approval_lets_a_failed_gate_pass():
    engine = gate_engine()
    engine.world.gate_values = {"loss": 2.5}
    assert engine.run(400).status.phase is Phase.HELD
    approve = Request(request_id="a1", kind=RequestKind.APPROVE, argument="short", by="ada")
    engine.turn(replace(engine.look(), requests=(approve,)))
    assert engine.run(400).status.phase is Phase.SUCCEEDED


def test_a_manual_gate_waits_for_approval_though_every_check_passes():
    engine = gate_engine(manual_gate=True)
    engine.world.gate_values = {"loss": 1.5}
    decision = engine.run(400)
    assert (decision.status.phase, decision.status.reason) == (Phase.GATING, "AwaitingApproval")
    assert decision.status.condition("GateBlocked").status == "True"
    approve = Request(request_id="a1", kind=RequestKind.APPROVE, argument="short", by="ada")
    engine.turn(replace(engine.look(), requests=(approve,)))
    assert engine.run(400).status.phase is Phase.SUCCEEDED


def test_the_gate_is_asked_under_one_name_until_it_answers():
    engine = gate_engine()
    engine.run_until(Phase.GATING)
    asked = set()
    for _ in range(5):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), gate=GateMeasured(gate_id="another", values={"loss": 9.0})), apply=0)
        asked |= {action.gate_id for action in decision.actions if isinstance(action, EvaluateGate)}
    assert len(asked) == 1
    assert engine.memory.phase is Phase.GATING


def test_handing_over_commits_before_the_next_stage_and_finds_it_after_a_crash():
    engine = small_run(PLAN)
    decision = engine.run_until(Phase.HANDING_OVER)
    commit = next(action for action in decision.actions if isinstance(action, CommitHandover))
    assert commit.document["states"] == dict(HANDOVER)
    engine.restart()  # everything was applied, nothing else survived
    engine.world.tick()
    decision = engine.turn()
    assert decision.memory.stage_index == 1
    assert engine.world.handover_puts == {0: 1}
    submit = next(action for action in decision.actions if isinstance(action, Submit))
    assert (submit.handover, submit.stage_index) == (commit.content_hash, 1)


def test_a_foreign_hand_over_in_the_way_holds():
    engine = small_run(PLAN)
    engine.world.handovers[0] = HandoverFound(stage_index=0, content_hash="f" * 64, run_uid="another", checkpoint_id="x")
    decision = engine.run(400)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "HandoverConflict")


def test_a_run_whose_memory_was_lost_goes_on_after_the_last_hand_over_with_larger_attempt_numbers():
    engine = small_run(PLAN)
    engine.run_until(Phase.HANDING_OVER)
    engine.world.tick()
    for cluster in engine.world.clusters.values():
        cluster.gone = True
    engine.memory = Memory()
    engine.world.clusters.clear()
    engine.world.jobs.clear()
    decision = None
    for _ in range(100):
        decision = engine.turn(replace(engine.look(), highest_attempt=7))
        if decision.status.phase is Phase.STARTING:
            break
        engine.world.tick()
    submit = next(action for action in decision.actions if isinstance(action, Submit))
    assert submit.submission_id == "demo-s01-a8"
    assert submit.resume == "latest"


@pytest.mark.parametrize("phase", sorted(TRAINING))
def test_an_unreachable_control_plane_changes_no_phase(phase: Phase):
    memory, seen, now = in_phase(phase)
    decision = decide(PLAN, replace(seen, attempts=(), cluster=()), memory, now + 1.0)
    assert decision.status.phase in (phase, Phase.RUNNING)
    assert decision.status.condition("CapacityReady").status == "Unknown"
