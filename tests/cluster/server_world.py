"""A real API server as the played world needs it: what the fakes ask of `FakeApi`, done on the server; and the definitions that it must have."""

import gzip
import time
from datetime import UTC, datetime
from pathlib import Path

from samite.engines.kuberay import names
from samite.engines.kuberay.api import CRD, LEASE, NODE, POD, RAY_CLUSTER, ConflictApiError, Document, GoneApiError, Kind, RetryableApiError
from samite.engines.kuberay.api_client import RealApi

RAY_CRD = Path(__file__).parent / "kuberay-crds-1.7.0" / "ray.io_rayclusters.yaml.gz"
NAMESPACE_KIND = Kind(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)


class ServerApi:
    """What the fakes ask of `FakeApi`, answered by a real server. Listings are kept for one tick."""

    def __init__(self, api: RealApi) -> None:
        self._api = api
        self._listed: dict[str, tuple[Document, ...]] = {}
        self.dead_machines: set[str] = set()
        """Told by the fakes; a real server needs no telling that nobody ends the pods there."""

    def fresh(self) -> None:
        """A new tick: look again."""
        self._listed = {}

    def every(self, kind: Kind) -> tuple[Document, ...]:
        if kind.plural not in self._listed:
            self._listed[kind.plural] = tuple(self._api.list(kind).items)
        found = self._listed[kind.plural]
        return tuple(item for item in found if kind != POD or names.RUN in (item["metadata"].get("labels") or {}))

    def look(self, kind: Kind, namespace: str, name: str) -> Document | None:
        try:
            return self._api.get(kind, namespace, name)
        except GoneApiError:
            return None

    def put(self, kind: Kind, document: Document) -> Document:
        metadata = document["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        try:
            if not metadata.get("uid") and self.look(kind, namespace, name) is None:
                made = self._api.create(kind, namespace, {"apiVersion": kind.api_version, "kind": kind.kind, **document})
                self._listed.pop(kind.plural, None)
                return made
            if kind == POD and document.get("spec", {}).get("nodeName"):
                self._bind(namespace, name, document["spec"]["nodeName"])
            if "status" in document:
                self._api.patch(kind, namespace, name, {"status": document["status"]}, subresource="status")
        except (GoneApiError, ConflictApiError):
            pass  # somebody was faster: the next tick looks again
        self._listed.pop(kind.plural, None)
        return document

    def patch(self, kind: Kind, namespace: str, name: str, patch: Document) -> Document:
        if kind == LEASE:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            patch = {**patch, "spec": {**patch["spec"], "renewTime": now}}
        return self._api.patch(kind, namespace, name, patch)

    def delete(self, kind: Kind, namespace: str, name: str, *, grace_s: int | None = None) -> None:
        self._api.delete(kind, namespace, name, grace_s=grace_s)
        self._listed.pop(kind.plural, None)

    def set_node_ready(self, name: str, *, ready: bool) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Told", "message": ""}
        known = self.look(NODE, "", name)
        if known is not None and [item["status"] for item in known.get("status", {}).get("conditions", ())] != [condition["status"]]:
            self._api.patch(NODE, "", name, {"status": {"conditions": [condition]}}, subresource="status")
            self._listed.pop(NODE.plural, None)

    def _bind(self, namespace: str, pod: str, node: str) -> None:
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
        path = POD.path(namespace, pod) + "/binding"
        self._api._call("POST", path, binding)


def install_definitions(api: RealApi, kubeconfig: Path) -> None:
    """Our CRDs and KubeRay's."""
    import yaml

    from samite.cli.app import run

    assert run(["--kubeconfig", str(kubeconfig), "crds", "apply"]) == 0
    definition = yaml.load(gzip.decompress(RAY_CRD.read_bytes()), Loader=yaml.CSafeLoader)
    for _ in range(100):
        try:
            api.apply(CRD, "", definition)
            api.list(RAY_CLUSTER)
            return
        except (GoneApiError, RetryableApiError):
            time.sleep(0.2)
    raise AssertionError("the RayCluster definition is not served")


def make_namespace(api: RealApi, name: str) -> None:
    try:
        api.create(NAMESPACE_KIND, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    except ConflictApiError:
        return
