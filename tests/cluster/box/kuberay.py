"""The KubeRay operator in a cluster: its own manifests of the built version, and the CRDs of the newest release."""

import gzip
import shutil
import subprocess
import tempfile
from pathlib import Path

from .binaries import Binaries
from .kubectl import Kubectl

NAMESPACE = "kuberay-system"
NEWEST_CRDS = Path(__file__).resolve().parents[1] / "kuberay-crds-1.7.0"


def install(kubectl: Kubectl, binaries: Binaries) -> None:
    """Apply the operator of components.KUBERAY with its CRDs, and wait until it is ready."""
    kubectl("create", "namespace", NAMESPACE, check=False)
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=_manifests(binaries), limit_s=120)
    kubectl("-n", NAMESPACE, "rollout", "status", "deployment/kuberay-operator", "--timeout=120s", limit_s=130)


def apply_newest_crds(kubectl: Kubectl) -> None:
    """Put the RayCluster and RayJob CRDs of KubeRay 1.7.0 over those that are installed: the fields that a 1.7 cluster has."""
    for file in sorted(NEWEST_CRDS.glob("*.yaml.gz")):
        text = gzip.decompress(file.read_bytes()).decode()
        # Server-side: the documents are larger than what an annotation may hold.
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text, limit_s=120)
    kubectl("wait", "--for=condition=Established", "crd/rayclusters.ray.io", "crd/rayjobs.ray.io", "--timeout=30s", limit_s=40)


def _manifests(binaries: Binaries) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(binaries.of("kuberay") / "config", Path(scratch) / "config")
        shutil.copyfile(Path(__file__).with_name("manifests") / "kuberay.yaml", Path(scratch) / "kustomization.yaml")
        command = [str(binaries.path("kubectl")), "kustomize", scratch]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
