"""Rules about checkpoints, and about the addresses of storage and telemetry."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import PurePosixPath

from samite.spec import storage_cel
from samite.spec.rules import Document, Finding, Rule, exactly_one, part

SCHEMES = ("file", "s3", "memory", "gs", "gcs", "az", "abfs", "abfss", "hdfs")
"""Storages that checkpoints can go to: our own file, S3 and memory stores, and fsspec file systems that can write."""

ADDRESSES = (("checkpoint", "uri"), ("checkpoint", "endpoint"), ("checkpoint", "loadFrom"), ("data", "uri"), ("telemetry", "otlpEndpoint"))
"""Fields of `spec` that hold an address."""

SOURCES = ("secretName", "serviceAccountName", "profile")
_URI = re.compile(r"([a-z][a-z0-9+]*)://(.*)", re.DOTALL)
_ENDPOINT = re.compile(r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?/?")
_LOOPBACK = re.compile(r"localhost|127[.][0-9.]+|\[::1\]")
_USER_INFO = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*@")


def _uri_is_known(document: Document) -> Iterator[Finding]:
    uri = part(document, "spec", "checkpoint", "uri")
    # An address with a key in it has a message of its own, which does not repeat the key.
    if isinstance(uri, str) and not _USER_INFO.match(uri) and (problem := uri_problem(uri)) is not None:
        yield Finding(path=("spec", "checkpoint", "uri"), wanted=problem[0], found=f'"{uri}"', hint=problem[1])


def uri_problem(uri: str) -> tuple[str, str] | None:
    """(wanted, hint) if checkpoints cannot go to `uri`."""
    wanted = "s3://bucket/prefix, file:///absolute/folder, or another URI that fsspec can write to"
    match = _URI.fullmatch(uri)
    if match is None:
        return wanted, f"write file://{uri}" if uri.startswith("/") else _scheme_typo(
            uri
        ) or f"write file:///absolute/path/to/{PurePosixPath(uri).name or 'checkpoints'}"
    scheme, rest = match.groups()
    if scheme not in SCHEMES:
        close = get_close_matches(scheme, SCHEMES, n=1, cutoff=0.5)
        return wanted, f"did you mean {close[0]}://{rest}?" if close else f"known: {', '.join(f'{name}://' for name in SCHEMES)}"
    if scheme == "file" and not rest.startswith("/"):
        return "file:/// and an absolute folder", f"write file:///{rest.lstrip('./')}" if rest else ""
    if (scheme == "file" and not rest.strip("/")) or (scheme not in {"file", "memory"} and rest[:1] in {"", "/"}):
        return wanted, "name a folder" if scheme == "file" else "name the bucket"
    if any(name in {".", ".."} for name in rest.split("/")):
        return "a URI without . and ..", ""
    if scheme == "s3" and (set("@:") & set(rest.partition("/")[0]) or "?" in rest):
        return "s3://bucket/prefix; host and port go to checkpoint.endpoint", ""
    return None


def _scheme_typo(uri: str) -> str:
    scheme, colon, rest = uri.partition(":")
    if colon and scheme.lower() in SCHEMES:
        return f"write {scheme.lower()}://{'/' if scheme.lower() == 'file' else ''}{rest.lstrip('/')}"
    return ""


def _no_credentials_in_uris(document: Document) -> Iterator[Finding]:
    for keys in ADDRESSES:
        value = part(document, "spec", *keys)
        if isinstance(value, str) and _USER_INFO.match(value):
            hint = "remove the part before @; credentials come from the environment or checkpoint.credentials"
            yield Finding(
                path=("spec", *keys), wanted="an address without a user name or key", found="one with @ before the host", hint=hint
            )


def _endpoint_is_encrypted(document: Document) -> Iterator[Finding]:
    endpoint, insecure = part(document, "spec", "checkpoint", "endpoint"), part(document, "spec", "checkpoint", "insecure")
    if not isinstance(endpoint, str) or insecure is None:
        return
    path = ("spec", "checkpoint", "endpoint")
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None and not _USER_INFO.match(endpoint):
        hint = _bare(endpoint if "://" in endpoint else f"https://{endpoint}")
        yield Finding(path=path, wanted="https://, a host, perhaps a port, and nothing else", found=f'"{endpoint}"', hint=hint)
    elif match is not None and match["scheme"] == "http" and not insecure and not _LOOPBACK.fullmatch(match["host"]):
        hint = f"write https://{endpoint.removeprefix('http://')}, or insecure: true for a test storage"
        yield Finding(path=path, wanted="https:// to another machine, unless checkpoint.insecure is true", found=f'"{endpoint}"', hint=hint)


def _bare(endpoint: str) -> str:
    """The endpoint without its path, if that makes it right."""
    scheme, _, rest = endpoint.partition("://")
    bare = f"{scheme}://{rest.partition('/')[0]}"
    tail = "; bucket and prefix belong into checkpoint.uri" if "/" in rest else ""
    return f"write {bare}{tail}" if _ENDPOINT.fullmatch(bare) else ""


def _endpoint_needs_s3(document: Document) -> Iterator[Finding]:
    checkpoint = part(document, "spec", "checkpoint") or {}
    for key in ("endpoint", "region"):
        if key in checkpoint and not (checkpoint.get("uri") or "s3://").startswith("s3://"):
            hint = f"remove {key}, or give an s3:// uri"
            yield Finding(
                path=("spec", "checkpoint", key), wanted=f"{key} only with an s3:// uri", found=f'uri "{checkpoint["uri"]}"', hint=hint
            )
        elif key in checkpoint and "uri" not in checkpoint:
            hint = "write checkpoint.uri: s3://bucket/prefix"
            yield Finding(path=("spec", "checkpoint", key), wanted=f"{key} only with an s3:// uri", found="no uri", hint=hint)


def _otlp_endpoint_is_a_url(document: Document) -> Iterator[Finding]:
    endpoint = part(document, "spec", "telemetry", "otlpEndpoint")
    if isinstance(endpoint, str) and not _USER_INFO.match(endpoint) and not _ENDPOINT.fullmatch(endpoint):
        hint = _bare(endpoint if "://" in endpoint else f"http://{endpoint}").partition(";")[0]
        wanted = "http:// or https://, a host, perhaps a port, and nothing else"
        yield Finding(path=("spec", "telemetry", "otlpEndpoint"), wanted=wanted, found=f'"{endpoint}"', hint=hint)


def _one_credential_source(document: Document) -> Iterator[Finding]:
    credentials = part(document, "spec", "checkpoint", "credentials")
    if isinstance(credentials, dict) and (odd := exactly_one(credentials, SOURCES)):
        path = ("spec", "checkpoint", "credentials")
        yield Finding(path=path, wanted=f"exactly one of {', '.join(SOURCES)}", found=odd[0], hint=odd[1] or "or leave credentials out")


def _one_interval(document: Document) -> Iterator[Finding]:
    interval = part(document, "spec", "checkpoint", "interval")
    if isinstance(interval, dict) and (odd := exactly_one(interval, ("steps", "seconds"))):
        path = ("spec", "checkpoint", "interval")
        yield Finding(path=path, wanted="exactly one of steps and seconds", found=odd[0], hint=odd[1] or "such as steps: 100")


def _kubernetes_needs_a_uri(document: Document) -> Iterator[Finding]:
    engine = part(document, "spec", "engine")
    if (
        engine in {"RayCluster", "RayJob"}
        and part(document, "spec", "checkpoint") is not None
        and part(document, "spec", "checkpoint", "uri") is None
    ):
        hint = "such as s3://bucket/prefix"
        yield Finding(
            path=("spec", "checkpoint", "uri"),
            wanted=f"a storage that all nodes reach, because the engine is {engine}",
            found="nothing",
            hint=hint,
        )


STORAGE_RULES = (
    Rule(
        name="checkpoint-uri-is-known",
        check=_uri_is_known,
        message="uri is s3://bucket/prefix, file:///absolute/folder or another URI that fsspec can write to",
        cel=storage_cel.checkpoint_uri(SCHEMES),
    ),
    Rule(
        name="no-credentials-in-addresses",
        check=_no_credentials_in_uris,
        message="addresses hold no user name and no key",
        cel=storage_cel.without_credentials(ADDRESSES),
    ),
    Rule(
        name="plain-http-only-on-request",
        check=_endpoint_is_encrypted,
        message="endpoint is https:// with a host and nothing else; http:// only to this machine, or with insecure: true",
        cel=storage_cel.endpoint(),
    ),
    Rule(
        name="endpoint-needs-s3",
        check=_endpoint_needs_s3,
        message="endpoint and region only with an s3:// uri",
        cel=storage_cel.s3_only(("endpoint", "region")),
    ),
    Rule(
        name="otlp-endpoint-is-a-url",
        check=_otlp_endpoint_is_a_url,
        message="otlpEndpoint is http:// or https:// with a host and nothing else",
        cel=storage_cel.otlp_endpoint(),
    ),
    Rule(
        name="one-credential-source",
        check=_one_credential_source,
        message=f"exactly one of {', '.join(SOURCES)}",
        cel=storage_cel.credential_source(SOURCES),
    ),
    Rule(
        name="one-checkpoint-interval",
        check=_one_interval,
        message="exactly one of steps and seconds",
        cel=storage_cel.interval(),
    ),
    Rule(
        name="kubernetes-needs-a-uri",
        check=_kubernetes_needs_a_uri,
        message="checkpoint.uri is needed unless the engine is Local",
        cel=storage_cel.reachable_storage(),
    ),
)
