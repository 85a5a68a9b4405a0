"""A TrainingRun as the API server stores it: the same document, with what the server and the operator added beside it.

`run_from_object` is the operator's `load_run`: the same checks, without lines, because nobody can point at a file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samite.errors import Problem, SpecError
from samite.spec.run import TrainingRun

OURS = ("name", "namespace", "labels", "annotations")
"""What of `metadata` belongs to the document; uid, resourceVersion and the like are the server's."""


def run_from_object(stored: Mapping[str, Any]) -> TrainingRun:
    """The checked run of a stored object, defaults filled in. Raises SpecError with every problem, also with what this version cannot do."""
    from samite.spec.load import check_tree
    from samite.spec.yaml_tree import Tree

    run, problems = check_tree(Tree(value=document_of(stored)), Path("/"))
    if not problems and run is not None and run.spec.engine == "Local":
        problems = [
            Problem(
                path="spec.engine",
                wanted="RayCluster, because the run is in a cluster",
                found="Local",
                hint="write engine: RayCluster, or run it on your machine with `samite submit`",
            )
        ]
    if problems or run is None:
        metadata = stored.get("metadata") or {}
        raise SpecError(problems, f"TrainingRun {metadata.get('namespace', '')}/{metadata.get('name', '')}")
    return run


def document_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The document that was submitted: without the server's metadata and without status."""
    metadata = {key: value for key, value in (stored.get("metadata") or {}).items() if key in OURS}
    return {"apiVersion": stored.get("apiVersion"), "kind": stored.get("kind"), "metadata": metadata, "spec": stored.get("spec")}
