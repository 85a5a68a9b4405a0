"""Certificates and kubeconfigs of one box: made anew at each `up`, valid for 30 days, trusted by nobody else."""

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .addresses import API_PORT, API_SERVICE, CLUSTER, HUB, node_address, node_name

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
PEM, NO_PASSWORD = serialization.Encoding.PEM, serialization.NoEncryption()


@dataclass(frozen=True, slots=True)
class Authority:
    """A signing certificate and its key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def write_all(folder: Path, *, nodes: int, api_port: int) -> None:
    """Everything that the control plane and `nodes` nodes need. `api_port` is the host's loopback port of the API server."""
    folder.mkdir(parents=True, mode=0o700)
    authority, etcd, front = (_authority(folder, name) for name in ("ca", "etcd-ca", "front-proxy-ca"))
    _service_account_keys(folder)
    local = ["127.0.0.1", "localhost"]
    in_cluster = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    _issue(folder, "etcd", etcd, "etcd", uses=[SERVER, CLIENT], names=local)
    _issue(folder, "apiserver-etcd", etcd, "apiserver", uses=[CLIENT])
    _issue(folder, "front-proxy", front, "front-proxy-client", uses=[CLIENT])
    _issue(folder, "apiserver", authority, "kube-apiserver", uses=[SERVER], names=[*local, *in_cluster, HUB, API_SERVICE])
    _issue(folder, "apiserver-kubelet", authority, "kube-apiserver-kubelet-client", group="kubeadm:cluster-admins", uses=[CLIENT])
    _issue(folder, "controller-manager-serving", authority, "controller-manager", uses=[SERVER], names=local)
    clients = {"controller-manager": "system:kube-controller-manager", "scheduler": "system:kube-scheduler"}
    for name, user in clients.items():
        _issue(folder, name, authority, user, uses=[CLIENT])
        _kubeconfig(folder, name, f"https://127.0.0.1:{API_PORT}")
    _issue(folder, "kube-proxy", authority, "system:kube-proxy", uses=[CLIENT])
    _kubeconfig(folder, "kube-proxy", f"https://{HUB}:{API_PORT}")
    _issue(folder, "admin", authority, "box-admin", group="system:masters", uses=[CLIENT])
    _kubeconfig(folder, "admin", f"https://127.0.0.1:{api_port}")
    for number in range(1, nodes + 1):
        name, user = node_name(number), f"system:node:{node_name(number)}"
        _issue(folder, name, authority, user, group="system:nodes", uses=[CLIENT])
        _issue(folder, f"{name}-serving", authority, user, group="system:nodes", uses=[SERVER], names=[name, node_address(number)])
        _kubeconfig(folder, name, f"https://{HUB}:{API_PORT}")


def _authority(folder: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{CLUSTER}-{name}")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)  # digital signature, certificate and CRL signing
    certificate = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder, name, key, certificate)
    return Authority(key, certificate)


def _issue(
    folder: Path,
    name: str,
    authority: Authority,
    user: str,
    *,
    uses: Sequence[x509.ObjectIdentifier],
    group: str = "",
    names: Sequence[str] = (),
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    usage = x509.KeyUsage(True, False, True, False, False, False, False, False, False)  # digital signature, key encipherment
    builder = (
        _builder(subject, authority.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(one) for one in names]), critical=False)
    _write(folder, name, key, builder.sign(authority.key, hashes.SHA256()))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=30))
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    (folder / f"{name}.key").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_PASSWORD))
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(PEM))


def _service_account_keys(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "service-accounts.key").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, NO_PASSWORD))
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "service-accounts.pub").write_bytes(public)


def _kubeconfig(folder: Path, name: str, server: str) -> None:
    def inline(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    user = {"client-certificate-data": inline(f"{name}.crt"), "client-key-data": inline(f"{name}.key")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": {"server": server, "certificate-authority-data": inline("ca.crt")}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": name}}],
        "current-context": CLUSTER,
    }
    (folder / f"{name}.kubeconfig").write_text(json.dumps(document, indent=1), encoding="utf-8")
