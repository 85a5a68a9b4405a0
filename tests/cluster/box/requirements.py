"""What this machine lacks for a box, in words that say what to do. Empty: a box can run."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from .binaries import Binaries, MissingToolError
from .components import BUILDING_NEEDS, DOCKERFILE_NEEDS, LIBRARIES, RUNNING_NEEDS
from .folders import REPOSITORY, Folders


def problems() -> list[str]:
    """Reasons why no box can run here now. The cheap ones first; none of them changes anything."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return [f"the box needs Linux on x86_64; this is {sys.platform} on {platform.machine()}"]
    if os.geteuid() != 0:
        return ["the box needs root: it makes namespaces and cgroups"]
    found = []
    for what, place in (("repository", REPOSITORY), ("environment", Path(sys.prefix))):
        if place.resolve().is_relative_to("/tmp"):
            found.append(f"the {what} lies in {place}, where pods have a /tmp of their own and would not see it: clone it somewhere else")
    absent = sorted({package for command, package in RUNNING_NEEDS.items() if not shutil.which(command)})
    if absent:
        found.append(f"Debian packages are missing: apt-get install --no-install-recommends {' '.join(absent)}")
    try:
        unbuilt = Binaries(Folders.of_user()).missing()
    except MissingToolError as error:
        return [*found, str(error)]
    if unbuilt:
        found.append(f"not built yet: {', '.join(unbuilt)}; run `make cluster-tools` (about 10 minutes, once)")
    return found


def debian_packages() -> list[str]:
    """All Debian packages that building and running a box may want."""
    return sorted({*RUNNING_NEEDS.values(), *BUILDING_NEEDS.values(), *DOCKERFILE_NEEDS.values(), *LIBRARIES})


def missing_for_building() -> list[str]:
    """Debian packages without which the tools cannot be built."""
    absent = {package for command, package in (RUNNING_NEEDS | BUILDING_NEEDS).items() if not shutil.which(command)}
    if not shutil.which("pkg-config") or subprocess.run(["pkg-config", "--exists", "libseccomp"], timeout=20, check=False).returncode:
        absent.add("libseccomp-dev")
    return sorted(absent)
