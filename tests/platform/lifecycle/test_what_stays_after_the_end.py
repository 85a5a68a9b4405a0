"""`retention`: what becomes of the cluster when a run is over."""

from dataclasses import replace

import pytest

from samite.lifecycle import ClusterObserved, Finish, Phase, ReleaseWorkers, RunPlan
from samite.lifecycle.simulation import Engine, small_plan, small_run
from samite.spec import TrainingRun

STAGE = {"name": "only", "contextLength": 128, "batch": {"tokens": 1024}, "budget": {"steps": 10}}


def plan_of(**retention: str) -> RunPlan:
    document = {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "demo"},
        "spec": {"stages": [STAGE], "retention": retention},
    }
    return RunPlan.from_run(TrainingRun.model_validate(document), uid="u")


def finished(**kept: frozenset[str]) -> Engine:
    engine = small_run(replace(small_plan(), **kept))
    engine.run_until(Phase.SUCCEEDED)
    return engine


@pytest.mark.parametrize(
    ("retention", "whole", "head"),
    [
        ({}, set(), set()),
        ({"onSuccess": "Keep"}, {"Succeeded"}, set()),
        ({"onSuccess": "DeleteWorkers", "onFailure": "Keep"}, {"Failed"}, {"Succeeded"}),
        ({"onSuccess": "DeleteWorkers", "onFailure": "DeleteWorkers"}, set(), {"Succeeded", "Failed"}),
    ],
)
def test_the_plan_knows_what_stays_after_which_end(retention: dict[str, str], whole: set[str], head: set[str]):
    plan = plan_of(**retention)
    assert (plan.keep_cluster_after, plan.keep_head_after) == (whole, head)


def test_the_workers_go_and_the_head_stays_and_only_then_the_record_is_closed():
    engine = finished(keep_head_after=frozenset({"Succeeded"}))
    (cluster,) = engine.world.clusters.values()
    assert cluster.nodes == {}
    engine.world.tick()
    decision = engine.turn()
    assert [type(action) for action in decision.actions] == [Finish]
    assert decision.settled
    assert cluster.gone_at is None


def test_nothing_is_closed_while_a_worker_is_seen_or_nobody_knows():
    engine = finished(keep_head_after=frozenset({"Succeeded"}))
    memory = engine.memory
    seen = engine.look()
    (cluster,) = seen.cluster
    worker = replace(cluster.nodes[0], name="n9", head=False)
    for shown in (replace(cluster, nodes=(*cluster.nodes, worker)), ClusterObserved(cluster_id=cluster.cluster_id)):
        engine.memory = memory
        decision = engine.turn(replace(seen, cluster=(shown,)), apply=0)
        assert [type(action) for action in decision.actions] == [ReleaseWorkers]
        assert not decision.settled


@pytest.mark.parametrize("kept", ["keep_cluster_after", "keep_head_after"])
def test_an_end_that_is_not_named_releases_the_whole_cluster(kept: str):
    engine = small_run(replace(small_plan(), **{kept: frozenset({"Failed"})}))
    engine.run_until(Phase.RUNNING)
    engine.world.cancel = True
    engine.run_until(Phase.CANCELLED)
    engine.run(10)
    assert all(cluster.gone_at is not None for cluster in engine.world.clusters.values())
    assert engine.memory.cluster is None
