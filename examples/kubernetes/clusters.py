"""Where `make demo-kubernetes` runs: a box of tests/cluster, whose nodes can lose their power, or the cluster of KUBECONFIG, whose pods can be deleted."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from proof import ROOT, say

SYSTEM, TEAM = "samite-system", "samite-demo"


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster of the demo: how it is reached, and how one of its nodes dies."""

    kubeconfig: Path
    kubectl: str
    helm: str
    s3_image: str
    s3_command: tuple[str, ...]
    kill_node_of: Callable[[str], str]
    """Ends the node that a pod runs on; returns what was done."""


@contextlib.contextmanager
def boxed(*, keep: bool) -> Iterator[Target]:
    """The cluster in a box, with KubeRay and the images of this working tree."""
    sys.path.insert(0, str(ROOT / "tests" / "cluster"))
    from box import kuberay
    from box.binaries import Binaries
    from box.cluster import Cluster
    from box.folders import Folders
    from box.images import PYTHON_IMAGE
    from box.processes import Started
    from box.requirements import problems

    from samite import __version__

    if found := problems():
        sys.exit("no cluster: KUBECONFIG is not set, and the box cannot run here: " + "; ".join(found))
    cluster = Cluster.up(owner=None if keep else Started.of(os.getpid()), say=say)
    try:
        worker = f"ghcr.io/samite-dev/worker:{__version__}"
        cluster.tag_image(PYTHON_IMAGE, worker)
        cluster.build_image(f"ghcr.io/samite-dev/operator:{__version__}", ROOT / "operators" / "Dockerfile", ROOT, say=say)
        binaries = Binaries(Folders.of_user())
        kuberay.install(cluster.kubectl, binaries)
        kuberay.apply_newest_crds(cluster.kubectl)

        def cut_power(pod: str) -> str:
            name = str(cluster.kubectl.within(TEAM).get("pod", pod)["spec"]["nodeName"])
            number = int(name[-1])
            cluster.node(number).kill()
            return f"the power of node {name} is cut (pod {pod} was on it)"

        yield Target(
            kubeconfig=cluster.kubeconfig,
            kubectl=str(binaries.path("kubectl")),
            helm=str(binaries.path("helm")),
            s3_image=worker,
            s3_command=(str(Path(sys.executable).with_name("weed")),),
            kill_node_of=cut_power,
        )
    finally:
        if keep:
            say(f"\nthe box stays up: export KUBECONFIG={cluster.kubeconfig}; down: {sys.executable} tests/cluster/box down")
        else:
            cluster.down()


@contextlib.contextmanager
def foreign() -> Iterator[Target]:
    """The cluster that KUBECONFIG names."""
    tools = {name: shutil.which(name) for name in ("kubectl", "helm")}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        sys.exit(f"KUBECONFIG is set, so this demo uses that cluster, and needs {' and '.join(missing)} in PATH")
    kubeconfig = Path(os.environ["KUBECONFIG"].split(os.pathsep)[0])

    def delete_pod(pod: str) -> str:
        command = [str(tools["kubectl"]), f"--kubeconfig={kubeconfig}", "-n", TEAM, "delete", "pod", pod, "--grace-period=0", "--force"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return f"pod {pod} was deleted without grace"

    yield Target(
        kubeconfig=kubeconfig,
        kubectl=str(tools["kubectl"]),
        helm=str(tools["helm"]),
        s3_image="docker.io/chrislusf/seaweedfs:4.05",
        s3_command=("weed",),
        kill_node_of=delete_pod,
    )
