"""One look at everything, as readings. Nothing here raises: what cannot be read is not told."""

import time
from collections.abc import Callable
from pathlib import Path

from samite.engines.node_agent import devices, host, ranks
from samite.engines.node_agent.devices import Nvml
from samite.engines.node_agent.ranks import RankSource
from samite.engines.node_agent.readings import Reading, exposition

FRESH_S = 5.0
"""Two questions within this time get one answer: a scrape and an export do not look twice."""


class Agent:
    """The agent of one node. Safe to ask from several threads; looks at most every FRESH_S."""

    def __init__(
        self,
        *,
        node: str,
        source: RankSource | None,
        nvml: Nvml | None = None,
        drain_notice: Path | None = None,
        proc: Path = host.PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = node
        self._source, self._notice, self._proc, self._clock = source, drain_notice, proc, clock
        self.nvml = nvml or Nvml()
        self._had_devices = not self.nvml.problem
        self._last: tuple[float, tuple[Reading, ...]] = (-FRESH_S, ())

    def look(self) -> tuple[Reading, ...]:
        """All readings of this moment."""
        now_s = self._clock()
        looked_s, last = self._last
        if last and now_s - looked_s < FRESH_S:
            return last
        found = [*host.memory(self._proc), *host.drain(self._notice), *devices.readings_of(self.nvml.devices())]
        if self._had_devices:  # a node without a driver has no detector that could be off
            state = {"samite.detector.name": "nvml", "samite.detector.state": "active"}
            found.append(Reading(name="samite.detector.status", value=float(not self.nvml.problem), attributes=state))
        if self._source is not None:
            found += ranks.readings_of(self._source.ranks(), now_s=now_s, proc=self._proc)
        self._last = (now_s, tuple(reading.checked() for reading in found))
        return self._last[1]

    @property
    def resource(self) -> dict[str, str]:
        """What every series carries."""
        return {"service.name": "samite-agent", "k8s.node.name": self.node}

    def exposition(self) -> str:
        """All of it for a scrape."""
        return exposition(self.look(), self.resource)

    def close(self) -> None:
        """Let go of the library and the socket."""
        self.nvml.close()
        if self._source is not None:
            self._source.close()
