"""Objects in a bucket of S3 or of anything that speaks its protocol, through boto3.

Small objects go in one request, data objects in parallel parts; each carries its CRC64-NVME, so the server refuses bytes that changed on the way.
Create-once is `If-None-Match: *`, compare-and-swap is `If-Match`; both are probed before training starts (samite.checkpoint.store.probe).
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samite.checkpoint.checksum import Buffer, Checksum, Checksums, from_header, to_header
from samite.checkpoint.checksum import crc64 as checksum_of
from samite.checkpoint.store.base import MissingKeyError, ObjectInfo
from samite.checkpoint.store.s3_errors import status_of, translate
from samite.checkpoint.store.s3_parts import PartSender, Window
from samite.checkpoint.store.s3_transport import Cargo, Transport, direct, drain
from samite.errors import CheckpointDamagedError, TemporaryError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

PART_BYTES = 16 * 1024 * 1024
SMALLEST_PART_BYTES = 5 * 1024 * 1024
"""S3's own limit for all parts but the last."""
MOST_PARTS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Options:
    """How to reach a bucket."""

    endpoint: str = ""
    """URL of the service without bucket or path; empty for AWS."""
    region: str = ""
    insecure: bool = False
    """Allow plain http to other machines, and do not check TLS certificates."""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    """Empty: boto3's own chain (environment, shared files, instance role), which also renews them."""
    connections: int = 8
    """Parts of an upload under way at first."""
    most_connections: int = 32
    """As many while more make it faster; storage that asks to slow down halves them."""
    timeout_s: float = 30.0
    """Longest silence on a connection before the request counts as failed."""
    zero_copy: bool = True
    """Send bodies with our own transport where no proxy stands between; off: boto3 sends copies."""


class S3Store:
    """Objects of `bucket` whose keys begin with `prefix/`."""

    def __init__(self, bucket: str, prefix: str, options: S3Options, *, part_bytes: int = PART_BYTES) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = options
        self._part_bytes = part_bytes
        self._client: S3Client | None = None
        self._transport: Transport | None = None
        self._window = Window(options.connections, options.most_connections)
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """Canonical URI."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, key: str) -> bytes:
        """Whole content."""
        with self._errors("s3:GetObject", key):
            return self.client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()

    def read_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        if len(target) == 0:
            return
        with self._errors("s3:GetObject", key):
            try:
                with self._carrying(target=target) as cargo:
                    answer = self.client.get_object(
                        Bucket=self._bucket, Key=self._prefix + key, Range=f"bytes={offset}-{offset + len(target) - 1}"
                    )
            except self._client_error() as error:
                if status_of(error) == 416:
                    raise self._too_short(key, offset, len(target), "nothing") from error
                raise
            done = cargo.received if cargo else drain(answer["Body"], target)
        if done < len(target):
            promised = int(answer.get("ContentLength", 0))
            if promised > done:
                raise TemporaryError(f"{self.uri}/{key}: the connection ended after {done} of {promised} bytes")
            raise self._too_short(key, offset, len(target), f"{done} bytes")

    def put(self, key: str, data: Buffer, *, crc64: Checksum | None = None) -> None:
        """Write or replace. `Checksums` are asked part by part, just before each is sent; a number only serves an object of one part."""
        view = memoryview(data).cast("B")
        sums = crc64 if isinstance(crc64, Checksums) else Checksums(view)
        if len(view) > self._part_bytes:
            self._put_parts(key, view, sums)
        else:
            self._put_object(key, view, crc64 if isinstance(crc64, int) else sums.whole)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create once."""
        try:
            self._put_object(key, memoryview(data), checksum_of(data), IfNoneMatch="*")
        except _PreconditionError:
            try:
                return self.get(key) == bytes(data)
            except MissingKeyError as error:
                raise TemporaryError(f"{self.uri}/{key}: another writer was creating it and withdrew; trying again") from error
        return True

    def compare_and_swap(self, key: str, data: Buffer, expected_etag: str | None) -> bool:
        """Replace if unchanged."""
        condition = {"IfNoneMatch": "*"} if expected_etag is None else {"IfMatch": expected_etag}
        try:
            self._put_object(key, memoryview(data), checksum_of(data), **condition)
        except (_PreconditionError, MissingKeyError):
            return False
        return True

    def head(self, key: str) -> ObjectInfo | None:
        """Facts about one object. A 403 raises NotAllowedError: without permission to list, storage answers 403 for keys that are not there."""
        with self._errors("s3:GetObject (and s3:ListBucket, without which a missing key answers 403)", key):
            try:
                found = self.client.head_object(Bucket=self._bucket, Key=self._prefix + key, ChecksumMode="ENABLED")
            except self._client_error() as error:
                if status_of(error) == 404:
                    return None
                raise
        checksum = found.get("ChecksumCRC64NVME")
        return ObjectInfo(
            key=key,
            size=found["ContentLength"],
            etag=found["ETag"],
            modified_unix_s=found["LastModified"].timestamp(),
            crc64=from_header(checksum) if checksum and found.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" else None,
        )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below `prefix`."""
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                yield ObjectInfo(
                    key=found["Key"][len(self._prefix) :],
                    size=found["Size"],
                    etag=found["ETag"],
                    modified_unix_s=found["LastModified"].timestamp(),
                )

    def children(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`."""
        start = len(self._prefix) + len(prefix)
        names: list[str] = []
        for page in self._pages(prefix, Delimiter="/"):
            names += [found["Key"][start:] for found in page.get("Contents", ())]
            names += [found["Prefix"][start:] for found in page.get("CommonPrefixes", ())]
        yield from sorted(names)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, one request each: what every imitation of S3 supports. In a versioned bucket older versions remain."""
        for key in keys:
            with self._errors("s3:DeleteObject", key):
                self.client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def sweep(self, older_than_s: float) -> int:
        """Abort multipart uploads that nobody finished; their parts cost money and never show in a listing."""
        from datetime import UTC, datetime

        count = 0
        with self._errors("s3:ListBucketMultipartUploads and s3:AbortMultipartUpload", self._prefix):
            for page in self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", ()):
                    if (datetime.now(UTC) - upload["Initiated"]).total_seconds() >= older_than_s:
                        self.client.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                        count += 1
        return count

    @property
    def client(self) -> "S3Client":
        """The boto3 client, made at first use and shared by all threads."""
        with self._lock:
            if self._client is None:
                from samite.checkpoint.store.s3_client import make_client

                client = make_client(self._options)
                if self._options.zero_copy and direct(client.meta.endpoint_url):
                    self._transport = Transport(client, timeout_s=self._options.timeout_s, verify=not self._options.insecure)
                self._client = client
            return self._client

    def versioning(self) -> str:
        """`Enabled`, `Suspended` or empty; empty too if we may not ask."""
        try:
            return str(self.client.get_bucket_versioning(Bucket=self._bucket).get("Status", ""))
        except self._client_error():
            return ""

    def _put_object(self, key: str, view: memoryview, wanted: int, **condition: str) -> None:
        with self._errors("s3:PutObject", key), self._carrying(body=view) as cargo:
            answer = self.client.put_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=b"" if cargo else bytes(view),
                ChecksumCRC64NVME=to_header(wanted),
                **condition,  # type: ignore[arg-type]
            )
        self._compare(key, answer.get("ChecksumCRC64NVME"), wanted)

    def _put_parts(self, key: str, view: memoryview, sums: Checksums) -> None:
        """Equal parts except the last, as every imitation of S3 accepts them; the upload is aborted if anything fails."""
        part_bytes = self._part_size(len(view))
        starts = range(0, len(view), part_bytes)
        where: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + key}
        with self._errors("s3:PutObject", key):
            upload = self.client.create_multipart_upload(**where, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT")["UploadId"]

        def send(number: int) -> "CompletedPartTypeDef":
            part = view[starts[number] : starts[number] + part_bytes]
            checksum = sums.of(starts[number], starts[number] + len(part))
            header = to_header(checksum)
            with self._errors("s3:PutObject", key), self._carrying(body=part) as cargo:
                answer = self.client.upload_part(
                    **where, UploadId=upload, PartNumber=number + 1, Body=b"" if cargo else bytes(part), ChecksumCRC64NVME=header
                )
            self._compare(key, answer.get("ChecksumCRC64NVME"), checksum)
            return {"PartNumber": number + 1, "ETag": answer["ETag"], "ChecksumCRC64NVME": header}

        try:
            sender = PartSender(self._window, send, lambda number: len(view[starts[number] : starts[number] + part_bytes]))
            sent = sender.send_all(len(starts))
            total = sums.whole
            with self._errors("s3:PutObject", key):
                answer = self.client.complete_multipart_upload(
                    **where,
                    UploadId=upload,
                    MultipartUpload={"Parts": sent},
                    ChecksumCRC64NVME=to_header(total),
                    ChecksumType="FULL_OBJECT",
                )
        except BaseException:
            with contextlib.suppress(self._client_error(), OSError):
                self.client.abort_multipart_upload(**where, UploadId=upload)
            raise
        self._compare(key, answer.get("ChecksumCRC64NVME"), total)

    @contextlib.contextmanager
    def _carrying(self, body: memoryview | None = None, target: memoryview | None = None) -> Iterator[Cargo | None]:
        """The cargo of this thread's next request; None where boto3 has to carry it itself."""
        if self.client is None or self._transport is None:  # making the client decides whether there is a transport
            yield None
            return
        with self._transport.carrying(Cargo(body=memoryview(b"") if body is None else body, target=target)) as cargo:
            yield cargo

    def _part_size(self, num_bytes: int) -> int:
        """Parts small enough that even a small object fills its connections, large enough for 10,000 of them to hold a large one."""
        shared = -(-num_bytes // self._window.limit)
        return max(min(self._part_bytes, max(shared, SMALLEST_PART_BYTES)), -(-num_bytes // MOST_PARTS))

    def _pages(self, prefix: str, **arguments: str) -> Iterator[Any]:
        with self._errors("s3:ListBucket", prefix):
            yield from self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                **arguments,  # type: ignore[arg-type]
            )

    def _compare(self, key: str, answered: str | None, wanted: int) -> None:
        if answered and from_header(answered) != wanted:
            raise TemporaryError(f"{self.uri}/{key}: storage received other bytes than we sent (CRC64-NVME differs); sending them again")

    def _too_short(self, key: str, offset: int, length: int, found: str) -> CheckpointDamagedError:
        return CheckpointDamagedError(f"{self.uri}/{key}: wanted bytes {offset} to {offset + length}, found {found} there")

    @staticmethod
    def _client_error() -> type[Exception]:
        from botocore.exceptions import ClientError

        return ClientError

    @contextlib.contextmanager
    def _errors(self, permission: str, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            yield
        except (ClientError, BotoCoreError, HTTPClientError) as error:
            if isinstance(error, ClientError) and status_of(error) in {409, 412}:
                raise _PreconditionError(key) from error
            raise translate(error, where=f"{self.uri}/{key}", bucket=self._bucket, permission=permission) from error


class _PreconditionError(Exception):
    """If-Match or If-None-Match did not hold, or a competing conditional write was under way."""
