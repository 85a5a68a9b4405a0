"""What Ray's dashboard answers in one turn: its nodes, and the submissions that matter. No answer is None, never a state."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from samite.engines.kuberay import names
from samite.engines.ray_jobs import Job, RayJobs
from samite.errors import NotFoundError, SamiteError
from samite.lifecycle import JobStatus, Memory

JobsOf = Callable[[str, str, str], RayJobs]
"""(cluster id, namespace, token) -> the cluster's dashboard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSeen:
    """What the dashboard said about one submission."""

    status: JobStatus
    message: str = ""
    actors_left: int | None = None
    """Actors of an ended one that are not dead. None: it runs, or Ray did not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RayView:
    """One cluster's dashboard in one turn."""

    states: Mapping[str, str] | None = None
    """`ALIVE` or `DEAD` by address; None: it did not answer."""
    jobs: Mapping[str, JobSeen] = field(default_factory=dict)
    """Each submission that it answered about."""

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
    found: dict[str, JobSeen] = {}
    for submission_id in submissions:
        try:
            job = jobs.job(submission_id)
            found[submission_id] = JobSeen(status=JobStatus(job.status.value), message=job.message, actors_left=_actors_left(jobs, job))
        except NotFoundError:
            found[submission_id] = JobSeen(status=JobStatus.NOT_FOUND)
        except (SamiteError, KeyError, ValueError):
            break
    return RayView(states=states, jobs=found)


def _actors_left(jobs: RayJobs, job: Job) -> int | None:
    """Asked only of a submission that is over: then it says whether a rank may still live."""
    if not job.status.is_over or not job.ray_job_id:
        return None
    try:
        return jobs.actors_left(job.ray_job_id)
    except (SamiteError, KeyError, TypeError):
        return None


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
