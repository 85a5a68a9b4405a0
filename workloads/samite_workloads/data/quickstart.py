"""Where `builtin:quickstart` lives on this machine; prepared on first use, by one process however many ask."""

from pathlib import Path

from samite.settings import Settings
from samite_workloads.data.prepare import DEFAULT_VOCABULARY, prepare_quickstart


def quickstart_folder() -> Path:
    """$SAMITE_HOME/data/quickstart, ready to open."""
    return prepare_quickstart(Settings.from_environment().home / "data" / "quickstart", DEFAULT_VOCABULARY).folder
