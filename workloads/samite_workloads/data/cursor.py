"""Where a run stands in its data: one small value, global, the same on every rank, and all that exact resume needs.

Made by `packing`, carried in checkpoints and hand-overs as JSON. It counts documents and tokens, not rows of some length or shares of some
world size, so another number of ranks, another context length or another mixture goes on from it without losing or repeating a token.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

CURSOR_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceCursor:
    """One source. Places count documents in reading order over all epochs: place p is the (p mod N)-th of epoch p // N."""

    next_place: int = 0
    """First document that was never opened."""
    open_documents: tuple[tuple[int, int] | None, ...] = ()
    """Documents begun and not finished, as (place, tokens already used), by lane; None for an idle lane."""
    lane: int = 0
    """Lane whose turn it is."""
    tokens: int = 0
    """Tokens laid out, over the whole run."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Documents left out, by reason, over the whole run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataCursor:
    """Everything needed to go on. `credit` counts tokens by source since `weights` came into force."""

    corpus: str
    """Digest of the corpus the places refer to."""
    split: str = "train"
    seed: int
    row: int = 0
    """Global index of the next row, counted over all stages."""
    padding_tokens: int = 0
    skipped_rows: int = 0
    weights: dict[str, int] = field(default_factory=dict)
    credit: dict[str, int] = field(default_factory=dict)
    sources: dict[str, SourceCursor] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        return {"version": CURSOR_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The cursor of a mapping made by `to_json`. Raises ValueError for another version or missing fields."""
        if document.get("version") != CURSOR_VERSION:
            raise ValueError(f"data cursor: wanted version {CURSOR_VERSION}, found {document.get('version')!r}")
        try:
            sources = {
                name: SourceCursor(
                    **{
                        **value,
                        "open_documents": tuple(None if lane is None else (lane[0], lane[1]) for lane in value["open_documents"]),
                    }
                )
                for name, value in document["sources"].items()
            }
            fields = {key: value for key, value in document.items() if key != "version"}
            return cls(**{**fields, "sources": sources})
        except (KeyError, TypeError) as error:
            raise ValueError(f"data cursor: {type(error).__name__}: {error}") from error
