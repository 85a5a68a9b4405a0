"""The boto3 client with the switches a trainer wants: no second checksum, bounded silence, retries left to us."""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from samite.checkpoint.store.s3_keys import folder_provider, keys_folder
from samite.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from samite.checkpoint.store.s3 import S3Options

_LOCAL_HOSTS = {"localhost", "::1"}


def make_client(options: "S3Options") -> "S3Client":
    """A client for `options`; makes no request. Keys of a mounted Secret are read again for every request (`s3_keys`)."""
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5.0,
        read_timeout=options.timeout_s,
        retries={"mode": "standard", "total_max_attempts": 2},
        max_pool_connections=max(10, options.connections, options.most_connections) + 2,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # the CRC64-NVME of each body is a signed header: no SHA-256 of all bytes beside it
        s3={"addressing_style": "path" if options.endpoint else "auto", "payload_signing_enabled": False},
    )
    arguments: dict[str, Any] = {}
    if options.access_key:
        arguments = {"aws_access_key_id": options.access_key, "aws_secret_access_key": options.secret_key}
    session = boto3.session.Session()
    folder = None if options.access_key else keys_folder()
    if folder is not None:
        import botocore.session

        base = botocore.session.get_session()
        base.get_component("credential_provider").insert_before("env", folder_provider(folder))
        session = boto3.session.Session(botocore_session=base)
    region = options.region or session.region_name or "us-east-1"
    return session.client(
        "s3",
        endpoint_url=options.endpoint or None,
        region_name=region,
        config=config,
        verify=False if options.insecure else None,
        **arguments,
    )


def check_endpoint(endpoint: str, bucket: str, *, insecure: bool) -> str:
    """The endpoint in its one form, `scheme://host[:port]`.

    Raises UsageError for a path or a bucket in it (path-style keys would then be doubled) and for plain http to another machine.
    """
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"checkpoint.endpoint {endpoint!r}: wanted a URL such as https://s3.example.com or http://127.0.0.1:8333")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(
            f"checkpoint.endpoint {endpoint!r}: wanted only scheme, host and port; bucket and prefix belong into checkpoint.uri"
        )
    if parts.username or parts.password:
        raise UsageError("checkpoint.endpoint: credentials do not belong into a URL; name them in checkpoint.credentials")
    if parts.hostname == bucket or parts.hostname.startswith(f"{bucket}."):
        raise UsageError(
            f"checkpoint.endpoint {endpoint!r}: the host already names bucket {bucket!r}; wanted {parts.scheme}://{parts.netloc[len(bucket) + 1 :] or '<service>'}"
        )
    local = parts.hostname in _LOCAL_HOSTS or parts.hostname.startswith("127.")
    if parts.scheme == "http" and not local and not insecure:
        raise UsageError(f"checkpoint.endpoint {endpoint!r}: plain http to another machine; use https, or set checkpoint.insecure: true")
    return f"{parts.scheme}://{parts.netloc}"
