"""What an API server left out of what was written: fields that its definition does not know are dropped without a word (scenario S21). Pure.

Definitions older than the operator, or than the chart that wrote a runtime, do that. Whoever writes compares the answer, and says which fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samite.engines.kuberay.api import Document


def dropped_fields(wanted: Any, stored: Any, path: str = "") -> tuple[str, ...]:
    """Paths of `wanted` that `stored` lacks, such as `spec.headGroupSpec.labels`. Empty objects and None count as absent; values are not compared."""
    return tuple(_dropped(wanted, stored, path))


def without_fields(document: Mapping[str, Any], paths: Sequence[str]) -> Document:
    """`document` without the fields at `paths` (those of objects inside objects; items of lists are left alone)."""
    found: Document = {}
    for key, value in document.items():
        if key in paths:
            continue
        inner = [path.removeprefix(f"{key}.") for path in paths if path.startswith(f"{key}.")]
        found[key] = without_fields(value, inner) if inner and isinstance(value, Mapping) else value
    return found


def _dropped(wanted: Any, stored: Any, path: str) -> Iterator[str]:
    if isinstance(wanted, Mapping) and isinstance(stored, Mapping):
        for key, value in wanted.items():
            place = f"{path}.{key}" if path else str(key)
            if key not in stored:
                if value not in (None, {}, []):
                    yield place
            else:
                yield from _dropped(value, stored[key], place)
    elif isinstance(wanted, list | tuple) and isinstance(stored, list | tuple) and len(wanted) == len(stored):
        for index, (value, kept) in enumerate(zip(wanted, stored, strict=True)):
            yield from _dropped(value, kept, f"{path}[{index}]")
