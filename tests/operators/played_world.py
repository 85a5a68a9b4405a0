"""Machines, KubeRay, kubelets, Ray and training, played below an API server that may be real: what runs of the operator's own process stand on.

`samite.engines.kuberay`'s fakes play the controllers in virtual time, moved by a thread. No pod runs, so fifty runs fit on a laptop.
"""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from samite.engines.kuberay.api import POD, RAY_CLUSTER, ApiError, Document
from samite.engines.kuberay.fake_kuberay import FakeKubeRay
from samite.engines.kuberay.fake_training import FakeTraining


class PlayedWorld:
    """The world, moved by a thread: one virtual second each `tick_s`."""

    def __init__(self, server: Any, folder: Path, *, machines: int = 4, slots: int = 110, tick_s: float = 0.5) -> None:
        """`server`: a `FakeApi`, or what answers like one on a real API server."""
        self.server = server
        self.kuberay = FakeKubeRay(self.server)
        self.store_uri = f"file://{folder}"
        self.training = FakeTraining(self.kuberay, None)
        self.lock = threading.RLock()
        self.tick_s = tick_s
        self.errors: list[str] = []
        for number in range(machines):
            self.kuberay.add_machine(f"machine-{number}", slots=slots)
        self.dashboard = ThreadingHTTPServer(("127.0.0.1", 0), _dashboard(self))
        self.dashboard.daemon_threads = True
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, daemon=True),
            threading.Thread(target=self.dashboard.serve_forever, daemon=True),
        ]

    def __enter__(self) -> "PlayedWorld":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopping.set()
        self.dashboard.shutdown()
        self.dashboard.server_close()
        for thread in self._threads:
            thread.join(timeout=10)

    @property
    def dashboard_url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard.server_address[1]}"

    def running(self) -> list[str]:
        with self.lock:
            return [name for name, job in self.training.jobs.items() if job.status == "RUNNING"]

    def _run(self) -> None:
        while not self._stopping.wait(self.tick_s):
            with self.lock:
                try:
                    if hasattr(self.server, "fresh"):
                        self.server.fresh()
                    self._finish_deletions()
                    self.kuberay.tick()
                    self.training.tick()
                except ApiError as error:
                    self.errors.append(str(error))

    def _finish_deletions(self) -> None:
        """Kubelets end what is to go on machines with power, and the garbage collector takes pods whose cluster is gone."""
        clusters = {item["metadata"]["uid"] for item in self.server.every(RAY_CLUSTER)}
        for pod in self.server.every(POD):
            metadata = pod["metadata"]
            machine = self.kuberay.machines.get(pod["spec"].get("nodeName", ""))
            orphan = not any(owner["uid"] in clusters for owner in metadata.get("ownerReferences", ()))
            if (metadata.get("deletionTimestamp") or orphan) and (machine is None or machine.powered):
                self.server.delete(POD, metadata["namespace"], metadata["name"], grace_s=0)


def _dashboard(world: PlayedWorld) -> type[BaseHTTPRequestHandler]:
    class Dashboard(BaseHTTPRequestHandler):
        """Ray's dashboard of every cluster: /<cluster>/api/..."""

        def do_GET(self) -> None:
            with world.lock:
                cluster, _, path = self.path.partition("?")[0].lstrip("/").partition("/")
                if world.training.head_of(cluster) is None:
                    return self._say(503, {})
                if path == "api/v0/nodes":
                    return self._say(200, {"data": {"result": {"result": list(world.training.nodes(cluster))}}})
                if path == "api/v0/actors":
                    left = world.training.actors_left(parse_qs(self.path.partition("?")[2])["filter_values"][0])
                    return self._say(200, {"data": {"result": {"total": left, "num_after_truncation": left, "result": [{}] * left}}})
                job = world.training.job(cluster, unquote(path.split("/")[2])) if path.startswith("api/jobs/") else None
                if job is None:
                    return self._say(404, {})
                if path.endswith("/logs"):
                    return self._say(200, {"logs": ""})
                return self._say(200, {"status": job.status, "message": job.message, "job_id": job.attempt.submission_id})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            with world.lock:
                cluster, _, path = self.path.partition("?")[0].lstrip("/").partition("/")
                if world.training.head_of(cluster) is None:
                    return self._say(503, {})
                if path.endswith("/stop"):
                    job = world.training.job(cluster, unquote(path.split("/")[2]))
                    if job is None:
                        return self._say(404, {})
                    job.status = "STOPPED"
                    return self._say(200, {"stopped": True})
                if world.training.submit(cluster, body["submission_id"], body["entrypoint"]):
                    return self._say(200, {"submission_id": body["submission_id"]})
                return self._say(500, f"Job with submission_id {body['submission_id']} already exists")

        def _say(self, status: int, document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Dashboard


def training_run(name: str, namespace: str, *, uri: str, steps: int = 400, workers: int = 2, **spec: Any) -> Document:
    """A run of one stage."""
    stage = {
        "name": "only",
        "contextLength": 128,
        "workers": {"min": workers, "max": workers},
        "gpusPerWorker": 0,
        "batch": {"tokens": 2048},
        "budget": {"steps": steps},
    }
    return {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"engine": "RayCluster", "checkpoint": {"uri": uri, "interval": {"steps": 50}}, "stages": [stage], **spec},
    }


def condition(run: Mapping[str, Any], name: str) -> Document:
    return next((item for item in (run.get("status") or {}).get("conditions", ()) if item["type"] == name), {})
