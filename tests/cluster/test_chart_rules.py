"""What a real API server makes of the chart's rules: the operator works with exactly its roles, Jobs with theirs, and the policy refuses with a reason.

The chart is installed by a real helm, CRDs included; machines, KubeRay and Ray are played (`server_world`), so no pod runs and no box is needed.
"""

import gzip
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import lone_api_server, tool
from box.binaries import MissingToolError
from box.folders import REPOSITORY
from box.helm import Helm
from box.kubectl import Kubectl, KubectlError
from box.waiting import until
from server_world import RAY_CRD, ServerApi

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))

from operator_process import OperatorProcess
from played_world import PlayedWorld, training_run

from samite.engines.kuberay.api import CRD, EVENT, FIELD_MANAGER, SECRET, TRAINING_RUN, ForbiddenApiError
from samite.engines.kuberay.api_client import RealApi, connect
from samite.engines.kuberay.client import ClusterEngine
from samite.lifecycle import RequestKind
from samite_operators.install.release import Release
from samite_operators.install.runtimes import apply_runtimes
from samite_operators.install.selftest import self_test
from samite_operators.install.upgrade import check_upgrade

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]
CHART = REPOSITORY / "helm" / "samite"
DEFINITIONS = [f"{plural}.samite.dev" for plural in ("clustertrainingruntimes", "nodeblames", "trainingruns", "trainingruntimes")]
HOME, TEAM = "samite-system", "team-a"
NAMED = "team-keys"
VALUES = [
    f"--namespace={HOME}",
    f"--set=scope.namespaces={{{TEAM}}}",
    f"--set=storage.secretNames={{{NAMED}}}",
    "--set=limits.maxWorkers=8",
    "--set=limits.maxRunsPerNamespace=0",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """An API server with KubeRay's definition and the chart; KubeRay, controllers and nodes are missing."""
    try:
        with lone_api_server(tmp_path_factory.mktemp("api-server")) as kubectl:
            definition = yaml.load(gzip.decompress(RAY_CRD.read_bytes()), Loader=yaml.CSafeLoader)
            connect(kubeconfig=str(kubectl.kubeconfig)).apply(CRD, "", definition)
            for name in (HOME, TEAM, "team-b"):
                kubectl("create", "namespace", name)
            helm(kubectl, tmp_path_factory.mktemp("helm"))("install", "samite", str(CHART), "--no-hooks", *VALUES)
            kubectl("create", "rolebinding", "alice", f"--namespace={TEAM}", "--clusterrole=samite-editor", "--user=alice")
            kubectl("create", "rolebinding", "bob", f"--namespace={TEAM}", "--clusterrole=samite-approver", "--user=bob")
            yield kubectl
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def team(server: Kubectl) -> Kubectl:
    """The served namespace, once the policy is in force. Alice may submit there, bob may approve."""
    team = server.within(TEAM)
    until(lambda: "at most 8 nodes" in refusal(team, run_document("probe", nodes={"spares": 100})), "the policy to be in force", limit_s=60)
    return team


def helm(kubectl: Kubectl, home: Path) -> Helm:
    return Helm(tool("helm"), kubectl.kubeconfig, home)


def account(kubectl: Kubectl, name: str, folder: Path) -> Path:
    """A kubeconfig that is the service account `name` of the release's namespace."""
    document = json.loads(Path(kubectl.kubeconfig).read_text())
    document["users"][0]["user"] = {"token": kubectl("create", "token", name, "-n", HOME).strip()}
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document))
    return file


def release_folder(kubectl: Kubectl, folder: Path, name: str) -> Path:
    """What the chart puts before one of its Jobs, as files."""
    rendered = helm(kubectl, folder / "home")("template", "samite", str(CHART), *VALUES)
    documents = [item for item in yaml.load_all(rendered, Loader=yaml.CSafeLoader) if item]
    (data,) = [item["data"] for item in documents if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name]
    place = folder / name
    place.mkdir()
    for file, text in data.items():
        (place / file).write_text(text)
    return place


def test_the_operator_trains_recovers_and_clears_away_with_exactly_the_chart_s_roles(server: Kubectl, tmp_path: Path):
    """Any request that is refused for want of a right shows in its log, and fails this."""
    api = connect(kubeconfig=str(server.kubeconfig), timeout_s=30)
    (tmp_path / "checkpoints").mkdir()
    log = tmp_path / "operator.log"
    settings = {
        "SAMITE_NAMESPACES": TEAM,
        "SAMITE_ORPHAN_SECONDS": "2",
        "SAMITE_ORPHAN_GRACE_SECONDS": "2",
        "SAMITE_RESYNC_SECONDS": "5",
        "SAMITE_LEASE_SECONDS": "60",
    }
    with (
        PlayedWorld(ServerApi(api), tmp_path / "checkpoints", tick_s=0.25) as world,
        OperatorProcess(account(server, "samite-operator", tmp_path), log, played_ray=world.dashboard_url, **settings) as operator,
    ):
        for machine in world.kuberay.machines.values():
            machine.slots = 1
        operator.wait_ready()
        api.create(TRAINING_RUN, TEAM, training_run("demo", TEAM, uri=f"{world.store_uri}/demo", steps=150, nodes={"spares": 1}))
        until(lambda: world.training.jobs["demo-s00-a1"].step > 55 if world.running() else False, "a checkpoint", limit_s=90)
        with world.lock:
            world.kuberay.cut_power(world.training.jobs["demo-s00-a1"].ranks[1]["spec"]["nodeName"])
        until(lambda: phase(api) == "Succeeded", "the end of the run", limit_s=120)
        api.delete(TRAINING_RUN, TEAM, "demo")
        until(lambda: api.list(TRAINING_RUN, TEAM).items == [], "the run to be cleared away", limit_s=60)
        time.sleep(3.0)  # one sweep for orphans more
        assert "OperatorPermissionMissing" not in {item["reason"] for item in api.list(EVENT, TEAM).items}
        assert operator.terminate() == 0
    told = log.read_text()
    assert re.findall(r".*(?:forbidden|Forbidden|\b403\b).*", told) == []


def phase(api: RealApi) -> str:
    return str((api.get(TRAINING_RUN, TEAM, "demo").get("status") or {}).get("phase", ""))


def test_as_the_operator_the_release_s_own_test_finds_every_right_and_none_too_many(server: Kubectl, tmp_path: Path):
    release = Release.read(release_folder(server, tmp_path, "samite-test"))
    findings = self_test(connect(kubeconfig=str(account(server, "samite-operator", tmp_path)), timeout_s=30), release)
    assert findings.problems == []
    assert len(release.rights) > 40


def test_the_release_s_own_test_sees_a_right_that_was_taken_away(server: Kubectl, tmp_path: Path):
    release = Release.read(release_folder(server, tmp_path, "samite-test"))
    role = server.within(TEAM).get("role", "samite-operator")
    fewer = [rule for rule in role["rules"] if rule["resources"] != ["pods"]]
    server.within(TEAM)("patch", "role", "samite-operator", "--type=merge", "-p", json.dumps({"rules": fewer}))
    try:
        api = connect(kubeconfig=str(account(server, "samite-operator", tmp_path)), timeout_s=30)
        until(lambda: len(self_test(api, release).problems) == 4, "the authorizer to see the change", limit_s=20)
        assert all(f"pods in {TEAM}" in problem for problem in self_test(api, release).problems)
    finally:
        server.within(TEAM)("patch", "role", "samite-operator", "--type=merge", "-p", json.dumps({"rules": role["rules"]}))


def test_as_the_operator_the_check_before_an_upgrade_sees_who_else_manages_a_definition(server: Kubectl, tmp_path: Path):
    release = Release.read(release_folder(server, tmp_path, "samite-check"))
    api = connect(kubeconfig=str(account(server, "samite-operator", tmp_path)), timeout_s=30)
    assert check_upgrade(api, release).problems == []
    administrator = connect(kubeconfig=str(server.kubeconfig), timeout_s=30)
    bare = {"apiVersion": CRD.api_version, "kind": CRD.kind, "metadata": {"name": "nodeblames.samite.dev"}}
    administrator.apply(CRD, "", {**bare, "spec": {"conversion": {"strategy": "None"}}})
    (problem,) = check_upgrade(api, release).problems
    assert problem.startswith(f"nodeblames.samite.dev is managed by {FIELD_MANAGER} as well as by the chart")
    administrator.apply(CRD, "", bare)
    assert check_upgrade(api, release).problems == []


def test_the_runtimes_job_applies_with_its_own_rights_and_a_second_time_changes_nothing(server: Kubectl, tmp_path: Path):
    home = helm(server, tmp_path / "helm")
    rendered = home("template", "samite", str(CHART), *VALUES, "--show-only=templates/runtimes/apply.yaml")
    documents = [item for item in yaml.safe_load_all(rendered) if item and item["kind"] != "Job"]
    server.apply(*documents)
    folder = release_folder(server, tmp_path, "samite-runtimes")
    api = connect(kubeconfig=str(account(server, "samite-runtimes", tmp_path)))
    assert apply_runtimes(api, folder) == ["default", "gpu-generic", "gpu-h100-rdma"]
    before = {item["metadata"]["name"]: item["metadata"]["generation"] for item in server.items("clustertrainingruntimes")}
    apply_runtimes(api, folder)
    assert {item["metadata"]["name"]: item["metadata"]["generation"] for item in server.items("clustertrainingruntimes")} == before


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("list", "secrets"),
        ("watch", "secrets"),
        ("get", "secrets/storage-keys"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("escalate", "roles"),
        ("bind", "roles"),
        ("create", "trainingruns"),
        ("list", "pods --namespace=team-b"),
        ("delete", "leases --namespace=kube-system"),
    ],
)
def test_the_operator_may_not(server: Kubectl, verb: str, what: str):
    words = what.split()
    place = [] if len(words) > 1 else [f"--namespace={TEAM}"]
    answer = server("auth", "can-i", verb, *words, *place, f"--as=system:serviceaccount:{HOME}:samite-operator", check=False)
    assert answer.strip().endswith("no")


def test_the_operator_reads_the_secret_that_it_was_named_and_no_other(server: Kubectl, tmp_path: Path):
    for namespace, name in ((TEAM, NAMED), (TEAM, "other-keys"), ("team-b", NAMED)):
        server.within(namespace)("create", "secret", "generic", name, "--from-literal=AWS_ACCESS_KEY_ID=a")
    operator = connect(kubeconfig=str(account(server, "samite-operator", tmp_path)), timeout_s=30)
    assert operator.get(SECRET, TEAM, NAMED)["metadata"]["name"] == NAMED
    for namespace, name in ((TEAM, "other-keys"), ("team-b", NAMED), (HOME, "samite-token-key"), (HOME, NAMED)):
        with pytest.raises(ForbiddenApiError, match="secrets"):
            operator.get(SECRET, namespace, name)
    for namespace in (TEAM, HOME, ""):
        with pytest.raises(ForbiddenApiError, match="cannot list"):
            operator.list(SECRET, namespace)


def test_the_operator_may_make_the_workers_role_and_no_wider_one(team: Kubectl):
    def role(name: str, verbs: list[str], group: str, resource: str) -> dict[str, Any]:
        rule = {"apiGroups": [group], "resources": [resource], "resourceNames": ["demo-heartbeat"], "verbs": verbs}
        return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule]}

    operator = f"--as=system:serviceaccount:{HOME}:samite-operator"
    create(team, role("narrow", ["get", "patch"], "coordination.k8s.io", "leases"), "--dry-run=server", operator)
    with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
        create(team, role("wide", ["get"], "", "secrets"), "--dry-run=server", operator)


@pytest.mark.parametrize("name", ["default", "cluster", "kueue", "minimal", "airgapped"])
def test_the_api_server_accepts_every_object_of_the_samples(server: Kubectl, name: str, tmp_path: Path):
    """Strictly: an unknown field is an error."""
    rendered = helm(server, tmp_path)("template", "sample", str(CHART), f"--namespace={HOME}", f"--values={CHART}/ci/{name}-values.yaml")
    server("apply", "--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-", stdin=rendered)


def test_the_release_as_helm_stored_it_is_under_800_kb(server: Kubectl):
    stored = server.within(HOME).items("secrets", "--field-selector=type=helm.sh/release.v1")
    assert stored
    sizes = [len(item["data"]["release"]) for item in stored]
    print(f"release: {max(sizes)} bytes of {1 << 20} that a Secret may hold")
    assert max(sizes) < 800_000


def test_too_many_nodes_are_refused(team: Kubectl):
    stage = run_document("x")["spec"]["stages"][0] | {"workers": {"min": 9, "max": 9}, "batch": {"tokens": 4608}}
    assert "at most 8 nodes are allowed here" in refusal(team, run_document("wide", stages=[stage]))


def test_too_large_a_share_of_excluded_nodes_is_refused(team: Kubectl):
    assert "at most 0.02 is allowed here" in refusal(team, run_document("cordon", nodes={"maxCordonFraction": 0.4}))


def test_a_submitter_who_is_somebody_else_is_refused(team: Kubectl):
    document = run_document("forged")
    document["metadata"]["annotations"] = {"samite.dev/submitted-by": "carol"}
    assert "must be you, alice, found carol" in refusal(team, document, "--as=alice")


def test_a_run_with_its_approval_already_in_it_is_refused(team: Kubectl):
    document = run_document("eager", **approval("alice")["spec"])
    assert "a run is submitted without approvals" in refusal(team, document, "--as=alice")


def test_approvals_come_from_somebody_else_and_change_nothing_else(team: Kubectl):
    create(team, run_document("approved"), "--as=alice")
    assert team.get("trainingrun", "approved")["metadata"]["annotations"]["samite.dev/submitted-by"] == "alice", "written by the API server"
    assert "needs the verb approve" in refused_patch(team, "alice", approval("alice"))
    assert "must be you, bob" in refused_patch(team, "bob", approval("alice"))
    assert "only spec.approvals may be changed" in refused_patch(team, "bob", {"spec": {"suspend": False}})
    assert "cannot change" in refused_patch(team, "alice", {"metadata": {"annotations": {"samite.dev/submitted-by": "bob"}}})
    request = {"metadata": {"annotations": {"samite.dev/request-1": '{"verb": "approve", "argument": "pretrain"}'}}}
    assert "needs the verb approve" in refused_patch(team, "alice", request)
    patch(team, "bob", approval("bob"))
    assert team.get("trainingrun", "approved")["spec"]["approvals"][0]["by"] == "bob"


def test_the_cli_approves_under_the_name_that_the_api_server_knows(server: Kubectl, team: Kubectl, tmp_path: Path):
    create(team, run_document("gated"), "--as=alice")
    server("create", "serviceaccount", "approver", f"--namespace={HOME}")
    team("create", "rolebinding", "approver", "--clusterrole=samite-approver", f"--serviceaccount={HOME}:approver")
    engine = ClusterEngine.connect(kubeconfig=str(account(server, "approver", tmp_path)), namespace=TEAM)
    engine.ask(engine.find("gated"), RequestKind.APPROVE, argument="pretrain", by="root")
    assert team.get("trainingrun", "gated")["spec"]["approvals"] == [{"stage": "pretrain", "by": f"system:serviceaccount:{HOME}:approver"}]


def test_a_run_that_is_beyond_a_limit_that_was_lowered_can_still_be_suspended_and_deleted(server: Kubectl, team: Kubectl, tmp_path: Path):
    create(team, run_document("old", nodes={"spares": 7}, suspend=False))
    upgrade = helm(server, tmp_path)
    upgrade("upgrade", "samite", str(CHART), "--no-hooks", *VALUES, "--set=limits.maxWorkers=2")
    try:
        until(lambda: "at most 2 nodes" in refusal(team, run_document("new", nodes={"spares": 7})), "the lower limit", limit_s=60)
        team("patch", "trainingrun", "old", "--type=merge", "-p", '{"spec": {"suspend": true}}', "--as=alice")
        team("delete", "trainingrun", "old", "--as=alice")
    finally:
        upgrade("upgrade", "samite", str(CHART), "--no-hooks", *VALUES)


def kept(server: Kubectl) -> dict[str, str]:
    """What must outlive upgrades and the release itself."""
    found = {item["metadata"]["name"]: item["metadata"]["uid"] for item in server.within(TEAM).items("trainingruns")}
    found |= {name: server.get("crd", name)["metadata"]["uid"] for name in DEFINITIONS}
    return found | {"key": server.within(HOME).get("secret", "samite-token-key")["data"]["key"]}


def test_definitions_runs_and_the_key_outlive_upgrade_uninstall_and_a_second_install(server: Kubectl, team: Kubectl, tmp_path: Path):
    release = helm(server, tmp_path)
    create(team, run_document("survivor"))
    before = kept(server)
    assert len(before) > len(DEFINITIONS) + 1
    release("upgrade", "samite", str(CHART), "--no-hooks", *VALUES, "--set=operator.turnSeconds=1")
    assert kept(server) == before
    release("uninstall", "samite", f"--namespace={HOME}", "--no-hooks")
    assert kept(server) == before
    kinds = "clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,mutatingadmissionpolicies,deployments,services"
    left = server("get", kinds, "--all-namespaces", "-l", "app.kubernetes.io/instance=samite,helm.sh/chart", "-o", "name").split()
    assert [name for name in left if "runtimes" not in name] == []
    release("install", "samite", str(CHART), "--no-hooks", *VALUES)
    assert kept(server) == before


def run_document(name: str, **spec: Any) -> dict[str, Any]:
    """A suspended run of one node."""
    stage = {"name": "pretrain", "contextLength": 512, "batch": {"tokens": 4096}, "budget": {"steps": 60}}
    defaults = {"engine": "RayCluster", "suspend": True, "stages": [stage], "checkpoint": {"uri": "s3://bucket/prefix"}}
    return {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": name}, "spec": {**defaults, **spec}}


def create(kubectl: Kubectl, document: dict[str, Any], *words: str) -> str:
    return kubectl("create", "-f", "-", *words, stdin=json.dumps(document))


def refusal(team: Kubectl, document: dict[str, Any], *words: str) -> str:
    """What the API server says against creating `document`; empty if nothing."""
    try:
        create(team, document, "--dry-run=server", *words)
    except KubectlError as error:
        return str(error)
    return ""


def approval(by: str) -> dict[str, Any]:
    return {"spec": {"approvals": [{"stage": "pretrain", "by": by, "reason": "looks right"}]}}


def patch(team: Kubectl, who: str, change: dict[str, Any]) -> str:
    return team("patch", "trainingrun", "approved", "--type=merge", "-p", json.dumps(change), f"--as={who}")


def refused_patch(team: Kubectl, who: str, change: dict[str, Any]) -> str:
    with pytest.raises(KubectlError) as refused:
        patch(team, who, change)
    return str(refused.value)
