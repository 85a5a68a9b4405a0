"""What this version cannot do yet is refused when the spec is read, never ignored."""

from pathlib import Path

import pytest

from samite.errors import Problem, SpecError
from samite.spec import load_run

RUN = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: a}
spec:
  stages:
    - {name: first, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}}
    - {name: second, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}, handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}}
"""


def refused(*sets: str) -> list[Problem]:
    with pytest.raises(SpecError) as error:
        load_run(RUN, sets=sets)
    return error.value.problems


@pytest.mark.parametrize("kind", ["SFT", "RL", "Eval"])
def test_a_kind_of_stage_that_is_not_trained_yet_is_refused(kind: str):
    assert [problem.path for problem in refused(f"stages[1].kind={kind}")] == ["spec.stages[1].kind"]


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "context", "expert"])
def test_a_parallel_axis_that_is_not_there_yet_is_refused(axis: str):
    problems = refused(f"stages[0].parallel.{axis}=2", "stages[0].workers={min: 2, max: 2}")
    assert [problem.path for problem in problems] == [f"spec.stages[0].parallel.{axis}"]
    assert "not supported by this version" in problems[0].found


def test_the_engine_that_is_not_there_yet_is_refused():
    problems = refused("engine=RayJob", "checkpoint.uri=s3://bucket/run", "restart.startLevel=3")
    assert [problem.path for problem in problems] == ["spec.engine"]
    assert load_run(RUN, sets=["engine=RayCluster", "checkpoint.uri=s3://bucket/run"]).run.spec.engine == "RayCluster"


@pytest.mark.parametrize(
    "field",
    [
        "queue.name=a",
        "image=a",
        "managedBy=a",
        "runtimeRef.name=a",
        "approvals=[{stage: first, by: me}]",
        "slo={ettrPercent: 97}",
        "entrypoint=[a]",
        "args=[a]",
    ],
)
def test_a_field_of_the_kubernetes_engines_is_named_as_such(field: str):
    assert ["belongs to the Kubernetes engines" in problem.found for problem in refused(field)] == [True]


def test_the_fields_of_the_kubernetes_engines_are_taken_by_them():
    sets = (
        "engine=RayCluster",
        "checkpoint.uri=s3://bucket/run",
        "queue={name: a, topology: Required, sliceSize: 4}",
        "image=r.example/w:1",
    )
    more = ("managedBy=other.example/runner", "runtimeRef={name: gpu}", "approvals=[{stage: first, by: me}]", "slo={ettrPercent: 97}")
    spec = load_run(RUN, sets=[*sets, *more]).run.spec
    assert (spec.queue and spec.queue.slice_size, spec.image, spec.runtime_ref and spec.runtime_ref.kind) == (
        4,
        "r.example/w:1",
        "ClusterTrainingRuntime",
    )


def test_a_corpus_in_the_pods_is_not_looked_for_on_this_machine():
    sets = ["engine=RayCluster", "checkpoint.uri=s3://bucket/run", "data.uri=/mnt/corpus"]
    assert load_run(RUN, sets=sets).run.spec.data.uri == "/mnt/corpus"


def test_roles_belong_to_reinforcement_learning():
    assert ["belongs to reinforcement learning" in problem.found for problem in refused("stages[0].roles=[]")] == [True]


@pytest.mark.parametrize("state", ["weights", "optimizer", "stepCounter", "tokenCounter", "dataCursor", "routerBias"])
def test_only_the_schedule_can_be_rescaled(state: str):
    assert [problem.path for problem in refused(f"stages[1].handover.{state}=Rescale")] == [f"spec.stages[1].handover.{state}"]
    assert load_run(RUN, sets=["stages[1].handover.lrSchedule=Rescale"]).run.spec.stages[1].handover is not None


def test_checkpoints_in_the_memory_of_one_process_are_refused():
    assert "file:///" in refused("checkpoint.uri=memory://run")[0].hint


def test_weights_of_another_run_are_refused():
    handover = "stages[0].handover={optimizer: Reset, lrSchedule: Reset, dataCursor: Reset}"
    assert [problem.path for problem in refused("checkpoint.loadFrom=s3://bucket/other", handover)] == ["spec.checkpoint.loadFrom"]


def test_secrets_of_kubernetes_are_refused_and_the_way_of_this_machine_is_named(monkeypatch: pytest.MonkeyPatch):
    problems = refused("env[0].name=HF_TOKEN", "env[0].valueFrom.secretKeyRef={name: hub, key: token}")
    assert "hostEnv: HF_TOKEN" in problems[0].hint
    assert "profile" in refused("checkpoint={uri: 's3://b/r', credentials: {secretName: a}}")[0].wanted
    monkeypatch.setenv("HF_TOKEN", "x")
    assert load_run(RUN, sets=["env[0].name=HF_TOKEN", "env[0].valueFrom.hostEnv=HF_TOKEN"]).run.spec.env[0].value_from is not None


def test_a_variable_that_the_shell_does_not_have_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert refused("env[0].name=HF_TOKEN", "env[0].valueFrom.hostEnv=HF_TOKEN")[0].hint == "run: export HF_TOKEN=..."


@pytest.mark.parametrize("what", ["nothing", "file", "empty"])
def test_a_corpus_that_is_not_there_names_the_command_that_makes_it(tmp_path: Path, what: str):
    place = tmp_path / "my corpus"
    if what == "file":
        place.write_text("x")
    elif what == "empty":
        place.mkdir()
    problem = refused(f"data.uri={place}")[0]
    assert problem.path == "spec.data.uri"
    if what != "file":
        assert f"samite data prepare --out '{place}'" in problem.hint


def test_a_corpus_in_remote_storage_is_looked_at_when_the_run_starts():
    assert load_run(RUN, sets=["data.uri=s3://bucket/corpus"]).run.spec.data.uri == "s3://bucket/corpus"


def test_a_stage_that_keeps_the_runs_corpus_is_checked_against_its_sources():
    problems = refused("stages[0].data.mixture=[{source: images, weight: 1}]")
    assert [problem.path for problem in problems] == ["spec.stages[0].data.mixture[0].source"]


def test_an_override_that_has_its_own_place_is_sent_there():
    assert refused("model.overrides.balancing=Sign")[0].hint == "move it to spec.router.balancing"
