"""A real HTTPS server that keeps one Lease as the API server does: token, resourceVersion, merge patch; and that has every trouble on request."""

import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PATH = "/apis/coordination.k8s.io/v1/namespaces/team/leases/demo-heartbeat"


class LeaseServer:
    """Serves until `stop`. `account` is the folder that a pod would find mounted. Change `lease` with `write`, as the operator does."""

    def __init__(self, folder: Path) -> None:
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        certificate = _certificate(folder)
        (self.account / "ca.crt").write_bytes(certificate.read_bytes())
        (self.account / "namespace").write_text("team\n")
        self.token = "first"
        self.rotate("first")
        self.lease: dict[str, Any] | None = None
        self.patches: list[dict[str, Any]] = []
        self.requests: list[tuple[str, int]] = []
        self.troubles: list[Any] = []
        """Taken one for each request: a status, `hang`, `cut`, `garbage`, or a function to call before the request is served."""
        self.lock = threading.Lock()
        self.connections = 0
        self.open_sockets: set[Any] = set()
        self._certificate = certificate
        self.port = 0
        self.start()

    def start(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def setup(self) -> None:
                owner.connections += 1
                owner.open_sockets.add(self.request)
                super().setup()

            def finish(self) -> None:
                owner.open_sockets.discard(self.request)
                super().finish()

            def do_GET(self) -> None:
                owner.serve(self)

            def do_PATCH(self) -> None:
                owner.serve(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: object) -> None:
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        for connection in tuple(self.open_sockets):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def rotate(self, token: str) -> None:
        self.token = token
        (self.account / "token").write_text(token)

    def write(self, annotations: dict[str, str | None], **labels: str) -> None:
        """As the operator: make the Lease, or change it."""
        with self.lock:
            if self.lease is None:
                self.lease = {"metadata": {"name": "demo-heartbeat", "resourceVersion": "0", "annotations": {}, "labels": {}}, "spec": {}}
            self._merge({"metadata": {"annotations": annotations, "labels": labels}})

    @property
    def annotations(self) -> dict[str, str]:
        assert self.lease is not None
        return dict(self.lease["metadata"]["annotations"])

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        trouble = self.troubles.pop(0) if self.troubles else None
        if callable(trouble):
            trouble()
        elif trouble == "hang":
            time.sleep(1.0)
            handler.close_connection = True
            return
        elif trouble == "cut":
            handler.close_connection = True
            return
        elif trouble == "garbage":
            self._answer(handler, 200, b"<html>welcome to the hotel</html>")
            return
        elif trouble:
            self._answer(handler, int(trouble), json.dumps({"message": f"as asked: {trouble}"}).encode())
            return
        with self.lock:
            status, document = self._lease(handler, body)
        self._answer(handler, status, json.dumps(document).encode())

    def _lease(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, Any]]:
        if handler.headers.get("Authorization") != f"Bearer {self.token}":
            return 401, {"message": "Unauthorized"}
        if handler.path != PATH or self.lease is None:
            return 404, {"message": f"{handler.path} not found"}
        if handler.command == "PATCH":
            if handler.headers.get("Content-Type") != "application/merge-patch+json":
                return 415, {"message": "wrong type"}
            patch = json.loads(body)
            if patch["metadata"].get("resourceVersion") not in (None, self.lease["metadata"]["resourceVersion"]):
                return 409, {"message": "the object has been modified"}
            self.patches.append(patch)
            self._merge(patch)
        return 200, self.lease

    def _merge(self, patch: dict[str, Any]) -> None:
        assert self.lease is not None
        metadata = self.lease["metadata"]
        for part in ("annotations", "labels"):
            for key, value in patch.get("metadata", {}).get(part, {}).items():
                if value is None:
                    metadata[part].pop(key, None)
                else:
                    metadata[part][key] = value
        self.lease["spec"] |= patch.get("spec", {})
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        self.requests.append((handler.command, status))
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        if status == 429:
            handler.send_header("Retry-After", "1")
        handler.end_headers()
        handler.wfile.write(body)


def _certificate(folder: Path) -> Path:
    """A key and its own certificate for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.write_bytes(made.public_bytes(encoding) + key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return file
