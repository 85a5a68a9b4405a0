"""From a kubeconfig to an API server for a person's commands: which context, which namespace, and what a command needs beyond `KubernetesApi`.

Called by `client.ClusterEngine.connect`. Imports the `kubernetes` package (about a second), which is why commands come here only when they must.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from samite.engines.kuberay.api import Document, Kind, KubernetesApi, error_of
from samite.engines.kuberay.api_client import RealApi
from samite.engines.kuberay.client_errors import Where
from samite.errors import NotFoundError, UsageError
from samite.settings import home_folder

FIELD_MANAGER = "samite-cli"
LIMIT_S = 10.0
"""Longest time for one answer of the API server."""
IN_CLUSTER = "in-cluster"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class CommandApi(KubernetesApi, Protocol):
    """What commands ask of the API server beyond what engines ask. A Protocol, because tests run commands against a fake one."""

    def create_strictly(self, kind: Kind, namespace: str, document: Document, *, dry_run: bool = False) -> Document:
        """Create, refusing fields that the server does not know. With `dry_run` the server checks everything and keeps nothing."""
        ...

    def read(self, path: str) -> Document:
        """A document that is no object, such as `/version`."""
        ...

    def text(self, path: str, query: Mapping[str, str]) -> bytes:
        """The log of a container."""
        ...


class CommandClient(RealApi):
    """The real API server, for commands: another field manager, and one limit for everything from name resolution to the last byte."""

    def __init__(self, client: Any) -> None:
        import urllib3

        super().__init__(client, timeout_s=LIMIT_S, connections=4)
        self._timeout = urllib3.Timeout(total=LIMIT_S)

    def create_strictly(self, kind: Kind, namespace: str, document: Document, *, dry_run: bool = False) -> Document:
        """Create with strict field validation."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._call("POST", kind.path(namespace), document, query=query)

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, *, subresource: str = "") -> Document:
        """JSON merge patch in the CLI's own name."""
        path = kind.path(namespace, name) + (f"/{subresource}" if subresource else "")
        return self._call("PATCH", path, patch, query={"fieldManager": FIELD_MANAGER}, content="application/merge-patch+json")

    def read(self, path: str) -> Document:
        """One document by its path."""
        return self._call("GET", path)

    def text(self, path: str, query: Mapping[str, str]) -> bytes:
        """Bytes by their path."""
        import urllib3

        headers = {"Accept": "*/*", "User-Agent": FIELD_MANAGER, **self._credentials()}
        try:
            answer = self._pool.request(
                "GET", f"{self._host}{path}?{urlencode(query)}", headers=headers, timeout=self._timeout, retries=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise error_of(0, f"GET {path}: {error}") from error
        if answer.status != 200:
            raise error_of(answer.status, f"GET {path}: {answer.data[:500].decode(errors='replace')}")
        return bytes(answer.data)


def connect(*, context: str = "", namespace: str = "", kubeconfig: str = "") -> tuple[CommandClient, Where]:
    """The API server that a command means. Makes no request to it.

    In a pod without a kubeconfig, or with the context `in-cluster`, the pod's service account is used. Raises UsageError or NotFoundError.
    """
    from kubernetes import client

    config = _config()
    configuration = client.Configuration()
    problems: list[str] = []
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    try:
        if context == IN_CLUSTER or (in_pod and not (context or kubeconfig or os.environ.get("KUBECONFIG"))):
            config.load_incluster_config(client_configuration=configuration)
            found: dict[str, Any] = {"name": IN_CLUSTER, "context": {"namespace": _pod_namespace(), "user": "the pod's service account"}}
        else:
            found = _context(context, kubeconfig)
            with _overheard() as problems:
                config.load_kube_config(config_file=_files(kubeconfig), context=found["name"], client_configuration=configuration)
    except (NotFoundError, UsageError):
        raise
    except Exception as error:
        raise UsageError(
            f"the kubeconfig {_files(kubeconfig)} cannot be used: {str(error).strip() or type(error).__name__}. Try: kubectl config view"
        ) from error
    inner = found.get("context") or {}
    where = Where(
        context=str(found["name"]),
        namespace=namespace or str(inner.get("namespace") or "default"),
        user=str(inner.get("user") or "unknown"),
        address=str(configuration.host),
        limit_s=LIMIT_S,
        kubeconfig=kubeconfig,
        login_problem="; ".join(problems),
    )
    return CommandClient(client.ApiClient(configuration)), where


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """What the package says to the root logger meanwhile: that a login helper failed, after which it goes on without credentials."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    said: list[str] = []
    listener, root = Listener(logging.ERROR), logging.getLogger()
    root.addHandler(listener)
    try:
        yield said
    finally:
        root.removeHandler(listener)


def _context(wanted: str, kubeconfig: str) -> dict[str, Any]:
    """The context of this name, or the current one."""
    files = _files(kubeconfig)
    if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        raise UsageError(
            f"no cluster is configured: wanted a kubeconfig, found none at {files}. Give one with --kubeconfig FILE or KUBECONFIG; "
            "without --context, --namespace and --kubeconfig samite works with the runs of this machine"
        )
    contexts, current = _config().list_kube_config_contexts(config_file=files)
    named = {str(item["name"]): item for item in contexts}
    if not wanted:
        return dict(current)
    if wanted in named:
        return dict(named[wanted])
    close = get_close_matches(wanted, named, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]}?" if close else ""
    raise NotFoundError(f"no context {wanted!r} in {files}.{guess} Contexts: {', '.join(sorted(named)) or 'none'}")


def _config() -> Any:
    """`kubernetes.config`, which has no types."""
    from kubernetes import config

    return config


def _files(kubeconfig: str) -> str:
    return kubeconfig or os.environ.get("KUBECONFIG", "") or str(home_folder() / ".kube" / "config")


def _pod_namespace() -> str:
    try:
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
