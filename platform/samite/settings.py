"""Where Samite keeps things on this machine, decided once from the environment.

`SAMITE_HOME` (default `~/.samite`) holds one folder per run of the local engine. Nothing here reads files or creates them.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from samite.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of the CLI and of the local engine. Flags win over `SAMITE_*` variables, which win over defaults."""

    home: Path
    """Folder of the local engine's runs; absolute."""
    no_input: bool = False
    """Never ask: destructive commands then need --yes."""

    @classmethod
    def from_environment(cls) -> Self:
        """Read `SAMITE_HOME` and `SAMITE_NO_INPUT`. Raises UsageError if SAMITE_HOME is not an absolute path."""
        text = os.environ.get("SAMITE_HOME", "")
        home = Path(text).expanduser() if text else home_folder() / ".samite"
        if not home.is_absolute():
            raise UsageError(f"SAMITE_HOME must be an absolute path, found {text!r}. Try: export SAMITE_HOME={Path.cwd() / home}")
        return cls(home=home, no_input=os.environ.get("SAMITE_NO_INPUT", "") not in {"", "0", "false"})

    @property
    def runs(self) -> Path:
        """Folder that holds one folder per run."""
        return self.home / "runs"


def home_folder() -> Path:
    """The user's own folder. Raises UsageError where there is none: a container under a number that no one has, without HOME."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError(
            f"user {os.getuid()} has no home folder (no HOME, no entry in passwd). Try: export HOME=/some/writable/folder, or SAMITE_HOME alone"
        ) from error
