"""etcd, API server, controller manager and scheduler, as processes in the hub's network namespace."""

import json
import signal
import socket
import sys
from pathlib import Path

from . import network
from .addresses import API_PORT, HUB, HUB_NAMESPACE, SERVICE_RANGE
from .api import Client
from .binaries import Binaries
from .processes import Started, end, start
from .state import State
from .waiting import until

ETCD_PORT = 2379
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:nodes"]},
        {
            "level": "None",
            "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "box-admin"],
        },
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata"},
    ],
}
"""Every request of a service account outside kube-system is written down without its body: tests count requests and look for refusals."""


class ControlPlane:
    """Starts, ends and disturbs the control plane of one box."""

    def __init__(self, binaries: Binaries, state: State) -> None:
        self.binaries, self.state, self.folders = binaries, state, binaries.folders
        self.api = Client(lambda: socket.create_connection(("127.0.0.1", state.api_port), timeout=5), self.folders.certificates, "admin")

    def start(self, listener: socket.socket) -> None:
        """Everything, in order; returns when the controller manager has made the first service account. `listener` is the host's socket of the API."""
        network.make_hub()
        (self.folders.run / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY), encoding="utf-8")
        self.start_etcd()
        self.start_api_server(wait=False)
        forward(self.binaries, self.state, "forward-api", listener, "127.0.0.1", API_PORT)
        self.wait_until_ready(limit_s=60)
        self.start_controllers()
        for name, role, subject in (
            ("kubeadm:cluster-admins", "cluster-admin", {"kind": "Group", "name": "kubeadm:cluster-admins"}),
            ("kubeadm:node-proxier", "system:node-proxier", {"kind": "User", "name": "system:kube-proxy"}),
        ):
            self._bind(name, role, subject)
        until(
            lambda: self.api.request("GET", "/api/v1/namespaces/default/serviceaccounts/default"), "the default service account", limit_s=60
        )

    def start_etcd(self) -> None:
        """Start etcd on the box's state; its disk writes are not synced, so a killed machine loses them and a killed process does not."""
        keys, url, peer = self.folders.certificates, f"https://127.0.0.1:{ETCD_PORT}", "https://127.0.0.1:2380"
        options = {
            "name": "hub", "data-dir": self.folders.run / "etcd", "listen-client-urls": url, "advertise-client-urls": url,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"hub={peer}",
            "cert-file": keys / "etcd.crt", "key-file": keys / "etcd.key", "trusted-ca-file": keys / "etcd-ca.crt",
            "peer-cert-file": keys / "etcd.crt", "peer-key-file": keys / "etcd.key", "peer-trusted-ca-file": keys / "etcd-ca.crt",
        }  # fmt: skip
        self._run("etcd", options, "--unsafe-no-fsync", "--client-cert-auth", "--peer-client-cert-auth")

    def start_api_server(self, *, wait: bool = True) -> None:
        """Start the API server and, unless told otherwise, wait until it is ready."""
        keys = self.folders.certificates
        options = {
            "advertise-address": HUB, "bind-address": "0.0.0.0", "secure-port": API_PORT,
            "etcd-servers": f"https://127.0.0.1:{ETCD_PORT}", "etcd-cafile": keys / "etcd-ca.crt",
            "etcd-certfile": keys / "apiserver-etcd.crt", "etcd-keyfile": keys / "apiserver-etcd.key",
            "client-ca-file": keys / "ca.crt", "tls-cert-file": keys / "apiserver.crt", "tls-private-key-file": keys / "apiserver.key",
            "authorization-mode": "Node,RBAC", "enable-admission-plugins": "NodeRestriction", "allow-privileged": "true",
            "service-cluster-ip-range": SERVICE_RANGE, "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": keys / "service-accounts.pub", "service-account-signing-key-file": keys / "service-accounts.key",
            "kubelet-certificate-authority": keys / "ca.crt", "kubelet-client-certificate": keys / "apiserver-kubelet.crt",
            "kubelet-client-key": keys / "apiserver-kubelet.key", "kubelet-preferred-address-types": "InternalIP,Hostname",
            "requestheader-client-ca-file": keys / "front-proxy-ca.crt", "requestheader-allowed-names": "front-proxy-client",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-", "requestheader-group-headers": "X-Remote-Group",
            "requestheader-username-headers": "X-Remote-User", "proxy-client-cert-file": keys / "front-proxy.crt",
            "proxy-client-key-file": keys / "front-proxy.key", "enable-aggregator-routing": "true",
            "audit-policy-file": self.folders.run / "audit-policy.json", "audit-log-path": self.folders.logs / "audit.jsonl",
        }  # fmt: skip
        if self.state.fast:
            options |= {"default-not-ready-toleration-seconds": 5, "default-unreachable-toleration-seconds": 5}
        self._run("kube-apiserver", options)
        if wait:
            self.wait_until_ready(limit_s=60)

    def stop_api_server(self) -> None:
        """End the API server. It would drain for a minute: killed after 2 s."""
        if process := self.state.forget("kube-apiserver"):
            end([process], patience_s=2)

    def wait_until_ready(self, *, limit_s: float) -> float:
        """Wait until the API server answers /readyz; the seconds it took."""
        return until(
            lambda: self.api.request("GET", "/readyz") == "ok",
            f"the API server (see {self.folders.logs}/kube-apiserver.log)",
            limit_s=limit_s,
        )

    def start_controllers(self) -> None:
        """Controller manager and scheduler: those that do not run."""
        keys = self.folders.certificates
        kubeconfig = keys / "controller-manager.kubeconfig"
        options = {
            "kubeconfig": kubeconfig, "authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig,
            "bind-address": "127.0.0.1", "client-ca-file": keys / "ca.crt", "tls-cert-file": keys / "controller-manager-serving.crt",
            "tls-private-key-file": keys / "controller-manager-serving.key", "requestheader-client-ca-file": keys / "front-proxy-ca.crt",
            "use-service-account-credentials": "true", "service-account-private-key-file": keys / "service-accounts.key",
            "root-ca-file": keys / "ca.crt", "cluster-signing-cert-file": keys / "ca.crt", "cluster-signing-key-file": keys / "ca.key",
            "leader-elect": "false", "service-cluster-ip-range": SERVICE_RANGE, "node-monitor-period": "5s",
        }  # fmt: skip
        if self.state.fast:
            options |= {"node-monitor-period": "1s", "node-monitor-grace-period": "10s"}
        if not self._runs("kube-controller-manager"):
            self._run("kube-controller-manager", options)
        if not self._runs("kube-scheduler"):
            same = keys / "scheduler.kubeconfig"
            options = {"kubeconfig": same, "authentication-kubeconfig": same, "authorization-kubeconfig": same, "bind-address": "127.0.0.1"}
            self._run("kube-scheduler", options | {"leader-elect": "false"})

    def pause_api_server(self, *, paused: bool) -> None:
        """Stop the API server where it stands (connections stay open, no answers), or let it go on."""
        self.state.processes["kube-apiserver"].send(signal.SIGSTOP if paused else signal.SIGCONT)

    def compact_etcd(self) -> int:
        """Throw away etcd's history up to now and return the revision. A list or watch that continues from before gets 410 Gone.

        The API server answers watches from its own memory: restart it as well when a running watch shall see the 410.
        """
        etcd = Client(
            lambda: network.connect(HUB_NAMESPACE, "127.0.0.1", ETCD_PORT), self.folders.certificates, "apiserver-etcd", "etcd-ca"
        )
        found = etcd.request("POST", "/v3/kv/range", {"key": "AA=="})
        revision = int(found["header"]["revision"])
        etcd.request("POST", "/v3/kv/compaction", {"revision": revision, "physical": True}, limit_s=60)
        return revision

    def _bind(self, name: str, role: str, subject: dict[str, str]) -> None:
        group = "rbac.authorization.k8s.io"
        document = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, **subject}],
        }
        self.api.request("POST", f"/apis/{group}/v1/clusterrolebindings", document)

    def _runs(self, name: str) -> bool:
        process = self.state.processes.get(name)
        return process is not None and process.alive()

    def _run(self, name: str, options: dict[str, object], *flags: str) -> Started:
        words = [f"--{key}={value}" for key, value in options.items()]
        process = start([*network.inside(HUB_NAMESPACE), self.binaries.path(name), *words, *flags], log=self.folders.logs / f"{name}.log")
        self.state.record(name, process)
        return process


def forward(binaries: Binaries, state: State, name: str, listener: socket.socket, host: str, port: int) -> None:
    """Carry connections from a listening socket of the host to an address as the hub sees it; the socket is handed over and closed here."""
    program = Path(__file__).with_name("forwarder.py")
    words = [sys.executable, "-I", str(program), str(listener.fileno()), HUB_NAMESPACE, host, str(port)]
    state.record(name, start(words, log=binaries.folders.logs / f"{name}.log", pass_fds=[listener.fileno()]))
    listener.close()
