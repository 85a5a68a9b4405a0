"""Fixtures of the drills: one prepared corpus, and one unbroken run that the broken ones are compared with."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_run import LocalRun, spec_document


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus, prepared once."""
    from samite_workloads.data.prepare import prepare_quickstart

    folder = tmp_path_factory.mktemp("corpus") / "quickstart"
    return prepare_quickstart(folder).folder


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Iterator[LocalRun]:
    """A run of two stages that nobody disturbs, finished. Its home has a long path with a space, a bracket and an umlaut (scenario S2)."""
    home = tmp_path_factory.mktemp("unbroken") / ("deep [ü] " + "x" * 60) / ("y" * 60)
    with LocalRun(home, spec_document("unbroken", corpus)) as run:
        run.submit()
        run.until_phase("Succeeded", limit_s=280)
        yield run
