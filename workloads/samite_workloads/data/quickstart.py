"""Where `builtin:quickstart` lives on this machine; prepared on first use, by one process however many ask."""

from pathlib import Path

from samite.settings import Settings
from samite_workloads.data.layout import MANIFEST_NAME
from samite_workloads.data.prepare import prepare_quickstart


def quickstart_folder() -> Path:
    """$SAMITE_HOME/data/quickstart, ready to open.

    What is there stays: a run that resumes after an upgrade of Python or Samite must meet the corpus it began with.
    """
    folder = Settings.from_environment().home / "data" / "quickstart"
    if (folder / MANIFEST_NAME).is_file():
        return folder
    return prepare_quickstart(folder).folder
