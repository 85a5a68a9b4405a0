"""Plain HTTPS to the API server from inside a pod: the mounted token (read again for each request, because it rotates), CA and namespace.

One kept-alive connection, one request at a time, no library. Only what a Lease needs: GET and merge PATCH of one object.
"""

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from samite.errors import ConflictError, NotAllowedError, NotFoundError, SamiteError, TemporaryError, UnreachableError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 5.0
_LARGEST_ANSWER_BYTES = 4 << 20


class ApiServer:
    """The API server at `address` (`https://10.96.0.1:443`). Not for several threads."""

    def __init__(self, address: str, *, account: Path = SERVICE_ACCOUNT, timeout_s: float = _TIMEOUT_S) -> None:
        self._address = urlsplit(address)
        self._account, self._timeout_s = account, timeout_s
        self._connection: http.client.HTTPConnection | None = None

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str] = os.environ, *, account: Path = SERVICE_ACCOUNT) -> Self | None:
        """The one that runs this pod; None outside of a pod, and for a pod without a service account's token."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            return None
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", account=account)

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return (self._account / "namespace").read_text(encoding="utf-8").strip()

    def get(self, path: str) -> dict[str, Any]:
        """Read one object."""
        return self._call("GET", path, None)

    def merge(self, path: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `changes` into one object; returns the object. ConflictError if it names a resourceVersion that is no longer the newest."""
        return self._call("PATCH", path, json.dumps(changes, separators=(",", ":")).encode())

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _call(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        """One request. Raises the errors of `samite.errors` by status, UnreachableError without an answer; `retry_after_s` only as the server says."""
        try:
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            if body is not None:
                headers["Content-Type"] = "application/merge-patch+json"
            answer = self._answer(method, path, body, headers)
            text = answer.read(_LARGEST_ANSWER_BYTES)
            if answer.getheader("Connection", "").lower() == "close" or len(text) == _LARGEST_ANSWER_BYTES:
                self.close()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._silence(f"did not answer {method} {path}: {error!r}") from error
        if answer.status >= 400:
            raise _refusal(answer.status, f"{method} {path}: {answer.status} {_reason(text)}", answer.getheader("Retry-After"))
        try:
            found = json.loads(text)
        except ValueError as error:
            self.close()
            raise self._silence(f"answered {method} {path} with something that is no JSON") from error
        return found if isinstance(found, dict) else {}

    def _silence(self, what: str) -> UnreachableError:
        return UnreachableError(f"the API server at {self._address.netloc} {what}", retry_after_s=0.0)

    def _answer(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Send and hear; once more on a new connection if the kept one had been closed from the other side, which costs no meaning here."""
        kept = self._connection
        self._connection = kept or self._connect()
        try:
            self._connection.request(method, path, body=body, headers=headers)
            return self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self.close()
            if kept is None:
                raise
        self._connection = self._connect()
        self._connection.request(method, path, body=body, headers=headers)
        return self._connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        host = self._address.hostname or ""
        if self._address.scheme == "http":
            return http.client.HTTPConnection(host, self._address.port, timeout=self._timeout_s)
        trust = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        # Python 3.13 also wants extensions that the certificates of many clusters lack; name and signature are checked all the same.
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return http.client.HTTPSConnection(host, self._address.port, timeout=self._timeout_s, context=trust)


def _refusal(status: int, message: str, retry_after: str | None) -> SamiteError:
    if status in (401, 403):
        return NotAllowedError(f"{message}. The pod's service account needs get and patch on its run's Lease")
    if status == 404:
        return NotFoundError(message)
    if status == 409:
        return ConflictError(message)
    wait_s = float(retry_after) if retry_after and retry_after.isdigit() else 0.0
    return TemporaryError(message, retry_after_s=min(wait_s, 30.0)) if status == 429 or status >= 500 else SamiteError(message)


def _reason(text: bytes) -> str:
    """What a Kubernetes Status says, or the beginning of anything else."""
    try:
        return str(json.loads(text).get("message", ""))[:300]
    except (ValueError, AttributeError):
        return text[:200].decode(errors="replace")
