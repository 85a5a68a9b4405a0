"""YAML text to a tree that remembers lines. The one place where the meaning of a scalar is decided.

Kubernetes' clients read YAML by their own rules before the API server sees JSON. A document must mean the same here and there, so plain
scalars are resolved exactly as kubectl's reader does (go-yaml 2 in sigs.k8s.io/yaml), and the few forms whose meaning differs between
common readers are refused with the two ways to write them. What is accepted here has the same value under kubectl:

    1e-5 3e-4 .5 1e3    numbers (YAML 1.1 readers take some for text)     1_000       1000
    on yes off no       true and false, so not a name unless in quotes    12:30       text (some readers: 750)
    0x1f 0o17 0b11      31, 15, 3                                         2026-11-30  text
    010, y, n, .inf     refused: they differ between readers (kubectl: 8, true, false), or cannot be written as JSON

Duplicate keys, keys that are not text, several documents, directives, other tags, recursive aliases, and merge keys (<<) below other keys
(kubectl lets those win over the keys above them) are refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from samite.errors import Problem

MAX_DEPTH = 48
MAX_NODES = 50_000

_TRUE = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}
_FALSE = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}
_NULL = {"", "~", "null", "Null", "NULL"}
_READERS_DIFFER = {"y", "Y", "n", "N"}
_NOT_JSON = {sign + dot for sign in ("", "+", "-") for dot in (".inf", ".Inf", ".INF")} | {".nan", ".NaN", ".NAN"}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_BASED = re.compile(r"([-+]?)0([xXoObB])([0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"x": 16, "o": 8, "b": 2}

Path = tuple[str | int, ...]


class ScalarError(ValueError):
    """A plain scalar that common YAML readers understand differently. `hint` says how to write it."""

    def __init__(self, found: str, hint: str) -> None:
        self.found = found
        self.hint = hint
        super().__init__(found)


def resolve_plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar, as kubectl's reader sees it. Raises ScalarError where readers differ."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in _READERS_DIFFER:
        raise ScalarError(f"{text}, which some readers take for a truth value", f'write "{text}" in quotes, or true or false')
    if text in _NOT_JSON:
        raise ScalarError(f"{text}, which JSON cannot hold", "write a finite number")
    if text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if _LEADING_ZERO.fullmatch(digits):
        plain = digits.lstrip("+-").lstrip("0") or "0"
        plain = "0" + plain if plain[0] in ".eE" else plain
        raise ScalarError(
            f"{text}, a number with a leading zero, which some readers take for octal", f'write {plain}, or "{text}" in quotes for text'
        )
    if _DECIMAL.fullmatch(digits):
        return _whole(int(digits)) if len(digits) <= 20 else _number(digits)
    if based := _BASED.fullmatch(digits):
        sign, base, tail = based.groups()
        try:
            return _whole(int(sign + tail, _BASES[base.lower()]))
        except ValueError:
            return text
    if _FLOAT.fullmatch(digits):
        value = _number(digits)
        return text if value is None else value
    return text


def _whole(value: int) -> int | float:
    """Integers beyond 64 bits travel as floating point in kubectl's reader."""
    return value if -(2**63) <= value < 2**64 else float(value)


def _number(digits: str) -> int | float | None:
    """A float; a whole one as int, as JSON would show it; None when it is too large for a float."""
    value = float(digits)
    if value in {float("inf"), float("-inf")}:
        return None
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


@dataclass(slots=True)
class Tree:
    """A parsed document. `value` is JSON-able; `lines` maps the path of each key and item to its 1-based line."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    spelled: dict[Path, str] = field(default_factory=dict)
    """How numbers, truth values and nulls stand in the file, for messages: 1e3, on."""
    replaced: set[Path] = field(default_factory=set)
    """Paths that `--set` has written; they have no line."""
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


@dataclass(slots=True)
class _Node:
    kind: str
    line: int
    value: Any = None
    """scalar: resolved value; sequence: nodes; mapping: (key node, value node) pairs."""
    spelled: str = ""
    error: ScalarError | None = None
    is_merge: bool = False
    open: bool = True


def parse_yaml(text: str) -> Tree:
    """Parse one YAML document. Never raises for bad input: `problems` says what is wrong with it, as many as can be told at once."""
    import yaml

    tree = Tree()
    if text.lstrip()[:1] == "{" and (problem := _json_problem(text)) is not None:
        tree.problems.append(problem)
        return tree
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        nodes = _Builder(iter(yaml.parse(text, Loader=loader)), tree).build()
    except yaml.MarkedYAMLError as error:
        tree.problems.append(_syntax_problem(error, text))
        return tree
    except (yaml.YAMLError, ValueError) as error:
        tree.problems.append(
            Problem(path="", wanted="printable text", found=_first_line(str(error)), line=_line_of_reader_error(error, text))
        )
        return tree
    if nodes is not None:
        tree.value = _Constructor(tree).construct(nodes, ())
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


class _Builder:
    """Events to nodes, with aliases resolved, without recursion that input could make deep."""

    def __init__(self, events: Iterator[Any], tree: Tree) -> None:
        self.events = events
        self.tree = tree
        self.anchors: dict[str, _Node] = {}

    def build(self) -> _Node | None:
        """The root node of the only document; None if there is none or it cannot be used."""
        import yaml

        root: _Node | None = None
        stack: list[_Node] = []
        num_documents = 0
        for event in self.events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if event.version is not None or event.tags:
                    self._refuse(line, "a document without directives", "a line that begins with %", "remove it")
                    return None
                if num_documents > 1:
                    self._refuse(line, "one document in a file", "a second one, after ---", "put each run into its own file")
                    return None
            elif isinstance(event, yaml.NodeEvent):
                node = self._node(event, line)
                if node is None:
                    return None
                if stack:
                    stack[-1].value.append(node)
                else:
                    root = node
                if isinstance(event, yaml.CollectionStartEvent):
                    stack.append(node)
                    if len(stack) > MAX_DEPTH:
                        self._refuse(line, f"at most {MAX_DEPTH} levels", "deeper nesting", "")
                        return None
            elif isinstance(event, yaml.CollectionEndEvent):
                closed = stack.pop()
                closed.open = False
                if closed.kind == "mapping":
                    flat = closed.value
                    closed.value = list(zip(flat[::2], flat[1::2], strict=True))
        return root

    def _refuse(self, line: int, wanted: str, found: str, hint: str) -> None:
        self.tree.problems.append(Problem(path="", wanted=wanted, found=found, hint=hint, line=line))

    def _node(self, event: Any, line: int) -> _Node | None:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            target = self.anchors.get(event.anchor or "")
            if target is None or (target.open and target.kind != "scalar"):
                found = "no such anchor before it" if target is None else "an anchor that contains it"
                self._refuse(line, f"an anchor &{event.anchor} above the alias *{event.anchor}", found, "")
                return None
            return target
        if isinstance(event, yaml.ScalarEvent):
            node = _scalar(event, line)
        else:
            kind = "mapping" if isinstance(event, yaml.MappingStartEvent) else "sequence"
            node = _Node(kind=kind, line=line, value=[])
            if event.tag not in {None, "!", "tag:yaml.org,2002:map" if kind == "mapping" else "tag:yaml.org,2002:seq"}:
                node.error = ScalarError(f"the tag {event.tag}", "remove the tag")
        if event.anchor:
            self.anchors[event.anchor] = node
        return node


def _scalar(event: Any, line: int) -> _Node:
    node = _Node(kind="scalar", line=line, open=False)
    tag = event.tag
    if tag is None and event.style not in {None, ""}:
        node.value = event.value
        return node
    if tag in {"tag:yaml.org,2002:str", "!"}:
        node.value = event.value
        return node
    expected: dict[str, Any] = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}
    short = tag.removeprefix("tag:yaml.org,2002:") if tag else None
    if short is not None and short not in expected:
        node.error = ScalarError(f"the tag {tag}", "remove the tag")
        return node
    try:
        node.value = resolve_plain(event.value)
    except ScalarError as error:
        node.error = error
        return node
    node.spelled = event.value
    node.is_merge = tag is None and event.value == "<<"
    if short is not None and (not isinstance(node.value, expected[short]) or (short != "bool" and isinstance(node.value, bool))):
        node.error = ScalarError(f"{event.value} with the tag !!{short}", "remove the tag")
    return node


class _Constructor:
    """Nodes to JSON-able values, with a line for each path, and a problem for each thing that cannot be used."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.num_nodes = 0

    def construct(self, node: _Node, path: Path) -> Any:
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

    def _mapping(self, node: _Node, path: Path) -> dict[str, Any]:
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

    def _merge(self, value: _Node, path: Path, line: int, result: dict[str, Any], own_lines: dict[str, int]) -> None:
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
        self.tree.problems.append(Problem(path=dotted(path), wanted=wanted, found=found, hint=hint, line=line))


def _json(value: Any) -> str:
    import json

    return json.dumps(value)
