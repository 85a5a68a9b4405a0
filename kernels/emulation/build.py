# ruff: noqa: INP001 - stands beside the package, for tests
"""Compiles the CUDA sources for the CPU, with the emulation of this folder in place of the device. Called by the CPU tests.

The sources are taken as they are, but for three spellings: a launch, dynamic shared memory, and the header that wraps raw instructions.
"""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EMULATION = Path(__file__).resolve().parent
SOURCES = EMULATION.parent / "samite_kernels" / "csrc"
_ORDER = """#include "device.h"
// 1: threads run from the last to the first.
extern "C" void emulation_reverse(int on) { emulated::reversed = on != 0; }
"""
_LAUNCH = re.compile(r"([\w:]+(?:<[\w, ]+>)?)<<<(.+?)>>>\(([^;]*)\);", re.DOTALL)
_DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];")


def find_host_compiler() -> str | None:
    """A C++17 compiler with half precision, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build(folder: Path) -> Path:
    """The library of all emulated kernels, made in `folder`. Raises CalledProcessError with the compiler's words on stderr."""
    compiler = find_host_compiler()
    if compiler is None:
        raise FileNotFoundError("No C++ compiler found: install g++, or name one in CXX")
    (folder / "include").mkdir(parents=True)
    for path in (SOURCES / "include").glob("*.cuh"):
        shutil.copy(path, folder / "include")
    for path in EMULATION.glob("*.*h"):
        shutil.copy(path, folder / "include")
    units = [folder / f"{path.stem}.cpp" for path in sorted(SOURCES.glob("*.cu"))]
    for unit in units:
        unit.write_text(host_source((SOURCES / f"{unit.stem}.cu").read_text()))
    units.append(folder / "emulation_order.cpp")
    units[-1].write_text(_ORDER)
    flags = ["-std=c++17", "-O1", "-fPIC", "-w", f"-I{folder / 'include'}"]

    def compile_unit(unit: Path) -> Path:
        command = [compiler, *flags, "-c", str(unit), "-o", str(unit.with_suffix(".o"))]
        subprocess.run(command, check=True, timeout=300)
        return unit.with_suffix(".o")

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_unit, units))
    library = folder / "emulated_kernels.so"
    subprocess.run([compiler, "-shared", *map(str, objects), "-o", str(library)], check=True, timeout=60)
    return library


def host_source(text: str) -> str:
    """A CUDA source as plain C++ for the emulation."""
    text = _LAUNCH.sub(r"EMULATED_LAUNCH((\1), \2, \3);", text)
    return _DYNAMIC.sub(r"unsigned char* \1 = emulated::shared;", text)
