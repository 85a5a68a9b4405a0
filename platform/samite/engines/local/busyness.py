"""How busy the ranks' processes are: the second fact of a hang on this machine.

A process counts as busy by the processor time that it used, or when one of its threads wanted a processor most of the time and did not get it:
a rank on a starved machine is slow, not hung. A thread, not the sum of them: an idle process has dozens that wake for a moment and queue for that
moment, and on a machine with a long queue these moments add up to a processor.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from samite.engines.local.processes import Activity

WINDOW_S = 6.0
STARVED_SHARE = 0.5
"""A thread that ran or was ready to run for this share of the window has work to do."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    cpu_s: float
    wanted_s: Mapping[int, float]


@dataclass(slots=True)
class Busyness:
    """Samples of every rank's process over the last `WINDOW_S` seconds."""

    _samples: dict[int, deque[_Sample]] = field(default_factory=dict)

    def share(self, pid: int, activity: Activity | None, now_s: float) -> tuple[float | None, float]:
        """(share of one processor that `pid` used or lacked, seconds that the share is about); None before a second has passed, or without a process."""
        if activity is None:
            self._samples.pop(pid, None)
            return None, 0.0
        samples = self._samples.setdefault(pid, deque())
        samples.append(_Sample(now_s, activity.cpu_s, activity.wanted_s))
        while len(samples) > 2 and now_s - samples[1].at_s >= WINDOW_S:
            samples.popleft()
        first = samples[0]
        window_s = now_s - first.at_s
        if window_s < 1.0:
            return None, 0.0
        used = max(0.0, activity.cpu_s - first.cpu_s) / window_s
        wanted = max(
            (wanted_s - first.wanted_s[thread] for thread, wanted_s in activity.wanted_s.items() if thread in first.wanted_s), default=0.0
        )
        starved = wanted / window_s
        return (max(used, starved) if starved >= STARVED_SHARE else used), window_s
