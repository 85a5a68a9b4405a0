"""What Ray's dashboard answers in one turn: its nodes, and the submissions that matter. No answer is None, never a state."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from samite.engines.kuberay import names
from samite.engines.ray_jobs import RayJobs
from samite.errors import NotFoundError, SamiteError
from samite.lifecycle import JobStatus, Memory

JobsOf = Callable[[str, str, str], RayJobs]
"""(cluster id, namespace, token) -> the cluster's dashboard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RayView:
    """One cluster's dashboard in one turn."""

    states: Mapping[str, str] | None = None
    """`ALIVE` or `DEAD` by address; None: it did not answer."""
    jobs: Mapping[str, tuple[JobStatus, str]] = field(default_factory=dict)
    """(status, message) of each submission that it answered about."""

    @property
    def answers(self) -> bool:
        """True if the dashboard spoke."""
        return self.states is not None


def look_at_ray(jobs: RayJobs, submissions: Iterable[str]) -> RayView:
    """Ask for nodes and jobs; the first question without an answer ends it."""
    try:
        states = jobs.node_states()
    except (SamiteError, KeyError, TypeError):
        return RayView()
    found: dict[str, tuple[JobStatus, str]] = {}
    for submission_id in submissions:
        try:
            job = jobs.job(submission_id)
            found[submission_id] = (JobStatus(job.status.value), job.message)
        except NotFoundError:
            found[submission_id] = (JobStatus.NOT_FOUND, "")
        except (SamiteError, KeyError, ValueError):
            break
    return RayView(states=states, jobs=found)


def jobs_of_service(cluster_id: str, namespace: str, token: str) -> RayJobs:
    """The dashboard behind the head's Service: only to be reached inside the cluster."""
    return RayJobs(address=names.dashboard(cluster_id, namespace), token=token)


def wanted_submissions(memory: Memory) -> dict[str, str]:
    """The submissions that the lifecycle still has to do with, and the cluster of each."""
    found: dict[str, str] = {}
    if memory.recovery is not None and memory.recovery.old_submission:
        found[memory.recovery.old_submission] = memory.recovery.old_cluster
    if memory.live is not None:
        found[memory.live.submission_id] = memory.live.cluster_id
    return found


def wanted_clusters(memory: Memory) -> tuple[str, ...]:
    """The clusters that the lifecycle wants or waits to see gone."""
    known = [memory.cluster.cluster_id] if memory.cluster is not None else []
    if memory.recovery is not None and memory.recovery.old_cluster:
        known.append(memory.recovery.old_cluster)
    return tuple(dict.fromkeys(known))
