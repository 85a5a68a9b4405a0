"""A TrainingRun object as the API server gives it, for every test of the engine."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml

from samite.spec import TrainingRun

UID = "6f0c1a52-4c1b-4a39-9a52-0f7f4d1c9d01"
CRD_17 = Path(__file__).parents[3] / "cluster" / "kuberay-crds-1.7.0" / "ray.io_rayclusters.yaml.gz"


def training_run(*, workers: int = 2, spares: int = 1, gpus: int = 0, stages: int = 2, **spec: Any) -> dict[str, Any]:
    """`demo` in namespace `team-a`, with every default filled in."""
    handover = {"optimizer": "Carry", "lrSchedule": "Carry", "dataCursor": "Carry"}
    document = {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "demo", "namespace": "team-a"},
        "spec": {
            "engine": "RayCluster",
            "model": {"preset": "tiny"},
            "data": {"uri": "builtin:quickstart"},
            "checkpoint": {"uri": "s3://bucket/demo", "interval": {"steps": 5}},
            "nodes": {"spares": spares},
            "stages": [
                {
                    "name": f"stage-{index}",
                    "contextLength": 128 * (index + 1),
                    "workers": {"min": 1, "max": workers},
                    "gpusPerWorker": gpus,
                    "batch": {"tokens": 2048},
                    "budget": {"steps": 10},
                    **({"handover": handover} if index else {}),
                }
                for index in range(stages)
            ],
            **spec,
        },
    }
    filled = TrainingRun.model_validate(document).to_document()
    filled["metadata"] |= {"uid": UID, "resourceVersion": "1", "generation": 1, "annotations": {}, "managedFields": [{"manager": "cli"}]}
    return filled


@pytest.fixture
def run() -> dict[str, Any]:
    return training_run()


@pytest.fixture
def make_run():
    return training_run


@pytest.fixture(scope="session")
def crd_17() -> dict[str, Any]:
    return yaml.load(gzip.decompress(CRD_17.read_bytes()), Loader=yaml.CSafeLoader)
