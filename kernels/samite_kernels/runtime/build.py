"""Builds the CUDA sources into one shared library, once per machine and source digest.

    prebuilt for these sources?  ->  use it
    already in the cache?        ->  use it
    else lock -> compile in a private folder -> rename into place -> use it

Called by `launch` at first use, and by packaging through `build_into`. The lock is held by the system for the process, so it dies
with its holder; waiting is bounded and says who builds. A half-written library is never visible under its final name, also not after the
machine lost power. What a killed builder left is removed by the next one.
"""

import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE_FOLDER = Path(__file__).resolve().parent.parent / "csrc"
PREBUILT_FOLDER = SOURCE_FOLDER.parent / "prebuilt"
CACHE_VARIABLE = "SAMITE_KERNELS_CACHE"
COMPILER_VARIABLE = "SAMITE_NVCC"
WAIT_VARIABLE = "SAMITE_KERNELS_BUILD_WAIT_S"
DEFAULT_WAIT_S = 600.0
_SCRATCH = ".build-"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-gencode",
    "arch=compute_90a,code=sm_90a",
    "-shared",
    "-Xcompiler",
    "-fPIC",
    "-Xptxas",
    "-v",
    "-cudart",
    "static",
)


class BuildError(RuntimeError):
    """The library could not be built; the message holds the compiler's own words or what is missing."""


def sources() -> list[Path]:
    """Every file that the library is made of, in a fixed order."""
    return sorted([*SOURCE_FOLDER.glob("*.cu"), *(SOURCE_FOLDER / "include").glob("*.cuh")])


def source_digest() -> str:
    """Names and contents of the sources and the flags: what a prebuilt library is found by."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for path in sources():
        digest.update(path.relative_to(SOURCE_FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def library_path() -> Path:
    """The library for the present sources, built if need be. Raises BuildError."""
    name = f"samite_kernels_sm90_{source_digest()}.so"
    prebuilt = PREBUILT_FOLDER / name
    if prebuilt.exists():
        return prebuilt
    compiler = find_compiler()
    folder = _cache_folder() / _compiler_digest(compiler)
    library = folder / name
    try:
        if library.exists():
            return library
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        with _lock(folder / f"{name}.lock"):
            if not library.exists():
                for left in folder.glob(f"{_SCRATCH}{name}-*"):
                    shutil.rmtree(left, ignore_errors=True)
                compile_library(compiler, library)
    except OSError as error:
        raise BuildError(
            f"Compiled kernels are kept in {folder}, which can't be written: {error.strerror or error}. "
            f"Name a writable local folder with 100 MB free: {CACHE_VARIABLE}=/path"
        ) from error
    return library


def build_into(folder: Path) -> Path:
    """Compiles for packaging: the library lands in `folder` under the name that `library_path` looks for."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"samite_kernels_sm90_{source_digest()}.so"
    compile_library(find_compiler(), library)
    return library


def find_compiler() -> Path:
    """nvcc from SAMITE_NVCC, CUDA_HOME, the PATH, or the nvidia-cuda-nvcc package; in this order."""
    named = os.environ.get(COMPILER_VARIABLE)
    home = os.environ.get("CUDA_HOME")
    on_path = shutil.which("nvcc")
    if named and not Path(named).is_file():
        raise BuildError(f"{COMPILER_VARIABLE} names {named}, which is no file: correct it, or unset it to let Samite look for nvcc")
    candidates = [Path(named)] if named else []
    if home:
        candidates.append(Path(home) / "bin" / "nvcc")
    if on_path:
        candidates.append(Path(on_path))
    candidates += [Path(entry) / "nvidia" / "cu13" / "bin" / "nvcc" for entry in sys.path]
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise BuildError(
        f"No nvcc found in {COMPILER_VARIABLE}, CUDA_HOME, PATH or the Python environment: install the CUDA toolkit 13, or "
        "pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl"
    )


def compile_library(compiler: Path, library: Path) -> str:
    """Compiles to a private folder beside `library` and renames into place. Returns the compiler's report. Raises BuildError or OSError."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=f"{_SCRATCH}{library.name}-") as scratch:
        output = Path(scratch) / library.name
        command = [str(compiler), *FLAGS, "--threads", "0", *(str(path) for path in sources() if path.suffix == ".cu"), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not output.exists():
            raise BuildError(f"{' '.join(command)} failed with code {done.returncode}:\n{done.stdout}{done.stderr}")
        with output.open("rb") as written:
            os.fsync(written.fileno())
        output.replace(library)
    return done.stdout + done.stderr


def resources(report: str) -> dict[str, dict[str, int]]:
    """Registers, spilled bytes and static shared memory of each kernel, from the compiler's report; a flag's value stands in `<>`."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in report.splitlines():
        entry = re.search(r"entry function '_ZN\d(\w+?)\d\d_GLOBAL__N__\w*?_cu_[0-9a-f]{8}(\d+)(\w+)'", line)
        if entry:
            length = int(entry[2])
            flag = re.match(r"IL[bi](\d)E", entry[3][length:])
            name = f"{entry[1]}::{entry[3][:length]}" + (f"<{flag[1]}>" if flag else "")
            found[name] = {"registers": 0, "spill_bytes": 0, "shared_bytes": 0}
        for key, pattern in (
            ("registers", r"Used (\d+) registers"),
            ("spill_bytes", r"(\d+) bytes spill stores"),
            ("shared_bytes", r"(\d+) bytes smem"),
        ):
            number = re.search(pattern, line)
            if number and name:
                found[name][key] = int(number[1])
    return found


def _cache_folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samite" / "kernels"
    except RuntimeError:  # a container under a number that no one has, without HOME
        return _own_folder(Path(tempfile.gettempdir()) / f"samite-kernels-{os.getuid()}")


def _own_folder(folder: Path) -> Path:
    """A folder where anyone may write, made or found to be ours: code is loaded from it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise BuildError(f"Without a home, compiled kernels are kept in {folder}: {error.strerror}. Set {CACHE_VARIABLE}=/path") from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise BuildError(f"{folder} is not a folder of user {os.getuid()} alone, so no code is loaded from it. Set {CACHE_VARIABLE}=/path")
    return folder


def _compiler_digest(compiler: Path) -> str:
    try:
        asked = subprocess.run([str(compiler), "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise BuildError(f"{compiler} can't be run: {error.strerror}. Name a working nvcc: {COMPILER_VARIABLE}=/path") from error
    if asked.returncode != 0 or not asked.stdout:
        raise BuildError(
            f"{compiler} --version failed with code {asked.returncode}: {asked.stdout}{asked.stderr}\n"
            f"Name a working nvcc: {COMPILER_VARIABLE}=/path"
        )
    return hashlib.sha256(asked.stdout.encode()).hexdigest()[:12]


def _wait_s() -> float:
    given = os.environ.get(WAIT_VARIABLE, "")
    try:
        wait_s = float(given or DEFAULT_WAIT_S)
    except ValueError:
        wait_s = -1.0
    if not 0.0 <= wait_s < float("inf"):
        raise BuildError(f"{WAIT_VARIABLE} must be a number of seconds, at least 0, found {given!r}")
    return wait_s


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """An advisory lock that the system drops with its process. Raises BuildError when another holds it for too long, OSError without locks."""
    wait_s = _wait_s()
    deadline = time.monotonic() + wait_s
    announced = False
    with path.open("a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"Waited {wait_s:g} s for {holder} to build {path.name.removesuffix('.lock')}: if it hangs, end it; "
                        f"to wait longer set {WAIT_VARIABLE}"
                    ) from None
                if not announced:
                    print(f"samite_kernels: {holder} is building the CUDA kernels, waiting", file=sys.stderr, flush=True)  # noqa: T201
                    announced = True
                time.sleep(0.1)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
