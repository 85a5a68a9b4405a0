"""Optional build hook: puts the compiled kernels into the wheel, so that the machine which runs them needs no compiler.

Active when SAMITE_KERNELS_PREBUILD=1. In pyproject.toml:

    [tool.hatch.build.targets.wheel.hooks.custom]
    path = "kernels/hatch_build.py"
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "SAMITE_KERNELS_PREBUILD"


class KernelsBuildHook(BuildHookInterface[Any]):
    """Compiles before the wheel is packed and marks the wheel as one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Called by hatchling. Raises BuildError when the compiler is missing or fails."""
        if os.environ.get(VARIABLE) != "1":
            return
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        from samite_kernels.runtime.build import PREBUILT_FOLDER, build_into

        library = build_into(PREBUILT_FOLDER)
        build_data["force_include"][str(library)] = f"samite_kernels/prebuilt/{library.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
