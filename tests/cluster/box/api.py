"""The smallest client of the API server that the box itself needs: JSON over HTTPS with a client certificate."""

import http.client
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Client:
    """Requests to a server of the box. RuntimeError for an answer of 400 and above, OSError when there is none."""

    connect: Callable[[], Any]
    """Opens a plain socket to the server."""
    certificates: Path
    user: str
    authority: str = "ca"

    def request(self, method: str, path: str, body: Any = None, *, kind: str = "application/json", limit_s: float = 10) -> Any:
        """One request. The answer's JSON, or its text where it is none."""
        context = ssl.create_default_context(cafile=str(self.certificates / f"{self.authority}.crt"))
        context.load_cert_chain(self.certificates / f"{self.user}.crt", self.certificates / f"{self.user}.key")
        plain = self.connect()
        connection = http.client.HTTPConnection("127.0.0.1", timeout=limit_s)
        try:
            plain.settimeout(limit_s)
            connection.sock = context.wrap_socket(plain, server_hostname="127.0.0.1")
            content = None if body is None else json.dumps(body)
            connection.request(method, path, body=content, headers={"Content-Type": kind, "Accept": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
            plain.close()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]}")
        try:
            return json.loads(text)
        except ValueError:
            return text
