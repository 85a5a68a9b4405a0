"""The node agent of a local run, beside its supervisor. It runs while somebody listens: an OTLP endpoint is set, or a port for scrapes is.

The nodes of a local run share one machine, so one agent tells all of it. It carries the run's uid and the node name `agent`: the next supervisor
after a crash sweeps it like any stray and starts its own.
"""

import logging
import os
import sys
import time

from samite.engines.local import processes
from samite.engines.local.folder import RunFolder

NODE_NAME = "agent"
PORT_VARIABLE = "SAMITE_AGENT_PORT"
"""Port on 127.0.0.1 for scrapes of /metrics. Unset: any free one, and only with an OTLP endpoint."""
AGAIN_S = 30.0
_logger = logging.getLogger("samite.supervisor")


class AgentProcess:
    """Starts the agent, and starts it again when it died. A supervisor works the same without it."""

    def __init__(self, folder: RunFolder, *, run: str, uid: str, endpoint: str | None) -> None:
        self._folder, self._run, self._uid, self._endpoint = folder, run, uid, endpoint or ""
        self._port = os.environ.get(PORT_VARIABLE, "")
        self._process: processes.ProcessId | None = None
        self._started_s = -AGAIN_S
        self.wanted = bool(self._endpoint or self._port)
        if not self.wanted:
            _logger.info("no node agent: nobody listens (telemetry.otlpEndpoint is not set, nor %s)", PORT_VARIABLE)

    def ensure(self) -> None:
        """See that it runs. Tried again after AGAIN_S at the earliest."""
        if not self.wanted or time.monotonic() - self._started_s < AGAIN_S:
            return
        if self._process is not None and processes.is_alive(self._process):
            return
        self._started_s = time.monotonic()
        try:
            self._process = processes.start_group(
                self._command(),
                environment={**os.environ, processes.RUN_UID_VARIABLE: self._uid, processes.NODE_VARIABLE: NODE_NAME},
                log=self._folder.path / "agent.log",
                folder=self._folder.path,
            )
        except OSError as error:
            _logger.warning("the node agent does not start: %s; tried again in %.0f s", error, AGAIN_S)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            processes.sweep(self._uid, node=NODE_NAME)
            self._process = None

    def _command(self) -> list[str]:
        found = [sys.executable, "-m", "samite.engines.node_agent", "--node", os.uname().nodename, "--port", self._port or "0"]
        found += ["--run-folder", str(self._folder.path), "--run", self._run, "--uid", self._uid]
        return [*found, "--otlp", self._endpoint]
