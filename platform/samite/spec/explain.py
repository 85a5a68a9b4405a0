"""`explain(path)`: what a field of the spec is, as a value; and the text that people read, like kubectl explain."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from samite.errors import NotFoundError
from samite.spec.documentation import FieldDoc, field_docs, summary, walk
from samite.spec.model_fields import MODEL_FIELDS, NOT_OVERRIDABLE, repr_of
from samite.spec.run import API_VERSION, TrainingRun

WIDTH = 96
_OVERRIDES = ("spec", "model", "overrides")


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What is known about one field, or about the whole document for an empty path."""

    path: str
    type: str
    documentation: str
    required: bool
    default: Any
    allowed: tuple[str, ...]
    children: tuple["Explanation", ...]
    """Fields of a mapping or of the items of a list; with their own children if asked for."""

    def to_document(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "path": self.path,
            "type": self.type,
            "documentation": self.documentation,
            "required": self.required,
            "default": self.default,
            "allowed": list(self.allowed),
            "fields": [child.to_document() for child in self.children],
        }


def explain(path: str = "", *, recursive: bool = False) -> Explanation:
    """The field at a dotted path: `spec.stages.parallel`, `stages[0].parallel` or `parallel` if only one field has that name.

    Raises NotFoundError with the nearest names. Children have no children of their own unless `recursive`.
    """
    parts = _resolved(path)
    if not parts:
        children = _children(TrainingRun, (), recursive)
        return Explanation(
            path="", type="TrainingRun", documentation=summary(TrainingRun), required=True, default=None, allowed=(), children=children
        )
    if parts[:3] == _OVERRIDES and len(parts) == 4:
        return next(child for child in _override_children() if child.path == ".".join(parts))
    model: type[BaseModel] = TrainingRun
    doc: FieldDoc | None = None
    for part in parts:
        doc = field_docs(model)[part]
        model = doc.model or model
    assert doc is not None
    return _explained(doc, parts, depth=99 if recursive else 1)


def explanation_text(found: Explanation) -> str:
    """The page for one field."""
    lines = [f"KIND:     {TrainingRun.__name__}", f"VERSION:  {API_VERSION}"]
    if found.path:
        lines += ["", f"FIELD:    {found.path} <{found.type}>{_required(found)}"]
    lines += ["", "DESCRIPTION:", *_wrapped(found.documentation, "    ")]
    if not found.children and found.default not in (None, {}, [], ()):
        lines += ["", f"DEFAULT:  {_shown(found.default)}"]
    if found.allowed:
        lines += ["", f"ALLOWED:  {', '.join(found.allowed)}"]
    if found.children:
        lines += ["", "FIELDS:", *_field_lines(found.children, 1)]
    return "\n".join(lines)


def _resolved(path: str) -> tuple[str, ...]:
    """Keys from the root, without indices. `spec.` may be left out, and a name that exists once may stand alone."""
    parts = tuple(part.partition("[")[0] for part in path.strip().strip(".").split(".") if part)
    if parts and parts[0] == "TrainingRun":
        parts = parts[1:]
    if not parts:
        return ()
    known = {place for place, _ in walk()} | {(*_OVERRIDES, name) for name in MODEL_FIELDS}
    for candidate in (parts, ("spec", *parts)):
        if candidate in known:
            return candidate
    ending = sorted(place for place in known if place[-len(parts) :] == parts)
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise NotFoundError(f"{path} is the name of {len(ending)} fields: {', '.join('.'.join(place) for place in ending[:12])}")
    names = [".".join(place).removeprefix("spec.") for place in known]
    close = get_close_matches(path.removeprefix("spec."), names, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(close)}?" if close else "`samite explain` shows the top, `samite explain --recursive` everything."
    raise NotFoundError(f"a TrainingRun has no field {path}. {hint}")


def _explained(doc: FieldDoc, path: tuple[str, ...], depth: int) -> Explanation:
    children: tuple[Explanation, ...] = ()
    if path == _OVERRIDES:
        children = _override_children() if depth else ()
    elif doc.model is not None and depth:
        children = tuple(_explained(child, (*path, name), depth - 1) for name, child in field_docs(doc.model).items())
    text = doc.documentation
    if doc.model is not None and depth and summary(doc.model) not in text:
        text = f"{text} {summary(doc.model)}" if text else summary(doc.model)
    return Explanation(
        path=".".join(path),
        type=doc.type_text,
        documentation=text,
        required=doc.required,
        default=doc.default,
        allowed=doc.allowed,
        children=children,
    )


def _children(model: type[BaseModel], path: tuple[str, ...], recursive: bool) -> tuple[Explanation, ...]:
    return tuple(_explained(doc, (*path, name), 99 if recursive else 0) for name, doc in field_docs(model).items())


def _override_children() -> tuple[Explanation, ...]:
    types = {"int": "integer", "float": "number", "bool": "true or false", "text": "text"}
    return tuple(
        Explanation(
            path=".".join((*_OVERRIDES, field.name)),
            type=types[field.type],
            documentation=f"{field.doc} Presets: {', '.join(f'{preset} {repr_of(value)}' for preset, value in field.values.items())}.",
            required=False,
            default=None,
            allowed=(),
            children=(),
        )
        for field in MODEL_FIELDS.values()
        if field.name not in NOT_OVERRIDABLE
    )


def _field_lines(children: tuple[Explanation, ...], depth: int) -> Iterator[str]:
    indent = "  " * depth
    deep = any(grandchild.children for grandchild in children)
    for child in children:
        yield f"{indent}{child.path.rpartition('.')[2]} <{child.type}>{_required(child)}"
        if not deep and depth == 1:
            yield from _wrapped(child.documentation, f"{indent}    ")
        if child.children:
            yield from _field_lines(child.children, depth + 1)


def _required(found: Explanation) -> str:
    return " -required-" if found.required and found.path else ""


def _shown(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _wrapped(text: str, indent: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
