"""The command line against a real API server: what the server itself decides, from strict fields to roles. No nodes: nothing here runs a pod."""

import contextlib
import copy
import gzip
import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from api_server import lone_api_server
from box.binaries import MissingToolError
from box.kubectl import Kubectl

from samite.cli.app import run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

HERE = Path(__file__).parent
SPEC = {
    "apiVersion": "samite.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "demo"},
    "spec": {
        "engine": "RayCluster",
        "checkpoint": {"uri": "s3://bucket/demo", "endpoint": "http://127.0.0.1:9", "insecure": True},
        "stages": [
            {
                "name": "pretrain",
                "kind": "Pretrain",
                "contextLength": 1024,
                "workers": {"min": 2, "max": 2},
                "batch": {"tokens": 8192, "microBatch": 1},
                "budget": {"steps": 60},
            }
        ],
    },
}
STATUS = {
    "phase": "Running",
    "reason": "Training",
    "currentStage": "pretrain",
    "stageIndex": 0,
    "attempt": 1,
    "submissionId": "demo-s00-a1",
    "clusterId": "demo-s00-1a2b3",
    "progress": {"step": 41, "tokens": 335872, "percent": 68.3},
    "lastCheckpointStep": 40,
}


class Place:
    """A namespace of the server, and `samite` as somebody types it there."""

    def __init__(self, kubectl: Kubectl, folder: Path, namespace: str) -> None:
        self.kubectl = kubectl.within(namespace)
        self.namespace = namespace
        self.folder = folder
        self.kubeconfig = kubectl.kubeconfig
        self.spec = folder / f"{namespace}.json"
        self.spec.write_text(json.dumps(SPEC), encoding="utf-8")

    def samite(self, *words: str, code: int = 0) -> SimpleNamespace:
        flags = ["--kubeconfig", str(self.kubeconfig), "--context", "lone", "-n", self.namespace]
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as shell, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            shell.setenv("SAMITE_HOME", str(self.folder / "home"))
            shell.setenv("SAMITE_NO_INPUT", "1")
            found = run([*flags, *words])
        said = SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())
        assert found == code, f"samite {' '.join(words)}: exit {found}, wanted {code}\n{said.stdout}{said.stderr}"
        assert "Traceback" not in said.stderr
        return said

    def stored(self, name: str = "demo") -> dict[str, Any]:
        return self.kubectl.get("trun", name)

    def set_status(self, status: dict[str, Any], name: str = "demo") -> None:
        self.kubectl("patch", "trun", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """An API server with this version's definitions and KubeRay's."""
    folder = tmp_path_factory.mktemp("lone")
    try:
        with lone_api_server(folder) as kubectl:
            Place(kubectl, folder, "default").samite("crds", "apply")
            packed = HERE / "kuberay-crds-1.7.0" / "ray.io_rayclusters.yaml.gz"
            kubectl("apply", "--server-side", "-f", "-", stdin=gzip.decompress(packed.read_bytes()).decode())
            yield kubectl
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture
def place(server: Kubectl, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """A fresh namespace."""
    name = f"test-{abs(hash(request.node.name)) % 10**8}"
    server("create", "namespace", name)
    return Place(server, tmp_path, name)


@pytest.fixture
def stranger(place: Place) -> Callable[..., Place]:
    """The same place as a service account of the given name, which may do nothing until it is bound."""

    def of(name: str) -> Place:
        place.kubectl("create", "serviceaccount", name)
        token = place.kubectl("create", "token", name).strip()
        config = json.loads(Path(place.kubeconfig).read_text(encoding="utf-8"))
        config["users"][0]["user"] = {"token": token}
        file = place.folder / f"{name}.kubeconfig"
        file.write_text(json.dumps(config), encoding="utf-8")
        other = Place(place.kubectl, place.folder, place.namespace)
        other.kubeconfig = file
        return other

    return of


def test_a_run_is_submitted_once_and_found_again(place: Place):
    assert place.samite("submit", "-f", str(place.spec)).stdout == "run demo submitted\n"
    assert place.samite("submit", "-f", str(place.spec)).stdout == "run demo was already submitted\n"
    assert "with another spec (Pending)" in place.samite("submit", "-f", str(place.spec), "--set", "spec.seed=3", code=6).stderr
    assert "no operator has looked yet" in place.samite("status", "demo").stdout
    assert place.samite("list", "-o", "name").stdout == "demo\n"
    managers = {entry["manager"] for entry in place.kubectl.get("trun", "demo", "--show-managed-fields")["metadata"]["managedFields"]}
    assert managers == {"samite-cli"}


def test_what_the_server_accepts_in_a_dry_run_is_not_kept(place: Place):
    done = place.samite("submit", "-f", str(place.spec), "--dry-run=server", "-o", "json")
    assert json.loads(done.stdout)["spec"]["stages"][0]["name"] == "pretrain"
    assert place.kubectl.items("trun") == []


def test_a_run_that_kubectl_applied_is_the_same_run(place: Place):
    place.kubectl.apply(SPEC)
    assert place.samite("submit", "-f", str(place.spec)).stdout == "run demo was already submitted\n"


def test_the_screen_is_made_of_the_stored_status(place: Place):
    place.samite("submit", "-f", str(place.spec))
    place.set_status({**STATUS, "memory": "b3BhcXVl"})
    lines = place.samite("status", "demo").stdout.splitlines()
    assert lines[0] == "demo   Running   stage 1/1 pretrain (1024 tokens)   step 41/60   68.3 %"
    assert "saved    step 40 committed: " in lines
    assert "memory" not in json.loads(place.samite("status", "demo", "-o", "json").stdout)
    assert place.samite("list").stdout.splitlines()[1].split()[:5] == ["demo", "Running", "pretrain", "41", "68.3%"]


def test_wishes_arrive_in_the_stored_object_however_fast_they_come(place: Place):
    place.samite("submit", "-f", str(place.spec))
    place.set_status(STATUS)
    for verb, wanted in (("suspend", True), ("resume", False), ("suspend", True), ("resume", False)):
        place.samite(verb, "demo")
        assert place.stored()["spec"]["suspend"] is wanted
    place.samite("restart", "demo", "--level", "L3", "--yes")
    place.set_status({"phase": "Held"})
    place.samite("resume", "demo")
    place.samite("cancel", "demo", "--yes")
    annotations = place.stored()["metadata"]["annotations"]
    assert annotations.pop("samite.dev/cancel") == "true"
    assert annotations.pop("samite.dev/submitted-by") == "lone-admin", "as the API server knows us"
    assert sorted(json.loads(text)["verb"] for text in annotations.values()) == ["restart", "resume"]


def test_events_of_the_run_and_of_its_pods_are_shown_and_nobody_elses(place: Place):
    place.samite("submit", "-f", str(place.spec))
    uid = place.stored()["metadata"]["uid"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    subjects = (("TrainingRun", "demo", uid, "Normal"), ("Pod", "demo-s00-1a2b3-w", "1", "Warning"), ("Pod", "stranger", "2", "Warning"))
    place.kubectl.apply(
        *(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"event-{number}", "namespace": place.namespace},
                "involvedObject": {"kind": kind, "name": name, "uid": of, "namespace": place.namespace},
                "reason": f"Reason{number}",
                "message": "text",
                "type": severity,
                "firstTimestamp": now,
                "lastTimestamp": now,
            }
            for number, (kind, name, of, severity) in enumerate(subjects)
        )
    )
    done = place.samite("events", "demo")
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["kubernetes.Reason0", "kubernetes.Reason1"]
    assert "the records in storage were not read" in done.stderr


def test_chaos_deletes_a_pod_without_grace_and_asks_ranks_through_the_lease(place: Place):
    place.samite("submit", "-f", str(place.spec))
    place.set_status(STATUS)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "demo-worker", "labels": {"samite.dev/run": "demo", "samite.dev/role": "worker"}},
        "spec": {"nodeName": "nowhere", "containers": [{"name": "ray-worker", "image": "x"}], "terminationGracePeriodSeconds": 300},
    }
    place.kubectl.apply(pod)
    place.kubectl("patch", "pod", "demo-worker", "--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Running"}}')
    assert "it was on node nowhere" in place.samite("chaos", "kill-node", "demo").stderr
    assert place.kubectl.items("pods") == []
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "demo-heartbeat"}, "spec": {}}
    place.kubectl.apply(lease)
    place.samite("chaos", "nan", "demo", "--rank", "1")
    control = json.loads(place.kubectl.get("lease", "demo-heartbeat")["metadata"]["annotations"]["samite.dev/control"])
    assert [(fault["kind"], fault["rank"]) for fault in control["faults.json"]["faults"]] == [("nan", 1)]
    reasons = [event["reason"] for event in place.kubectl.items("events")]
    assert reasons.count("ChaosInjected") == 2


def test_a_deleted_run_is_gone_and_a_finalizer_without_an_operator_is_taken_away_on_request(place: Place):
    place.samite("submit", "-f", str(place.spec))
    place.kubectl("patch", "trun", "demo", "--type=merge", "-p", '{"metadata": {"finalizers": ["samite.dev/finalizer"]}}')
    place.set_status({"phase": "Succeeded"})
    place.samite("delete", "demo", "--yes")
    assert place.stored()["metadata"]["deletionTimestamp"]
    assert "is being deleted" in place.samite("submit", "-f", str(place.spec), code=6).stderr
    found = place.samite("doctor", code=13).stdout
    assert "deletion is stuck: demo" in found
    place.samite("doctor", "--fix-finalizers", "--yes")
    assert place.kubectl.items("trun") == []


def test_a_stranger_reads_who_may_not_do_what_and_which_role_would_help(place: Place, stranger: Callable[..., Place]):
    alice = stranger("alice")
    user = f"system:serviceaccount:{place.namespace}:alice"
    done = alice.samite("list", code=4)
    assert f"{user} may not list trainingruns.samite.dev in namespace {place.namespace} (context lone)" in done.stderr
    assert f"{user} may not create trainingruns.samite.dev" in alice.samite("submit", "-f", str(place.spec), code=4).stderr
    found = {item["name"]: item for item in json.loads(alice.samite("doctor", "-o", "json", code=13).stdout)["items"]}
    assert found["may look at runs"]["level"] == "FAIL"
    assert found["may break runs (chaos)"]["level"] == "warn"
    assert found["crds"]["level"] == "unknown"


def test_a_login_that_is_not_known_is_said_to_be_none(place: Place):
    config = json.loads(Path(place.kubeconfig).read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": "wrong"}
    place.kubeconfig = place.folder / "wrong"
    place.kubeconfig.write_text(json.dumps(config), encoding="utf-8")
    assert "does not accept the credentials of user 'lone'" in place.samite("list", code=4).stderr


def test_a_certificate_of_another_server_is_not_trusted_and_said_so(place: Place):
    config = json.loads(Path(place.kubeconfig).read_text(encoding="utf-8"))
    del config["clusters"][0]["cluster"]["certificate-authority"]
    place.kubeconfig = place.folder / "untrusted"
    place.kubeconfig.write_text(json.dumps(config), encoding="utf-8")
    assert "its certificate is not trusted" in place.samite("list", code=11).stderr


def test_the_doctor_of_a_whole_cluster(place: Place):
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "samite-operator", "namespace": place.namespace},
        "spec": {
            "holderIdentity": "operator-1",
            "leaseDurationSeconds": 3600,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
    place.kubectl.apply(lease)
    lines = [" ".join(line.split()) for line in place.samite("doctor").stdout.splitlines()]
    assert lines[1].startswith("api server ok Kubernetes v1.37.")
    assert "crd ok trainingruns.samite.dev is of this version" in lines
    assert "kuberay ok KubeRay 1.6 or newer by the fields of its CRD" in lines
    assert any(line.startswith("operator ok operator-1 renewed") for line in lines)
    assert lines[-1] == "finalizers ok no deletion is stuck"


def test_a_definition_of_an_older_version_is_noticed_before_anything_is_lost(place: Place):
    old = copy.deepcopy(place.kubectl.get("crd", "trainingruns.samite.dev"))
    for key in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
        old["metadata"].pop(key, None)
    old.pop("status", None)
    del old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["telemetry"]
    place.kubectl("replace", "-f", "-", stdin=json.dumps(old))
    try:
        done = place.samite("submit", "-f", str(place.spec), code=3)
        assert "spec.telemetry" in done.stderr
        assert "samite crds diff" in done.stderr
        assert place.kubectl.items("trun") == []
        assert "it drops v1alpha1:spec.telemetry" in place.samite("doctor", code=13).stdout
    finally:
        place.samite("crds", "apply", "--force-conflicts")
    place.samite("submit", "-f", str(place.spec))


def test_a_cluster_without_the_definitions_says_how_to_get_them(place: Place):
    place.kubectl("delete", "crd", "trainingruns.samite.dev")
    try:
        assert "samite crds apply --context lone" in place.samite("status", "demo", code=5).stderr
        assert "samite crds apply --context lone" in place.samite("submit", "-f", str(place.spec), code=5).stderr
    finally:
        place.samite("crds", "apply")
