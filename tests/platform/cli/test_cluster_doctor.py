"""`samite doctor` on a cluster: each line with what was found and one thing to do; and the way out when a deletion is stuck."""

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from served_api import World

from samite.cli.doctor_cluster import fields_of, rules_of
from samite.crds import custom_resource_definitions
from samite.engines.kuberay.api import CRD, LEASE, ROLE_BINDING, TRAINING_RUN
from samite.engines.kuberay.names import FINALIZER, HOLD

PROD = ("--context", "prod")


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def kuberay(*fields: str) -> dict[str, Any]:
    """The CRD of a KubeRay with these fields."""
    properties: dict[str, Any] = {}
    for field in fields:
        place = properties
        *parents, leaf = field.split(".")
        for parent in parents:
            place = place.setdefault(parent, {"type": "object", "properties": {}})["properties"]
        place[leaf] = {"type": "string"}
    schema = {"openAPIV3Schema": {"properties": {"spec": {"properties": properties}}}}
    return {"metadata": {"name": "rayclusters.ray.io"}, "spec": {"versions": [{"name": "v1", "served": True, "schema": schema}]}}


@pytest.fixture
def healthy(world: World, stored) -> World:
    """A cluster where all is well."""
    for definition in custom_resource_definitions().values():
        world.api.put(CRD, copy.deepcopy(definition))
    world.api.put(CRD, kuberay("authOptions.mode", "authOptions.secretName", "upgradeStrategy.type"))
    lease = {"holderIdentity": "samite-operator-5d", "leaseDurationSeconds": 3600, "renewTime": ago(2)}
    world.api.put(LEASE, {"metadata": {"name": "samite-operator", "namespace": "samite-system"}, "spec": lease})
    stored()
    return world


def findings(shell, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    items = json.loads(shell(*PROD, "doctor", *words, "-o", "json", code=code).stdout)["items"]
    return {item["name"]: item for item in items if item["level"] != "ok"} if code else {item["name"]: item for item in items}


def test_a_healthy_cluster_is_said_to_be_healthy(shell, healthy: World):
    text = shell(*PROD, "doctor").stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "CHECK FOUND REMEDY"
    assert lines[1].startswith(f"api server ok Kubernetes v1.37.2 at {healthy.address} in ")
    assert lines[1].endswith(" ms, as alice")
    assert lines[2:6] == [
        f"crd ok {definition['metadata']['name']} is of this version" for definition in custom_resource_definitions().values()
    ]
    assert lines[6] == "kuberay ok KubeRay 1.6 or newer by the fields of its CRD"
    assert lines[7] == "may look at runs ok get trainingruns, list trainingruns"
    assert lines[-3].startswith("operator ok samite-operator-5d renewed samite-system/samite-operator ")
    assert lines[-2] == "watch ok 1 runs in namespace team-a of context prod, every change was looked at"
    assert lines[-1] == "finalizers ok no deletion is stuck"


def test_a_server_that_is_not_there_is_the_only_finding(shell, world: World):
    world.answers.append(("GET", "/version", 503, {"message": "shutting down"}))
    assert list(findings(shell, code=13)) == ["api server"]


def test_an_old_kubernetes_is_a_problem(shell, healthy: World):
    healthy.version = {"major": "1", "minor": "29+", "gitVersion": "v1.29.0"}
    assert "1.31 or newer" in findings(shell, code=13)["api server"]["remedy"]


def test_a_missing_definition_says_how_to_get_it(shell, healthy: World):
    healthy.api.delete(CRD, "", "nodeblames.samite.dev")
    found = findings(shell, code=13)["crd"]
    assert found["found"] == "nodeblames.samite.dev is not there"
    assert found["remedy"].endswith("samite crds apply --context prod")


def test_a_definition_that_would_drop_a_field_names_the_field(shell, healthy: World):
    old = copy.deepcopy(custom_resource_definitions()["trainingruns"])
    del old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["telemetry"]
    healthy.api.delete(CRD, "", "trainingruns.samite.dev")
    healthy.api.put(CRD, old)
    found = findings(shell, code=13)["crd"]
    assert "is older than this samite: it drops v1alpha1:spec.telemetry" in found["found"]
    assert "samite crds diff" in found["remedy"]


def test_a_definition_with_more_than_this_version_knows_is_a_warning(shell, healthy: World):
    healthy.api.put(
        CRD,
        {
            "metadata": {"name": "trainingruns.samite.dev"},
            "spec": {"versions": _with_field(custom_resource_definitions()["trainingruns"], "novelty")},
        },
    )
    text = shell(*PROD, "doctor").stdout
    assert "warn" in text
    assert "v1alpha1:spec.novelty" in text


def test_other_rules_with_the_same_fields_are_a_warning(shell, healthy: World):
    other = copy.deepcopy(custom_resource_definitions()["trainingruns"])
    other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = []
    healthy.api.delete(CRD, "", "trainingruns.samite.dev")
    healthy.api.put(CRD, other)
    assert "has the same fields, but other rules" in shell(*PROD, "doctor").stdout


def test_every_field_and_rule_of_a_definition_is_compared():
    definition = custom_resource_definitions()["trainingruns"]
    assert "v1alpha1:spec.stages[].budget.steps" in set(fields_of(definition))
    assert len(rules_of(definition)) > 10


def test_no_kuberay_is_a_problem_and_an_old_one_a_warning(shell, healthy: World):
    healthy.api.delete(CRD, "", "rayclusters.ray.io")
    assert "not there" in findings(shell, code=13)["kuberay"]["found"]
    healthy.api.put(CRD, kuberay("headGroupSpec.labels"))
    assert findings(shell)["kuberay"]["level"] == "warn"


def test_missing_rights_name_verb_resource_and_the_role_that_brings_them(shell, healthy: World):
    healthy.forbidden = {("create", "trainingruns"), ("get", "pods/log")}
    found = findings(shell, code=13)
    needed, optional = found["may submit and delete runs"], found["may read logs of nodes"]
    assert needed["found"] == "alice may not create trainingruns"
    assert needed["remedy"] == "a RoleBinding to the ClusterRole samite-editor in namespace team-a"
    assert optional["level"] == "warn"
    assert optional["found"] == "alice may not get pods/log"


def test_a_look_that_is_not_allowed_is_unknown_and_no_verdict(shell, healthy: World):
    resource = 'resource "customresourcedefinitions" in API group "apiextensions.k8s.io" at the cluster scope'
    text = f'customresourcedefinitions.apiextensions.k8s.io is forbidden: User "alice" cannot get {resource}'
    refusal = {"message": text, "reason": "Forbidden", "code": 403}
    healthy.answers += [("GET", "customresourcedefinitions", 403, refusal) for _ in range(2)]
    found = findings(shell)
    assert found["crds"]["ok"] is None
    assert "alice may not get customresourcedefinitions.apiextensions.k8s.io in the whole cluster" in found["crds"]["found"]


def test_a_cluster_without_an_operator_has_nobody_who_looks_after_runs(shell, healthy: World):
    healthy.api.delete(LEASE, "samite-system", "samite-operator")
    assert "nobody looks after the runs" in findings(shell, code=13)["operator"]["found"]


def test_an_operator_that_gave_its_lease_back_has_ended(shell, healthy: World):
    healthy.api.put(LEASE, {"metadata": {"name": "samite-operator", "namespace": "samite-system"}, "spec": {"holderIdentity": ""}})
    assert "given back" in findings(shell, code=13)["operator"]["found"]


def test_a_lease_that_looks_old_is_looked_at_twice(shell, healthy: World):
    lease = {"leaseDurationSeconds": 1, "renewTime": ago(600)}
    healthy.api.put(LEASE, {"metadata": {"name": "samite-operator", "namespace": "samite-system"}, "spec": lease})
    assert "renewed samite-system/samite-operator 60" in findings(shell, code=13)["operator"]["found"]


def test_a_change_that_nobody_looked_at_means_a_dead_watch(shell, healthy: World, stored):
    stored("forgotten", generation=2)
    found = findings(shell, code=13)["watch"]
    assert found["found"].startswith("changes that no operator has looked at: forgotten (")
    assert "rollout restart" in found["remedy"]


def test_a_stuck_deletion_is_found_and_freed_only_when_asked_and_only_of_our_finalizer(shell, healthy: World, stored):
    stored("stuck", deletionTimestamp=ago(900), finalizers=[FINALIZER, "example.org/other"])
    stored("recent", deletionTimestamp=ago(30), finalizers=[FINALIZER])
    found = findings(shell, code=13)["finalizers"]
    assert found["found"] == "deletion is stuck: stuck"
    assert found["remedy"] == "samite doctor --fix-finalizers --context prod --namespace team-a"
    assert "Take the finalizer samite.dev/finalizer from stuck?" in shell(*PROD, "doctor", "--fix-finalizers", code=2).stderr
    assert FINALIZER in healthy.api.look(TRAINING_RUN, "team-a", "stuck")["metadata"]["finalizers"]
    done = shell(*PROD, "doctor", "--fix-finalizers", "--yes")
    assert "others hold it still: example.org/other" in done.stderr
    assert healthy.api.look(TRAINING_RUN, "team-a", "stuck")["metadata"]["finalizers"] == ["example.org/other"]
    assert healthy.api.look(TRAINING_RUN, "team-a", "recent")["metadata"]["finalizers"] == [FINALIZER]
    assert "no deletion is stuck" in shell(*PROD, "doctor", "--fix-finalizers", "--yes").stderr


def test_a_binding_that_nobody_lets_go_is_freed_with_the_last_run_of_its_namespace(shell, healthy: World, stored):
    metadata = {"name": "samite-operator", "namespace": "team-a", "deletionTimestamp": ago(900), "finalizers": [HOLD]}
    healthy.api.put(ROLE_BINDING, {"metadata": metadata})
    stored("training", finalizers=[FINALIZER])
    assert findings(shell)["finalizers"]["ok"] is True
    healthy.api.delete(TRAINING_RUN, "team-a", "training")
    stored("training", deletionTimestamp=ago(900), finalizers=[FINALIZER])
    assert findings(shell, code=13)["finalizers"]["found"] == "deletion is stuck: training, RoleBinding team-a/samite-operator"
    done = shell(*PROD, "doctor", "--fix-finalizers", "--yes")
    assert "RoleBinding team-a/samite-operator: finalizer taken away" in done.stderr
    assert healthy.api.look(ROLE_BINDING, "team-a", "samite-operator") is None


def test_freeing_deletions_needs_a_cluster(shell):
    assert "--context" in shell("doctor", "--fix-finalizers", code=2).stderr


def test_the_storage_of_a_run_is_probed_from_here(shell, healthy: World, stored, tmp_path):
    stored("demo", uri=f"file://{tmp_path}/storage")
    assert "put, get, conditional put, list, delete" in findings(shell, "demo")["storage"]["found"]


def _with_field(definition: dict[str, Any], name: str) -> list[dict[str, Any]]:
    versions = copy.deepcopy(definition["spec"]["versions"])
    versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][name] = {"type": "string"}
    return versions
