"""What an API server's refusals mean to the person at the terminal: who asked for what, where, and what to do now.

Pure functions over `api.ApiError`, and a wrapper that applies them to every call. Conflicts and missing objects pass unchanged: they are
answers that commands work with.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from samite.engines.kuberay.api import TRAINING_RUN, ApiError, ConflictApiError, Document, ForbiddenApiError, GoneApiError, Kind, Listing
from samite.errors import NotAllowedError, NotFoundError, Problem, SamiteError, SpecError, UnreachableError

if TYPE_CHECKING:
    from samite.engines.kuberay.client_connection import CommandApi

T = TypeVar("T")
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"(?P<place>.*)', re.DOTALL
)
_KINDS = "Invalid value|Required value|Unsupported value|Duplicate value|Forbidden|Too long|Too many|Too few|Not found|Internal error"
_CAUSE = re.compile(
    rf"(?P<field>[\w.<>\[\]\"/-]+): (?P<kind>{_KINDS})(?:: (?P<rest>.*?))?(?=, [\w.<>\[\]\"/-]+: (?:{_KINDS})|$)", re.DOTALL
)
_ANONYMOUS = "system:anonymous"
_NO_SUCH_KIND = ("could not find the requested resource", "404 page not found", "HTTP 404")
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which cluster a command talks to, and as whom; for messages."""

    context: str
    namespace: str
    user: str
    address: str
    limit_s: float = 10.0
    kubeconfig: str = ""
    """As it was given by flag."""
    login_problem: str = ""
    """Why the kubeconfig's login helper gave no credentials; empty if it did, or if there is none."""


class ExplainingApi:
    """A `CommandApi` whose refusals are explained."""

    def __init__(self, api: "CommandApi", where: Where) -> None:
        self._api = api
        self._where = where

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        """One object."""
        return self._explained(lambda: self._api.get(kind, namespace, name), kind)

    def list(
        self, kind: Kind, namespace: str = "", *, labels: Mapping[str, str] | None = None, fields: str = "", cached: bool = False
    ) -> Listing:
        """All objects."""
        return self._explained(lambda: self._api.list(kind, namespace, labels=labels, fields=fields, cached=cached), kind)

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Create."""
        return self._explained(lambda: self._api.create(kind, namespace, document), kind)

    def create_strictly(self, kind: Kind, namespace: str, document: Document, *, dry_run: bool = False) -> Document:
        """Create, refusing unknown fields."""
        return self._explained(lambda: self._api.create_strictly(kind, namespace, document, dry_run=dry_run), kind)

    def apply(self, kind: Kind, namespace: str, document: Document) -> Document:
        """Server-side apply."""
        return self._explained(lambda: self._api.apply(kind, namespace, document), kind)

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document, *, subresource: str = "") -> Document:
        """JSON merge patch."""
        return self._explained(lambda: self._api.patch(kind, namespace, name, patch, subresource=subresource), kind)

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete."""
        self._explained(lambda: self._api.delete(kind, namespace, name, uid=uid, grace_s=grace_s, propagation=propagation), kind)

    def read(self, path: str) -> Document:
        """A document that is no object."""
        return self._explained(lambda: self._api.read(path), None)

    def text(self, path: str, query: Mapping[str, str]) -> bytes:
        """The log of a container."""
        return self._explained(lambda: self._api.text(path, query), None)

    def _explained(self, call: Callable[[], T], kind: Kind | None) -> T:
        try:
            return call()
        except ApiError as error:
            raise explained(error, self._where, kind) from error


def explained(error: ApiError, where: Where, kind: Kind | None) -> SamiteError:
    """The same failure for a person."""
    if isinstance(error, ConflictApiError):
        return error
    if isinstance(error, GoneApiError):
        return _missing_kind(error, where, kind) or error
    if isinstance(error, ForbiddenApiError):
        return _not_allowed(error, where)
    if error.status == 0:
        return UnreachableError(
            f"the API server of context {where.context} at {where.address} did not answer within {where.limit_s:.0f} s: {_cause(error)}. "
            f"Nothing was changed. Try: kubectl --context {where.context} get --raw /readyz"
        )
    if kind is TRAINING_RUN and error.status in {400, 422}:
        return _refused_spec(error, where)
    return error


def _missing_kind(error: GoneApiError, where: Where, kind: Kind | None) -> SamiteError | None:
    """A kind that the cluster does not serve looks like a missing object, but for the message."""
    if kind is None or not kind.group or not any(words in str(error) for words in _NO_SUCH_KIND):
        return None
    if kind.group == TRAINING_RUN.group:
        return NotFoundError(
            f"the cluster of context {where.context} does not know {kind.plural}.{kind.group}/{kind.version}: the CRDs of this version are not "
            f"installed. Install the chart, or: samite crds apply --context {where.context}"
        )
    return NotFoundError(f"the cluster of context {where.context} does not know {kind.plural}.{kind.group}: is KubeRay installed?")


def _not_allowed(error: ForbiddenApiError, where: Where) -> SamiteError:
    found = _FORBIDDEN.search(str(error))
    if error.status == 401 or (found is not None and found["user"] == _ANONYMOUS):
        why = f"the login helper of the kubeconfig failed: {where.login_problem}" if where.login_problem else "401 Unauthorized"
        return NotAllowedError(
            f"the API server at {where.address} does not accept the credentials of user {where.user!r} (context {where.context}): "
            f"{why}. Log in again; the same without samite: kubectl --context {where.context} auth whoami"
        )
    if found is None:
        return NotAllowedError(f"the cluster of context {where.context} refuses: {_tail(error)}")
    resource = f"{found['resource']}.{found['group']}" if found["group"] else found["resource"]
    place = f"in namespace {where.namespace}" if "in the namespace" in found["place"] else "in the whole cluster"
    return NotAllowedError(
        f"{found['user']} may not {found['verb']} {resource} {place} (context {where.context}). Ask for a role that allows it: the chart "
        f"brings samite-viewer and samite-editor; samite doctor --context {where.context} lists every right that is missing"
    )


def _refused_spec(error: ApiError, where: Where) -> SamiteError:
    text = _tail(error)
    unknown = _UNKNOWN_FIELD.findall(text)
    if unknown:
        hint = f"the CRD of the cluster is of another version: samite crds diff --context {where.context}, then crds apply"
        return SpecError(
            [
                Problem(path=path, wanted="a field that this cluster's CRD has", found="one that it would drop", hint=hint)
                for path in unknown
            ],
            f"context {where.context}",
        )
    body = text.partition(" is invalid: ")[2].strip()
    body = body[1:-1] if body.startswith("[") and body.endswith("]") else body
    problems = [_problem(match) for match in _CAUSE.finditer(body)]
    if not problems:
        return error
    return SpecError(problems, f"context {where.context}")


def _problem(match: "re.Match[str]") -> Problem:
    rest = match["rest"] or ""
    found, separator, wanted = rest.partition(": ")
    if match["kind"] in {"Invalid value", "Unsupported value", "Duplicate value", "Too long", "Too many"} and separator:
        return Problem(path=match["field"], wanted=wanted, found=found)
    return Problem(path=match["field"], wanted=rest or match["kind"].lower(), found=match["kind"].lower())


def _tail(error: ApiError) -> str:
    """The message without `METHOD /path: ` before it."""
    text = str(error)
    return text.partition(": ")[2] if re.match(r"[A-Z]+ /", text) else text


def _cause(error: ApiError) -> str:
    """The last and plainest words of a chain of network errors."""
    cause: BaseException | None = error.__cause__
    text = str(cause or error)
    for sign, words in (
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted by the kubeconfig's certificate-authority"),
        ("NameResolutionError", "its name cannot be resolved"),
        ("Connection refused", "connection refused"),
        ("timed out", "no connection or no answer in time"),
        ("No route to host", "no route to the host"),
    ):
        if sign in text or sign == type(cause).__name__:
            return words
    return text.rpartition(": ")[2] or text
