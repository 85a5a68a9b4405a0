"""Loads the built library and calls its C entry points on torch's current stream.

A kernel family declares its entry points with `declare`; nothing is built or loaded before the first call.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from samite_kernels.runtime.build import library_path


class LaunchError(RuntimeError):
    """A kernel could not be started; the message holds CUDA's own words."""


def declare(name: str) -> Callable[[ctypes.Structure, torch.device], None]:
    """A function that launches entry point `name` with its argument block on the current stream of a device."""

    def launch(arguments: ctypes.Structure, device: torch.device) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        entry = _entry(name)
        if device.index is None or device.index == torch.cuda.current_device():
            code = entry(ctypes.byref(arguments), stream)
        else:
            with torch.cuda.device(device):
                code = entry(ctypes.byref(arguments), stream)
        if code != 0:
            raise LaunchError(f"{name} failed to start: {_library().sm90_error_text(code).decode()} (CUDA error {code})")

    return launch


@cache
def _entry(name: str) -> Callable[..., int]:
    return getattr(_library(), name)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.sm90_error_text.restype = ctypes.c_char_p
    return library
