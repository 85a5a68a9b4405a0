"""What the chart's tests share: rendering by the real helm, and the objects that come out."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "samite"
CI_FILES = sorted((CHART / "ci").glob("*.yaml"))
NAMESPACE = "samite-system"
MONITORING = "monitoring.coreos.com/v1"

Document = dict[str, Any]


class Helm:
    """The helm program; every call ends within `limit_s` seconds."""

    def __init__(self, path: Path, *, limit_s: float = 60.0) -> None:
        self.path, self.limit_s = path, limit_s
        self._rendered: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.path), *arguments], capture_output=True, text=True, timeout=self.limit_s, check=False)

    def template(
        self, values: Path | None = None, *, sets: Sequence[str] = (), apis: Sequence[str] = (), kube_version: str = "", again: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """`helm template` of the chart, once for the same arguments unless `again`; the caller looks at the exit code."""
        arguments = ["template", "samite", str(CHART), "--namespace", NAMESPACE]
        arguments += ["--values", str(values)] if values else []
        arguments += [part for item in sets for part in ("--set-json", item)]
        arguments += [part for item in apis for part in ("--api-versions", item)]
        arguments += ["--kube-version", kube_version] if kube_version else []
        if again or tuple(arguments) not in self._rendered:
            self._rendered[tuple(arguments)] = self.run(*arguments)
        return self._rendered[tuple(arguments)]

    def objects(self, values: Path | None = None, **options: Any) -> list[Document]:
        """The rendered objects."""
        rendered = self.template(values, **options)
        assert rendered.returncode == 0, rendered.stderr
        return [document for document in yaml.load_all(rendered.stdout, Loader=yaml.CSafeLoader) if document is not None]


def ci_file(name: str) -> Path:
    """One of the chart's sample values."""
    return CHART / "ci" / f"{name}-values.yaml"


def pod_specs(objects: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    """Name and spec of every pod that the objects make."""
    for document in objects:
        spec = document.get("spec") or {}
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            yield name, spec
        elif "template" in spec and document["kind"] in {"Deployment", "DaemonSet", "StatefulSet", "Job"}:
            yield name, spec["template"]["spec"]


def of_kind(objects: Sequence[Document], kind: str) -> list[Document]:
    """The objects of one kind."""
    return [document for document in objects if document["kind"] == kind]


def rules_text(objects: Sequence[Document], subject: str) -> str:
    """Rights of the service account `subject` in reading order: one line for each rule of each role that is bound to it."""
    roles = {
        (role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]): role for role in objects if "Role" in role["kind"]
    }
    lines = []
    for binding in objects:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"} or subject not in {item["name"] for item in binding["subjects"]}:
            continue
        namespace = binding["metadata"].get("namespace", "")
        reference = binding["roleRef"]
        role = roles[reference["kind"], namespace if reference["kind"] == "Role" else "", reference["name"]]
        place = namespace or "every namespace, and what has none"
        lines += [f"{place}: {_rule(rule)}" for rule in role["rules"]]
    return "".join(f"{line}\n" for line in sorted(lines))


def _rule(rule: Mapping[str, Any]) -> str:
    groups = ",".join(group or "core" for group in rule["apiGroups"])
    names = f" named {','.join(rule['resourceNames'])}" if rule.get("resourceNames") else ""
    return f"{groups} {','.join(rule['resources'])}{names}: {' '.join(rule['verbs'])}"


def readme_module() -> Any:
    """The script that makes the chart's README."""
    sys.path.insert(0, str(ROOT / "helm"))
    try:
        import readme
    finally:
        sys.path.remove(str(ROOT / "helm"))
    return readme
