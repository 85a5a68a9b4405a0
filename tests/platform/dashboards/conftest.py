"""Prometheus' own tools, from PATH or from the cluster box's cache; tests that need them are skipped with the reason where they are not built."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from prometheus_tools import tool

WANTED = "build it with `python tests/cluster/box build --also prometheus` (2 minutes, needs Go), or put it into PATH"


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
