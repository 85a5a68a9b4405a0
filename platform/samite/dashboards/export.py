"""What was generated, for people who install it somewhere: the boards as files or ConfigMaps. Needs no extra; reads the package's data."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

LABELS: Mapping[str, str] = {"app.kubernetes.io/name": "samite", "grafana_dashboard": "1"}
"""What Grafana's sidecar looks for by default."""


def board_texts() -> dict[str, str]:
    """The JSON text of each board by its uid, in the order of their names."""
    folder = files("samite.dashboards") / "generated"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".json")), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".json"): entry.read_text(encoding="utf-8") for entry in found}


def config_map(uid: str, text: str, *, folder: str = "Samite") -> dict[str, Any]:
    """One board as a ConfigMap that Grafana's dashboard sidecar picks up. `folder` is the folder in Grafana."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": uid, "labels": dict(LABELS), "annotations": {"grafana_folder": folder}},
        "data": {f"{uid}.json": text},
    }


def title_of(text: str) -> str:
    """The title of a board."""
    return str(json.loads(text)["title"])
