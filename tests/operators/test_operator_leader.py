"""Two operators, one Lease, clocks that are only their own."""

import copy
from typing import Any

import pytest

from samite.errors import ConflictError, NotFoundError, UnreachableError
from samite_operators.leader import Leadership


class OneLease:
    """The Lease of an API server: a version that grows, conditional replacement, and a switch for the network."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down = False

    def read(self) -> dict[str, Any]:
        self._check()
        if self.lease is None:
            raise NotFoundError("no lease")
        return copy.deepcopy(self.lease)

    def create(self, lease: dict[str, Any]) -> dict[str, Any]:
        self._check()
        if self.lease is not None:
            raise ConflictError("it exists")
        return self._write(lease)

    def replace(self, lease: dict[str, Any]) -> dict[str, Any]:
        self._check()
        assert self.lease is not None
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("it has changed")
        return self._write(lease)

    def _write(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    def _check(self) -> None:
        if self.down:
            raise UnreachableError("no answer")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store() -> OneLease:
    return OneLease()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def operator(store: OneLease, identity: str, clock: Clock) -> Leadership:
    return Leadership(store, name="samite-operator", namespace="samite-system", identity=identity, lease_s=15.0, renew_s=5.0, clock=clock)


def test_the_first_operator_leads_and_a_second_one_waits(store: OneLease, clock: Clock):
    first, second = operator(store, "a", clock), operator(store, "b", clock)
    assert first.step()
    assert not second.step()
    assert second.holder == "a"
    for _ in range(20):
        clock.now_s += 5.0
        assert first.step()
        assert not second.step()


def test_the_second_takes_over_after_the_lease_has_not_changed_for_its_duration(store: OneLease, clock: Clock):
    first, second = operator(store, "a", clock), operator(store, "b", clock)
    first.step()
    second.step()
    clock.now_s += 14.9
    assert not second.step()
    clock.now_s += 0.2
    assert second.step()
    assert store.lease["spec"]["leaseTransitions"] == 1
    assert not first.step()
    assert first.lost


def test_the_first_counts_itself_out_before_the_second_can_begin(store: OneLease, clock: Clock):
    first, second = operator(store, "a", clock), operator(store, "b", clock)
    first.step()
    second.step()
    for _ in range(200):
        clock.now_s += 0.1
        second.step()
        assert not (first.held and second.held)
    assert second.held


def test_two_that_find_an_expired_lease_at_once_do_not_both_lead(store: OneLease, clock: Clock):
    gone, second, third = operator(store, "a", clock), operator(store, "b", clock), operator(store, "c", clock)
    gone.step()
    second.step()
    third.step()
    clock.now_s += 20.0
    assert [second.step(), third.step()] == [True, False]


def test_an_api_server_that_is_away_for_a_moment_changes_nothing_but_a_longer_silence_ends_the_lead(store: OneLease, clock: Clock):
    leader = operator(store, "a", clock)
    leader.step()
    store.down = True
    clock.now_s += 9.0
    assert leader.step()
    clock.now_s += 2.0
    assert not leader.step()
    assert leader.lost
    store.down = False
    assert leader.step()


def test_a_container_started_again_in_the_same_pod_goes_on_at_once(store: OneLease, clock: Clock):
    operator(store, "a", clock).step()
    assert operator(store, "a", clock).step()


def test_a_leader_that_stops_gives_the_lease_back(store: OneLease, clock: Clock):
    first, second = operator(store, "a", clock), operator(store, "b", clock)
    first.step()
    first.stop()
    assert not first.held
    assert second.step()


def test_the_clock_of_the_holders_machine_does_not_matter(store: OneLease, clock: Clock):
    first, second = operator(store, "a", clock), operator(store, "b", clock)
    first.step()
    assert store.lease is not None
    store.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    assert not second.step()
    clock.now_s += 10.0
    assert not second.step()


def test_the_thread_takes_the_lease_and_stop_ends_it(store: OneLease):
    leader = Leadership(store, name="x", namespace="y", identity="z", lease_s=3.0, renew_s=0.01)
    leader.start()
    assert leader.wait(5.0)
    leader.stop()
    assert store.lease["spec"]["holderIdentity"] == ""
