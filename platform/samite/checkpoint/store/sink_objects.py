"""What the in-memory S3 server keeps, and what it answers. Pure but for the clock: bytes in, bytes out; `samite.checkpoint.store.sink` moves them."""

import email.utils
import hashlib
import threading
import time
import urllib.parse
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from samite.checkpoint.checksum import combine_crc64, crc64, from_header, to_header
from samite.checkpoint.store.sink_messages import Answer, Request

_PAGE = 1000


@dataclass(slots=True)
class Stored:
    """One object, in the pieces that it came in: nothing is copied."""

    pieces: list[bytearray]
    etag: str
    crc64: int
    modified_unix_s: float

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(map(len, self.pieces))

    def views(self, begin: int, end: int) -> list[memoryview]:
        """Bytes [begin, end)."""
        found, position = [], 0
        for piece in self.pieces:
            low, high = max(begin - position, 0), min(end - position, len(piece))
            if low < high:
                found.append(memoryview(piece)[low:high])
            position += len(piece)
        return found

    def headers(self) -> dict[str, str]:
        """As HEAD and GET answer them."""
        return {
            "ETag": self.etag,
            "Last-Modified": email.utils.formatdate(self.modified_unix_s, usegmt=True),
            "x-amz-checksum-crc64nvme": to_header(self.crc64),
            "x-amz-checksum-type": "FULL_OBJECT",
            "Accept-Ranges": "bytes",
        }


@dataclass(slots=True)
class _Upload:
    target: tuple[str, str]
    began_unix_s: float
    parts: dict[int, tuple[bytearray, int]] = field(default_factory=dict)


class Objects:
    """All buckets. Thread-safe."""

    def __init__(self, *, equal_parts: bool = True) -> None:
        self._equal_parts = equal_parts
        self.most_parts = 10_000
        """Of one upload, as in S3."""
        self.may_list = True
        """False is S3 without s3:ListBucket: listings are refused, and so are keys that do not exist, with the same 403."""
        self.stored: dict[tuple[str, str], Stored] = {}
        self._uploads: dict[str, _Upload] = {}
        self._lock = threading.Lock()
        self._versions = 0

    def corrupt(self, bucket: str, key: str, *, flip_byte: int) -> None:
        """Damage a stored object as a failing disk would."""
        (place,) = self.stored[bucket, key].views(flip_byte, flip_byte + 1)
        place[0] ^= 1

    def handle(self, request: Request) -> Answer:
        """The answer to `request`, and its effect."""
        if request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            request.body = _unchunked(request.body)
        problem = _wrong_checksum(request)
        if problem:
            return Answer.error(400, "BadDigest", problem)
        if not request.key:
            return self._bucket(request) if self.may_list else Answer.error(403, "AccessDenied", "s3:ListBucket is not allowed")
        handlers: dict[str, Callable[[Request], Answer]] = {
            "PUT": self._put_part if "partNumber" in request.query else self._put,
            "POST": self._begin if "uploads" in request.query else self._complete,
            "DELETE": self._abort if "uploadId" in request.query else self._delete,
            "GET": self._get,
            "HEAD": self._get,
        }
        handler = handlers.get(request.method)
        return handler(request) if handler else Answer.error(501, "NotImplemented", f"{request.method} is not known here")

    def _bucket(self, request: Request) -> Answer:
        if request.method == "GET" and "uploads" in request.query:
            with self._lock:
                found = [(name, one) for name, one in self._uploads.items() if one.target[0] == request.bucket]
            prefix = request.query.get("prefix", "")
            items = "".join(
                f"<Upload><Key>{escape(one.target[1])}</Key><UploadId>{name}</UploadId><Initiated>{_iso(one.began_unix_s)}</Initiated></Upload>"
                for name, one in found
                if one.target[1].startswith(prefix)
            )
            return Answer.xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{items}")
        if request.method == "GET" and ("location" in request.query or "versioning" in request.query):
            return Answer.xml("LocationConstraint" if "location" in request.query else "VersioningConfiguration", "")
        if request.method == "DELETE":  # all that is in it below `prefix`, unlike the real thing
            gone, prefix = request.bucket, request.query.get("prefix", "")
            with self._lock:
                self.stored = {name: one for name, one in self.stored.items() if name[0] != gone or not name[1].startswith(prefix)}
        return self._list(request) if request.method == "GET" else Answer(200)

    def _list(self, request: Request) -> Answer:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        after = request.query.get("continuation-token", "") or request.query.get("start-after", "")
        with self._lock:
            keys = sorted(key for bucket, key in self.stored if bucket == request.bucket and key.startswith(prefix) and key > after)
        lines: list[str] = []
        shared: set[str] = set()
        last = ""
        for key in keys:
            if len(lines) >= _PAGE:
                break
            last = key
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                if head not in shared:
                    shared.add(head)
                    lines.append(f"<CommonPrefixes><Prefix>{escape(prefix + head + delimiter)}</Prefix></CommonPrefixes>")
                continue
            one = self.stored.get((request.bucket, key))
            if one is not None:
                lines.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{one.size}</Size><ETag>{escape(one.etag)}</ETag>"
                    f"<LastModified>{_iso(one.modified_unix_s)}</LastModified></Contents>"
                )
        more = bool(keys) and last != keys[-1]
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        return Answer.xml(
            "ListBucketResult", f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(lines)}</KeyCount>{token}{''.join(lines)}"
        )

    def _put(self, request: Request) -> Answer:
        source = request.headers.get("x-amz-copy-source")
        if source is None:
            return self._store(request, [request.body], _crc64_of(request))
        bucket, _, key = urllib.parse.unquote(source).lstrip("/").partition("/")
        found = self.stored.get((bucket, key))
        if found is None:
            return Answer.error(404, "NoSuchKey", "no such key")
        answer = self._store(request, found.pieces, found.crc64)
        return answer if answer.status != 200 else Answer.xml("CopyObjectResult", f"<ETag>{escape(answer.headers['ETag'])}</ETag>")

    def _store(self, request: Request, pieces: list[bytearray], checksum: int) -> Answer:
        with self._lock:
            existing = self.stored.get((request.bucket, request.key))
            wanted = request.headers.get("if-match")
            if (request.headers.get("if-none-match") == "*" and existing) or (wanted and (existing is None or existing.etag != wanted)):
                return Answer.error(404 if wanted and existing is None else 412, "PreconditionFailed", "the condition does not hold")
            self._versions += 1
            etag = f'"{checksum:016x}{self._versions:016x}"'
            self.stored[request.bucket, request.key] = Stored(pieces, etag, checksum, time.time())
        return Answer(200, {"ETag": etag, "x-amz-checksum-crc64nvme": to_header(checksum), "x-amz-checksum-type": "FULL_OBJECT"})

    def _get(self, request: Request) -> Answer:
        one = self.stored.get((request.bucket, request.key))
        if one is None:
            return Answer.error(404, "NoSuchKey", "no such key") if self.may_list else Answer.error(403, "AccessDenied", "access denied")
        wanted = request.headers.get("range", "")
        if not wanted:
            length = {"Content-Length": str(one.size)} if request.method == "HEAD" else {}
            return Answer(200, one.headers() | length, [] if length else one.views(0, one.size))
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, one.size - int(last))
        end = min(int(last) + 1, one.size) if first and last else one.size
        if begin >= one.size:
            return Answer.error(416, "InvalidRange", f"the object has {one.size} bytes")
        headers = one.headers() | {"Content-Range": f"bytes {begin}-{end - 1}/{one.size}"}
        headers.pop("x-amz-checksum-crc64nvme")
        return Answer(206, headers, one.views(begin, end))

    def _delete(self, request: Request) -> Answer:
        with self._lock:
            self.stored.pop((request.bucket, request.key), None)
        return Answer(204)

    def _begin(self, request: Request) -> Answer:
        with self._lock:
            name = hashlib.blake2b(f"{time.monotonic_ns()}:{len(self._uploads)}:{request.target}".encode(), digest_size=12).hexdigest()
            self._uploads[name] = _Upload((request.bucket, request.key), time.time())
        return Answer.xml(
            "InitiateMultipartUploadResult", f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key><UploadId>{name}</UploadId>"
        )

    def _put_part(self, request: Request) -> Answer:
        upload = self._uploads.get(request.query.get("uploadId", ""))
        if upload is None:
            return Answer.error(404, "NoSuchUpload", "no such upload")
        number = int(request.query["partNumber"])
        if not 1 <= number <= self.most_parts:
            return Answer.error(400, "InvalidArgument", f"part numbers go from 1 to {self.most_parts}, found {number}")
        checksum = _crc64_of(request)
        with self._lock:
            upload.parts[number] = (request.body, checksum)
        return Answer(200, {"ETag": f'"{checksum:016x}"', "x-amz-checksum-crc64nvme": to_header(checksum)})

    def _abort(self, request: Request) -> Answer:
        with self._lock:
            self._uploads.pop(request.query["uploadId"], None)
        return Answer(204)

    def _complete(self, request: Request) -> Answer:
        with self._lock:
            upload = self._uploads.get(request.query.get("uploadId", ""))
        if upload is None:
            return Answer.error(404, "NoSuchUpload", "no such upload")
        parts = [upload.parts[number] for number in sorted(upload.parts)]
        sizes = [len(part) for part, _ in parts]
        if self._equal_parts and (len(set(sizes[:-1])) > 1 or (len(parts) > 1 and sizes[-1] > sizes[0])):
            return Answer.error(400, "InvalidPart", "all parts but the last must be of one size")
        total = 0
        for (_, checksum), size in zip(parts, sizes, strict=True):
            total = combine_crc64(total, checksum, size)
        wanted = request.headers.get("x-amz-checksum-crc64nvme")
        if wanted and wanted != to_header(total):
            return Answer.error(400, "BadDigest", "the whole does not have the checksum that was sent")
        answer = self._store(request, [part for part, _ in parts], total)
        if answer.status != 200:
            return answer
        with self._lock:
            self._uploads.pop(request.query["uploadId"], None)
        return Answer.xml(
            "CompleteMultipartUploadResult",
            f"<ETag>{escape(answer.headers['ETag'])}</ETag><ChecksumCRC64NVME>{answer.headers['x-amz-checksum-crc64nvme']}</ChecksumCRC64NVME>",
        )


def _crc64_of(request: Request) -> int:
    """Of the body; the one that was sent has been compared with it already."""
    sent = request.headers.get("x-amz-checksum-crc64nvme")
    return from_header(sent) if sent else crc64(request.body)


def _wrong_checksum(request: Request) -> str:
    from awscrt import checksums

    known = {"crc64nvme": (checksums.crc64nvme, 8), "crc32c": (checksums.crc32c, 4), "crc32": (checksums.crc32, 4)}
    for name, (compute, width) in known.items():
        wanted = request.headers.get(f"x-amz-checksum-{name}")
        if wanted and request.method == "PUT" and wanted != b64encode(compute(request.body).to_bytes(width, "big")).decode():
            return f"the body does not have the {name} that was sent"
    return ""


def _unchunked(body: bytearray) -> bytearray:
    """Content of an aws-chunked body; its trailers are dropped."""
    content, position = bytearray(), 0
    while True:
        end = body.index(b"\r\n", position)
        size = int(bytes(body[position:end]).partition(b";")[0], 16)
        if size == 0:
            return content
        content += body[end + 2 : end + 2 + size]
        position = end + 4 + size


def _iso(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s)) + f".{int(unix_s % 1 * 1000):03d}Z"
