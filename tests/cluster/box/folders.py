"""Where the box keeps things: tools and images are made once and kept; the state of a running box is thrown away.

SAMITE_BOX_CACHE names the cache folder; without it, it lies in the user's cache folder. It needs 6 GB on a file system that overlayfs can use.
"""

import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]


@dataclass(frozen=True, slots=True)
class Folders:
    """The box's folders below one cache folder."""

    cache: Path

    @classmethod
    def of_user(cls) -> "Folders":
        """From SAMITE_BOX_CACHE, or the user's cache folder."""
        named = os.environ.get("SAMITE_BOX_CACHE")
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(Path(named).resolve() if named else base / "samite" / "box")

    @property
    def tools(self) -> Path:
        """One folder per component and build: `kubernetes-<hash>`."""
        return self.cache / "tools"

    @property
    def images(self) -> Path:
        """Image archives and the Debian root file system."""
        return self.cache / "images"

    @property
    def run(self) -> Path:
        """State of the running box: certificates, logs, etcd, containers. Gone after `down`."""
        return self.cache / "run"

    @property
    def certificates(self) -> Path:
        """Throw-away certificates and kubeconfigs."""
        return self.run / "pki"

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.run / "logs"

    @property
    def state(self) -> Path:
        """What runs, so that another process can take it down."""
        return self.run / "box.json"

    @property
    def lock(self) -> Path:
        """Held while a box is brought up, used by a test session, or taken down."""
        return self.cache / "box.lock"
