"""Storage behind checkpoints: the `Store` seam, its backends, and `open_store` from a URI. Nothing heavy is imported before it is used."""

from samite.checkpoint.store.base import MissingKeyError, ObjectInfo, StorageFullError, Store, get_range
from samite.checkpoint.store.file import FileStore
from samite.checkpoint.store.memory import MemoryStore
from samite.checkpoint.store.opening import StoreOptions, open_store

__all__ = [
    "FileStore",
    "MemoryStore",
    "MissingKeyError",
    "ObjectInfo",
    "StorageFullError",
    "Store",
    "StoreOptions",
    "get_range",
    "open_store",
]
