"""What an S3 answer means: a fact, a refusal, or a reason to try again. Refusals name the permission that would help."""

from typing import Any

from samite.checkpoint.store.base import MissingKeyError, StorageFullError
from samite.errors import NotAllowedError, NotFoundError, SamiteError, TemporaryError, UnreachableError

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_UNKNOWN_IDENTITY = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"}
_FULL = {"QuotaExceeded", "QuotaExceededException", "InsufficientStorage", "XMinioStorageFull", "StorageFull"}


def status_of(error: Any) -> int:
    """HTTP status of a botocore ClientError, 0 if it has none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def translate(error: Exception, *, where: str, bucket: str, permission: str) -> SamiteError:
    """The error of our tree for one of botocore's. `where` is the object, `permission` what the call needs."""
    from botocore.exceptions import (
        ClientError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
        TokenRetrievalError,
    )
    from botocore.exceptions import (
        ConnectionError as ConnectionFailed,
    )

    if isinstance(error, ClientError):
        return _from_answer(error, where, bucket, permission)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | TokenRetrievalError):
        return NotAllowedError(
            f"{where}: no usable credentials ({error}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name checkpoint.credentials"
        )
    if isinstance(error, ConnectionFailed | HTTPClientError):
        return UnreachableError(f"{where}: storage did not answer ({error})")
    return TemporaryError(f"{where}: {error}")


def _from_answer(error: Any, where: str, bucket: str, permission: str) -> SamiteError:
    status = status_of(error)
    code = str(error.response.get("Error", {}).get("Code", ""))
    text = str(error.response.get("Error", {}).get("Message", "")) or code
    if code == "NoSuchBucket":
        return NotFoundError(
            f"{where}: bucket {bucket!r} does not exist at this endpoint; create it or correct checkpoint.uri and checkpoint.endpoint"
        )
    if code in _EXPIRED:
        return NotAllowedError(f"{where}: the credentials have expired ({code}); renew them")
    if code == "RequestTimeTooSkewed":
        return NotAllowedError(
            f"{where}: refused ({code}): this machine's clock and the service's are too far apart; set this machine's (NTP)"
        )
    if code in _UNKNOWN_IDENTITY:
        return NotAllowedError(f"{where}: the service does not accept these credentials ({code}); check key, secret and region")
    if status == 507 or code in _FULL:
        return StorageFullError(f"{where}: storage is full ({code or status}: {text}); nothing was replaced")
    if status in {401, 403}:
        return NotAllowedError(
            f"{where}: refused ({status} {code}); these credentials need {permission}. This does not say that nothing is there"
        )
    if status == 404:
        return MissingKeyError(f"{where}: no such object")
    if (
        status == 429
        or status >= 500
        or code in {"SlowDown", "RequestTimeout", "InternalError", "BadDigest", "InvalidPart", "NoSuchUpload"}
    ):
        return TemporaryError(f"{where}: storage answered {status} {code}: {text}", retry_after_s=1.0)
    if status in {301, 307, 400} and code in {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}:
        return NotFoundError(f"{where}: bucket {bucket!r} lives in another region ({text}); set checkpoint.region")
    return SamiteError(f"{where}: storage answered {status} {code}: {text}")
