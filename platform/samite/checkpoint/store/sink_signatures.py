"""Does a request carry a signature of somebody the in-memory S3 server knows? AWS Signature Version 4, in headers or in the URL (presigned). Pure.

Signed bodies are compared with their SHA-256; unsigned ones are taken as AWS takes them. The answers are S3's own codes, so that clients react as they would there.
"""

import calendar
import hashlib
import hmac
import re
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from samite.checkpoint.store.sink_messages import Answer, Request

MOST_SKEW_S = 900.0
"""S3's own limit for the difference of clocks."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_HEADER = re.compile(rf"{_ALGORITHM} Credential=([^,\s]+),\s*SignedHeaders=([^,\s]+),\s*Signature=([0-9a-f]{{64}})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claim:
    """What a request says of its signature."""

    key: str
    scope: str
    """date/region/service/aws4_request"""
    signed_headers: tuple[str, ...]
    signature: str
    date: str
    expires_s: float | None
    """Of a presigned URL."""
    payload: str


def refusal(request: Request, keys: Mapping[str, str], now_unix_s: float) -> Answer | None:
    """None if `request` is signed by one of `keys` (access key -> secret), else S3's answer to it."""
    claim = _claim(request)
    if claim is None:
        return _forbidden("AccessDenied", "the request is not signed with AWS Signature Version 4")
    if claim.key not in keys:
        return _forbidden("InvalidAccessKeyId", "nobody here has this access key")
    began_unix_s = _unix_s(claim.date)
    if began_unix_s is None or not claim.scope.startswith(f"{claim.date[:8]}/") or not claim.scope.endswith("/s3/aws4_request"):
        return _forbidden("AccessDenied", "the date or the scope of the signature makes no sense")
    if claim.expires_s is None and abs(now_unix_s - began_unix_s) > MOST_SKEW_S:
        return _forbidden("RequestTimeTooSkewed", "the difference between the request time and the current time is too large")
    if claim.expires_s is not None and not began_unix_s - MOST_SKEW_S <= now_unix_s <= began_unix_s + claim.expires_s:
        return _forbidden("AccessDenied", "the request has expired")
    unsigned = sorted(name for name in request.headers if name.startswith("x-amz-") and name not in claim.signed_headers)
    if "host" not in claim.signed_headers or unsigned:
        return _forbidden("AccessDenied", f"headers that must be signed are not: {', '.join(unsigned) or 'host'}")
    if not hmac.compare_digest(_signature(request, claim, keys[claim.key]), claim.signature):
        return _forbidden(
            "SignatureDoesNotMatch", "the signature that was sent is not the one computed here; check the secret and how it is signed"
        )
    if claim.payload.startswith("STREAMING-AWS4"):
        return Answer.error(501, "NotImplemented", "signatures of single chunks are not known here")
    if _SHA256.fullmatch(claim.payload) and hashlib.sha256(request.body).hexdigest() != claim.payload:
        return Answer.error(400, "XAmzContentSHA256Mismatch", "the body does not have the SHA-256 that was signed")
    return None


def _claim(request: Request) -> _Claim | None:
    found = _HEADER.fullmatch(request.headers.get("authorization", ""))
    if found is not None:
        key, _, scope = found[1].partition("/")
        return _Claim(
            key=key,
            scope=scope,
            signed_headers=tuple(found[2].split(";")),
            signature=found[3],
            date=request.headers.get("x-amz-date", ""),
            expires_s=None,
            payload=request.headers.get("x-amz-content-sha256", ""),
        )
    query = request.query
    if query.get("X-Amz-Algorithm") != _ALGORITHM or not query.get("X-Amz-Expires", "").isdecimal():
        return None
    key, _, scope = query.get("X-Amz-Credential", "").partition("/")
    return _Claim(
        key=key,
        scope=scope,
        signed_headers=tuple(query.get("X-Amz-SignedHeaders", "").split(";")),
        signature=query.get("X-Amz-Signature", ""),
        date=query.get("X-Amz-Date", ""),
        expires_s=float(query["X-Amz-Expires"]),
        payload=_UNSIGNED,
    )


def _signature(request: Request, claim: _Claim, secret: str) -> str:
    pairs = sorted((_quoted(name), _quoted(value)) for name, value in request.query.items() if name != "X-Amz-Signature")
    headers = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in claim.signed_headers)
    canonical = "\n".join(
        [
            request.method,
            _quoted(request.path, safe="/"),
            "&".join(f"{name}={value}" for name, value in pairs),
            headers,
            ";".join(claim.signed_headers),
            claim.payload,
        ]
    )
    text = "\n".join([_ALGORITHM, claim.date, claim.scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for word in claim.scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _quoted(text: str, safe: str = "") -> str:
    return urllib.parse.quote(text, safe=f"{safe}-_.~")


def _unix_s(date: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ")))
    except ValueError:
        return None


def _forbidden(code: str, message: str) -> Answer:
    return Answer.error(403, code, message)
