"""From a URI to a store: one canonical form each, misfits refused before anything is written."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from samite.checkpoint.store.base import Store
from samite.checkpoint.store.file import FileStore
from samite.checkpoint.store.memory import MemoryStore
from samite.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """What `open_store` needs beyond the URI; the fields of `spec.checkpoint`."""

    endpoint: str = ""
    region: str = ""
    insecure: bool = False
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    connections: int = 8
    timeout_s: float = 30.0
    durable: bool = True
    """fsync local files before they count as written."""
    single_writer: bool = False
    """The caller promises that nothing else writes this URI; only then are stores without conditional create accepted."""


def open_store(uri: str, options: StoreOptions | None = None) -> Store:
    """The store behind `uri`: an absolute path or file://, s3://bucket/prefix, memory://name, or any URI that fsspec knows.

    Makes no request and creates nothing. Raises UsageError with what was wanted if the URI or the endpoint makes no sense.
    """
    options = options or StoreOptions()
    scheme, separator, rest = uri.partition("://")
    if options.endpoint and scheme != "s3":
        raise UsageError(f"checkpoint.endpoint is for s3:// only, but the uri is {uri!r}")
    if not separator:
        if not uri.startswith("/"):
            raise UsageError(f"checkpoint uri {uri!r}: wanted an absolute path or scheme://...; found a relative path")
        return FileStore(_folder(uri), durable=options.durable)
    if not scheme or not rest:
        raise UsageError(f"checkpoint uri {uri!r}: wanted an absolute path, file:///folder, s3://bucket/prefix or another scheme://...")
    if scheme == "file":
        if not rest.startswith("/"):
            raise UsageError(f"checkpoint uri {uri!r}: wanted file:///absolute/folder (three slashes)")
        return FileStore(_folder(rest), durable=options.durable)
    if scheme == "s3":
        return _open_s3(rest, options)
    if scheme == "memory":
        return MemoryStore(f"memory://{'/'.join(part for part in rest.split('/') if part)}")
    from samite.checkpoint.store.fsspec_store import FsspecStore

    return FsspecStore(uri.rstrip("/"), single_writer=options.single_writer)


def _folder(path: str) -> Path:
    folder = Path("/" + path.strip("/"))
    if folder == Path("/"):
        raise UsageError("checkpoint uri: the root folder cannot hold checkpoints; name a folder below it")
    if ".." in folder.parts:
        raise UsageError(f"checkpoint uri {path!r}: '..' is not allowed; write the folder it stands for")
    return folder


def _open_s3(rest: str, options: StoreOptions) -> Store:
    from samite.checkpoint.store.s3 import S3Options, S3Store
    from samite.checkpoint.store.s3_client import check_endpoint

    bucket, _, key = rest.partition("/")
    if "@" in bucket or ":" in bucket or not bucket:
        raise UsageError(
            f"checkpoint uri 's3://{rest}': wanted s3://bucket/prefix; host, port and credentials go elsewhere (checkpoint.endpoint)"
        )
    if urlsplit(f"s3://{rest}").query:
        raise UsageError(f"checkpoint uri 's3://{rest}': a query ('?...') is not part of a key; remove it")
    return S3Store(
        bucket,
        "/".join(part for part in key.split("/") if part),
        S3Options(
            endpoint=check_endpoint(options.endpoint, bucket, insecure=options.insecure),
            region=options.region,
            insecure=options.insecure,
            access_key=options.access_key,
            secret_key=options.secret_key,
            connections=options.connections,
            timeout_s=options.timeout_s,
        ),
    )
