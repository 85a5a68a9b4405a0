"""Numbers as people read them in the report."""

import math
import time

UNKNOWN = "-"
"""Stands for what nobody recorded."""

_SUFFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def compact(value: float, digits: int = 3) -> str:
    """Significant digits with a suffix: 1.53 M, 12.8 k, 640."""
    if not math.isfinite(value):
        return "not finite"
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{significant(value / size, digits)} {suffix}"
    return significant(value, digits)


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits, without an exponent where that is short, and without trailing zeros."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -4 or exponent >= 6:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(power)}"
    decimals = max(0, digits - 1 - exponent)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds(value: float | None) -> str:
    """12.3 s, 4 min 05 s, 2 h 10 min, 3 d 4 h."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0.1:
        return f"{value * 1000:.0f} ms" if value > 0 else "0 s"
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def brief(value: float | None) -> str:
    """A duration in few characters: 0.1 s, 96 s, 14 min, 3.2 h."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for limit, unit, name in ((10.0, 1.0, "s"), (120.0, 1.0, "s"), (5400.0, 60.0, "min"), (math.inf, 3600.0, "h")):
        if value < limit:
            return f"{value / unit:.{1 if limit == 10.0 or name == 'h' else 0}f} {name}"
    raise AssertionError


def span(value: float, digits: int = 3) -> str:
    """A duration on an axis or in a tooltip, in one unit: ms below 0.1 s, then s, min, h."""
    if 0 < abs(value) < 0.1:
        return f"{significant(1000 * value, digits)} ms"
    if abs(value) < 120:
        return f"{significant(value, digits)} s"
    return f"{significant(value / 60, digits)} min" if abs(value) < 7200 else f"{significant(value / 3600, digits)} h"


def size(num_bytes: float, digits: int = 3) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024 or unit == "TiB":
            return f"{significant(num_bytes, digits)} {unit}"
        num_bytes /= 1024
    raise AssertionError


def grouped(value: int) -> str:
    """1 234 567 with thin spaces."""
    return f"{value:,}".replace(",", "\u2009")


def percent(share: float | None) -> str:
    """A share in [0, 1] as 97.1 %."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def share(value: float, digits: int = 3) -> str:
    """A share in [0, 1] on an axis: 20 %, 2.5 %."""
    return f"{significant(100 * value, digits)} %"


def clock(time_unix_s: float) -> str:
    """UTC to the second."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_unix_s))
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def offset(value: float) -> str:
    """Time since the start: +0:07, +12:34, +2:03:04."""
    whole = max(0, round(value))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"+{hours}:{minutes:02d}:{rest:02d}" if hours else f"+{minutes}:{rest:02d}"
