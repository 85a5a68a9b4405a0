"""What an unquoted YAML scalar means. The one place where this is decided.

Kubernetes' clients read YAML by their own rules before the API server sees JSON. A document must mean the same here and there, so plain
scalars are resolved exactly as kubectl's reader does (go-yaml 2 in sigs.k8s.io/yaml), and the few forms whose meaning differs between
common readers are refused with the two ways to write them. What is accepted here has the same value under kubectl:

    1e-5 3e-4 .5 1e3    numbers (YAML 1.1 readers take some for text)     1_000       1000
    on yes off no       true and false, so not a name unless in quotes    12:30       text (some readers: 750)
    0x1f 0o17 0b11      31, 15, 3                                         2026-11-30  text
    010, y, n, .inf     refused: they differ between readers (kubectl: 8, true, false), or cannot be written as JSON
"""

import re

_TRUE = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}
_FALSE = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}
_NULL = {"", "~", "null", "Null", "NULL"}
_READERS_DIFFER = {"y", "Y", "n", "N"}
_NOT_JSON = {sign + dot for sign in ("", "+", "-") for dot in (".inf", ".Inf", ".INF")} | {".nan", ".NaN", ".NAN"}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_BASED = re.compile(r"([-+]?)0([xXoObB])([0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"x": 16, "o": 8, "b": 2}


class ScalarError(ValueError):
    """A plain scalar that common YAML readers understand differently. `hint` says how to write it."""

    def __init__(self, found: str, hint: str) -> None:
        self.found = found
        self.hint = hint
        super().__init__(found)


def resolve_plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar, as kubectl's reader sees it. Raises ScalarError where readers differ."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in _READERS_DIFFER:
        raise ScalarError(f"{text}, which some readers take for a truth value", f'write "{text}" in quotes, or true or false')
    if text in _NOT_JSON:
        raise ScalarError(f"{text}, which JSON cannot hold", "write a finite number")
    if text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if _LEADING_ZERO.fullmatch(digits):
        plain = digits.lstrip("+-").lstrip("0") or "0"
        plain = "0" + plain if plain[0] in ".eE" else plain
        raise ScalarError(
            f"{text}, a number with a leading zero, which some readers take for octal", f'write {plain}, or "{text}" in quotes for text'
        )
    if _DECIMAL.fullmatch(digits):
        value = _whole(int(digits)) if len(digits) <= 20 else _number(digits)
        return text if value is None else value
    if based := _BASED.fullmatch(digits):
        sign, base, tail = based.groups()
        try:
            return _whole(int(sign + tail, _BASES[base.lower()]))
        except ValueError:
            return text
    if _FLOAT.fullmatch(digits):
        number = _number(digits)
        return text if number is None else number
    return text


def _whole(value: int) -> int | float | None:
    """Integers beyond 64 bits travel as floating point in kubectl's reader."""
    return value if -(2**63) <= value < 2**64 else _number(str(value))


def _number(digits: str) -> int | float | None:
    """A float; a whole one as int, as JSON would show it; None when it is too large for a float."""
    value = float(digits)
    if value in {float("inf"), float("-inf")}:
        return None
    return int(value) if value.is_integer() and abs(value) < 1e21 else value
