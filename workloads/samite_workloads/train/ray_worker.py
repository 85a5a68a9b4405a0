"""One rank under Ray Train: facts from Ray's context, the loop from `loop.py`, a report before it dies.

The driver and the controller load this module too, to name the function that the ranks run: torch is imported inside it, by ranks alone.
"""

import os
import socket
import traceback
from typing import TYPE_CHECKING

import ray.train
from ray.util import get_node_ip_address

from samite.spec.attempt import AttemptSpec
from samite_workloads.train.rank_log import keep_output
from samite_workloads.train.ray_rendezvous import MEETING_HOST, MEETING_PORT, take_meeting_socket

if TYPE_CHECKING:
    from samite_workloads.train.ranks import RankFacts


def run_worker(config: dict[str, str]) -> None:
    """Ray Train's train function. Returns normally for failures that a restart of the worker group can't help: the driver reads the reports."""
    attempt = AttemptSpec.from_json(config["attempt"])
    os.environ.update(attempt.environment)
    from samite_workloads.bridge.ranks_side import bridged_rank

    facts = ray_facts(gpus=int(attempt.run["spec"]["stages"][attempt.stage_index].get("gpusPerWorker", 0)))
    collector = config.get("collector", "")
    with bridged_rank(attempt, rank=facts.rank, local_rank=facts.meeting.local_rank, collector=collector) as here:
        train_and_report(here, facts)


def train_and_report(attempt: AttemptSpec, facts: "RankFacts") -> None:
    """Train in the attempt's run folder, and leave there how it ended. Raises what a restart of the worker group may help."""
    from samite_workloads.train.outcome import attempt_folder, earlier_failure, fail, finish
    from samite_workloads.train.reports import may_restart_in_place

    earlier = earlier_failure(attempt)
    if earlier is not None and not may_restart_in_place(earlier):
        return
    keep_output(attempt_folder(attempt) / "logs", facts.rank)
    try:
        from samite_workloads.train.loop import train_stage

        result = train_stage(attempt, facts)
    except Exception as error:
        traceback.print_exc()
        report = fail(attempt, facts, error, conclude=False)
        if may_restart_in_place(report):
            raise
        return
    if facts.rank == 0:
        finish(attempt, result)


def ray_facts(*, gpus: int) -> "RankFacts":
    """This rank's facts from Ray Train's context and what the backend left in the environment."""
    from samite_workloads.parallel.group import Rendezvous
    from samite_workloads.train.ranks import RankFacts

    context = ray.train.get_context()
    address = get_node_ip_address()
    port = int(os.environ[MEETING_PORT])
    meeting = Rendezvous(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        host=os.environ[MEETING_HOST],
        port=port,
        node_address=address,
        listen_fd=take_meeting_socket(port),
    )
    node = os.environ.get("SAMITE_NODE") or f"{socket.gethostname()}/{address}"
    return RankFacts(node=node, meeting=meeting, device_type="cuda" if gpus else "cpu")
