"""One trace for each attempt: its ids follow from the run and the submission, so that engine and trainer need not tell each other.

    attempt ─┬─ provision   a cluster is made for it                        engine, when the attempt has ended
             ├─ start       from its submission to the first step           engine
             ├─ load        model, data and checkpoint                      trainer
             ├─ train ── save, save, ...                                    trainer
             └─ stop        the last checkpoint                             trainer

Each attempt links to the one before it. A trainer that is killed loses the spans that were open; those of the engine stay.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field


def trace_parent_of(run_uid: str, submission_id: str) -> str:
    """The W3C traceparent of an attempt: 128 bits of trace id and 64 of its root span, from a hash; sampled."""
    digest = hashlib.sha256(f"samite attempt {run_uid}/{submission_id}".encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanRecord:
    """A span that is over. Times are seconds since the epoch."""

    name: str
    trace_parent: str
    """Of the attempt. The root span has these ids, all others are below it."""
    start_unix_s: float
    end_unix_s: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)
    is_root: bool = False
    link: str = ""
    """Traceparent of the attempt before; empty for the first one."""
    failed: str = ""
    """Error type, if it failed; never a message."""


def ids_of(trace_parent: str) -> tuple[int, int]:
    """(trace id, span id) of a traceparent. ValueError if it is none."""
    parts = trace_parent.split("-")
    if len(parts) != 4 or (len(parts[1]), len(parts[2])) != (32, 16):
        raise ValueError(f"not a W3C traceparent: {trace_parent!r}")
    return int(parts[1], 16), int(parts[2], 16)
