"""Prometheus' own tools, from PATH or from the cluster box's cache; tests that need them are skipped with the reason where they are not built."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

WANTED = "build it with `python tests/cluster/box build --also prometheus` (2 minutes, needs Go), or put it into PATH"


def tool(name: str) -> Path | None:
    """`promtool` or `prometheus`, if this machine has it."""
    found = shutil.which(name)
    if found:
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samite" / "box"
    built = sorted(Path(os.environ.get("SAMITE_BOX_CACHE") or cache).glob(f"tools/prometheus-*/{name}"))
    return built[-1] if built else None


@pytest.fixture(scope="session")
def promtool() -> Path:
    if (found := tool("promtool")) is None:
        pytest.skip(f"no promtool here: {WANTED}")
    return found


@pytest.fixture(scope="session")
def prometheus() -> Path:
    if (found := tool("prometheus")) is None:
        pytest.skip(f"no prometheus here: {WANTED}")
    return found
