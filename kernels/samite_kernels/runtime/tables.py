"""Tables in device memory that many calls share: where chunks, segments and documents begin, found again by what they were made from."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Table = TypeVar("Table")
_MOST = 128


def shared_table(make: Callable[Given, Table]) -> Callable[Given, Table]:
    """Keeps the newest tables of a function, so that a repeated or captured call copies nothing; one argument is the device.

    A CUDA graph reads its tables again at every replay and holds none of them: those met during a capture are kept for good.
    """
    find = lru_cache(maxsize=_MOST)(make)
    captured: dict[int, Table] = {}

    @wraps(make)
    def found(*args: Given.args, **kwargs: Given.kwargs) -> Table:
        table = find(*args, **kwargs)  # type: ignore[arg-type]
        on_gpu = any(isinstance(x, torch.device) and x.type == "cuda" for x in (*args, *kwargs.values()))
        if on_gpu and torch.cuda.is_current_stream_capturing():
            captured[id(table)] = table
        return table

    return found
