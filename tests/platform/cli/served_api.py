"""An API server over HTTP for tests of the CLI: `FakeApi` behind the real paths, so that kubeconfig, client, time limits and errors are the real ones.

What the server decides by itself (schema, rules, roles) is told by `answers`: the next request that matches gets exactly that answer.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from samite.engines.kuberay import api as kinds
from samite.engines.kuberay.api import ApiError, Kind
from samite.engines.kuberay.fake_api import FakeApi

KINDS = {kind.plural: kind for kind in vars(kinds).values() if isinstance(kind, Kind)}
_PATH = re.compile(
    r"^/apis?/(?:(?P<group>[^/]+\.[^/]+|apps)/)?v\w+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>\w+))?$"
)


@dataclass
class World:
    """What the server holds, and how it behaves."""

    api: FakeApi = field(default_factory=FakeApi)
    answers: list[tuple[str, str, int, dict[str, Any]]] = field(default_factory=list)
    """(method, part of the path, status, Status document): each is used once."""
    unknown_kinds: set[str] = field(default_factory=set)
    """Plurals that this server does not serve."""
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """(verb, plural) that an access review denies."""
    logs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    previous_logs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """(pod, container): what the container printed, with timestamps."""
    user: str = ""
    """Who a login is; empty: this server does not tell (403)."""
    silent_s: float = 0.0
    """Answers come so late."""
    version: dict[str, str] = field(default_factory=lambda: {"major": "1", "minor": "37", "gitVersion": "v1.37.2"})
    requests: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    address: str = ""

    def asked(self, method: str, part: str) -> list[tuple[dict[str, str], Any]]:
        """(query, body) of every request of this method whose path contains `part`."""
        return [(query, body) for verb, path, query, body in self.requests if verb == method and part in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: World

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        world, parts = self.world, urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        world.requests.append((self.command, parts.path, query, body))
        time.sleep(world.silent_s)
        for answer in world.answers:
            if answer[0] == self.command and answer[1] in parts.path:
                world.answers.remove(answer)
                self._send(answer[2], answer[3])
                return
        try:
            self._send(*self._result(parts.path, query, body))
        except ApiError as error:
            self._send(error.status or 500, {"kind": "Status", "message": str(error), "reason": error.reason, "code": error.status})

    def _result(self, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        world = self.world
        if path == "/version":
            return 200, world.version
        found = _PATH.match(path)
        plural = found["plural"] if found else ""
        if plural == "selfsubjectaccessreviews":
            wanted = body["spec"]["resourceAttributes"]
            resource = "/".join(part for part in (wanted["resource"], wanted["subresource"]) if part)
            return 201, {**body, "status": {"allowed": (wanted["verb"], resource) not in world.forbidden}}
        if plural == "selfsubjectreviews":
            if not world.user:
                return 403, {"kind": "Status", "message": "forbidden", "reason": "Forbidden", "code": 403}
            return 201, {**body, "status": {"userInfo": {"username": world.user, "groups": ["system:authenticated"]}}}
        if found is None or plural not in KINDS or plural in world.unknown_kinds:
            return 404, {"kind": "Status", "message": "the server could not find the requested resource", "reason": "NotFound", "code": 404}
        kind, namespace, name = KINDS[plural], found["namespace"] or "", found["name"] or ""
        if found["sub"] == "log":
            container = query["container"]
            if query.get("previous") == "true":
                if (name, container) not in world.previous_logs:
                    message = f'previous terminated container "{container}" in pod "{name}" not found'
                    return 400, {"kind": "Status", "message": message, "reason": "BadRequest", "code": 400}
                return 200, world.previous_logs[name, container]
            return 200, _since(world.logs.get((name, container), b""), query.get("sinceTime", ""))
        if self.command == "GET" and name:
            return 200, world.api.get(kind, namespace, name)
        if self.command == "GET":
            labels = dict(pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair)
            listing = world.api.list(kind, namespace, labels=labels, fields=_fields(query.get("fieldSelector", "")))
            return 200, {"kind": f"{kind.kind}List", "items": listing.items, "metadata": {"resourceVersion": listing.resource_version}}
        if self.command == "POST":
            stamped = {**body, "metadata": {"creationTimestamp": "2026-11-30T10:00:00Z", **body["metadata"]}}
            if query.get("dryRun") == "All":
                return 201, stamped
            return 201, world.api.create(kind, namespace, stamped)
        if self.command == "PATCH":
            return 200, world.api.patch(kind, namespace, name, body, subresource=found["sub"] or "")
        options = body or {}
        uid = (options.get("preconditions") or {}).get("uid", "")
        world.api.delete(kind, namespace, name, uid=uid, grace_s=options.get("gracePeriodSeconds"))
        return 200, {"kind": "Status", "status": "Success"}

    def _send(self, status: int, document: Any) -> None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _answer


def _fields(selector: str) -> str:
    return selector if "!=" not in selector else ""


def _since(text: bytes, moment: str) -> bytes:
    """As the server does: whole seconds."""
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not moment or line.split(b" ", 1)[0].decode()[:19] >= moment[:19])


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that gives up is part of the tests."""


@contextmanager
def served(world: World) -> Iterator[World]:
    """`world` on a free port of the loopback."""
    server = _QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"world": world}))
    world.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield world
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def write_kubeconfig(path: Path, address: str, *, namespace: str = "team-a") -> Path:
    """A kubeconfig with the contexts prod (current) and staging."""
    contexts = [{"name": name, "context": {"cluster": name, "user": "alice", "namespace": namespace}} for name in ("prod", "staging")]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "contexts": contexts,
        "clusters": [{"name": name, "cluster": {"server": address}} for name in ("prod", "staging")],
        "users": [{"name": "alice", "user": {"token": "secret-token-of-alice"}}],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
