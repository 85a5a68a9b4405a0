"""Activation recomputation that the routers know of: a token is counted in the first forward pass only.

    forward          run layer, keep its inputs          counts, signals
    backward         run layer again, `is_recomputing`   no counts, no signals

Called by the decoder around each layer. The flag is per thread because the backward of a GPU runs in its own thread.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor
from torch.utils.checkpoint import checkpoint

_state = threading.local()


def is_recomputing() -> bool:
    """Whether this thread repeats a forward pass for its backward."""
    return getattr(_state, "depth", 0) > 0


def recomputed(function: Callable[..., Tensor], *inputs: object) -> Tensor:
    """function(*inputs) with its activations dropped and computed again in the backward pass."""
    output: Tensor = checkpoint(
        function, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts, determinism_check="default"
    )
    return output


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _recomputing()


@contextmanager
def _recomputing() -> Iterator[None]:
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        yield
    finally:
        _state.depth -= 1
