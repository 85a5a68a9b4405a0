"""Ray and the trainer of the simulated world: how a submission lives, fails, restarts its worker group and ends."""

from samite.lifecycle.actions import Submit
from samite.lifecycle.observed import HandoverFound, JobStatus
from samite.lifecycle.rollback import covered
from samite.lifecycle.simulation.things import LIVE, BrokenPromiseError, SimCheckpoint, SimCluster, SimJob, SimNode, SimRank
from samite.spec.attempt import AttemptResult, FailureReport


class Trainer:
    """State of the world, and the part of it that moves by itself."""

    start_s, load_s, first_step_s, step_s = 3.0, 2.0, 2.0, 1.0
    ray_reacts_s, node_up_s, cluster_up_s, down_s, stop_s, gather_s = 2.0, 4.0, 4.0, 2.0, 2.0, 60.0

    def __init__(self, *, uid: str, stage_steps: tuple[int, ...], checkpoint_every: int = 5) -> None:
        self.uid, self.stage_steps, self.checkpoint_every = uid, stage_steps, checkpoint_every
        self.now = 1000.0
        self.clusters: dict[str, SimCluster] = {}
        self.jobs: dict[str, SimJob] = {}
        self.stopping: dict[str, float] = {}
        self.submit_takes_s = 0.0
        self.on_the_way: dict[str, tuple[float, Submit]] = {}
        """Submissions that were sent and have not arrived."""
        self.checkpoints: list[SimCheckpoint] = []
        self.quarantined: list[str] = []
        self.handovers: dict[int, HandoverFound] = {}
        self.handover_puts: dict[int, int] = {}
        self.diagnostics: set[str] = set()
        self.gate_id = ""
        self.gate_values: dict[str, float] = {}
        self.probe: bool | None = True
        self.probe_id = ""
        self.dashboard_silent_until = 0.0
        self.storage_silent_until = 0.0
        self.poisoned: set[tuple[int, int]] = set()
        self.spiking: set[tuple[int, int]] = set()
        """Rows that make the loss leave its band, each time; the trainer says so after the last of them."""
        self.raising_at: dict[int, str] = {}
        """Steps at which rank 0 raises an exception, once each; value is the failure class."""
        self.always_raising = ""
        self.attempts_seen: list[int] = []
        self.finished: str = ""
        self.suspend = False
        self.cancel = False

    def advance(self, job: SimJob) -> None:
        """Let one job live for a moment."""
        name, cluster = job.submit.submission_id, self.clusters[job.submit.cluster_id]
        if name in self.stopping and self.now >= self.stopping[name] and job.status in LIVE and job.driver_alive:
            self._end(job, JobStatus.STOPPED, "")
            return
        if job.status not in LIVE:
            return
        if cluster.head_dead_since is not None:
            if self.now - cluster.head_dead_since >= self.ray_reacts_s:
                self.kill_group(job)
                job.driver_alive = False
            return
        if not job.driver_alive:
            if self.now - (job.broken_at or self.now) >= self.ray_reacts_s:
                self._end(job, JobStatus.FAILED, "the driver died")
            return
        if not job.ranks and job.incarnation == 0:
            self._gather(job, cluster)
            return
        if any(not rank.alive for rank in job.ranks):
            job.broken_at = job.broken_at if job.broken_at is not None else self.now
            if self.now - job.broken_at >= self.ray_reacts_s:
                self._ray_reacts(job, cluster)
            return
        if all(not (rank.stopped or rank.asleep) for rank in job.ranks) and job.ranks:
            self._train(job)

    def _gather(self, job: SimJob, cluster: SimCluster) -> None:
        """The driver waits for its nodes, and gives up when one does not come."""
        if len(self.usable(cluster)) >= job.submit.num_nodes:
            self.start_group(job, cluster)
        elif self.now - job.accepted_at >= self.gather_s:
            self._end(job, JobStatus.FAILED, "WorkerGroupStartupTimeoutError: the placement group was not ready in time")

    def _ray_reacts(self, job: SimJob, cluster: SimCluster) -> None:
        self.kill_group(job)
        if job.incarnation >= job.submit.worker_group_restarts:
            self._end(job, JobStatus.FAILED, "worker group failed: ActorDiedError")
            return
        if len(self.usable(cluster)) >= job.submit.num_nodes:
            job.incarnation += 1
            self.start_group(job, cluster)

    def _train(self, job: SimJob) -> None:
        since = self.now - job.group_since
        if since < self.start_s:
            return
        if since < self.start_s + self.load_s:
            self._beat(job, "loading" if since > self.start_s + 1.0 else "starting")
            return
        if job.step < 0:
            self._resume(job)
            self._beat(job, "first_step")
            return
        if since < self.start_s + self.load_s + self.first_step_s:
            return
        window = (job.step, job.step + 1)
        if self._fails(job, window):
            return
        job.step += 1
        job.stage_step += 1
        self._beat(job, "training")
        done = job.stage_step >= self.stage_steps[job.submit.stage_index]
        if self.now < self.storage_silent_until:
            if done:
                job.step, job.stage_step = job.step - 1, job.stage_step - 1
            return
        if job.step % self.checkpoint_every == 0 or done or job.stop_after_checkpoint:
            found = self._commit(job)
            if done or job.stop_after_checkpoint:
                outcome = "stage_complete" if done else "stopped"
                job.result = AttemptResult(
                    outcome=outcome, submission_id=job.submit.submission_id, step=job.step, tokens=job.step * 10, checkpoint_id=found
                )
                self._beat(job, "finishing")
                self.kill_group(job)
                self._end(job, JobStatus.SUCCEEDED, "")

    def _fails(self, job: SimJob, window: tuple[int, int]) -> bool:
        if window in self.poisoned and window not in job.submit.skip_data_windows:
            self._raise(job, "numeric", "loss is nan", window)
            return True
        for first, end in self.spiking:
            if job.step + 1 == end and not covered((first, end), job.submit.skip_data_windows):
                self._raise(job, "numeric", "loss 9 where 2 is usual", (first, end), error_type="LossSpike", good_step=first)
                return True
        failure_class = self.raising_at.pop(job.step, "") or (self.always_raising if job.step % 5 == 3 else "")
        if failure_class:
            self._raise(job, failure_class, {"oom": "CUDA out of memory", "application": "boom"}.get(failure_class, "failed"), None)
            return True
        return False

    def _raise(
        self,
        job: SimJob,
        failure_class: str,
        message: str,
        window: tuple[int, int] | None,
        *,
        error_type: str = "RuntimeError",
        good_step: int = -1,
    ) -> None:
        job.reports.append(
            FailureReport(
                failure_class=failure_class,
                error_type=error_type,
                message=message,
                rank=0,
                node=job.ranks[0].node,
                incarnation=job.incarnation,
                step=job.step,
                traceback=f"Traceback: {message}",
                data_window=window,
                good_step=good_step,
                time_unix_s=self.now,
            )
        )
        job.ranks[0].alive = False

    def _resume(self, job: SimJob) -> None:
        usable = [item for item in self.checkpoints if item.verified is not False and item.checkpoint_id not in self.quarantined]
        if job.submit.resume == "none" and job.incarnation == 0:
            if usable:
                raise BrokenPromiseError(f"{job.submit.submission_id} starts from nothing although {usable[-1].checkpoint_id} exists")
            job.step, job.stage_step = 0, 0
            return
        newest = max(usable, key=lambda item: (item.step, item.attempt), default=None)
        if newest is None:
            if job.submit.resume != "none":
                raise BrokenPromiseError(f"{job.submit.submission_id} was told to resume and finds no checkpoint")
            job.step, job.stage_step = 0, 0
            return
        job.step = newest.step
        job.stage_step = newest.stage_step if newest.stage_index == job.submit.stage_index else 0
        if job.submit.stage_index > 0:
            before = self.handovers.get(job.submit.stage_index - 1)
            if before is None or before.content_hash != job.submit.handover:
                raise BrokenPromiseError(f"{job.submit.submission_id} starts a stage without the committed hand-over")
        if newest.stage_index > job.submit.stage_index:
            raise BrokenPromiseError(
                f"{job.submit.submission_id} trains stage {job.submit.stage_index} after {newest.stage_index} had begun"
            )

    def _commit(self, job: SimJob) -> str:
        name = f"{job.step:08d}-{job.submit.attempt}"
        self.checkpoints.append(
            SimCheckpoint(
                checkpoint_id=name,
                step=job.step,
                stage_index=job.submit.stage_index,
                stage_step=job.stage_step,
                attempt=job.submit.attempt,
                committed_at=self.now,
            )
        )
        return name

    def _beat(self, job: SimJob, phase: str) -> None:
        for rank in job.ranks:
            if rank.alive and not rank.stopped:
                rank.phase, rank.step, rank.beat_at = phase, job.step, self.now
                job.beats[rank.rank] = (job.incarnation, rank)

    def start_group(self, job: SimJob, cluster: SimCluster) -> None:
        """Start the worker group of the job's incarnation."""
        nodes = self.usable(cluster)[: job.submit.num_nodes]
        each = job.submit.num_workers // job.submit.num_nodes
        job.ranks = [SimRank(rank=number, node=nodes[number // each].name) for number in range(job.submit.num_workers)]
        job.group_since, job.step, job.stage_step, job.broken_at = self.now, -1, 0, None

    def usable(self, cluster: SimCluster) -> list[SimNode]:
        """Nodes that are up."""
        return [node for node in cluster.nodes.values() if node.dead_since is None and node.ready_at <= self.now]

    def kill_group(self, job: SimJob) -> None:
        """End the processes of all ranks."""
        for rank in job.ranks:
            rank.alive = False

    def _end(self, job: SimJob, status: JobStatus, message: str) -> None:
        if not job.leaves_orphans:
            self.kill_group(job)
        job.status, job.message, job.driver_alive = status, message, False

    def end_cluster(self, cluster: SimCluster) -> None:
        """A cluster is gone, with everything in it."""
        for job in self.jobs.values():
            if job.submit.cluster_id == cluster.cluster_id:
                self.kill_group(job)
                job.driver_alive = False
                if job.status in LIVE:
                    job.status = JobStatus.FAILED
        for node in cluster.nodes.values():
            node.dead_since = node.dead_since if node.dead_since is not None else self.now

    def live_jobs(self) -> list[SimJob]:
        """Jobs of which something may be alive."""
        return [job for job in self.jobs.values() if job.driver_alive or any(rank.alive for rank in job.ranks)]

    def check(self) -> None:
        """Raise if two submissions are alive."""
        alive = self.live_jobs()
        if len(alive) > 1:
            raise BrokenPromiseError(f"two live submissions: {', '.join(job.submit.submission_id for job in alive)}")

    def running(self) -> SimJob | None:
        """The job that trains now, if any."""
        return next((job for job in self.jobs.values() if job.status in LIVE and job.driver_alive), None)
