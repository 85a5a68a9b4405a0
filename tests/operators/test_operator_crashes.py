"""The operator's process ends between any two calls of a turn: never two clusters, never two submissions, and the run ends as if nothing had been."""

import secrets
from collections.abc import Mapping
from typing import Any

import pytest

from samite.checkpoint.store.memory import MemoryStore
from samite.engines.kuberay import names
from samite.engines.kuberay.api import CRD, POD, RAY_CLUSTER, TRAINING_RUN, Document, Kind, Listing
from samite.engines.kuberay.engine import KubeRayEngine
from samite.engines.kuberay.fake_kuberay import FakeKubeRay
from samite.engines.kuberay.fake_training import FakeTraining
from samite.engines.ray_jobs import Job, JobStatus
from samite.errors import NotFoundError, UnreachableError
from samite_operators.process import Engines

PERIOD_S = 12
"""An age is what this process has measured, so a silence of seconds must fit between two crashes; an operator that crashes more often waits."""


class Crash(BaseException):
    """The process ends here."""


class CrashingApi:
    """Ends the process at call number `at`: before it reaches the server, or after it has taken effect and before the answer is back."""

    def __init__(self, api: Any) -> None:
        self.api, self.calls, self.at, self.after = api, 0, None, False

    def arm(self, at: int | None, *, after: bool = False) -> None:
        self.calls, self.at, self.after = 0, at, after

    def through(self, call: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if number == self.at and not self.after:
            raise Crash
        found = call()
        if number == self.at:
            raise Crash
        return found

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        return self.through(lambda: self.api.get(kind, namespace, name))

    def list(self, kind: Kind, namespace: str = "", **how: Any) -> Listing:
        return self.through(lambda: self.api.list(kind, namespace, **how))

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        return self.through(lambda: self.api.create(kind, namespace, document))

    def apply(self, kind: Kind, namespace: str, document: Document) -> Document:
        return self.through(lambda: self.api.apply(kind, namespace, document))

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, **how: Any) -> Document:
        return self.through(lambda: self.api.patch(kind, namespace, name, patch, **how))

    def delete(self, kind: Kind, namespace: str, name: str, **how: Any) -> None:
        return self.through(lambda: self.api.delete(kind, namespace, name, **how))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)


def crash_everywhere_in_one_turn(operator: Any, crashing: CrashingApi) -> int:
    """One turn, ended by a crash before its first call, by the next process after it, before its second call, and so on until one gets through."""
    for number in range(120):
        operator.restart()
        crashing.arm(number // 2, after=number % 2 == 1)
        try:
            operator.turn()
        except Crash:
            continue
        crashing.arm(None)
        return number
    raise AssertionError("a turn of sixty calls")


def test_a_crash_at_every_call_of_every_turn_changes_nothing_about_the_run(make_operator: Any):
    operator = make_operator()
    crashing = CrashingApi(operator.api)
    operator.api = crashing
    crashes = 0
    for _ in range(400):
        crashes += crash_everywhere_in_one_turn(operator, crashing)
        clusters = crashing.every(RAY_CLUSTER)
        assert len(clusters) <= 1
        assert len(operator.world.live_jobs()) <= 1
        if operator.phase == "Succeeded":
            break
        operator.world.tick(1.0)
    assert operator.phase == "Succeeded"
    assert operator.world.attempts_seen == [1, 2]
    assert crashes > 100


def test_a_crash_at_every_call_of_a_deletion_leaves_nothing_behind(make_operator: Any):
    operator = make_operator()
    operator.until("Running")
    crashing = CrashingApi(operator.api)
    operator.api = crashing
    crashing.api.delete(TRAINING_RUN, "team-a", "demo")
    for _ in range(100):
        if operator.object is None:
            break
        crash_everywhere_in_one_turn(operator, crashing)
        operator.world.tick(1.0)
    assert operator.object is None
    assert crashing.every(RAY_CLUSTER) == ()


class FakeJobs:
    """Ray's dashboard of one cluster, as the engine's client sees it."""

    def __init__(self, training: FakeTraining, crashing: CrashingApi, cluster_id: str) -> None:
        self.training, self.crashing, self.cluster_id = training, crashing, cluster_id

    def node_states(self) -> Mapping[str, str]:
        self._up()
        return {node["node_ip"]: node["state"] for node in self.training.nodes(self.cluster_id)}

    def job(self, submission_id: str) -> Job:
        self._up()
        found = self.training.job(self.cluster_id, submission_id)
        if found is None:
            raise NotFoundError(submission_id)
        status = JobStatus(found.status)
        return Job(submission_id=submission_id, status=status, message=found.message, exit_code=None, ray_job_id=submission_id)

    def actors_left(self, ray_job_id: str) -> int:
        self._up()
        return self.training.actors_left(ray_job_id)

    def submit(self, submission_id: str, entrypoint: str, environment: Mapping[str, str]) -> bool:
        self._up()
        return self.crashing.through(lambda: self.training.submit(self.cluster_id, submission_id, entrypoint))

    def stop(self, submission_id: str) -> None:
        self._up()

        def stop() -> None:
            job = self.training.job(self.cluster_id, submission_id)
            if job is None:
                raise NotFoundError(submission_id)
            job.status = "STOPPED"

        self.crashing.through(stop)

    def logs(self, submission_id: str) -> str:
        self._up()
        return ""

    def _up(self) -> None:
        if self.training.head_of(self.cluster_id) is None:
            raise UnreachableError("nobody answers")


class KubeRayWorld:
    """The real engine under an operator: fake API server, fake machines and KubeRay, fake training, one clock."""

    def __init__(self, make_operator: Any, **spec: Any) -> None:
        self.operator = make_operator(**spec)
        self.crashing = CrashingApi(self.operator.api)
        self.operator.api = self.crashing
        self.kuberay = FakeKubeRay(self.crashing.api)
        version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {}}}}}}
        self.crashing.api.put(CRD, {"metadata": {"name": "rayclusters.ray.io"}, "spec": {"versions": [version]}})
        for name in ("n1", "n2", "n3"):
            self.kuberay.add_machine(name, slots=2)
        self.store = MemoryStore(f"memory://{secrets.token_hex(8)}")
        self.training = FakeTraining(self.kuberay, self.store)
        self.operator.world = self
        self.engines: Engines | None = None
        restart = self.operator.restart

        def restart_with_a_real_engine() -> None:
            if self.engines is not None:
                self.engines.close()
            restart()
            made = Engines(self._engine, self.operator.cached, self.operator.services.stores, self.operator.ledger)
            self.engines = made
            self.operator.services.__dict__["engine"] = made.of

        self.operator.restart = restart_with_a_real_engine
        self.operator.restart()

    @property
    def now(self) -> float:
        return self.kuberay.now_s

    def tick(self, seconds: float = 1.0) -> None:
        for _ in range(int(seconds)):
            self.kuberay.tick()
            self.training.tick()

    def settle(self) -> None:
        """The storage thread has answered what it was asked."""
        engine = self.operator.services.engine("team-a")
        for sight in engine._sights.values():
            watch = sight.storage
            if watch is not None:
                asked_s = watch._answer.listed_at_s
                for _ in range(400):
                    watch._wake.set()
                    watch._thread.join(timeout=0.002)
                    if not watch._wanted and watch._answer.listed_at_s >= max(asked_s, self.now):
                        break

    def _engine(self, namespace: str, api: Any, stores: Any, ledger: Any) -> KubeRayEngine:
        return KubeRayEngine(
            api,
            namespace=namespace,
            token_key=b"k" * 32,
            storage=lambda _run: self.store,
            jobs=lambda cluster_id, _namespace, _token: FakeJobs(self.training, self.crashing, cluster_id),
            excluded=ledger.excluded,
            clock=lambda: self.kuberay.now_s,
        )

    def turn(self) -> None:
        self.operator.turn()
        self.settle()

    def clusters(self) -> set[str]:
        return {item["metadata"]["name"] for item in self.crashing.every(RAY_CLUSTER)}

    def running(self) -> list[str]:
        return [name for name, job in self.training.jobs.items() if job.status == "RUNNING"]

    def check(self) -> None:
        assert len(self.clusters()) <= 1
        assert len(self.running()) <= 1
        assert len(set(self.training.submitted)) == len(self.training.submitted)
        heads = [pod for pod in self.crashing.every(POD) if pod["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] == "head"]
        assert len(heads) <= 1


@pytest.fixture
def kuberay_world(make_operator: Any) -> Any:
    worlds: list[KubeRayWorld] = []

    def make(**spec: Any) -> KubeRayWorld:
        worlds.append(KubeRayWorld(make_operator, **spec))
        return worlds[-1]

    yield make
    for world in worlds:
        if world.engines is not None:
            world.engines.close()


def test_a_run_on_the_kuberay_engine_goes_from_its_creation_to_its_end(kuberay_world: Any):
    world = kuberay_world()
    for _ in range(200):
        world.turn()
        world.check()
        if world.operator.phase == "Succeeded":
            break
        world.tick()
    assert world.operator.phase == "Succeeded", world.operator.status.get("message")
    assert world.training.submitted == ["demo-s00-a1", "demo-s01-a2"]


@pytest.mark.parametrize("offset", [0, 4, 8])
def test_crashes_at_every_call_on_the_kuberay_engine_make_neither_a_second_cluster_nor_a_second_submission(kuberay_world: Any, offset: int):
    world = kuberay_world()
    crashes = 0
    for second in range(400):
        if second % PERIOD_S == offset or second < 6:
            crashes += crash_everywhere_in_one_turn(world.operator, world.crashing)
            world.check()
            world.settle()
        world.turn()
        world.check()
        if world.operator.phase == "Succeeded":
            break
        world.tick()
    assert world.operator.phase == "Succeeded", world.operator.status.get("message")
    assert world.training.submitted == ["demo-s00-a1", "demo-s01-a2"]
    assert crashes > 100


def test_a_node_is_lost_while_the_operator_crashes_at_every_call(kuberay_world: Any):
    world = kuberay_world(nodes={"spares": 1})
    lost = False
    for second in range(600):
        if second % PERIOD_S == 0:
            crash_everywhere_in_one_turn(world.operator, world.crashing)
            world.check()
            world.settle()
        world.turn()
        world.check()
        if world.operator.phase == "Running" and not lost and world.operator.status["progress"]["step"] > 6:
            lost = True
            head = next(pod for pod in world.crashing.every(POD) if pod["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] == "head")
            (job,) = (job for job in world.training.jobs.values() if job.status == "RUNNING")
            worker = next(pod for pod in job.ranks.values() if pod["spec"]["nodeName"] != head["spec"]["nodeName"])
            world.kuberay.cut_power(worker["spec"]["nodeName"])
        if world.operator.phase == "Succeeded":
            break
        world.tick()
    assert lost
    assert world.operator.phase == "Succeeded", world.operator.status.get("message")
    assert world.operator.status["attempt"] == 3


def test_a_deletion_on_the_kuberay_engine_gives_everything_back(kuberay_world: Any):
    world = kuberay_world()
    while world.operator.phase != "Running":
        world.turn()
        world.tick()
    world.crashing.delete(TRAINING_RUN, "team-a", "demo")
    for _ in range(60):
        if world.operator.object is None:
            break
        world.turn()
        world.tick()
    assert world.operator.object is None, world.operator.status.get("message")
    assert world.clusters() == set()
    assert world.running() == []
