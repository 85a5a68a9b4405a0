"""The node agent: what it reads, that it never makes more series than a node may have, and that it works on a machine without any device."""

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from samite.engines.node_agent import devices, host, ranks
from samite.engines.node_agent.collect import Agent
from samite.engines.node_agent.devices import Device, Nvml
from samite.engines.node_agent.ranks import FolderRanks, RankSeen, SocketRanks, parse
from samite.engines.node_agent.readings import Run, exposition
from samite.spec.attempt import Heartbeat
from samite.spec.beacon import Beacon
from samite.telemetry import names
from samite.telemetry.agent_metrics import AGENT_METRICS, NODE_METRICS, RANK_METRICS

RUN = Run(name="demo", uid="u-1", namespace="team-a")


def no_library(_: str) -> Any:
    raise OSError("no such file")


def beat(folder: Path, rank: int, *, pid: int, age_s: float = 0.0) -> None:
    (folder / "heartbeats").mkdir(exist_ok=True, parents=True)
    Heartbeat(
        rank=rank,
        node="node-1",
        pid=pid,
        submission_id="demo-s00-a1",
        incarnation=0,
        step=12,
        tokens=1,
        phase="training",
        monotonic_s=time.monotonic() - age_s,
        time_unix_s=time.time(),
        step_median_s=0.5,
        compute_s=0.25,
    ).write(folder / "heartbeats" / f"rank-{rank}.json")


def told(agent: Agent) -> dict[tuple[str, ...], float]:
    return {(reading.name, *reading.attributes.values()): reading.value for reading in agent.look()}


def test_a_machine_without_a_device_tells_its_memory_and_its_ranks_and_not_a_word_of_devices(tmp_path: Path):
    beat(tmp_path, 0, pid=os.getpid(), age_s=3.0)
    beat(tmp_path, 1, pid=2**22 + 1)
    (tmp_path / "heartbeats" / "rank-2.json").write_text("{torn")
    agent = Agent(node="n1", source=FolderRanks(tmp_path, RUN), nvml=Nvml(no_library), drain_notice=tmp_path / "notice")
    found = told(agent)
    assert "not on this node" in agent.nvml.problem
    assert found["samite.rank.heartbeat.age", "0"] == pytest.approx(3.0, abs=1.0)
    assert (found["samite.rank.process.count", "0"], found["samite.rank.process.count", "1"]) == (1.0, 0.0)
    assert found["samite.rank.memory.usage", "0"] > 10_000_000
    assert (found["samite.rank.step.number", "1"], found["samite.rank.compute.time", "1"]) == (12, 0.25)
    assert 0 < found["system.memory.usage",] < found["system.memory.limit",]
    assert found["samite.node.drain.count",] == 0.0
    assert not [key for key in found if key[0].startswith("hw.") or "device" in key[0] or "detector" in key[0] or key[-1] == "2"]


def test_a_stopped_process_does_not_run(tmp_path: Path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert host.process_state(child.pid) in host.RUNNING
        child.send_signal(19)
        deadline = time.monotonic() + 5
        while host.process_state(child.pid) != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = RankSeen(run=RUN, rank=0, step=1, heard_s=0.0, pid=child.pid)
        assert {r.name: r.value for r in ranks.readings_of([seen], now_s=1.0)}["samite.rank.process.count"] == 0.0
    finally:
        child.kill()
        child.wait()


def test_a_notice_is_told_while_its_file_is_there(tmp_path: Path):
    assert host.drain(None) == []
    notice = tmp_path / "notice"
    assert [reading.value for reading in host.drain(notice)] == [0.0]
    notice.touch()
    assert [reading.value for reading in host.drain(notice)] == [1.0]


def fake_nvml(**changes: Any) -> Nvml:
    """The library's functions in Python: ctypes passes pointers, which are filled as the driver does."""

    class Library:
        def nvmlInit_v2(self) -> int:
            return 0

        def nvmlShutdown(self) -> int:
            return 0

        def nvmlDeviceGetCount_v2(self, count: Any) -> int:
            count._obj.value = changes.get("count", 2)
            return 0

        def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
            handle._obj.value = index + 1
            return 15 if index in changes.get("lost", ()) else 0

        def nvmlDeviceGetMemoryInfo(self, _: Any, memory: Any) -> int:
            memory._obj.total, memory._obj.used = 80 << 30, 20 << 30
            return 0

        def nvmlDeviceGetUtilizationRates(self, _: Any, busy: Any) -> int:
            busy._obj.gpu = 75
            return 0

        def nvmlDeviceGetTotalEccErrors(self, _: Any, kind: int, counter: int, errors: Any) -> int:
            assert (kind, counter) == (1, 0)
            errors._obj.value = changes.get("uncorrected", 0)
            return 0

    if changes.get("remap") is not None:

        def remapped(self: Any, _: Any, *rows: Any) -> int:
            rows[3]._obj.value = changes["remap"]
            return 0

        Library.nvmlDeviceGetRemappedRows = remapped  # type: ignore[attr-defined]
    return Nvml(lambda _: Library())


def test_devices_are_told_with_their_health_counted_over_the_node():
    well = {(r.name, *r.attributes.values()): r.value for r in devices.readings_of(fake_nvml().devices())}
    assert well == {
        ("hw.gpu.memory.usage", "0"): 20 << 30,
        ("hw.gpu.memory.usage", "1"): 20 << 30,
        ("hw.gpu.utilization", "0"): 0.75,
        ("hw.gpu.utilization", "1"): 0.75,
        ("hw.gpu.memory.limit",): 80 << 30,
        ("samite.node.device.count", "degraded"): 0,
        ("samite.node.device.count", "failed"): 0,
        ("hw.errors", "uncorrected"): 0,
        ("hw.errors", "remap"): 0,
    }
    assert [device.state for device in fake_nvml(uncorrected=3, lost=(1,)).devices()] == ["degraded", "failed"]
    assert [device.state for device in fake_nvml(remap=1).devices()] == ["failed", "failed"]
    assert Device(index=0, remap_pending=True).state == "degraded"


def test_a_library_that_does_not_start_says_so_and_one_that_is_there_is_a_detector():
    class Broken:
        def nvmlInit_v2(self) -> int:
            return 9

    assert "NVML error 9" in Nvml(lambda _: Broken()).problem
    agent = Agent(node="n1", source=None, nvml=fake_nvml())
    assert told(agent)["samite.detector.status", "nvml", "active"] == 1.0


def test_the_structures_have_the_drivers_layout():
    assert ctypes.sizeof(devices._Memory) == 24
    assert ctypes.sizeof(devices._Utilization) == 8


def full_node() -> Agent:
    class Full:
        def ranks(self) -> list[RankSeen]:
            return [
                RankSeen(
                    run=RUN, rank=r, step=1, heard_s=time.monotonic(), compute_s=0.1, pid=os.getpid() if r == 0 else 0, resident_bytes=1
                )
                for r in range(8)
            ]

        def close(self) -> None: ...

    return Agent(node="n1", source=Full(), nvml=fake_nvml(count=8, remap=0), drain_notice=Path("/nonexistent"))


def test_a_full_node_stays_within_its_25_series_and_each_rank_within_five():
    readings = full_node().look()
    per_node = [r for r in readings if r.name in {m.name for m in NODE_METRICS} or r.name == "samite.detector.status"]
    per_rank = [r for r in readings if r.name in {m.name for m in RANK_METRICS}]
    assert (len(per_node), len(per_rank) <= 5 * 8) == (25, True)
    assert len(readings) == len(per_node) + len(per_rank)
    assert {m.name for m in AGENT_METRICS} == {r.name for r in readings} - {"samite.detector.status"}


def test_every_reading_is_registered_and_told_in_prometheus_words():
    agent = full_node()
    for reading in agent.look():
        names.metric_attributes(reading.name, reading.attributes)
    text = agent.exposition()
    assert 'samite_rank_heartbeat_age_seconds{k8s_namespace_name="team-a",k8s_node_name="n1",' in text
    assert "# TYPE hw_errors_total counter" in text
    assert "# TYPE samite_rank_memory_usage_bytes gauge" in text
    assert exposition([], {}) == ""


DATAGRAM = {"run": "demo", "uid": "u-1", "namespace": "team-a", "rank": 3, "step": 120, "computeS": 0.4, "residentBytes": 1234}


def test_a_datagram_is_a_rank():
    seen = parse(json.dumps(DATAGRAM).encode(), heard_s=5.0)
    assert seen == RankSeen(run=RUN, rank=3, step=120, heard_s=5.0, compute_s=0.4, resident_bytes=1234)


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"[" * 8000,
        b"{}",
        json.dumps({**DATAGRAM, "run": 'x"} 1\n'}).encode(),
        json.dumps({**DATAGRAM, "uid": ""}).encode(),
        json.dumps({**DATAGRAM, "namespace": "../x"}).encode(),
        json.dumps({**DATAGRAM, "rank": -1}).encode(),
        json.dumps({**DATAGRAM, "rank": 2**40}).encode(),
        json.dumps({**DATAGRAM, "step": "x"}).encode(),
        json.dumps({**DATAGRAM, "rank": float("inf")}).encode(),
        json.dumps({**DATAGRAM, "pad": "x" * 9000}).encode(),
    ],
    ids=range(13),
)
def test_what_is_no_heartbeat_is_counted_and_passed_over(datagram: bytes):
    source = SocketRanks(port=0, host_address="127.0.0.1")
    try:
        source.take(datagram)
        assert (source.ranks(), source.refused) == ([], 1)
    finally:
        source.close()


def test_datagrams_without_end_make_no_series_without_end_and_silent_ranks_are_forgotten():
    now = [0.0]
    source = SocketRanks(port=0, host_address="127.0.0.1", clock=lambda: now[0])
    try:
        for rank in range(1000):
            source.take(json.dumps({**DATAGRAM, "rank": rank}).encode())
        assert (len(source.ranks()), source.refused) == (ranks.MAX_RANKS, 1000 - ranks.MAX_RANKS)
        now[0] = ranks.FORGET_S + 1.0
        assert source.ranks() == []
    finally:
        source.close()


def test_a_rank_reaches_the_agent_of_its_node_over_the_network_and_waits_for_nothing(monkeypatch: pytest.MonkeyPatch):
    source = SocketRanks(port=0, host_address="127.0.0.1")
    environment = {"SAMITE_AGENT": f"127.0.0.1:{source.port}", "SAMITE_NAMESPACE": "team-a"}
    beacon = Beacon.from_environment(run="demo", uid="u-1", rank=7, environment=environment)
    assert beacon is not None
    try:
        deadline = time.monotonic() + 10
        while not source.ranks() and time.monotonic() < deadline:
            beacon.send(step=5, compute_s=0.5)
            time.sleep(0.02)
        (seen,) = source.ranks()
        assert (seen.run, seen.rank, seen.step) == (RUN, 7, 5)
        assert seen.resident_bytes is not None
        assert seen.resident_bytes > 10_000_000
    finally:
        beacon.close()
        source.close()
    assert Beacon.from_environment(run="demo", uid="u-1", rank=7, environment={}) is None


def test_a_name_that_is_not_found_costs_the_rank_nothing():
    beacon = Beacon(run="demo", uid="u-1", rank=0, address="no-such-host.invalid:9")
    began_s = time.monotonic()
    beacon.send(step=1, compute_s=0.0)
    assert time.monotonic() - began_s < 0.5
    beacon.close()


def test_the_process_answers_scrapes_and_ends_when_asked_or_when_its_supervisor_is_gone(tmp_path: Path):
    beat(tmp_path, 0, pid=os.getpid())
    (tmp_path / "supervisor.beat").touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "samite.engines.node_agent", "--node", "n1", "--port", str(port), "--run-folder", str(tmp_path)]
    process = subprocess.Popen([*command, "--run", "demo", "--uid", "u-1"], stderr=subprocess.PIPE, text=True)
    try:
        text = ""
        deadline = time.monotonic() + 20
        while not text and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:
                time.sleep(0.1)
        assert 'samite_run_name="demo"' in text
        os.utime(tmp_path / "supervisor.beat", (0, 0))
        _, said = process.communicate(timeout=20)
        assert (process.returncode, "no supervisor" in said) == (0, True)
    finally:
        process.kill()
        process.wait()
