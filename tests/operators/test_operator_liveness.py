"""The probes see what a living process does not do any more, and do not blame it for an API server that is away."""

import json
import urllib.error
import urllib.request

import pytest

from samite_operators.instruments import Instruments
from samite_operators.liveness import ProbeServer, Vitals


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def vitals(clock: Clock) -> Vitals:
    return Vitals(clock=clock)


def live(vitals: Vitals, clock: Clock, seconds: float) -> None:
    clock.now_s += seconds
    vitals.listed()


def test_a_process_that_lists_and_takes_turns_is_well(vitals: Vitals, clock: Clock):
    for _ in range(20):
        vitals.is_due("team/run")
        vitals.turn_begins("team/run")
        vitals.turn_ends("team/run")
        live(vitals, clock, 60.0)
    assert vitals.complaints() == []


def test_a_turn_that_hangs_is_a_complaint(vitals: Vitals, clock: Clock):
    vitals.turn_begins("team/run")
    live(vitals, clock, 181.0)
    assert vitals.complaints() == ["a turn of team/run has lasted 181 s, limit 180 s"]
    vitals.turn_ends("team/run")
    assert vitals.complaints() == []


def test_a_change_that_no_turn_takes_in_is_a_complaint(vitals: Vitals, clock: Clock):
    vitals.is_due("team/run")
    live(vitals, clock, 60.0)
    vitals.is_due("team/run")
    live(vitals, clock, 61.0)
    assert vitals.complaints() == ["team/run has been due for 121 s, limit 120 s"]
    assert vitals.oldest_due_s == 121.0


def test_a_watch_that_stays_behind_is_a_complaint_and_one_that_catches_up_is_none(vitals: Vitals, clock: Clock):
    vitals.watch("pods in team", behind=True)
    live(vitals, clock, 100.0)
    vitals.watch("pods in team", behind=True)
    live(vitals, clock, 60.0)
    assert vitals.complaints() == ["the watch of pods in team has been behind for 160 s, limit 150 s"]
    vitals.watch("pods in team", behind=False)
    assert vitals.complaints() == []


def test_listings_that_fail_while_the_api_server_answers_are_a_complaint(vitals: Vitals, clock: Clock):
    clock.now_s += 301.0
    vitals.answered()
    assert vitals.complaints() == ["no listing has succeeded for 301 s, limit 300 s, although the API server answers"]


def test_an_api_server_that_is_away_is_no_complaint(vitals: Vitals, clock: Clock):
    vitals.is_due("team/run")
    vitals.watch("pods in team", behind=True)
    clock.now_s += 1000.0
    assert vitals.complaints() == []


def test_a_run_that_is_gone_is_not_waited_for(vitals: Vitals, clock: Clock):
    vitals.is_due("team/run")
    vitals.turn_begins("team/other")
    vitals.forget("team/run")
    vitals.forget("team/other")
    live(vitals, clock, 1000.0)
    assert vitals.complaints() == []


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_server_answers_probes_and_metrics(vitals: Vitals, clock: Clock):
    instruments = Instruments()
    instruments.record("samite.operator.turns", 1, {"samite.turn.outcome": "done"})
    server = ProbeServer(vitals, instruments.exposition, port=0, host="127.0.0.1")
    server.start()
    try:
        assert answer(server.port, "/healthz")[0] == 200
        status, text = answer(server.port, "/readyz")
        assert (status, json.loads(text)) == (503, {"ok": False, "reasons": ["waiting for the first listing"]})
        vitals.ready = True
        assert answer(server.port, "/readyz")[0] == 200
        assert 'samite_operator_turns_total{samite_turn_outcome="done"} 1' in answer(server.port, "/metrics")[1]
        assert answer(server.port, "/")[0] == 404
        vitals.turn_begins("team/run")
        clock.now_s += 200.0
        status, text = answer(server.port, "/healthz")
        assert status == 503
        assert "a turn of team/run" in text
    finally:
        server.stop()
