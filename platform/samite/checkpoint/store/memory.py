"""Objects in this process's memory: the fake for tests and for dry runs. Create-once and compare-and-swap are exact."""

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from samite.checkpoint.checksum import Buffer, Checksum, crc64
from samite.checkpoint.store.base import MissingKeyError, ObjectInfo
from samite.errors import CheckpointDamagedError, TemporaryError


@dataclass(slots=True)
class _Object:
    data: bytes
    version: int
    modified_unix_s: float


@dataclass(slots=True)
class _Space:
    objects: dict[str, _Object] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    versions: int = 0


_spaces: dict[str, _Space] = {}


class MemoryStore:
    """A store named by its URI (`memory://name`): two stores of one name in one process see the same objects."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._space = _spaces.setdefault(uri, _Space())

    @property
    def uri(self) -> str:
        """Canonical URI."""
        return self._uri

    def get(self, key: str) -> bytes:
        """Whole content."""
        return self._object(key).data

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        data = self._object(key).data
        if offset + len(target) > len(data):
            raise CheckpointDamagedError(f"{self._uri}/{key}: wanted bytes {offset} to {offset + len(target)}, it has only {len(data)}")
        target[:] = data[offset : offset + len(target)]

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace."""
        self._check(key, data, crc64)
        with self._space.lock:
            self._store(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create once."""
        with self._space.lock:
            existing = self._space.objects.get(key)
            if existing is not None:
                return existing.data == bytes(data)
            self._store(key, data)
            return True

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Replace if unchanged."""
        with self._space.lock:
            existing = self._space.objects.get(key)
            if (None if existing is None else str(existing.version)) != expected_etag:
                return False
            self._store(key, data)
            return True

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object."""
        found = self._space.objects.get(key)
        return None if found is None else self._info(key, found)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below `prefix`."""
        with self._space.lock:
            found = sorted((key, value) for key, value in self._space.objects.items() if key.startswith(prefix))
        return iter([self._info(key, value) for key, value in found])

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`."""
        with self._space.lock:
            rest = [key[len(prefix) :] for key in self._space.objects if key.startswith(prefix)]
        return iter(sorted({name.partition("/")[0] + name.partition("/")[1] for name in rest}))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        with self._space.lock:
            for key in keys:
                self._space.objects.pop(key, None)

    def sweep(self, older_than_s: float) -> int:
        """Nothing can be left over here."""
        del older_than_s
        return 0

    def corrupt(self, key: str, *, flip_byte: int | None = None, truncate_to: int | None = None) -> None:
        """Damage a stored object as a failing disk would: flip one byte, or cut the object."""
        found = self._object(key)
        data = bytearray(found.data)
        if flip_byte is not None:
            data[flip_byte] ^= 0x01
        if truncate_to is not None:
            del data[truncate_to:]
        found.data = bytes(data)

    def _object(self, key: str) -> _Object:
        found = self._space.objects.get(key)
        if found is None:
            raise MissingKeyError(f"{self._uri}/{key}: no such object")
        return found

    def _store(self, key: str, data: Buffer) -> None:
        self._space.versions += 1
        self._space.objects[key] = _Object(bytes(data), self._space.versions, time.time())

    def _check(self, key: str, data: Buffer, wanted: Checksum | None) -> None:
        if wanted is not None and crc64(data) != (wanted if isinstance(wanted, int) else wanted.whole):
            raise TemporaryError(f"{self._uri}/{key}: the bytes changed on their way to storage; sending them again")

    def _info(self, key: str, found: _Object) -> ObjectInfo:
        return ObjectInfo(
            key=key, size=len(found.data), etag=str(found.version), modified_unix_s=found.modified_unix_s, crc64=crc64(found.data)
        )
