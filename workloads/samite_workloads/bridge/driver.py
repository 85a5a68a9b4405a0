"""The driver's side of the bridge: collector, Lease and records, begun before the worker group and ended after the attempt's last word.

    with bridged_driver(attempt) as collector:     name of the collector, for the ranks
        ...                                        fit; result.json is written
    # the Lease carries the result, the records are in storage; both waited for within 20 s, side by side

A fenced driver tells its ranks to kill themselves, leaves by SIGTERM as a stopped job does, and ends with exit code 93.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samite.checkpoint import StoreOptions, open_store
from samite.errors import SamiteError
from samite.spec.attempt import AttemptSpec, write_atomically
from samite.spec.lease import lease_name
from samite_workloads.bridge.api_server import SERVICE_ACCOUNT, ApiServer
from samite_workloads.bridge.control_files import ControlFiles
from samite_workloads.bridge.folder_facts import FolderFacts
from samite_workloads.bridge.lease import LeaseKeeper
from samite_workloads.bridge.mirror import FLUSH_S, RecordMirror

EXIT_FENCED = 93
LEASE_VARIABLE = "SAMITE_LEASE"
"""Name of the Lease where it is not `<run>-heartbeat`."""
ACCOUNT_VARIABLE = "SAMITE_SERVICE_ACCOUNT"
"""Folder of token, CA and namespace where it is not mounted in the usual place."""
_LAST_RENEWAL_S = 10.0
_LEAVE_WITHIN_S = 30.0
_RANKS_HEAR_S = 2.5

_logger = logging.getLogger(__name__)


@contextmanager
def bridged_driver(attempt: AttemptSpec) -> Iterator[str]:
    """Everything around the worker group of an attempt whose pods share no folder. Ray must be connected."""
    from samite_workloads.bridge.ray_link import start_collector

    name, actor = start_collector(Path(attempt.run_folder), attempt.submission_id)
    ended = threading.Event()
    with attended(lease_of(attempt, ended), mirror_of(attempt), ended):
        yield name
    del actor  # until here, because Ray ends an actor that nobody holds


@contextmanager
def attended(lease: LeaseKeeper | None, mirror: RecordMirror | None, ended: threading.Event) -> Iterator[None]:
    """Lease and records around the block. However the block of a fenced driver ends, SystemExit with `EXIT_FENCED` comes out."""
    for thread in (lease, mirror):
        if thread is not None:
            thread.start()
    try:
        try:
            yield
        finally:
            ended.set()
            close_side_by_side(lease, mirror)
    except SystemExit as stopped:
        raise SystemExit(EXIT_FENCED if lease is not None and lease.fenced else stopped.code) from None
    if lease is not None and lease.fenced:
        raise SystemExit(EXIT_FENCED)


def lease_of(attempt: AttemptSpec, ended: threading.Event) -> LeaseKeeper | None:
    """The keeper of the run's Lease; None outside of a pod with a service account, where there is nobody to tell. `ended`: the driver leaves already."""
    api = ApiServer.of_this_pod(account=Path(os.environ.get(ACCOUNT_VARIABLE) or SERVICE_ACCOUNT))
    if api is None:
        _logger.warning("no API server or no service account in this pod: the attempt runs without a Lease")
        return None
    folder = Path(attempt.run_folder)
    return LeaseKeeper(
        api,
        name=os.environ.get(LEASE_VARIABLE) or lease_name(str(attempt.run["metadata"]["name"])),
        namespace=api.namespace,
        submission_id=attempt.submission_id,
        run_uid=attempt.run_uid,
        holder=socket.gethostname(),
        facts=FolderFacts(folder, attempt.submission_id),
        control=ControlFiles(folder),
        on_fenced=lambda reason: stop_ranks_and_leave(folder, attempt.submission_id, reason, ended),
    )


def mirror_of(attempt: AttemptSpec) -> RecordMirror | None:
    """The copy of the records; None for an attempt without storage."""
    if not attempt.checkpoint_uri:
        return None
    spec = attempt.run["spec"].get("checkpoint", {})
    options = StoreOptions(
        endpoint=spec.get("endpoint") or "",
        region=spec.get("region") or "",
        insecure=spec.get("insecure", False),
        timeout_s=10.0,
        durable=False,
    )
    try:
        return RecordMirror(open_store(attempt.checkpoint_uri, options), Path(attempt.run_folder), attempt.submission_id)
    except SamiteError as error:
        _logger.warning("the attempt runs without records: %s", error)
        return None


def close_side_by_side(lease: LeaseKeeper | None, mirror: RecordMirror | None) -> None:
    """The last renewal and the last copy, at the same time."""
    ending = threading.Thread(target=lease.close, kwargs={"patience_s": _LAST_RENEWAL_S}, daemon=True) if lease is not None else None
    if ending is not None:
        ending.start()
    if mirror is not None:
        mirror.close(patience_s=FLUSH_S)
    if ending is not None:
        ending.join(timeout=_LAST_RENEWAL_S + 1.0)
    renewed = f"{lease.renewals} renewals of the Lease, {lease.errors} failed" if lease is not None else "no Lease"
    recorded = (
        f"{mirror.uploads} uploads of records, {mirror.uploaded_bytes} bytes, {mirror.errors} rounds failed, {mirror.dropped_bytes} bytes dropped"
        if mirror is not None
        else "no records"
    )
    sys.stdout.write(f"bridge of the driver: {renewed}; {recorded}\n")
    sys.stdout.flush()


def stop_ranks_and_leave(folder: Path, submission_id: str, reason: str, ended: threading.Event) -> None:
    """A newer attempt took over: the ranks hear of it with their next push, then this process ends, in order or not. Not a second time if it `ended`."""
    order = {"request": "fenced", "submission_id": submission_id, "reason": reason}
    (folder / "control").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "control" / "kill.json", json.dumps(order) + "\n")
    watchdog = threading.Timer(_LEAVE_WITHIN_S, os._exit, args=(EXIT_FENCED,))
    watchdog.daemon = True
    watchdog.start()
    if not ended.wait(_RANKS_HEAR_S):
        os.kill(os.getpid(), signal.SIGTERM)
