"""`route`: which experts see a token and with which weight; `count_margins`: what quantile balancing learns from it.

    logits --sigmoid--> scores --+ bias--> top K + 1 --> chosen, threshold        chosen scores / their sum --> weights
                          `----------- threshold - score --> histogram of margins per expert

Called by a mixture-of-experts layer after its router product. `SAMITE_KERNELS_ROUTER` forces the kernels or plain
torch. Among equal biased scores the kernel takes the lower expert number; torch promises no order.
Legend: T tokens, E experts, K experts per token, B bins.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from samite_kernels.router.reference import count_margins_reference, route_reference
from samite_kernels.router.sm90 import MOST_BINS, MOST_EXPERTS, MOST_K, count_margins_sm90, route_sm90
from samite_kernels.runtime.choice import Choice, choose
from samite_kernels.runtime.launch import hopper_obstacle
from samite_kernels.runtime.tensors import check_devices

VARIABLE = "SAMITE_KERNELS_ROUTER"


class Routes(NamedTuple):
    """Where tokens go."""

    chosen_TK: Tensor
    """int64 [T, K], best first."""
    weight_TK: Tensor
    """[T, K] in the type of the logits, rows sum to the scaling factor; the only part with a gradient."""
    threshold_T: Tensor
    """[T], the (K + 1)-th largest score + bias: what `count_margins` needs."""


def route(logits_TE: Tensor, bias_E: Tensor, *, top_k: int, scaling_factor: float = 1.0) -> Routes:
    """Choice and weights of every token from logits [T, E] and the selection bias [E]; the bias never enters a weight.

    Raises ValueError for shapes that don't fit and for a forced kernel that can't run.

        routes = route(logits, bias, top_k=16)
        count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, counts)
    """
    _check(logits_TE, bias_E, top_k)
    if explain_route(logits_TE, top_k=top_k).backend == "sm90":
        return Routes(*route_sm90(logits_TE, bias_E, top_k, scaling_factor))
    return Routes(*route_reference(logits_TE, bias_E, top_k=top_k, scaling_factor=scaling_factor))


def count_margins(
    logits_TE: Tensor,
    bias_E: Tensor,
    threshold_T: Tensor,
    chosen_TK: Tensor,
    counts_EB1: Tensor,
    *,
    is_padding_T: Tensor | None = None,
) -> None:
    """Adds the margins and choices of one micro-batch to `counts_EB1` [E, B + 1] int32, in place; its last column is the load.

    Margins threshold - score lie in [min bias - 1, max bias + 1], which the B bins divide evenly. Tokens of `is_padding_T` [T] don't count.
    Integer sums: shards, micro-batches and the order of threads cannot change them.
    """
    _check(logits_TE, bias_E, chosen_TK.shape[-1])
    if counts_EB1.dtype != torch.int32 or counts_EB1.dim() != 2 or counts_EB1.shape[0] != logits_TE.shape[1] or counts_EB1.shape[1] < 2:
        raise ValueError(f"counts must be int32 [{logits_TE.shape[1]}, B + 1], found {counts_EB1.dtype} {list(counts_EB1.shape)}")
    if not counts_EB1.is_contiguous():
        raise ValueError(f"counts must be contiguous, as they are added to in place, found strides {counts_EB1.stride()}")
    num_tokens = logits_TE.shape[0]
    wanted = {"threshold": (threshold_T, (num_tokens,)), "chosen": (chosen_TK, (num_tokens, chosen_TK.shape[-1]))}
    for name, (tensor, shape) in (wanted | {"is_padding": (is_padding_T, (num_tokens,))}).items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)} to fit the logits, found {list(tensor.shape)}")
    if chosen_TK.dtype != torch.int64:
        raise ValueError(f"chosen must be int64 as route returns it, found {chosen_TK.dtype}")
    check_devices(("logits", logits_TE), threshold=threshold_T, chosen=chosen_TK, counts=counts_EB1, is_padding=is_padding_T)
    arguments = (logits_TE.detach(), bias_E, threshold_T.detach(), chosen_TK, counts_EB1, is_padding_T)
    if explain_route(logits_TE, top_k=chosen_TK.shape[-1], num_bins=counts_EB1.shape[1] - 1).backend == "sm90":
        count_margins_sm90(*arguments)
    else:
        count_margins_reference(*arguments)


def explain_route(logits_TE: Tensor, *, top_k: int, num_bins: int = 1) -> Choice:
    """Which backend runs for such inputs, and why. Raises ValueError when a forced kernel can't run."""
    return choose("router", VARIABLE, _obstacle(logits_TE, top_k, num_bins))


def _check(logits_TE: Tensor, bias_E: Tensor, top_k: int) -> None:
    if logits_TE.dim() != 2 or tuple(bias_E.shape) != (logits_TE.shape[1],):
        raise ValueError(f"logits must be [T, E] and bias [E], found {list(logits_TE.shape)} and {list(bias_E.shape)}")
    check_devices(("logits", logits_TE), bias=bias_E)
    if not 0 < top_k < logits_TE.shape[1]:
        raise ValueError(f"top_k must lie in [1, {logits_TE.shape[1] - 1}] for {logits_TE.shape[1]} experts, found {top_k}")


def _obstacle(logits_TE: Tensor, top_k: int, num_bins: int) -> str | None:
    if logits_TE.dtype != torch.float32:
        return f"the logits are {logits_TE.dtype}, it needs float32"
    if logits_TE.shape[1] % 128 or logits_TE.shape[1] > MOST_EXPERTS:
        return f"there are {logits_TE.shape[1]} experts, it needs a multiple of 128 up to {MOST_EXPERTS}"
    if top_k > MOST_K:
        return f"top_k is {top_k}, it needs at most {MOST_K}"
    if num_bins > MOST_BINS:
        return f"there are {num_bins} bins, it needs at most {MOST_BINS}"
    return hopper_obstacle(logits_TE.device)
