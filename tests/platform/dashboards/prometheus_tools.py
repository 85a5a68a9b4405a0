"""Where Prometheus' own tools are: in PATH, or in the cluster box's cache."""

import os
import shutil
from pathlib import Path


def tool(name: str) -> Path | None:
    """`promtool` or `prometheus`, if this machine has it."""
    found = shutil.which(name)
    if found:
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samite" / "box"
    built = sorted(Path(os.environ.get("SAMITE_BOX_CACHE") or cache).glob(f"tools/prometheus-*/{name}"))
    return built[-1] if built else None
