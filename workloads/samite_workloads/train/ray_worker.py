"""One rank under Ray Train: facts from Ray's context, the loop from `loop.py`, a report before it dies.

Ray's own torch backend is replaced by one that only tells the ranks where to meet: the process group is made by `parallel/group.py`, on the network
interface of the node's address, exactly as without Ray.
"""

import os
import socket
from typing import Any

import ray.train
from ray.train.backend import Backend
from ray.train.torch import TorchConfig
from ray.util import get_node_ip_address

from samite.spec.attempt import AttemptSpec
from samite_workloads.parallel.group import Rendezvous, free_port
from samite_workloads.train.ranks import RankFacts


class RendezvousConfig(TorchConfig):
    """A TorchConfig whose backend tells the ranks where to meet and leaves the process group to them."""

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend below."""
        return RendezvousBackend


class RendezvousBackend(Backend):
    """Rank 0's node gives the address and a free port; every rank finds them in its environment."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:  # noqa: ARG002
        """Before the train function starts, on the controller."""
        host, port = worker_group.execute_single(0, _meeting_point)
        worker_group.execute(_remember_meeting_point, host, port)


def run_worker(config: dict[str, str]) -> None:
    """Ray Train's train function. Returns normally for failures that a restart of the worker group can't help: the driver reads the reports."""
    attempt = AttemptSpec.from_json(config["attempt"])
    os.environ.update(attempt.environment)
    from samite_workloads.train.failures import may_restart_in_place
    from samite_workloads.train.outcome import earlier_failure, fail, finish

    facts = ray_facts(gpus=int(attempt.run["spec"]["stages"][attempt.stage_index].get("gpusPerWorker", 0)))
    earlier = earlier_failure(attempt)
    if earlier is not None and not may_restart_in_place(earlier):
        return
    try:
        from samite_workloads.train.loop import train_stage

        result = train_stage(attempt, facts)
    except Exception as error:
        report = fail(attempt, facts, error, conclude=False)
        if may_restart_in_place(report):
            raise
        return
    if facts.rank == 0:
        finish(attempt, result)


def ray_facts(*, gpus: int) -> RankFacts:
    """This rank's facts from Ray Train's context and what the backend left in the environment."""
    context = ray.train.get_context()
    address = get_node_ip_address()
    meeting = Rendezvous(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        host=os.environ["SAMITE_MEETING_HOST"],
        port=int(os.environ["SAMITE_MEETING_PORT"]),
        node_address=address,
    )
    node = os.environ.get("SAMITE_NODE") or f"{socket.gethostname()}/{address}"
    return RankFacts(node=node, meeting=meeting, device_type="cuda" if gpus else "cpu")


def _meeting_point() -> tuple[str, int]:
    address = get_node_ip_address()
    return address, free_port(address)


def _remember_meeting_point(host: str, port: int) -> None:
    os.environ["SAMITE_MEETING_HOST"] = host
    os.environ["SAMITE_MEETING_PORT"] = str(port)
