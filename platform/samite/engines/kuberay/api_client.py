"""The real API server behind `api.KubernetesApi`: connection and credentials by the official client, requests and errors by us.

The generated methods of the client are not used: they differ from release to release and cannot carry preconditions on custom objects.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from samite.engines.kuberay.api import FIELD_MANAGER, ApiError, Document, GoneApiError, Kind, Listing, error_of
from samite.errors import UsageError

PAGE = 500
"""Objects of one page of a list."""


class RealApi:
    """One API server, from many threads. Every request ends within `timeout_s` seconds."""

    def __init__(self, client: Any, *, timeout_s: float = 5.0, connections: int = 16) -> None:
        """`client`: a configured `kubernetes.client.ApiClient`; see `connect`."""
        import urllib3

        self._configuration = client.configuration
        self._pool = client.rest_client.pool_manager
        self._pool.connection_pool_kw["maxsize"] = connections
        self._timeout = urllib3.Timeout(connect=min(3.0, timeout_s), read=timeout_s)
        self._host = str(client.configuration.host).rstrip("/")
        self.requests = 0
        """Requests made so far, for the load test and the operator's own metrics."""

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        """One object."""
        return self._call("GET", kind.path(namespace, name))

    def list(
        self, kind: Kind, namespace: str = "", *, labels: Mapping[str, str] | None = None, fields: str = "", cached: bool = False
    ) -> Listing:
        """All objects; in pages of 500 unless `cached`."""
        query = {"resourceVersion": "0"} if cached else {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        if fields:
            query["fieldSelector"] = fields
        items: list[Document] = []
        while True:
            page = self._call("GET", kind.path(namespace), query=query)
            items.extend(page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return Listing(items=items, resource_version=str(metadata.get("resourceVersion", "")))
            query["continue"] = metadata["continue"]

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Create."""
        return self._call("POST", kind.path(namespace), document, query={"fieldManager": FIELD_MANAGER})

    def apply(
        self, kind: Kind, namespace: str, document: Document, *, manager: str = FIELD_MANAGER, force: bool = True, dry_run: bool = False
    ) -> Document:
        """Server-side apply. Forced: fields that we set are ours, whoever changed them by hand. `dry_run` changes nothing and returns what would be."""
        query = {"fieldManager": manager, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        path = kind.path(namespace, document["metadata"]["name"])
        return self._call("PATCH", path, document, query=query, content="application/apply-patch+yaml")

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, *, subresource: str = "") -> Document:
        """JSON merge patch."""
        path = kind.path(namespace, name) + (f"/{subresource}" if subresource else "")
        return self._call("PATCH", path, patch, query={"fieldManager": FIELD_MANAGER}, content="application/merge-patch+json")

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete; gone already is no error."""
        options: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._call("DELETE", kind.path(namespace, name), options)
        except GoneApiError:
            return

    def _call(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Document:
        import urllib3

        url = self._host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER, **self._credentials()}
        if body is not None:
            headers["Content-Type"] = content
        self.requests += 1
        try:
            answer = self._pool.request(
                method, url, body=None if body is None else json.dumps(body), headers=headers, timeout=self._timeout, retries=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise error_of(0, f"the API server at {self._host} did not answer {method} {path}: {error}") from error
        return _read(answer.status, answer.data, answer.headers, f"{method} {path}")

    def _credentials(self) -> dict[str, str]:
        """Read for every request: a mounted token is exchanged each hour."""
        found = self._configuration.auth_settings().get("BearerToken")
        return {found["key"]: found["value"]} if found and found.get("value") else {}


def _read(status: int, data: bytes, headers: Mapping[str, str], what: str) -> Document:
    try:
        document = json.loads(data or b"{}")
    except ValueError:
        document = {"message": data[:300].decode(errors="replace")}
    if 200 <= status < 300 and isinstance(document, dict):
        return document
    raise _refusal(status, document if isinstance(document, dict) else {}, headers, what)


def _refusal(status: int, document: Document, headers: Mapping[str, str], what: str) -> ApiError:
    after = headers.get("Retry-After", "")
    retry_after_s = float(after) if after.isdigit() else None
    message = f"{what}: {document.get('message') or f'HTTP {status}'}"
    return error_of(status, message, reason=str(document.get("reason", "")), retry_after_s=retry_after_s)


def connect(*, context: str = "", kubeconfig: str = "", timeout_s: float = 5.0) -> RealApi:
    """The API server of this pod's service account, or else of a kubeconfig. Makes no request. Raises UsageError if there is neither."""
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        if context or kubeconfig:
            config.load_kube_config(config_file=kubeconfig or None, context=context or None, client_configuration=configuration)  # type: ignore[no-untyped-call]
        elif os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise UsageError(f"no Kubernetes cluster to talk to: wanted a service account in a pod or a kubeconfig, found: {error}") from error
    return RealApi(client.ApiClient(configuration), timeout_s=timeout_s)
