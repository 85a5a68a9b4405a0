"""Definitions as YAML: pure for `samite crds show`, and as templates of the Helm chart."""

import json
from typing import Any

from samite.crds.definitions import Definition

CHART_FOLDER = "helm/samite/templates/crd"
"""Where the chart's copies stand, from the root of the repository."""

_KEEP = '  annotations:\n    {{- if .Values.crds.keep }}\n    helm.sh/resource-policy: keep\n    {{- end }}\n    samite.dev/generated-by: "samite crds show"\n'


def yaml_text(definition: Definition) -> str:
    """One definition as a YAML document."""
    import yaml

    return str(yaml.dump(definition, Dumper=_dumper(), sort_keys=False, width=160, allow_unicode=True))


def chart_template(definition: Definition) -> str:
    """One definition as a template: only with `crds.install`, and kept when the chart is uninstalled unless `crds.keep` is false."""
    body = yaml_text(definition)
    assert "{{" not in body, "the text of a definition must not look like a template"
    head, name, rest = body.partition(f"  name: {definition['metadata']['name']}\n")
    return f"{{{{- if .Values.crds.install }}}}\n{head}{name}{_KEEP}{rest}{{{{- end }}}}\n"


def chart_files(definitions: dict[str, Definition]) -> dict[str, str]:
    """File name and content of every template in `CHART_FOLDER`."""
    return {f"{plural}.yaml": chart_template(definition) for plural, definition in definitions.items()}


def compact_bytes(definition: Definition) -> int:
    """Size as compact JSON, as the API server stores it."""
    return len(json.dumps(definition, separators=(",", ":"), ensure_ascii=False).encode())


def _dumper() -> Any:
    import yaml

    class Plain(yaml.SafeDumper):
        """Without anchors: two equal defaults stay two texts."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    return Plain
