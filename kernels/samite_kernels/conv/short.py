"""`short_conv`: the short causal convolution of the KDA layer, on Hopper by one kernel, elsewhere in plain torch."""

import torch
from torch import Tensor

from samite_kernels.conv.reference import checked, short_conv_reference
from samite_kernels.conv.sm90 import fits_sm90, short_conv_sm90
from samite_kernels.kda.documents import Documents


def short_conv(
    x: Tensor,
    weight: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    activation: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """x [B, T, D], weight [D, W] or [D, 1, W] (tap W - 1 is the current token); SiLU after unless `activation` is False.

    `initial_state` [N, W - 1, D]: the inputs just before each document (each batch row without `cu_seqlens`), oldest first: the halo
    of context parallelism and the cache of decoding. Returns y [B, T, D] in the dtype of x and the state after each document,
    [N, W - 1, D] (None unless asked for). Raises ValueError for shapes or offsets that don't fit.

        y, _ = short_conv(x, weight, cu_seqlens=torch.tensor([0, 5, 12]))
    """
    if not fits_sm90(x, weight):
        return short_conv_reference(
            x,
            weight,
            cu_seqlens=cu_seqlens,
            initial_state=initial_state,
            output_final_state=output_final_state,
            activation=activation,
        )
    taps, documents = checked(x, weight, cu_seqlens=cu_seqlens, initial_state=initial_state)
    y = short_conv_sm90(x, taps, documents, initial_state, activation=activation)
    return y, last_inputs(x.flatten(0, 1), documents, taps.shape[1] - 1, initial_state) if output_final_state else None


def last_inputs(x: Tensor, documents: Documents, history: int, initial_state: Tensor | None) -> Tensor:
    """The state after each document, [N, history, D]: the last inputs x [T, D], before them those of the initial state."""
    states: list[Tensor] = []
    for document, piece in enumerate(x.split(list(documents.lengths))):
        before = x.new_zeros(history, x.shape[-1]) if initial_state is None else initial_state[document].to(x.dtype)
        states.append(torch.cat([before, piece[-history:]])[-history:])
    return torch.stack(states)
