"""The operator's own look at the checkpoint storage of a run: opened once, with credentials that may change while it is open.

Credentials come from the Secret that the run names, if it is one of those that the operator was told to read, else from the operator's own
environment (workload identity, or the Secret that the chart mounts). A rotated Secret is read again when storage refuses, and each ten minutes:
nothing is restarted for it.
"""

import base64
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from samite.checkpoint import Store, StoreOptions, open_store
from samite.checkpoint.checksum import Buffer, Checksum
from samite.checkpoint.store.base import ObjectInfo
from samite.engines.kuberay.api import SECRET, KubernetesApi
from samite.errors import NotAllowedError, SamiteError

_logger = logging.getLogger(__name__)
StorageOf = Callable[[Mapping[str, Any]], Store]
REFRESH_S = 600.0
T = TypeVar("T")


class RunStores:
    """Stores by run; `of` is what the engine and the event records are given."""

    def __init__(self, api: KubernetesApi, *, readable: frozenset[str] = frozenset(), clock: Callable[[], float] = time.monotonic) -> None:
        """`readable`: names of the Secrets that may be read."""
        self._api, self._readable, self._clock = api, readable, clock
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, str], RotatingStore] = {}

    def of(self, run: Mapping[str, Any]) -> Store:
        """The store of `run`'s checkpoints. Makes no request to storage."""
        checkpoint = run["spec"].get("checkpoint") or {}
        key = str(run["metadata"]["uid"]), str(checkpoint.get("uri", ""))
        with self._lock:
            store = self._stores.get(key)
            if store is None:
                namespace = run["metadata"]["namespace"]
                store = self._stores[key] = RotatingStore(
                    lambda: open_store(key[1], options_of(checkpoint, self._secret(namespace, checkpoint))), clock=self._clock
                )
            return store

    def forget(self, uid: str) -> None:
        """The run is gone."""
        with self._lock:
            self._stores = {key: store for key, store in self._stores.items() if key[0] != uid}

    def _secret(self, namespace: str, checkpoint: Mapping[str, Any]) -> dict[str, str]:
        """The variables in the Secret that the run names, as its pods get them; nothing if it may not be read."""
        name = (checkpoint.get("credentials") or {}).get("secretName")
        if name not in self._readable:
            return {}
        try:
            data = self._api.get(SECRET, namespace, name).get("data") or {}
            return {key: base64.b64decode(value).decode() for key, value in data.items()}
        except (SamiteError, ValueError) as error:
            _logger.info("Secret %s/%s was not read, the operator's own storage rights are used: %s", namespace, name, error)
            return {}


def options_of(checkpoint: Mapping[str, Any], secret: Mapping[str, str]) -> StoreOptions:
    """Options for `open_store` from `spec.checkpoint`, and from the variables of its Secret where the spec is silent."""
    return StoreOptions(
        endpoint=checkpoint.get("endpoint") or secret.get("AWS_ENDPOINT_URL_S3") or secret.get("AWS_ENDPOINT_URL") or "",
        region=checkpoint.get("region") or secret.get("AWS_REGION") or secret.get("AWS_DEFAULT_REGION") or "",
        insecure=bool(checkpoint.get("insecure")),
        access_key=secret.get("AWS_ACCESS_KEY_ID", ""),
        secret_key=secret.get("AWS_SECRET_ACCESS_KEY", ""),
        connections=2,
    )


class RotatingStore:
    """A `Store` that is opened again when its credentials are refused, once for each call, and each ten minutes."""

    def __init__(self, open_: Callable[[], Store], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._open, self._clock = open_, clock
        self._store: Store | None = None
        self._opened_at_s = 0.0

    @property
    def uri(self) -> str:
        """Canonical URI."""
        return self._now().uri

    def get(self, key: str) -> bytes:
        """Whole content."""
        return self._call(lambda store: store.get(key))

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target`."""
        self._call(lambda store: store.read_into(key, offset, target))

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace."""
        self._call(lambda store: store.put(key, data, crc64=crc64))

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create."""
        return self._call(lambda store: store.put_if_absent(key, data))

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Replace conditionally."""
        return self._call(lambda store: store.compare_and_swap(key, data, expected_etag))

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object."""
        return self._call(lambda store: store.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below `prefix`."""
        return iter(self._call(lambda store: [*store.list(prefix)]))

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`."""
        return iter(self._call(lambda store: [*store.children(prefix)]))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        wanted = [*keys]
        self._call(lambda store: store.delete(wanted))

    def sweep(self, older_than_s: float) -> int:
        """Remove what crashed writers left."""
        return self._call(lambda store: store.sweep(older_than_s))

    def _now(self) -> Store:
        if self._store is None or self._clock() - self._opened_at_s > REFRESH_S:
            self._store, self._opened_at_s = self._open(), self._clock()
        return self._store

    def _call(self, work: Callable[[Store], T]) -> T:
        try:
            return work(self._now())
        except NotAllowedError:
            self._store = None
            return work(self._now())
