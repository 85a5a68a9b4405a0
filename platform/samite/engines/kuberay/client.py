"""What the CLI calls for runs on Kubernetes (`samite.engines.base.RunClient`): asking is a patch, and the operator answers.

Status, wishes and Kubernetes' Events come from the API server; events, logs and metrics come from the run's storage, also after the pods are
gone. Nothing here talks to a pod or needs a port-forward.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samite.checkpoint import Store, StoreOptions, open_store
from samite.engines.base import TERMINAL_PHASES, Blow, EventFeed, LogChoice, Logs, Submitted
from samite.engines.kuberay import names
from samite.engines.kuberay.api import POD, TRAINING_RUN, ConflictApiError, Document, GoneApiError, Kind
from samite.engines.kuberay.client_run import ClusterRun, manifest, pod_document, record, request_patch, same_run, status_document
from samite.engines.kuberay.stored_memory import memory_of
from samite.errors import ConflictError, NotAllowedError, NotFoundError, SamiteError, UsageError
from samite.lifecycle import Memory, RequestKind

if TYPE_CHECKING:
    from samite.engines.kuberay.client_errors import ExplainingApi, Where

ENDPOINT_VARIABLE = "SAMITE_STORAGE_ENDPOINT"
"""Another address of the same S3 service, for machines that do not reach the one the pods use (a port-forward, a gateway)."""
_TRIES = 5
OPERATOR_NAMESPACE = "samite-system"
USER_REVIEW = Kind(group="authentication.k8s.io", version="v1", plural="selfsubjectreviews", kind="SelfSubjectReview", namespaced=False)


def _silent(_text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterEngine:
    """The runs of one namespace, or of all."""

    api: "ExplainingApi"
    where: "Where"
    all_namespaces: bool = False
    tell: Callable[[str], None] = field(default=_silent, repr=False)
    """Is told what could not be read where the command goes on without it."""

    @classmethod
    def connect(
        cls,
        *,
        context: str = "",
        namespace: str = "",
        kubeconfig: str = "",
        all_namespaces: bool = False,
        tell: Callable[[str], None] = _silent,
    ) -> "ClusterEngine":
        """The engine of a kubeconfig's context; makes no request. Raises UsageError, NotFoundError."""
        from samite.engines.kuberay.client_connection import connect
        from samite.engines.kuberay.client_errors import ExplainingApi

        api, where = connect(context=context, namespace=namespace, kubeconfig=kubeconfig)
        return cls(api=ExplainingApi(api, where), where=where, all_namespaces=all_namespaces, tell=tell)

    @property
    def place(self) -> str:
        """For messages."""
        namespace = "every namespace" if self.all_namespaces else f"namespace {self.where.namespace}"
        return f"{namespace} of context {self.where.context}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Context and namespace by name, whatever the kubeconfig's current ones are later."""
        file = ("--kubeconfig", self.where.kubeconfig) if self.where.kubeconfig else ()
        return ("--context", self.where.context, "--namespace", self.where.namespace, *file)

    @property
    def refresh_s(self) -> float:
        """A look is a request: the operator writes progress each ten seconds, and everything else at once."""
        return 2.0

    def submit(self, document: dict[str, Any], source: str) -> Submitted[ClusterRun]:  # noqa: ARG002 - the object itself is the record
        """Make the TrainingRun in one call, under the name that the API server knows us by: approvals must come from somebody else."""
        wanted = self._signed(manifest(document, self.where.namespace))
        try:
            made = self.api.create_strictly(TRAINING_RUN, self.where.namespace, wanted)
        except ConflictApiError:
            return Submitted(run=self._require_same(wanted), existed=True)
        return Submitted(run=ClusterRun.of(made), existed=False)

    def check(self, document: dict[str, Any]) -> Document:
        """What the API server would make of the run: schema, rules, admission and defaults; nothing is kept."""
        wanted = self._signed(manifest(document, self.where.namespace))
        try:
            return self.api.create_strictly(TRAINING_RUN, self.where.namespace, wanted, dry_run=True)
        except ConflictApiError:
            return self._require_same(wanted).document

    def find(self, name: str) -> ClusterRun:
        """A run by name, or the only active one if `name` is empty."""
        if "/" in name:
            raise UsageError(f"{name!r} is not the name of a run; see: samite list")
        if name:
            try:
                return ClusterRun.of(self.api.get(TRAINING_RUN, self.where.namespace, name))
            except GoneApiError:
                raise NotFoundError(self._not_found(name)) from None
        runs = self.runs()
        active = [run for run in runs if run.phase not in TERMINAL_PHASES]
        if len(active) == 1:
            return active[0]
        if active:
            raise UsageError(f"which run? Active in {self.place}: {', '.join(run.name for run in active)}")
        known = ", ".join(run.name for run in runs) or "(none was ever submitted)"
        raise NotFoundError(f"no run is active in {self.place}; name one of: {known}")

    def runs(self) -> list[ClusterRun]:
        """Every run of the namespace, by name."""
        items = self.api.list(TRAINING_RUN, "" if self.all_namespaces else self.where.namespace).items
        return sorted(map(ClusterRun.of, items), key=lambda run: (run.namespace, run.name))

    def status(self, run: ClusterRun) -> dict[str, Any]:
        """The newest status. With all namespaces listed, the one that came with the list."""
        return status_document(run.document if self.all_namespaces else self._newest(run))

    def record(self, run: ClusterRun) -> dict[str, Any]:
        """The object as it was found."""
        return record(run.document)

    def memory(self, run: ClusterRun) -> Memory:
        """`status.memory` of the newest object."""
        return memory_of(self._newest(run))

    def details(self, run: ClusterRun) -> dict[str, Any]:
        """Namespace, cluster, pods, attempts and places."""
        from samite.checkpoint.records import RECORDS
        from samite.engines.kuberay.client_records import submissions

        uri = str(run.checkpoint.get("uri", ""))
        attempts: list[str] = []
        try:
            attempts = submissions(self.store(run))
        except (SamiteError, OSError) as error:
            self.tell(f"the records in storage were not read: {error}")
        return {
            "namespace": run.namespace,
            "cluster": str((run.document.get("status") or {}).get("clusterId") or ""),
            "checkpoints": uri,
            "records": f"{uri.rstrip('/')}/{RECORDS.rstrip('/')}" if uri else "",
            "attempts": attempts,
            "pods": self._pods(run),
        }

    def attended(self, run: ClusterRun) -> None:
        """The operator's own Lease tells; `samite doctor` reads it. A run cannot say."""

    def attend(self, run: ClusterRun) -> None:
        """The operator watches the object: nothing is left to do."""

    def wish(self, run: ClusterRun, *, suspend: bool | None = None, cancel: bool | None = None) -> None:
        """One patch of this very object."""
        patch: Document = {"metadata": {"uid": run.uid}}
        if suspend is not None:
            patch["spec"] = {"suspend": suspend}
        if cancel:
            patch["metadata"]["annotations"] = {names.CANCEL: "true"}
        self.api.patch(TRAINING_RUN, run.namespace, run.name, patch)

    def ask(
        self, run: ClusterRun, kind: RequestKind, *, argument: str = "", by: str = "", windows: tuple[tuple[int, int], ...] = ()
    ) -> str:
        """One annotation; the operator takes it away when it has answered. An approval is added to `spec.approvals`, which a policy guards."""
        if kind is RequestKind.APPROVE:
            return self._approve(run, stage=argument, by=by)
        request_id, annotations = request_patch(kind, argument=argument, by=by, windows=windows)
        self.api.patch(TRAINING_RUN, run.namespace, run.name, {"metadata": {"uid": run.uid, "annotations": annotations}})
        return request_id

    def events(self, run: ClusterRun) -> EventFeed:
        """Records in storage and Kubernetes' Events, merged."""
        from samite.engines.kuberay.client_events import ClusterEvents

        return ClusterEvents(self.api, run, lambda: self.store(run), self.tell)

    def logs(self, run: ClusterRun, choice: LogChoice) -> Logs:
        """Records in storage, and the pods that live."""
        from samite.engines.kuberay.client_logs import ClusterLogs

        namespace = os.environ.get("SAMITE_OPERATOR_NAMESPACE") or OPERATOR_NAMESPACE
        return ClusterLogs(self.api, run, choice, store=lambda: self.store(run), operator_namespace=namespace, tell=self.tell)

    def store(self, run: ClusterRun) -> Store:
        """The run's storage, with the credentials of this shell."""
        checkpoint = run.checkpoint
        if not checkpoint.get("uri"):
            raise NotFoundError(f"run {run.name!r} has no spec.checkpoint.uri, so nothing of it is stored outside of its pods")
        return open_store(
            str(checkpoint["uri"]),
            StoreOptions(
                endpoint=os.environ.get(ENDPOINT_VARIABLE) or str(checkpoint.get("endpoint") or ""),
                region=str(checkpoint.get("region") or ""),
                insecure=bool(checkpoint.get("insecure", False)),
            ),
        )

    @contextmanager
    def records(self, run: ClusterRun) -> Iterator[Path]:
        """Everything known of the run in a temporary folder, laid out as a local run's."""
        from samite.engines.kuberay.client_folder import gather

        with tempfile.TemporaryDirectory(prefix="samite-records-") as folder:
            path = Path(folder)
            gather(path, self, run)
            yield path

    def strike(self, run: ClusterRun, blow: Blow) -> str:
        """Pods deleted without grace, faults by control document."""
        from samite.engines.kuberay.client_chaos import strike

        return strike(self.api, run, blow, place=self.place)

    def delete(self, run: ClusterRun) -> None:
        """Delete the object; what lies in storage stays. ConflictError while the run is not over."""
        phase = self.status(run)["phase"]
        if phase not in TERMINAL_PHASES:
            raise ConflictError(f"run {run.name!r} is {phase}, not over; first: samite cancel {run.name} --wait")
        self.api.delete(TRAINING_RUN, run.namespace, run.name, uid=run.uid)

    def _approve(self, run: ClusterRun, *, stage: str, by: str) -> str:
        """Approvals only grow; somebody else's, added meanwhile, must not be lost. They carry the name that the API server knows: it compares."""
        by = self._user() or by
        for _ in range(_TRIES):
            newest = self._newest(run)
            approvals = list(newest["spec"].get("approvals") or ())
            if any(approval.get("stage") == stage for approval in approvals):
                return stage
            metadata = {"uid": run.uid, "resourceVersion": newest["metadata"]["resourceVersion"]}
            patch = {"metadata": metadata, "spec": {"approvals": [*approvals, {"stage": stage, "by": by}]}}
            with suppress(ConflictApiError):
                self.api.patch(TRAINING_RUN, run.namespace, run.name, patch)
                return stage
        raise ConflictError(f"run {run.name!r} changed {_TRIES} times while {stage!r} was being approved; nothing was changed. Try again")

    def _signed(self, wanted: Document) -> Document:
        """`wanted` with who submits it, as the API server itself says. Its policy compares that with the login, so it cannot be somebody else's name;
        where the server writes the name by itself (Kubernetes 1.36 and newer), it is the same one."""
        annotations = wanted["metadata"].get("annotations") or {}
        if names.SUBMITTED_BY in annotations or not (user := self._user()):
            return wanted
        return {**wanted, "metadata": {**wanted["metadata"], "annotations": {**annotations, names.SUBMITTED_BY: user}}}

    def _user(self) -> str:
        """Who the API server takes us for; empty if it does not tell."""
        review = {"apiVersion": USER_REVIEW.api_version, "kind": USER_REVIEW.kind, "metadata": {}}
        with suppress(NotAllowedError, NotFoundError):
            return str(self.api.create(USER_REVIEW, "", review).get("status", {}).get("userInfo", {}).get("username", ""))
        return ""

    def _newest(self, run: ClusterRun) -> Document:
        try:
            return self.api.get(TRAINING_RUN, run.namespace, run.name)
        except GoneApiError:
            raise NotFoundError(
                f"run {run.name!r} was deleted from {self.place}; its storage is as it was: {run.checkpoint.get('uri')}"
            ) from None

    def _require_same(self, wanted: Document) -> ClusterRun:
        name = wanted["metadata"]["name"]
        found = self.find(name)
        if found.document["metadata"].get("deletionTimestamp"):
            raise ConflictError(f"a run named {name!r} is being deleted in {self.place}; submit again when it is gone: samite list")
        if not same_run(found.document, wanted):
            raise ConflictError(
                f"a run named {name!r} exists in {self.place} with another spec ({found.phase}). "
                f"Submit under another name (--name), or remove it: samite delete {name}"
            )
        return found

    def _not_found(self, name: str) -> str:
        known = [run.name for run in self.runs()]
        close = get_close_matches(name, known, n=1, cutoff=0.6)
        guess = f" Did you mean {close[0]}?" if close else ""
        return f"no run named {name!r} in {self.place}.{guess} Known runs: {', '.join(known[:20]) or 'none yet'}."

    def _pods(self, run: ClusterRun) -> list[dict[str, Any]]:
        try:
            pods = self.api.list(POD, run.namespace, labels={names.RUN: run.name}).items
        except SamiteError as error:
            self.tell(f"the pods were not read: {error}")
            return []
        return [pod_document(pod) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))]
