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
        stream = torch.cuda.current_stream(device)
        with torch.cuda.device(device):
            code = getattr(_library(), name)(ctypes.byref(arguments), ctypes.c_void_p(stream.cuda_stream))
        if code != 0:
            raise LaunchError(f"{name} failed to start: {_library().sm90_error_text(code).decode()} (CUDA error {code})")

    return launch


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.sm90_error_text.restype = ctypes.c_char_p
    return library
