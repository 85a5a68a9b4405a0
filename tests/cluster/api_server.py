"""An API server alone: etcd and kube-apiserver on the loopback, no nodes, no controllers. Up in a few seconds, for tests of what the server itself decides.

Its certificate, keys and data are made anew in a temporary folder; only whoever reads that folder can talk to it.
"""

import json
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from box.binaries import Binaries, MissingToolError
from box.folders import Folders
from box.kubectl import Kubectl
from box.waiting import until
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

LIMIT_S = 90.0

Process = subprocess.Popen[bytes]


def tool(name: str) -> Path:
    """A binary of the box, or else of PATH. Raises MissingToolError, which says how to get it."""
    try:
        return Binaries(Folders.of_user()).path(name)
    except MissingToolError:
        found = shutil.which(name)
        if found is None:
            raise
        return Path(found)


@contextmanager
def lone_api_server(folder: Path) -> Iterator[Kubectl]:
    """An API server for as long as the block lasts; kubectl with every right. All of its state is below `folder`."""
    binaries = tool("etcd"), tool("kube-apiserver"), tool("kubectl")
    started: list[Process] = []
    try:
        yield _started(folder, *binaries, started)
    finally:
        _kill(started)


def _started(folder: Path, etcd: Path, server: Path, kubectl: Path, started: list[Process]) -> Kubectl:
    """A server that answers. A port that somebody else took in the meantime ends a process at once: then with other ports, twice at most."""
    for attempt in range(3):
        place = folder / f"try-{attempt}"
        place.mkdir()
        client, peer, port = _free_ports(3)
        token = secrets.token_hex(16)
        _write_keys(place, token)
        processes = [_start_etcd(etcd, place, client, peer), _start_server(server, place, client, port)]
        started += processes
        try:
            found = Kubectl(kubectl, _kubeconfig(place, port, token, processes))
            until(partial(_answers, found, processes), f"the API server (see {place}/apiserver.log)", limit_s=LIMIT_S)
        except _EndedError:
            _kill(processes)
            continue
        return found
    raise RuntimeError(f"etcd or the API server ended at once, three times; see the logs below {folder}")


class _EndedError(Exception):
    """A process ended that should not."""


def _ended(processes: list[Process]) -> bool:
    """False while all of them run."""
    if all(process.poll() is None for process in processes):
        return False
    raise _EndedError


def _answers(kubectl: Kubectl, processes: list[Process]) -> bool:
    return not _ended(processes) and kubectl("get", "--raw", "/readyz") == "ok" and bool(kubectl("get", "namespace", "default"))


def _start(command: list[str | Path], log: Path) -> Process:
    """Start a process that ends with this one, however that ends. It does not carry the box's mark: a box that comes up sweeps what does."""
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as out:
        words = [*guard, *(str(word) for word in command)]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def _kill(processes: list[Process]) -> None:
    """End them for good: the API server would drain for a minute, and nothing here is worth keeping."""
    for process in reversed(processes):
        process.kill()
        process.wait(timeout=10)


def _start_etcd(binary: Path, folder: Path, client: int, peer: int) -> Process:
    url, other = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    options = {
        "name": "lone",
        "data-dir": folder / "etcd",
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": other,
        "initial-advertise-peer-urls": other,
        "initial-cluster": f"lone={other}",
    }
    return _start([binary, "--unsafe-no-fsync", *(f"--{key}={value}" for key, value in options.items())], folder / "etcd.log")


def _start_server(binary: Path, folder: Path, etcd: int, port: int) -> Process:
    options = {
        "etcd-servers": f"http://127.0.0.1:{etcd}",
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "cert-dir": folder / "certificates",
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.79.0.0/24",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": folder / "service-accounts.key",
        "service-account-signing-key-file": folder / "service-accounts.key",
        # There is no controller that makes default service accounts, and nothing here runs a pod.
        "disable-admission-plugins": "ServiceAccount",
    }
    return _start([binary, *(f"--{key}={value}" for key, value in options.items())], folder / "apiserver.log")


def _write_keys(folder: Path, token: str) -> None:
    (folder / "tokens.csv").write_text(f"{token},lone-admin,lone-admin,system:masters\n", encoding="utf-8")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "service-accounts.key").write_bytes(text)


def _kubeconfig(folder: Path, port: int, token: str, processes: list[Process]) -> Path:
    # The server makes its own certificate for the address it listens on when it first starts.
    certificate = folder / "certificates" / "apiserver.crt"
    until(lambda: certificate.exists() or _ended(processes), f"{certificate}", limit_s=LIMIT_S, every_s=0.1)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lone", "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}}],
        "users": [{"name": "lone", "user": {"token": token}}],
        "contexts": [{"name": "lone", "context": {"cluster": "lone", "user": "lone", "namespace": "default"}}],
        "current-context": "lone",
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(document), encoding="utf-8")
    file.chmod(0o600)
    return file


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. Another process may take one before it is used."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
