"""The images, built for real from their Dockerfiles: what they hold, what they do not, and how they run in a namespace that only takes restricted pods."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from box.dockerfiles import build_image
from box.folders import REPOSITORY, Folders
from box.kubectl import Kubectl
from box.waiting import until

from samite import __version__

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
LIMIT_BYTES = 500_000_000
"""Unpacked, on the box's base of 180 MB (the published one has 75). It is pulled when the operator's node is lost: that must not take long."""


class Image:
    """An image archive: its configuration, its size unpacked, and the paths in it."""

    def __init__(self, archive: Path) -> None:
        with tarfile.open(archive) as outer:
            manifest = json.load(outer.extractfile("manifest.json"))[0]
            self.config: dict[str, Any] = json.load(outer.extractfile(manifest["Config"]))["config"]
            self.paths: set[str] = set()
            self.bytes = 0
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=outer.extractfile(layer)) as files:
                    for member in files:
                        self.paths.add(member.name.removeprefix("./"))
                        self.bytes += member.size


@pytest.fixture(scope="module")
def operator(cluster: object, operator_image: str) -> Image:
    (archive,) = Folders.of_user().images.glob("built-*operator*.tar")
    return Image(archive)


def test_the_operator_s_image_is_small_and_light(operator: Image):
    print(f"{operator.bytes / 1e6:.0f} MB unpacked")
    assert operator.bytes < LIMIT_BYTES
    packages = {path.split("site-packages/")[1].split("/")[0] for path in operator.paths if "site-packages/" in path}
    assert {"samite", "samite_operators", "kopf", "kubernetes", "boto3"} <= packages
    assert packages.isdisjoint(
        {"torch", "ray", "numpy", "triton", "pip", "setuptools", "uv", "pytest", "samite_workloads", "samite_kernels"}
    )
    assert not any(path.startswith(("source/", "usr/bin/gcc", "opt/uv")) for path in operator.paths)


def test_the_operator_s_image_says_what_it_is_and_runs_as_a_number(operator: Image):
    assert operator.config["User"] == "65532:65532"
    assert operator.config["WorkingDir"] == "/home/samite"
    assert "PYTHONSAFEPATH=1" in operator.config["Env"]
    assert not any(line.startswith(("PIP_CERT", "SSL_CERT_FILE")) for line in operator.config["Env"])
    assert operator.config["Labels"]["org.opencontainers.image.version"] == __version__
    assert operator.config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize("user", [None, 1002700000], ids=["its own user", "a number without a name"])
def test_the_operator_s_image_runs_restricted_and_a_file_in_the_work_folder_replaces_no_module(
    kubectl: Kubectl, namespace: str, operator_image: str, user: int | None
):
    """Some clusters give pods a number of their own (scenario S9): no entry in passwd, a home that is not theirs."""
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    inside = kubectl.within(namespace)
    shadow = "umask 077 && cd /tmp && echo 'raise SystemExit(\"shadowed\")' > kopf.py"
    program = f"{shadow} && python -m samite version && python -c 'import kopf, samite_operators.__main__; print(kopf.__file__)'"
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    container = {
        "name": "main",
        "image": operator_image,
        "command": ["sh", "-c", program],
        "securityContext": security,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | ({"runAsUser": user} if user else {}),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    inside.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "once"}, "spec": spec})
    until(lambda: inside.get("pod", "once")["status"]["phase"] in {"Succeeded", "Failed"}, "the pod's end", limit_s=90)
    log = inside("logs", "once")
    assert inside.get("pod", "once")["status"]["phase"] == "Succeeded", log
    assert __version__ in log
    assert "/opt/samite/lib/" in log.splitlines()[-1]


def test_the_system_layers_of_the_worker_s_image_build(cluster: object):
    """The rest is 7 GB of torch and CUDA: the box gives pods this very environment instead."""
    image = Image(
        build_image(Folders.of_user(), "samite-test/worker-base:1", REPOSITORY / "workloads" / "Dockerfile", REPOSITORY, target="base")
    )
    assert {"usr/bin/python3", "usr/bin/wget"} <= image.paths
    assert any(path.startswith("usr/lib/x86_64-linux-gnu/libibverbs.so") for path in image.paths)
    assert any(path.startswith("usr/lib/x86_64-linux-gnu/libgomp.so") for path in image.paths)
    assert "PYTHONSAFEPATH=1" in image.config["Env"]
