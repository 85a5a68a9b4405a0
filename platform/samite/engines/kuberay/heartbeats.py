"""The run's Lease as facts about ranks. Ages are the driver's own plus the time this observer has *watched* the Lease stand still.

A gap in which the API server did not answer is not watched: during it no driver could have renewed either. So an API server that was away for
a minute makes no healthy run look silent, and a clock that is wrong on any machine does not matter: renewals are compared for equality only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samite.engines.kuberay.pod_facts import Ended
from samite.lifecycle import ProcessState, RankObserved
from samite.spec.attempt import FailureReport
from samite.spec.lease import LeaseReport, RankSign, read_lease

LONGEST_GAP_S = 12.0
"""Readings farther apart than this say nothing about what happened in between."""
HEARD_FRESH_S = 5.0
"""A process that was heard this lately is alive."""


@dataclass(slots=True)
class LeaseWatch:
    """How long the Lease of one run has stood still, on the observer's clock."""

    renewed: str = ""
    read_at_s: float | None = None
    quiet_s: float = 0.0

    def read(self, lease: Mapping[str, Any], now_s: float) -> LeaseReport:
        """Take a successful reading at `now_s`; gives the report with its times on the observer's clock."""
        spec, annotations = lease.get("spec") or {}, lease["metadata"].get("annotations") or {}
        renewed = f"{spec.get('holderIdentity')}/{spec.get('renewTime')}"
        gap_s = 0.0 if self.read_at_s is None else now_s - self.read_at_s
        if renewed != self.renewed or gap_s > LONGEST_GAP_S:
            self.quiet_s = 0.0
        else:
            self.quiet_s += gap_s
        self.renewed, self.read_at_s = renewed, now_s
        return read_lease(annotations, seen_at_s=now_s - self.quiet_s)


def ranks_of(report: LeaseReport, ends: Mapping[str, Ended], now_s: float) -> Iterator[RankObserved]:
    """The ranks that the driver told of. `ends`: how the containers of pods ended; their processes are gone."""
    for sign in report.signs:
        beat = sign.heartbeat
        yield RankObserved.from_heartbeat(
            beat,
            monotonic_s=now_s,
            process=_process(sign, ends, now_s),
            process_age_s=max(0.0, now_s - sign.heard_at_s),
            cpu_share=sign.cpu_share,
            cpu_window_s=sign.cpu_window_s,
            compute_s=beat.compute_s or None,
        )


def _process(sign: RankSign, ends: Mapping[str, Ended], now_s: float) -> ProcessState | None:
    if sign.heartbeat.node in ends:
        return ProcessState.GONE
    return ProcessState.ALIVE if now_s - sign.heard_at_s <= HEARD_FRESH_S else None


def reports_of_kubelet(report: LeaseReport, ends: Mapping[str, Ended]) -> tuple[FailureReport, ...]:
    """What the kubelet knows and no rank could write: a container that was killed for its memory."""
    found = []
    for sign in report.signs:
        beat = sign.heartbeat
        end = ends.get(beat.node)
        if end is not None and end.out_of_memory:
            found.append(
                FailureReport(
                    failure_class="oom",
                    error_type="OOMKilled",
                    message=f"{end.says} (node {beat.node}): the pod's memory limit was reached",
                    rank=beat.rank,
                    node=beat.node,
                    incarnation=beat.incarnation,
                    step=beat.step,
                )
            )
    return tuple(found)
