"""Writes `helm/samite/README.md` from the comments of `values.yaml`, so that the two cannot disagree. Called by `make helm-docs`; a test compares.

A comment that begins with `# --` belongs to the key below it and may run over several lines. Every key needs one, except those that only hold
keys with comments of their own.
"""  # noqa: INP001 - a script beside the chart, no package

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "samite"
MARK = "# --"

INTRODUCTION = """# Samite's chart

{description}

Made from `values.yaml` by `make helm-docs`; change that file, not this one. How to install, upgrade and remove: `docs/install.md`.

    helm install samite helm/samite --namespace samite-system --create-namespace
    helm test samite --namespace samite-system

Wanted: Kubernetes {kube_version}, KubeRay 1.5 to 1.7. Values that are not in this table are refused, and so are secrets written into values.

| value | default | meaning |
| --- | --- | --- |
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One documented value."""

    path: str
    default: Any
    meaning: str


def documented_values(text: str) -> tuple[list[Value], list[str]]:
    """The documented values of `text` in its order, and the paths that lack a comment."""
    lines = text.splitlines()
    values: list[Value] = []
    missing: list[str] = []

    def walk(node: yaml.MappingNode, path: str) -> None:
        for key, value in node.value:
            here = f"{path}.{key.value}" if path else key.value
            meaning = _comment_above(lines, key.start_mark.line)
            if meaning:
                values.append(Value(path=here, default=yaml.safe_load(yaml.serialize(value)), meaning=meaning))
            elif isinstance(value, yaml.MappingNode) and value.value:
                walk(value, here)
            else:
                missing.append(here)

    walk(yaml.compose(text), "")
    return values, missing


def render(chart: Path = CHART) -> str:
    """The README's text. Raises ValueError for values without a comment."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    values, missing = documented_values((chart / "values.yaml").read_text(encoding="utf-8"))
    if missing:
        raise ValueError(f"values.yaml: no comment beginning with '{MARK}' above {', '.join(missing)}")
    head = INTRODUCTION.format(
        description=about["description"], kube_version=about["kubeVersion"].removesuffix("-0").replace(">=", "") + " or newer"
    )
    return head + "".join(f"| `{value.path}` | `{_short(value.default)}` | {value.meaning} |\n" for value in values)


def _comment_above(lines: list[str], line: int) -> str:
    block: list[str] = []
    for text in reversed(lines[:line]):
        stripped = text.strip()
        if not stripped.startswith("#"):
            return ""
        block.insert(0, stripped.removeprefix(MARK).removeprefix("#").strip())
        if stripped.startswith(MARK):
            return " ".join(block).replace("|", "\\|")
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"see values.yaml ({len(value)})"


if __name__ == "__main__":
    (CHART / "README.md").write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{CHART / 'README.md'}\n")
