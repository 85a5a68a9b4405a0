"""A real local run under test: submitted with the CLI, watched through its files, broken with `samite chaos`, and always cleaned up.

Used by the drills of tests/e2e and by soak_local.py.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samite.engines.local.processes import processes_of_run, sweep
from samite.spec.attempt import Heartbeat

MICRO_MODEL = {"num_layers": 4}
"""Small enough that a step costs a fraction of a second; every part of the model is in it."""


def spec_document(name: str, corpus: Path, *, stages: int = 2, steps: int = 14, every: int = 4, **changes: Any) -> dict[str, Any]:
    """A TrainingRun of two nodes on `corpus`. `changes` replace fields of `spec`."""
    made = []
    for index in range(stages):
        stage: dict[str, Any] = {
            "name": f"s{index}",
            "kind": "Pretrain" if index == 0 else "Extend",
            "contextLength": 128 << index,
            "workers": {"min": 2, "max": 2},
            "batch": {"tokens": 1024, "microBatch": 2},
            "budget": {"steps": steps},
        }
        if index:
            stage["handover"] = dict.fromkeys(HANDOVER_STATES, "Carry")
        made.append(stage)
    spec = {
        "engine": "Local",
        "seed": 3,
        "model": {"preset": "tiny", "overrides": dict(MICRO_MODEL)},
        "data": {"uri": str(corpus), "mixture": [{"source": "text", "weight": 0.7}, {"source": "digits", "weight": 0.3}]},
        "stages": made,
        "optimizer": {"name": "Muon", "learningRate": 2e-3},
        "checkpoint": {"interval": {"steps": every}, "keep": {"last": 50}},
        "restart": {"backoff": {"initialSeconds": 0.5, "capSeconds": 2}},
        "detection": {"hang": {"mode": "Restart", "floorSeconds": 8, "factor": 5, "learningWindows": 1, "saveSeconds": 30}},
        "telemetry": {"sampleSteps": 5},
        **changes,
    }
    return {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": name}, "spec": spec}


HANDOVER_STATES = ("weights", "optimizer", "lrSchedule", "stepCounter", "tokenCounter", "dataCursor", "routerBias")


class LocalRun:
    """One run below its own SAMITE_HOME. Use as a context manager: leaving it kills everything the run started."""

    def __init__(self, home: Path, document: dict[str, Any]) -> None:
        self.home = home
        self.name = document["metadata"]["name"]
        self.folder = home / "runs" / self.name
        self.spec_file = home / f"{self.name}.yaml"
        self.environment = {**os.environ, "SAMITE_HOME": str(home)}
        home.mkdir(parents=True, exist_ok=True)
        self.spec_file.write_text(json.dumps(document), encoding="utf-8")

    def __enter__(self) -> "LocalRun":
        return self

    def __exit__(self, *_: object) -> None:
        lock = self.folder / "supervisor.lock"
        if lock.exists() and lock.read_text(encoding="utf-8").strip().isdigit():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(lock.read_text(encoding="utf-8")), signal.SIGKILL)
        if (self.folder / "spec.json").exists():
            sweep(self.uid)
            temporary = self.document("cluster.json").get("temporary_folder")
            if temporary:
                subprocess.run(["rm", "-rf", temporary], check=False)

    # What the user does

    def samite(self, *arguments: str, check: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """One command of the CLI."""
        done = subprocess.run(
            [sys.executable, "-m", "samite", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.environment,
            check=False,
        )
        assert not check or done.returncode == 0, f"samite {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def submit(self) -> "LocalRun":
        """Submit and return."""
        self.samite("submit", "-f", str(self.spec_file))
        return self

    def chaos(self, *arguments: str) -> None:
        """Break something."""
        self.samite("chaos", *arguments[:1], self.name, *arguments[1:])

    # What is seen

    @property
    def uid(self) -> str:
        """The run's uid."""
        return str(self.document("spec.json")["uid"])

    def status(self) -> dict[str, Any]:
        """The last status."""
        return self.document("status.json")

    def phase(self) -> str:
        """The last phase."""
        return str(self.status().get("phase", "Pending"))

    def step(self) -> int:
        """Optimizer steps finished."""
        return int(self.status().get("progress", {}).get("step", 0))

    def heartbeat(self, rank: int = 0) -> Heartbeat | None:
        """A rank's newest heartbeat."""
        file = self.folder / "heartbeats" / f"rank-{rank}.json"
        return Heartbeat.read(file) if file.exists() else None

    def events(self, name: str) -> list[dict[str, Any]]:
        """Attributes of every event of this name."""
        file = self.folder / "events.jsonl"
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
        return [event["attributes"] for event in found if event["name"] == name]

    def living(self) -> dict[int, str]:
        """Processes of the run."""
        return processes_of_run(self.uid)

    def until(self, what: str, condition: Callable[[], bool], *, limit_s: float, or_phase: str = "") -> float:
        """Wait until `condition`; returns the seconds it took. Fails with the run's story if it takes longer, or the run ends otherwise."""
        began_s = time.monotonic()
        while not condition():
            phase = self.phase()
            over = phase in {"Failed", "Cancelled", "Held"} or (phase == "Succeeded" and or_phase != "Succeeded")
            if time.monotonic() - began_s > limit_s or (over and phase != or_phase and not condition()):
                raise AssertionError(f"waited {time.monotonic() - began_s:.0f} s for: {what}\n{self.story()}")
            time.sleep(0.1)
        return time.monotonic() - began_s

    def until_phase(self, phase: str, *, limit_s: float) -> float:
        """Wait for a phase."""
        return self.until(f"phase {phase}", lambda: self.phase() == phase, limit_s=limit_s, or_phase=phase)

    def until_step(self, step: int, *, limit_s: float = 180) -> float:
        """Wait until the run is Running and has finished `step` steps."""
        return self.until(f"step {step}", lambda: self.phase() == "Running" and self.step() >= step, limit_s=limit_s)

    def until_recovered(self, times: int, *, limit_s: float) -> float:
        """Wait until that many recoveries are complete."""
        return self.until(f"recovery {times}", lambda: len(self.status().get("recoveries", ())) >= times, limit_s=limit_s)

    def story(self) -> str:
        """What happened, for a failed test."""
        status = {key: self.status().get(key) for key in ("phase", "reason", "message", "attempt", "progress", "lastFailure")}
        logs = sorted((self.folder / "attempts").glob("*/logs/*.log"))
        tails = [f"--- {log}\n" + log.read_text(encoding="utf-8", errors="replace")[-1500:] for log in logs[-3:]]
        supervisor = (self.folder / "supervisor.log").read_text(encoding="utf-8", errors="replace")[-1500:]
        events = self.samite("events", self.name, "--limit", "25", check=False).stdout
        return f"{json.dumps(status, indent=1)}\n{events}\n--- supervisor\n{supervisor}\n" + "\n".join(tails)

    # What is compared

    def final_weights(self) -> dict[str, str]:
        """Checksum of every chunk of the newest checkpoint, by tensor and place: equal exactly if the stored bytes are."""
        from samite.checkpoint import Catalog, open_store
        from samite.checkpoint.verify import read_index

        catalog = Catalog(open_store(str(self.folder / "checkpoints")))
        newest = catalog.newest_committed()
        assert newest is not None
        assert newest.manifest is not None
        found = {}
        for record in newest.manifest.ranks:
            index = read_index(catalog.store, newest.checkpoint_id, record)
            for chunk in index.chunks:
                found[f"{index.tensors[chunk.tensor].name} {chunk.box} {chunk.start}"] = f"{chunk.crc64:016x}"
        return found

    def losses(self) -> dict[int, float]:
        """Loss of each step; a recomputed step counts as it was computed last."""
        from samite.telemetry.records import read_metrics

        found = {}
        for record in read_metrics(self.folder / "metrics" / "rank-0.jsonl")[0]:
            for point in record.points:
                if point.name == "samite.loss" and point.attributes.get("samite.loss.kind") == "total" and record.step is not None:
                    found[record.step] = point.value
        return found

    def document(self, name: str) -> dict[str, Any]:
        """A JSON document of the run folder; empty if there is none."""
        file = self.folder / name
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
