"""The finalizer: everything is given back in order, in 300 s at most, and nothing new is made on the way."""

from typing import Any

import pytest

from samite.engines.kuberay.api import EVENT, LEASE, RAY_CLUSTER, TRAINING_RUN, error_of
from samite.engines.kuberay.names import FINALIZER
from samite.lifecycle import RequestCheckpoint, StartCluster, StopSubmission, Submit
from samite_operators.settings import Settings


def delete(operator: Any) -> None:
    operator.api.delete(TRAINING_RUN, "team-a", "demo")


def reasons(operator: Any) -> list[str]:
    return [event["reason"] for event in operator.api.every(EVENT)]


def test_deleting_a_run_that_trains_stops_it_releases_its_cluster_and_then_lets_it_go(operator: Any):
    operator.until("Running")
    operator.api.put(LEASE, {"metadata": {"name": "demo-heartbeat", "namespace": "team-a"}})
    applied = len(operator.engine.applied)
    delete(operator)
    operator.run(40)
    assert operator.object is None
    assert operator.api.every(RAY_CLUSTER) == ()
    assert operator.api.every(LEASE) == ()
    done = operator.engine.applied[applied:]
    assert any(isinstance(action, StopSubmission) for action in done)
    assert not any(isinstance(action, StartCluster | Submit | RequestCheckpoint) for action in done)
    assert operator.engine.forgotten == [operator.engine.world.uid]
    assert "OperatorClearingExpired" not in reasons(operator)


def test_the_finalizer_goes_only_after_the_cluster_has(operator: Any):
    operator.until("Running")
    delete(operator)
    while operator.object is not None:
        operator.turn()
        if operator.object is None:
            assert operator.api.every(RAY_CLUSTER) == ()
        operator.world.tick(1.0)


def test_a_last_checkpoint_is_asked_for_if_the_run_says_so(operator: Any):
    operator.change(metadata={"annotations": {"samite.dev/checkpoint-on-delete": "true"}})
    operator.until("Running")
    applied = len(operator.engine.applied)
    delete(operator)
    operator.run(60)
    assert operator.object is None
    kinds = [type(action) for action in operator.engine.applied[applied:]]
    assert RequestCheckpoint in kinds
    assert StopSubmission not in kinds[: kinds.index(RequestCheckpoint)]


def test_a_run_that_was_never_begun_goes_at_once(operator: Any):
    operator.turn()
    delete(operator)
    operator.run(6)
    assert operator.object is None
    assert not any(isinstance(action, StartCluster) for action in operator.engine.applied)


def test_a_run_whose_spec_makes_no_sense_can_be_deleted(make_operator: Any):
    operator = make_operator(seed=-1)
    operator.turn()
    operator.api.put(
        RAY_CLUSTER,
        {
            "metadata": {
                "name": "left",
                "namespace": "team-a",
                "labels": {"samite.dev/run": "demo", "samite.dev/run-uid": operator.object["metadata"]["uid"]},
            }
        },
    )
    delete(operator)
    operator.run(3)
    assert operator.object is None
    assert operator.api.every(RAY_CLUSTER) == ()


@pytest.mark.parametrize("cap_s", [30.0, 300.0])
def test_a_cluster_that_does_not_go_holds_the_object_for_the_cap_and_no_longer(make_operator: Any, cap_s: float):
    operator = make_operator(settings=Settings(turn_s=1.0, finalizer_s=cap_s))
    operator.until("Running")
    (cluster,) = operator.api.every(RAY_CLUSTER)
    operator.api.put(RAY_CLUSTER, {**cluster, "metadata": {**cluster["metadata"], "finalizers": ["somebody/else"]}})
    operator.engine.world.down_s = 10_000.0
    delete(operator)
    operator.run(cap_s - 5.0)
    assert FINALIZER in operator.object["metadata"]["finalizers"]
    operator.run(10.0)
    assert operator.object is None
    assert reasons(operator).count("OperatorClearingExpired") == 1
    assert operator.instruments.value("samite.operator.clearings.expired") == 1


def test_a_namespace_that_is_going_away_is_not_waited_for(operator: Any):
    operator.until("Running")
    message = 'events "x" is forbidden: unable to create new content in namespace team-a because it is being terminated'
    operator.api.refusals = [("create", "events", error_of(403, message))]
    delete(operator)
    operator.turn()
    assert operator.object is None


def test_kuberay_that_is_gone_is_not_waited_for(operator: Any):
    operator.until("Succeeded")
    operator.api.refusals = [("list", "rayclusters", error_of(404, "the server could not find the requested resource"))]
    delete(operator)
    operator.turn()
    assert operator.object is None


def test_an_operator_that_is_killed_while_it_clears_is_followed_by_one_that_goes_on(operator: Any):
    operator.until("Running")
    delete(operator)
    for _ in range(60):
        if operator.object is None:
            break
        operator.turn()
        operator.world.tick(1.0)
        operator.restart()
    assert operator.object is None
    assert operator.api.every(RAY_CLUSTER) == ()


def test_another_finalizer_is_left_to_its_owner(operator: Any):
    operator.change(metadata={"finalizers": ["example.org/other"]})
    operator.until("Running")
    delete(operator)
    operator.run(40)
    assert operator.object["metadata"]["finalizers"] == ["example.org/other"]
    operator.run(3)
    assert operator.object["metadata"]["finalizers"] == ["example.org/other"]


def test_a_new_run_of_the_same_name_begins_anew(operator: Any):
    operator.until("Succeeded")
    document = operator.object
    delete(operator)
    operator.run(5)
    assert operator.object is None
    fresh = {key: value for key, value in document.items() if key != "status"}
    fresh["metadata"] = {"name": "demo", "namespace": "team-a", "uid": "another", "generation": 1}
    operator.api.put(TRAINING_RUN, fresh)
    operator.turn()
    assert operator.phase in ("Validating", "Queued")
    assert operator.status["attempt"] == 0
