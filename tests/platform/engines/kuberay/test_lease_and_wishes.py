"""Ages of heartbeats on the observer's clock, control documents, and what people ask for."""

import base64
import json
from typing import Any

import pytest

from samite.engines.kuberay.access import access_objects, heartbeat_lease, ray_token, token_secret
from samite.engines.kuberay.api import (
    LEASE,
    ApiError,
    ConflictApiError,
    ForbiddenApiError,
    GoneApiError,
    PermanentApiError,
    RetryableApiError,
    error_of,
)
from samite.engines.kuberay.control import ensure_lease, request, take_lease
from samite.engines.kuberay.fake_api import FakeApi
from samite.engines.kuberay.heartbeats import LeaseWatch, ranks_of, reports_of_kubelet
from samite.engines.kuberay.pod_facts import Ended
from samite.engines.kuberay.runtime import Runtime
from samite.engines.kuberay.submission import attempt_in, submission_of
from samite.engines.kuberay.wishes import answered, request_annotation, wishes_of
from samite.errors import ConflictError, NotAllowedError, NotFoundError, TemporaryError
from samite.lifecycle import Memory, ProcessState, Request, RequestKind, Submit
from samite.spec.attempt import Heartbeat
from samite.spec.lease import CONTROL, FAILURES, HEARTBEATS, RESULT, SUBMISSION, RankSign, heartbeats_annotation

SUB = "demo-s00-a1"


def lease(renewed: str, *, age_s: float = 0.0, heard_age_s: float = 0.0) -> dict[str, Any]:
    beat = Heartbeat(
        rank=0, node="w1", pid=1, submission_id=SUB, incarnation=0, step=7, tokens=1, phase="training", monotonic_s=-age_s, time_unix_s=9e9
    )
    text = heartbeats_annotation([RankSign(heartbeat=beat, heard_at_s=-heard_age_s, cpu_share=0.5, cpu_window_s=6.0)], now_s=0.0)
    annotations = {SUBMISSION: SUB, HEARTBEATS: text}
    return {"metadata": {"annotations": annotations}, "spec": {"holderIdentity": "driver", "renewTime": renewed}}


def age(watch: LeaseWatch, document: dict[str, Any], now_s: float) -> float | None:
    (rank,) = ranks_of(watch.read(document, now_s), {}, now_s)
    return rank.progress_age_s


def test_age_is_the_driver_s_own_plus_the_time_the_lease_stood_still():
    watch = LeaseWatch()
    assert age(watch, lease("1", age_s=1.5), 100.0) == pytest.approx(1.5)
    assert age(watch, lease("1", age_s=1.5), 102.0) == pytest.approx(3.5)
    assert age(watch, lease("1", age_s=1.5), 110.0) == pytest.approx(11.5)
    assert age(watch, lease("2", age_s=0.5), 112.0) == pytest.approx(0.5)


def test_time_in_which_the_server_did_not_answer_is_not_silence_of_the_driver():
    watch = LeaseWatch()
    age(watch, lease("1"), 100.0)
    assert age(watch, lease("1"), 160.0) == pytest.approx(0.0)
    assert age(watch, lease("1"), 164.0) == pytest.approx(4.0)


def test_renewal_times_are_compared_for_equality_only():
    watch = LeaseWatch()
    age(watch, lease("2026-01-01T00:10:00Z"), 100.0)
    assert age(watch, lease("2026-01-01T00:00:00Z"), 105.0) == pytest.approx(0.0)


def test_a_process_heard_lately_is_alive_and_a_silent_one_is_unknown():
    for heard_age_s, wanted in ((1.0, ProcessState.ALIVE), (6.0, None)):
        (rank,) = ranks_of(LeaseWatch().read(lease("1", age_s=60.0, heard_age_s=heard_age_s), 100.0), {}, 100.0)
        assert rank.process is wanted
        assert rank.cpu_share == 0.5


def test_ranks_of_an_ended_container_are_gone_and_memory_is_named_as_the_cause():
    report = LeaseWatch().read(lease("1"), 100.0)
    end = Ended(says="container ray-worker ended: OOMKilled, exit code 137", out_of_memory=True)
    (rank,) = ranks_of(report, {"w1": end}, 100.0)
    assert rank.process is ProcessState.GONE
    (failure,) = reports_of_kubelet(report, {"w1": end})
    assert (failure.failure_class, failure.rank, failure.step) == ("oom", 0, 7)
    assert reports_of_kubelet(report, {"w1": Ended(says="exit code 1")}) == ()


def test_a_new_submission_takes_the_lease_and_what_the_old_driver_wrote_goes(run):
    api = FakeApi()
    take_lease(api, run, SUB)
    api.patch(LEASE, "team-a", "demo-heartbeat", {"metadata": {"annotations": {RESULT: "{}", FAILURES: "[]"}}})
    take_lease(api, run, SUB)
    assert RESULT in api.look(LEASE, "team-a", "demo-heartbeat")["metadata"]["annotations"]
    take_lease(api, run, "demo-s00-a2")
    annotations = api.look(LEASE, "team-a", "demo-heartbeat")["metadata"]["annotations"]
    assert annotations == {SUBMISSION: "demo-s00-a2", CONTROL: "{}"}
    with pytest.raises(ConflictError, match="newer than demo-s00-a1"):
        take_lease(api, run, SUB)


def test_the_lease_of_an_earlier_run_of_that_name_is_not_taken(run):
    api = FakeApi()
    old = heartbeat_lease(run)
    old["metadata"]["labels"]["samite.dev/run-uid"] = "another"
    api.create(LEASE, "team-a", old)
    with pytest.raises(TemporaryError, match="earlier run"):
        take_lease(api, run, SUB)


def test_a_request_is_written_once_and_only_for_the_submission_that_holds_the_lease(run):
    api = FakeApi()
    take_lease(api, run, SUB)
    assert request(api, run, SUB, "checkpoint.json", {"request": "1"})
    assert not request(api, run, SUB, "checkpoint.json", {"request": "1"})
    assert request(api, run, SUB, "stop.json", {"request": "2"})
    assert not request(api, run, "demo-s00-a9", "stop.json", {"request": "3"})
    text = api.look(LEASE, "team-a", "demo-heartbeat")["metadata"]["annotations"][CONTROL]
    assert json.loads(text) == {"checkpoint.json": {"request": "1"}, "stop.json": {"request": "2"}}
    ensure_lease(api, run)


def test_the_pods_account_may_get_and_patch_one_lease(run, make_run):
    kinds = [kind.kind for kind, _ in access_objects(run)]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding"]
    role = access_objects(run)[1][1]
    assert role["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["demo-heartbeat"], "verbs": ["get", "patch"]}
    ]
    trusted = make_run(checkpoint={"uri": "s3://b/x", "credentials": {"serviceAccountName": "storage"}})
    objects = access_objects(trusted)
    assert [kind.kind for kind, _ in objects] == ["Role", "RoleBinding"]
    assert objects[1][1]["subjects"][0]["name"] == "storage"
    assert heartbeat_lease(run)["metadata"]["labels"]["samite.dev/run"] == "demo"


def test_ray_s_token_is_made_again_from_the_key_and_differs_for_every_cluster(run):
    token = ray_token(b"key", "uid", "c1")
    assert token == ray_token(b"key", "uid", "c1")
    assert len({token, ray_token(b"key", "uid", "c2"), ray_token(b"key", "other", "c1"), ray_token(b"yek", "uid", "c1")}) == 4
    secret = token_secret(run, "c1", token)
    assert base64.b64decode(secret["data"]["auth_token"]).decode() == token
    assert secret["metadata"]["name"] == "c1-ray-token"


def test_a_submission_carries_the_attempt_and_no_bookkeeping_of_the_server(make_run):
    run = make_run(env=[{"name": "MODE", "value": "fast"}, {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}])
    action = Submit(
        cluster_id="c", submission_id=SUB, attempt=1, stage_index=0, num_workers=2, num_nodes=2, worker_group_restarts=2, resume="none"
    )
    found = submission_of(action, run, Runtime())
    assert found.entrypoint.startswith("exec env SAMITE_ATTEMPT=")
    assert found.entrypoint.endswith(" python -m samite_workloads.entrypoint --attempt-env --ray")
    attempt = attempt_in(found.entrypoint)
    assert (attempt.run_folder, attempt.checkpoint_uri, attempt.num_workers) == ("/var/lib/samite/runs/demo", "s3://bucket/demo", 2)
    assert attempt.run["metadata"] == {"name": "demo", "namespace": "team-a"}
    assert found.environment == {"MODE": "fast"}, "nothing else, or every rank would need a fresh process"


def test_an_entry_point_without_an_attempt_says_what_was_found():
    with pytest.raises(ValueError, match="found 'exec true'"):
        attempt_in("exec true")


def test_wishes_are_read_from_the_object_and_nonsense_is_left_out(run):
    wish = Request(request_id="7", kind=RequestKind.SKIP, by="ada", windows=((0, 8),))
    name, text = request_annotation(wish)
    run["metadata"]["annotations"] = {name: text, "samite.dev/request-8": "{", "samite.dev/request-9": '{"verb": "dance"}', "other": "x"}
    found = wishes_of(run, Memory())
    assert (found.suspend, found.cancel, found.requests) == (False, False, (wish,))
    memory = Memory(handled_requests=("7",))
    assert wishes_of(run, memory).requests == ()
    assert answered(run, memory) == (name,)


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("1", True), ("false", False), ("", False)])
def test_a_run_is_cancelled_by_an_annotation_or_its_deletion(run, text: str, wanted: bool):
    run["metadata"]["annotations"] = {"samite.dev/cancel": text}
    assert wishes_of(run, Memory()).cancel is wanted
    run["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert wishes_of(run, Memory()).cancel is True


@pytest.mark.parametrize(
    ("status", "kind", "base"),
    [
        (404, GoneApiError, NotFoundError),
        (409, ConflictApiError, ConflictError),
        (401, ForbiddenApiError, NotAllowedError),
        (403, ForbiddenApiError, NotAllowedError),
        (0, RetryableApiError, TemporaryError),
        (410, RetryableApiError, TemporaryError),
        (429, RetryableApiError, TemporaryError),
        (503, RetryableApiError, TemporaryError),
        (422, PermanentApiError, ApiError),
    ],
)
def test_errors_say_by_type_whether_waiting_helps(status: int, kind: type, base: type):
    error = error_of(status, "no", reason="X", retry_after_s=7.0)
    assert type(error) is kind
    assert isinstance(error, base)
    assert (error.status, error.reason) == (status, "X")
    if isinstance(error, TemporaryError):
        assert error.retry_after_s == 7.0


def test_a_runtime_is_read_from_the_words_of_the_crd():
    document = {
        "image": "worker:2",
        "imagePullSecrets": ["registry"],
        "runAsUser": 2000,
        "worker": {"cpu": "8", "memory": "64Gi", "tolerations": [{"key": "gpu"}], "nodeSelector": {"pool": "a"}},
        "queue": {"name": "research", "topology": "Preferred"},
        "headFaultTolerance": {"redisAddress": "redis:6379", "passwordSecretKeyRef": {"name": "redis", "key": "pw"}},
    }
    found = Runtime.from_document(document, name="gpu", generation=3)
    assert (found.image, found.user, found.image_pull_secrets, found.generation) == ("worker:2", 2000, ("registry",), 3)
    assert (found.worker.cpu, found.worker.memory, found.worker.grace_s) == ("8", "64Gi", 30)
    assert found.head == Runtime().head
    assert found.queue.topology == "Preferred"
    assert found.head_fault_tolerance.password_key == "pw"
