"""Suggestions for numbers that were written with a unit, or in quotes: `8K` for a context length is 8192, `10m` for seconds is 600.

Specs hold plain numbers, because JSON, CEL and kubectl have no units; the field's name says the unit.
"""

import re

_QUANTITY = re.compile(r"\s*(?P<number>[0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*(?P<unit>[A-Za-z%]*)\s*(?:tokens?|steps?)?\s*")
_TIME = {"ms": 0.001, "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60}
_TIME |= {"h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400}
_POWERS = {"k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


def suggestion(text: str, *, field: str, base: str) -> str:
    """How to write `text` as a plain number in `field` (its YAML name) of type `base` (integer or number); empty if it is no quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return ""
    number = float(match["number"].replace(",", "").replace("_", ""))
    unit = match["unit"]
    if unit in {"", "tokens", "token", "steps", "step"}:
        return _written([number], base, "without quotes")
    if unit == "%":
        return _written([number / 100], base)
    if field.lower().endswith("seconds"):
        factor = _TIME.get(unit, _TIME.get(unit.lower()))
        return _written([number * factor], base, "seconds") if factor is not None else ""
    power = _POWERS.get(unit[0].lower()) if unit[1:].lower() in {"", "i", "ib", "b", "n"} else None
    if power is None:
        return ""
    binary, decimal = number * 1024**power, number * 1000**power
    if field == "contextLength" or unit[1:2].lower() == "i":
        return _written([binary], base)
    return _written([decimal, binary] if field == "tokens" and unit.lower() != "b" else [decimal], base)


def _written(values: list[float], base: str, note: str = "") -> str:
    if base == "integer" and any(not value.is_integer() for value in values):
        return ""
    numbers = [str(int(value)) if value.is_integer() else f"{value:g}" for value in values]
    return f"write {' or '.join(numbers)}" + (f" {note}" if note == "without quotes" else f" ({note})" if note else "")
