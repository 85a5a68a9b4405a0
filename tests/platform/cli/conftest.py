"""Fixtures of the CLI's tests on Kubernetes: a served world, a kubeconfig of it, and `samite` as a person types it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from served_api import World, served, write_kubeconfig

from samite.cli.app import run
from samite.engines.kuberay.api import TRAINING_RUN


@pytest.fixture
def world() -> Iterator[World]:
    """An API server with nothing in it."""
    with served(World()) as found:
        yield found


@pytest.fixture
def shell(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`shell("status", "demo")` in a shell whose kubeconfig is the world's; checks the exit code."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", world.address)))
    monkeypatch.setenv("SAMITE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SAMITE_NO_INPUT", "1")
    for name in ("SAMITE_CONTEXT", "SAMITE_NAMESPACE", "SAMITE_KUBECONFIG", "SAMITE_OPERATOR_NAMESPACE", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SAMITE_QUIET", "SAMITE_DEBUG"):
        monkeypatch.setenv(name, "")

    def call(*arguments: str, code: int = 0) -> SimpleNamespace:
        capsys.readouterr()
        found = run(list(arguments))
        out, err = capsys.readouterr()
        assert found == code, f"samite {' '.join(arguments)}: exit {found}, wanted {code}\n{out}{err}"
        assert "Traceback" not in err
        assert "secret-token" not in out + err
        return SimpleNamespace(stdout=out, stderr=err)

    return call


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """A small RayCluster run."""
    stage = {
        "name": "pretrain",
        "kind": "Pretrain",
        "contextLength": 1024,
        "workers": {"min": 2, "max": 2},
        "batch": {"tokens": 8192, "microBatch": 1},
        "budget": {"steps": 60},
    }
    document = {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "demo"},
        "spec": {"engine": "RayCluster", "checkpoint": {"uri": "s3://bucket/demo"}, "stages": [stage]},
    }
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


@pytest.fixture
def stored(world: World, spec_file: Path) -> Callable[..., dict[str, Any]]:
    """Put a run into the world, as if it had been submitted and looked at."""

    def put(
        name: str = "demo", *, phase: str = "Running", namespace: str = "team-a", uri: str = "", status: Any = None, **metadata: Any
    ) -> dict[str, Any]:
        from samite.spec import load_run

        sets = [f"metadata.name={name}", *([f"checkpoint.uri={uri}"] if uri else [])]
        document = load_run(spec_file, sets=sets).run.to_document()
        document["metadata"] |= {
            "namespace": namespace,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "creationTimestamp": "2026-11-30T10:00:00Z",
            **metadata,
        }
        document["status"] = {**STATUS, "phase": phase, **(status or {})} if phase else {}
        return world.api.put(TRAINING_RUN, document)

    return put


STATUS = {
    "phase": "Running",
    "reason": "Training",
    "message": "",
    "memory": "b3BhcXVl",
    "observedGeneration": 1,
    "conditions": [
        {"type": "Validated", "status": "True", "reason": "Passed", "message": ""},
        {"type": "Progressing", "status": "True", "reason": "HeartbeatFresh", "message": "1.2 s old"},
    ],
    "currentStage": "pretrain",
    "stageIndex": 0,
    "attempt": 2,
    "submissionId": "demo-s00-a2",
    "clusterId": "demo-s00-1a2b3",
    "progress": {"step": 41, "tokens": 335872, "stageStep": 41, "percent": 68.3, "tokensPerS": 9000.0, "stepS": 0.91, "etaS": 17.3},
    "ettr": {"percent": 81.2, "productiveS": 40.0, "wallS": 50.0, "suspendedS": 0.0, "lost": {"detectS": 3.1, "restartS": 6.0}},
    "restarts": {"infra": 1},
    "budgetsLeft": {"infra": 19},
    "lastFailure": {"failureClass": "infra", "level": 2, "message": "node demo-s00-1a2b3-worker-x: pod lost", "attempt": 1},
    "nodesReady": 2,
    "lastCheckpoint": "s0000000040-e000002",
    "lastCheckpointStep": 40,
    "lastSaveS": 3.14,
    "lastSaveStallS": 0.071,
}
