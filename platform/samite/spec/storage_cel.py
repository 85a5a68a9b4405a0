"""The rules about storage and addresses as the API server evaluates them: CEL beside `samite.spec.storage_rules`, which has the Python side.

Only the hints that look for the nearest known word (`did you mean s3://...?`) are not computed here.
"""

from samite.spec.cel import CelRule, computed, let, only_one, quoted, template

USER_INFO = "^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*@"
ENDPOINT = "^https?://([A-Za-z0-9._-]+|[[][0-9a-fA-F:.]+[]])(:[0-9]{1,5})?/?$"
ENCRYPTED_OR_HERE = "^(https://|http://(localhost|127[.][0-9.]+|[[]::1[]])(:|/|$))"
SCHEME = "^[a-z][a-z0-9+]*://"

_WANTED = "wanted s3://bucket/prefix, file:///absolute/folder, or another URI that fsspec can write to"
_FOUND = '; found "<<self.uri>>"; '


def _uri_rule(*, unless: str, wanted: str = _WANTED, hint: str = "") -> CelRule:
    """One way in which checkpoint.uri can be wrong. An address with a key in it has a message of its own, which does not repeat the key."""
    holds = f"!has(self.uri) || self.uri.matches({quoted(USER_INFO)}) || {unless}"
    says = wanted + (_FOUND + hint if hint else _FOUND.removesuffix("; "))
    return CelRule(at="spec.checkpoint", field=".uri", holds=holds, says=says)


def checkpoint_uri(schemes: tuple[str, ...]) -> tuple[CelRule, ...]:
    """Where checkpoints can go."""
    has_scheme, known = f"self.uri.matches({quoted(SCHEME)})", f"self.uri.matches({quoted(f'^({chr(124).join(schemes)})://')})"
    last = "self.uri.split('/').filter(x, x != '' && x != '.')"
    folder = let("l", last, "l.size() == 0 ? 'checkpoints' : l[l.size() - 1]")
    typed = "self.uri.split(':')[0].lowerAscii()"
    rest = "self.uri.substring(self.uri.indexOf(':') + 1)"
    bare = f"{rest}.startsWith('//') ? {rest}.substring(2) : {rest}.startsWith('/') ? {rest}.substring(1) : {rest}"
    typo = template(f"write <<{typed}>>://<<{typed} == 'file' ? '/' : ''>><<{bare}>>")
    listed = "[" + ", ".join(quoted(scheme) for scheme in schemes) + "]"
    unreadable = f"(self.uri.contains(':') && {typed} in {listed} ? {typo} : {template(f'write file:///absolute/path/to/<<{folder}>>')})"
    bucket = f"!({known}) || self.uri.matches('^(file://|memory://|[a-z0-9+]*://[^/])')"
    named = "self.uri.matches('^file://([^/]|/*[^/])') || !self.uri.startsWith('file://')"
    dots = f"!({known}) || !self.uri.matches('(://|/)[.][.]?(/|$)')"
    return (
        _uri_rule(unless=has_scheme, hint=computed(f"self.uri.startsWith('/') ? {template('write file://<<self.uri>>')} : {unreadable}")),
        _uri_rule(unless=f"!({has_scheme}) || {known}", hint="known: " + ", ".join(f"{scheme}://" for scheme in schemes)),
        _uri_rule(
            unless="!self.uri.matches('^file://[^/]')",
            wanted="wanted file:/// and an absolute folder",
            hint="write file:///<<self.uri.substring(7).matches('^[.]/') ? self.uri.substring(9) : self.uri.substring(7)>>",
        ),
        _uri_rule(unless=named, hint="name a folder"),
        _uri_rule(unless=bucket, hint="name the bucket"),
        _uri_rule(unless=dots, wanted="wanted a URI without . and .."),
        _uri_rule(
            unless="!self.uri.matches('^s3://([^/]*[@:]|.*[?])')",
            wanted="wanted s3://bucket/prefix; host and port go to checkpoint.endpoint",
        ),
    )


def without_credentials(fields: tuple[tuple[str, ...], ...]) -> tuple[CelRule, ...]:
    """No address holds a user name or a key."""
    return tuple(
        CelRule(
            at=".".join(("spec", *keys[:-1])),
            field=f".{keys[-1]}",
            holds=f"!has(self.{keys[-1]}) || !self.{keys[-1]}.matches({quoted(USER_INFO)})",
            says="wanted an address without a user name or key; found one with @ before the host; "
            "remove the part before @; credentials come from the environment or checkpoint.credentials",
        )
        for keys in fields
    )


def _bare(value: str, scheme: str, tail: str) -> str:
    """CEL: `; write https://host` for an endpoint that becomes right without its path; else empty."""
    whole = f"{value}.contains('://') ? {value} : {template(f'{scheme}<<{value}>>')}"
    bare = template("<<w.split('://')[0]>>://<<w.substring(w.indexOf('://') + 3).split('/')[0]>>")
    more = f"w.substring(w.indexOf('://') + 3).contains('/') ? {quoted(tail)} : ''"
    return let("w", whole, let("b", bare, f"b.matches({quoted(ENDPOINT)}) ? {template(f'; write <<b>><<{more}>>')} : ''"))


def endpoint() -> tuple[CelRule, ...]:
    """An endpoint is an address and nothing else, encrypted unless asked otherwise."""
    ours = f"!has(self.endpoint) || self.endpoint.matches({quoted(USER_INFO)})"
    shaped = f"self.endpoint.matches({quoted(ENDPOINT)})"
    hint = computed(_bare("self.endpoint", "https://", "; bucket and prefix belong into checkpoint.uri"))
    return (
        CelRule(
            at="spec.checkpoint",
            field=".endpoint",
            holds=f"{ours} || {shaped}",
            says=f'wanted https://, a host, perhaps a port, and nothing else; found "<<self.endpoint>>"{hint}',
        ),
        CelRule(
            at="spec.checkpoint",
            field=".endpoint",
            holds=f"{ours} || !({shaped}) || self.insecure || self.endpoint.matches({quoted(ENCRYPTED_OR_HERE)})",
            says='wanted https:// to another machine, unless checkpoint.insecure is true; found "<<self.endpoint>>"; '
            "write https://<<self.endpoint.substring(7)>>, or insecure: true for a test storage",
        ),
    )


def s3_only(names: tuple[str, ...]) -> tuple[CelRule, ...]:
    """Settings of S3 come with an s3:// uri."""
    return tuple(
        CelRule(
            at="spec.checkpoint",
            field=f".{name}",
            holds=f"!has(self.{name}) || (has(self.uri) && self.uri.startsWith('s3://'))",
            says=f"wanted {name} only with an s3:// uri; "
            + computed(
                "has(self.uri) ? " + template(f'found uri "<<self.uri>>"; remove {name}, or give an s3:// uri') + " : "
                "'found no uri; write checkpoint.uri: s3://bucket/prefix'"
            ),
        )
        for name in names
    )


def otlp_endpoint() -> tuple[CelRule, ...]:
    """Where signals go."""
    hint = computed(_bare("self.otlpEndpoint", "http://", ""))
    return (
        CelRule(
            at="spec.telemetry",
            field=".otlpEndpoint",
            holds=f"!has(self.otlpEndpoint) || self.otlpEndpoint.matches({quoted(USER_INFO)}) || self.otlpEndpoint.matches({quoted(ENDPOINT)})",
            says=f'wanted http:// or https://, a host, perhaps a port, and nothing else; found "<<self.otlpEndpoint>>"{hint}',
        ),
    )


def credential_source(names: tuple[str, ...]) -> tuple[CelRule, ...]:
    """Exactly one source of credentials."""
    return (
        only_one("spec.checkpoint.credentials", names, otherwise="or leave credentials out", wanted=f"exactly one of {', '.join(names)}"),
    )


def interval() -> tuple[CelRule, ...]:
    """Exactly one way to say how often."""
    return (only_one("spec.checkpoint.interval", ("steps", "seconds"), otherwise="such as steps: 100"),)


def reachable_storage() -> tuple[CelRule, ...]:
    """Nodes of a cluster share no folder by themselves."""
    return (
        CelRule(
            at="spec",
            field=".checkpoint.uri",
            holds="self.engine == 'Local' || has(self.checkpoint.uri)",
            says="wanted a storage that all nodes reach, because the engine is <<self.engine>>; found nothing; such as s3://bucket/prefix",
        ),
    )
