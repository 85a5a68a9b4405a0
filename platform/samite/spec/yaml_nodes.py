"""YAML events to nodes: scalars resolved, aliases followed, tags and directives refused. Used by samite.spec.yaml_tree alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from samite.errors import Problem
from samite.spec.scalars import ScalarError, resolve_plain

MAX_DEPTH = 48
"""Levels of nesting; a TrainingRun has nine."""


@dataclass(slots=True)
class Node:
    """A value of the document. `kind` is scalar, sequence or mapping."""

    kind: str
    line: int
    value: Any = None
    """scalar: resolved value; sequence: nodes; mapping: (key node, value node) pairs."""
    spelled: str = ""
    error: ScalarError | None = None
    is_merge: bool = False
    open: bool = True


class NodeBuilder:
    """Events to nodes, with aliases resolved, without recursion that input could make deep."""

    def __init__(self, events: Iterator[Any]) -> None:
        self.events = events
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node] = {}

    def build(self) -> Node | None:
        """The root node of the only document; None if there is none or it cannot be used."""
        import yaml

        root: Node | None = None
        stack: list[Node] = []
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
        self.problems.append(Problem(path="", wanted=wanted, found=found, hint=hint, line=line))

    def _node(self, event: Any, line: int) -> Node | None:
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
            node = Node(kind=kind, line=line, value=[])
            if event.tag not in {None, "!", "tag:yaml.org,2002:map" if kind == "mapping" else "tag:yaml.org,2002:seq"}:
                node.error = ScalarError(f"the tag {event.tag}", "remove the tag")
        if event.anchor:
            self.anchors[event.anchor] = node
        return node


def _scalar(event: Any, line: int) -> Node:
    node = Node(kind="scalar", line=line, open=False)
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
