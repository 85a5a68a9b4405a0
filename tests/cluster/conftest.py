"""Fixtures of tests against a real Kubernetes: the box, or the cluster that SAMITE_TEST_KUBECONFIG names. How to use them: README.md here.

All tests here carry `@pytest.mark.cluster`. Each failure leaves everything that tells why in build/cluster-logs/<test>.
"""

import os
import re
import secrets
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from box import kuberay as kuberay_operator
from box import object_store
from box.binaries import Binaries, MissingToolError
from box.cluster import Cluster
from box.evidence import collect_objects
from box.folders import REPOSITORY, Folders
from box.helm import Helm
from box.images import PYTHON_IMAGE, python_problem
from box.kubectl import Kubectl
from box.object_store import ObjectStore
from box.processes import Started
from box.requirements import problems

FOREIGN = os.environ.get("SAMITE_TEST_KUBECONFIG")
LOGS = REPOSITORY / "build" / "cluster-logs"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The box: three nodes that a test may break. A test that breaks something mends it. Skipped, with the reason, where no box can run.

    SAMITE_BOX_REUSE=1 takes the box that `python tests/cluster/box up` brought up, and leaves it up. SAMITE_BOX_WAIT_S: how long to wait for the end
    of another session's box, 120 s unless said otherwise.
    """
    if FOREIGN:
        pytest.skip("breaks nodes, so it needs the box; SAMITE_TEST_KUBECONFIG names a cluster that is not ours to break")
    if found := problems():
        pytest.skip("; ".join(found))
    if os.environ.get("SAMITE_BOX_REUSE"):
        yield Cluster.attach()
        return
    patience_s = float(os.environ.get("SAMITE_BOX_WAIT_S", "120"))
    box = Cluster.up(owner=Started.of(os.getpid()), say=lambda text: print(text, file=sys.__stderr__), patience_s=patience_s)
    try:
        yield box
    finally:
        box.down()


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    """kubectl with administrator's rights, on the box or on the cluster that SAMITE_TEST_KUBECONFIG names."""
    if not FOREIGN:
        return request.getfixturevalue("cluster").kubectl
    return Kubectl(_tool("kubectl"), Path(FOREIGN))


@pytest.fixture(scope="session")
def helm(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """A real helm for the same cluster."""
    return Helm(_tool("helm"), kubectl.kubeconfig, tmp_path_factory.mktemp("helm"))


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own, deleted after it (nobody waits for that)."""
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def kuberay(kubectl: Kubectl) -> str:
    """The KubeRay operator, ready, with the CRDs of the newest release; the namespace of the operator (deployment `kuberay-operator`)."""
    if FOREIGN:
        if "rayclusters.ray.io" not in kubectl("get", "crd", "-o", "name"):
            pytest.skip("the cluster of SAMITE_TEST_KUBECONFIG has no KubeRay; install it first")
        return kuberay_operator.NAMESPACE
    kuberay_operator.install(kubectl, Binaries(Folders.of_user()))
    kuberay_operator.apply_newest_crds(kubectl)
    return kuberay_operator.NAMESPACE


@pytest.fixture(scope="session")
def s3(cluster: Cluster) -> ObjectStore:
    """An S3 server that pods and the test reach, each at an endpoint of its own; it outlives every node."""
    return object_store.start(cluster)


@pytest.fixture(scope="session")
def worker_image(cluster: Cluster) -> str:
    """The worker image under its published name: in the box a thin Debian that sees this environment (torch, Ray, Samite) read-only."""
    from samite import __version__

    if problem := python_problem():
        pytest.skip(problem)
    name = f"ghcr.io/samite-dev/worker:{__version__}"
    cluster.tag_image(PYTHON_IMAGE, name)
    return name


@pytest.fixture(scope="session")
def operator_image(cluster: Cluster) -> str:
    """The operator image under its published name, built from operators/Dockerfile for real and loaded on every node."""
    from samite import __version__

    name = f"ghcr.io/samite-dev/operator:{__version__}"
    try:
        cluster.build_image(name, REPOSITORY / "operators" / "Dockerfile", REPOSITORY, say=lambda text: print(text, file=sys.__stderr__))
    except MissingToolError as error:
        pytest.skip(str(error))
    return name


def _tool(name: str) -> Path:
    try:
        return Binaries(Folders.of_user()).path(name)
    except MissingToolError as error:
        if found := shutil.which(name):
            return Path(found)
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """After a failure, write down all that the cluster and the box can tell, while they still stand."""
    report = yield
    asked = {"cluster", "kubectl"}.intersection(getattr(item, "fixturenames", ()))
    if report.failed and call.when != "teardown" and asked:
        folder = LOGS / re.sub(r"[^\w.-]+", "_", item.name)[:80]
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if FOREIGN:
                collect_objects(item.funcargs["kubectl"], folder)
            else:
                Cluster.attach().collect(folder)
        except (OSError, RuntimeError, KeyError) as error:
            report.sections.append(("cluster", f"logs could not be collected: {error}"))
        else:
            report.sections.append(("cluster", f"everything that tells why is in {folder}"))
    return report
