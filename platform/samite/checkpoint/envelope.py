"""The sealed document: one header line, then the body, so that a cut or flipped document is recognised before it is parsed.

    SAMITE-MANIFEST 1 crc64=0123456789abcdef bytes=2048\\n
    <2048 bytes of body>

Every small object of the format is sealed: manifests, rank indexes, fences. The number is the format version. The checksum is that of
`SAMITE-<KIND> <version>` followed by the body; this header stays as it is in every version.
"""

import re

from samite.checkpoint.checksum import crc64
from samite.errors import CheckpointDamagedError, SamiteError

FORMAT_VERSION = 1
"""Readers accept this version and every older one. Fields and columns may be added without a new version; readers ignore those they do not know.
The number rises only when an older reader would load wrong bytes."""

_HEADER = re.compile(rb"SAMITE-([A-Z]+) (\d{1,6}) crc64=([0-9a-f]{16}) bytes=(\d{1,15})\n")
_LONGEST_HEADER = 96


class UnknownFormatError(SamiteError):
    """The document was written by a newer Samite than this one; its bytes may be perfectly good."""


def seal(kind: str, body: bytes, *, version: int = FORMAT_VERSION) -> bytes:
    """The document for `body`; `kind` is upper case, such as MANIFEST."""
    return f"SAMITE-{kind} {version} crc64={_checksum(kind, version, body):016x} bytes={len(body)}\n".encode() + body


def unseal(kind: str, document: bytes, *, name: str) -> bytes:
    """Body of a sealed document; `name` is its key, for messages.

    Raises CheckpointDamagedError if it is cut, altered or of another kind, UnknownFormatError if it is of a newer version.
    """
    header = _HEADER.match(document[:_LONGEST_HEADER])
    if header is None:
        raise CheckpointDamagedError(
            f"{name}: does not begin with a SAMITE-{kind} header ({len(document)} bytes found); it is cut or not ours"
        )
    found_kind, version, checksum, length = header.group(1).decode(), int(header.group(2)), int(header.group(3), 16), int(header.group(4))
    if found_kind != kind:
        raise CheckpointDamagedError(f"{name}: wanted a {kind}, found a {found_kind}")
    body = document[header.end() :]
    if len(body) != length:
        raise CheckpointDamagedError(f"{name}: its header promises {length} bytes, {len(body)} are there")
    if _checksum(kind, version, body) != checksum:
        raise CheckpointDamagedError(f"{name}: its {length} bytes do not have the checksum in its header; stored bytes have changed")
    if version > FORMAT_VERSION:
        raise UnknownFormatError(
            f"{name}: written in format {version}, this Samite reads up to {FORMAT_VERSION}; load it with the newer Samite that wrote it"
        )
    return body


def _checksum(kind: str, version: int, body: bytes) -> int:
    return crc64(body, crc64(f"SAMITE-{kind} {version}".encode()))
