"""A turn: finalizer, memory and status in one patch before anything is done, and nothing but words for what makes no sense."""

from typing import Any

from samite.engines.kuberay.api import EVENT, TRAINING_RUN, error_of
from samite.engines.kuberay.names import FINALIZER
from samite.engines.kuberay.stored_memory import unpack
from samite.lifecycle import DESTRUCTIVE, Phase, StartCluster, Submit
from samite_operators.settings import Settings


def test_a_run_goes_from_its_creation_to_its_end(operator: Any):
    operator.until("Succeeded")
    assert FINALIZER in operator.object["metadata"]["finalizers"]
    status = operator.status
    assert status["observedGeneration"] == 1
    assert status["columns"]["percent"] == "100.0"
    assert status["startedStages"] == ["short", "long"]
    assert unpack(status["memory"]).phase is Phase.SUCCEEDED
    assert {item["type"]: item["status"] for item in status["conditions"]}["Succeeded"] == "True"
    assert set(operator.outcomes) == {"done"}
    reasons = [event["reason"] for event in operator.api.every(EVENT)]
    assert "RunPhaseChanged" in reasons
    assert "StageHandoverCommitted" in reasons


def test_memory_and_status_are_one_patch_and_come_before_every_first_action(operator: Any):
    seen = []

    def before_apply(action: Any) -> None:
        stored = unpack(operator.status["memory"])
        if isinstance(action, StartCluster):
            assert stored.cluster.cluster_id == action.cluster_id
        if isinstance(action, Submit):
            assert stored.live.submission_id == action.submission_id
        seen.append(type(action))

    operator.engine.before_apply = before_apply
    operator.until("Succeeded")
    assert {StartCluster, Submit} <= set(seen)


def test_somebody_elses_write_drops_the_turn_before_anything_is_done(operator: Any):
    operator.until("Validating")
    operator.relist()
    operator.change(metadata={"labels": {"team": "x"}})  # newer than what this turn knows
    applied = len(operator.engine.applied)
    operator.vitals.answered()
    following = operator.turns.take("team-a", "demo")
    assert following.outcome == "conflict"
    assert len(operator.engine.applied) == applied
    assert following.in_s < 1.0
    operator.until("Succeeded")


def test_a_process_that_does_not_lead_stores_nothing_wrong_and_does_nothing(operator: Any):
    operator.until("Validating")
    operator.leads = False
    before = operator.object
    operator.run(10)
    assert operator.object == before
    assert not any(isinstance(action, StartCluster) for action in operator.engine.applied)


def test_a_lead_that_is_lost_in_the_middle_of_a_turn_applies_nothing(operator: Any):
    operator.until("Validating")
    answers = iter([True, False])
    operator.services.__dict__["may_act"] = lambda: next(answers)
    applied = len(operator.engine.applied)
    assert operator.turn().outcome == "conflict"
    assert len(operator.engine.applied) == applied


def test_a_spec_that_came_past_the_rules_is_failed_with_every_problem(make_operator: Any):
    operator = make_operator(checkpoint={"uri": "s3://bucket/demo"}, seed=-3)
    operator.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team-a"}, "spec": {"surprise": True}})
    for _ in range(3):
        assert operator.turn().outcome == "invalid"
    assert operator.phase == "Failed"
    assert operator.status["reason"] == "ValidationFailed"
    assert "spec.seed" in operator.status["message"]
    assert "surprise" in operator.status["message"]
    assert operator.condition("Validated")["status"] == "False"
    assert operator.engine.applied == []
    # Said once: neither a second write nor a second event.
    assert [event["reason"] for event in operator.api.every(EVENT)] == ["OperatorSpecRefused"]


def test_a_repaired_spec_is_taken_up(make_operator: Any):
    operator = make_operator(seed=-3)
    operator.turn()
    assert operator.phase == "Failed"
    operator.change(spec={"seed": 3})
    operator.until("Succeeded")


def test_a_spec_that_breaks_while_the_run_trains_stops_nothing(operator: Any):
    operator.until("Running")
    memory = operator.status["memory"]
    operator.change(spec={"seed": -1})
    applied = len(operator.engine.applied)
    operator.run(5)
    assert operator.phase == "Running"
    assert operator.condition("Validated")["status"] == "False"
    assert operator.status["memory"] == memory
    assert len(operator.engine.applied) == applied
    operator.change(spec={"seed": 0})
    operator.until("Succeeded")
    assert operator.condition("Validated")["status"] == "True"


def test_a_damaged_memory_is_said_and_acted_on_by_nobody(operator: Any):
    operator.until("Running")
    operator.change(status={"memory": "AAAA"})
    applied = len(operator.engine.applied)
    assert operator.turn().outcome == "invalid"
    assert "status.memory cannot be read" in operator.condition("Validated")["message"]
    assert len(operator.engine.applied) == applied


def test_a_runtime_that_is_not_there_is_waited_for(make_operator: Any):
    operator = make_operator(runtimeRef={"name": "big"})
    assert operator.turn().outcome == "invalid"
    assert operator.status["reason"] == "RuntimeRefused"
    assert "ClusterTrainingRuntime big" in operator.status["message"]
    from samite_operators.runtimes import CLUSTER_RUNTIME

    operator.api.put(CLUSTER_RUNTIME, {"metadata": {"name": "big", "generation": 4}, "spec": {}})
    operator.until("Succeeded")
    assert operator.status["runtime"]["name"] == "big"
    assert operator.status["runtime"]["generation"] == 4


def test_a_missing_right_is_a_condition_and_one_event(operator: Any):
    operator.until("Running")
    denied = error_of(403, 'pods is forbidden: User "x" cannot delete resource "pods" in API group "" in the namespace "team-a"')
    operator.api.refusals = [("delete", "rayclusters", denied)]
    try:
        operator.metered.delete(
            TRAINING_RUN.__class__(group="ray.io", version="v1", plural="rayclusters", kind="RayCluster"), "team-a", "x"
        )
    except type(denied):
        pass
    operator.run(3)
    condition = operator.condition("Permitted")
    assert (condition["status"], condition["reason"]) == ("False", "Forbidden")
    assert "delete pods in team-a" in condition["message"]
    reasons = [event["reason"] for event in operator.api.every(EVENT)]
    assert reasons.count("OperatorPermissionMissing") == 1
    assert operator.phase == "Running"


def test_maintenance_stores_no_memory_and_does_nothing_but_says_what_it_would_do(make_operator: Any):
    operator = make_operator(settings=Settings(turn_s=1.0, maintenance=True))
    operator.run(5)
    assert operator.engine.applied == []
    assert "memory" not in operator.status
    assert operator.condition("Acting")["status"] == "False"
    assert "ProbeStorage" in operator.condition("Acting")["message"]
    operator.settings = Settings(turn_s=1.0)
    operator.restart()
    operator.until("Succeeded")
    assert operator.condition("Acting")["status"] == "True"


def test_the_run_of_another_controller_is_left_alone(make_operator: Any):
    operator = make_operator(managedBy="example.org/other")
    operator.run(5)
    assert operator.status == {}
    assert "finalizers" not in operator.object["metadata"]


def test_requests_are_answered_once_and_leave_the_object(operator: Any):
    operator.until("Running")
    operator.change(metadata={"annotations": {"samite.dev/request-r1": '{"verb": "restart", "argument": "", "by": "ada"}'}})
    operator.until("Recovering")
    operator.run(3)
    assert not operator.object["metadata"].get("annotations")
    operator.until("Succeeded")
    assert operator.status["attempt"] >= 2


def test_suspend_and_resume_by_the_spec(operator: Any):
    operator.until("Running")
    operator.change(spec={"suspend": True})
    operator.until("Suspended")
    operator.change(spec={"suspend": False})
    operator.until("Succeeded")


def test_a_finished_run_is_deleted_after_its_time(make_operator: Any):
    operator = make_operator(retention={"ttlSecondsAfterFinished": 30})
    operator.until("Succeeded")
    operator.run(20)
    assert operator.object is not None
    operator.run(30)
    assert operator.object is None


def test_an_api_server_that_is_away_restarts_nothing(operator: Any):
    operator.until("Running")
    operator.api.down = True
    for _ in range(60):
        assert operator.turns.take("team-a", "demo").outcome == "unreachable"
        operator.world.tick(1.0)
    assert operator.phase == "Running"
    operator.api.down = False
    operator.until("Succeeded")
    assert not any(isinstance(action, DESTRUCTIVE) and not action.finished for action in operator.engine.applied)
    assert operator.status["attempt"] == 2  # one for each stage: nothing was restarted


def test_a_run_that_goes_in_the_middle_of_its_turn_is_forgotten(operator: Any):
    operator.until("Running")
    operator.relist()
    operator.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team-a", "finalizers": []}})
    operator.api.delete(TRAINING_RUN, "team-a", "demo")
    operator.world.tick(30.0)  # there is progress to write
    operator.vitals.answered()
    following = operator.turns.take("team-a", "demo")
    assert (following.outcome, following.in_s) == ("conflict", 0.2)
    assert operator.turns.take("team-a", "demo").in_s is None
    assert operator.engine.forgotten == [operator.world.uid]
