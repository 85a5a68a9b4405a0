"""Loads the built library and calls its C entry points on torch's current stream.

A kernel family declares its entry points with `declare`; nothing is built or loaded before the first call. Tensors on the CPU go to the
library that SAMITE_KERNELS_EMULATION names: the same sources compiled for the CPU by kernels/emulation, for tests.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache

import torch

from samite_kernels.runtime.build import library_path

EMULATION_VARIABLE = "SAMITE_KERNELS_EMULATION"
_EMULATED_MULTIPROCESSORS = 3
Launch = Callable[[ctypes.Structure, torch.device], None]


class LaunchError(RuntimeError):
    """A kernel could not be started; the message holds CUDA's own words."""


def declare(name: str) -> Launch:
    """A function that launches entry point `name` with its argument block on the current stream of a device."""

    def launch(arguments: ctypes.Structure, device: torch.device) -> None:
        emulated = emulated_library() if device.type == "cpu" else None
        entry = _entry(name, emulated)
        code = entry(ctypes.byref(arguments), None) if emulated else _on_gpu(entry, arguments, device)
        if code != 0:
            raise LaunchError(f"{name} failed to start: {_library(emulated).sm90_error_text(code).decode()} (CUDA error {code})")

    return launch


def _on_gpu(entry: Callable[..., int], arguments: ctypes.Structure, device: torch.device) -> int:
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    if device.index is None or device.index == torch.cuda.current_device():
        return entry(ctypes.byref(arguments), stream)
    with torch.cuda.device(device):
        return entry(ctypes.byref(arguments), stream)


def hopper_obstacle(device: torch.device) -> str | None:
    """Why kernels for compute capability 9.0 can't run on this device, in words, or None."""
    if device.type == "cpu" and emulated_library():
        return None
    if device.type != "cuda":
        return f"the tensors are on {device.type}, it needs a Hopper GPU"
    capability = torch.cuda.get_device_capability(device)
    return None if capability == (9, 0) else f"{device} has compute capability {capability[0]}.{capability[1]}, it needs 9.0"


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; a few for the emulation."""
    return _EMULATED_MULTIPROCESSORS if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def emulated_library() -> str | None:
    """Path of the library that runs the kernels on the CPU, None outside tests."""
    return os.environ.get(EMULATION_VARIABLE)


@cache
def _entry(name: str, emulated: str | None) -> Callable[..., int]:
    return getattr(_library(emulated), name)


@cache
def _library(emulated: str | None) -> ctypes.CDLL:
    path = emulated or str(library_path())
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise LaunchError(f"{path} can't be loaded: {error}. If it is damaged, remove it: the next call builds it again") from error
    library.sm90_error_text.restype = ctypes.c_char_p
    return library
