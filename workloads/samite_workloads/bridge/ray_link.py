"""The collector as a Ray actor beside the driver, and the way to it from any rank: Ray's own connections, no port of ours."""

from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from samite.errors import UnreachableError
from samite_workloads.bridge.messages import Answer, Greeting, Push, Welcome
from samite_workloads.bridge.receiving import Collector


class CollectorActor:
    """`Collector` under Ray's roof."""

    def __init__(self, run_folder: str, submission_id: str) -> None:
        self._collector = Collector(Path(run_folder), submission_id)

    def greet(self, greeting: Greeting) -> Welcome:
        """See `Collector.greet`."""
        return self._collector.greet(greeting)

    def push(self, push: Push) -> Answer:
        """See `Collector.push`."""
        return self._collector.push(push)


def start_collector(run_folder: Path, submission_id: str) -> tuple[str, Any]:
    """Start the actor on this node; returns its name and the handle that keeps it alive. Does not wait for it."""
    name = f"samite-collector-{submission_id}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(CollectorActor).options(num_cpus=0, max_restarts=-1, name=name, scheduling_strategy=here)
    return name, actor.remote(str(run_folder), submission_id)


class RayLink:
    """Calls the collector `name` of this job. One call at a time: while an unanswered one is under way, no other is sent after it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._actor: Any = None
        self._under_way: Any = None

    def greet(self, greeting: Greeting, *, timeout_s: float) -> Welcome:
        """See `Link.greet`."""
        found = self._call("greet", greeting, timeout_s)
        assert isinstance(found, Welcome)
        return found

    def push(self, push: Push, *, timeout_s: float) -> Answer:
        """See `Link.push`."""
        found = self._call("push", push, timeout_s)
        assert isinstance(found, Answer)
        return found

    def _call(self, method: str, message: Greeting | Push, timeout_s: float) -> Any:
        try:
            if self._under_way is not None:
                ready, _ = ray.wait([self._under_way], timeout=timeout_s)
                if not ready:
                    raise UnreachableError(f"{self._name} has not answered the call before this one for {timeout_s:.0f} s")
                self._under_way = None  # its answer is of no use: the next push says all that it said
            if self._actor is None:
                self._actor = ray.get_actor(self._name)
            reference = getattr(self._actor, method).remote(message)
            try:
                return ray.get(reference, timeout=timeout_s)
            except GetTimeoutError:
                self._under_way = reference
                raise
        except (RayError, ValueError) as error:
            if not isinstance(error, GetTimeoutError):
                self._actor = None
            raise UnreachableError(
                f"{self._name} did not take a {method}: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error
