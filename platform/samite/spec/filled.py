"""A document with its defaults filled in and its bad parts blanked: what rules over several fields look at.

The API server fills defaults in the same way before it evaluates CEL. A blank (None) says that a field was given but is wrong, so a rule can
speak about the rest of a document, and about which fields are there at all, and one validation finds everything.
"""

import copy
from collections.abc import Set
from typing import Any

from pydantic import BaseModel

from samite.spec.documentation import FieldDoc, field_docs
from samite.spec.run import TrainingRun
from samite.spec.yaml_tree import Path


def filled_document(document: dict[str, Any], bad: Set[Path] = frozenset()) -> dict[str, Any]:
    """`document` in camelCase with every default; the fields at `bad` are None. A field without a value and without a default is absent."""
    return _filled(TrainingRun, document, (), bad)


def _filled(model: type[BaseModel], given: dict[str, Any], path: Path, bad: Set[Path]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, doc in field_docs(model).items():
        here = (*path, name)
        if here in bad and (name in given or not doc.required):
            result[name] = None
        elif name in given:
            result[name] = _value(doc, given[name], here, bad)
        elif doc.default is not None:
            result[name] = copy.deepcopy(doc.default)
    return result


def _value(doc: FieldDoc, value: Any, path: Path, bad: Set[Path]) -> Any:
    if doc.is_list and isinstance(value, list):
        # A bad item stays as an empty mapping or None, so that the indices of the others still hold.
        return [_item(doc, item, (*path, index), bad) for index, item in enumerate(value)]
    if doc.model is not None and isinstance(value, dict):
        return _filled(doc.model, value, path, bad)
    return value


def _item(doc: FieldDoc, item: Any, path: Path, bad: Set[Path]) -> Any:
    if doc.model is None:
        return None if path in bad else item
    return _filled(doc.model, item, path, bad) if isinstance(item, dict) and path not in bad else {}
