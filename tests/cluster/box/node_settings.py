"""Settings of one node's containerd, CNI, kubelet and kube-proxy, written before each start."""

import json
import subprocess
from pathlib import Path
from typing import Any

from .addresses import ALL_PODS, CLUSTER, DNS_SERVICE, node_address, node_name, pod_range
from .binaries import Binaries
from .images import PAUSE_IMAGE, mounts
from .state import State

UNUSED_PLUGINS = (*(f"snapshotter.v1.{kind}" for kind in ("btrfs", "zfs", "devmapper", "blockfile")), "nri.v1.nri")


def write_settings(binaries: Binaries, state: State, number: int, *, clock_off_s: float = 0) -> Path:
    """Write the node's files and return their folder. `clock_off_s` seconds are added to what its new containers see as wall-clock time."""
    folder = binaries.folders.run / node_name(number)
    (folder / "cni").mkdir(parents=True, exist_ok=True)
    (binaries.folders.run / "resolv.conf").write_text(f"nameserver {DNS_SERVICE}\n", encoding="utf-8")
    base_spec = folder / "base-spec.json"
    base_spec.write_text(json.dumps(_base_spec(binaries, clock_off_s)), encoding="utf-8")
    (folder / "containerd.toml").write_text(_containerd(binaries, base_spec), encoding="utf-8")
    (folder / "cni" / "10-box.conflist").write_text(json.dumps(_cni(number)), encoding="utf-8")
    (folder / "kubelet.yaml").write_text(json.dumps(_kubelet(binaries, state, number)), encoding="utf-8")
    (folder / "kube-proxy.yaml").write_text(json.dumps(_kube_proxy(binaries)), encoding="utf-8")
    return folder


def _base_spec(binaries: Binaries, clock_off_s: float) -> dict[str, Any]:
    """What every container starts from: containerd's default, the host's Python mounted read-only, and the wrong clock if wanted."""
    said = subprocess.run([binaries.path("ctr"), "oci", "spec"], capture_output=True, check=True, timeout=20).stdout
    spec: dict[str, Any] = json.loads(said)
    spec["process"].pop("rlimits", None)  # the default caps open files at 1024
    clock = [binaries.clock_library()] if clock_off_s else []
    shown = [*mounts(), *clock]
    for path in shown:
        spec["mounts"].append(
            {"destination": str(path), "source": str(path), "type": "bind", "options": ["rbind", "ro", "nosuid", "nodev"]}
        )
    if clock_off_s:
        faked = [f"LD_PRELOAD={clock[0]}", f"BOX_CLOCK_OFF_S={clock_off_s:.0f}"]
        spec["process"]["env"] = [*spec["process"].get("env", []), *faked]
    return spec


def _containerd(binaries: Binaries, base_spec: Path) -> str:
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [{", ".join(f'"io.containerd.{name}"' for name in UNUSED_PLUGINS)}]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true  # for machines whose root lacks CAP_SYS_RESOURCE
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{binaries.of("cni")}"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{base_spec}"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{binaries.path("runc")}"
        SystemdCgroup = false
"""


def _cni(number: int) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": pod_range(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "mtu": 1500, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": CLUSTER, "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}


def _kubelet(binaries: Binaries, state: State, number: int) -> dict[str, Any]:
    keys, name = binaries.folders.certificates, node_name(number)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CLUSTER}/{name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": f"{keys}/ca.crt"}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{keys}/{name}-serving.crt",
        "tlsPrivateKeyFile": f"{keys}/{name}-serving.key",
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_SERVICE],
        "resolvConf": str(binaries.folders.run / "resolv.conf"),
        "address": node_address(number),
        "healthzBindAddress": "127.0.0.1",
        "nodeStatusUpdateFrequency": "2s" if state.fast else "10s",
        "nodeStatusReportFrequency": "5s" if state.fast else "5m",
        "nodeLeaseDurationSeconds": 8 if state.fast else 40,
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "200Mi"},
        "imageGCHighThresholdPercent": 100,  # no registry could bring an image back
        "imageGCLowThresholdPercent": 99,
        "protectKernelDefaults": True,  # node_init.py shows it the values that it wants; the machine's own stay
        "syncFrequency": "10s",
        "serializeImagePulls": False,
        "maxPods": 60,
        "shutdownGracePeriod": "0s",
        "logging": {"format": "text"},
    }


def _kube_proxy(binaries: Binaries) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{binaries.folders.certificates}/kube-proxy.kubeconfig"},
        "mode": "iptables",
        "detectLocalMode": "BridgeInterface",
        "detectLocal": {"bridgeInterface": "cni0"},
        "clusterCIDR": ALL_PODS,
        # Zero: leave the machine's connection tracking alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
