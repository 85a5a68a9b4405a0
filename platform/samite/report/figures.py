"""Numbers as people read them in the report."""

import math
import time

UNKNOWN = "-"
"""Stands for what nobody recorded."""

_SUFFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def compact(value: float) -> str:
    """Three significant digits with a suffix: 1.53 M, 12.8 k, 640."""
    if not math.isfinite(value):
        return "not finite"
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{significant(value / size)} {suffix}"
    return significant(value)


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


def size(num_bytes: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024 or unit == "TiB":
            return f"{significant(num_bytes)} {unit}"
        num_bytes /= 1024
    raise AssertionError


def grouped(value: int) -> str:
    """1 234 567 with thin spaces."""
    return f"{value:,}".replace(",", "\u2009")


def percent(share: float | None) -> str:
    """A share in [0, 1] as 97.1 %."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def share(value: float) -> str:
    """A share in [0, 1] on an axis: 20 %, 2.5 %."""
    return f"{significant(100 * value)} %"


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
