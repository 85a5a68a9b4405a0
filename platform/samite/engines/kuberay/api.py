"""The seam to the Kubernetes API server: a handful of verbs over plain documents, and errors that say whether waiting helps.

    ApiError                   SamiteError
    ├─ RetryableApiError       TemporaryError: 429, 5xx, 410 Expired, no answer; `retry_after_s`
    ├─ PermanentApiError       400, 422 and the like: the same call will fail again
    ├─ ConflictApiError        ConflictError: 409; exists already, or a uid or resourceVersion precondition did not hold
    ├─ GoneApiError            NotFoundError: 404; the object, or its whole kind, is not there: a fact
    └─ ForbiddenApiError       NotAllowedError: 401, 403; a missing right, or an admission rule (quota) that refuses

A Protocol, because the tests and `--dry-run` use `fake_api.FakeApi`; `api_client.KubernetesApi` is the real one. Documents are dicts as the API
server speaks them; they belong to the caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from samite.errors import ConflictError, NotAllowedError, NotFoundError, SamiteError, TemporaryError

Document = dict[str, Any]
FIELD_MANAGER = "samite"
"""Owner of the fields that server-side apply writes."""


class ApiError(SamiteError):
    """The API server refused, or did not answer. `status` is the HTTP status (0 without an answer), `reason` the server's CamelCase word."""

    status: int = 0
    reason: str = ""


class RetryableApiError(TemporaryError, ApiError):
    """The same call may succeed after `retry_after_s`."""


class PermanentApiError(ApiError):
    """The call is wrong: repeating it cannot help."""


class ConflictApiError(ConflictError, ApiError):
    """The object exists already, or is no longer the one that was meant."""


class GoneApiError(NotFoundError, ApiError):
    """The API server knows no such object. A fact, unlike silence."""


class ForbiddenApiError(NotAllowedError, ApiError):
    """The service account lacks a right, or admission (a quota, a policy) refuses; the message is the server's."""


def error_of(status: int, message: str, *, reason: str = "", retry_after_s: float | None = None) -> ApiError:
    """The error for an HTTP answer; `status` 0 means that none came."""
    found: ApiError
    if status == 404:
        found = GoneApiError(message)
    elif status == 409:
        found = ConflictApiError(message)
    elif status in (401, 403):
        found = ForbiddenApiError(message)
    elif status in (0, 408, 410, 429) or status >= 500:
        found = RetryableApiError(message, retry_after_s=retry_after_s if retry_after_s is not None else 5.0)
    else:
        found = PermanentApiError(message)
    found.status, found.reason = status, reason
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of object, as the API server's paths name it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "") -> str:
        """The URL path of one object, or of the collection without a `name`."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{place}/{self.plural}" + (f"/{name}" if name else "")


POD = Kind(group="", version="v1", plural="pods", kind="Pod")
EVENT = Kind(group="", version="v1", plural="events", kind="Event")
SECRET = Kind(group="", version="v1", plural="secrets", kind="Secret")
SERVICE_ACCOUNT = Kind(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount")
NODE = Kind(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
ROLE = Kind(group="rbac.authorization.k8s.io", version="v1", plural="roles", kind="Role")
ROLE_BINDING = Kind(group="rbac.authorization.k8s.io", version="v1", plural="rolebindings", kind="RoleBinding")
LEASE = Kind(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease")
RAY_CLUSTER = Kind(group="ray.io", version="v1", plural="rayclusters", kind="RayCluster")
CRD = Kind(
    group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions", kind="CustomResourceDefinition", namespaced=False
)
NODE_BLAME = Kind(group="samite.dev", version="v1alpha1", plural="nodeblames", kind="NodeBlame", namespaced=False)
TRAINING_RUN = Kind(group="samite.dev", version="v1alpha1", plural="trainingruns", kind="TrainingRun")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A complete list as of `resource_version`."""

    items: list[Document]
    resource_version: str


class KubernetesApi(Protocol):
    """What an engine asks of the API server. Every call ends within the implementation's time limit and raises only ApiError."""

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        """One object. Raises GoneApiError if it does not exist."""
        ...

    def list(
        self, kind: Kind, namespace: str = "", *, labels: Mapping[str, str] | None = None, fields: str = "", cached: bool = False
    ) -> Listing:
        """All objects, in pages. `cached` allows an answer from the server's watch cache, which may lag: cheap, never a proof of absence."""
        ...

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Create. Raises ConflictApiError if the name is taken."""
        ...

    def apply(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Server-side apply as `FIELD_MANAGER`. A `metadata.uid` or `resourceVersion` in the document is a precondition (ConflictApiError)."""
        ...

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, *, subresource: str = "") -> Document:
        """JSON merge patch; None removes a key. `metadata.uid` and `resourceVersion` in it are preconditions."""
        ...

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete the object with this uid. Gone already is no error; another object of that name is a ConflictApiError."""
        ...


def is_owned_by(document: Document, uid: str) -> bool:
    """True if `uid` is among the owners of the object."""
    return any(owner.get("uid") == uid for owner in document.get("metadata", {}).get("ownerReferences", ()))
