"""`python -m samite_operators`: the operator's process.

    settings ─ probes ─ Lease (a second operator waits here) ─ first listing ─ threads ─ kopf's watches until SIGTERM or the Lease is lost

Exit codes: 0 after SIGTERM, 1 if the Lease was lost or could not be kept (Kubernetes starts the container again), 2 for settings that make no sense.
"""

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from samite.errors import SamiteError, UsageError
from samite_operators.process import Process, build
from samite_operators.resync import View
from samite_operators.settings import Settings

_logger = logging.getLogger("samite.operator")
CHECK_S = 0.5
RETRY_S = 5.0


def main() -> int:
    """Run the operator of this environment."""
    try:
        settings = Settings.from_environment()
        set_up_logging(settings)
        process = build(settings, token_key=token_key(settings))
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return run(process)


def run(process: Process) -> int:
    """Run a process until it is told to stop, or the Lease is lost. Returns the exit code."""
    stop = Stop()
    process.probes.start()
    process.leadership.start()
    try:
        if not wait_for_lease(process, stop):
            return 0
        return asyncio.run(serve(process, stop))
    finally:
        process.shut_down()


class Stop:
    """Whether the process was told to end."""

    def __init__(self) -> None:
        self.told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the signals back from kopf, which hears them while it runs."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear)

    def _hear(self, *_: Any) -> None:
        self.told = True


def wait_for_lease(process: Process, stop: Stop) -> bool:
    """Wait until this process leads. False if it was told to stop before."""
    while not stop.told:
        process.vitals.waiting_for = f"the Lease, held by {process.leadership.holder or 'nobody yet'}"
        process.vitals.listed()  # It has nothing to list while it waits: that is no complaint.
        if process.leadership.wait(CHECK_S):
            return True
    return False


async def serve(process: Process, stop: Stop) -> int:
    """Watch and take turns. Watches that end, because a kind appeared or a right was lost, are begun anew; turns go on meanwhile."""
    loop = asyncio.get_running_loop()
    stop.listen(loop)
    process.vitals.waiting_for = "the first listing"
    started = False
    while not stop.told and process.leadership.held:
        try:
            view = await loop.run_in_executor(None, process.first_look)
        except SamiteError as error:
            _logger.warning("the first listing failed: %s", error)
            await asyncio.sleep(RETRY_S)
            continue
        if not view.kinds:
            process.vitals.waiting_for = "the definition of TrainingRun, or the right to list them"
            process.vitals.listed()
            await asyncio.sleep(RETRY_S)
            continue
        if not started:
            process.start()
            started = True
        process.vitals.ready = True
        ended = asyncio.Event()
        watcher = asyncio.create_task(watch(process, stop, ended, view))
        try:
            await process.kopf(view, stop=ended)
            # It ends by itself only when it heard SIGTERM.
            stop.told = stop.told or not ended.is_set()
        except Exception:
            # A watch that is forbidden or whose kind is gone ends kopf; so does an API server that stays away.
            _logger.warning("the watches ended", exc_info=True)
        stop.listen(loop)
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        if not stop.told and process.leadership.held:
            await asyncio.sleep(1.0)
    if stop.told:
        _logger.info("told to stop")
        return 0
    _logger.error("the Lease is lost: another operator may act now; this process ends")
    return 1


async def watch(process: Process, stop: Stop, ended: asyncio.Event, watched: View) -> None:
    """End the watches when the process is to stop, the Lease is lost, or other kinds or namespaces can be read than those that are watched."""
    while not ended.is_set():
        process.tell()
        if stop.told or not process.leadership.held or process.resync.view != watched:
            ended.set()
            return
        await asyncio.sleep(CHECK_S)


def token_key(settings: Settings) -> bytes:
    """The key that Ray's tokens are derived from. Raises UsageError if the file is missing or too short."""
    if not settings.token_key_file:
        raise UsageError("SAMITE_TOKEN_KEY_FILE is not set: wanted a file with 32 bytes or more, as the chart mounts it")
    try:
        key = Path(settings.token_key_file).read_bytes()
    except OSError as error:
        raise UsageError(f"SAMITE_TOKEN_KEY_FILE: {settings.token_key_file} cannot be read: {error}") from error
    if len(key) < 32:
        raise UsageError(f"SAMITE_TOKEN_KEY_FILE: {settings.token_key_file} holds {len(key)} bytes; wanted 32 or more")
    return key


class JsonLines(logging.Formatter):
    """One JSON object for each line of the log."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        document = {"time": round(record.created, 3), "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


def set_up_logging(settings: Settings) -> None:
    """Everything to stderr, at the level asked for; libraries only from warnings on."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines() if settings.log_format == "json" else logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.Formatter.converter = time.gmtime
    quiet: Callable[[str], None] = lambda name: logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))  # noqa: E731
    for name in ("kopf", "kubernetes", "urllib3", "aiohttp", "asyncio", "botocore", "boto3"):
        quiet(name)
    # A full pool only means a new connection.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
