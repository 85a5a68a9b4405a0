"""`--set path=value`: one field of a document, written from the command line.

Values are read by the same rules as the file (samite.spec.scalars), so `--set optimizer.learningRate=1e-5` and the file mean the same.
"""

import re
from collections.abc import Sequence
from typing import Any

from samite.errors import Problem
from samite.spec.yaml_tree import Path, Tree, dotted, parse_yaml

_ROOT_KEYS = {"apiVersion", "kind", "metadata", "spec"}
_PART = re.compile(r"(?P<key>[^.\[\]=]+)|\[(?P<index>[^\[\]]+)\]")
_WANTED = "path=value, such as optimizer.learningRate=1e-5 or stages[0].budget.steps=20"


def apply_assignments(tree: Tree, sets: Sequence[str]) -> list[Problem]:
    """Write each assignment into `tree.value`, in order. Returns what could not be written; the other assignments are still made."""
    problems = []
    for text in sets:
        problem = _apply(tree, text)
        if problem is not None:
            problems.append(problem)
    return problems


def _apply(tree: Tree, text: str) -> Problem | None:
    name, equals, value_text = text.partition("=")
    path = parse_path(name.strip())
    if not equals or path is None:
        # The value may be a secret: only the name is shown.
        return Problem(path=f"--set {name}", wanted=_WANTED, found=f'"{name}"' + (" before the =" if equals else " without ="))
    value_tree = parse_yaml(value_text, whole=False)
    if value_tree.problems:
        first = value_tree.problems[0]
        return Problem(
            path=f"--set {name}",
            wanted=first.wanted,
            found=first.found,
            hint=first.hint or "quote the value for the shell and for YAML: '\"...\"'",
        )
    if value_tree.value is None and value_text.strip().startswith("#"):
        return Problem(path=f"--set {name}", wanted="a value", found="a comment", hint=f"put it in quotes: --set '{name}=\"{value_text}\"'")
    if not isinstance(tree.value, dict):
        return None
    return _write(tree, path, value_tree, name)


def parse_path(text: str) -> Path | None:
    """Keys and indices of `stages[0].budget`; paths that don't start at the root start at `spec`. None if it is not a path."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        if parts and text[position] == ".":
            position += 1
        match = _PART.match(text, position)
        if match is None or (not parts and match["key"] is None):
            return None
        index = match["index"]
        parts.append(match["key"] if index is None else int(index) if index.isdecimal() and len(index) < 6 else index)
        position = match.end()
    if not parts or text.endswith("."):
        return None
    return tuple(parts) if parts[0] in _ROOT_KEYS else ("spec", *parts)


def _write(tree: Tree, path: Path, value: Tree, name: str) -> Problem | None:
    parent: Any = tree.value
    seen: list[str | int] = []
    for depth, part in enumerate(path):
        is_last = depth == len(path) - 1
        key: str | int = part
        if isinstance(parent, list):
            found = _position(parent, part)
            if found is None:
                names = [item["name"] for item in parent if isinstance(item, dict) and isinstance(item.get("name"), str)]
                have = f"{len(parent)} items" + (f": {', '.join(names)}" if names else "")
                return Problem(path=f"--set {name}", wanted=f"an item of {dotted(tuple(seen))}", found=f"[{part}]; it has {have}")
            key = found
        elif not isinstance(parent, dict) or isinstance(part, int):
            return Problem(
                path=f"--set {name}",
                wanted=f"{dotted((*seen, part))} inside a {'list' if isinstance(part, int) else 'mapping'}",
                found=_kind(parent),
            )
        seen.append(key)
        if is_last:
            _forget(tree, tuple(seen))
            parent[key] = value.value
            tree.spelled.update({(*seen, *rest): spelled for rest, spelled in value.spelled.items()})
            return None
        if isinstance(parent, dict):
            if parent.get(key) is None:
                parent[key] = [] if isinstance(path[depth + 1], int) else {}
            parent = parent[key]
        else:
            parent = parent[int(key)]
    return None


def _position(items: list[Any], part: str | int) -> int | None:
    """Index of an item given by number or by its `name`; one past the end appends a mapping."""
    if isinstance(part, int):
        if part == len(items):
            items.append({})
        return part if part < len(items) else None
    return next((i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == part), None)


def _forget(tree: Tree, path: Path) -> None:
    """The file's lines no longer tell where `path` comes from."""
    for table in (tree.lines, tree.spelled):
        for known in [known for known in table if known[: len(path)] == path]:
            del table[known]
    tree.replaced.add(path)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else f"{value!r}"
