"""The API server with a counter on it: every request is measured, every refusal for want of a right is remembered until it is granted.

Wraps any `KubernetesApi`. Sits below the cache, so what the cache answers costs nothing and is not counted.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from samite.engines.kuberay.api import (
    ApiError,
    ConflictApiError,
    Document,
    ForbiddenApiError,
    GoneApiError,
    Kind,
    KubernetesApi,
    Listing,
)
from samite.telemetry import names
from samite_operators.instruments import Instruments
from samite_operators.liveness import Vitals

T = TypeVar("T")
_DENIED = re.compile(r"cannot (?P<verb>[a-z]+) resource \"(?P<resource>[^\"]+)\"")
_RESOURCES = frozenset(names.attribute("samite.request.resource").values)
_RBAC = {"roles", "rolebindings", "serviceaccounts"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Denial:
    """A right that is missing."""

    verb: str
    resource: str
    namespace: str
    """Empty: in the whole cluster."""
    message: str

    @property
    def right(self) -> str:
        """`patch pods in team-a`."""
        return f"{self.verb} {self.resource}" + (f" in {self.namespace}" if self.namespace else "")


class MeteredApi:
    """A `KubernetesApi` that tells instruments and vitals about every request."""

    def __init__(self, api: KubernetesApi, instruments: Instruments, vitals: Vitals) -> None:
        self._api, self._instruments, self._vitals = api, instruments, vitals
        self._lock = threading.Lock()
        self._denials: dict[tuple[str, str, str], Denial] = {}

    def denials(self, namespace: str) -> tuple[Denial, ...]:
        """Rights that were missing when they were last needed, in `namespace` or cluster-wide."""
        with self._lock:
            return tuple(denial for key, denial in sorted(self._denials.items()) if denial.namespace in ("", namespace))

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        """One object."""
        return self._measured("get", kind, namespace, lambda: self._api.get(kind, namespace, name))

    def list(
        self, kind: Kind, namespace: str = "", *, labels: Mapping[str, str] | None = None, fields: str = "", cached: bool = False
    ) -> Listing:
        """All objects."""
        return self._measured("list", kind, namespace, lambda: self._api.list(kind, namespace, labels=labels, fields=fields, cached=cached))

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Create."""
        return self._measured("create", kind, namespace, lambda: self._api.create(kind, namespace, document))

    def apply(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Server-side apply: a patch for RBAC."""
        return self._measured("patch", kind, namespace, lambda: self._api.apply(kind, namespace, document))

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, *, subresource: str = "") -> Document:
        """Merge patch."""
        return self._measured(
            "patch", kind, namespace, lambda: self._api.patch(kind, namespace, name, patch, subresource=subresource), subresource
        )

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete."""
        self._measured(
            "delete",
            kind,
            namespace,
            lambda: self._api.delete(kind, namespace, name, uid=uid, grace_s=grace_s, propagation=propagation),
        )

    def _measured(self, verb: str, kind: Kind, namespace: str, call: Callable[[], T], subresource: str = "") -> T:
        resource = kind.plural + (f"/{subresource}" if subresource else "")
        key = (verb, resource, namespace)
        began_s = time.monotonic()
        outcome = "error"
        try:
            found = call()
            outcome = "ok"
            if self._denials:
                with self._lock:
                    self._denials.pop(key, None)
        except ApiError as error:
            outcome = _outcome(error)
            if isinstance(error, ForbiddenApiError):
                self._note(key, error)
            raise
        finally:
            if outcome != "unreachable":
                self._vitals.answered()
            self._tell(verb, resource, outcome, time.monotonic() - began_s)
        return found

    def _note(self, key: tuple[str, str, str], error: ForbiddenApiError) -> None:
        verb, resource, namespace = key
        denied = _DENIED.search(str(error))
        if denied is None and error.status != 401:
            return  # A quota or a policy refused this one object: no right is missing.
        denial = Denial(
            verb=denied["verb"] if denied else verb,
            resource=denied["resource"] if denied else resource,
            namespace=namespace,
            message=str(error),
        )
        with self._lock:
            self._denials[key] = denial

    def _tell(self, verb: str, resource: str, outcome: str, seconds: float) -> None:
        known = "rbac" if resource in _RBAC else resource if resource in _RESOURCES else "other"
        attributes = {"samite.request.verb": verb, "samite.request.resource": known, "samite.request.outcome": outcome}
        self._instruments.record("samite.operator.requests", 1, attributes)
        self._instruments.record("samite.operator.request.duration", seconds, {"samite.request.verb": verb})


def _outcome(error: ApiError) -> str:
    if isinstance(error, GoneApiError):
        return "notfound"
    if isinstance(error, ConflictApiError):
        return "conflict"
    if isinstance(error, ForbiddenApiError):
        return "forbidden"
    if error.status == 0:
        return "unreachable"
    return "throttled" if error.status == 429 else "error"
