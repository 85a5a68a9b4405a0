"""The CustomResourceDefinitions of Samite, generated from the models of `samite.spec` and the status of `samite.lifecycle`.

    spec models ─ structural.py ─┐
    status ────── status_schema ─┼─ trainingrun, runtimes, node_blame ─ definitions.py ─> `samite crds`, helm/samite/templates/crd
    rules (CEL) ─ rules.py ──────┘

Called by the CLI and by tests. Importing this costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samite.crds.definitions import custom_resource_definitions

__all__ = ["custom_resource_definitions"]


def __getattr__(name: str) -> Any:
    if name == "custom_resource_definitions":
        from samite.crds.definitions import custom_resource_definitions

        return custom_resource_definitions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
