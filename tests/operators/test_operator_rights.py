"""The operator's rights in a namespace last until its last run was let go, and one namespace without rights holds up no other."""

import json
import urllib.request
from typing import Any

import pytest

from samite.engines.kuberay.api import POD, RAY_CLUSTER, ROLE_BINDING, TRAINING_RUN, Document, Kind, error_of
from samite.engines.kuberay.fake_api import FakeApi
from samite.engines.kuberay.names import FINALIZER, HOLD
from samite_operators.cache import ObjectCache
from samite_operators.handlers import Watcher
from samite_operators.liveness import ProbeServer, Vitals
from samite_operators.resync import Resync, View
from samite_operators.rights import Rights
from samite_operators.settings import Settings

NARROW = Settings(turn_s=1.0, namespaces=("team-a", "team-b"), namespace_role="operator-in-namespaces")
NAME = "samite-operator-while-runs"


def binding(api: FakeApi, namespace: str = "team-a") -> Document | None:
    return api.look(ROLE_BINDING, namespace, NAME)


def held(api: FakeApi) -> bool:
    found = binding(api)
    return found is not None and HOLD in found["metadata"].get("finalizers", ())


def bound(api: FakeApi, **metadata: Any) -> None:
    """A binding that an earlier process left."""
    api.put(ROLE_BINDING, {"metadata": {"name": NAME, "namespace": "team-a", **metadata}})


def run(api: FakeApi, name: str, namespace: str = "team-a", **metadata: Any) -> Document:
    return api.put(TRAINING_RUN, {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": {}})


def requests(api: FakeApi, kind: Kind = ROLE_BINDING) -> int:
    return sum(1 for _, plural, _ in api.calls if plural == kind.plural)


def test_rights_are_held_before_the_first_run_is_and_let_go_after_the_last(make_operator: Any):
    operator = make_operator(settings=NARROW)
    written = []
    operator.api.on_write = lambda _, document: written.append((document["kind"], document["metadata"].get("finalizers", [])))
    operator.until("Running")
    assert [(kind, kept) for kind, kept in written if kept][:2] == [("RoleBinding", [HOLD]), ("TrainingRun", [FINALIZER])]
    assert requests(operator.api) == 2  # one look, one binding, however many turns
    made = binding(operator.api)
    assert made["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator-in-namespaces"}
    assert made["subjects"] == [{"kind": "ServiceAccount", "name": "samite-operator", "namespace": "samite-system"}]
    operator.api.delete(TRAINING_RUN, "team-a", "demo")
    operator.run(40)
    assert operator.object is None
    assert binding(operator.api) is None


def test_a_namespace_that_takes_the_binding_first_is_still_cleared(make_operator: Any):
    operator = make_operator(settings=NARROW)
    operator.until("Running")
    operator.api.delete(ROLE_BINDING, "team-a", NAME)  # the namespace is deleted: this comes first
    operator.api.delete(TRAINING_RUN, "team-a", "demo")
    message = 'events "x" is forbidden: unable to create new content in namespace team-a because it is being terminated'
    operator.api.refusals = [("create", "events", error_of(403, message))]
    operator.restart()  # and an operator that was killed meanwhile knows nothing of before
    assert held(operator.api)
    operator.turn()
    assert operator.object is None
    assert binding(operator.api) is None


def test_rights_stay_while_another_run_needs_them_and_go_when_a_look_finds_none():
    api = FakeApi()
    rights = Rights(api, NARROW)
    run(api, "leaving", finalizers=[FINALIZER], deletionTimestamp="2026-01-01T00:00:00Z")
    run(api, "new")
    rights.hold("team-a")
    rights.release("team-a")
    assert held(api)
    api.delete(TRAINING_RUN, "team-a", "new")
    rights.release("team-a")
    assert held(api)
    api.patch(TRAINING_RUN, "team-a", "leaving", {"metadata": {"finalizers": ["somebody/else"]}})
    rights.release("team-a")
    assert binding(api) is None
    before = requests(api)
    rights.release("team-a")
    assert requests(api) == before
    rights.hold("team-a")
    assert held(api)


def test_what_others_hold_stays_held():
    api = FakeApi()
    bound(api, finalizers=["somebody/else"])
    rights = Rights(api, NARROW)
    rights.hold("team-a")
    assert binding(api)["metadata"]["finalizers"] == ["somebody/else", HOLD]
    rights.release("team-a")
    assert binding(api)["metadata"]["finalizers"] == ["somebody/else"]


@pytest.mark.parametrize(("verb", "answer", "kept"), [("create", 403, False), ("list", 503, False), ("create", 409, True)])
def test_what_could_not_be_held_is_tried_again(verb: str, answer: int, kept: bool):
    api = FakeApi()
    rights = Rights(api, NARROW)
    api.refusals = [(verb, "rolebindings", error_of(answer, "no"))]
    rights.hold("team-a")
    assert not held(api)
    rights.hold("team-a")
    assert held(api) != kept  # a 409 is another operator's binding: nothing more to do


@pytest.mark.parametrize("verb", ["list", "delete", "patch"])
def test_a_release_that_was_cut_short_is_finished_by_the_next(verb: str):
    api = FakeApi()
    rights = Rights(api, NARROW)
    rights.hold("team-a")
    api.refusals = [(verb, "rolebindings", error_of(503, "later"))]
    rights.release("team-a")
    assert binding(api) is not None
    rights.release("team-a")
    assert binding(api) is None


def test_a_binding_that_is_on_its_way_out_is_left_alone():
    api = FakeApi()
    bound(api, finalizers=["x"], deletionTimestamp="2026")
    Rights(api, NARROW).hold("team-a")
    assert binding(api)["metadata"]["finalizers"] == ["x"]


def test_nothing_is_held_in_cluster_mode_in_other_namespaces_or_without_a_role():
    api = FakeApi()
    for settings, namespace in (
        (Settings(namespace_role="operator-in-namespaces"), "team-a"),
        (Settings(namespaces=("team-a",)), "team-a"),
        (NARROW, "team-c"),
    ):
        rights = Rights(api, settings)
        rights.hold(namespace)
        rights.release(namespace)
    assert requests(api) == 0


class Narrow(FakeApi):
    """An API server that refuses everything in the namespaces of `lost`."""

    lost: frozenset[str] = frozenset()

    def list(self, kind: Kind, namespace: str = "", **options: Any) -> Any:
        if namespace in self.lost:
            raise error_of(403, f"{kind.plural} is forbidden in the namespace {namespace}")
        return super().list(kind, namespace, **options)


def resync(api: FakeApi, cache: ObjectCache, vitals: Vitals, woken: list[Any]) -> Resync:
    keeper: Any = type("Keeper", (), {"wake": lambda _, namespace, name: woken.append((namespace, name))})()
    return Resync(api, cache, Watcher(cache, keeper), keeper, vitals, Rights(api, NARROW), NARROW)


def test_a_namespace_without_rights_is_left_out_and_the_others_go_on():
    api, cache, vitals, woken = Narrow(), ObjectCache(), Vitals(), []
    run(api, "a", "team-a")
    run(api, "b", "team-b")
    looks = resync(api, cache, vitals, woken)
    looks._kinds = (TRAINING_RUN, RAY_CLUSTER, POD)
    everything = View(frozenset(looks._kinds), ("team-a", "team-b"))
    assert looks.look(looks._kinds) == everything
    api.lost = frozenset({"team-b"})
    woken.clear()
    assert looks.look(looks._kinds) == View(everything.kinds, ("team-a",))
    assert ("team-b", "b") in woken  # its last turn: it is nobody's now
    assert cache.get(TRAINING_RUN, "team-b", "b") is None
    assert list(vitals.unserved) == ["team-b"]
    assert vitals.complaints() == []
    api.lost = frozenset()
    assert looks.look(looks._kinds) == everything
    assert cache.get(TRAINING_RUN, "team-b", "b") is not None
    assert vitals.unserved == {}


def test_no_namespace_with_rights_is_nothing_to_watch():
    api = Narrow()
    api.lost = frozenset({"team-a", "team-b"})
    looks = resync(api, ObjectCache(), Vitals(), [])
    assert looks.look((TRAINING_RUN, POD)) == View()


def test_a_binding_that_an_earlier_process_left_held_is_let_go_by_the_first_look():
    api = FakeApi()
    bound(api, finalizers=[HOLD])
    resync(api, ObjectCache(), Vitals(), []).look((TRAINING_RUN,))
    assert binding(api) is None


def test_readiness_names_the_namespaces_that_are_left_out():
    vitals = Vitals()
    vitals.ready, vitals.unserved = True, {"team-b": "trainingruns is forbidden"}
    probes = ProbeServer(vitals, lambda: "", port=0, host="127.0.0.1")
    probes.start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{probes.port}/readyz", timeout=5) as answer:
            assert json.load(answer) == {"ok": True, "reasons": [], "notServed": {"team-b": "trainingruns is forbidden"}}
    finally:
        probes.stop()
