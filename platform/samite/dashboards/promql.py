"""Which metrics and labels a PromQL expression names: enough of the grammar to hold queries against the registry, without a Prometheus.

Takes valid expressions; whether they are valid says `promtool`. Grafana's variables (`$run`, `$__rate_interval`) may stand in strings and ranges.
"""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s+ | \#[^\n]*
    | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    | (?P<range>\[[^\]]*\])
    | (?P<number>\d[\w.]*(?:[eE][+-]?\d+)?)
    | (?P<word>[A-Za-z_:][A-Za-z0-9_:]*)
    | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},@])""",
    re.VERBOSE,
)
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan", "start", "end", "atan2"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Selector:
    """A metric with the labels that its braces name."""

    metric: str
    matchers: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """What an expression names."""

    selectors: tuple[Selector, ...] = ()
    grouping: frozenset[str] = field(default_factory=frozenset)
    """Labels in by, without, on, ignoring, group_left and group_right."""


def names_in(expr: str) -> Names:
    """The names in `expr`. ValueError for a character that PromQL does not know, or brackets that do not close."""
    tokens = _tokens(expr)
    selectors, grouping, at = [], set(), 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "word" or text.lower() in _WORDS:
            continue
        if text in _GROUPING:
            if following == "(":
                inside, at = _until(tokens, at + 1, ")")
                grouping |= {word for kind_, word in inside if kind_ == "word"}
        elif following == "{":
            inside, at = _until(tokens, at + 1, "}")
            selectors.append(Selector(metric=text, matchers=frozenset(word for kind_, word in inside if kind_ == "word")))
        elif following != "(" and not _is_aggregation(tokens, at):
            selectors.append(Selector(metric=text))
    return Names(selectors=tuple(selectors), grouping=frozenset(grouping))


def _is_aggregation(tokens: list[tuple[str, str]], at: int) -> bool:
    """`sum by (x) (...)`: an aggregation whose grouping stands before its argument."""
    return at < len(tokens) and tokens[at][1] in ("by", "without")


def _tokens(expr: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(expr):
        match = _TOKEN.match(expr, at)
        if match is None:
            raise ValueError(f"PromQL knows no {expr[at]!r} at {at} in: {expr}")
        at = match.end()
        if match.lastgroup:
            found.append((match.lastgroup, match.group()))
    return found


def _until(tokens: list[tuple[str, str]], start: int, closing: str) -> tuple[list[tuple[str, str]], int]:
    for at in range(start, len(tokens)):
        if tokens[at] == ("sign", closing):
            return tokens[start:at], at + 1
    raise ValueError(f"no {closing} after {' '.join(text for _, text in tokens[:start])}")
