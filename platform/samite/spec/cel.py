"""CEL text for the API server: where an expression stands, what must hold, and the message that it computes from the object.

The message is the one of `samite validate`: `wanted ...; found ...; what to do`. It is written as a text with <<expressions>>, and turned into a
`messageExpression`. CEL has no variables and no loops over numbers, so a few idioms are built here. Only what Kubernetes 1.31 knows is used.

Where the field at fault is an item of a list that the rule looks at as a whole, the message begins with the item's place, as in
`[1].name: wanted ...`: the API server can name the list alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PLACEHOLDER = re.compile(r"<<(.+?)>>")


@dataclass(frozen=True, kw_only=True, slots=True)
class CelRule:
    """One `x-kubernetes-validations` entry."""

    at: str
    """Where it stands in the schema: empty for the root, `spec`, `spec.stages[]`; `self` is the value there."""
    holds: str
    """Must be true."""
    says: str
    """The message if it is not, with <<expressions>> of any type but lists and mappings."""
    field: str = ""
    """Which field below `at` is at fault, such as `.workers.max`; empty: the value itself."""

    @property
    def message_expression(self) -> str:
        """`says` as a CEL expression."""
        return template(self.says)


def template(text: str) -> str:
    """A CEL expression of type string: `text` with every <<expression>> replaced by its value. One that stands alone must be a string itself.

    By `format`, because the API server counts `string(x) + y` as if x could be as long as an integer is large.
    """
    pieces = _PLACEHOLDER.split(text)
    if len(pieces) == 1:
        return quoted(text)
    if pieces[::2] == ["", ""]:
        return pieces[1]
    words = "%s".join(piece.replace("%", "%%") for piece in pieces[::2])
    return f"{quoted(words)}.format([{', '.join(pieces[1::2])}])"


def computed(expression: str) -> str:
    """A text that is one expression of type string."""
    return f"<<{expression}>>"


def quoted(text: str) -> str:
    """A CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def let(name: str, value: str, body: str) -> str:
    """`body` with `name` standing for `value`: a list of one item, mapped. CEL in Kubernetes 1.31 has no other way."""
    return f"[{value}].map({name}, {body})[0]"


def indices(bound: int) -> str:
    """The numbers below `bound`, to walk over a list by position: `indexOf` of a computed list costs more than a schema may."""
    return f"[{', '.join(map(str, range(bound)))}]"


def repeats(key: str, bound: int) -> str:
    """The first position in the list `self`, of at most `bound` items, whose `key` stood before."""
    inner = f"n.exists(j, j < i && self[j].{key} == self[i].{key})"
    return let("n", indices(bound), f"n.filter(i, i < self.size() && {inner})[0]")


def first_with(condition: str, bound: int, *, of: str = "self") -> str:
    """The first position i in the list `of` for which `condition` (about i) is true."""
    return f"{indices(bound)}.filter(i, i < {of}.size() && {condition})[0]"


def only_one(at: str, names: Sequence[str], *, otherwise: str, field: str = "", wanted: str = "") -> CelRule:
    """Exactly one of two or three fields `names` of the mapping at `at`. `otherwise` is the hint when none is there."""
    present = " + ".join(f"(has(self.{name}) ? [{quoted(name)}] : [])" for name in names)
    wanted = wanted or f"exactly one of {', '.join(names[:-1])} and {names[-1]}"
    nothing = quoted("none of them" + (f"; {otherwise}" if otherwise else ""))
    two = template("<<p[0]>> and <<p[1]>>; keep one: remove <<p[1]>>, or <<p[0]>>")
    three = template("<<p[0]>> and <<p[1]>> and <<p[2]>>; keep one: remove <<p[1]>> and <<p[2]>>, or <<p[0]>>")
    several = two if len(names) == 2 else f"p.size() == 2 ? {two} : {three}"
    found = let("p", present, f"p.size() == 0 ? {nothing} : {several}")
    holds = f"[{', '.join(f'has(self.{name})' for name in names)}].filter(x, x).size() == 1"
    return CelRule(at=at, holds=holds, says=f"wanted {wanted}; found {computed(found)}", field=field)


def nearest_multiples(value: str, multiple: str) -> str:
    """The text `nearest: A or B` with the multiples on both sides of `value`; a CEL expression of type string."""
    below = f"{value} / ({multiple}) * ({multiple})"
    both = template(f"nearest: <<{below}>> or <<{below} + ({multiple})>>")
    return f"{value} >= ({multiple}) ? {both} : {template(f'nearest: <<{multiple}>>')}"


def short(number: str) -> str:
    """A computed number with at most six digits behind the point, as people write it: 1.0 - 0.95 is 0.05."""
    return f"double(int(({number}) * 1000000.0 + 0.5)) / 1000000.0"
