"""The supervisor of one local run: look, decide, remember, act, until the run is settled. Started detached by `client.py`.

    python -m samite.engines.local.supervisor RUN_FOLDER

One per run, held by a lock. It keeps no truth of its own: killed at any point, the next one reads memory, processes, Ray and storage,
adopts what runs and goes on. `SIGTERM` ends it without touching the run.
"""

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from samite.checkpoint import Store, StoreOptions, open_store
from samite.checkpoint.retention import KeepPolicy
from samite.engines.local import signals
from samite.engines.local.agent_process import AgentProcess
from samite.engines.local.apply import Applier
from samite.engines.local.attempt_spans import AttemptSpans
from samite.engines.local.folder import RunFolder
from samite.engines.local.observe import Observer, RayWatch
from samite.engines.local.ray_nodes import RayNodes
from samite.engines.local.storage_watch import StorageWatch
from samite.errors import ConflictError, SamiteError
from samite.lifecycle import Decision, Memory, RunPlan, Status
from samite.lifecycle.decide import decide
from samite.spec import TrainingRun
from samite.spec.attempt import write_atomically
from samite.telemetry.records import Point
from samite.telemetry.setup import setup_telemetry

_logger = logging.getLogger("samite.supervisor")
PERIOD_S = 0.5
STATUS_KIND = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRunStatus"}


class Supervisor:
    """One run under watch. `run_until_settled` is the whole story; everything else is a step of it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        record = folder.read_json(folder.spec_file) or {}
        self._uid = str(record["uid"])
        self._run = TrainingRun.model_validate(record["run"])
        self._plan = RunPlan.from_run(self._run, uid=self._uid)
        spec = self._run.spec
        os.environ.update(host_environment(self._run))
        store = open_checkpoints(self._run, folder)
        keep = KeepPolicy(
            last=spec.checkpoint.keep.last, every_steps=spec.checkpoint.keep.every_steps or 0, stage_final=spec.checkpoint.keep.stage_final
        )
        self._nodes = RayNodes(
            folder,
            run_uid=self._uid,
            gpus_per_node=max(stage.gpus_per_worker for stage in spec.stages),
            extra_environment=host_environment(self._run),
        )
        endpoint = spec.telemetry.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None
        self._agent = AgentProcess(folder, run=self._run.name, uid=self._uid, endpoint=endpoint)
        self._telemetry = setup_telemetry(
            service="samite-supervisor",
            instance="supervisor",
            run=self._run.name,
            uid=self._uid,
            metrics_path=folder.path / "metrics" / "supervisor.jsonl",
            events_path=folder.events_file,
            otlp_endpoint=endpoint,
        )
        self._storage = StorageWatch(store, keep=keep, tell=self._telemetry.event)
        self._ray = RayWatch(self._nodes)
        self._observer = Observer(folder, self._nodes, self._ray, self._storage)
        self._applier = Applier(
            folder,
            self._nodes,
            self._storage,
            self._observer,
            run=record["run"],
            run_uid=self._uid,
            checkpoint_uri=checkpoint_uri(self._run, folder),
        )
        self._status: Status | None = None
        self._sent_at_s = -signals.PERIOD_S
        self._spans = AttemptSpans(self._uid)
        # Anchored once: a wall clock that jumps later moves nothing.
        self._epoch_s = time.time() - time.monotonic()
        self._stopping = False

    def run_until_settled(self) -> None:
        """The loop. Returns when nothing is left to watch, or after SIGTERM."""
        memory = self._recall()
        swept = self._nodes.adopt()
        _logger.info("supervisor %d of run %s (%s); phase %s; %d strays swept", os.getpid(), self._run.name, self._uid, memory.phase, swept)
        self._storage.start()
        self._ray.start()
        try:
            while not self._stopping:
                began_s = time.monotonic()
                self._beat()
                self._agent.ensure()
                decision = self._turn(memory)
                memory = decision.memory
                if decision.settled:
                    _logger.info("settled: %s %s", decision.status.phase, decision.status.message)
                    return
                time.sleep(max(0.0, PERIOD_S - (time.monotonic() - began_s)))
        finally:
            self._agent.stop()
            self._applier.close()
            self._ray.stop()
            self._storage.stop()
            self._telemetry.shutdown()

    def end(self, *_: object) -> None:
        """SIGTERM: leave the loop after this turn. The run goes on; its nodes wait for the next supervisor for their grace period."""
        self._stopping = True

    def _turn(self, memory: Memory) -> Decision:
        now_s = self._epoch_s + time.monotonic()
        decision = decide(self._plan, self._observer.look(memory, now_s), memory, now_s)
        if decision.memory != memory:
            write_atomically(self.folder.memory_file, decision.memory.to_json() + "\n")
        for event in decision.events:
            self._telemetry.event(event.name, **event.attributes)
        self._send(decision)
        self.folder.write_json(self.folder.status_file, self._status_document(decision))
        for action in decision.actions:
            try:
                self._applier.apply(action)
            except SamiteError as error:
                _logger.warning("%s did not succeed: %s", type(action).__name__, error)
        return decision

    def _send(self, decision: Decision) -> None:
        due = time.monotonic() - self._sent_at_s >= signals.PERIOD_S
        found = signals.points(self._status, decision.status, due=due, plan=self._plan, memory=decision.memory)
        space = self._storage.space() if due else None
        if space is not None:
            found += [Point("samite.checkpoint.storage.usage", space[0]), Point("samite.checkpoint.storage.limit", space[1])]
        self._telemetry.record_points(found)
        for span in self._spans.take(decision.memory):
            self._telemetry.finished_span(span)
        self._status = decision.status
        if due:
            self._sent_at_s = time.monotonic()

    def _status_document(self, decision: Decision) -> dict[str, Any]:
        return {
            **STATUS_KIND,
            "name": self._run.name,
            "uid": self._uid,
            "engine": self._run.spec.engine,
            "updatedAt": time.time(),
            "settled": decision.settled,
            "totalSteps": self._run.total_steps,
            "stages": [stage.name for stage in self._run.spec.stages],
            "nodes": [node.name for node in self._nodes.nodes() if node.name != "head" and self._nodes.is_alive(node.name)],
            **decision.status.to_document(),
        }

    def _recall(self) -> Memory:
        try:
            return Memory.from_json(self.folder.memory_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Memory()

    def _beat(self) -> None:
        self.folder.beat_file.touch()


def checkpoint_uri(run: TrainingRun, folder: RunFolder) -> str:
    """Where this run's checkpoints are: as the spec says, else in the run folder."""
    return run.spec.checkpoint.uri or str(folder.path / "checkpoints")


def open_checkpoints(run: TrainingRun, folder: RunFolder) -> Store:
    """The store of this run's checkpoints."""
    checkpoint = run.spec.checkpoint
    options = StoreOptions(
        endpoint=checkpoint.endpoint or "",
        region=checkpoint.region or "",
        insecure=checkpoint.insecure,
    )
    return open_store(checkpoint_uri(run, folder), options)


def host_environment(run: TrainingRun) -> dict[str, str]:
    """Variables that the spec takes from the submitting shell: they pass through the processes' environment and are never written to a file."""
    named = {entry.name: entry.value_from.host_env for entry in run.spec.env if entry.value_from is not None and entry.value_from.host_env}
    found = {name: os.environ[source] for name, source in named.items() if source in os.environ}
    credentials = run.spec.checkpoint.credentials
    return found | ({"AWS_PROFILE": credentials.profile} if credentials is not None and credentials.profile else {})


def main(arguments: list[str] | None = None) -> int:
    """Supervise the run in the given folder until it is settled."""
    parser = argparse.ArgumentParser(description="Supervisor of one local run (started by `samite`).")
    parser.add_argument("folder", type=Path)
    folder = RunFolder(parser.parse_args(arguments).folder)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(message)s", stream=sys.stderr)
    try:
        with folder.supervised():
            supervisor = Supervisor(folder)
            signal.signal(signal.SIGTERM, supervisor.end)
            supervisor.run_until_settled()
    except ConflictError as error:
        _logger.info("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
