"""Run folders to report on: a whole one, and a function that makes others."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).with_name("synthetic_run.py")


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """`write_run(folder, seed=..., kill_at=..., num_ranks=...)`."""
    return runpy.run_path(str(_SCRIPT))["write_run"]


@pytest.fixture(scope="session")
def whole_run(write_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, one node killed in the second. Read only."""
    return write_run(tmp_path_factory.mktemp("report") / "quickstart")


@pytest.fixture(scope="session")
def small_run(write_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in 20 steps, to be copied and damaged. Read only."""
    return write_run(tmp_path_factory.mktemp("report") / "quickstart", steps=(10, 10), kill_at=16, checkpoint_every=4)
