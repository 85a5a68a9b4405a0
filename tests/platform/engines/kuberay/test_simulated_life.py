"""Whole lives of a run: `decide` and the engine against an API server in memory and a dashboard behind real HTTP, in virtual time."""

import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from samite.checkpoint.store import MemoryStore
from samite.engines.kuberay import names
from samite.engines.kuberay.api import CRD, LEASE, POD, RAY_CLUSTER, SECRET
from samite.engines.kuberay.engine import KubeRayEngine
from samite.engines.kuberay.fake_api import FakeApi
from samite.engines.kuberay.fake_kuberay import FakeKubeRay
from samite.engines.kuberay.fake_training import FakeTraining
from samite.engines.kuberay.runtime import Runtime
from samite.engines.ray_jobs import RayJobs
from samite.lifecycle import DESTRUCTIVE, KillRanks, Memory, Phase, ReplaceNode, RequestCheckpoint, RunPlan, StopSubmission, Submit
from samite.lifecycle.decide import decide
from samite.lifecycle.evidence import Evidence, Source
from samite.spec import TrainingRun

CRD_15 = {
    "metadata": {"name": "rayclusters.ray.io"},
    "spec": {"versions": [{"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {}}}}}}]},
}


class Dashboard(BaseHTTPRequestHandler):
    """Ray's REST API over a FakeTraining; the first part of the path is the cluster."""

    training: FakeTraining
    tokens: set[str]

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        _, cluster, *rest = self.path.split("?")[0].split("/")
        if self.training.head_of(cluster) is None:
            return self._answer(503, {})
        self.tokens.add(self.headers.get("Authorization", ""))
        if rest == ["api", "v0", "nodes"]:
            return self._answer(200, {"data": {"result": {"result": list(self.training.nodes(cluster))}}})
        if rest == ["api", "v0", "actors"]:
            left = self.training.actors_left(parse_qs(self.path.partition("?")[2])["filter_values"][0])
            return self._answer(200, {"data": {"result": {"total": left, "num_after_truncation": left, "result": [{}] * left}}})
        job = self.training.job(cluster, rest[2])
        if job is None:
            return self._answer(404, {})
        if rest[-1] == "logs":
            return self._answer(200, {"logs": "driver: says nothing"})
        answer = {"status": job.status, "message": job.message, "driver_exit_code": None, "job_id": job.attempt.submission_id}
        return self._answer(200, answer)

    def do_POST(self) -> None:
        _, cluster, *rest = self.path.split("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.training.head_of(cluster) is None:
            return self._answer(503, {})
        if rest[-1] == "stop":
            job = self.training.job(cluster, rest[2])
            if job is None:
                return self._answer(404, {})
            if job.status == "RUNNING":
                job.status = "STOPPED"
            return self._answer(200, {"stopped": True})
        created = self.training.submit(cluster, body["submission_id"], body["entrypoint"])
        if not created:
            return self._answer(500, {"error": f"Job with submission_id {body['submission_id']} already exists."})
        return self._answer(200, {"submission_id": body["submission_id"]})

    def _answer(self, code: int, document: dict) -> None:
        text = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Life:
    """One run, its world and its operator's loop. `turn` is a second."""

    def __init__(self, run: dict, *, machines: int = 4) -> None:
        self.run, self.api = run, FakeApi()
        self.api.put(CRD, CRD_15)
        self.world = FakeKubeRay(api=self.api)
        for number in range(1, machines + 1):
            self.world.add_machine(f"machine-{number}", slots=1)
        self.store = MemoryStore(f"memory://{secrets.token_hex(6)}")
        self.training = FakeTraining(world=self.world, store=self.store)
        handler = type("Handler", (Dashboard,), {"training": self.training, "tokens": set()})
        self.tokens = handler.tokens
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        spec = TrainingRun.model_validate({key: run[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "demo"}})
        self.plan = RunPlan.from_run(spec, uid=run["metadata"]["uid"])
        self.memory, self.actions, self.phases, self.problems = Memory(), [], [], []
        self.runtime, self.pause_s = Runtime(), 0.012
        self.engine = self.new_engine()

    def new_engine(self) -> KubeRayEngine:
        port = self.server.server_address[1]
        return KubeRayEngine(
            self.api,
            namespace="team-a",
            token_key=b"key",
            storage=lambda run: self.store,
            jobs=lambda cluster, namespace, token: RayJobs(address=f"http://127.0.0.1:{port}/{cluster}", token=token, timeout_s=2.0),
            storage_period_s=0.005,
            clock=lambda: self.world.now_s,
        )

    def close(self) -> None:
        self.engine.close()
        self.server.shutdown()
        self.server.server_close()

    def turn(self) -> None:
        self.world.tick()
        self.training.tick()
        time.sleep(self.pause_s)  # the storage's thread lists
        observed = self.engine.observe(self.run, self.plan, self.memory)
        decision = decide(self.plan, observed, self.memory, self.engine.now_s())
        self.memory, self.observed, self.status = decision.memory, observed, decision.status
        self.actions += [(self.world.now_s, action) for action in decision.actions]
        if not self.phases or self.phases[-1] is not self.memory.phase:
            self.phases.append(self.memory.phase)
        self.problems += self.engine.apply(self.run, self.plan, decision.actions, runtime=self.runtime)

    def until(self, wanted, *, within: int = 200) -> float:
        began_s = self.world.now_s
        for _ in range(within):
            self.turn()
            if wanted():
                return self.world.now_s - began_s
        raise AssertionError(f"not within {within} s: {self.memory.phase} {self.memory.reason}: {self.status.message} {self.problems[-3:]}")

    def until_training(self) -> None:
        self.until(lambda: self.memory.phase is Phase.RUNNING)
        self.until(lambda: self.memory.best_step >= 2)

    def of(self, kind: type) -> list:
        return [action for _, action in self.actions if isinstance(action, kind)]

    def worker_pods(self) -> list[dict]:
        return [pod for pod in self.api.every(POD) if pod["metadata"]["labels"][names.ROLE] == "worker"]

    def pods_of_ranks(self) -> list[dict]:
        return list(self.training.jobs[self.memory.live.submission_id].ranks.values())


@pytest.fixture
def live(make_run):
    lives: list[Life] = []

    def begin(**settings) -> Life:
        machines = settings.pop("machines", 4)
        lives.append(Life(make_run(**settings), machines=machines))
        return lives[-1]

    yield begin
    for life in lives:
        life.close()


def test_an_unbroken_run_goes_through_both_stages_with_one_cluster_and_one_submission_each(live):
    life = live()
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)
    assert life.training.submitted == ["demo-s00-a1", "demo-s01-a2"]
    assert life.of(DESTRUCTIVE) == []
    life.until(lambda: not life.api.every(RAY_CLUSTER) and not life.api.every(POD))
    made = {name for verb, plural, name in life.api.calls if verb == "apply" and plural == "rayclusters"}
    assert len(made) == 1
    assert life.problems == []


def test_a_cut_node_is_replaced_on_two_facts_and_the_next_attempt_resumes(live):
    life = live(spares=0, machines=4)
    life.until_training()
    victim = life.pods_of_ranks()[1]
    machine, best = victim["spec"]["nodeName"], life.memory.best_step
    life.world.cut_power(machine)
    took_s = life.until(lambda: life.memory.phase is Phase.RECOVERING, within=40)
    assert took_s <= 14
    (first, *_) = life.of(DESTRUCTIVE)
    assert {item.source for item in first.evidence} >= {Source.RAY_NODE, Source.HEARTBEAT}
    life.until(lambda: life.api.look(POD, "team-a", victim["metadata"]["name"]) is None, within=60)
    assert Source.KUBERNETES in {item.source for item in life.of(ReplaceNode)[-1].evidence}
    life.until(lambda: life.memory.phase is Phase.RUNNING and life.memory.best_step > best, within=120)
    assert life.api.look(POD, "team-a", victim["metadata"]["name"]) is None
    assert all(pod["spec"]["nodeName"] != machine for pod in life.worker_pods())
    assert life.training.submitted[-1] == "demo-s00-a2"
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)
    assert life.status.restarts == {"infra": 1}


def test_with_a_spare_the_next_attempt_does_not_wait_for_the_replacement(live):
    life = live(spares=1, machines=4)
    life.run["spec"]["stages"][0]["budget"]["steps"] = 200
    life.until_training()
    life.until(lambda: min(life.world.ran_for_s(pod) for pod in life.worker_pods()) > 60.0)
    life.training.joins_after_s = 60.0  # from now on: the replacement joins Ray after the attempt that must not wait for it
    dead = life.pods_of_ranks()[0]["metadata"]["name"]
    life.world.cut_power(life.pods_of_ranks()[0]["spec"]["nodeName"])
    life.until(lambda: life.training.submitted[-1] == "demo-s00-a2", within=59)
    life.until(lambda: life.training.jobs["demo-s00-a2"].ranks)
    assert dead not in {pod["metadata"]["name"] for pod in life.pods_of_ranks()}
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED, within=600)
    assert life.training.submitted == ["demo-s00-a1", "demo-s00-a2", "demo-s01-a3"]


def test_the_next_attempt_follows_the_stop_of_the_last_at_once_although_a_new_worker_group_was_loading(live):
    life = live(spares=1, machines=4, stages=1)
    life.until_training()
    job = life.training.jobs["demo-s00-a1"]
    life.world.cut_power(life.pods_of_ranks()[0]["spec"]["nodeName"])
    life.until(lambda: life.of(StopSubmission), within=40)
    job.loading = True  # Ray had restarted the worker group, whose ranks load for long without a sign
    stopped_s = life.world.now_s
    life.until(lambda: life.training.submitted[-1] == "demo-s00-a2", within=60)
    assert life.world.now_s - stopped_s <= 5
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)


def test_the_next_attempt_is_submitted_while_the_replacement_joins_ray(live):
    life = live(spares=0, machines=4, stages=1)
    life.training.joins_after_s = 20.0
    life.run["spec"]["stages"][0]["budget"]["steps"] = 40
    life.until_training()
    victim = life.pods_of_ranks()[1]
    life.world.cut_power(victim["spec"]["nodeName"])
    life.until(lambda: life.training.submitted[-1] == "demo-s00-a2", within=60)
    (joining,) = [node for node in life.observed.cluster[0].nodes if node.joining]
    assert joining.name != victim["metadata"]["name"]
    assert joining.ready is False
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED, within=120)
    assert life.training.submitted == ["demo-s00-a1", "demo-s00-a2"]


@pytest.mark.parametrize("why", ["image", "machine"])
def test_a_replacement_that_waits_for_an_image_or_a_machine_is_not_about_to_join(live, why: str):
    life = live(spares=0, machines=4 if why == "image" else 3, stages=1)
    life.until_training()
    life.world.unpullable = {life.pods_of_ranks()[0]["spec"]["containers"][0]["image"]} if why == "image" else set()
    life.world.cut_power(life.pods_of_ranks()[1]["spec"]["nodeName"])
    life.until(lambda: life.memory.phase is Phase.RECOVERING and life.memory.live is None, within=60)
    for _ in range(15):
        life.turn()
        assert not [node for node in life.observed.cluster[0].nodes if node.joining]
    assert life.training.submitted == ["demo-s00-a1"]


def test_a_node_that_only_kubernetes_calls_not_ready_loses_nothing(live):
    life = live(stages=1)
    life.until_training()
    machine = life.pods_of_ranks()[0]["spec"]["nodeName"]
    life.api.set_node_ready(machine, ready=False)
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)
    assert life.of(DESTRUCTIVE) == []
    assert life.training.submitted == ["demo-s00-a1"]


def test_an_api_server_that_is_away_for_a_minute_touches_nothing(live):
    life = live(stages=1, checkpoint={"uri": "s3://bucket/demo", "interval": {"steps": 5}})
    life.run["spec"]["stages"][0]["budget"]["steps"] = 120
    life.until_training()
    life.api.down = True
    for _ in range(60):
        life.turn()
    life.api.down = False
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)
    assert life.of(DESTRUCTIVE) == []
    assert life.training.submitted == ["demo-s00-a1"]


def test_an_unreachable_dashboard_is_no_fact(live):
    life = live(stages=1)
    life.run["spec"]["stages"][0]["budget"]["steps"] = 150
    life.until_training()
    life.training.dashboard_is_down = True
    for _ in range(100):
        life.turn()
    assert life.memory.phase is Phase.RUNNING
    life.training.dashboard_is_down = False
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)
    assert life.of(DESTRUCTIVE) == []


def test_a_lost_head_ends_in_a_new_cluster_and_a_resumed_attempt(live):
    life = live(spares=0, stages=1)
    life.run["spec"]["stages"][0]["budget"]["steps"] = 30
    life.until_training()
    (old,) = life.api.every(RAY_CLUSTER)
    head = life.training.head_of(old["metadata"]["name"])
    life.world.cut_power(head["spec"]["nodeName"])
    life.until(lambda: life.memory.phase is Phase.RECOVERING, within=60)
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED, within=300)
    assert life.training.submitted == ["demo-s00-a1", "demo-s00-a2"]
    assert life.api.look(RAY_CLUSTER, "team-a", old["metadata"]["name"]) is None


def test_a_container_out_of_memory_is_an_oom_and_not_a_lost_node(live):
    life = live(stages=1)
    life.until_training()
    name = life.pods_of_ranks()[0]["metadata"]["name"]
    life.world.end_container(name, reason="OOMKilled", exit_code=137)
    life.engine.note_pod(life.api.look(POD, "team-a", name))  # as a watch would: KubeRay deletes it before the next turn
    life.until(lambda: life.memory.phase is Phase.RECOVERING, within=60)
    assert life.status.last_failure.error_type == "HostOutOfMemory"
    assert life.status.last_failure.failure_class == "oom"


def test_a_restarted_operator_changes_nothing_that_runs(live):
    life = live(stages=1)
    life.run["spec"]["stages"][0]["budget"]["steps"] = 60
    life.until_training()
    before = [pod["metadata"]["uid"] for pod in life.api.every(POD)]
    for _ in range(5):
        life.engine.close()
        life.engine = life.new_engine()
        life.memory = Memory.from_json(life.memory.to_json())
        for _ in range(4):
            life.turn()
    assert [pod["metadata"]["uid"] for pod in life.api.every(POD)] == before
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)
    assert life.of(DESTRUCTIVE) == []
    assert life.training.submitted == ["demo-s00-a1"]


def test_a_submission_that_was_accepted_before_a_crash_is_adopted(live):
    life = live(stages=1)
    life.until(lambda: life.of(Submit))
    submits = life.of(Submit)
    assert life.engine.apply(life.run, life.plan, submits[:1], runtime=Runtime()) == []
    assert life.engine.apply(life.run, life.plan, submits[:1], runtime=Runtime()) == []
    assert life.training.submitted == ["demo-s00-a1"]
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)


def test_the_dashboard_is_asked_with_the_token_that_the_pods_have(live):
    import base64

    life = live(stages=1)
    life.until_training()
    (secret,) = life.api.every(SECRET)
    token = base64.b64decode(secret["data"]["auth_token"]).decode()
    assert life.tokens == {f"Bearer {token}"}
    assert not [call for call in life.api.calls if call[0] in {"get", "list"} and call[1] == "secrets"]


def test_a_cancelled_run_leaves_neither_cluster_nor_pod(live):
    life = live(stages=1)
    life.until_training()
    life.run["metadata"]["annotations"][names.CANCEL] = "true"
    life.until(lambda: life.memory.phase is Phase.CANCELLED)
    assert life.api.every(RAY_CLUSTER) == ()
    assert life.api.every(POD) == ()


def test_a_suspended_run_asks_for_a_checkpoint_first(live):
    life = live(stages=1)
    life.until_training()
    life.run["spec"]["suspend"] = True
    life.until(lambda: life.memory.phase is Phase.SUSPENDING)
    lease = life.api.look(LEASE, "team-a", "demo-heartbeat")
    assert "stop.json" in json.loads(lease["metadata"]["annotations"]["samite.dev/control"])


def test_an_image_that_cannot_be_pulled_holds_the_run_with_the_reason(live):
    life = live(stages=1)
    life.world.unpullable.add("nope:1")
    life.runtime = Runtime(image="nope:1")
    took_s = life.until(lambda: life.memory.phase is Phase.HELD)
    assert took_s <= 75
    assert life.memory.message == "image nope:1 cannot be pulled"


def test_time_in_a_queue_is_no_delay_of_the_run(live):
    life = live(stages=1)
    life.until(lambda: life.api.every(RAY_CLUSTER))
    (cluster,) = life.api.every(RAY_CLUSTER)
    life.api.put(RAY_CLUSTER, {"metadata": cluster["metadata"], "spec": {"suspend": True}})
    life.pause_s = 0.0
    for _ in range(950):
        life.turn()
    assert life.memory.phase is Phase.PROVISIONING
    life.pause_s = 0.012
    assert "quota" in life.status.message
    life.api.put(RAY_CLUSTER, {"metadata": cluster["metadata"], "spec": {"suspend": False}})
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)


def test_quota_that_is_taken_back_costs_a_preemption_and_the_run_goes_on_when_it_returns(live):
    life = live(stages=1)
    life.run["spec"]["stages"][0]["budget"]["steps"] = 40
    life.until_training()
    (cluster,) = life.api.every(RAY_CLUSTER)
    life.api.put(RAY_CLUSTER, {"metadata": cluster["metadata"], "spec": {"suspend": True}})
    life.until(lambda: life.memory.phase is Phase.RECOVERING, within=60)
    assert life.status.last_failure.failure_class == "preemption"
    assert any(isinstance(action, RequestCheckpoint) for _, action in life.actions)
    for _ in range(30):
        life.turn()
    for item in life.api.every(RAY_CLUSTER):
        life.api.put(RAY_CLUSTER, {"metadata": item["metadata"], "spec": {"suspend": False}})
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED, within=300)
    assert life.status.restarts == {"preemption": 1}
    assert life.training.submitted == ["demo-s00-a1", "demo-s00-a2"]


def test_a_rank_that_must_die_is_asked_first_and_then_its_pod_is_ended(live):
    life = live(stages=1)
    life.run["spec"]["stages"][0]["budget"]["steps"] = 100
    life.until_training()
    pod = life.pods_of_ranks()[1]["metadata"]["name"]
    facts = (
        Evidence(source=Source.HEARTBEAT, subject="2 ranks", says="no progress"),
        Evidence(source=Source.PROCESS_TABLE, subject="rank 1", says="stopped"),
    )
    action = KillRanks(submission_id="demo-s00-a1", incarnation=0, ranks=(1,), reason="hang", evidence=facts)
    assert life.engine.apply(life.run, life.plan, [action], runtime=Runtime()) == []
    control = json.loads(life.api.look(LEASE, "team-a", "demo-heartbeat")["metadata"]["annotations"]["samite.dev/control"])
    assert (control["kill.json"]["ranks"], control["kill.json"]["incarnation"]) == ([1], 0)
    assert life.api.look(POD, "team-a", pod) is not None
    for _ in range(11):
        life.turn()
    assert life.engine.apply(life.run, life.plan, [action], runtime=Runtime()) == []
    assert life.api.look(POD, "team-a", pod) is None


def test_deleted_workers_leave_the_head_and_cost_nobody_anything(live):
    life = live(stages=1, retention={"onSuccess": "DeleteWorkers"})
    life.until(lambda: life.memory.phase is Phase.SUCCEEDED)
    life.until(lambda: not life.worker_pods(), within=40)
    life.turn()
    (cluster,) = life.api.every(RAY_CLUSTER)
    assert [(group["replicas"], group["minReplicas"]) for group in cluster["spec"]["workerGroupSpecs"]] == [(0, 0)]
    assert life.training.head_of(cluster["metadata"]["name"]) is not None
    patches = [call for call in life.api.calls if call[:2] == ("patch", "rayclusters")]
    life.turn()
    assert [call for call in life.api.calls if call[:2] == ("patch", "rayclusters")] == patches
    assert life.of(DESTRUCTIVE) == []
    assert life.problems == []
