"""Requests and answers of the in-memory S3 server, as bytes on the wire and as values."""

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content"}


@dataclass(slots=True)
class Request:
    """One request, path-style."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytearray = field(default_factory=bytearray)
    path: str = ""
    """Decoded, from the first slash on."""

    @property
    def target(self) -> str:
        """`bucket/key?query` for rules and records."""
        words = "&".join(f"{name}={value}" if value else name for name, value in self.query.items())
        return f"{self.bucket}/{self.key}" + (f"?{words}" if words else "")

    @classmethod
    def parse(cls, head: bytes) -> "Request":
        """From the request line and the headers."""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, url, _ = first.split(" ", 2)
        path, _, query = url.partition("?")
        path = urllib.parse.unquote(path)
        bucket, _, key = path.lstrip("/").partition("/")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return cls(method, bucket, key, dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), headers, path=path)


@dataclass(slots=True)
class Answer:
    """One answer."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: list[memoryview] = field(default_factory=list)

    @classmethod
    def error(cls, status: int, code: str, message: str) -> "Answer":
        """S3's form of a refusal."""
        text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        return cls(status, {"Content-Type": "application/xml"}, [memoryview(text.encode())])

    @classmethod
    def xml(cls, name: str, content: str) -> "Answer":
        """A document."""
        text = f'<?xml version="1.0"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{name}>'
        return cls(200, {"Content-Type": "application/xml"}, [memoryview(text.encode())])

    def head(self) -> bytes:
        """Status line and headers."""
        length = self.headers.pop("Content-Length", sum(map(len, self.body)))
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Error')}", f"Content-Length: {length}"]
        return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in self.headers.items()), "", ""]).encode("latin-1")
