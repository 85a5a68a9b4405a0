"""Where `builtin:quickstart` lives on this machine; prepared on first use, by one process however many ask."""

import os
from pathlib import Path

from samite_workloads.data.prepare import DEFAULT_VOCABULARY, prepare_quickstart


def quickstart_folder() -> Path:
    """$SAMITE_HOME/data/quickstart, ready to open."""
    home = Path(os.environ.get("SAMITE_HOME") or Path.home() / ".samite")
    return prepare_quickstart(home / "data" / "quickstart", DEFAULT_VOCABULARY).folder
