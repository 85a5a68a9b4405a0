"""Environment of the Ray containers. Pure. Literal variables of the spec are not here: they travel with the attempt, so that no pod changes with them.

Secrets come by reference only (`valueFrom`, `envFrom`): a literal would be shown by Ray's dashboard and by `kubectl get`.
"""

from collections.abc import Mapping
from typing import Any

from samite.checkpoint.store.s3_keys import FOLDER_VARIABLE
from samite.engines.kuberay import names
from samite.engines.kuberay.api import Document
from samite.engines.kuberay.runtime import PodSettings, Runtime
from samite.engines.local.ray_command import PRELOADED, ray_environment
from samite.spec.lease import lease_name

KEYS_FOLDER = "/etc/samite/storage-keys"
"""Where the Secret with the storage credentials is mounted: unlike variables, its files change with it."""
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_NOT_HERE = ("RAY_AUTH_MODE", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER")
"""Set by the token's owner, and left to Ray: on Kubernetes nodes do get notices."""


def container_environment(
    run: Mapping[str, Any], cluster_id: str, runtime: Runtime, settings: PodSettings, *, head: bool
) -> list[Document]:
    """Variables of one container. Ray's token is always among them: an operator that is older than its definitions ignores `authOptions`."""
    plain = {name: value for name, value in ray_environment({}).items() if name not in _NOT_HERE}
    # A driver that is stopped may take this long for its last words to the Lease and to storage; one that is done with them goes at once.
    plain["RAY_JOB_STOP_WAIT_TIME_S"] = "4"
    if not head:
        plain["RAY_preload_python_modules"] = ",".join(PRELOADED)
    # Nodes start side by side on machines that are busy pulling and starting others: Ray's own 30 s and 40 s are for a quiet one.
    plain |= {"RAY_agent_register_timeout_ms": "120000", "RAY_NUM_REDIS_GET_RETRIES": "60"}
    if runtime.head_fault_tolerance is not None:
        plain[_RECONNECT] = "120"  # the head comes back with its state; 10 s would end every worker before
    plain |= {
        "SAMITE_HOME": names.HOME,
        "SAMITE_RUN_UID": run["metadata"]["uid"],
        "SAMITE_LEASE": lease_name(run["metadata"]["name"]),
        "HOME": names.HOME,
        # The user's number may have no name in the image, and libraries that ask for one would fail.
        "USER": "samite",
        "LOGNAME": "samite",
    }
    if credentials_secret(run):
        plain[FOLDER_VARIABLE] = KEYS_FOLDER
    variables: list[Document] = [{"name": name, "value": value} for name, value in sorted(plain.items())]
    variables += [
        _from_field("SAMITE_NODE", "metadata.name"),
        _from_field("SAMITE_HOST", "spec.nodeName"),
        _from_field("SAMITE_NAMESPACE", "metadata.namespace"),
        _from_field("SAMITE_NODE_ADDRESS", "status.podIP"),
    ]
    reference = {"name": names.token_secret(cluster_id), "key": names.TOKEN_KEY}
    variables.append({"name": "RAY_AUTH_MODE", "value": "token"})
    variables.append({"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    variables += spec_environment(run)
    known = {item["name"] for item in variables}
    return variables + [dict(item) for item in settings.env if item["name"] not in known]


def spec_environment(run: Mapping[str, Any]) -> list[Document]:
    """The spec's variables that come from a Secret or a ConfigMap."""
    found = []
    for entry in run["spec"].get("env") or ():
        source = entry.get("valueFrom") or {}
        taken = {key: source[key] for key in ("secretKeyRef", "configMapKeyRef") if source.get(key)}
        if taken:
            found.append({"name": entry["name"], "valueFrom": taken})
    return found


def literal_environment(run: Mapping[str, Any]) -> dict[str, str]:
    """The spec's literal variables, for the attempt."""
    return {entry["name"]: entry["value"] for entry in run["spec"].get("env") or () if entry.get("value") is not None}


def credentials_source(run: Mapping[str, Any]) -> list[Document]:
    """`envFrom` with the storage credentials, if the spec names a Secret."""
    secret = credentials_secret(run)
    return [{"secretRef": {"name": secret}}] if secret else []


def credentials_secret(run: Mapping[str, Any]) -> str:
    """Name of the Secret with the storage credentials; empty if the spec names none."""
    return str((run["spec"].get("checkpoint", {}).get("credentials") or {}).get("secretName") or "")


def _from_field(name: str, path: str) -> Document:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
