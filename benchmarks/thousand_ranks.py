"""1,000 ranks against one operator and one collector: how many series, how many points a second, how much memory.

    python benchmarks/thousand_ranks.py --collector PATH     an OpenTelemetry collector with otlp receiver and prometheus exporter
    python benchmarks/thousand_ranks.py --prometheus PATH    a Prometheus that receives OTLP itself

125 node agents take the heartbeats of 8 ranks each as datagrams over UDP, look at 8 devices (played; no GPU is needed) and export over OTLP with their own
code, each under its own node name. One of them is a process of its own, for its memory. Rank 0 tells every training metric of a model of 61 layers. One operator
turns over the simulated world with a run of 125 workers x 8 GPUs, and exports as well. Everything is held against the budget: 5 series for each rank, 25 for each
node, 2,000 for the rest. Exit code 1 if it is not kept.
"""

import argparse
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "operators"), str(ROOT / "tests" / "platform" / "dashboards")]

from receivers import collector, free_port, prometheus  # noqa: E402

from samite.engines.node_agent.collect import Agent  # noqa: E402 - the paths of the played parts come first
from samite.engines.node_agent.devices import Device, Nvml  # noqa: E402
from samite.engines.node_agent.ranks import SocketRanks  # noqa: E402
from samite.engines.node_agent.serve import OtlpAgent  # noqa: E402
from samite.telemetry import names  # noqa: E402
from samite.telemetry.records import Point  # noqa: E402
from samite.telemetry.setup import setup_telemetry  # noqa: E402

LAYERS, LINEAR_LAYERS = 61, 46
RECORDED = {"samite.decay.kind": ("state",), "samite.checkpoint.tier": ("object",), "samite.memory.kind": ("allocated", "reserved")}
"""What the trainer says of these, of all that the registry allows."""
INTERVAL_S = 10.0


class PlayedNvml(Nvml):
    """Eight devices that are well."""

    def __init__(self) -> None:
        self.problem = ""

    def devices(self) -> list[Device]:
        """They never change."""
        return [Device(index=i, used_bytes=70 << 30, total_bytes=80 << 30, busy=0.9, uncorrected=0) for i in range(8)]

    def close(self) -> None:
        """Nothing is open."""


def nodes(endpoint: str, first: int, count: int, ranks_per_node: int, ready: Any, stop: Any) -> None:
    """Agents of some nodes and the ranks on them, until told to stop."""
    agents = []
    for node in range(first, first + count):
        source = SocketRanks(port=0, host_address="127.0.0.1")
        agent = Agent(node=f"node-{node:04d}", source=source, nvml=PlayedNvml(), drain_notice=Path("/nonexistent"))
        export = OtlpAgent(agent, endpoint, interval_s=INTERVAL_S, resource={"service.instance.id": agent.node})
        agents.append((node, source, agent, export))
    ready.set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        step = 0
        while not stop.is_set():
            step += 1
            for node, source, _, _ in agents:
                for local in range(ranks_per_node):
                    send(out, source.port, rank=node * ranks_per_node + local, step=step)
            stop.wait(1.0)
    for _, _, agent, export in agents:
        export.stop(1.0)
        agent.close()


def send(out: socket.socket, port: int, *, rank: int, step: int) -> None:
    """One heartbeat, as `samite.spec.beacon` sends it."""
    document = {"run": "huge", "uid": "u-1", "namespace": "team-a", "rank": rank, "step": step, "computeS": 0.4, "residentBytes": 40 << 30}
    out.sendto(json.dumps(document).encode(), ("127.0.0.1", port))


def rank_zero(endpoint: str, stop: Any) -> None:
    """Every metric that rank 0 records, with every value that it gives to its attributes, each second."""
    closed = {key: names.ATTRIBUTES[key].values for key in names.ATTRIBUTES} | RECORDED
    points: list[Point] = []
    for metric in names.METRICS.values():
        if metric.source in ("rank 0", "any rank", "checkpoint"):
            layers = LINEAR_LAYERS if metric.name.startswith("samite.decay") else LAYERS
            values = closed | {"samite.layer.block": tuple(map(str, range(layers)))}
            combinations: list[dict[str, str]] = [{}]
            for key in metric.attributes:
                if metric.name != "samite.numeric.nonfinites" or key != "samite.layer.block":  # by layer only where one was seen
                    combinations = [{**found, key: value} for found in combinations for value in values[key]]
            points += [Point(metric.name, 1.0, attributes) for attributes in combinations]
    stage = {"samite.stage.name": "long", "samite.stage.kind": "Extend"}
    with setup_telemetry(
        service="samite-trainer", run="huge", uid="u-1", otlp_endpoint=endpoint, instance="rank-0", stage=stage
    ) as telemetry:
        step = 0
        while not stop.is_set():
            step += 1
            telemetry.record_step(step, points)
            stop.wait(1.0)


def one_operator(endpoint: str, workers: int, gpus: int, answer: Any, stop: Any) -> None:
    """An operator over the simulated world with one run of all ranks; tells what a turn costs and what it holds."""
    from conftest import Operator, SimulatedEngine, training_run  # the played parts of the operator's own tests

    from samite.engines.kuberay.api import TRAINING_RUN
    from samite.engines.kuberay.fake_api import FakeApi
    from samite.lifecycle.simulation.world import World
    from samite.telemetry.otlp import OtlpExport
    from samite_operators.instruments import Instruments
    from samite_operators.settings import Settings

    stage = {"name": "only", "contextLength": 128, "workers": {"min": workers, "max": workers}, "gpusPerWorker": gpus}
    document = training_run(stages=[{**stage, "batch": {"tokens": 128 * workers * gpus}, "budget": {"steps": 100_000}}])
    api = FakeApi()
    api.put(TRAINING_RUN, document)
    world = World(uid=document["metadata"]["uid"], stage_steps=(100_000,), checkpoint_every=50)
    before_kib = resident_kib(os.getpid())
    operator = Operator(api, world, SimulatedEngine(world, api), Settings(turn_s=1.0))
    export = OtlpExport(endpoint, resource={"service.name": "samite-operator", "service.instance.id": "operator-0"}, interval_s=INTERVAL_S)
    operator.instruments._export = export  # noqa: SLF001 - the tests' operator has none
    assert isinstance(operator.instruments, Instruments)
    operator.until("Running", limit_s=900.0)
    turns: list[float] = []
    while not stop.is_set():
        world.tick(1.0)
        operator.relist()
        operator.vitals.answered()
        began_s = time.thread_time()
        operator.turns.take("team-a", "demo")
        turns.append(time.thread_time() - began_s)
        stop.wait(0.2)
    turns.sort()
    answer.put(
        {
            "ranks": len(world.observe(world_memory(operator)).ranks),
            "turns": len(turns),
            "turn_cpu_ms_p50": round(1e3 * turns[len(turns) // 2], 1),
            "turn_cpu_ms_p95": round(1e3 * turns[int(0.95 * len(turns))], 1),
            "memory_mib": round(resident_kib(os.getpid()) / 1024, 1),
            "memory_at_start_mib": round(before_kib / 1024, 1),
            "status_bytes": len(json.dumps(operator.status)),
        }
    )
    export.shutdown(2.0)


def world_memory(operator: Any) -> Any:
    """What the operator remembers of the run."""
    from samite.engines.kuberay.stored_memory import unpack

    return unpack(operator.status.get("memory", ""))


def resident_kib(pid: int) -> int:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found[1]) if found else 0


def one_agent_process(endpoint: str) -> tuple[subprocess.Popen[bytes], int]:
    """A real agent with its own process, as on a node; and the port that its ranks send to."""
    port = free_port()
    command = [sys.executable, "-m", "samite.engines.node_agent", "--node", "node-real", "--heartbeat-port", str(port), "--otlp", endpoint]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL), port


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All of it for `options.seconds`."""
    context = multiprocessing.get_context("spawn")
    stop, answer = context.Event(), context.Queue()
    opened = collector(options.collector, folder) if options.collector else prometheus(options.prometheus, folder)
    with opened as (endpoint, series, pid):
        before_mib = resident_kib(pid) / 1024
        agent, port = one_agent_process(endpoint)
        groups = [(first, min(25, options.nodes - 1 - first)) for first in range(0, options.nodes - 1, 25)]
        ready = [context.Event() for _ in groups]
        played = [
            context.Process(target=nodes, args=(endpoint, first, count, options.ranks_per_node, event, stop))
            for (first, count), event in zip(groups, ready, strict=True)
        ]
        played.append(context.Process(target=rank_zero, args=(endpoint, stop)))
        played.append(context.Process(target=one_operator, args=(endpoint, options.nodes, options.ranks_per_node, answer, stop)))
        for process in played:
            process.start()
        try:
            for event in ready:
                assert event.wait(120), "the agents did not start"
            ends_s = time.monotonic() + options.seconds
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                while time.monotonic() < ends_s:
                    for local in range(options.ranks_per_node):
                        send(out, port, rank=(options.nodes - 1) * options.ranks_per_node + local, step=1)
                    time.sleep(1.0)
            found = series()
            memory = {"collector_mib": round(resident_kib(pid) / 1024, 1), "collector_before_mib": round(before_mib, 1)}
            memory["agent_mib"] = round(resident_kib(agent.pid) / 1024, 1)
            stop.set()
            operator = answer.get(timeout=120)
        finally:
            stop.set()
            for process in played:
                process.join(timeout=60)
                process.kill()
            agent.terminate()
            agent.wait(timeout=20)
    return {**verdict(found, options), "memory": memory, "operator": operator}


def verdict(found: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Series by who sends them, against the budget."""
    by_service = Counter((re.search(r'service_name"?[=:] ?"([^"]+)', line) or ["", "other"])[1] for line in found)
    per_rank = sum("samite_rank_" in line.split("{")[0] for line in found)
    per_node = by_service["samite-agent"] - per_rank
    ranks = options.nodes * options.ranks_per_node
    rest = len(found) - per_rank - per_node
    budget = {"per_rank": 5 * ranks, "per_node": 25 * options.nodes, "rest": 2000}
    return {
        "ranks": ranks,
        "nodes": options.nodes,
        "series": {"all": len(found), "per_rank": per_rank, "per_node": per_node, "rest": rest, **by_service},
        "budget": budget,
        "kept": per_rank <= budget["per_rank"] and per_node <= budget["per_node"] and rest <= budget["rest"],
        "points_per_s": round(len(found) / INTERVAL_S, 1),
    }


def main() -> int:
    """Measure and print a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--collector", type=Path)
    to.add_argument("--prometheus", type=Path)
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="samite-thousand-") as folder:
        found = measure(options, Path(folder))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0 if found["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
