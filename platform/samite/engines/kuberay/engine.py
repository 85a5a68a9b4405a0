"""`KubeRayEngine`: observe and apply for every run of one namespace, each within its time. See the package's docstring for the loop."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.api import ApiError, KubernetesApi, PermanentApiError, RetryableApiError
from samite.engines.kuberay.apply import Applier
from samite.engines.kuberay.background import Background
from samite.engines.kuberay.clusters import Clusters
from samite.engines.kuberay.node_watch import NodeWatch
from samite.engines.kuberay.observe import Observer
from samite.engines.kuberay.ray_view import JobsOf, jobs_of_service
from samite.engines.kuberay.runtime import Runtime
from samite.engines.kuberay.sight import Sight, StorageOf, storage_of_spec
from samite.errors import ConflictError, NotAllowedError, NotFoundError, SamiteError, SpecError
from samite.lifecycle import Action, Memory, Observed, RunPlan

_logger = logging.getLogger(__name__)
APPLY_WITHIN_S = 25.0
"""Actions that are not begun by then come again in the next turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApplyProblem:
    """One action that did not succeed."""

    action: str
    """Name of the action's class."""
    message: str
    """What was wanted, what was found, what to do; fit for a condition or an event."""
    permanent: bool
    """True: waiting will not help; a person must change the run, a right or the installation."""


class KubeRayEngine:
    """The Kubernetes engine of one namespace. Safe to call from many threads; the calls for one run exclude each other."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        namespace: str,
        token_key: bytes,
        storage: StorageOf | None = None,
        jobs: JobsOf | None = None,
        excluded: Callable[[], frozenset[str]] | None = None,
        nodes: NodeWatch | None = None,
        storage_period_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nodes`: the operator's one watch on machines, shared by the engines of all namespaces; a new one if left out.

        `storage_period_s`: how often each run's storage is listed.
        """
        self._clock = clock
        # Anchored once: a wall clock that jumps later moves nothing.
        self._epoch_s = time.time() - clock()
        self._storage_of = storage or storage_of_spec
        self._storage_period_s = storage_period_s
        self._background = Background(clock=clock)
        jobs_of = jobs or jobs_of_service
        nodes = nodes or NodeWatch(api, clock)
        none: Callable[[], frozenset[str]] = frozenset
        self._clusters = Clusters(api, nodes, namespace=namespace, token_key=token_key, excluded=excluded or none, clock=clock)
        self._observer = Observer(
            api, nodes, self._background, namespace=namespace, jobs_of=jobs_of, token_of=self._clusters.token, clock=clock
        )
        self._applier = Applier(api, self._clusters, self._background, namespace=namespace, jobs_of=jobs_of, clock=clock)
        self._lock = threading.Lock()
        self._sights: dict[str, Sight] = {}

    def now_s(self) -> float:
        """Seconds on the clock that `decide` gets: like the wall clock when the engine was made, and never jumping afterwards."""
        return self._epoch_s + self._clock()

    def observe(self, run: Mapping[str, Any], plan: RunPlan, memory: Memory) -> Observed:
        """Everything known about the run now. Raises nothing; what did not answer is unknown."""
        sight = self._sight(plan.uid)
        with sight.lock:
            sight.open_storage(run, self._storage_of, self._clock, self._storage_period_s)
            return self._observer.look(run, memory, sight, self.now_s())

    def apply(self, run: Mapping[str, Any], plan: RunPlan, actions: Iterable[Action], *, runtime: Runtime | None) -> list[ApplyProblem]:
        """Apply `actions` in order; gives what did not succeed. Store the memory that came with them first.

        `runtime` None: the run is being taken down, nothing is started.
        """
        sight, ends_s = self._sight(plan.uid), self._clock() + APPLY_WITHIN_S
        problems: list[ApplyProblem] = []
        with sight.lock:
            sight.open_storage(run, self._storage_of, self._clock, self._storage_period_s)
            for action in actions:
                if self._clock() > ends_s:
                    problems.append(_problem(action, "not begun in this turn: the ones before took too long", permanent=False))
                    continue
                try:
                    self._applier.apply(run, action, runtime, sight)
                except SamiteError as error:
                    problems.append(_problem(action, _told(error), permanent=_is_permanent(error)))
                    if isinstance(error, RetryableApiError):
                        break  # the rest would wait for the same server
        for problem in problems:
            _logger.warning("%s of run %s did not succeed: %s", problem.action, plan.name, problem.message)
        return problems

    def note_pod(self, pod: Mapping[str, Any]) -> None:
        """Keep what a watch saw of a pod: KubeRay deletes an ended one before the next turn can look at it."""
        uid = (pod["metadata"].get("labels") or {}).get(names.RUN_UID, "")
        with self._lock:
            sight = self._sights.get(uid)
        if sight is not None:
            with sight.lock:
                sight.note_pod(pod)

    def take_events(self, uid: str) -> list[tuple[str, dict[str, Any]]]:
        """(name, attributes) of what the storage thread has done since the last call: checkpoints verified, set aside, pruned."""
        sight = self._sight(uid)
        with sight.lock:
            told, sight.told = sight.told, []
        return told

    def forget(self, uid: str) -> None:
        """The run is over or gone: end its storage thread, drop what was seen."""
        with self._lock:
            sight = self._sights.pop(uid, None)
        self._background.forget(f"{uid}/")
        if sight is not None:
            sight.close()

    def close(self) -> None:
        """End every thread. The runs go on."""
        for uid in list(self._sights):
            self.forget(uid)
        self._background.close()

    def _sight(self, uid: str) -> Sight:
        with self._lock:
            return self._sights.setdefault(uid, Sight(uid=uid))


def _problem(action: Action, message: str, *, permanent: bool) -> ApplyProblem:
    return ApplyProblem(action=type(action).__name__, message=message, permanent=permanent)


def _told(error: SamiteError) -> str:
    if not isinstance(error, SpecError):
        return str(error)
    lines = [f"{item.path}: wanted {item.wanted}; found {item.found}; {item.hint}" for item in error.problems]
    return f"KubeRay would refuse it: {' | '.join(lines)}"


def _is_permanent(error: SamiteError) -> bool:
    if isinstance(error, SpecError | PermanentApiError | NotAllowedError):
        return True
    # A conflict of versions is over in the next turn; a name that somebody else holds is not.
    return isinstance(error, ConflictError | NotFoundError) and not isinstance(error, ApiError)
