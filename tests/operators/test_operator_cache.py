"""The cache answers only what it knows, the keeper gives turns one at a time, and a dead watch is found by the second look."""

import threading
import time
from typing import Any

import pytest

from samite.engines.kuberay.api import LEASE, NODE, POD, RAY_CLUSTER, TRAINING_RUN, Document, Kind, Listing, RetryableApiError, error_of
from samite.engines.kuberay.fake_api import FakeApi
from samite_operators.cache import CachedApi, ObjectCache
from samite_operators.handlers import Watcher, matters
from samite_operators.instruments import Instruments
from samite_operators.keeper import Keeper
from samite_operators.liveness import Vitals
from samite_operators.resync import Resync, View
from samite_operators.rights import Rights
from samite_operators.run_state import Next
from samite_operators.settings import Settings


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Parts:
    def __init__(self) -> None:
        self.api, self.clock = FakeApi(), Clock()
        self.vitals, self.cache = Vitals(clock=self.clock), ObjectCache(clock=self.clock)
        watched = (TRAINING_RUN, RAY_CLUSTER, POD, LEASE, NODE)
        self.cached = CachedApi(self.api, self.cache, self.vitals, watched=watched, clock=self.clock)

    def reads(self) -> int:
        return sum(1 for verb, _, _ in self.api.calls if verb in ("get", "list"))


@pytest.fixture
def parts() -> Parts:
    return Parts()


def pod(name: str, *, run: str = "demo", version: str = "", **more: Any) -> Document:
    metadata = {"name": name, "namespace": "team", "labels": {"samite.dev/run": run, "samite.dev/run-uid": f"uid-of-{run}"}}
    return {"metadata": {**metadata, **({"resourceVersion": version, "uid": name} if version else {})}, **more}


def test_a_run_that_is_watched_costs_no_request(parts: Parts):
    for name in ("a", "b"):
        parts.cache.put(POD, parts.api.put(POD, pod(name)))
    parts.cache.put(POD, parts.api.put(POD, pod("c", run="other")))
    found = parts.cached.list(POD, "team", labels={"samite.dev/run-uid": "uid-of-demo"})
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
    assert parts.cached.get(POD, "team", "a")["metadata"]["name"] == "a"
    assert parts.reads() == 0


def test_absence_is_asked_of_the_server(parts: Parts):
    parts.api.put(POD, pod("late"))
    assert len(parts.cached.list(POD, "team", labels={"samite.dev/run-uid": "uid-of-demo"}).items) == 1
    assert parts.cached.get(POD, "team", "late")["metadata"]["name"] == "late"
    assert parts.reads() == 2


def test_inside_direct_the_server_alone_is_asked(parts: Parts):
    parts.cache.put(POD, parts.api.put(POD, pod("a")))
    parts.api.delete(POD, "team", "a")
    with parts.cached.direct():
        assert parts.cached.list(POD, "team", labels={"samite.dev/run-uid": "uid-of-demo"}).items == []
    assert len(parts.cached.list(POD, "team", labels={"samite.dev/run-uid": "uid-of-demo"}).items) == 1


def test_an_api_server_that_was_not_heard_for_a_while_is_asked_itself(parts: Parts):
    parts.cache.put(POD, parts.api.put(POD, pod("a")))
    parts.clock.now_s = 13.0
    parts.api.down = True
    with pytest.raises(RetryableApiError):
        parts.cached.get(POD, "team", "a")
    parts.api.down = False
    assert parts.cached.get(POD, "team", "a")
    assert parts.reads() == 2
    parts.vitals.answered()
    assert parts.cached.get(POD, "team", "a")
    assert parts.reads() == 2


def test_a_lease_that_is_quiet_is_looked_at(parts: Parts):
    parts.cache.put(LEASE, parts.api.put(LEASE, pod("demo-heartbeat")))
    parts.cached.get(LEASE, "team", "demo-heartbeat")
    assert parts.reads() == 0
    parts.clock.now_s = 5.0
    parts.cached.get(LEASE, "team", "demo-heartbeat")
    assert parts.reads() == 1


def test_a_node_that_somebody_suspects_is_asked_of_the_server(parts: Parts):
    parts.cache.put(NODE, parts.api.put(NODE, {"metadata": {"name": "n1"}}))
    assert parts.cached.list(NODE, cached=True).items
    assert parts.reads() == 0
    parts.cached.get(NODE, "", "n1")
    assert parts.reads() == 1


def test_what_was_written_is_known_before_the_watch_tells(parts: Parts):
    made = parts.cached.create(RAY_CLUSTER, "team", pod("c"))
    assert parts.cached.get(RAY_CLUSTER, "team", "c") == made
    assert parts.reads() == 0


def test_an_older_version_never_replaces_a_newer_one(parts: Parts):
    assert parts.cache.put(POD, pod("a", version="7", status={"phase": "Running"}))
    assert not parts.cache.put(POD, pod("a", version="5", status={"phase": "Pending"}))
    assert parts.cache.get(POD, "team", "a")[0]["status"]["phase"] == "Running"


def test_a_listing_removes_what_is_gone_and_keeps_what_is_newer_than_itself(parts: Parts):
    parts.cache.put(POD, pod("old", version="3"))
    parts.cache.put(POD, pod("new", version="12"))
    gone = parts.cache.reconcile(POD, Listing(items=[], resource_version="10"))
    assert [item["metadata"]["name"] for item in gone] == ["old"]
    assert parts.cache.get(POD, "team", "new")


def test_a_heartbeat_is_no_reason_to_hurry_but_a_result_is():
    before = pod("l", version="1")
    beat = {**before, "metadata": {**before["metadata"], "annotations": {"samite.dev/heartbeats": "[]"}}}
    result = {**before, "metadata": {**before["metadata"], "annotations": {"samite.dev/result": "{}"}}}
    assert not matters(LEASE, before, beat)
    assert matters(LEASE, before, result)


def test_our_own_status_is_no_reason_to_hurry_but_a_persons_wish_is():
    before = pod("demo", version="1")
    ours = {**before, "status": {"phase": "Running"}}
    wish = {**before, "metadata": {**before["metadata"], "annotations": {"samite.dev/cancel": "true"}}}
    assert not matters(TRAINING_RUN, before, ours)
    assert matters(TRAINING_RUN, before, wish)


class Turns:
    """Counts turns, and never lets two of one run overlap."""

    def __init__(self, *, in_s: float | None = 60.0, lasts_s: float = 0.0) -> None:
        self.in_s, self.lasts_s = in_s, lasts_s
        self.taken: list[tuple[str, str]] = []
        self._on: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def take(self, namespace: str, name: str) -> Next:
        key = (namespace, name)
        with self._lock:
            assert key not in self._on
            self._on.add(key)
            self.taken.append(key)
        time.sleep(self.lasts_s)
        with self._lock:
            self._on.discard(key)
        return Next(in_s=self.in_s)


def keeper_of(turns: Turns, **more: Any) -> Keeper:
    keeper = Keeper(turns.take, instruments=Instruments(), vitals=Vitals(), **more)
    keeper.start()
    return keeper


def wait_for(what: Any, limit_s: float = 5.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < ends_s
        time.sleep(0.005)


def test_a_burst_of_changes_is_one_turn_and_a_change_during_it_another():
    turns = Turns(lasts_s=0.2)
    keeper = keeper_of(turns)
    try:
        for _ in range(50):
            keeper.wake("team", "demo")
        wait_for(lambda: turns.taken)
        keeper.wake("team", "demo")
        wait_for(lambda: len(turns.taken) == 2)
        time.sleep(0.3)
        assert len(turns.taken) == 2
    finally:
        assert keeper.stop()


def test_a_run_has_its_next_turn_when_the_last_one_said_and_none_when_it_is_gone():
    turns = Turns(in_s=0.02)
    keeper = keeper_of(turns)
    try:
        keeper.wake("team", "demo", in_s=0.0)
        wait_for(lambda: len(turns.taken) >= 3)
        turns.in_s = None
        wait_for(lambda: keeper.runs == 0)
    finally:
        keeper.stop()


def test_one_slow_run_does_not_hold_up_the_others():
    turns = Turns(lasts_s=0.3)
    keeper = keeper_of(turns, workers=4)
    try:
        for name in ("a", "b", "c", "d"):
            keeper.wake("team", name, in_s=0.0)
        began_s = time.monotonic()
        wait_for(lambda: len(turns.taken) == 4)
        assert time.monotonic() - began_s < 0.3
    finally:
        assert keeper.stop()


def test_stopping_waits_for_the_turns_that_are_on():
    turns = Turns(lasts_s=0.3)
    keeper = keeper_of(turns)
    keeper.wake("team", "demo", in_s=0.0)
    wait_for(lambda: turns.taken)
    assert keeper.stop(patience_s=5.0)
    assert not turns._on


class Looks:
    """A resync over the fake API server, with a watch that can be dead."""

    def __init__(self, parts: Parts, **settings: Any) -> None:
        self.parts, self.woken = parts, []
        keeper: Any = type("Keeper", (), {"wake": lambda _, namespace, name: self.woken.append((namespace, name))})()
        self.settings = Settings(**settings)
        self.watcher = Watcher(parts.cache, keeper)
        self.resync = Resync(parts.api, parts.cache, self.watcher, keeper, parts.vitals, Rights(parts.api, self.settings), self.settings)

    def told(self, kind: Kind, document: Document, event: str = "MODIFIED") -> None:
        self.watcher.take_in(kind, event, document)


def test_the_first_look_wakes_every_run_and_names_what_can_be_read(parts: Parts):
    looks = Looks(parts)
    parts.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team"}, "spec": {}})
    parts.api.refusals = [("list", "rayclusters", error_of(404, "no such kind")), ("list", "nodes", error_of(403, "no"))]
    assert looks.resync.look((TRAINING_RUN, RAY_CLUSTER, POD, NODE)) == View(frozenset({TRAINING_RUN, POD}))
    assert ("team", "demo") in looks.woken


def test_a_watch_that_does_not_tell_what_two_looks_show_is_behind(parts: Parts):
    looks = Looks(parts)
    run = parts.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team"}, "spec": {}})
    looks.told(TRAINING_RUN, run, "ADDED")
    looks.resync.look((TRAINING_RUN,))
    looks.resync.look((TRAINING_RUN,))
    assert parts.vitals.watches_behind == 0
    changed = parts.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team"}, "spec": {"suspend": True}})
    looks.resync.look((TRAINING_RUN,))
    assert parts.cache.get(TRAINING_RUN, "team", "demo")[0]["spec"] == {"suspend": True}  # work goes on
    looks.resync.look((TRAINING_RUN,))
    assert parts.vitals.watches_behind == 1
    looks.told(TRAINING_RUN, changed)
    looks.resync.look((TRAINING_RUN,))
    assert parts.vitals.watches_behind == 0


def test_a_run_that_went_while_nobody_watched_is_noticed(parts: Parts):
    looks = Looks(parts)
    looks.told(TRAINING_RUN, parts.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team"}, "spec": {}}), "ADDED")
    parts.api.delete(TRAINING_RUN, "team", "demo")
    looks.woken.clear()
    looks.resync.look((TRAINING_RUN,))
    assert parts.cache.get(TRAINING_RUN, "team", "demo") is None
    assert looks.woken == [("team", "demo")]


def test_only_served_namespaces_are_listed(parts: Parts):
    looks = Looks(parts, namespaces=("team-a", "team-b"))
    looks.resync.look((TRAINING_RUN, NODE))
    assert sum(1 for verb, plural, _ in parts.api.calls if (verb, plural) == ("list", "trainingruns")) == 2
    assert sum(1 for verb, plural, _ in parts.api.calls if (verb, plural) == ("list", "nodes")) == 1
