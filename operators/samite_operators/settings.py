"""What the operator is told by its environment; the chart sets these variables from its values. Read once, at start.

| variable | default | meaning |
| --- | --- | --- |
| `SAMITE_NAMESPACES` | empty | namespaces to serve, separated by commas; empty or `*`: the whole cluster |
| `SAMITE_OPERATOR_NAMESPACE` | `samite-system` | where the operator's own Lease lies; set from the pod's namespace |
| `SAMITE_OPERATOR_IDENTITY` | host name | who holds that Lease; set from the pod's name |
| `SAMITE_OPERATOR_LEASE` | `samite-operator` | name of that Lease |
| `SAMITE_NAMESPACE_ROLE` | empty | ClusterRole with the rights in a served namespace; bound once more while runs are there (`rights`) |
| `SAMITE_SERVICE_ACCOUNT` | `samite-operator` | the operator's own service account |
| `SAMITE_LEASE_SECONDS` | 15 | a holder that was silent for so long has lost the Lease |
| `SAMITE_TURN_SECONDS` | 2 | longest time between two turns of a run that is active |
| `SAMITE_IDLE_SECONDS` | 60 | the same for a run that is settled: Succeeded, Failed, Held, Suspended |
| `SAMITE_PROGRESS_SECONDS` | 10 | a status that differs in progress alone is written this often at most |
| `SAMITE_RESYNC_SECONDS` | 60 | time between two full listings that check what the watches told |
| `SAMITE_WORKERS` | 20 | turns at a time |
| `SAMITE_FINALIZER_SECONDS` | 300 | cap on clearing away a deleted run |
| `SAMITE_ORPHAN_SECONDS` | 3600 | time between two sweeps of objects whose run is gone |
| `SAMITE_ORPHAN_GRACE_SECONDS` | 600 | such an object must have been seen for so long, in two looks, before it is deleted |
| `SAMITE_MAINTENANCE` | `false` | `true`: look and report, change nothing but status |
| `SAMITE_TOKEN_KEY_FILE` | empty | file with the key, 32 bytes or more, that the tokens of Ray clusters are derived from |
| `SAMITE_STORAGE_SECRETS` | empty | names of Secrets with storage keys, separated by commas, that may be read for runs that name one; no other is asked for |
| `SAMITE_HEALTH_PORT` | 8080 | `/healthz`, `/readyz` and `/metrics` |
| `SAMITE_LOG_LEVEL`, `SAMITE_LOG_FORMAT` | `INFO`, `json` | `text` is for terminals |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | empty | where metrics and events go as well |
"""

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from samite.errors import UsageError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of one operator process. Durations are seconds."""

    namespaces: tuple[str, ...] = ()
    """Served namespaces; empty: all."""
    namespace: str = "samite-system"
    identity: str = "samite-operator"
    lease_name: str = "samite-operator"
    namespace_role: str = ""
    """ClusterRole of each served namespace; empty: rights there are not held beyond what gives them."""
    service_account: str = "samite-operator"
    lease_s: float = 15.0
    turn_s: float = 2.0
    idle_s: float = 60.0
    progress_s: float = 10.0
    resync_s: float = 60.0
    workers: int = 20
    finalizer_s: float = 300.0
    orphan_s: float = 3600.0
    orphan_grace_s: float = 600.0
    maintenance: bool = False
    token_key_file: str = ""
    storage_secrets: frozenset[str] = frozenset()
    health_port: int = 8080
    log_level: str = "INFO"
    log_format: str = "json"
    otlp_endpoint: str = ""

    @property
    def clusterwide(self) -> bool:
        """True if every namespace is served."""
        return not self.namespaces

    @property
    def renew_s(self) -> float:
        """Time between two renewals of the operator's Lease: three tries fit into its duration."""
        return self.lease_s / 3.0

    def serves(self, namespace: str) -> bool:
        """Whether runs of `namespace` are ours to look after."""
        return self.clusterwide or namespace in self.namespaces

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables above. Raises UsageError with the variable, what it should be and what it is."""
        read = _Reader(os.environ if environment is None else environment)
        return cls(
            namespaces=_namespaces(read.text("SAMITE_NAMESPACES", "")),
            namespace=read.text("SAMITE_OPERATOR_NAMESPACE", "samite-system"),
            identity=read.text("SAMITE_OPERATOR_IDENTITY", socket.gethostname()),
            lease_name=read.text("SAMITE_OPERATOR_LEASE", "samite-operator"),
            namespace_role=read.text("SAMITE_NAMESPACE_ROLE", ""),
            service_account=read.text("SAMITE_SERVICE_ACCOUNT", "samite-operator"),
            lease_s=read.seconds("SAMITE_LEASE_SECONDS", 15.0, least=2.0),
            turn_s=read.seconds("SAMITE_TURN_SECONDS", 2.0, least=0.1),
            idle_s=read.seconds("SAMITE_IDLE_SECONDS", 60.0, least=0.1),
            progress_s=read.seconds("SAMITE_PROGRESS_SECONDS", 10.0, least=0.0),
            resync_s=read.seconds("SAMITE_RESYNC_SECONDS", 60.0, least=1.0),
            workers=read.count("SAMITE_WORKERS", 20, least=1),
            finalizer_s=read.seconds("SAMITE_FINALIZER_SECONDS", 300.0, least=1.0),
            orphan_s=read.seconds("SAMITE_ORPHAN_SECONDS", 3600.0, least=1.0),
            orphan_grace_s=read.seconds("SAMITE_ORPHAN_GRACE_SECONDS", 600.0, least=0.0),
            maintenance=read.flag("SAMITE_MAINTENANCE"),
            token_key_file=read.text("SAMITE_TOKEN_KEY_FILE", ""),
            storage_secrets=frozenset(name.strip() for name in read.text("SAMITE_STORAGE_SECRETS", "").split(",") if name.strip()),
            health_port=read.count("SAMITE_HEALTH_PORT", 8080, least=0),
            log_level=read.choice("SAMITE_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
            log_format=read.choice("SAMITE_LOG_FORMAT", "json", ("json", "text")),
            otlp_endpoint=read.text("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    environment: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        return self.environment.get(name, "").strip() or default

    def seconds(self, name: str, default: float, *, least: float) -> float:
        return self._number(name, default, least, float, "seconds")

    def count(self, name: str, default: int, *, least: int) -> int:
        return int(self._number(name, default, least, int, "a whole number"))

    def flag(self, name: str) -> bool:
        text = self.text(name, "").lower()
        if text not in _TRUE | _FALSE:
            raise UsageError(f"{name} must be true or false, found {text!r}")
        return text in _TRUE

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        text = self.text(name, default)
        if text not in allowed:
            raise UsageError(f"{name} must be one of {', '.join(allowed)}; found {text!r}")
        return text

    def _number(self, name: str, default: float, least: float, kind: Callable[[str], float], what: str) -> float:
        text = self.text(name, "")
        if not text:
            return default
        try:
            value = kind(text)
        except ValueError:
            raise UsageError(f"{name} must be {what}, found {text!r}") from None
        if not value >= least:
            raise UsageError(f"{name} must be {what}, at least {least:g}; found {text}")
        return value


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names in ((), ("*",)):
        return ()
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"SAMITE_NAMESPACES must be names of namespaces separated by commas, found {name!r}. "
                "Patterns need the right to list all namespaces; leave it empty to serve the whole cluster"
            )
    return names
