"""Objects beside the RayCluster: the run's Lease, the service account that may renew it and nothing else, and Ray's token. Pure.

Nothing here needs a right that the operator does not hold itself: the role gives `get` and `patch` on one Lease by name.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from samite.engines.kuberay import names
from samite.engines.kuberay.api import LEASE, ROLE, ROLE_BINDING, SECRET, SERVICE_ACCOUNT, Document, Kind
from samite.engines.kuberay.cluster import owner_reference
from samite.engines.kuberay.pods import account_of
from samite.spec.lease import CONTROL, SUBMISSION, WRITTEN_BY_DRIVER, lease_name

LEASE_DURATION_S = 10
"""For people who read the Lease; the engine measures on its own clock."""


def access_objects(run: Mapping[str, Any]) -> list[tuple[Kind, Document]]:
    """Service account, role and binding, in the order in which they are applied."""
    name, namespace = run["metadata"]["name"], run["metadata"]["namespace"]
    own, account = names.worker_account(name), account_of(run)
    objects: list[tuple[Kind, Document]] = []
    if account == own:
        objects.append((SERVICE_ACCOUNT, _object(run, SERVICE_ACCOUNT, own, {"automountServiceAccountToken": False})))
    rules = [
        {
            "apiGroups": [LEASE.group],
            "resources": [LEASE.plural],
            "resourceNames": [lease_name(name)],
            "verbs": ["get", "patch"],
        }
    ]
    binding = {
        "roleRef": {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": own},
        "subjects": [{"kind": SERVICE_ACCOUNT.kind, "name": account, "namespace": namespace}],
    }
    objects.append((ROLE, _object(run, ROLE, own, {"rules": rules})))
    objects.append((ROLE_BINDING, _object(run, ROLE_BINDING, own, binding)))
    return objects


def heartbeat_lease(run: Mapping[str, Any]) -> Document:
    """The run's Lease as it is created, before any driver has written to it."""
    return _object(run, LEASE, lease_name(run["metadata"]["name"]), {"spec": {"leaseDurationSeconds": LEASE_DURATION_S}})


def lease_for_submission(submission_id: str, control: str = "{}") -> Document:
    """The merge patch that gives the Lease to a new submission: what earlier drivers wrote goes."""
    annotations: dict[str, str | None] = {SUBMISSION: submission_id, CONTROL: control}
    annotations |= dict.fromkeys(WRITTEN_BY_DRIVER)
    return {"metadata": {"annotations": annotations, "labels": {SUBMISSION: submission_id}}}


def ray_token(token_key: bytes, run_uid: str, cluster_id: str) -> str:
    """Ray's token of one cluster: HMAC-SHA256 of its name under the operator's key. Made again after a restart, so that no Secret is read."""
    return hmac.new(token_key, f"ray-token/{run_uid}/{cluster_id}".encode(), hashlib.sha256).hexdigest()


def token_secret(run: Mapping[str, Any], cluster_id: str, token: str) -> Document:
    """The Secret that gives Ray's token to the pods."""
    data = {names.TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    document = _object(run, SECRET, names.token_secret(cluster_id), {"type": "Opaque", "immutable": True, "data": data})
    document["metadata"]["labels"][names.CLUSTER] = cluster_id
    return document


def _object(run: Mapping[str, Any], kind: Kind, name: str, body: Document) -> Document:
    metadata = run["metadata"]
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": names.run_labels(metadata["name"], metadata["uid"]),
            "ownerReferences": [owner_reference(run)],
        },
        **body,
    }
