"""Takes credentials out of text before it becomes a signal, a file or a status: the texts of exceptions hold URLs and headers of other people's libraries.

Used where events and failure reports are made, for the status, and by the report (`samite.report.redact`), which looks at whole documents as well.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "[hidden]"

_IN_URL = re.compile(r"(://)[^/\s:@\"'<>]+:[^/\s@\"'<>]+(@)")
_AWS_KEY = re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")
_SIGNED = re.compile(r"(?i)([?&](?:X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|Signature|sig|token)=)[^&\s\"'<>]+")
_HEADER = re.compile(r"(?i)\b((?:Bearer|Basic)\s+)[A-Za-z0-9+/=._~-]{12,}")
_NAMED = re.compile(
    r"(?i)\b([\w-]*(?:secret|passw(?:or)?d|api_?key|access_?key|session_?token|auth_?token)[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&]{8,})"
)
_SECRET_NAME = re.compile(r"(?i)(secret|passw|api_?key|access_?key|token|credential)")
_SHORTEST = 8
"""Values of variables that are shorter are words, not secrets."""


def redact(text: str) -> str:
    """`text` without credentials in URLs, AWS key ids, signatures of signed URLs and authorization headers: safe on any text, HTML included."""
    text = _SIGNED.sub(rf"\1{HIDDEN}", _AWS_KEY.sub(HIDDEN, _IN_URL.sub(rf"\1{HIDDEN}\2", text)))
    return _HEADER.sub(rf"\1{HIDDEN}", text)


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables that are named like secrets, the longest first. Paths and URLs of secrets are none."""
    found = {
        value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST and not value.startswith(("/", "http://", "https://"))
    }
    return tuple(sorted(found, key=len, reverse=True))


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`redact`, and without what this process's own environment holds under the name of a secret, or the text itself calls one (`password=...`)."""
    for secret in secrets_of(environment):
        text = text.replace(secret, HIDDEN)
    return _NAMED.sub(rf"\1{HIDDEN}", redact(text))


def cleaned(value: Any) -> Any:
    """`without_secrets` of every string in plain data."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {key: cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(item) for item in value]
    return value
