"""Rules about a run in a cluster: what its pods can reach, and what people approve.

The shell, the files and the AWS profiles of the machine that submits are not there, whatever the version; so these are rules of the format and no
limits of this version (samite.spec.support).
"""

import json
from collections.abc import Iterator
from typing import Any

from samite.spec.cel import CelRule, computed, first_with, let, repeats, template
from samite.spec.rules import Document, Finding, Rule, part, stages
from samite.spec.yaml_tree import Path as YamlPath

KUBERNETES_ENGINES = frozenset({"RayCluster", "RayJob"})


def is_on_cluster(document: Document) -> bool:
    """True if the run's engine is one of Kubernetes."""
    return part(document, "spec", "engine") in KUBERNETES_ENGINES


def value_sources(document: Document) -> Iterator[tuple[YamlPath, Document, Any]]:
    """(path of valueFrom, valueFrom, name) of each environment variable that has one."""
    for index, variable in enumerate(part(document, "spec", "env") or []):
        source = part(variable, "valueFrom")
        if isinstance(source, dict):
            yield ("spec", "env", index, "valueFrom"), source, variable.get("name")


def _values_come_from_the_cluster(document: Document) -> Iterator[Finding]:
    for path, source, name in value_sources(document) if is_on_cluster(document) else ():
        if "hostEnv" in source:
            wanted = f"secretKeyRef or configMapKeyRef, because the engine is {part(document, 'spec', 'engine')}"
            hint = f"write secretKeyRef: {{name: SECRET, key: {name or 'KEY'}}}"
            yield Finding(path=(*path, "hostEnv"), wanted=wanted, found="hostEnv, the shell of the machine that submits", hint=hint)


def _credentials_come_from_the_cluster(document: Document) -> Iterator[Finding]:
    if is_on_cluster(document) and "profile" in (part(document, "spec", "checkpoint", "credentials") or {}):
        wanted = f"secretName or serviceAccountName, because the engine is {part(document, 'spec', 'engine')}"
        found, hint = "profile, a file of the machine that submits", "write secretName, a secret in the run's namespace"
        yield Finding(path=("spec", "checkpoint", "credentials", "profile"), wanted=wanted, found=found, hint=hint)


def _corpora_are_reached(document: Document) -> Iterator[Finding]:
    if not is_on_cluster(document):
        return
    places: list[tuple[YamlPath, Any]] = [(("spec", "data", "uri"), part(document, "spec", "data", "uri"))]
    places += [(("spec", "stages", index, "data", "uri"), part(stage, "data", "uri")) for index, stage in stages(document)]
    for path, uri in places:
        if isinstance(uri, str) and "://" not in uri and not uri.startswith(("builtin:", "/")):
            wanted = f"a corpus that the pods reach, because the engine is {part(document, 'spec', 'engine')}"
            hint = "upload it and write s3://bucket/folder, or mount it and write its absolute path in the pods"
            yield Finding(path=path, wanted=wanted, found=f'"{uri}", a path on the machine that submits', hint=hint)


def _approvals_name_stages(document: Document) -> Iterator[Finding]:
    names = [stage.get("name") for _, stage in stages(document)]
    for index, approval in enumerate(part(document, "spec", "approvals") or []):
        stage = (approval or {}).get("stage")
        if stage is not None and None not in names and stage not in names:
            path = ("spec", "approvals", index, "stage")
            yield Finding(path=path, wanted=f"the name of a stage: {json.dumps(names)}", found=f'"{stage}"')


def _approvals_are_unique(document: Document) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, approval in enumerate(part(document, "spec", "approvals") or []):
        stage = (approval or {}).get("stage")
        if stage is not None and stage in seen:
            path = ("spec", "approvals", index, "stage")
            yield Finding(path=path, wanted="one approval for each stage", found=f"{stage} again", hint="keep the first of the two")
        if stage is not None:
            seen.add(stage)


_LOCAL = "self.engine == 'Local'"
_HERE = "!u.contains('://') && !u.startsWith('builtin:') && !u.startsWith('/')"
_NOT_REACHED = (
    'wanted a corpus that the pods reach, because the engine is <<self.engine>>; found "<<u>>", a path on the machine that submits; '
    "upload it and write s3://bucket/folder, or mount it and write its absolute path in the pods"
)
_STAGE_URI = "has(s.data) && has(s.data.uri) && s.data.uri.size() > 0"


def _host_variable() -> str:
    """CEL: the message about the first variable that comes from the submitting shell."""
    first = first_with("has(self.env[i].valueFrom) && has(self.env[i].valueFrom.hostEnv)", 64, of="self.env")
    says = template(
        "[<<i>>].valueFrom.hostEnv: wanted secretKeyRef or configMapKeyRef, because the engine is <<self.engine>>; "
        "found hostEnv, the shell of the machine that submits; write secretKeyRef: {name: SECRET, key: <<self.env[i].name>>}"
    )
    return let("i", first, says)


def _stage_corpus() -> str:
    """CEL: the message about the first stage whose corpus is a path of the submitting machine."""
    there = _STAGE_URI.replace("s.", "self.stages[i].")
    first = first_with(f"{there} && {_HERE.replace('u.', 'self.stages[i].data.uri.')}", 16, of="self.stages")
    return let("i", first, let("u", "self.stages[i].data.uri", template("[<<i>>].data.uri: " + _NOT_REACHED)))


CLUSTER_RULES = (
    Rule(
        name="values-come-from-the-cluster",
        check=_values_come_from_the_cluster,
        message="hostEnv is for the Local engine; in a cluster a value comes from secretKeyRef or configMapKeyRef",
        cel=(
            CelRule(
                at="spec",
                field=".env",
                holds=f"{_LOCAL} || self.env.all(e, !has(e.valueFrom) || !has(e.valueFrom.hostEnv))",
                says=computed(_host_variable()),
            ),
        ),
    ),
    Rule(
        name="credentials-come-from-the-cluster",
        check=_credentials_come_from_the_cluster,
        message="profile is for the Local engine; in a cluster credentials come from secretName or serviceAccountName",
        cel=(
            CelRule(
                at="spec",
                field=".checkpoint.credentials.profile",
                holds=f"{_LOCAL} || !has(self.checkpoint.credentials) || !has(self.checkpoint.credentials.profile)",
                says="wanted secretName or serviceAccountName, because the engine is <<self.engine>>; found profile, a file of the machine that submits; "
                "write secretName, a secret in the run's namespace",
            ),
        ),
    ),
    Rule(
        name="corpora-are-reached",
        check=_corpora_are_reached,
        message="in a cluster a corpus is a URI, or an absolute path inside the pods",
        cel=(
            CelRule(
                at="spec",
                field=".data.uri",
                holds=f"{_LOCAL} || !({_HERE.replace('u.', 'self.data.uri.')})",
                says=computed(let("u", "self.data.uri", template(_NOT_REACHED))),
            ),
            CelRule(
                at="spec",
                field=".stages",
                holds=f"{_LOCAL} || !self.stages.exists(s, {_STAGE_URI} && {_HERE.replace('u.', 's.data.uri.')})",
                says=computed(_stage_corpus()),
            ),
        ),
    ),
    Rule(
        name="approvals-name-a-stage",
        check=_approvals_name_stages,
        message="each approval names a stage of the run",
        cel=(
            CelRule(
                at="spec",
                field=".approvals",
                holds="self.approvals.all(a, self.stages.exists(s, s.name == a.stage))",
                says=computed(
                    let(
                        "i",
                        first_with("!self.stages.exists(s, s.name == self.approvals[i].stage)", 16, of="self.approvals"),
                        template(
                            '[<<i>>].stage: wanted the name of a stage: <<self.stages.map(s, s.name)>>; found "<<self.approvals[i].stage>>"'
                        ),
                    )
                ),
            ),
        ),
    ),
    Rule(
        name="approvals-are-unique",
        check=_approvals_are_unique,
        message="one approval for each stage",
        cel=(
            CelRule(
                at="spec.approvals",
                holds="self.all(a, self.exists_one(b, b.stage == a.stage))",
                says=computed(
                    let(
                        "i",
                        repeats("stage", 16),
                        template(
                            "[<<i>>].stage: wanted one approval for each stage; found <<self[i].stage>> again; keep the first of the two"
                        ),
                    )
                ),
            ),
        ),
    ),
)
