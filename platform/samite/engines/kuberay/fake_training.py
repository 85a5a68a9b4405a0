"""Ray's dashboard and the training behind it in virtual time: jobs, ranks on pods, heartbeats in the Lease, checkpoints in a store.

A job lives on its head's pod. Ranks step together once a second while all of their pods run; the driver renews the Lease, commits each
`checkpoint_every` steps, stops after a last one when it is asked to, and ends with a result. What a real driver would refuse is refused: a submission
id taken twice, a resume from nothing.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from samite.checkpoint import Catalog, Store, open_store
from samite.checkpoint.checksum import block_checksums, combine_blocks
from samite.checkpoint.commit import CommitRequest, build_manifest, commit, move_hint
from samite.checkpoint.fence import open_session
from samite.checkpoint.index import Chunk, DataObject, RankIndex, TensorMeta
from samite.checkpoint.layout import CheckpointId, checkpoint_key, data_name, index_name
from samite.engines.kuberay import names
from samite.engines.kuberay.api import LEASE, POD, ApiError, ConflictApiError, Document
from samite.engines.kuberay.control import control_documents
from samite.engines.kuberay.fake_kuberay import RAY_DEAD_AFTER_S, FakeKubeRay
from samite.engines.kuberay.submission import attempt_in
from samite.spec.attempt import AttemptResult, AttemptSpec, Heartbeat
from samite.spec.lease import (
    CHECKPOINTS,
    HEARTBEATS,
    RESULT,
    SUBMISSION,
    RankSign,
    heartbeats_annotation,
    lease_name,
    result_annotation,
)

LOADS_IN_S = 3.0
GIVES_UP_AFTER_S = 40.0
"""A driver that misses ranks for so long ends as failed."""


@dataclass(slots=True)
class FakeJob:
    """One submission."""

    attempt: AttemptSpec
    head_uid: str
    status: str = "RUNNING"
    message: str = ""
    began_s: float = 0.0
    ranks: dict[int, Document] = field(default_factory=dict)
    """Pod of each rank."""
    step: int = -1
    stage_step: int = 0
    beat_s: dict[int, float] = field(default_factory=dict)
    heard_s: dict[int, float] = field(default_factory=dict)
    checkpoint: str = ""
    checkpoint_step: int = -1
    missing_since_s: float | None = None
    outcome: str = "stage_complete"
    loading: bool = False
    """Its ranks say that they load, whatever they do."""
    renewals: int = 0
    lease_version: str = ""
    """Of its Lease, from the last answer that still named this submission; empty: read it first."""
    control: dict[str, Any] = field(default_factory=dict)
    """What the operator asks, from the same answer."""


@dataclass(slots=True)
class FakeTraining:
    """All jobs of all clusters. `tick` lets a second pass, after the world's."""

    world: FakeKubeRay
    store: Store | None
    """Of every run; None: each run's own, which its URI names."""
    checkpoint_every: int = 5
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    dashboard_is_down: bool = False
    joins_after_s: float = 0.0
    """How long a pod runs before Ray knows its node."""

    # Ray's dashboard

    def head_of(self, cluster_id: str) -> Document | None:
        """The head's pod if its dashboard would answer."""
        if self.dashboard_is_down:
            return None
        heads = [pod for pod in self._pods(cluster_id) if pod["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] == "head"]
        return next((pod for pod in heads if self.world.runs(pod)), None)

    def submit(self, cluster_id: str, submission_id: str, entrypoint: str) -> bool:
        """False if the id is taken."""
        head = self.head_of(cluster_id)
        assert head is not None, "nobody answers"
        if submission_id in self.jobs:
            return False
        attempt = attempt_in(entrypoint)
        assert attempt.submission_id == submission_id
        self.submitted.append(submission_id)
        self.jobs[submission_id] = FakeJob(attempt=attempt, head_uid=head["metadata"]["uid"], began_s=self.world.now_s)
        return True

    def job(self, cluster_id: str, submission_id: str) -> FakeJob | None:
        """A job that this head knows."""
        head, job = self.head_of(cluster_id), self.jobs.get(submission_id)
        return job if head is not None and job is not None and job.head_uid == head["metadata"]["uid"] else None

    def actors_left(self, ray_job_id: str) -> int:
        """Actors that Ray holds for alive: a job's end is the end of all of its own."""
        job = self.jobs.get(ray_job_id)
        return len(job.ranks) if job is not None and job.status == "RUNNING" else 0

    def nodes(self, cluster_id: str) -> Iterator[dict[str, str]]:
        """Ray's list of nodes."""
        for pod in self._pods(cluster_id):
            if pod.get("status", {}).get("podIP") and self.world.ran_for_s(pod) >= self.joins_after_s:
                dead = not self.world.runs(pod) and self.world.down_for_s(pod) >= RAY_DEAD_AFTER_S
                yield {"node_ip": pod["status"]["podIP"], "state": "DEAD" if dead else "ALIVE"}

    # Training

    def tick(self) -> None:
        """A second of training of every job."""
        for job in self.jobs.values():
            if job.status == "RUNNING":
                self._run(job)

    def _run(self, job: FakeJob) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self.world.api.every(POD)}
        head = pods.get(job.head_uid)
        if head is None or not self.world.runs(head):
            return  # the driver is gone with its pod
        if not job.ranks and not self._place(job, head["metadata"]["labels"][names.RAY_CLUSTER_LABEL]):
            return
        now_s = self.world.now_s
        lost = [
            rank
            for rank, pod in job.ranks.items()
            if not self.world.runs(pods.get(pod["metadata"]["uid"], {"spec": {}, "metadata": {"uid": ""}}))
        ]
        for rank in job.ranks:
            if rank not in lost:
                job.heard_s[rank] = now_s
        if lost:
            job.missing_since_s = job.missing_since_s or now_s
            if now_s - job.missing_since_s > GIVES_UP_AFTER_S:
                job.status, job.message = "FAILED", "the worker group failed"
        elif now_s - job.began_s >= LOADS_IN_S:
            self._step(job)
            if job.status == "RUNNING" and "stop.json" in job.control:
                self._commit(job, final=False)
                job.status, job.outcome = "SUCCEEDED", "stopped"
        self._renew(job)

    def _place(self, job: FakeJob, cluster_id: str) -> bool:
        workers = [
            pod
            for pod in self._pods(cluster_id)
            if pod["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] == "worker"
            and self.world.runs(pod)
            and self.world.ran_for_s(pod) >= self.joins_after_s
        ]
        if len(workers) < job.attempt.num_workers:
            return False
        job.ranks = dict(enumerate(workers[: job.attempt.num_workers]))
        job.beat_s = dict.fromkeys(job.ranks, self.world.now_s)
        job.heard_s = dict.fromkeys(job.ranks, self.world.now_s)
        newest = Catalog(self._store(job)).newest_committed()
        assert newest is not None or job.attempt.resume == "none", "resume from nothing"
        job.step = newest.step if newest is not None else 0
        stage = newest.manifest.extra["state"] if newest is not None and newest.manifest is not None else {}
        job.stage_step = int(stage.get("stage_step", 0)) if stage.get("stage_index") == job.attempt.stage_index else 0
        return True

    def _step(self, job: FakeJob) -> None:
        budget = int(job.attempt.run["spec"]["stages"][job.attempt.stage_index]["budget"]["steps"])
        job.step, job.stage_step = job.step + 1, job.stage_step + 1
        job.beat_s = dict.fromkeys(job.ranks, self.world.now_s)
        over = job.stage_step >= budget
        if over or job.stage_step % self.checkpoint_every == 0:
            self._commit(job, final=over)
        if over:
            job.status = "SUCCEEDED"

    def _store(self, job: FakeJob) -> Store:
        return self.store if self.store is not None else open_store(job.attempt.checkpoint_uri)

    def _commit(self, job: FakeJob, *, final: bool) -> None:
        store = self._store(job)
        fence = open_session(store, run_uid=job.attempt.run_uid, epoch=job.attempt.attempt, nonce=secrets.token_hex(8))
        checkpoint_id = str(CheckpointId(step=job.step, epoch=job.attempt.attempt, attempt=secrets.token_hex(4)))
        data = bytes(12)
        checksum = combine_blocks(block_checksums(memoryview(data)), len(data))
        store.put(checkpoint_key(checkpoint_id, data_name(0, 0)), data)
        index = RankIndex(
            checkpoint_id=checkpoint_id,
            rank=0,
            tensors=(TensorMeta("w", "float32", (1, 3)),),
            objects=(DataObject(data_name(0, 0), len(data), checksum),),
            chunks=(Chunk(0, ((0, 1), (0, 3)), 0, len(data), 0, 0, checksum, (checksum,)),),
            witnesses=(),
        )
        store.put(checkpoint_key(checkpoint_id, index_name(0)), index.to_bytes())
        state = {"stage_index": job.attempt.stage_index, "stage_step": job.stage_step, "tokens": job.step * 2048}
        manifest = build_manifest(
            store,
            CommitRequest(
                checkpoint_id=checkpoint_id,
                step=job.step,
                world_size=1,
                session=fence.session,
                run_uid=job.attempt.run_uid,
                created_unix_s=1.0,
                extra={"state": state},
                final=final,
            ),
        )
        commit(store, manifest)
        move_hint(store, checkpoint_id)
        job.checkpoint, job.checkpoint_step = checkpoint_id, job.step

    def _renew(self, job: FakeJob) -> None:
        """The driver's renewal, once more after a conflict; an API server that is away costs nothing but the renewal."""
        for _ in range(2):
            try:
                self._renew_once(job)
            except ConflictApiError:
                job.lease_version = ""
            except ApiError:
                return
            else:
                return

    def _renew_once(self, job: FakeJob) -> None:
        api, name = self.world.api, job.attempt.run["metadata"]["name"]
        namespace = job.attempt.run["metadata"]["namespace"]
        if not job.lease_version:
            self._take(job, api.look(LEASE, namespace, lease_name(name)))
        if not job.lease_version:
            return
        job.renewals += 1
        annotations = {HEARTBEATS: heartbeats_annotation(list(self._signs(job)), now_s=self.world.now_s)}
        if job.checkpoint:
            annotations[CHECKPOINTS] = f'{{"id": "{job.checkpoint}", "step": {job.checkpoint_step}}}'
        if job.status == "SUCCEEDED":
            result = AttemptResult(
                outcome=job.outcome,
                submission_id=job.attempt.submission_id,
                step=job.step,
                tokens=job.step * 2048,
                checkpoint_id=job.checkpoint,
            )
            annotations[RESULT] = result_annotation(result)
        patch = {
            "metadata": {"resourceVersion": job.lease_version, "annotations": annotations},
            "spec": {"holderIdentity": "driver", "renewTime": f"renewal-{job.renewals}"},
        }
        job.lease_version = ""
        self._take(job, api.patch(LEASE, namespace, lease_name(name), patch))

    def _take(self, job: FakeJob, lease: Document | None) -> None:
        """What an answer says: whether the Lease is still this submission's, and what the operator wants."""
        annotations = (lease["metadata"].get("annotations") or {}) if lease is not None else {}
        if lease is not None and annotations.get(SUBMISSION) == job.attempt.submission_id:
            job.lease_version, job.control = str(lease["metadata"]["resourceVersion"]), control_documents(annotations)

    def _signs(self, job: FakeJob) -> Iterator[RankSign]:
        for rank, pod in job.ranks.items():
            loaded = not job.loading and (job.stage_step > 0 or self.world.now_s - job.began_s >= LOADS_IN_S)
            beat = Heartbeat(
                rank=rank,
                node=pod["metadata"]["name"],
                pid=100 + rank,
                submission_id=job.attempt.submission_id,
                incarnation=0,
                step=job.step,
                tokens=job.step * 2048,
                phase="training" if loaded else "loading",
                monotonic_s=job.beat_s[rank],
                time_unix_s=0.0,
                step_median_s=1.0,
                stage_step=job.stage_step,
                checkpoint_step=job.checkpoint_step,
            )
            yield RankSign(heartbeat=beat, heard_at_s=job.heard_s[rank], cpu_share=0.9, cpu_window_s=10.0)

    def _pods(self, cluster_id: str) -> list[Document]:
        return [pod for pod in self.world.api.every(POD) if pod["metadata"]["labels"].get(names.RAY_CLUSTER_LABEL) == cluster_id]
