"""The simulated world as an engine meets it: time passes, it is looked at, and actions are applied to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from samite.lifecycle import actions as act
from samite.lifecycle.evidence import sufficient
from samite.lifecycle.memory import Memory
from samite.lifecycle.observed import HandoverFound, Observed
from samite.lifecycle.simulation.things import BrokenPromiseError, SimCluster, SimJob, SimNode
from samite.lifecycle.simulation.trainer import Trainer
from samite.lifecycle.simulation.view import observe


class World(Trainer):
    """The world of one run. `tick` lets time pass, `observe` looks, `apply` acts; what goes wrong is in `faults`."""

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        self.now += seconds
        for cluster in self.clusters.values():
            if cluster.gone_at is not None and self.now >= cluster.gone_at and not cluster.gone:
                cluster.gone = True
                self.end_cluster(cluster)
        for name, (due, action) in list(self.on_the_way.items()):
            if self.now >= due:
                del self.on_the_way[name]
                self._accept(action)
        for job in self.jobs.values():
            self.advance(job)
        self.check()

    def observe(self, memory: Memory) -> Observed:
        """Everything as an engine would report it that looks for what `memory` knows by name."""
        return observe(self, memory)

    def apply(self, action: act.Action) -> None:
        """Do it, as a careful engine would; doing it again changes nothing."""
        if isinstance(action, (act.StopSubmission, act.KillRanks, act.ReplaceNode, act.StopCluster)):
            self._check_evidence(action)
        handlers: dict[type, Callable[[Any], None]] = {
            act.ProbeStorage: self._probe_storage,
            act.StartCluster: self._start_cluster,
            act.ReplaceNode: self._replace_node,
            act.StopCluster: self._stop_cluster,
            act.ReleaseCluster: self._release_cluster,
            act.ReleaseWorkers: self._release_workers,
            act.Submit: self._submit,
            act.StopSubmission: self._stop_submission,
            act.KillRanks: self._kill_ranks,
            act.CollectDiagnostics: self._collect_diagnostics,
            act.RequestCheckpoint: self._request_checkpoint,
            act.VerifyCheckpoint: self._verify_checkpoint,
            act.QuarantineCheckpoints: self._quarantine_checkpoints,
            act.EvaluateGate: self._evaluate_gate,
            act.CommitHandover: self._commit_handover,
            act.Finish: self._finish,
        }
        handlers[type(action)](action)
        self.check()

    def _check_evidence(self, action: act.StopSubmission | act.KillRanks | act.ReplaceNode | act.StopCluster) -> None:
        if getattr(action, "by_request", False) or sufficient(action.evidence):
            return
        if isinstance(action, act.StopCluster) and action.idle:
            busy = [job for job in self.live_jobs() if job.submit.cluster_id == action.cluster_id]
            if busy:
                raise BrokenPromiseError(f"{action} destroys {busy[0].submit.submission_id} as if the cluster were idle")
            return
        if isinstance(action, act.ReplaceNode) and action.idle:
            if any(rank.alive and rank.node == action.node for job in self.live_jobs() for rank in job.ranks):
                raise BrokenPromiseError(f"{action} takes a node that trains")
            return
        if isinstance(action, act.StopSubmission) and action.finished:
            job = self.jobs.get(action.submission_id)
            if job is None or job.result is None:
                raise BrokenPromiseError(f"{action}: there is no result")
            return
        raise BrokenPromiseError(f"destructive on too little evidence: {action}")

    def _probe_storage(self, action: act.ProbeStorage) -> None:
        self.probe_id = action.probe_id

    def _start_cluster(self, action: act.StartCluster) -> None:
        cluster = self.clusters.get(action.cluster_id)
        if cluster is None:
            cluster = self.clusters[action.cluster_id] = SimCluster(cluster_id=action.cluster_id, ready_at=self.now + self.cluster_up_s)
        if cluster.gone_at is not None:
            raise BrokenPromiseError(f"{action.cluster_id} is started again while it is being removed")
        for name in action.nodes:
            if name not in cluster.nodes:
                cluster.nodes[name] = SimNode(name=name, ready_at=self.now + self.node_up_s)

    def _replace_node(self, action: act.ReplaceNode) -> None:
        cluster = self.clusters[action.cluster_id]
        node = cluster.nodes.pop(action.node, None)
        if node is not None:
            for job in self.live_jobs():
                for rank in job.ranks:
                    if rank.node == action.node and rank.alive:
                        rank.alive = False
        if action.replacement not in cluster.nodes:
            cluster.nodes[action.replacement] = SimNode(name=action.replacement, ready_at=self.now + self.node_up_s)

    def _stop_cluster(self, action: act.StopCluster) -> None:
        self._take_down(action.cluster_id)

    def _release_cluster(self, action: act.ReleaseCluster) -> None:
        busy = [job for job in self.live_jobs() if job.submit.cluster_id == action.cluster_id and job.result is None]
        if busy and not action.by_request:
            raise BrokenPromiseError(f"{action} while {busy[0].submit.submission_id} is alive")
        self._take_down(action.cluster_id)

    def _release_workers(self, action: act.ReleaseWorkers) -> None:
        if any(job.submit.cluster_id == action.cluster_id for job in self.live_jobs()):
            raise BrokenPromiseError(f"{action} takes nodes that train")
        self.clusters[action.cluster_id].nodes.clear()
        self.clusters[action.cluster_id].head_kept = True

    def _take_down(self, cluster_id: str) -> None:
        cluster = self.clusters.setdefault(cluster_id, SimCluster(cluster_id=cluster_id, ready_at=self.now))
        if cluster.gone_at is None:
            cluster.gone_at = self.now + self.down_s

    def _submit(self, action: act.Submit) -> None:
        if self.submit_takes_s and action.submission_id not in self.jobs:
            self.on_the_way.setdefault(action.submission_id, (self.now + self.submit_takes_s, action))
        else:
            self._accept(action)

    def _accept(self, action: act.Submit) -> None:
        if action.submission_id in self.jobs:
            return
        cluster = self.clusters[action.cluster_id]
        if self.now < self.dashboard_silent_until or cluster.head_dead_since is not None or cluster.gone_at is not None:
            return  # refused: nobody answers
        if sum(1 for node in cluster.nodes.values() if node.dead_since is None) < action.num_nodes:
            return
        if self.attempts_seen and action.attempt <= self.attempts_seen[-1]:
            raise BrokenPromiseError(f"attempt {action.attempt} after {self.attempts_seen[-1]}")
        self.attempts_seen.append(action.attempt)
        job = SimJob(submit=replace(action), accepted_at=self.now)
        self.jobs[action.submission_id] = job
        if len(self.usable(cluster)) >= action.num_nodes:
            self.start_group(job, cluster)

    def _stop_submission(self, action: act.StopSubmission) -> None:
        cluster = self.clusters.get(action.cluster_id)
        if cluster is not None and (self.now < self.dashboard_silent_until or cluster.head_dead_since is not None):
            return
        self.stopping.setdefault(action.submission_id, self.now + self.stop_s)

    def _kill_ranks(self, action: act.KillRanks) -> None:
        job = self.jobs[action.submission_id]
        for rank in job.ranks:
            if job.incarnation == action.incarnation and rank.rank in action.ranks:
                rank.alive = False

    def _collect_diagnostics(self, action: act.CollectDiagnostics) -> None:
        self.diagnostics.add(action.diagnostics_id)

    def _request_checkpoint(self, action: act.RequestCheckpoint) -> None:
        job = self.jobs.get(action.submission_id)
        if job is not None and action.stop_after:
            job.stop_after_checkpoint = True

    def _verify_checkpoint(self, action: act.VerifyCheckpoint) -> None:
        for item in self.checkpoints:
            if item.checkpoint_id == action.checkpoint_id and item.verified is None:
                item.verified = True

    def _quarantine_checkpoints(self, action: act.QuarantineCheckpoints) -> None:
        for item in self.checkpoints:
            if (
                item.stage_index == action.stage_index
                and item.attempt <= action.attempts_up_to
                and item.step > action.after_step
                and item.checkpoint_id not in self.quarantined
            ):
                self.quarantined.append(item.checkpoint_id)

    def _evaluate_gate(self, action: act.EvaluateGate) -> None:
        self.gate_id = action.gate_id

    def _commit_handover(self, action: act.CommitHandover) -> None:
        if self.now < self.storage_silent_until or action.stage_index in self.handovers:
            return
        if action.document["checkpointId"] not in {item.checkpoint_id for item in self.checkpoints}:
            raise BrokenPromiseError(f"hand-over names {action.document['checkpointId']}, which does not exist")
        self.handover_puts[action.stage_index] = self.handover_puts.get(action.stage_index, 0) + 1
        self.handovers[action.stage_index] = HandoverFound(
            stage_index=action.stage_index,
            content_hash=action.content_hash,
            run_uid=self.uid,
            checkpoint_id=action.document["checkpointId"],
        )

    def _finish(self, action: act.Finish) -> None:
        alive = [cluster.cluster_id for cluster in self.clusters.values() if not (cluster.gone or cluster.head_kept)]
        if alive and action.outcome != "Cancelled":
            raise BrokenPromiseError(f"finished while {alive} exist")
        self.finished = action.outcome
