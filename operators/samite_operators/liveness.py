"""Whether this process still does its work, for the probes of Kubernetes: `/healthz`, `/readyz`, and `/metrics` beside them.

A process can live while its watches are dead and its turns hang; the plain probe of a framework sees neither. Here `/healthz` fails, with one line
for each reason, when a turn has lasted too long, a run that was due was not begun, a listing has not succeeded although the API server answers,
or a watch did not tell what two listings showed. An API server that is away is no reason: restarting would not bring it back.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When silence is too long. Seconds."""

    turn_s: float = 180.0
    """One turn. Storage and Ray are asked from threads of their own, so a turn waits for the API server alone."""
    due_s: float = 120.0
    """A run that is due and is not begun."""
    list_s: float = 300.0
    """Between two listings that succeed."""
    watch_s: float = 150.0
    """A watch that is behind what listings show."""


class Vitals:
    """What the parts of the operator say about themselves. Written by them, read by the probes; safe to use from many threads."""

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._lock = threading.Lock()
        self._turns: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._behind: dict[str, float] = {}
        self._listed_at_s = clock()
        self._answered_at_s = clock()
        self.ready = False
        """Leading, and every run of the first listing has been seen."""
        self.waiting_for = "the first listing"
        """Why it is not ready."""
        self.unserved: dict[str, str] = {}
        """Namespaces that were to be served and cannot be, each with the API server's words."""

    # What the parts say

    def turn_begins(self, key: str) -> None:
        """A turn of run `key` begins."""
        with self._lock:
            self._turns[key] = self._clock()
            self._due.pop(key, None)

    def turn_ends(self, key: str) -> None:
        """It ended, well or not."""
        with self._lock:
            self._turns.pop(key, None)

    def is_due(self, key: str) -> None:
        """Run `key` should have a turn from now on; said again before it begins, the first time counts."""
        with self._lock:
            self._due.setdefault(key, self._clock())

    def forget(self, key: str) -> None:
        """Run `key` is gone."""
        with self._lock:
            self._due.pop(key, None)
            self._turns.pop(key, None)

    def answered(self) -> None:
        """The API server has answered something."""
        self._answered_at_s = self._clock()

    def listed(self) -> None:
        """A full listing has succeeded."""
        self._listed_at_s = self._answered_at_s = self._clock()

    def watch(self, name: str, *, behind: bool) -> None:
        """Whether the watch `name` has told everything that the last listing showed."""
        with self._lock:
            if behind:
                self._behind.setdefault(name, self._clock())
            else:
                self._behind.pop(name, None)

    # What the probes read

    @property
    def oldest_due_s(self) -> float:
        """Age of the oldest change that no turn has taken in; 0 if there is none."""
        with self._lock:
            return max((self._clock() - since_s for since_s in self._due.values()), default=0.0)

    @property
    def list_age_s(self) -> float:
        """Time since the last listing that succeeded."""
        return self._clock() - self._listed_at_s

    @property
    def watches_behind(self) -> int:
        """Watches that are behind."""
        with self._lock:
            return len(self._behind)

    @property
    def api_silent_s(self) -> float:
        """Time since the API server answered anything."""
        return self._clock() - self._answered_at_s

    def complaints(self) -> list[str]:
        """Why this process should be started again; empty if it is well."""
        now_s, limits = self._clock(), self._limits
        with self._lock:
            found = [
                f"a turn of {key} has lasted {now_s - since_s:.0f} s, limit {limits.turn_s:.0f} s"
                for key, since_s in self._turns.items()
                if now_s - since_s > limits.turn_s
            ]
            silent = now_s - self._answered_at_s > limits.turn_s / 4.0
            if not silent:
                found += [
                    f"{key} has been due for {now_s - since_s:.0f} s, limit {limits.due_s:.0f} s"
                    for key, since_s in self._due.items()
                    if now_s - since_s > limits.due_s
                ]
                found += [
                    f"the watch of {name} has been behind for {now_s - since_s:.0f} s, limit {limits.watch_s:.0f} s"
                    for name, since_s in self._behind.items()
                    if now_s - since_s > limits.watch_s
                ]
        if not silent and self.list_age_s > limits.list_s:
            found.append(
                f"no listing has succeeded for {self.list_age_s:.0f} s, limit {limits.list_s:.0f} s, although the API server answers"
            )
        return found


class ProbeServer:
    """Serves the probes and the metrics on `port` (0: any free one; see `port`)."""

    def __init__(self, vitals: Vitals, exposition: Callable[[], str], *, port: int, host: str = "0.0.0.0") -> None:  # noqa: S104 - probes come from the node
        answers: dict[str, Callable[[], tuple[int, str, str]]] = {
            "/healthz": lambda: _verdict(vitals.complaints()),
            "/readyz": lambda: _verdict([] if vitals.ready else [f"waiting for {vitals.waiting_for}"], notServed=dict(vitals.unserved)),
            "/metrics": lambda: (200, "text/plain; version=0.0.4; charset=utf-8", exposition()),
        }

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10.0

            def do_GET(self) -> None:
                answer = answers.get(self.path.partition("?")[0])
                status, kind, text = answer() if answer is not None else (404, "text/plain", "there are /healthz, /readyz and /metrics\n")
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Probes come each few seconds: nobody wants them in the log."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="probes", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)


def _verdict(complaints: Iterable[str], **more: dict[str, str]) -> tuple[int, str, str]:
    found = list(complaints)
    document = {"ok": not found, "reasons": found, **{name: value for name, value in more.items() if value}}
    return 503 if found else 200, "application/json", json.dumps(document) + "\n"
