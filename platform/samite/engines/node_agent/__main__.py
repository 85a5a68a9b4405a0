"""`python -m samite.engines.node_agent`: run until SIGTERM, or until the supervisor of `--run-folder` has been gone for a minute."""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from samite.engines.node_agent.collect import Agent
from samite.engines.node_agent.ranks import FolderRanks, RankSource, SocketRanks
from samite.engines.node_agent.readings import Run
from samite.engines.node_agent.serve import MetricsServer, OtlpAgent

ORPHANED_S = 60.0
_logger = logging.getLogger("samite.agent")


def main(arguments: list[str] | None = None) -> int:
    """Tell what this node knows until asked to end."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(message)s", stream=sys.stderr)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    source: RankSource | None = None
    if options.run_folder is not None:
        source = FolderRanks(options.run_folder, Run(name=options.run, uid=options.uid))
    elif options.heartbeat_port is not None:
        source = SocketRanks(port=options.heartbeat_port)
    agent = Agent(node=options.node, source=source, drain_notice=options.drain_file)
    if agent.nvml.problem:
        _logger.info("no device readings: %s", agent.nvml.problem)
    server = MetricsServer(agent, port=options.port, host=options.host)
    resource = {key: value for key, value in (("samite.run.name", options.run), ("samite.run.uid", options.uid)) if value}
    export = OtlpAgent(agent, options.otlp, interval_s=options.interval, resource=resource) if options.otlp else None
    _logger.info("agent of node %s: /metrics on port %d%s", options.node, server.port, f", OTLP to {options.otlp}" if options.otlp else "")
    while not stopping.wait(1.0):
        if options.run_folder is not None and _orphaned(options.run_folder):
            _logger.info("no supervisor for %.0f s: ending", ORPHANED_S)
            break
    if export is not None:
        export.stop()
    server.stop()
    agent.close()
    return 0


def _orphaned(folder: Path) -> bool:
    """Whether the supervisor, which touches this file at each turn, is gone for good."""
    try:
        return time.time() - (folder / "supervisor.beat").stat().st_mtime > ORPHANED_S
    except OSError:
        return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m samite.engines.node_agent", description="The agent of one node.")
    parser.add_argument("--node", default=os.environ.get("SAMITE_NODE") or socket.gethostname(), help="name of the node")
    parser.add_argument("--host", default="127.0.0.1", help="address that /metrics listens on (in a pod: 0.0.0.0)")
    parser.add_argument("--port", type=int, default=0, help="port of /metrics; 0: any free one")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--run-folder", type=Path, help="read the heartbeats of this local run")
    where.add_argument("--heartbeat-port", type=int, help="take heartbeats as datagrams on this port")
    parser.add_argument("--run", default="", help="name of the run in --run-folder")
    parser.add_argument("--uid", default="", help="its uid")
    parser.add_argument("--drain-file", type=Path, help="exists while the machine is to be taken away")
    parser.add_argument("--otlp", default=os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""), help="OTLP endpoint (gRPC); empty: off")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two exports")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
