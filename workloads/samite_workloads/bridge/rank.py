"""The bridge's thread in a rank's process: sends what is new once a period, keeps `control/` up to date, and obeys what only a process can do itself.

It never holds the training thread up: files are read beside it, and nothing is waited for but the greeting at the start and the last push at the
end, both within bounds. Whatever goes wrong here is counted and said once a minute; the next period tries again.
"""

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from typing import Protocol

from samite.errors import SamiteError
from samite_workloads.bridge import places
from samite_workloads.bridge.control_files import ControlFiles, digest
from samite_workloads.bridge.messages import Answer, Greeting, Push, Welcome
from samite_workloads.bridge.sending import RankFolder

PERIOD_S = 1.0
RANKS_A_SECOND = 500
"""Pushes that one collector takes without falling behind."""
GREETING_S = 30.0
LAST_PUSH_S = 20.0
_CALL_S = 10.0

_logger = logging.getLogger(__name__)


class Link(Protocol):
    """The way to the collector. A seam, because it leads over Ray in a job and through a function call in a test of the folders alone.

    Both calls raise SamiteError when there is no answer within `timeout_s`; the collector may have had the message all the same.
    """

    def greet(self, greeting: Greeting, *, timeout_s: float) -> Welcome:
        """Say hello."""
        ...

    def push(self, push: Push, *, timeout_s: float) -> Answer:
        """Hand over what is new."""
        ...


def period_s(num_ranks: int) -> float:
    """Seconds between two pushes of one rank: the collector takes `RANKS_A_SECOND`."""
    return max(PERIOD_S, num_ranks / RANKS_A_SECOND)


class RankBridge:
    """Of one process of one rank."""

    def __init__(self, folder: RankFolder, link: Link, *, every_s: float = PERIOD_S) -> None:
        self._folder, self._link, self._every_s = folder, link, every_s
        self._control = ControlFiles(folder.path)
        self._digest = ""
        self._welcome: Welcome | None = None
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samite-bridge", daemon=True)
        self._said_s = -1e9
        self.errors = 0
        """Periods in which the collector did not get what was new."""
        self.pushes = 0
        self.sent_bytes = 0

    def open(self, *, patience_s: float = GREETING_S) -> None:
        """Greet the collector, put the past in place, and begin. Without an answer in `patience_s` the rank begins all the same."""
        ends_s = time.monotonic() + patience_s
        while self._welcome is None and (left_s := ends_s - time.monotonic()) > 0:
            try:
                self._greet(early=True, timeout_s=left_s)
            except (SamiteError, OSError) as error:
                self._complain(error)
                time.sleep(min(0.5, left_s))
        self._thread.start()

    def flush(self, *, patience_s: float = 2.0) -> bool:
        """Send what is new now; True if the collector has it all. For the moment before a process ends itself."""
        ends_s = time.monotonic() + patience_s
        while (left_s := ends_s - time.monotonic()) > 0:
            if self._turn.acquire(timeout=left_s):
                try:
                    self._step(last=True, timeout_s=max(0.1, ends_s - time.monotonic()))
                    if self._is_shared() or self._folder.is_told():
                        return True
                except (SamiteError, OSError) as error:
                    self._complain(error)
                    self._stopping.wait(min(0.5, max(0.0, ends_s - time.monotonic())))
                finally:
                    self._turn.release()
            time.sleep(0.02)
        return False

    def close(self, *, patience_s: float = LAST_PUSH_S) -> bool:
        """The last push, and the end of the thread; True if the collector has everything."""
        self._stopping.set()
        told = self.flush(patience_s=patience_s)
        self._thread.join(timeout=1.0)
        if not told:
            _logger.warning("rank %d: the collector did not take the last push within %.0f s", self._folder.rank, patience_s)
        return told

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            with self._turn:
                try:
                    self._step(last=False, timeout_s=_CALL_S)
                except Exception as error:  # noqa: BLE001  the boundary of a thread that must outlive every trouble
                    self._complain(error)

    def _step(self, *, last: bool, timeout_s: float) -> None:
        if self._welcome is None:
            self._greet(early=False, timeout_s=timeout_s)
        if not self._is_shared():
            push, signatures = self._folder.collect(last=last, control_digest=self._digest)
            answer = self._link.push(push, timeout_s=timeout_s)
            self._folder.confirm(signatures, answer)
            self.pushes += 1
            self.sent_bytes += sum(len(piece.data) for piece in push.pieces) + sum(map(len, push.documents.values()))
            if answer.control is not None:
                self._keep(dict(answer.control))
        if not last:
            self._obey()

    def _greet(self, *, early: bool, timeout_s: float) -> None:
        welcome = self._link.greet(self._folder.greeting(), timeout_s=timeout_s)
        if not welcome.shared:
            self._folder.accept(welcome, early=early)
            self._keep(dict(welcome.control))
        self._welcome = welcome

    def _keep(self, documents: dict[str, str]) -> None:
        self._control.apply(documents)
        self._digest = digest(documents)

    def _is_shared(self) -> bool:
        return self._welcome is not None and self._welcome.shared

    def _obey(self) -> None:
        wanted = str(self._control.document("stacks.json").get("request", ""))
        if wanted and wanted != self._folder.answered:
            self._write_stacks(wanted)
            self._folder.answered = wanted
        if self._is_to_die():
            try:
                if not self._is_shared():
                    push, _ = self._folder.collect(last=True, control_digest=self._digest)
                    self._link.push(push, timeout_s=1.0)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)

    def _write_stacks(self, request: str) -> None:
        file = self._folder.path / "attempts" / self._folder.submission_id / "logs" / f"stacks-rank-{self._folder.rank}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stacks:
            stacks.write(f"--- {request} {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n")
            # faulthandler ends after a hundred threads, newest first: the one that trains would be the one that is missing.
            training = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - CPython documents it for this
            stacks.write(f"Main thread, most recent call last:\n{''.join(traceback.format_stack(training))}\n")
            stacks.flush()
            faulthandler.dump_traceback(stacks, all_threads=True)

    def _is_to_die(self) -> bool:
        """Whether `kill.json` means this very process."""
        order = self._control.document("kill.json")
        if order.get("submission_id") != self._folder.submission_id:
            return False
        ranks = order.get("ranks")
        if isinstance(ranks, list) and self._folder.rank not in ranks:
            return False
        return "incarnation" not in order or order["incarnation"] == self._incarnation()

    def _incarnation(self) -> int | None:
        """As this process told it itself; None before it did."""
        try:
            beat = json.loads((self._folder.path / places.heartbeat_name(self._folder.rank)).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return int(beat["incarnation"]) if beat.get("pid") == os.getpid() else None

    def _complain(self, error: BaseException) -> None:
        self.errors += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= 60.0:
            self._said_s = now_s
            _logger.warning("rank %d: nothing sent to the collector (%d times so far): %s", self._folder.rank, self.errors, error)
