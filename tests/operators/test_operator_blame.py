"""What runs hold against machines, shared: added by the same rules, ended by time, by a person, or by deleting the object."""

from typing import Any

import pytest

from samite.engines.kuberay.api import error_of
from samite.engines.kuberay.fake_api import FakeApi
from samite.lifecycle.doubts import BlameMemory
from samite.lifecycle.plan import NodePolicy
from samite.spec.node_blame import NodeBlame
from samite_operators.blame import NODE_BLAME, BlameLedger, is_excluded

POLICY = NodePolicy()
RUN = {"metadata": {"name": "demo", "namespace": "team-a"}}


class Time:
    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def now() -> Time:
    return Time()


@pytest.fixture
def ledger(api: FakeApi, now: Time) -> BlameLedger:
    known = {"m1", "m2"}
    return BlameLedger(api, host_of=lambda _, node: node if node in known else "", now=now, clock=now)


def entry(now: Time, node: str = "m1", **more: Any) -> BlameMemory:
    return BlameMemory(node=node, updated_s=now.now_s, **more)


def status(api: FakeApi, node: str = "m1") -> dict[str, Any]:
    found = api.look(NODE_BLAME, "", node)
    return {} if found is None else found.get("status") or {}


def test_a_strike_of_one_run_is_there_for_all(api: FakeApi, ledger: BlameLedger, now: Time):
    fact = "first rank to fail: demo-s00-a1/0"
    ledger.note(RUN, (), (entry(now, strikes=0.5, seen=("demo-s00-a1/0",), reason=fact),), policy=POLICY)
    found = status(api)
    assert (found["state"], found["strikes"]) == ("Suspect", 0.5)
    assert found["evidence"][0]["run"] == "demo"
    NodeBlame.from_document({key: api.look(NODE_BLAME, "", "m1")[key] for key in ("apiVersion", "kind", "spec", "status")})


def test_strikes_of_several_runs_add_up_to_a_quarantine_that_everybody_honours(api: FakeApi, ledger: BlameLedger, now: Time):
    for number in range(3):
        run = {"metadata": {"name": f"run-{number}", "namespace": "team-a"}}
        ledger.note(
            run, (), (entry(now, strikes=1, seen=(f"flap {number}",), reason=f"minority stack group: flap {number}"),), policy=POLICY
        )
    assert status(api)["state"] == "Quarantined"
    assert ledger.excluded() == {"m1"}
    now.now_s += POLICY.expiry_s + 60
    assert ledger.excluded() == frozenset()


def test_what_a_run_excludes_at_once_is_excluded_for_all_until_the_same_moment(api: FakeApi, ledger: BlameLedger, now: Time):
    ledger.note(RUN, (), (entry(now, excluded_until_s=now.now_s + 3600, reason="XID 79"),), policy=POLICY)
    assert (status(api)["state"], status(api)["reason"]) == ("Quarantined", "XID 79")
    assert ledger.excluded() == {"m1"}
    now.now_s += 3601
    assert ledger.excluded() == frozenset()


def test_the_same_fact_counts_once_however_often_a_turn_is_repeated(api: FakeApi, ledger: BlameLedger, now: Time):
    after = (entry(now, strikes=0.5, seen=("x",), reason="first rank to fail: x"),)
    for _ in range(3):
        ledger.note(RUN, (), after, policy=POLICY)
    assert status(api)["strikes"] == 0.5
    assert len(status(api)["evidence"]) == 1


def test_strikes_halve_with_time(api: FakeApi, ledger: BlameLedger, now: Time):
    ledger.note(RUN, (), (entry(now, strikes=2, seen=("x",), reason="failed preflight: x"),), policy=POLICY)
    now.now_s += POLICY.half_life_s
    ledger.note(RUN, (), (entry(now, strikes=2, seen=("y",), reason="first rank to fail: y"),), policy=POLICY)
    assert status(api)["strikes"] == pytest.approx(1.5)


def test_a_node_that_is_no_machine_of_the_cluster_is_not_blamed(api: FakeApi, ledger: BlameLedger, now: Time):
    ledger.note(RUN, (), (entry(now, "demo-s00-worker-abc", strikes=1, seen=("x",), reason="straggler: x"),), policy=POLICY)
    assert api.every(NODE_BLAME) == ()


def test_a_person_excludes_and_releases(api: FakeApi, ledger: BlameLedger, now: Time):
    api.put(NODE_BLAME, {"metadata": {"name": "m2"}, "spec": {"exclude": True, "by": "ada"}})
    assert ledger.excluded() == {"m2"}
    before = (entry(now, excluded_until_s=now.now_s + 3600),)
    ledger.note(RUN, (), before, policy=POLICY)
    assert ledger.excluded() == {"m1", "m2"}
    ledger.note(RUN, before, (), policy=POLICY)  # `samite nodes uncordon`
    assert ledger.excluded() == {"m2"}


def test_the_sweep_ends_what_is_over_and_forgets_what_says_nothing(api: FakeApi, ledger: BlameLedger, now: Time):
    ledger.note(RUN, (), (entry(now, excluded_until_s=now.now_s + 60, reason="XID 79"),), policy=POLICY)
    ledger.note(RUN, (), (entry(now, "m2", strikes=1, seen=("x",), reason="network flap: x"),), policy=POLICY)
    api.put(NODE_BLAME, {"metadata": {"name": "m3"}, "spec": {"exclude": True}})
    now.now_s += 120
    assert ledger.sweep() == 1
    assert {item["metadata"]["name"] for item in api.every(NODE_BLAME)} == {"m2", "m3"}
    now.now_s += 8 * POLICY.half_life_s
    assert ledger.sweep() == 1
    assert {item["metadata"]["name"] for item in api.every(NODE_BLAME)} == {"m3"}


def test_an_api_server_that_refuses_costs_no_turn_and_leaves_the_last_answer(api: FakeApi, ledger: BlameLedger, now: Time):
    api.put(NODE_BLAME, {"metadata": {"name": "m2"}, "spec": {"exclude": True}})
    assert ledger.excluded() == {"m2"}
    api.down = True
    now.now_s += 60
    assert ledger.excluded() == {"m2"}
    ledger.note(RUN, (), (entry(now, strikes=1, seen=("x",), reason="straggler: x"),), policy=POLICY)


def test_two_writers_at_once_lose_nothing(api: FakeApi, ledger: BlameLedger, now: Time):
    api.put(NODE_BLAME, {"metadata": {"name": "m1"}, "spec": {}})
    api.refusals = [("patch", "nodeblames", error_of(409, "newer"))]
    ledger.note(RUN, (), (entry(now, strikes=1, seen=("x",), reason="straggler: x"),), policy=POLICY)
    assert status(api)["strikes"] == 0.5


def test_a_quarantine_without_a_time_excludes_nobody():
    assert not is_excluded({"spec": {}, "status": {}}, now_s=0.0)
    assert is_excluded({"spec": {}, "status": {"quarantinedUntil": "2030-01-01T00:00:00Z"}}, now_s=0.0)


def test_a_turn_writes_the_blame_of_its_run(operator: Any):
    """Through the whole operator: a node that is excluded by request."""
    from samite.engines.kuberay.api import NODE

    operator.api.put(NODE, {"metadata": {"name": "m1"}})
    operator.until("Running")
    operator.change(metadata={"annotations": {"samite.dev/request-x": '{"verb": "exclude", "argument": "m1", "by": "ada"}'}})
    operator.run(2)
    assert operator.ledger.excluded() == {"m1"}
    operator.change(metadata={"annotations": {"samite.dev/request-y": '{"verb": "uncordon", "argument": "m1", "by": "ada"}'}})
    operator.run(2)
    assert operator.ledger.excluded() == frozenset()
