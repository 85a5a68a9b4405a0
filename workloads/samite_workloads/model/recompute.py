"""Activation recomputation that the routers know of: a token is counted in the first forward pass only, and goes the same way in both.

    forward          run layer, keep its inputs              counts, signals; choices are kept
    backward         run layer again, `is_recomputing`       no counts, no signals; the kept choices are used

Called by the decoder around each layer. State is per thread because the backward of a GPU runs in its own thread.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor
from torch.utils.checkpoint import checkpoint

_state = threading.local()


def is_recomputing() -> bool:
    """Whether this thread repeats a forward pass for its backward."""
    return _passes() != [] and _passes()[-1][0]


def same_in_both_passes(owner: object, decide: Callable[[], Tensor]) -> Tensor:
    """`decide()` of the first forward pass; its answer again when the pass is repeated. `owner` tells decisions of one layer apart.

    A repeated choice of experts must not depend on rounding, nor on whether routing is still being forced.
    """
    if not _passes():
        return decide()
    recomputing, kept = _passes()[-1]
    if not recomputing:
        kept[id(owner)] = decide()
    return kept[id(owner)]


def recomputed(function: Callable[..., Tensor], *inputs: object) -> Tensor:
    """function(*inputs) with its activations dropped and computed again in the backward pass."""
    output: Tensor = checkpoint(
        function, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=_both_passes, determinism_check="default"
    )
    return output


def _passes() -> list[tuple[bool, dict[int, Tensor]]]:
    """Recomputed functions that this thread is inside of: whether it is the repetition, and the decisions of that call."""
    if not hasattr(_state, "passes"):
        _state.passes = []
    passes: list[tuple[bool, dict[int, Tensor]]] = _state.passes
    return passes


def _both_passes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    kept: dict[int, Tensor] = {}
    return _inside(False, kept), _inside(True, kept)


@contextmanager
def _inside(recomputing: bool, kept: dict[int, Tensor]) -> Iterator[None]:
    _passes().append((recomputing, kept))
    try:
        yield
    finally:
        _passes().pop()
