"""The lifecycle's memory as it stands in a TrainingRun's `status.memory`: JSON, zlib, base64. Opaque to people, read again by the next operator."""

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

from samite.errors import SamiteError
from samite.lifecycle.memory import Memory


def pack(memory: Memory) -> str:
    """The memory as it stands in `status.memory`."""
    return base64.b64encode(zlib.compress(memory.to_json().encode(), 6)).decode()


def unpack(text: str) -> Memory:
    """The memory of `status.memory`; the empty text is a run that was never looked at. ValueError if it is damaged."""
    if not text:
        return Memory()
    try:
        return Memory.from_json(zlib.decompress(base64.b64decode(text, validate=True)).decode())
    except (binascii.Error, zlib.error, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"status.memory cannot be read: {error}") from error


def memory_of(run: Mapping[str, Any]) -> Memory:
    """The memory of a stored run, for people: SamiteError if it is damaged."""
    try:
        return unpack(str((run.get("status") or {}).get("memory") or ""))
    except ValueError as error:
        raise SamiteError(f"run {run['metadata']['name']!r}: {error}") from error
