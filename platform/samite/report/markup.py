"""HTML that cannot be injected into: every text is escaped unless it was made here.

    tag("p", "a < b", class_="note")   ->   <p class="note">a &lt; b</p>

Control characters, bidirectional overrides and lone surrogates become visible, so that no log line can hide or reorder text.
"""

import html
import json
import re
from typing import Any

_VOID = frozenset({"meta", "input", "br", "line", "path", "rect", "circle"})
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """`value` as text in HTML; Markup passes as it is."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(visible(str(value)), quote=True))


def visible(text: str) -> str:
    """`text` with characters that a reader could not see written as escapes."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def join(*parts: object) -> Markup:
    """Parts behind each other; None is left out."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: Any) -> Markup:
    """One element. `class_` and `for_` lose their underscore, others turn it into a dash; None and False leave an attribute out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if name in _VOID and not children:
        return Markup(f"<{name}{written}>" if name in {"meta", "input", "br"} else f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def script_data(data: object, element_id: str) -> Markup:
    """`data` as a JSON block that a script can read and no parser can be led out of."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{escape(element_id)}">{text}</script>')


def _attribute(key: str, value: Any) -> str:
    name = key.rstrip("_").replace("_", "-")
    name = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}.get(name, name)
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
