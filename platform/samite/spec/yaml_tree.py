"""YAML text to a JSON-able tree that remembers lines.

    text ─ libyaml events ─ yaml_nodes.py (nodes) ─ scalars.py (what a scalar means) ─> Tree (values, lines, problems)

Duplicate keys, keys that are not text, several documents, directives, other tags, recursive aliases, and merge keys (<<) below other keys
(kubectl lets those win over the keys above them) are refused.
"""

from dataclasses import dataclass, field
from typing import Any

from samite.errors import Problem
from samite.spec.yaml_nodes import Node, NodeBuilder

MAX_NODES = 50_000
"""Values after aliases are followed: a document of 256 KiB has fewer, one that multiplies by aliases has more."""

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Tree:
    """A parsed document. `value` is JSON-able; `lines` maps the path of each key and item to its 1-based line."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    spelled: dict[Path, str] = field(default_factory=dict)
    """How numbers, truth values and nulls stand in the file, for messages: 1e3, on."""
    replaced: set[Path] = field(default_factory=set)
    """Paths that `--set` has written; they have no line."""
    unusable: set[Path] = field(default_factory=set)
    """Paths whose value has a problem of its own already; it is missing in `value`."""
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: Path) -> int | None:
        """Line of `path`, or of its nearest ancestor that is in the file; None below a path that `--set` has written."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.replaced:
                return None
            if (line := self.lines.get(path[:end])) is not None:
                return line
        return None


def dotted(path: Path) -> str:
    """`spec.stages[1].contextLength` for a path of keys and indices."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse_yaml(text: str, *, whole: bool = True) -> Tree:
    """Parse one YAML document, or with `whole` false the value of an assignment.

    Never raises for bad input: `problems` says what is wrong with it, as many as can be told at once.
    """
    import yaml

    tree = Tree()
    if whole and text.lstrip()[:1] == "{" and (problem := _json_problem(text)) is not None:
        tree.problems.append(problem)
        return tree
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        builder = NodeBuilder(iter(yaml.parse(text, Loader=loader)))
        root = builder.build()
    except yaml.MarkedYAMLError as error:
        tree.problems.append(_syntax_problem(error, text))
        return tree
    except (yaml.YAMLError, ValueError) as error:
        tree.problems.append(
            Problem(path="", wanted="printable text", found=_first_line(str(error)), line=_line_of_reader_error(error, text))
        )
        return tree
    tree.problems += builder.problems
    if root is not None:
        tree.value = _Constructor(tree).construct(root, ())
    return tree


def _json_problem(text: str) -> Problem | None:
    """kubectl reads a document that begins with { as JSON."""
    import json

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return Problem(
            path="",
            wanted="JSON, because the document begins with {",
            found=error.msg,
            hint="or begin with a key: apiVersion:",
            line=error.lineno,
        )
    except (ValueError, RecursionError):
        return Problem(path="", wanted="JSON, because the document begins with {", found="something too large or too deep", line=1)
    return None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "nothing"


def _line_of_reader_error(error: Exception, text: str) -> int | None:
    position = getattr(error, "position", None)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else None


def _syntax_problem(error: Any, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    lines = text.splitlines()
    # The reader reports a tab at the token after it, at times on the next line: look at both.
    near = [
        n
        for n in (line, (line or 0) - 1)
        if n and 0 < n <= len(lines) and "\t" in lines[n - 1][: len(lines[n - 1]) - len(lines[n - 1].lstrip())]
    ]
    if near:
        return Problem(path="", wanted="spaces for indentation", found="a tab", hint="replace each tab by two spaces", line=near[0])
    found = " ".join(str(part) for part in (error.context, error.problem) if part) or "something else"
    hint = (
        'text that holds ": " or begins with one of []{}*&!|>%@` must stand in quotes'
        if "mapping values" in found or "found character" in found
        else ""
    )
    return Problem(path="", wanted="YAML", found=found, hint=hint, line=line)


class _Constructor:
    """Nodes to JSON-able values, with a line for each path, and a problem for each thing that cannot be used."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.num_nodes = 0

    def construct(self, node: Node, path: Path) -> Any:
        """The value of `node`; parts that cannot be used are left out, each with a problem."""
        self.num_nodes += 1
        if self.num_nodes == MAX_NODES:
            self._problem(path, node.line, f"at most {MAX_NODES} values", "more, after aliases are followed", "")
        if self.num_nodes >= MAX_NODES:
            return None
        self.tree.lines.setdefault(path, node.line)
        if node.error is not None:
            self._problem(path, node.line, "a value that every YAML reader understands alike", node.error.found, node.error.hint)
            return None
        if node.kind == "scalar":
            self.tree.spelled.pop(path, None)
            if not isinstance(node.value, str):
                self.tree.spelled[path] = node.spelled
            return node.value
        if node.kind == "sequence":
            self.tree.lines.update({(*path, index): item.line for index, item in enumerate(node.value)})
            return [self.construct(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: Node, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own_lines: dict[str, int] = {}
        for key, value in node.value:
            if key.is_merge:
                self._merge(value, path, key.line, result, own_lines)
                continue
            if key.kind != "scalar" or not isinstance(key.value, str) or key.error is not None:
                found = key.error.found if key.error else key.kind if key.kind != "scalar" else f"{_json(key.value)}, which is not text"
                self._problem(path, key.line, "a key that is text", found, "write the key in quotes" if key.kind == "scalar" else "")
                continue
            name = key.value
            if name in own_lines:
                hint = "keep one of the two"
                self._problem((*path, name), key.line, "each key once", f"{name} again; it stands in line {own_lines[name]} already", hint)
                continue
            own_lines[name] = key.line
            self.tree.lines[(*path, name)] = key.line
            result[name] = self.construct(value, (*path, name))
        return result

    def _merge(self, value: Node, path: Path, line: int, result: dict[str, Any], own_lines: dict[str, int]) -> None:
        sources = value.value if value.kind == "sequence" else [value]
        if any(source.kind != "mapping" for source in sources):
            self._problem(path, line, "<<: to name a mapping, or a list of mappings", value.kind, "")
            return
        if own_lines:
            # Some readers let a merge key win over the keys above it, others do not.
            self._problem(
                path, line, "<<: before the other keys of its mapping", "keys above it", "move the line with << to the top of this mapping"
            )
            return
        for source in reversed(sources):
            result.update(self._mapping(source, path))

    def _problem(self, path: Path, line: int, wanted: str, found: str, hint: str) -> None:
        self.tree.unusable.add(path)
        self.tree.problems.append(Problem(path=dotted(path), wanted=wanted, found=found, hint=hint, line=line))


def _json(value: Any) -> str:
    import json

    return json.dumps(value)
