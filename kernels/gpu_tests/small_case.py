# ruff: noqa: INP001 - tests that travel with this folder
"""One small forward and backward of every kernel for compute-sanitizer: partly filled chunks, states in and out, states kept and recomputed,
both ways of counting, pieces."""

import os

import torch
from cases import make_inputs, run

from samite_kernels.conv import short_conv_qkv
from samite_kernels.kda import counted_chunk_kda, recurrent_kda, sm90, sm90_counts, sm90_pieces
from samite_kernels.kda.documents import Documents
from samite_kernels.residual import attention_residual, freeze
from samite_kernels.router import count_margins, route

if __name__ == "__main__":
    for recompute in (False, True):
        results = run(make_inputs(100, 1), Documents((0, 70, 100)), backend="sm90", recompute=recompute)
        print("kda", {name: float(x.float().norm()) for name, x in results.items()})  # noqa: T201
    for who in ("beside", "idle"):
        os.environ[sm90_counts.VARIABLE] = who
        print("counts", who, int(counted_chunk_kda(**make_inputs(100, 1))[2].gate_sat_count))  # noqa: T201
    sm90.wanted_pieces = lambda documents, num_heads, device: sm90_pieces.pieces_of(documents, num_heads, device, 16, 1)
    results = run(make_inputs(300, 1), Documents((0, 290, 290, 300)), backend="sm90")
    print("pieces", {name: float(x.float().norm()) for name, x in results.items()})  # noqa: T201

    for name in ("CONV", "ROUTER", "DECODE", "RESIDUAL"):
        os.environ[f"SAMITE_KERNELS_{name}"] = "sm90"
    streams = [torch.randn(1, 300, width, device="cuda").bfloat16().requires_grad_() for width in (12, 516, 8)]
    taps = [torch.randn(x.shape[-1], 4, device="cuda", requires_grad=True) for x in streams]
    states = [torch.randn(2, 3, x.shape[-1], device="cuda").bfloat16().requires_grad_() for x in streams]
    offsets = torch.tensor([0, 2, 300])
    y, _ = short_conv_qkv(*streams, (taps[0], taps[1], taps[2]), cu_seqlens=offsets, initial_states=(states[0], states[1], states[2]))
    sum(x.float().square().sum() for x in y).backward()
    print("conv", [float(x.grad.float().norm()) for x in (*streams, *taps, *states)])  # noqa: T201

    logits = torch.randn(77, 896, device="cuda", requires_grad=True)
    counts = torch.zeros(896, 1001, dtype=torch.int32, device="cuda")
    bias = torch.zeros(896, device="cuda")
    routes = route(logits, bias, top_k=16)
    count_margins(logits, bias, routes.threshold_T, routes.chosen_TK, counts, is_padding_T=torch.arange(77, device="cuda") % 5 == 0)
    routes.weight_TK.square().sum().backward()
    print("router", int(counts.sum()), float(logits.grad.norm()))  # noqa: T201

    o, state = recurrent_kda(**make_inputs(5, 2), cu_seqlens=torch.tensor([0, 0, 1, 5]), output_final_state=True)
    print("decode", float(o.float().norm()), float(state.norm()))  # noqa: T201

    values = [torch.randn(70, 520, device="cuda").bfloat16().requires_grad_() for _ in range(4)]
    query, weight = torch.randn(520, device="cuda", requires_grad=True), torch.ones(520, device="cuda", requires_grad=True)
    blocks = [freeze(x) for x in values]
    mixed = attention_residual(blocks, query, norm_weight_D=weight) + attention_residual(blocks[:2], query)
    mixed.float().square().sum().backward()
    print("residual", [float(x.grad.float().norm()) for x in (query, weight, *values) if x.grad is not None])  # noqa: T201
