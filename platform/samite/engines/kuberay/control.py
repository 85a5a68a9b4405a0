"""Requests to the trainer: JSON documents in the Lease's annotation `samite.dev/control`, kept as files by the driver (docs/heartbeat.md).

The operator is the only writer of that annotation, so changing one document is: read the map, change it, write it back.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from samite.engines.kuberay.access import heartbeat_lease, lease_for_submission
from samite.engines.kuberay.api import LEASE, ConflictApiError, Document, GoneApiError, KubernetesApi
from samite.errors import ConflictError, TemporaryError
from samite.spec.lease import CONTROL, RUN_UID_LABEL, SUBMISSION, attempt_number, lease_name


def take_lease(api: KubernetesApi, run: Mapping[str, Any], submission_id: str) -> None:
    """Give the run's Lease to `submission_id`, before it is submitted: its driver writes nothing until it finds its name there.

    Raises ConflictError if a newer attempt has it already.
    """
    namespace, name = run["metadata"]["namespace"], lease_name(run["metadata"]["name"])
    lease = _lease(api, run)
    owner = (lease["metadata"].get("annotations") or {}).get(SUBMISSION, "")
    if owner == submission_id:
        return
    if attempt_number(owner) > attempt_number(submission_id):
        raise ConflictError(f"the Lease {name} belongs to {owner}, which is newer than {submission_id}")
    patch = lease_for_submission(submission_id)
    patch["metadata"]["uid"] = lease["metadata"]["uid"]
    api.patch(LEASE, namespace, name, patch)


def ensure_lease(api: KubernetesApi, run: Mapping[str, Any]) -> None:
    """Make the run's Lease unless it exists."""
    with suppress(ConflictApiError):
        api.create(LEASE, run["metadata"]["namespace"], heartbeat_lease(run))


def request(api: KubernetesApi, run: Mapping[str, Any], submission_id: str, file: str, document: Mapping[str, Any]) -> bool:
    """Ask the trainer of `submission_id` for something; False, and nothing written, if the Lease is another submission's or says so already."""
    lease = _lease(api, run)
    annotations = lease["metadata"].get("annotations") or {}
    if annotations.get(SUBMISSION) != submission_id:
        return False
    wanted = control_documents(annotations)
    if wanted.get(file) == dict(document):
        return False
    wanted[file] = dict(document)
    patch = {"metadata": {"uid": lease["metadata"]["uid"], "annotations": {CONTROL: json.dumps(wanted, sort_keys=True)}}}
    api.patch(LEASE, run["metadata"]["namespace"], lease["metadata"]["name"], patch)
    return True


def control_documents(annotations: Mapping[str, str]) -> dict[str, Any]:
    """The requests that stand in a Lease; none if the annotation is damaged."""
    try:
        found = json.loads(annotations.get(CONTROL) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _lease(api: KubernetesApi, run: Mapping[str, Any]) -> Document:
    namespace, name = run["metadata"]["namespace"], lease_name(run["metadata"]["name"])
    try:
        found = api.get(LEASE, namespace, name)
    except GoneApiError:
        ensure_lease(api, run)
        found = api.get(LEASE, namespace, name)
    if not belongs_to(found, run["metadata"]["uid"]):
        raise TemporaryError(f"the Lease {name} is that of an earlier run with this name; waiting until Kubernetes has deleted it")
    return found


def belongs_to(lease: Mapping[str, Any], uid: str) -> bool:
    """True if the Lease was made for the run with this uid, and not for an earlier one of the same name."""
    return (lease["metadata"].get("labels") or {}).get(RUN_UID_LABEL) == uid
