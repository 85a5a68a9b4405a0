"""`samite nodes blame`: what a run, or all runs of a cluster, hold against nodes, with the evidence and the end of a quarantine."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from served_api import World

from samite.engines.kuberay.api import NODE_BLAME
from samite.engines.kuberay.stored_memory import pack
from samite.lifecycle import Memory
from samite.lifecycle.doubts import BlameMemory

PROD = ("--context", "prod")


def stamp(seconds_from_now: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds_from_now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def remembered() -> Memory:
    now_s = time.time()
    return Memory(
        blame=(
            BlameMemory(node="slow", strikes=1.0, updated_s=now_s - 7 * 86400, reason="straggler: 0.5 twice", seen=("a", "b")),
            BlameMemory(node="broken", strikes=3.0, updated_s=now_s, excluded_until_s=now_s + 7205, reason="hardware: Xid 79", seen=("x",)),
            BlameMemory(node="past", strikes=0.01, updated_s=now_s, excluded_until_s=now_s - 5, reason="lost"),
        )
    )


def test_what_a_run_holds_against_its_nodes_is_listed_worst_first(shell, stored):
    stored(status={"memory": pack(remembered())})
    lines = [line.split() for line in shell(*PROD, "nodes", "blame", "demo").stdout.splitlines()]
    assert lines == [
        ["NODE", "STATE", "STRIKES", "LEFT", "REASON"],
        ["broken", "Quarantined", "3", "2h", "hardware:", "Xid", "79"],
        ["slow", "Suspect", "0.5", "-", "straggler:", "0.5", "twice"],
        ["past", "Trusted", "0.01", "-", "lost"],
    ]


def test_a_local_run_tells_the_same(shell, tmp_path: Path, stored):
    folder = tmp_path / "home" / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"uid": "u", "run": {}}))
    assert "nothing is held against the nodes of demo" in shell("nodes", "blame", "demo").stderr
    (folder / "memory.json").write_text(remembered().to_json())
    stored(status={"memory": pack(remembered())})
    here, there = (shell(*flags, "nodes", "blame", "demo", "-o", "json").stdout for flags in ((), PROD))
    assert json.loads(here) == json.loads(there)
    (folder / "memory.json").write_text("{")
    assert "memory.json: wanted what the supervisor remembers" in shell("nodes", "blame", "demo", code=1).stderr


def test_a_damaged_memory_is_an_error_and_no_empty_list(shell, stored):
    stored(status={"memory": "b3BhcXVl"})
    assert "run 'demo': status.memory cannot be read" in shell(*PROD, "nodes", "blame", "demo", code=1).stderr


@pytest.fixture
def machines(world: World) -> World:
    evidence = {"kind": "straggler", "strikes": 0.5, "fact": "rank 3 slow", "at": stamp(-60), "namespace": "team-b", "run": "big"}
    for name, spec, status in (
        ("node-1", {"exclude": True, "reason": "fan is broken", "by": "alice"}, {"state": "Trusted", "strikes": 0.0}),
        (
            "node-2",
            {},
            {"state": "Quarantined", "strikes": 3.2, "quarantinedUntil": stamp(1802), "reason": "Xid 79", "evidence": [evidence]},
        ),
        ("node-3", {}, {"state": "Quarantined", "strikes": 3.0, "quarantinedUntil": stamp(-10), "reason": "flaps"}),
    ):
        world.api.put(NODE_BLAME, {"metadata": {"name": name}, "spec": spec, "status": status})
    return world


def test_without_a_run_the_machines_of_the_cluster_are_listed_with_what_a_person_decided(shell, machines: World):
    lines = [line.split() for line in shell(*PROD, "nodes", "blame", "-o", "wide").stdout.splitlines()]
    assert lines == [
        ["NODE", "STATE", "STRIKES", "LEFT", "EVIDENCE", "LAST", "RUN", "REASON"],
        ["node-1", "Excluded", "0", "-", "0", "-", "fan", "is", "broken", "(alice)"],
        ["node-2", "Quarantined", "3.2", "30m", "1", "team-b/big", "Xid", "79"],
        ["node-3", "Suspect", "3", "-", "0", "-", "flaps"],
    ]
    assert shell(*PROD, "nodes", "blame", "-o", "name").stdout.split() == ["node-1", "node-2", "node-3"]


def test_a_cluster_that_holds_nothing_against_anybody_says_so(shell, world: World):
    assert "nothing is held against the machines of this cluster" in shell(*PROD, "nodes", "blame").stderr
