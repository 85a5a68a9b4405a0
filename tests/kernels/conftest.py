"""Kernel tests on a CPU: small tensors, where a second thread costs more than it brings on a shared machine."""

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import samite_kernels

EMULATION = Path(samite_kernels.__file__).resolve().parents[1] / "emulation" / "build.py"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def emulated_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CUDA kernels compiled for the CPU, or the library that SAMITE_KERNELS_EMULATION already names."""
    if given := os.environ.get("SAMITE_KERNELS_EMULATION"):
        return Path(given)
    spec = importlib.util.spec_from_file_location("emulation_build", EMULATION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.find_host_compiler() is None:
        pytest.skip("no C++ compiler")
    ready: Path = module.build(tmp_path_factory.mktemp("emulation") / "sources")
    return ready


@pytest.fixture
def emulation(emulated_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Lets CPU tensors run through the CUDA sources. Called with True, threads of a block run from the last to the first."""
    monkeypatch.setenv("SAMITE_KERNELS_EMULATION", str(emulated_library))
    reverse = ctypes.CDLL(str(emulated_library)).emulation_reverse
    yield lambda on: reverse(int(on))
    reverse(0)
