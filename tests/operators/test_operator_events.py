"""Events for people and for storage, requests that are counted, credentials that rotate, and objects whose run is gone."""

import base64
import json
from typing import Any

import pytest

from samite.checkpoint.store.memory import MemoryStore
from samite.engines.kuberay.api import EVENT, LEASE, POD, RAY_CLUSTER, SECRET, TRAINING_RUN, ForbiddenApiError, RetryableApiError, error_of
from samite.engines.kuberay.fake_api import FakeApi
from samite.errors import NotAllowedError, UnreachableError
from samite_operators.blame import BlameLedger
from samite_operators.events import EventPoster, EventRecords, message_of, reason_of, record_of
from samite_operators.instruments import Instruments
from samite_operators.liveness import Vitals
from samite_operators.metering import MeteredApi
from samite_operators.orphans import OrphanSweep
from samite_operators.settings import Settings
from samite_operators.storage_access import RotatingStore, RunStores, options_of
from samite_operators.telling import Teller

RUN: dict[str, Any] = {
    "apiVersion": "samite.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "demo", "namespace": "team-a", "uid": "u-1"},
    "spec": {"checkpoint": {"uri": "s3://bucket/demo"}},
}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(name: str = "samite.run.held", **attributes: Any) -> Any:
    return record_of(RUN, name, attributes, now_s=1_800_000_000.5)


def test_an_event_says_what_happened_in_one_line():
    assert reason_of("samite.restart.decided") == "RestartDecided"
    changed = record("samite.run.phase.changed", phase_from="Running", phase_to="Recovering", reason="NodeLost", message="n1 is gone")
    assert message_of(changed) == "Running -> Recovering: NodeLost: n1 is gone"
    assert message_of(record("samite.node.lost", node="n1", evidence=["a", "b"])) == "A node is gone (node=n1, evidence=a; b)"


def test_an_event_is_posted_once_in_five_minutes():
    api, clock = FakeApi(), Clock()
    poster = EventPoster(api, identity="operator-0", clock=clock)
    for _ in range(3):
        poster.post(RUN, record(reason="x"))
    (event,) = api.every(EVENT)
    assert (event["type"], event["reason"], event["involvedObject"]["uid"]) == ("Warning", "RunHeld", "u-1")
    poster.post(RUN, record(reason="y"))
    clock.now_s = 301.0
    poster.post(RUN, record(reason="x"))
    assert len(api.every(EVENT)) == 3


def test_an_event_that_cannot_be_posted_costs_nothing_unless_the_namespace_refuses():
    api = FakeApi()
    poster = EventPoster(api, identity="operator-0")
    api.refusals = [("create", "events", error_of(500, "no"))]
    poster.post(RUN, record(reason="x"))
    api.refusals = [("create", "events", error_of(403, "no"))]
    with pytest.raises(ForbiddenApiError):
        poster.post(RUN, record(reason="y"))


def lines(store: Any) -> list[tuple[str, list[str]]]:
    return [(info.key, [json.loads(line)["name"] for line in store.get(info.key).splitlines()]) for info in store.list("records/")]


def test_event_lines_lie_in_storage_and_the_next_process_begins_an_object_of_its_own():
    store = MemoryStore("memory://event-lines")
    first = EventRecords()
    first.add(record(), lambda: store)
    first.flush()
    first.add(record("samite.run.resumed", actor="ada"), lambda: store)
    first.flush()
    second = EventRecords()
    second.add(record("samite.run.cancelled"), lambda: store)
    second.flush()
    assert lines(store) == [
        ("records/operator/events/00000.jsonl", ["samite.run.held", "samite.run.resumed"]),
        ("records/operator/events/00001.jsonl", ["samite.run.cancelled"]),
    ]


def test_event_lines_wait_for_a_storage_that_is_away():
    store, away = MemoryStore("memory://event-lines-wait"), [True]

    def opened() -> Any:
        if away[0]:
            raise UnreachableError("away")
        return store

    records = EventRecords()
    records.add(record(), opened)
    records.flush()
    away[0] = False
    records.flush()
    assert lines(store) == [("records/operator/events/00000.jsonl", ["samite.run.held"])]


def test_stopping_writes_what_waits():
    store = MemoryStore("memory://event-lines-stop")
    records = EventRecords(period_s=100.0)
    records.start()
    records.add(record(), lambda: store)
    records.stop()
    assert lines(store) == [("records/operator/events/00000.jsonl", ["samite.run.held"])]


def metered(api: FakeApi) -> tuple[MeteredApi, Instruments, Vitals]:
    instruments, vitals = Instruments(), Vitals()
    return MeteredApi(api, instruments, vitals), instruments, vitals


def test_requests_are_counted_by_verb_resource_and_outcome():
    api = FakeApi()
    counted, instruments, _ = metered(api)
    counted.list(POD, "team-a")
    with pytest.raises(Exception, match="not found"):
        counted.get(TRAINING_RUN, "team-a", "none")
    assert instruments.value("samite.operator.requests", {"samite.request.verb": "list", "samite.request.resource": "pods"}) == 1
    assert instruments.value("samite.operator.requests", {"samite.request.outcome": "notfound"}) == 1


def test_a_missing_right_is_remembered_until_it_is_granted():
    api = FakeApi()
    counted, _, _ = metered(api)
    message = 'pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "team-a"'
    api.refusals = [("list", "pods", error_of(403, message))]
    with pytest.raises(ForbiddenApiError):
        counted.list(POD, "team-a")
    assert [denial.right for denial in counted.denials("team-a")] == ["list pods in team-a"]
    assert counted.denials("team-b") == ()
    counted.list(POD, "team-a")
    assert counted.denials("team-a") == ()


def test_a_quota_that_refuses_is_no_missing_right():
    api = FakeApi()
    counted, _, _ = metered(api)
    api.refusals = [("create", "rayclusters", error_of(403, 'rayclusters "x" is forbidden: exceeded quota: pods'))]
    with pytest.raises(ForbiddenApiError):
        counted.create(RAY_CLUSTER, "team-a", {"metadata": {"name": "x"}})
    assert counted.denials("team-a") == ()


def test_silence_does_not_count_as_an_answer():
    api, clock = FakeApi(), Clock()
    vitals = Vitals(clock=clock)
    counted = MeteredApi(api, Instruments(), vitals)
    api.down = True
    clock.now_s = 20.0
    with pytest.raises(RetryableApiError):
        counted.list(POD)
    assert vitals.api_silent_s == 20.0
    api.down = False
    counted.list(POD)
    assert vitals.api_silent_s == 0.0


def test_credentials_come_from_the_runs_secret_and_a_rotated_one_is_read_again():
    api = FakeApi()

    def secret(value: str) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        api.put(SECRET, {"metadata": {"name": "s3", "namespace": "team-a"}, "data": data})

    stores = RunStores(api, readable=frozenset({"s3"}))
    checkpoint = {"uri": "s3://bucket/demo", "credentials": {"secretName": "s3"}}
    secret("old")
    assert stores._secret("team-a", checkpoint)["AWS_SECRET_ACCESS_KEY"] == "old"
    secret("new")
    assert stores._secret("team-a", checkpoint)["AWS_SECRET_ACCESS_KEY"] == "new"
    assert stores._secret("team-a", {"uri": "s3://bucket/demo"}) == {}


def test_a_secret_that_the_operator_was_not_told_to_read_is_not_asked_for():
    api = FakeApi()
    checkpoint = {"uri": "s3://bucket/demo", "credentials": {"secretName": "theirs"}}
    assert RunStores(api, readable=frozenset({"s3"}))._secret("team-a", checkpoint) == {}
    assert api.calls == []


def test_a_store_whose_credentials_are_refused_is_opened_again():
    behind, opened = MemoryStore("memory://rotating"), []
    behind.put("a", b"x")

    class Expired:
        def get(self, key: str) -> bytes:
            raise NotAllowedError("expired")

    def open_() -> Any:
        opened.append(len(opened))
        return Expired() if len(opened) == 1 else behind

    assert RotatingStore(open_).get("a") == b"x"
    assert len(opened) == 2


def test_the_store_of_a_run_is_opened_once():
    stores = RunStores(FakeApi())
    assert stores.of(RUN) is stores.of({**RUN})
    first = stores.of(RUN)
    stores.forget("u-1")
    assert stores.of(RUN) is not first


class Sweep:
    def __init__(self, **settings: Any) -> None:
        self.api, self.clock = FakeApi(), Clock()
        instruments = Instruments()
        teller = Teller(
            poster=EventPoster(self.api, identity="operator-0"),
            records=EventRecords(),
            instruments=instruments,
            storage=RunStores(self.api).of,
        )
        self.sweeper = OrphanSweep(
            self.api,
            Settings(namespaces=("team-a",), orphan_grace_s=600.0, **settings),
            instruments,
            BlameLedger(self.api),
            teller,
            may_act=lambda: True,
            clock=self.clock,
        )

    def put(self, kind: Any, name: str, *, uid: str = "u-1") -> None:
        labels = {"samite.dev/run": "demo", "samite.dev/run-uid": uid}
        self.api.put(kind, {"metadata": {"name": name, "namespace": "team-a", "labels": labels}})


def test_an_object_whose_run_is_gone_is_deleted_after_two_looks_ten_minutes_apart():
    sweep = Sweep()
    sweep.put(RAY_CLUSTER, "demo-s00-1")
    sweep.put(LEASE, "demo-heartbeat")
    sweep.api.put(LEASE, {"metadata": {"name": "somebody-elses", "namespace": "team-a"}})
    assert sweep.sweeper.sweep() == []
    sweep.clock.now_s = 599.0
    assert sweep.sweeper.sweep() == []
    sweep.clock.now_s = 600.0
    assert sweep.sweeper.sweep() == ["RayCluster team-a/demo-s00-1", "Lease team-a/demo-heartbeat"]
    assert [item["metadata"]["name"] for item in sweep.api.every(LEASE)] == ["somebody-elses"]
    assert {event["reason"] for event in sweep.api.every(EVENT)} == {"OperatorOrphanDeleted"}


def test_what_belongs_to_a_living_run_stays_and_so_does_what_came_back_between_two_looks():
    sweep = Sweep()
    sweep.put(RAY_CLUSTER, "mine")
    sweep.put(RAY_CLUSTER, "theirs", uid="u-2")
    sweep.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team-a", "uid": "u-1"}, "spec": {}})
    sweep.sweeper.sweep()
    sweep.clock.now_s = 700.0
    assert sweep.sweeper.sweep() == ["RayCluster team-a/theirs"]
    assert [item["metadata"]["name"] for item in sweep.api.every(RAY_CLUSTER)] == ["mine"]


def test_a_listing_that_misses_a_run_deletes_nothing_of_it():
    sweep = Sweep()
    sweep.put(RAY_CLUSTER, "mine")
    run = {"metadata": {"name": "demo", "namespace": "team-a", "uid": "u-1"}, "spec": {}}
    sweep.sweeper.sweep()
    sweep.clock.now_s = 700.0
    sweep.api.put(TRAINING_RUN, run)
    real = sweep.api.list

    def missing(kind: Any, namespace: str = "", **how: Any) -> Any:
        found = real(kind, namespace, **how)
        return type(found)(items=[], resource_version=found.resource_version) if kind == TRAINING_RUN else found

    sweep.api.list = missing  # type: ignore[method-assign]
    assert sweep.sweeper.sweep() == []
    assert sweep.api.every(RAY_CLUSTER)


def test_maintenance_sweeps_nothing():
    sweep = Sweep(maintenance=True)
    sweep.put(RAY_CLUSTER, "left")
    sweep.sweeper.sweep()
    sweep.clock.now_s = 700.0
    assert sweep.sweeper.sweep() == []


def test_the_secret_says_where_the_storage_is_when_the_spec_does_not():
    secret = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "eu-1",
        "AWS_ENDPOINT_URL_S3": "http://s3.team.svc:8333",
    }
    found = options_of({"uri": "s3://bucket/demo", "insecure": True}, secret)
    assert (found.endpoint, found.region, found.access_key, found.secret_key) == ("http://s3.team.svc:8333", "eu-1", "a", "b")
    assert options_of({"endpoint": "https://given:9000", "region": "us-2"}, secret).endpoint == "https://given:9000"
    assert options_of({"endpoint": "https://given:9000", "region": "us-2"}, secret).region == "us-2"
