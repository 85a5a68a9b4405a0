"""What a source yields: documents made of text and pictures, in a fixed order, with the place each came from.

Sources (`stdlib`, `digits`, `files`) implement `Source`; `prepare` reads each one twice, once for the tokenizer and once for the shards.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUM_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """uint8 pixels [height, width, channels], channels 1 (grey) or 3 (RGB)."""

    pixels: "NDArray[np.uint8]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """Parts in reading order. `origin` names the file, and the line where there is one."""

    parts: tuple[str | Picture, ...]
    origin: str


@dataclass(kw_only=True, slots=True)
class Skipped:
    """Counts of what a source left out, by reason, with the first few places."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, reason: str, place: str) -> None:
        """Count one document left out."""
        self.counts[reason] += 1
        if len(self.examples) < _NUM_EXAMPLES:
            self.examples.append(f"{place}: {reason}")


class Source(Protocol):
    """A re-readable stream of documents: the seam between places where data lies and the format it is written in."""

    name: str
    description: str

    def fingerprint(self) -> dict[str, Any]:
        """JSON-able description of the inputs, cheap to compute: equal fingerprints mean equal documents."""
        ...

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """All documents, always in the same order. Raises CorpusError for inputs that a user must mend."""
        ...


class MemorySource:
    """Source over documents that a program made: for notebooks, generators and tests."""

    def __init__(self, documents: Sequence[Document], *, name: str, description: str = "documents made by a program") -> None:
        self.name = name
        self.description = description
        self._documents = tuple(documents)

    def fingerprint(self) -> dict[str, Any]:
        """Hash of all contents."""
        digest = hashlib.sha256()
        for document in self._documents:
            for part in document.parts:
                content = part.encode() if isinstance(part, str) else repr(part.pixels.shape).encode() + part.pixels.tobytes()
                digest.update(len(content).to_bytes(8, "little") + content)
            digest.update(b"\0")
        return {"kind": "memory", "content": digest.hexdigest()}

    def documents(self, skipped: Skipped) -> Iterator[Document]:  # noqa: ARG002  the protocol's argument; nothing is left out here
        """The documents, in the order given."""
        yield from self._documents
