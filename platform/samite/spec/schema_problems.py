"""pydantic's verdict on single fields, said in the words of the spec: what was wanted, what was found, and a computed way out."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from samite.errors import Problem
from samite.spec import quantities
from samite.spec.documentation import FieldDoc, field_docs, walk
from samite.spec.run import MAX_NAME_LENGTH, TrainingRun
from samite.spec.yaml_tree import Path, Tree, dotted

SYNONYMS = {
    "lr": "learningRate",
    "batch_size": "batch",
    "batchSize": "batch",
    "seq_len": "contextLength",
    "seqLen": "contextLength",
    "sequenceLength": "contextLength",
    "max_steps": "steps",
    "gpus": "gpusPerWorker",
    "nodes": "workers",
    "replicas": "workers",
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
}
"""Words of other tools."""

RESERVED = {("spec", name): "the Kubernetes engines" for name in ("entrypoint", "args", "podTemplate")} | {
    ("spec", "stages", "roles"): "reinforcement learning",
    ("spec", "stages", "overrides"): "the Kubernetes engines",
}
"""Fields of the format that this version does not know yet, and what they belong to."""

LABEL_TEXT = "letters, digits, dashes, dots and underscores, beginning and ending with a letter or digit"
NAME_TEXT = f"at most 63 {LABEL_TEXT}, perhaps after a domain and /"
PATTERNS = {
    ("metadata", "name"): f"small letters, digits and dashes, beginning with a letter, at most {MAX_NAME_LENGTH} characters",
    ("metadata", "namespace"): "small letters, digits and dashes, at most 63 characters",
    ("spec", "stages", "name"): "small letters, digits and dashes, beginning with a letter, at most 40 characters",
    ("spec", "stages", "gate", "checks", "metric"): "small letters, digits, dots and underscores, beginning with a letter",
    ("spec", "image"): "the name of an image, such as registry.example/samite/worker:1",
    ("spec", "runtimeRef", "name"): "the name of an object: small letters, digits, dashes and dots",
    ("spec", "runtimeRef", "overrides", "cpu"): "an amount such as 8 or 500m, as text",
    ("spec", "runtimeRef", "overrides", "memory"): "an amount such as 64Gi, as text",
    ("spec", "queue", "name"): "the name of an object: small letters, digits, dashes and dots",
    ("spec", "queue", "priorityClassName"): "the name of an object: small letters, digits, dashes and dots",
    ("spec", "env", "name"): "letters, digits and underscores, not beginning with a digit",
}
"""What the regular expressions mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaVerdict:
    """What the models say about a document."""

    run: TrainingRun | None
    problems: tuple[Problem, ...] = ()
    bad: frozenset[Path] = frozenset()
    """Fields that were given, but wrong; misspelled ones included."""


def check_schema(tree: Tree) -> SchemaVerdict:
    """The run, or one problem for each field that is unknown, missing, or not what it must be."""
    try:
        return SchemaVerdict(run=TrainingRun.model_validate(tree.value, by_alias=True, by_name=False))
    except ValidationError as error:
        # A list with a bad item is not too short.
        found = [e for e in error.errors(include_url=False) if not (e["type"] == "too_short" and e["input"])]
    meant = {
        (*path[:-1], name)
        for path in (tuple(e["loc"]) for e in found if e["type"] == "extra_forbidden")
        if (name := _similar_key(str(path[-1]), _known_at(path)))
    }
    # A misspelled key is one mistake, not an unknown and a missing one.
    told = [e for e in found if not (e["type"] == "missing" and tuple(e["loc"]) in meant)]
    problems = tuple(_problem(tree, tuple(e["loc"]), str(e["type"]), e["input"], e.get("ctx", {})) for e in told)
    return SchemaVerdict(run=None, problems=problems, bad=frozenset({tuple(e["loc"]) for e in found} | meant))


def field_at(path: Path) -> FieldDoc | None:
    """The field that `path` leads to, or the list that holds it; None below a free mapping and for unknown keys."""
    model: type[BaseModel] | None = TrainingRun
    doc = None
    for part in path:
        if isinstance(part, str):
            doc = field_docs(model).get(part) if model is not None else None
            if doc is None:
                return None
            model = doc.model
    return doc


def found_text(tree: Tree, path: Path, value: Any) -> str:
    """`value` as a person would point at it: as it stands in the file, and what it was taken for."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "an empty list" if not value else "a list"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        shown = value if len(value) <= 60 else value[:57] + "..."
        return f'"{shown}"'
    spelled = tree.spelled.get(path, str(value).lower() if isinstance(value, bool) else str(value))
    meaning = "true" if value is True else "false" if value is False else str(value)
    return spelled if spelled == meaning else f"{spelled}, which means {meaning}"


def _problem(tree: Tree, path: Path, kind: str, value: Any, context: dict[str, Any]) -> Problem:
    if path[-1] == "[key]":
        # pydantic's place for the name of an entry of a mapping.
        return Problem(path=dotted(path[:-1]), wanted=f"a name of {NAME_TEXT}", found=f'"{value}"', line=tree.line_of(path[:-1]))
    doc = field_at(path)
    found = "nothing" if kind == "missing" else found_text(tree, path, value)
    hint = ""
    if kind == "extra_forbidden":
        wanted, found, hint = _unknown(path)
    elif doc is None:
        wanted, hint = ("text", _quote(tree, path, value)) if not isinstance(value, str) else (f"at most 63 {LABEL_TEXT}", "")
    elif doc.model is not None and (isinstance(path[-1], int) or not doc.is_list):
        wanted, hint = f"a mapping with {', '.join(field_docs(doc.model))}", _as_mapping(value, field_docs(doc.model))
    elif isinstance(path[-1], int):
        wanted, hint = with_article(doc.item_text), _nearest_bound(context)
    else:
        wanted, hint = with_article(doc.type_text), _way_out(tree, path, doc, value) or _nearest_bound(context)
    if kind == "missing" and doc is not None:
        hint = doc.documentation.partition(". ")[0].rstrip(".")
    elif isinstance(value, str):
        wanted = PATTERNS.get(tuple(part for part in path if isinstance(part, str)), wanted)
    elif kind in {"too_long", "too_short"}:
        found = f"{len(value)} items"
    if kind != "missing" and any(path[: len(written)] == written for written in tree.replaced):
        found = f"{found}, given by --set"
    return Problem(path=dotted(path), wanted=wanted, found=found, hint=hint, line=tree.line_of(path))


def with_article(type_text: str) -> str:
    """`an integer, 1 to 64`; closed sets and plain text stay as they are."""
    first = type_text.partition(",")[0].partition(" ")[0]
    return f"an {type_text}" if first == "integer" else f"a {type_text}" if first in {"number", "list", "mapping"} else type_text


def _way_out(tree: Tree, path: Path, doc: FieldDoc, value: Any) -> str:
    """The nearest valid value, if one can be computed."""
    if isinstance(value, str) and doc.base in {"integer", "number"}:
        return quantities.suggestion(value, field=doc.name, base=doc.base)
    if doc.base == "boolean" and isinstance(value, str):
        return "write true or false without quotes" if value.lower() in {"true", "false", "yes", "no", "on", "off"} else ""
    if doc.allowed and isinstance(value, str):
        return _did_you_mean(value, doc.allowed)
    if doc.base == "text" and not isinstance(value, str | dict | list):
        return _closed_set(tree.spelled.get(path, str(value)), doc.allowed) if doc.allowed else _quote(tree, path, value)
    if doc.base == "integer" and isinstance(value, float):
        return f"nearest: {int(value)} or {int(value) + 1}"
    if path[1:2] == ("env",) and isinstance(value, str):
        proposal = re.sub(r"[^A-Za-z0-9_]+", "_", value).lstrip("0123456789").strip("_")
        return f"such as {proposal}" if proposal and proposal != value else ""
    if doc.name == "name" and isinstance(value, str):
        proposal = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-").lstrip("0123456789-")[:MAX_NAME_LENGTH].rstrip("-")
        return f"such as {proposal}" if proposal else ""
    if doc.is_list and isinstance(value, dict):
        return "begin each item with a dash"
    if doc.is_list and isinstance(value, str):
        return f"write [{value}]"
    return ""


def _nearest_bound(context: dict[str, Any]) -> str:
    """The bound that was overstepped, if it is itself allowed."""
    bounds = [context[key] for key in ("ge", "le") if key in context]
    return f"nearest: {bounds[0]:g}" if bounds and abs(bounds[0]) < 1e6 else ""


def _as_mapping(value: Any, known: dict[str, FieldDoc]) -> str:
    """How to write a single value as the mapping it stands for, such as {preset: tiny}."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, str):
        names = [name for name, doc in known.items() if value in doc.allowed or (name == "uri" and "://" in value)]
    else:
        names = [name for name, doc in known.items() if doc.base in {"integer", "number"}][:3]
    return f"write {' or '.join(f'{{{name}: {value}}}' for name in names)}" if names else ""


def _closed_set(spelled: str, allowed: tuple[str, ...]) -> str:
    """For a word that YAML does not take for text, where one of a few words belongs."""
    if spelled in allowed:
        return f'write "{spelled}" in quotes'
    if len(allowed) == 1:
        return f"write {allowed[0]}"
    return "did you mean None?" if spelled.lower() in {"off", "no", "false"} and "None" in allowed else ""


def _quote(tree: Tree, path: Path, value: Any) -> str:
    if isinstance(value, dict | list) or value is None:
        return ""
    spelled = tree.spelled.get(path, str(value))
    return f'write "{spelled}" in quotes: YAML takes it for a {"truth value" if isinstance(value, bool) else "number"}'


def _known_at(path: Path) -> dict[str, FieldDoc]:
    """The fields beside `path`."""
    parent = field_at(path[:-1])
    return field_docs(parent.model if parent is not None and parent.model is not None else TrainingRun)


def _unknown(path: Path) -> tuple[str, str, str]:
    """(wanted, found, hint) for a key that is not in the format."""
    key, known, where = str(path[-1]), _known_at(path), dotted(path[:-1]) or "a TrainingRun"
    found = f"the unknown key {key}"
    schema_path = tuple(part for part in path if isinstance(part, str))
    if schema_path in RESERVED:
        return f"a field of {where}", f"{key}, which belongs to {RESERVED[schema_path]} and is not supported by this version", "remove it"
    if meant := _similar_key(key, known):
        return f"a field of {where}", found, f"did you mean {meant}?"
    return f"a field of {where}: {', '.join(known)}", found, _elsewhere(key, path)


def _similar_key(key: str, known: dict[str, FieldDoc]) -> str:
    """The known key that `key` was meant to be; empty if none is near."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in known}
    meant = SYNONYMS.get(key) if SYNONYMS.get(key) in known else plain.get(re.sub(r"[^a-z0-9]", "", key.lower()))
    if meant is None:
        close = get_close_matches(key.lower(), [name.lower() for name in known], n=1, cutoff=0.7)
        meant = next((name for name in known if close and name.lower() == close[0]), None)
    return meant or ""


def _elsewhere(key: str, path: Path) -> str:
    """Where a key that is known, but not here, belongs: the nearest such place."""
    meant = SYNONYMS.get(key, key)
    here = tuple(part for part in path[:-1] if isinstance(part, str))

    def distance(place: tuple[str, ...]) -> tuple[int, int]:
        shared = next((i for i, (a, b) in enumerate(zip(here, place, strict=False)) if a != b), min(len(here), len(place)))
        return -shared, len(place)

    places = sorted((place for place, _ in walk() if place[-1] == meant), key=distance)
    return f"{meant} belongs to {'.'.join(places[0][:-1]) or 'the top of the document'}" if places else ""


def _did_you_mean(value: str, allowed: tuple[str, ...]) -> str:
    close = get_close_matches(value.lower(), [item.lower() for item in allowed], n=1, cutoff=0.6)
    meant = next((item for item in allowed if close and item.lower() == close[0]), None)
    return f"did you mean {meant}?" if meant else ""
