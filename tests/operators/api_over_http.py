"""The fake API server over HTTP, with discovery and watches: enough of the real one that kopf and the operator's own process run on it unchanged."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from samite.engines.kuberay.api import (
    CRD,
    EVENT,
    LEASE,
    NODE,
    POD,
    RAY_CLUSTER,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    TRAINING_RUN,
    ApiError,
    Document,
    Kind,
    error_of,
)
from samite.engines.kuberay.fake_api import FakeApi
from samite_operators.blame import NODE_BLAME
from samite_operators.runtimes import CLUSTER_RUNTIME, TRAINING_RUNTIME

NAMESPACES = Kind(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
KINDS = (
    NAMESPACES,
    CRD,
    EVENT,
    LEASE,
    NODE,
    POD,
    RAY_CLUSTER,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    TRAINING_RUN,
    NODE_BLAME,
    CLUSTER_RUNTIME,
    TRAINING_RUNTIME,
)


class WatchedApi(FakeApi):
    """Remembers what happened, for watches."""

    def __init__(self) -> None:
        super().__init__()
        self.happened: deque[tuple[int, str, str, Document]] = deque(maxlen=20_000)
        """(version, plural, event, object), oldest first."""
        self.news = threading.Condition(self._lock)
        self.watches = 0
        self.by_kopf: list[str] = []
        """Patches that kopf sent by itself; there must be none."""
        self.mute = False
        """True: watches stay open and say nothing."""
        self.gone_before = 0
        """Watches that have not told this version yet are ended with 410, as after a compaction."""

    def _store(self, kind: Kind, namespace: str, document: Document, verb: str) -> Document:
        known = self._objects.get(self._key(kind, document["metadata"].get("namespace", namespace), document["metadata"]["name"]))
        stored = super()._store(kind, namespace, document, verb)
        if self._objects.get(self._key(kind, stored["metadata"].get("namespace", ""), stored["metadata"]["name"])) is not None:
            self._tell(kind.plural, "ADDED" if known is None else "MODIFIED", stored)
        return stored

    def _remove(self, key: Any, *, force: bool) -> None:
        known = self._objects.get(key)
        super()._remove(key, force=force)
        if known is not None:
            document = json.loads(json.dumps(known))
            document["metadata"]["resourceVersion"] = str(self._version)
            self._tell(key[0], "DELETED" if key not in self._objects else "MODIFIED", document)

    def _tell(self, plural: str, event: str, document: Document) -> None:
        self.happened.append((self._version, plural, event, document))
        self.news.notify_all()


class ApiOverHttp:
    """Serves a `WatchedApi` on the loopback; `kubeconfig(folder)` is how to get there."""

    def __init__(self, api: WatchedApi) -> None:
        self.api = api
        self.open = True
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> "ApiOverHttp":
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.open = False
        with self.api.news:
            self.api.news.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(timeout=5)

    def kubeconfig(self, folder: Path) -> Path:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.server.server_address[1]}"}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        file = folder / "kubeconfig"
        file.write_text(json.dumps(document))
        return file


def _handler(server: ApiOverHttp) -> type[BaseHTTPRequestHandler]:
    api = server.api

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(self._get)

        def do_POST(self) -> None:
            self._answer(lambda: self._with_body("create"))

        def do_PATCH(self) -> None:
            self._answer(lambda: self._with_body("patch"))

        def do_DELETE(self) -> None:
            self._answer(lambda: self._with_body("delete"))

        def _get(self) -> Any:
            address = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(address.query).items()}
            if (found := _discovery(address.path)) is not None:
                return found
            kind, namespace, name, _ = _parsed(address.path)
            if name:
                return api.get(kind, namespace, name)
            labels = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if "=" in part)
            exists = [part for part in query.get("labelSelector", "").split(",") if part and "=" not in part]
            if query.get("watch"):
                self._watch(kind, namespace, exists, int(query.get("resourceVersion") or 0))
                return None
            listing = api.list(kind, namespace, labels=labels, fields=query.get("fieldSelector", ""))
            items = [item for item in listing.items if _has(item, exists)]
            return {"kind": f"{kind.kind}List", "items": items, "metadata": {"resourceVersion": listing.resource_version}}

        def _with_body(self, verb: str) -> Any:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            kind, namespace, name, subresource = _parsed(urlsplit(self.path).path)
            if verb == "create":
                return api.create(kind, namespace, body)
            if verb == "delete":
                uid = (body.get("preconditions") or {}).get("uid", "")
                api.delete(kind, namespace, name, uid=uid, grace_s=body.get("gracePeriodSeconds"))
                return {"kind": "Status", "status": "Success"}
            if "apply" in self.headers.get("Content-Type", ""):
                return api.apply(kind, namespace, body)
            if isinstance(body, list):
                api.by_kopf.append(f"{self.path}: {body}")
                raise error_of(415, "the operator itself sends no JSON patch")
            return api.patch(kind, namespace, name, body, subresource=subresource)

        def _watch(self, kind: Kind, namespace: str, exists: list[str], since: int) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            api.watches += 1
            try:
                while server.open and not api.down:
                    if since < api.gone_before:
                        self._send({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})
                        return
                    with api.news:
                        news = [] if api.mute else [entry for entry in api.happened if entry[0] > since]
                        if not news:
                            api.news.wait(timeout=0.5)
                            continue
                        since = news[-1][0]
                    for _, plural, event, document in news:
                        metadata = document["metadata"]
                        if plural == kind.plural and namespace in ("", metadata.get("namespace")) and _has(document, exists):
                            self._send({"type": event, "object": document})
            except OSError:
                return
            finally:
                api.watches -= 1
                self.close_connection = True

        def _send(self, event: Any) -> None:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()

        def _answer(self, work: Any) -> None:
            try:
                if api.down:
                    raise error_of(503, "away")
                status, document = 200, work()
            except ApiError as error:
                status, document = (
                    error.status or 503,
                    {"kind": "Status", "code": error.status, "reason": error.reason, "message": str(error)},
                )
            if document is not None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _has(document: Document, labels: list[str]) -> bool:
    return all(label in (document["metadata"].get("labels") or {}) for label in labels)


def _parsed(path: str) -> tuple[Kind, str, str, str]:
    """Kind, namespace, name and subresource of a path."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = next((kind for kind in KINDS if kind.plural == rest[0]), None)
    if kind is None:
        raise error_of(404, f"no such kind: {path}")
    return kind, namespace, rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else ""


def _discovery(path: str) -> Any:
    groups = sorted({kind.group for kind in KINDS if kind.group})
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        versions = {kind.group: kind.version for kind in KINDS}
        return {
            "groups": [
                {"name": group, "versions": [{"version": versions[group]}], "preferredVersion": {"version": versions[group]}}
                for group in groups
            ]
        }
    parts = path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1] if len(parts) == 3 else None
    if group is None or len(parts) != (2 if parts[0] == "api" else 3):
        return None
    return {
        "resources": [
            {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["get", "list", "watch", "patch", "create", "delete"],
            }
            for kind in KINDS
            if kind.group == group
        ]
    }
