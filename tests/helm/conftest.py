"""The real helm for the chart's tests; skipped with the reason where it cannot be had."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chart import Helm
from helm_program import MissingProgramError, program


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The helm program."""
    try:
        return Helm(program("helm"))
    except MissingProgramError as error:
        pytest.skip(str(error))
