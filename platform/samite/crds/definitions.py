"""The four CustomResourceDefinitions: names, versions, columns, and the schemas with their rules."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from samite.crds.rules import Named, add_rules
from samite.crds.status_schema import status_schema
from samite.crds.structural import Schema, described, schema_of
from samite.spec.documentation import summary
from samite.spec.model_fields import MAY_BE_ZERO, MODEL_FIELDS, NOT_OVERRIDABLE
from samite.spec.node_blame import NodeBlame
from samite.spec.rules import all_rules
from samite.spec.run import RunSpec, TrainingRun
from samite.spec.runtime import ClusterTrainingRuntime, RuntimeSpec, TrainingRuntime
from samite.spec.update_rules import UPDATE_RULES

GROUP = "samite.dev"
VERSION = "v1alpha1"
CATEGORY = "samite"
MAX_BYTES = 100_000
"""Compact JSON of one definition: an annotation of `kubectl apply` holds 262,144 bytes, and a reader less."""

CLUSTER_ENGINE = "RayCluster"
"""The engine of a run that does not name one, in a cluster. On a machine it is Local."""

Definition = dict[str, Any]
Column = dict[str, Any]


def custom_resource_definitions() -> dict[str, Definition]:
    """Every definition by the plural of its kind, ready for `kubectl apply --server-side`."""
    made = (_training_run(), _runtime(TrainingRuntime, "truntime"), _runtime(ClusterTrainingRuntime, "ctruntime"), _node_blame())
    return {definition["spec"]["names"]["plural"]: definition for definition in made}


def _training_run() -> Definition:
    spec = schema_of(RunSpec)
    spec["properties"]["model"]["properties"]["overrides"] |= _overrides()
    spec["properties"]["model"]["properties"]["overrides"].pop("x-kubernetes-preserve-unknown-fields")
    engine = spec["properties"]["engine"]
    engine |= {"default": CLUSTER_ENGINE, "description": engine["description"].replace("Default Local.", f"Default {CLUSTER_ENGINE}.")}
    root = _root(summary(TrainingRun), {"spec": described(spec, "What is to be trained."), "status": status_schema()}, required=["spec"])
    root["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}}
    rules: list[Named] = [(rule.message, cel) for rule in all_rules() for cel in rule.cel]
    rules += [(update.message, cel) for update in UPDATE_RULES for cel in update.cel]
    add_rules(root, rules)
    return _definition(
        "TrainingRun",
        root,
        short_name="trun",
        status=True,
        columns=RUN_COLUMNS,
        selectable=(".status.phase", ".spec.queue.name"),
    )


def _runtime(model: type[TrainingRuntime] | type[ClusterTrainingRuntime], short_name: str) -> Definition:
    spec = schema_of(RuntimeSpec)
    root = _root(summary(model), {"spec": spec}, required=["spec"])
    shared = {"one-value", "one-value-source", "no-secret-literals", "variables-are-free", "variables-are-unique"}
    rules = [(rule.message, cel) for rule in all_rules() if rule.name in shared for cel in rule.cel]
    for role in ("head", "worker"):
        add_rules(root, [(message, replace(cel, at=cel.at.replace("spec.env", f"spec.{role}.env"))) for message, cel in rules])
    return _definition(
        model.__name__,
        root,
        short_name=short_name,
        scope="Cluster" if model is ClusterTrainingRuntime else "Namespaced",
        columns=(
            _column("Image", ".spec.image"),
            _column("GPU", ".spec.gpuResource"),
            _column("Allows", ".spec.allowOverrides"),
            _column("Description", ".spec.description", wide=True),
            AGE,
        ),
    )


def _node_blame() -> Definition:
    whole = schema_of(NodeBlame)
    parts = {name: whole["properties"][name] for name in ("spec", "status")}
    return _definition(
        "NodeBlame",
        _root(summary(NodeBlame), parts),
        short_name="nblame",
        scope="Cluster",
        status=True,
        columns=(
            _column("State", ".status.state"),
            _column("Strikes", ".status.strikes", kind="number"),
            _column("Until", ".status.quarantinedUntil"),
            _column("Excluded", ".spec.exclude", kind="boolean"),
            _column("Reason", ".status.reason"),
            _column("By", ".spec.by", wide=True),
            AGE,
        ),
    )


def _column(name: str, path: str, *, kind: str = "string", wide: bool = False, text: str = "") -> Column:
    return {"name": name, "type": kind, "jsonPath": path} | ({"description": text} if text else {}) | ({"priority": 1} if wide else {})


AGE = _column("Age", ".metadata.creationTimestamp", kind="date")

RUN_COLUMNS: tuple[Column, ...] = (
    _column("Phase", ".status.phase"),
    _column("Stage", ".status.currentStage"),
    _column("Ctx", ".status.columns.contextLength", kind="integer", text="Context length of the current stage, in tokens."),
    _column("Step", ".status.progress.step", kind="integer", text="Optimizer steps finished."),
    _column("Done%", ".status.columns.percent", text="Share of the whole run."),
    _column("ETTR", ".status.columns.ettr", text="Share of the wall time that trained, in percent."),
    _column("Restarts", ".status.columns.restarts", kind="integer"),
    _column("LastCkpt", ".status.columns.lastCheckpointTime", kind="date", text="Age of the newest committed checkpoint."),
    _column("Nodes", ".status.columns.nodes", text="Worker nodes that are ready, of those wanted."),
    _column("Queue", ".spec.queue.name", wide=True),
    _column("Cluster", ".status.clusterId", wide=True),
    _column("Reason", ".status.reason", wide=True),
    _column("NextRetry", ".status.nextRetryAt", wide=True, text="When the next attempt may start."),
    AGE,
)


def _root(text: str, parts: Mapping[str, Schema], *, required: Iterable[str] = ()) -> Schema:
    head: dict[str, Schema] = {
        "apiVersion": {"description": f"Version of this document's format: {GROUP}/{VERSION}.", "type": "string"},
        "kind": {"description": "Kind of this document.", "type": "string"},
        "metadata": {"type": "object"},
    }
    needed = list(required)
    return {"description": text, "type": "object"} | ({"required": needed} if needed else {}) | {"properties": head | dict(parts)}


def _definition(
    kind: str,
    schema: Schema,
    *,
    short_name: str,
    scope: str = "Namespaced",
    status: bool = False,
    columns: Iterable[Column],
    selectable: Iterable[str] = (),
) -> Definition:
    plural = f"{kind.lower()}s"
    fields = [{"jsonPath": path} for path in selectable]
    version = (
        {"name": VERSION, "served": True, "storage": True, "additionalPrinterColumns": [dict(column) for column in columns]}
        | ({"selectableFields": fields} if fields else {})
        | ({"subresources": {"status": {}}} if status else {})
        | {"schema": {"openAPIV3Schema": schema}}
    )
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": [short_name],
        "categories": [CATEGORY],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": scope, "versions": [version]},
    }


def _overrides() -> Schema:
    """The keys of spec.model.overrides: unknown ones are refused by the API server like any other unknown field."""
    types = {"int": "integer", "float": "number", "bool": "boolean", "text": "string"}
    properties: dict[str, Schema] = {}
    for field in MODEL_FIELDS.values():
        if field.name in NOT_OVERRIDABLE:
            continue
        properties[field.name] = {"description": field.doc, "type": types[field.type]}
        if field.type in {"int", "float"} and field.name != "kda_lower_bound":
            properties[field.name] |= {"minimum": 0} | ({} if field.name in MAY_BE_ZERO else {"exclusiveMinimum": True})
        if field.type == "text":
            properties[field.name] |= {"maxLength": 253}
    return {"properties": properties}
