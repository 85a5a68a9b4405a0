"""A TrainingRun as the API server gives it becomes the same run as the file did."""

import copy
from typing import Any

import pytest
import yaml

from samite.errors import SpecError
from samite.spec import load_run
from samite.spec.stored import document_of, run_from_object

RUN = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: a, labels: {team: x}, annotations: {samite.dev/cancel: "true"}}
spec:
  engine: RayCluster
  checkpoint: {uri: "s3://bucket/run"}
  stages:
    - {name: first, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}}
"""


def stored(**spec: Any) -> dict[str, Any]:
    document = yaml.safe_load(RUN)
    document["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 2, "managedFields": [], "finalizers": ["samite.dev/run"]}
    document["spec"] |= spec
    return document | {"status": {"phase": "Running", "memory": "x"}}


def test_what_the_server_adds_is_left_out():
    assert run_from_object(stored()) == load_run(RUN).run
    assert set(document_of(stored())) == {"apiVersion", "kind", "metadata", "spec"}


def test_the_object_is_not_changed():
    given = stored()
    before = copy.deepcopy(given)
    run_from_object(given)
    assert given == before


def test_a_run_for_a_machine_is_refused_in_a_cluster():
    with pytest.raises(SpecError) as error:
        run_from_object(stored(engine="Local"))
    assert [problem.path for problem in error.value.problems] == ["spec.engine"]


def test_what_this_version_cannot_do_is_refused_with_every_problem():
    stages = [{**stored()["spec"]["stages"][0], "kind": "SFT", "parallel": {"tensor": 2}, "workers": {"min": 2, "max": 2}}]
    with pytest.raises(SpecError) as error:
        run_from_object(stored(stages=stages))
    assert [problem.path for problem in error.value.problems] == ["spec.stages[0].kind", "spec.stages[0].parallel.tensor"]


def test_an_object_without_content_is_refused_and_not_a_crash():
    with pytest.raises(SpecError):
        run_from_object({"kind": "TrainingRun"})
