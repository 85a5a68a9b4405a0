"""Takes what looks like a credential out of text before people share it.

A validated spec holds none, but a report must be safe to send even when the run folder came from elsewhere.
"""

import re

from samite.telemetry.redaction import HIDDEN, redact

__all__ = ["HIDDEN", "redact", "redact_document"]

_KEYED = re.compile(
    r"(?im)^(\s*(?:-\s*)?[\"']?[\w.-]*(?:secret|passw(?:or)?d|api_?key|access_?key|token)[\"']?\s*[:=]\s*)(?!\s*$)(?!\d+\s*,?\s*$)(\S.*?)(,?)\s*$"
)
_ENV_VALUE = re.compile(
    r"(?im)(name[\"']?\s*:\s*[\"']?\w*(?:secret|passw(?:or)?d|api_?key|access_?key|token)\w*[\"']?\s*,?\s*[\"']?value[\"']?\s*:\s*)([^\s,}]+)"
)
_QUOTED = re.compile(r"(?i)([\"'][\w.-]*(?:secret|passw(?:or)?d|api_?key|access_?key|token)[\"']\s*:\s*[\"'])[^\"'\n]*([\"'])")


def redact_document(text: str) -> str:
    """`redact` for a YAML or JSON document: values of keys that are named like secrets go too. Numbers stay (`batch.tokens` is no secret)."""
    return redact(_ENV_VALUE.sub(rf"\1{HIDDEN}", _KEYED.sub(rf"\1{HIDDEN}\3", _QUOTED.sub(rf"\1{HIDDEN}\2", text))))
