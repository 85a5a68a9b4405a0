"""The chart in a real cluster: installed by a real helm into namespaces that only take restricted pods, tested, upgraded, removed.

Its rules are tested one by one in test_chart_rules.py. Here the operator runs as a pod from the image that its Dockerfile builds; an answer 403
to it fails the test.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from box.cluster import Cluster
from box.folders import REPOSITORY
from box.helm import Helm, HelmError
from box.kubectl import Kubectl, KubectlError
from box.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CHART = REPOSITORY / "helm" / "samite"
CRDS = [f"{plural}.samite.dev" for plural in ("clustertrainingruntimes", "nodeblames", "trainingruns", "trainingruntimes")]
NAMED = "team-keys"
SMALL = [
    f"--set=storage.secretNames={{{NAMED}}}",
    '--set-json=operator.resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}',
    "--set=limits.maxWorkers=8",
]


@dataclass(frozen=True)
class Release:
    """An installed release: where the operator is, and where it serves."""

    home: str
    team: str
    kubectl: Kubectl
    helm: Helm

    def __call__(self, verb: str, *words: str, **options: Any) -> str:
        return self.helm(verb, "samite", *words, f"--namespace={self.home}", **options)

    def upgrade(self, *words: str) -> str:
        return self("upgrade", str(CHART), "--wait", "--timeout=120s", f"--set=scope.namespaces={{{self.team}}}", *SMALL, *words)

    @property
    def account(self) -> str:
        return f"system:serviceaccount:{self.home}:samite-operator"

    def operator(self) -> dict[str, Any]:
        """The operator's pod that is not on its way out."""
        pods = self.kubectl.within(self.home).items("pods", "-l", "app.kubernetes.io/component=operator")
        (pod,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return pod


@pytest.fixture(scope="module")
def release(kubectl: Kubectl, helm: Helm, kuberay: str, operator_image: str) -> Iterator[Release]:
    """The chart, installed into a namespace of its own and serving one other; both enforce the restricted standard."""
    mark = secrets.token_hex(3)
    installed = Release(f"test-{mark}-system", f"test-{mark}-team", kubectl, helm)
    for name in (installed.home, installed.team):
        kubectl("create", "namespace", name)
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
    helm(
        "install", "samite", str(CHART), f"--namespace={installed.home}", "--wait", "--timeout=180s",
        f"--set=scope.namespaces={{{installed.team}}}", *SMALL, limit_s=240,
    )  # fmt: skip
    yield installed
    installed("uninstall", "--ignore-not-found", "--wait")
    for item in kubectl.within(installed.team).items("trainingruns"):
        release_finalizer(kubectl.within(installed.team), item["metadata"]["name"])
    kubectl("delete", "namespace", installed.home, installed.team, "--wait=false")
    kubectl("delete", "clustertrainingruntimes", "--all")
    kubectl("delete", "crd", *CRDS, "--wait=false")


@pytest.fixture(scope="module")
def looked_after(release: Release) -> str:
    """A run that the operator knows."""
    create(release.kubectl.within(release.team), run_document("looked-after"))
    return "looked-after"


def run_document(name: str, **spec: Any) -> dict[str, Any]:
    """A suspended run: it is looked after, and starts nothing."""
    stage = {"name": "pretrain", "contextLength": 512, "batch": {"tokens": 4096}, "budget": {"steps": 60}}
    defaults = {"engine": "RayCluster", "suspend": True, "stages": [stage], "checkpoint": {"uri": "s3://bucket/prefix"}}
    return {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": name}, "spec": {**defaults, **spec}}


def create(kubectl: Kubectl, document: dict[str, Any], *words: str) -> str:
    return kubectl("create", "-f", "-", *words, stdin=json.dumps(document))


def release_finalizer(kubectl: Kubectl, name: str) -> None:
    kubectl("patch", "trainingrun", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}', check=False)


def test_the_operator_runs_from_its_own_image_under_the_chart_s_account(release: Release):
    pod = release.operator()
    assert pod["spec"]["serviceAccountName"] == "samite-operator"
    assert pod["spec"]["containers"][0]["image"].startswith("ghcr.io/samite-dev/operator:")
    status = pod["status"]["containerStatuses"][0]
    assert status["ready"]
    assert status["restartCount"] == 0
    where = release.kubectl.within(release.home)(
        "exec", pod["metadata"]["name"], "--", "python", "-c", "import samite_operators as m; print(m.__file__)"
    )
    assert where.startswith("/opt/samite/lib/")


def test_helm_test_finds_every_right_and_none_too_many(release: Release):
    assert "Succeeded" in release("test", "--timeout=120s")


def test_the_runtimes_are_there_when_the_install_has_ended(release: Release):
    names = {item["metadata"]["name"] for item in release.kubectl.items("clustertrainingruntimes")}
    assert {"default", "gpu-generic", "gpu-h100-rdma"} <= names


def test_jobs_of_the_install_leave_nothing(release: Release):
    inside = release.kubectl.within(release.home)
    assert inside.items("jobs") == []
    assert [item["metadata"]["name"] for item in inside.items("serviceaccounts") if "samite" in item["metadata"]["name"]] == [
        "samite-operator"
    ]
    assert "runtimes" not in release.kubectl("get", "clusterroles", "-o", "name")


def test_a_run_is_looked_after_without_a_refused_request(release: Release, cluster: Cluster, looked_after: str):
    team = release.kubectl.within(release.team)
    until(lambda: team.get("trainingrun", looked_after).get("status", {}).get("phase"), "a status", limit_s=60)
    refused = [
        (event["verb"], event["requestURI"], event["responseStatus"].get("message", ""))
        for event in cluster.audit()
        if event["user"].get("username") == release.account and event.get("responseStatus", {}).get("code") == 403
    ]
    assert refused == []


READ = """
import ssl, sys, urllib.error, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount/"
token, trust = open(account + "token").read(), ssl.create_default_context(cafile=account + "ca.crt")
for path in sys.argv[1:]:
    request = urllib.request.Request("https://kubernetes.default.svc/api/v1/" + path, headers={"Authorization": "Bearer " + token})
    try:
        print(urllib.request.urlopen(request, context=trust, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


def test_from_its_pod_the_operator_reads_the_secret_that_it_was_named_and_no_other(release: Release):
    for name in (NAMED, "other-keys"):
        release.kubectl.within(release.team)("create", "secret", "generic", name, "--from-literal=AWS_ACCESS_KEY_ID=a")
    team, home = f"namespaces/{release.team}/secrets", f"namespaces/{release.home}/secrets"
    paths = (f"{team}/{NAMED}", f"{team}/other-keys", team, f"{home}/samite-token-key", "secrets")
    pod = release.operator()["metadata"]["name"]
    said = release.kubectl.within(release.home)("exec", pod, "--", "python", "-c", READ, *paths)
    assert said.split() == ["200", "403", "403", "403", "403"]


def test_policies_have_no_warnings_of_the_type_checker(release: Release):
    (policy,) = release.kubectl.items("validatingadmissionpolicies", "-l", "app.kubernetes.io/name=samite")
    assert policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings", []) == []


def test_an_upgrade_keeps_definitions_runs_and_the_key_and_replaces_the_operator(release: Release, looked_after: str):
    def kept() -> dict[str, str]:
        team, home = release.kubectl.within(release.team), release.kubectl.within(release.home)
        found = {item["metadata"]["name"]: item["metadata"]["uid"] for item in team.items("trainingruns")}
        found |= {name: release.kubectl.get("crd", name)["metadata"]["uid"] for name in CRDS}
        return found | {"key": home.get("secret", "samite-token-key")["data"]["key"]}

    before, operator = kept(), release.operator()["metadata"]["uid"]
    assert len(before) > len(CRDS) + 1
    release.upgrade("--set=operator.turnSeconds=1")
    assert kept() == before
    assert release.operator()["metadata"]["uid"] != operator


def test_runs_beyond_the_quota_of_a_namespace_are_refused(release: Release, looked_after: str):
    """Until the controller manager has counted objects of the new kind, the quota refuses all of them: hence the wait."""
    team = release.kubectl.within(release.team)
    release.upgrade("--set=limits.maxRunsPerNamespace=2")
    until(lambda: team.get("resourcequota", "samite-runs")["status"]["used"], "the runs to be counted", limit_s=360)
    create(team, run_document("second"))
    with pytest.raises(KubectlError, match="exceeded quota"):
        create(team, run_document("third"))


def test_an_upgrade_that_does_not_fit_changes_nothing(release: Release):
    """Somebody else applied a definition: two managers would undo each other's work."""
    crd = release.kubectl.get("crd", CRDS[1])
    for field in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
        crd["metadata"].pop(field, None)
    crd.pop("status", None)
    revision = json.loads(release("status", "--output=json"))["version"]
    operator = release.operator()["metadata"]["uid"]
    release.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=somebody-else", "-f", "-", stdin=json.dumps(crd))
    try:
        with pytest.raises(HelmError, match="pre-upgrade"):
            release.upgrade("--set=operator.turnSeconds=3")
        log = release.kubectl.within(release.home)("logs", "job/samite-check", "--tail=20", check=False)
        assert "nodeblames.samite.dev is managed by somebody-else as well as by the chart" in log
        assert release.operator()["metadata"]["uid"] == operator
    finally:
        bare = {"apiVersion": crd["apiVersion"], "kind": crd["kind"], "metadata": {"name": CRDS[1]}}
        release.kubectl("apply", "--server-side", "--field-manager=somebody-else", "-f", "-", stdin=json.dumps(bare), check=False)
    assert json.loads(release("status", "--output=json"))["version"] == revision + 1
    release("rollback", str(revision), "--wait", "--timeout=120s")


def test_an_uninstall_keeps_definitions_and_runs_and_a_second_install_takes_them_over(release: Release, looked_after: str):
    team = release.kubectl.within(release.team)
    runs = {item["metadata"]["uid"] for item in team.items("trainingruns")}
    key = release.kubectl.within(release.home).get("secret", "samite-token-key")["data"]["key"]
    release("uninstall", "--wait")
    assert {item["metadata"]["uid"] for item in team.items("trainingruns")} == runs
    assert set(CRDS) <= {item["metadata"]["name"] for item in release.kubectl.items("crds")}
    left = release.kubectl(
        "get", "clusterroles,clusterrolebindings,validatingadmissionpolicies", "-l", "app.kubernetes.io/name=samite", "-o", "name"
    )
    assert left.split() == []
    release("install", str(CHART), "--wait", "--timeout=180s", f"--set=scope.namespaces={{{release.team}}}", *SMALL)
    assert release.kubectl.within(release.home).get("secret", "samite-token-key")["data"]["key"] == key
    assert {item["metadata"]["uid"] for item in team.items("trainingruns")} == runs
