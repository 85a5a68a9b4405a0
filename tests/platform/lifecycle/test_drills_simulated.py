"""The failure drills of the recovery page, in the simulated world."""

from dataclasses import replace

import pytest

from samite.lifecycle import (
    CollectDiagnostics,
    DecayUnderflow,
    FailureClass,
    KillRanks,
    NodeFact,
    NodeSays,
    Phase,
    Request,
    RequestCheckpoint,
    RequestKind,
    Source,
    StopCluster,
    StopSubmission,
    Submit,
)
from samite.lifecycle.plan import Budget, DetectionPolicy, NodePolicy, RestartPolicy
from samite.lifecycle.simulation import Engine, faults, impatient, small_plan, small_run


def running(plan=None, *, seconds: int = 12, checkpoint_every: int = 5) -> Engine:
    engine = small_run(plan or small_plan(detection=impatient()), checkpoint_every=checkpoint_every)
    engine.run_until(Phase.RUNNING)
    engine.run(seconds)
    assert engine.memory.phase is Phase.RUNNING
    return engine


def actions_of(engine: Engine, turns: int, kind: type) -> list:
    found = []
    for _ in range(turns):
        engine.world.tick()
        found += [action for action in engine.turn().actions if isinstance(action, kind)]
    return found


def names(engine: Engine) -> list[str]:
    return [event.name for event in engine.events]


def test_drill_1_a_killed_worker_restarts_in_place():
    engine = running()
    faults.kill_rank(engine.world, 1)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    (recovery,) = decision.status.recoveries
    assert (recovery.level, recovery.failure_class, recovery.attempt) == (1, FailureClass.INFRA, 1)
    assert recovery.total_s <= 15.0
    assert decision.status.restarts == {"infra": 1}
    assert len(engine.world.attempts_seen) == 2  # one for each stage


def test_drill_2_an_exception_three_times_restarts_twice_in_place_and_then_holds_with_the_traceback():
    engine = running(small_plan(), checkpoint_every=100)
    engine.world.always_raising = "application"
    decision = engine.run(300)
    assert decision.status.phase is Phase.HELD
    assert decision.status.reason == "NoProgress"
    assert decision.status.last_failure.traceback == "Traceback: boom"
    assert decision.status.last_failure.evidence
    assert [record.level for record in engine.memory.failures] == [1, 1, 5]
    assert engine.world.attempts_seen == [1]


def test_drill_3_a_stopped_worker_is_killed_on_two_facts_and_restarted_in_any_mode():
    engine = running(small_plan())
    faults.stop_rank(engine.world, 1)
    (kill, *_) = actions_of(engine, 15, KillRanks)
    assert kill.ranks == (1,)
    assert {item.source for item in kill.evidence} == {Source.PROCESS_TABLE, Source.HEARTBEAT}
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.last_failure.error_type == "SIGSTOP"
    assert [record.level for record in decision.status.recoveries] == [1]


def test_drill_4_a_sleeping_rank_is_only_reported_in_observe():
    plan = small_plan(detection=replace(impatient(), hang_restarts=False))
    engine = running(plan)
    faults.put_rank_to_sleep(engine.world, 0)
    decision = engine.run(600)
    assert decision.status.phase is Phase.RUNNING
    assert names(engine).count("samite.hang.suspected") == 1
    assert names(engine).count("samite.hang.confirmed") == 1
    assert decision.status.condition("Hung").status == "True"
    assert decision.status.condition("Progressing").status == "False"
    assert "samite.restart.decided" not in names(engine)


def test_drill_4_a_sleeping_rank_is_restarted_in_restart_after_its_stacks_were_taken():
    engine = running()
    faults.put_rank_to_sleep(engine.world, 0)
    kinds = [type(action) for action in actions_of(engine, 30, (CollectDiagnostics, KillRanks))]
    assert kinds[0] is CollectDiagnostics
    assert KillRanks in kinds
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.last_failure.failure_class is FailureClass.HANG
    assert [record.level for record in decision.status.recoveries] == [1]


def test_stacks_that_never_arrive_delay_a_restart_by_no_more_than_their_limit():
    engine = running()
    faults.put_rank_to_sleep(engine.world, 0)
    engine.run_until(Phase.RECOVERING)
    began = engine.world.now
    for _ in range(100):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), diagnostics=frozenset()))
        if any(isinstance(action, KillRanks) for action in decision.actions):
            break
    assert engine.world.now - began == pytest.approx(45.0, abs=1.5)


def test_the_next_attempt_is_submitted_while_the_replacement_of_a_lost_node_still_joins():
    engine = running()
    engine.world.node_up_s = 20.0
    faults.kill_node(engine.world, 1)
    (submit, *_) = actions_of(engine, 12, Submit)
    assert submit.num_nodes == 2
    assert [node.joining for node in engine.look().cluster[0].nodes if not node.head].count(True) == 1
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert [record.level for record in decision.status.recoveries] == [2]


def test_a_replacement_that_never_joins_fails_the_attempt_that_waited_for_it_and_the_run_goes_on():
    engine = running()
    engine.world.node_up_s = 1e6
    faults.kill_node(engine.world, 1)
    actions_of(engine, 70, Submit)
    engine.world.node_up_s = 4.0
    decision = engine.run(1200)
    assert decision.status.phase is Phase.SUCCEEDED
    assert sorted(engine.world.attempts_seen) == engine.world.attempts_seen


def test_drill_6_a_slow_rank_is_named_and_nothing_is_restarted():
    engine = small_run(small_plan(detection=DetectionPolicy(straggler_steps=5)))
    engine.run_until(Phase.RUNNING)
    while engine.memory.phase is Phase.RUNNING and engine.memory.stage_index == 0:
        engine.world.tick()
        seen = engine.look()
        slow = tuple(replace(rank, compute_s=2.0 if rank.rank == 1 else 1.0) for rank in seen.ranks)
        engine.turn(replace(seen, ranks=slow))
    told = [event for event in engine.events if event.name == "samite.straggler.detected"]
    assert [event.attributes["rank"] for event in told] == [1]
    assert told[0].attributes["value"] == 2.0
    assert "samite.restart.decided" not in names(engine)


def test_drill_7_a_killed_driver_gets_a_new_attempt_and_the_old_one_never_runs_again():
    engine = running()
    faults.kill_driver(engine.world)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert [record.level for record in decision.status.recoveries] == [2]
    assert engine.world.attempts_seen == [1, 2, 3]


def test_ranks_that_outlive_their_driver_are_ended_before_the_next_attempt():
    engine = running()
    faults.kill_driver(engine.world, leaving_orphans=True)
    kills = actions_of(engine, 40, KillRanks)
    assert kills
    assert {item.source for item in kills[0].evidence} == {Source.RAY_JOB, Source.PROCESS_TABLE}
    assert engine.run(600).status.phase is Phase.SUCCEEDED


def test_drill_8_a_lost_head_gets_a_new_cluster():
    engine = running()
    faults.kill_head(engine.world)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert [record.level for record in decision.status.recoveries] == [3]
    assert len(engine.world.clusters) == 2


def test_a_lost_node_is_replaced_and_a_new_attempt_starts():
    engine = running()
    faults.kill_node(engine.world, 1)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.last_failure.error_type == "NodeLost"
    assert [record.level for record in decision.status.recoveries] == [2]
    (cluster,) = engine.world.clusters.values()
    assert sorted(cluster.nodes) == ["n0", "n2"]


def test_drill_12_a_silent_dashboard_is_not_a_lost_job():
    engine = running()
    faults.silence_dashboard(engine.world, 600.0)
    for _ in range(8):
        engine.world.tick()
        decision = engine.turn()
        assert decision.destructive == ()
    assert decision.status.phase is Phase.RUNNING
    assert decision.status.condition("Progressing").reason in ("HeartbeatOnly", "Heartbeat")
    assert engine.run(900).status.phase is Phase.SUCCEEDED
    assert "samite.failure.detected" not in names(engine)


def test_drill_16_a_nan_is_rolled_back_once_and_the_same_window_a_second_time_holds():
    engine = running()
    faults.poison(engine.world, (15, 16))
    assert engine.run(400).status.phase is Phase.SUCCEEDED
    assert list(engine.world.jobs.values())[1].submit.skip_data_windows == ((15, 16),)
    again = running()
    again.memory = replace(again.memory, skip_data_windows=((15, 16),))
    faults.poison(again.world, (15, 16))
    decision = again.run(400)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "SameDataWindow")


def test_drill_17_decay_that_loses_products_pauses_at_a_checkpoint_and_does_not_loop():
    engine = running()
    decay = DecayUnderflow(step=9, lossy_flushes=3, limit=0, layer="3")
    asked = []
    for _ in range(60):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), decay=decay))
        asked += [action for action in decision.actions if isinstance(action, RequestCheckpoint)]
        assert not any(isinstance(action, StopSubmission) for action in decision.actions)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "DecayUnderflow")
    assert all(action.stop_after for action in asked)
    assert len({action.request_id for action in asked}) == 1
    assert "samite.failure.detected" not in names(engine)
    resume = Request(request_id="go", kind=RequestKind.RESUME)
    engine.turn(replace(engine.look(), decay=decay, requests=(resume,)))
    for _ in range(200):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), decay=decay))
        if engine.memory.stage_index == 1:
            break
    assert engine.memory.stage_index == 1  # accepted for the rest of the first stage
    for _ in range(100):
        engine.world.tick()
        engine.turn(replace(engine.look(), decay=decay))
    assert engine.memory.phase is Phase.SUCCEEDED  # and the same old event does not pause the second


def test_decay_that_loses_products_again_in_the_next_stage_pauses_again():
    engine = running()
    engine.memory = replace(engine.memory, decay_acknowledged_stage=0, decay_paused_step=9)
    engine.run_until(Phase.HANDING_OVER)
    for _ in range(60):
        engine.world.tick()
        decision = engine.turn(replace(engine.look(), decay=DecayUnderflow(step=23, lossy_flushes=1, limit=0)))
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "DecayUnderflow")


def test_decay_in_observe_mode_does_nothing():
    engine = running(small_plan(detection=DetectionPolicy(decay_pauses=False)))
    decision = engine.turn(replace(engine.look(), decay=DecayUnderflow(step=9, lossy_flushes=3, limit=0)))
    assert decision.actions == ()


def test_drill_20_a_storage_that_stands_still_is_no_hang():
    engine = running()
    faults.silence_storage(engine.world, 300.0)
    for _ in range(250):
        engine.world.tick()
        seen = engine.look()
        saving = tuple(replace(rank, phase="saving", progress_age_s=(rank.progress_age_s or 0.0) + 2000.0) for rank in seen.ranks)
        decision = engine.turn(replace(seen, ranks=saving))
        assert decision.destructive == ()
    assert decision.status.phase is Phase.RUNNING
    assert decision.status.condition("CheckpointHealthy").status == "False"
    assert decision.status.condition("Hung").status == "False"
    assert "samite.storage.stall" in names(engine)
    assert "samite.hang.suspected" not in names(engine)


def test_drill_23_memory_that_runs_out_twice_holds_with_a_hint():
    engine = running(checkpoint_every=2)
    faults.raise_at(engine.world, 13, "oom")
    engine.run_until(Phase.RECOVERING)
    engine.run_until(Phase.RUNNING)
    faults.raise_at(engine.world, 16, "oom")
    decision = engine.run(200)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "BudgetExhausted")
    assert "batch.microBatch" in decision.status.message
    assert decision.status.last_failure.error_type == "DeviceOutOfMemory"


def test_drill_25_a_preempted_node_costs_only_the_preemption_budget_and_saves_early():
    engine = running()
    engine.run(1)
    faults.announce_preemption(engine.world, 1)
    asked = actions_of(engine, 2, RequestCheckpoint)
    assert {(action.request_id, action.stop_after) for action in asked} == {("demo-s00-a1-preempt-n1", False)}
    faults.kill_node(engine.world, 1)
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.restarts == {"preemption": 1}
    assert decision.status.budgets_left["infra"] == 20


@pytest.mark.parametrize("jump", [600.0, 86400.0, -600.0])
def test_drill_32_a_jumping_clock_is_no_hang(jump: float):
    engine = running()
    seen = engine.look()
    decision = engine.turn(replace(seen, at_s=max(seen.at_s, seen.at_s + jump)))
    assert decision.destructive == ()
    engine.memory = replace(engine.memory, observed_at_s=-1.0)
    engine.world.now += max(0.0, jump)
    for job in engine.world.jobs.values():
        for rank in job.ranks:
            rank.beat_at += max(0.0, jump)  # ages come from the monotonic clock, which did not jump
    engine.run(3)
    assert engine.memory.phase is Phase.RUNNING
    assert "samite.hang.suspected" not in names(engine)


def test_drill_15_a_node_that_fails_again_and_again_is_exchanged_and_then_the_run_holds():
    engine = running(small_plan(detection=impatient(), restart=RestartPolicy(in_place_restarts=0, no_progress_cycles=9)))
    for _ in range(3):
        faults.raise_at(engine.world, engine.world.running().step + 2, "application")
        engine.run_until(Phase.RECOVERING)
        if engine.memory.recovery.outcome != "Restart":
            break
        engine.run_until(Phase.RUNNING)
    assert [record.evicted for record in engine.memory.failures] == [False, True, False]
    assert engine.run(50).status.reason == "SameFailureAfterEviction"
    (cluster,) = engine.world.clusters.values()
    assert "n0" not in cluster.nodes  # the node of rank 0, which raised


def test_a_head_seen_dead_by_one_source_alone_waits_for_a_second_fact():
    engine = running()
    for _ in range(5):
        engine.world.tick()
        seen = engine.look()
        cluster = seen.cluster[0]
        fact = NodeFact(source=Source.KUBERNETES, says=NodeSays.DEAD, detail="NotReady")
        head = replace(cluster.nodes[0], facts=(fact,))
        decision = engine.turn(replace(seen, cluster=(replace(cluster, nodes=(head, *cluster.nodes[1:])),)))
        assert decision.destructive == ()
    assert decision.status.phase is Phase.RUNNING
    assert names(engine).count("samite.restart.withheld") == 1


def test_drill_11_a_node_that_flaps_for_20_s_is_left_alone():
    engine = running(seconds=5)
    for second in range(12):
        engine.world.tick()
        seen = engine.look()
        cluster = seen.cluster[0]
        facts = (NodeFact(source=Source.KUBERNETES, says=NodeSays.DEAD, detail="NotReady"),) if second % 2 else ()
        nodes = tuple(replace(node, facts=facts) if node.name == "n1" else node for node in cluster.nodes)
        decision = engine.turn(replace(seen, cluster=(replace(cluster, nodes=nodes),)))
        assert decision.destructive == ()
    assert "samite.failure.detected" not in names(engine)


def test_a_spare_takes_the_place_of_a_lost_node_without_a_wait():
    plan = replace(small_plan(detection=impatient()), nodes=NodePolicy(spares=1))
    engine = running(plan)
    engine.world.node_up_s = 100.0
    faults.kill_node(engine.world, 1)
    engine.run_until(Phase.RECOVERING)
    began = engine.world.now
    engine.run_until(Phase.RUNNING)
    assert engine.world.now - began < 20.0
    decision = engine.turn()
    assert decision.status.condition("Degraded").reason == "NoSpare"


def test_with_fewer_nodes_left_than_asked_for_a_stage_goes_on_if_it_may():
    plan = small_plan(detection=impatient(), restart=RestartPolicy(level_timeouts_s=(20.0, 30.0, 60.0)))
    plan = replace(plan, stages=tuple(replace(stage, min_workers=1) for stage in plan.stages))
    engine = running(plan)
    engine.world.node_up_s = 1e9
    faults.kill_node(engine.world, 1)
    engine.run_until(Phase.RECOVERING)
    engine.run_until(Phase.RUNNING)
    decision = engine.turn()
    assert engine.memory.live.num_workers == 1
    assert decision.status.condition("Degraded").status == "True"
    assert engine.run(900).status.phase is Phase.SUCCEEDED


def test_an_exhausted_budget_fails_the_run_if_it_says_so():
    policy = RestartPolicy(budgets={FailureClass.INFRA: Budget(limit=0)}, on_exhausted="Fail")
    engine = running(small_plan(detection=impatient(), restart=policy))
    faults.kill_node(engine.world, 1)
    decision = engine.run(200)
    assert (decision.status.phase, decision.status.reason) == (Phase.FAILED, "BudgetExhausted")
    assert engine.world.finished == "Failed"


def test_a_run_without_any_usable_checkpoint_holds_instead_of_starting_from_nothing():
    engine = running()
    while any(item.checkpoint_id not in engine.world.quarantined for item in engine.world.checkpoints):
        good = [item for item in engine.world.checkpoints if item.checkpoint_id not in engine.world.quarantined]
        good[-1].verified = False
        engine.world.quarantined.append(good[-1].checkpoint_id)
    faults.kill_driver(engine.world)
    decision = engine.run(100)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "NoCheckpoint")
    assert engine.world.attempts_seen == [1]


def test_a_damaged_checkpoint_that_was_handed_over_holds_instead_of_training_the_next_stage_from_older_weights():
    engine = running()
    engine.run_until(Phase.HANDING_OVER)
    faults.damage_newest(engine.world)
    decision = engine.run(100)
    assert (decision.status.phase, decision.status.reason) == (Phase.HELD, "HandoverCheckpointLost")
    assert engine.world.attempts_seen == [1]


def test_a_silent_storage_delays_a_restart_and_never_starts_from_nothing():
    engine = running()
    faults.kill_driver(engine.world)
    faults.silence_storage(engine.world, 100.0)
    engine.run(50)
    assert engine.memory.phase is Phase.RECOVERING
    assert engine.run(600).status.phase is Phase.SUCCEEDED
    assert [job.submit.resume for job in engine.world.jobs.values()] == ["none", "latest", "latest"]


def test_a_final_checkpoint_that_does_not_verify_trains_again():
    engine = running()
    while engine.memory.phase is Phase.RUNNING:
        engine.world.tick()
        if engine.world.checkpoints[-1].step == 20:
            faults.damage_newest(engine.world)
        engine.turn()
    decision = engine.run(600)
    assert decision.status.phase is Phase.SUCCEEDED
    assert "FinalCheckpointLost" in {record.error_type for record in engine.memory.failures}
    assert engine.world.handovers[0].checkpoint_id == "00000020-2"


@pytest.mark.parametrize("apply", [0, 1])
@pytest.mark.parametrize("at", range(0, 40, 3))
def test_drill_29_a_crash_at_any_moment_gives_each_stage_once_and_each_hand_over_once(at: int, apply: int):
    engine = small_run(small_plan(detection=impatient()))
    for turn in range(120):
        if turn % 40 == at:
            engine.turn(apply=apply)
            engine.restart()
        else:
            engine.turn()
        engine.world.tick()
    assert engine.run(200).status.phase is Phase.SUCCEEDED
    assert engine.world.handover_puts == {0: 1}
    assert engine.world.attempts_seen == [1, 2]


def test_drill_14_a_fatal_device_fault_quarantines_at_once_and_the_node_is_left_before_the_next_attempt():
    engine = running()

    def look():
        seen = engine.look()
        cluster = seen.cluster[0]
        fault = NodeFact(source=Source.DEVICE, says=NodeSays.HARDWARE_FAULT, detail="XID 79")
        nodes = tuple(replace(node, facts=(*node.facts, fault)) if node.name == "n1" else node for node in cluster.nodes)
        return replace(seen, cluster=(replace(cluster, nodes=nodes), *seen.cluster[1:]))

    decision = engine.turn(look())
    assert decision.status.excluded_nodes == ("n1",)
    assert decision.status.phase is Phase.RUNNING
    assert decision.destructive == ()
    faults.kill_rank(engine.world, 1)
    decision = engine.turn(look())
    assert decision.status.phase is Phase.RECOVERING
    assert engine.memory.recovery.level == 2
    assert engine.run(600).status.phase is Phase.SUCCEEDED
    assert "n1" not in next(iter(engine.world.clusters.values())).nodes


def test_a_node_excluded_by_a_person_is_exchanged_before_the_next_attempt_and_not_earlier():
    engine = running()
    exclude = Request(request_id="x", kind=RequestKind.EXCLUDE, argument="n1")
    assert engine.turn(replace(engine.look(), requests=(exclude,))).destructive == ()
    engine.run(5)
    (cluster,) = engine.world.clusters.values()
    assert "n1" in cluster.nodes
    assert engine.run(600).status.phase is Phase.SUCCEEDED
    assert "n1" not in cluster.nodes


def test_a_head_lost_before_the_first_heartbeat_is_replaced_on_its_own_two_facts():
    engine = running()
    engine.run_until(Phase.HANDING_OVER)
    engine.world.tick()
    engine.run_until(Phase.STARTING)
    faults.kill_head(engine.world)
    stops = actions_of(engine, 4, StopCluster)
    assert {item.source for item in stops[0].evidence} == {Source.NODE_SUPERVISOR, Source.PROCESS_TABLE}
    assert not stops[0].idle
    assert engine.run(600).status.phase is Phase.SUCCEEDED
