"""From a run and the runtimes of a cluster to its pods: merged, refused outside the allow-list, pinned whole."""

from typing import Any

import pytest

from samite.errors import Problem, SpecError
from samite.spec import TrainingRun, load_run
from samite.spec.runtime import ClusterTrainingRuntime, RuntimeSpec, TrainingRuntime
from samite.spec.runtime_resolution import BUILT_IN, ResolvedRuntime, resolve

RUN = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: a, namespace: team}
spec:
  engine: RayCluster
  checkpoint: {uri: "s3://bucket/run"}
  stages:
    - {name: first, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}}
"""


def run(*sets: str) -> TrainingRun:
    return load_run(RUN, sets=sets).run


def runtime(
    name: str = "gpu", kind: str = "ClusterTrainingRuntime", *, namespace: str | None = None, generation: int = 3, **spec: Any
) -> dict[str, Any]:
    metadata = {"name": name, "generation": generation, "uid": "u"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "samite.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def refused(training_run: TrainingRun, *runtimes: dict[str, Any]) -> list[Problem]:
    with pytest.raises(SpecError) as error:
        resolve(training_run, runtimes)
    return error.value.problems


def test_without_any_runtime_there_is_the_built_in_one():
    found = resolve(run("image=r.example/w:1"), [runtime("other")])
    assert (found.kind, found.name, found.generation, found.spec.image) == ("", "", 0, "r.example/w:1")
    assert "Image" in BUILT_IN.allow_overrides


def test_a_run_that_names_none_takes_the_default_of_the_cluster():
    found = resolve(run(), [runtime("gpu"), runtime("default", image="r.example/default:1")])
    assert (found.name, found.generation, found.spec.image) == ("default", 3, "r.example/default:1")


def test_the_named_one_is_taken_with_its_generation():
    found = resolve(run("runtimeRef.name=gpu"), [runtime("default"), runtime("gpu", generation=7, image="r.example/gpu:1")])
    assert (found.kind, found.name, found.generation, found.spec.image) == ("ClusterTrainingRuntime", "gpu", 7, "r.example/gpu:1")


def test_a_runtime_of_another_namespace_is_not_seen():
    training_run = run("runtimeRef={kind: TrainingRuntime, name: gpu}")
    problems = refused(training_run, runtime("gpu", "TrainingRuntime", namespace="other"), runtime("big"))
    assert problems[0].path == "spec.runtimeRef"
    assert problems[0].found == "only ClusterTrainingRuntime big"
    assert resolve(training_run, [runtime("gpu", "TrainingRuntime", namespace="team")]).kind == "TrainingRuntime"


def test_what_the_allow_list_names_is_merged():
    allowed = ["Image", "CPU", "Memory", "NodeSelector", "Tolerations", "Queue"]
    given = runtime(
        allowOverrides=allowed,
        image="r.example/gpu:1",
        worker={"cpu": "4", "memory": "16Gi", "nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        queue={"name": "shared", "topologyLevel": "rack"},
    )
    overrides = '{cpu: "8", nodeSelector: {zone: a}, tolerations: [{key: spot, operator: Exists}]}'
    found = resolve(run(f"runtimeRef={{name: gpu, overrides: {overrides}}}", "image=r.example/mine:2", "queue.name=research"), [given])
    worker = found.spec.worker
    assert (found.spec.image, worker.cpu, worker.memory) == ("r.example/mine:2", "8", "16Gi")
    assert worker.node_selector == {"gpu": "h100", "zone": "a"}
    assert [toleration.key for toleration in worker.tolerations] == ["gpu", "spot"]
    assert found.spec.queue is not None
    assert (found.spec.queue.name, found.spec.queue.topology_level) == ("research", "rack")
    assert found.spec.head.cpu is None


def test_everything_outside_the_allow_list_is_refused_at_once_by_its_place():
    given = runtime(allowOverrides=[])
    problems = refused(
        run("runtimeRef={name: gpu, overrides: {memory: 64Gi}}", "image=r.example/mine:2", "queue.name=a", 'env=[{name: A, value: "1"}]'),
        given,
    )
    assert sorted(problem.path for problem in problems) == ["spec.env", "spec.image", "spec.queue", "spec.runtimeRef.overrides.memory"]
    assert problems[0].wanted == "no image, because ClusterTrainingRuntime gpu allows nothing"
    assert "allowOverrides" in problems[0].hint


def test_a_label_that_the_runtime_demands_cannot_be_given_another_value():
    given = runtime(allowOverrides=["NodeSelector"], worker={"nodeSelector": {"gpu": "h100"}})
    problems = refused(run("runtimeRef={name: gpu, overrides: {nodeSelector: {gpu: a10}}}"), given)
    assert problems[0].found == '"a10"'
    assert resolve(run("runtimeRef={name: gpu, overrides: {nodeSelector: {gpu: h100}}}"), [given]).spec.worker.node_selector == {
        "gpu": "h100"
    }


def test_a_runtime_that_is_itself_wrong_says_so():
    assert "worker.cpu" in refused(run("runtimeRef.name=gpu"), runtime(worker={"cpu": 8}))[0].found


def test_a_pinned_runtime_comes_back_whole():
    found = resolve(
        run("runtimeRef.name=gpu"), [runtime(image="r.example/gpu:1", worker={"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]})]
    )
    pinned = found.pin()
    assert (pinned["kind"], pinned["name"], pinned["generation"]) == ("ClusterTrainingRuntime", "gpu", 3)
    assert ResolvedRuntime.unpin(pinned) == found
    assert pinned == found.pin(), "the same runtime has the same text, so a status does not change for it"


def test_a_pin_that_was_damaged_is_refused():
    with pytest.raises(ValueError, match="no pinned runtime"):
        ResolvedRuntime.unpin({"content": "AAAA"})


@pytest.mark.parametrize(("model", "kind"), [(TrainingRuntime, "TrainingRuntime"), (ClusterTrainingRuntime, "ClusterTrainingRuntime")])
def test_a_whole_runtime_document_is_a_model(model: type[TrainingRuntime] | type[ClusterTrainingRuntime], kind: str):
    document = {"apiVersion": "samite.dev/v1alpha1", "kind": kind, "metadata": {"name": "gpu"}, "spec": {"gpuResource": "amd.com/gpu"}}
    assert model.from_document(document).spec == RuntimeSpec(gpu_resource="amd.com/gpu")
