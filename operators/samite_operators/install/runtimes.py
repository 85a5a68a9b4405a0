"""Applies the chart's runtimes after an install or upgrade. A Job and not the chart itself, because a first install brings their CRD as well.

Server-side apply: a runtime that did not change keeps its generation, and fields that people added stay.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from samite.engines.kuberay.api import Document, GoneApiError, Kind, KubernetesApi, RetryableApiError
from samite.errors import UsageError
from samite_operators.install.release import FILE

CLUSTER_TRAINING_RUNTIME = Kind(
    group="samite.dev", version="v1alpha1", plural="clustertrainingruntimes", kind="ClusterTrainingRuntime", namespaced=False
)
LIMIT_S = 60.0
"""Longest wait for the CRD: the API server needs a second or two to serve a new one."""


def apply_runtimes(
    api: KubernetesApi,
    folder: Path,
    *,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Apply every document of `folder`; returns their names. Raises ApiError when the API server refuses one, or `limit_s` ran out."""
    deadline_s = clock() + limit_s
    names = []
    for document in _documents(folder):
        while True:
            try:
                api.apply(CLUSTER_TRAINING_RUNTIME, "", document)
                break
            except (GoneApiError, RetryableApiError):
                if clock() >= deadline_s:
                    raise
                sleep(1.0)
        names.append(document["metadata"]["name"])
    return names


def _documents(folder: Path) -> Iterator[Document]:
    for file in sorted(folder.glob("*.json")):
        if file.name == FILE:
            continue
        document: Document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("kind") != CLUSTER_TRAINING_RUNTIME.kind:
            raise UsageError(f"{file}: wanted a {CLUSTER_TRAINING_RUNTIME.kind}, found {document.get('kind')!r}")
        yield document
