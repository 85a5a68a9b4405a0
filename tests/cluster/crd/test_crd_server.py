"""The definitions in the real API server: accepted within its cost limits, applied and compared by the CLI, listed, defaulted, guarded on update."""

import copy
import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from box.kubectl import Kubectl
from verdicts import answer_of, of_status

from samite.cli.app import run
from samite.crds import custom_resource_definitions
from samite.crds.definitions import MAX_BYTES
from samite.engines.kuberay.api import TRAINING_RUN
from samite.engines.kuberay.api_client import RealApi
from samite.lifecycle import Memory, Observed, RunPlan, decide
from samite.spec import load_run
from samite.spec.filled import filled_document
from samite.spec.rules import text_of
from samite.spec.stored import run_from_object
from samite.spec.update_rules import check_update
from samite.spec.yaml_tree import dotted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAMES = [definition["metadata"]["name"] for definition in custom_resource_definitions().values()]
GOLDEN = Path(__file__).parent / "golden"

RUN = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: moe-1m}
spec:
  checkpoint: {uri: "s3://bucket/run"}
  queue: {name: research}
  approvals: [{stage: first, by: me}]
  stages:
    - {name: first, contextLength: 8192, batch: {tokens: 65536}, budget: {steps: 3}}
    - {name: second, contextLength: 65536, batch: {tokens: 65536}, budget: {steps: 3}, handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}}
    - {name: third, contextLength: 65536, batch: {tokens: 65536}, budget: {steps: 3}, handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}}
"""


def cli(server: Kubectl, *words: str) -> int:
    return run(["--kubeconfig", str(server.kubeconfig), "crds", *words])


@pytest.fixture
def stored(server: Kubectl, api: RealApi) -> Any:
    """One run in the API server, gone after the test."""
    server("apply", "-f", "-", stdin=RUN)
    yield api.get(TRAINING_RUN, "default", "moe-1m")
    server("delete", "trun", "--all", "--wait=true")


def test_every_definition_is_accepted_and_served(server: Kubectl):
    for name in NAMES:
        conditions = {item["type"]: item for item in server.get("crd", name)["status"]["conditions"]}
        assert conditions["Established"]["status"] == "True", conditions
        assert conditions["NamesAccepted"]["status"] == "True", conditions
        assert "NonStructuralSchema" not in conditions, conditions["NonStructuralSchema"]


def test_a_stored_definition_is_small(server: Kubectl):
    for name in NAMES:
        stored = server.get("crd", name)
        spec = {key: stored[key] for key in ("apiVersion", "kind", "spec")}
        assert len(json.dumps(spec, separators=(",", ":"), ensure_ascii=False).encode()) < MAX_BYTES, name


def test_the_api_server_knows_the_short_names_and_the_category(server: Kubectl):
    said = server("api-resources", "--api-group=samite.dev", "--categories=samite", "--no-headers")
    found = {tuple(line.split()[:2]) for line in said.splitlines()}
    assert found == {
        ("clustertrainingruntimes", "ctruntime"),
        ("nodeblames", "nblame"),
        ("trainingruns", "trun"),
        ("trainingruntimes", "truntime"),
    }


def test_diff_is_silent_after_apply(server: Kubectl, capsys: pytest.CaptureFixture[str]):
    assert cli(server, "diff") == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count(": same") == 4


def test_what_was_changed_by_hand_is_shown_named_and_repaired_by_force(server: Kubectl, capsys: pytest.CaptureFixture[str]):
    patch = [{"op": "replace", "path": "/spec/names/shortNames", "value": ["run"]}]
    server("patch", "crd", NAMES[0], "--type=json", "-p", json.dumps(patch), "--field-manager=by-hand")
    assert cli(server, "diff", "trun") == 6
    assert "+    - trun" in capsys.readouterr().out
    assert cli(server, "apply") == 6
    assert f"{NAMES[0]} belongs to by-hand" in capsys.readouterr().err
    assert cli(server, "apply", "--force-conflicts", "-o", "json") == 0
    states = {item["name"]: item["state"] for item in json.loads(capsys.readouterr().out)["items"]}
    assert states == {NAMES[0]: "configured"} | dict.fromkeys(NAMES[1:], "unchanged")
    assert cli(server, "diff") == 0
    assert cli(server, "apply") == 0, "by-hand owns nothing any more"


def test_what_helm_owns_is_left_to_helm_unless_forced(server: Kubectl, capsys: pytest.CaptureFixture[str]):
    definition = custom_resource_definitions()["nodeblames"]
    server("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-", stdin=json.dumps(definition))
    assert cli(server, "apply", "nblame") == 6
    said = capsys.readouterr().err
    assert "nodeblames.samite.dev belongs to helm" in said
    assert "helm upgrade of the samite chart" in said
    assert cli(server, "apply", "nblame", "--force-conflicts") == 0
    forget = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
    server("patch", "crd", definition["metadata"]["name"], "--type=json", "-p", json.dumps(forget))
    assert cli(server, "apply") == 0


def test_a_run_without_an_engine_gets_the_clusters_and_every_default(stored: dict[str, Any]):
    assert stored["spec"]["engine"] == "RayCluster"
    local = load_run(RUN, sets=["engine=RayCluster"]).run.to_document()["spec"]
    assert stored["spec"] == local, "the API server fills in the same defaults as the models"


def test_an_object_of_the_api_server_is_a_run(stored: dict[str, Any]):
    assert run_from_object(stored).total_steps == 9


def test_an_unknown_field_is_refused_with_its_place(api: RealApi):
    document = yaml.safe_load(RUN)
    document["spec"]["stages"][0]["bugdet"] = {"steps": 3}
    answer = answer_of(api, document, f"{TRAINING_RUN.path('default')}?dryRun=All&fieldValidation=Strict")
    assert answer is not None
    assert 'unknown field "spec.stages[0].bugdet"' in answer["message"]


def changed(stored: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**copy.deepcopy(stored), "spec": {**copy.deepcopy(stored["spec"]), **spec}}


def update(api: RealApi, new: dict[str, Any]) -> set[tuple[str, str]]:
    """What the API server says about replacing the stored object; nothing is stored."""
    name = new["metadata"]["name"]
    answer = answer_of(api, new, f"{TRAINING_RUN.path('default', name)}?dryRun=All&fieldValidation=Strict", method="PUT")
    if answer is None:
        return set()
    verdict = of_status(answer)
    assert verdict.other == ()
    return set(verdict.said)


def both(api: RealApi, stored: dict[str, Any], new: dict[str, Any], started: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    """The same from Python, which must be equal word for word."""
    findings = check_update(filled_document(stored), filled_document(new), started)
    python = {(dotted(finding.path), text_of(finding)) for finding in findings}
    assert update(api, new) == python
    return python


def test_engine_owner_and_storage_never_change(api: RealApi, stored: dict[str, Any]):
    restart = {**stored["spec"]["restart"], "startLevel": 3}
    assert [place for place, _ in both(api, stored, changed(stored, engine="RayJob", restart=restart))] == ["spec.engine"]
    assert [place for place, _ in both(api, stored, changed(stored, managedBy="other.example/x"))] == ["spec.managedBy"]
    checkpoint = {**stored["spec"]["checkpoint"], "uri": "s3://bucket/other"}
    assert [place for place, _ in both(api, stored, changed(stored, checkpoint=checkpoint))] == ["spec.checkpoint.uri"]


def test_approvals_only_grow(api: RealApi, stored: dict[str, Any]):
    old = stored["spec"]["approvals"]
    assert both(api, stored, changed(stored, approvals=[*old, {"stage": "second", "by": "you", "reason": "fine"}])) == set()
    assert len(both(api, stored, changed(stored, approvals=[]))) == 1
    assert len(both(api, stored, changed(stored, approvals=[{"stage": "first", "by": "somebody else"}]))) == 1


def test_suspend_and_later_stages_may_change(api: RealApi, stored: dict[str, Any]):
    assert both(api, stored, changed(stored, suspend=True)) == set()
    assert both(api, stored, changed(stored, stages=stored["spec"]["stages"][:2])) == set()


def write_status(server: Kubectl, **status: Any) -> None:
    server("patch", "trun", "moe-1m", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def test_a_stage_that_has_begun_is_frozen(server: Kubectl, api: RealApi, stored: dict[str, Any]):
    write_status(server, startedStages=["first", "second"])
    stored = api.get(TRAINING_RUN, "default", "moe-1m")
    stages, started = stored["spec"]["stages"], ("first", "second")

    def refused(new: list[dict[str, Any]]) -> list[str]:
        return [place for place, _ in both(api, stored, changed(stored, stages=new), started)]

    assert refused([stages[0], {**stages[1], "budget": {"steps": 9}}, stages[2]]) == ["spec.stages[1]"]
    assert refused([stages[0], stages[1], {**stages[2], "budget": {"steps": 9}}]) == []
    assert refused([stages[0], stages[1]]) == []
    assert refused([stages[0], stages[2]]) == ["spec.stages[1]"]
    new_first = {key: value for key, value in stages[0].items() if key != "handover"} | {"name": "before"}
    moved = {**stages[0], "handover": stages[1]["handover"]}
    assert refused([new_first, moved, stages[1], stages[2]]) == ["spec.stages[0]"]


def test_the_spec_cannot_be_changed_through_the_status_nor_the_status_through_the_spec(server: Kubectl, stored: dict[str, Any]):
    server("patch", "trun", "moe-1m", "--type=merge", "-p", '{"status": {"phase": "Succeeded"}}')
    server("patch", "trun", "moe-1m", "--subresource=status", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    found = server.get("trun", "moe-1m")
    assert found["spec"]["suspend"] is False
    assert "status" not in found


def full_status() -> dict[str, Any]:
    """A status as the operator writes it, of a run that restarted a while ago."""
    now = datetime.now(UTC)
    plan = RunPlan.from_run(load_run(RUN, sets=["engine=RayCluster"]).run, uid="u")
    document: dict[str, Any] = decide(plan, Observed(at_s=1.0), Memory(), 1.0).status.to_document()
    ago = {"lastCheckpointTime": (now - timedelta(minutes=25, seconds=20)).strftime("%Y-%m-%dT%H:%M:%SZ")}
    document |= {
        "phase": "Running",
        "reason": "Training",
        "currentStage": "second",
        "stageIndex": 1,
        "clusterId": "moe-1m-s01-abc12",
        "startedStages": ["first", "second"],
        "observedGeneration": 1,
        "memory": "eJyrrgUAAXUA+Q==",
        "nextRetryAt": "2026-11-30T20:00:00Z",
        "columns": {"contextLength": 65536, "percent": "68.7", "ettr": "97.1", "restarts": 3, "nodes": "4/4", **ago},
        "runtime": {"kind": "ClusterTrainingRuntime", "name": "gpu", "generation": 3, "digest": "0" * 16, "content": "eJw="},
    }
    document["progress"]["step"] = 41200
    for condition in document["conditions"]:
        condition |= {"lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "observedGeneration": 1}
    return document


def is_golden(name: str, text: str) -> bool:
    """Whether the output of `kubectl get` is the agreed one, with the age, which moves, as <age>. SAMITE_UPDATE_SNAPSHOTS=1 agrees."""
    found = "".join(re.sub(r"\b\d+s\s*$", "<age>", line) + "\n" for line in text.splitlines())
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("SAMITE_UPDATE_SNAPSHOTS"):
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")
    return True


def test_a_status_of_the_operator_is_stored_whole(server: Kubectl, stored: dict[str, Any]):
    status = full_status()
    write_status(server, **status)

    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: known(item) for key, item in value.items() if item is not None}
        return [known(item) for item in value] if isinstance(value, list) else value

    assert server.get("trun", "moe-1m")["status"] == known(status)


@pytest.mark.parametrize("output", ["", "wide"])
def test_kubectl_get_prints_what_matters(server: Kubectl, stored: dict[str, Any], output: str):
    write_status(server, **full_status())
    assert is_golden(f"get-trun{'-' + output if output else ''}", server("get", "trun", *(["-o", output] if output else [])))


def test_kubectl_describe_tells_the_story(server: Kubectl, stored: dict[str, Any]):
    write_status(server, **full_status())
    text = server("describe", "trun", "moe-1m")
    moving = r"^( *(Creation Timestamp|Resource Version|UID|Last Transition Time|Last Checkpoint Time): +).*$"
    text = re.sub(moving, r"\1<moving>", text, flags=re.MULTILINE)
    assert is_golden(
        "describe-trun", re.sub(r"last-applied-configuration:\n? *\{.*\}$", "last-applied-configuration: <json>", text, flags=re.MULTILINE)
    )


def test_a_run_that_nobody_has_looked_at_prints_too(server: Kubectl, stored: dict[str, Any]):
    assert is_golden("get-trun-new", server("get", "trun"))


def test_runs_are_selected_by_phase_and_queue(server: Kubectl, stored: dict[str, Any]):
    write_status(server, phase="Running")
    for selector, names in (
        ("status.phase=Running", 1),
        ("status.phase=Held", 0),
        ("spec.queue.name=research", 1),
        ("spec.queue.name=a", 0),
    ):
        assert len(server.items("trun", f"--field-selector={selector}")) == names


def test_kubectl_explain_has_the_documentation(server: Kubectl):
    assert "Must be a multiple of contextLength" in " ".join(server("explain", "trun.spec.stages.batch.tokens").split())


def test_runtimes_and_blame_are_stored_and_listed(server: Kubectl):
    runtime = {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "gpu"},
        "spec": {
            "image": "registry.example/worker:1",
            "allowOverrides": ["Image", "Env"],
            "worker": {"affinity": {"nodeAffinity": {"any": ["thing", 1]}}, "volumes": [{"name": "data", "hostPath": {"path": "/data"}}]},
        },
    }
    blame = {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "NodeBlame",
        "metadata": {"name": "node-1"},
        "spec": {"exclude": True, "by": "me"},
    }
    server("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [runtime, blame]}))
    status = {"state": "Excluded", "strikes": 1.5, "reason": "straggler: twice", "quarantinedUntil": "2026-11-30T20:00:00Z"}
    server("patch", "nblame", "node-1", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    try:
        found = server.get("ctruntime", "gpu")
        assert found["spec"]["worker"]["affinity"] == runtime["spec"]["worker"]["affinity"]
        assert found["spec"]["gpuResource"] == "nvidia.com/gpu"
        assert found["metadata"]["generation"] == 1
        assert is_golden("get-ctruntime", server("get", "ctruntime"))
        assert is_golden("get-nblame", server("get", "nblame"))
    finally:
        server("delete", "ctruntime,nblame", "--all")


def test_a_runtime_with_a_secret_in_clear_is_refused(server: Kubectl):
    spec = {"worker": {"env": [{"name": "HF_TOKEN", "value": "abc"}]}}
    runtime = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "gpu"}, "spec": spec}
    said = server("apply", "-f", "-", stdin=json.dumps(runtime), check=False)
    assert "spec.worker.env[0]" in said
    assert "wanted no value for HF_TOKEN" in said
