"""How Ray's nodes are started on one machine: command lines, environment, ports, and a temporary folder short enough for sockets. Pure but for the
last two, which ask the machine.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from samite.errors import ConflictError, SamiteError

HEAD = "head"
MAX_TEMPORARY_BASE = 18
"""Longest folder to put ours in: `/smt-12345678/node-123/session_<40 characters>/sockets/plasma_store` follows, and a socket's path has 107 bytes."""


def head_command(*, gcs_port: int, dashboard_port: int, client_port: int, temporary_folder: str) -> list[str]:
    """`ray start` for the head: no CPUs, so that no rank lands there; loopback dashboard; no fixed port anywhere."""
    return [
        *_ray("start", "--head"),
        "--node-ip-address=127.0.0.1",
        f"--port={gcs_port}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={client_port}",
        f"--temp-dir={temporary_folder}/{HEAD}",
        "--num-cpus=0",
        "--num-gpus=0",
        *_SHARED_OPTIONS,
    ]


def worker_command(*, name: str, address: str, gcs_port: int, gpus: int, temporary_folder: str) -> list[str]:
    """`ray start` for a worker node: one CPU slot for one rank, or as many GPUs as ranks."""
    return [
        *_ray("start"),
        f"--address=127.0.0.1:{gcs_port}",
        f"--node-ip-address={address}",
        # A folder of its own: in a shared one, two nodes that start at once choose the same socket name, and one dies of it.
        f"--temp-dir={temporary_folder}/{name}",
        f"--num-cpus={max(gpus, 1)}",
        f"--num-gpus={gpus}",
        *_SHARED_OPTIONS,
    ]


def _ray(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ray.scripts.scripts", *arguments]


_SHARED_OPTIONS = (
    "--object-store-memory=80000000",
    "--min-worker-port=0",
    "--max-worker-port=0",
    "--dashboard-agent-listen-port=0",
    "--include-log-monitor=false",
    "--disable-usage-stats",
    "--block",
)


def ray_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of every process of the cluster: the inherited one without foreign Ray settings, and with ours.

    Node failure is noticed by Ray after about 5 s instead of 13; the supervisor sees the exit at once. Credentials that the
    trainer's storage needs (AWS_*) come along as inherited; nothing is written down.
    """
    kept = {key: value for key, value in inherited.items() if not key.startswith(("RAY_", "VIRTUAL_ENV_PROMPT"))}
    return kept | {
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "4",
        # Without a head, nodes give up after 10 s instead of 60: nobody will bring this head back, a new cluster is built instead.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
        # Nodes of one machine get no notice of preemption; the watcher would be one more process to start at every attempt.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "60",
        # Whoever stops a submission through Ray has no use for it any more: the trainer was asked for its last checkpoint before, or is past asking.
        "RAY_JOB_STOP_WAIT_TIME_S": "1",
    }


PRELOADED = ("ray.train.v2._internal.execution.worker_group.worker", "samite_workloads.train.loop")
"""What every rank imports. A worker node's processes begin with it while the driver is still putting the group together."""


def short_temporary_folder() -> Path:
    """A new private folder for Ray's sockets with a path short enough for the kernel, wherever TMPDIR points."""
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - mkdtemp makes it private
        if len(base) <= MAX_TEMPORARY_BASE and base.isascii() and " " not in base and os.access(base, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="smt-", dir=base))
    raise SamiteError(
        f"Ray's sockets need a writable temporary folder whose path has at most {MAX_TEMPORARY_BASE} plain characters; "
        f"neither TMPDIR ({tempfile.gettempdir()}) nor /tmp nor /var/tmp is one. Try: export TMPDIR=/some/short/folder"
    )


def free_ports(count: int) -> list[int]:
    """Ports that are free now. All are held open until the last is found, so they differ."""
    held = []
    try:
        for _ in range(count):
            handle = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            handle.bind(("127.0.0.1", 0))
            held.append(handle)
        return [handle.getsockname()[1] for handle in held]
    except OSError as error:
        raise ConflictError(f"no free ports on 127.0.0.1 for a Ray cluster: {error}") from error
    finally:
        for handle in held:
            handle.close()
