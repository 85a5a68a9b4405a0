"""A worker's token against a real API server: it renews its own run's Lease and may do nothing else. Once with an API server alone, once from a pod."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import lone_api_server
from box.binaries import MissingToolError
from box.kubectl import Kubectl
from box.waiting import until

from samite.engines.kuberay.access import access_objects, heartbeat_lease, lease_for_submission
from samite.errors import ConflictError, NotAllowedError
from samite.spec.attempt import AttemptResult, Heartbeat
from samite.spec.lease import read_lease
from samite_workloads.bridge.api_server import ApiServer
from samite_workloads.bridge.control_files import ControlFiles
from samite_workloads.bridge.folder_facts import FolderFacts
from samite_workloads.bridge.lease import LeaseKeeper, NotMineError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

MINE = "demo-s00-a2"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/team/leases"
LEASE_FIELDS = ("--type=merge", "-p")


def run_object(name: str, namespace: str) -> dict[str, Any]:
    """As much of a TrainingRun as its access objects are made of."""
    return {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-of-{name}"},
        "spec": {"checkpoint": {"uri": "s3://bucket/prefix"}},
    }


def prepare(kubectl: Kubectl, name: str, submission: str) -> None:
    """What the operator makes for a run before it submits, with the engine's own builders."""
    assert kubectl.namespace is not None
    run = run_object(name, kubectl.namespace)
    objects = [document for _, document in access_objects(run)] + [heartbeat_lease(run)]
    for document in objects:
        del document["metadata"]["ownerReferences"]  # no such run exists: where there is a garbage collector, it would take them away
    kubectl.apply(*objects)
    operator_writes(kubectl, name, lease_for_submission(submission))


def operator_writes(kubectl: Kubectl, name: str, patch: dict[str, Any]) -> None:
    """A merge patch of the Lease."""
    kubectl("patch", "lease", f"{name}-heartbeat", *LEASE_FIELDS, json.dumps(patch))


def annotations(kubectl: Kubectl, name: str) -> dict[str, str]:
    """Of the run's Lease."""
    return dict(kubectl.get("lease", f"{name}-heartbeat")["metadata"].get("annotations") or {})


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl in namespace `team` of an API server without nodes, with two runs. Skipped, with the reason, where its binaries are missing."""
    if os.environ.get("SAMITE_TEST_KUBECONFIG"):
        pytest.skip("needs an API server of its own")
    try:
        with lone_api_server(tmp_path_factory.mktemp("api-server")) as kubectl:
            kubectl("create", "namespace", "team")
            inside = kubectl.within("team")
            prepare(inside, "demo", MINE)
            prepare(inside, "other", "other-s00-a1")
            yield inside
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture
def api(team: Kubectl, tmp_path: Path) -> Iterator[ApiServer]:
    """The API server as the worker pods of run `demo` reach it: token, CA and namespace in a folder."""
    account = tmp_path / "account"
    account.mkdir()
    config = json.loads(team.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    (account / "token").write_text(team("create", "token", "demo-worker", "--duration=10m").strip(), encoding="utf-8")
    (account / "ca.crt").write_text(Path(config["certificate-authority"]).read_text(encoding="utf-8"), encoding="utf-8")
    (account / "namespace").write_text("team", encoding="utf-8")
    server = ApiServer(config["server"], account=account)
    yield server
    server.close()


@pytest.fixture
def keeper(team: Kubectl, api: ApiServer, tmp_path: Path) -> LeaseKeeper:
    """The keeper of `demo`'s Lease, whose folder has one rank at step 7."""
    operator_writes(team, "demo", lease_for_submission(MINE))
    folder = tmp_path / "run"
    (folder / "heartbeats").mkdir(parents=True)
    beat(7).write(folder / "heartbeats" / "rank-0.json")
    return keeper_of(api, folder)


def keeper_of(api: ApiServer, folder: Path, fenced: list[str] | None = None) -> LeaseKeeper:
    """As the driver makes it."""
    return LeaseKeeper(
        api,
        name="demo-heartbeat",
        namespace=api.namespace,
        submission_id=MINE,
        run_uid="uid-of-demo",
        holder="demo-head",
        facts=FolderFacts(folder, MINE),
        control=ControlFiles(folder),
        on_fenced=(fenced if fenced is not None else []).append,
    )


def beat(step: int) -> Heartbeat:
    """Of rank 0, now."""
    return Heartbeat(
        rank=0, node="demo-worker-0", pid=7, submission_id=MINE, incarnation=0, step=step, tokens=70, phase="training",
        monotonic_s=time.monotonic(), time_unix_s=time.time(),
    )  # fmt: skip


def test_a_workers_token_renews_its_heartbeat_and_hears_the_operator(team: Kubectl, keeper: LeaseKeeper, tmp_path: Path):
    before = team.get("lease", "demo-heartbeat")["spec"].get("renewTime")
    keeper.renew()
    report = read_lease(annotations(team, "demo"), seen_at_s=1000.0)
    assert (report.submission_id, report.num_ranks, report.max_step) == (MINE, 1, 7)
    assert 995.0 < report.signs[0].heartbeat.monotonic_s <= 1000.0
    lease = team.get("lease", "demo-heartbeat")["spec"]
    assert (lease["holderIdentity"], lease["renewTime"] != before) == ("demo-head", True)

    operator_writes(team, "demo", {"metadata": {"annotations": {"samite.dev/control": '{"stop.json": {"request": "1"}}'}}})
    with pytest.raises(ConflictError):
        keeper.renew()
    keeper.renew()
    assert json.loads((tmp_path / "run/control/stop.json").read_text(encoding="utf-8")) == {"request": "1"}


def test_the_largest_report_fits_into_a_lease(team: Kubectl, api: ApiServer, tmp_path: Path):
    operator_writes(team, "demo", lease_for_submission(MINE))
    attempt = tmp_path / "large" / "attempts" / MINE
    (tmp_path / "large" / "heartbeats").mkdir(parents=True)
    (attempt / "failures").mkdir(parents=True)
    for rank in range(64):
        document = json.loads(beat(10**9).to_json()) | {
            "rank": rank,
            "node": f"demo-s00-abcde-workers-worker-{rank:05d}",
            "loss": 2.123456789012345,
        }
        (tmp_path / "large" / "heartbeats" / f"rank-{rank}.json").write_text(json.dumps(document), encoding="utf-8")
        failure = {"failure_class": "infra", "error_type": "PeerLostError", "message": "ü" * 9000, "traceback": "\n" * 9000, "rank": rank}
        (attempt / "failures" / f"incarnation-0-rank-{rank}.json").write_text(json.dumps(failure), encoding="utf-8")
    AttemptResult(outcome="failed", submission_id=MINE, step=1, tokens=1, failure={"message": "m" * 4000, "traceback": "t" * 90_000}).write(
        attempt / "result.json"
    )
    keeper_of(api, tmp_path / "large").renew()
    found = annotations(team, "demo")
    report = read_lease(found, seen_at_s=0.0)
    assert (len(report.signs), len(report.failures) > 3, report.result is not None) == (64, True, True)
    print(f"annotations of 64 ranks that all failed: {sum(map(len, found.values()))} bytes")


def test_a_newer_attempt_fences_the_older_one(team: Kubectl, api: ApiServer, keeper: LeaseKeeper, tmp_path: Path):
    fenced: list[str] = []
    older = keeper_of(api, tmp_path / "run", fenced)
    older.renew()
    operator_writes(team, "demo", lease_for_submission("demo-s00-a3"))
    with pytest.raises(ConflictError):
        older.renew()
    with pytest.raises(NotMineError):
        older.renew()
    assert fenced == ["attempt demo-s00-a3 has taken over"]
    assert "samite.dev/heartbeats" not in annotations(team, "demo")


FORBIDDEN = [
    ("GET", f"{LEASES}/other-heartbeat"),
    ("PATCH", f"{LEASES}/other-heartbeat"),
    ("GET", LEASES),
    ("POST", LEASES),
    ("DELETE", f"{LEASES}/demo-heartbeat"),
    ("PUT", f"{LEASES}/demo-heartbeat"),
    ("GET", "/apis/coordination.k8s.io/v1/leases"),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/demo-heartbeat"),
    ("GET", "/api/v1/namespaces/team/pods"),
    ("POST", "/api/v1/namespaces/team/pods"),
    ("GET", "/api/v1/namespaces/team/secrets"),
    ("GET", "/api/v1/namespaces/team/secrets/demo-ray-token"),
    ("GET", "/api/v1/namespaces/team/configmaps"),
    ("GET", "/api/v1/nodes"),
    ("POST", "/api/v1/namespaces/team/serviceaccounts/demo-worker/token"),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/namespaces/team/roles"),
    ("GET", "/apis/samite.dev/v1alpha1/namespaces/team/trainingruns"),
]


@pytest.mark.parametrize(("method", "path"), FORBIDDEN)
def test_a_workers_token_may_do_nothing_else(api: ApiServer, method: str, path: str):
    with pytest.raises(NotAllowedError, match="403"):
        api._call(method, path, None if method in ("GET", "DELETE") else b"{}")


def test_kubectl_lists_the_same_two_rights(team: Kubectl):
    listed = team("auth", "can-i", "--list", "--as=system:serviceaccount:team:demo-worker")
    of_leases = [line.split() for line in listed.splitlines() if "leases" in line]
    assert of_leases == [["leases.coordination.k8s.io", "[]", "[demo-heartbeat]", "[get", "patch]"]]


def test_an_api_server_that_refuses_says_what_is_missing(team: Kubectl, api: ApiServer, tmp_path: Path):
    team("delete", "rolebinding", "demo-worker")
    try:
        with pytest.raises(NotAllowedError, match="needs get and patch on its run's Lease"):
            until_refused(api)
    finally:
        prepare(team, "demo", MINE)


def until_refused(api: ApiServer, limit_s: float = 10.0) -> None:
    """The authorizer hears of a deleted binding a moment later."""
    ends_s = time.monotonic() + limit_s
    while time.monotonic() < ends_s:
        api.get(f"{LEASES}/demo-heartbeat")
        time.sleep(0.2)


PROGRAM = """
import json, sys
from pathlib import Path
from samite.errors import SamiteError
from samite_workloads.bridge.api_server import ApiServer
from samite_workloads.bridge.control_files import ControlFiles
from samite_workloads.bridge.folder_facts import FolderFacts
from samite_workloads.bridge.lease import LeaseKeeper

api = ApiServer.of_this_pod()
folder = Path("/tmp/run")
folder.mkdir()
keeper = LeaseKeeper(api, name="demo-heartbeat", namespace=api.namespace, submission_id="demo-s00-a2", run_uid="uid-of-demo", holder="pod",
                     facts=FolderFacts(folder, "demo-s00-a2"), control=ControlFiles(folder), on_fenced=print)
keeper.renew()
keeper.renew()
refused = []
for path in ("/api/v1/namespaces/%s/pods", "/api/v1/namespaces/%s/secrets", "/apis/coordination.k8s.io/v1/namespaces/%s/leases"):
    try:
        api.get(path % api.namespace)
    except SamiteError as error:
        refused.append(type(error).__name__)
print(json.dumps({"renewals": keeper.renewals, "refused": refused, "control": sorted(ControlFiles(folder).read())}))
"""


def test_from_inside_a_pod_the_mounted_token_is_enough(kubectl: Kubectl, namespace: str, worker_image: str):
    inside = kubectl.within(namespace)
    prepare(inside, "demo", MINE)
    operator_writes(inside, "demo", {"metadata": {"annotations": {"samite.dev/control": '{"checkpoint.json": {"request": "1"}}'}}})
    container = {"name": "main", "image": worker_image, "command": ["python", "-c", PROGRAM], "resources": {"requests": {"cpu": "10m"}}}
    spec = {
        "serviceAccountName": "demo-worker",
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "containers": [container],
    }
    inside.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver"}, "spec": spec})
    until(lambda: inside.get("pod", "driver")["status"]["phase"] in ("Succeeded", "Failed"), "the pod to end", limit_s=90)
    said = inside("logs", "driver")
    assert inside.get("pod", "driver")["status"]["phase"] == "Succeeded", said
    assert json.loads(said.splitlines()[-1]) == {"renewals": 2, "refused": ["NotAllowedError"] * 3, "control": ["checkpoint.json"]}
    assert inside.get("lease", "demo-heartbeat")["spec"]["holderIdentity"] == "pod"
