"""How much one operator costs with many runs: reconcile latency, requests to the API server, memory, processor time.

    python benchmarks/operator_load.py --runs 50 --seconds 120

A real API server (etcd and kube-apiserver of the box, `make cluster-tools`), the operator's own process with kopf's watches and the KubeRay engine. Below it, machines,
KubeRay and training are played (tests/operators/played_world.py): each run has a head and two workers, and its driver renews the Lease each 2 s.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "operators"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))

from api_server import lone_api_server
from operator_process import OperatorProcess
from played_world import PlayedWorld, training_run
from server_world import ServerApi, install_definitions, make_namespace

from samite.engines.kuberay.api import TRAINING_RUN
from samite.engines.kuberay.api_client import connect

NAMESPACE = "team-a"
SAMPLE = re.compile(r"^(?P<name>[a-z0-9_]+)(\{(?P<labels>.*)\})? (?P<value>\S+)$")
Metrics = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def main() -> int:
    """Run it and print a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--turn-seconds", type=float, default=2.0)
    parser.add_argument("--up-seconds", type=float, default=600.0, help="how long all runs may take until they train (default 600)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="operator-load-") as folder:
        load = Load(Path(folder), runs=arguments.runs, turn_s=arguments.turn_seconds, up_s=arguments.up_seconds)
        found = load.measure(arguments.seconds)
    print(json.dumps(found, indent=1))
    return 0


class Load:
    """The runs, the played world below them, and one operator, which is started again if it ends: as a Deployment would."""

    def __init__(self, folder: Path, *, runs: int, turn_s: float, up_s: float) -> None:
        self.folder, self.runs, self.up_s = folder, runs, up_s
        # A busy machine must not cost the operator its Lease: nobody else wants it here.
        self.settings = {"SAMITE_TURN_SECONDS": str(turn_s), "SAMITE_LEASE_SECONDS": "120"}
        self.restarts = 0

    def measure(self, seconds: float) -> dict[str, Any]:
        """Bring everything up, wait until every run trains, and count for `seconds`."""
        for name in ("server", "checkpoints"):
            (self.folder / name).mkdir()
        with lone_api_server(self.folder / "server") as kubectl:
            self.kubeconfig = kubectl.kubeconfig
            self.api = connect(kubeconfig=str(kubectl.kubeconfig), timeout_s=60.0)
            install_definitions(self.api, kubectl.kubeconfig)
            for name in (NAMESPACE, "samite-system"):
                make_namespace(self.api, name)
            played = ServerApi(connect(kubeconfig=str(kubectl.kubeconfig), timeout_s=60.0))
            world = PlayedWorld(played, self.folder / "checkpoints", machines=8, tick_s=2.0)
            world.training.checkpoint_every = 50
            with world:
                self.dashboard_url = world.dashboard_url
                self.operator = self._start_operator()
                try:
                    return self._measure(world, seconds)
                finally:
                    self.operator.kill()

    def _measure(self, world: PlayedWorld, seconds: float) -> dict[str, Any]:
        began_s = time.monotonic()
        for number in range(self.runs):
            name = f"run-{number:03d}"
            self.api.create(TRAINING_RUN, NAMESPACE, training_run(name, NAMESPACE, uri=f"{world.store_uri}/{name}", steps=100_000))
        self._wait_running()
        up_s = time.monotonic() - began_s
        time.sleep(15.0)
        restarts = self.restarts
        before, cpu_before_s, at_s = _metrics(self.operator), _cpu_s(self.operator), time.monotonic()
        time.sleep(seconds)
        after, cpu_after_s, lasted_s = _metrics(self.operator), _cpu_s(self.operator), time.monotonic() - at_s
        assert restarts == self.restarts, "the operator was started again while it was measured"
        return {
            "runs": self.runs,
            "seconds": round(lasted_s, 1),
            "all_running_after_s": round(up_s, 1),
            "operator_restarts": self.restarts,
            "reconcile_s": _quantiles(before, after, "samite_operator_reconcile_duration_seconds"),
            "turn_s": _quantiles(before, after, "samite_operator_turn_duration_seconds"),
            "turns_per_run_per_minute": round(_grown(before, after, "samite_operator_turns_total") / self.runs / lasted_s * 60, 1),
            "requests_per_run_per_minute": round(_grown(before, after, "samite_operator_requests_total") / self.runs / lasted_s * 60, 2),
            "requests": _requests(before, after, runs=self.runs, lasted_s=lasted_s),
            "memory_mb": round(_rss_mb(self.operator), 1),
            "cores": round((cpu_after_s - cpu_before_s) / lasted_s, 3),
            "outcomes": _outcomes(before, after),
            "training": len(world.running()),
            "world_errors": len(world.errors),
            "load_average": [round(value, 1) for value in os.getloadavg()],
            "cores_of_machine": os.cpu_count(),
        }

    def _start_operator(self) -> OperatorProcess:
        log = self.folder / f"operator-{self.restarts}.log"
        operator = OperatorProcess(self.kubeconfig, log, played_ray=self.dashboard_url, **self.settings)
        operator.wait_ready(limit_s=180)
        return operator

    def _wait_running(self) -> None:
        ends_s = time.monotonic() + self.up_s
        while True:
            if self.operator.process.poll() is not None:
                print(f"the operator has ended and is started again\n{self.operator.log.read_text()[-2000:]}", file=sys.stderr)
                self.operator.kill()
                self.restarts += 1
                self.operator = self._start_operator()
            phases = [(run.get("status") or {}).get("phase") for run in self.api.list(TRAINING_RUN, NAMESPACE).items]
            if phases.count("Running") == self.runs:
                return
            print(f"{phases.count('Running')} of {self.runs} runs train", file=sys.stderr)
            assert time.monotonic() < ends_s, f"{phases}\n{self.operator.log.read_text()[-3000:]}"
            time.sleep(5.0)


def _metrics(operator: OperatorProcess) -> Metrics:
    ends_s = time.monotonic() + 60.0
    status, text = operator.probe("/metrics")
    while status != 200:
        assert time.monotonic() < ends_s, f"/metrics answered {status}"
        time.sleep(0.5)
        status, text = operator.probe("/metrics")
    found: Metrics = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match:
            labels = tuple(sorted(re.findall(r'([a-z0-9_]+)="((?:[^"\\]|\\.)*)"', match["labels"] or "")))
            found[match["name"], labels] = float(match["value"])
    return found


def _grown(before: Metrics, after: Metrics, name: str) -> float:
    return sum(value - before.get(key, 0.0) for key, value in after.items() if key[0] == name)


def _quantiles(before: Metrics, after: Metrics, name: str) -> dict[str, float]:
    buckets: dict[float, float] = {}
    for (sample, labels), value in after.items():
        if sample == f"{name}_bucket":
            bound = float(dict(labels)["le"].replace("+Inf", "inf"))
            buckets[bound] = buckets.get(bound, 0.0) + value - before.get((sample, labels), 0.0)
    total = max(buckets.values(), default=0.0)
    return {f"p{round(share * 100)}": _quantile(sorted(buckets.items()), share * total) for share in (0.5, 0.95, 0.99)} if total else {}


def _quantile(buckets: list[tuple[float, float]], rank: float) -> float:
    """Between the bounds of the bucket, as Prometheus does it."""
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            inside = count - below
            return round(low + (min(bound, 60.0) - low) * ((rank - below) / inside if inside else 1.0), 4)
        low, below = bound, count
    return low


def _requests(before: Metrics, after: Metrics, *, runs: int, lasted_s: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for (name, labels), value in after.items():
        if name == "samite_operator_requests_total":
            given = dict(labels)
            what = f"{given['samite_request_verb']} {given['samite_request_resource']}"
            found[what] = found.get(what, 0.0) + value - before.get((name, labels), 0.0)
    return {what: round(count / runs / lasted_s * 60, 2) for what, count in sorted(found.items()) if count}


def _outcomes(before: Metrics, after: Metrics) -> dict[str, float]:
    """How the turns went meanwhile."""
    name = "samite_operator_turns_total"
    return {dict(key[1])["samite_turn_outcome"]: value - before.get(key, 0.0) for key, value in after.items() if key[0] == name}


def _rss_mb(operator: OperatorProcess) -> float:
    text = Path(f"/proc/{operator.process.pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def _cpu_s(operator: OperatorProcess) -> float:
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
