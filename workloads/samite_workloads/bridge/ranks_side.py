"""How a rank under Ray stands on the bridge: its attempt with the run folder of its own pod, and a thread that sends what happens there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from samite.spec.attempt import AttemptSpec
from samite_workloads import faults
from samite_workloads.bridge.arrival import local_run_folder
from samite_workloads.bridge.rank import RankBridge, period_s
from samite_workloads.bridge.sending import RankFolder


@contextmanager
def bridged_rank(attempt: AttemptSpec, *, rank: int, local_rank: int, collector: str) -> Iterator[AttemptSpec]:
    """The attempt as this pod sees it. Without a collector the folder is shared and the attempt stays as it is.

    Whatever the rank wrote last is with the driver before this returns or raises.
    """
    if not collector:
        yield attempt
        return
    from samite_workloads.bridge.ray_link import RayLink

    here = replace(attempt, run_folder=str(local_run_folder(attempt)))
    for part in ("heartbeats", "metrics", "control", f"attempts/{attempt.submission_id}/logs"):
        (Path(here.run_folder) / part).mkdir(parents=True, exist_ok=True)
    folder = RankFolder(Path(here.run_folder), submission_id=attempt.submission_id, rank=rank, leads=local_rank == 0)
    bridge = RankBridge(folder, RayLink(collector), every_s=period_s(attempt.num_workers))
    bridge.open()
    here.write(Path(here.run_folder) / "attempts" / attempt.submission_id / "attempt.json")
    faults.before_kill(bridge.flush)
    try:
        yield here
    finally:
        faults.before_kill(None)
        _say(rank, bridge)
        bridge.close()


def _say(rank: int, bridge: RankBridge) -> None:
    line = f"bridge of rank {rank}: {bridge.pushes} pushes, {bridge.sent_bytes} bytes, {bridge.errors} periods without an answer\n"
    os.write(1, line.encode("ascii"))
