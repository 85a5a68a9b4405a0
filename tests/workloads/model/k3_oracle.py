"""The K3 forward pass written a second time, from the equations, with loops, in float64: no code of ours is used.

Takes weights under their released names. Slow on purpose: one token, one expert, one source at a time. Shapes come from the weights,
the rest from keyword arguments, so that tests can pass wrong ones (mutations) and see the comparison fail.
"""

import math
from itertools import pairwise

import torch


def rms(x, weight, eps):
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def short_conv(x, weight):
    """x [T, P], weight [P, 1, W]."""
    taps = weight.shape[-1]
    rows = []
    for t in range(x.shape[0]):
        total = torch.zeros_like(x[0])
        for j in range(taps):
            source = t - (taps - 1) + j
            if source >= 0:
                total = total + weight[:, 0, j] * x[source]
        rows.append(total * torch.sigmoid(total))
    return torch.stack(rows)


def kda(x, w, prefix, *, lower_bound=-5.0, eps=1e-5, scale=None, decay_sign=1.0, read_first=False, decay_last=False, beta_scale=1.0):
    """One document x [T, D]."""
    heads = w[prefix + "b_proj.weight"].shape[0]
    width = w[prefix + "o_norm.weight"].shape[0]
    q, k, v = (short_conv(x @ w[f"{prefix}{n}_proj.weight"].T, w[f"{prefix}{n}_conv1d.weight"]).view(-1, heads, width) for n in "qkv")
    q = q / (q.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    k = k / (k.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = beta_scale * torch.sigmoid(x @ w[prefix + "b_proj.weight"].T)
    pre = (x @ w[prefix + "f_a_proj.weight"].T) @ w[prefix + "f_b_proj.weight"].T + w[prefix + "dt_bias"]
    steepness = w[prefix + "A_log"][:heads].exp()
    decay = decay_sign * lower_bound * torch.sigmoid(steepness[:, None] * pre.view(-1, heads, width))
    scale = width**-0.5 if scale is None else scale
    gate = torch.sigmoid(x @ w[prefix + "g_proj.weight"].T).view(-1, heads, width)
    rows = []
    states = [torch.zeros(width, width, dtype=x.dtype) for _ in range(heads)]
    for t in range(x.shape[0]):
        outputs = []
        for h in range(heads):
            state = states[h]
            if read_first:
                outputs.append(scale * state.T @ q[t, h])
            if not decay_last:
                state = decay[t, h].exp()[:, None] * state
            state = state + beta[t, h] * torch.outer(k[t, h], v[t, h] - state.T @ k[t, h])
            if decay_last:
                state = decay[t, h].exp()[:, None] * state
            if not read_first:
                outputs.append(scale * state.T @ q[t, h])
            states[h] = state
        rows.append(torch.stack([gate[t, h] * rms(outputs[h], w[prefix + "o_norm.weight"], eps) for h in range(heads)]).flatten())
    return torch.stack(rows) @ w[prefix + "o_proj.weight"].T


def mla(x, w, prefix, *, nope, rope, value, eps=1e-6, scale=None, drop_shared_key=False):
    """One document x [T, D]."""
    latent = w[prefix + "kv_a_layernorm.weight"].shape[0]
    heads = w[prefix + "q_b_proj.weight"].shape[0] // (nope + rope)
    q = rms(x @ w[prefix + "q_a_proj.weight"].T, w[prefix + "q_a_layernorm.weight"], eps) @ w[prefix + "q_b_proj.weight"].T
    q = q.view(-1, heads, nope + rope)
    compressed = x @ w[prefix + "kv_a_proj_with_mqa.weight"].T
    shared = compressed[:, latent:]
    kv = rms(compressed[:, :latent], w[prefix + "kv_a_layernorm.weight"], eps) @ w[prefix + "kv_b_proj.weight"].T
    kv = kv.view(-1, heads, nope + value)
    scale = (nope + rope) ** -0.5 if scale is None else scale
    gate = torch.sigmoid(x @ w[prefix + "g_proj.weight"].T)
    rows = []
    for t in range(x.shape[0]):
        outputs = []
        for h in range(heads):
            keys = kv[: t + 1, h, :nope] @ q[t, h, :nope]
            if not drop_shared_key:
                keys = keys + shared[: t + 1] @ q[t, h, nope:]
            outputs.append(torch.softmax(scale * keys, 0) @ kv[: t + 1, h, nope:])
        rows.append(torch.cat(outputs))
    return (torch.stack(rows) * gate) @ w[prefix + "o_proj.weight"].T


def attention_residual(sources, w, prefix, *, eps=1e-5):
    query, norm = w[prefix + "_proj.weight"][0], w[prefix + "_norm.weight"]
    scores = torch.stack([rms(v, norm, eps) @ query for v in sources])
    weights = torch.softmax(scores, 0)
    return sum(weights[i][:, None] * sources[i] for i in range(len(sources)))


def situ(g, u, beta=4.0, linear_beta=25.0):
    return beta * torch.tanh(g / beta) * torch.sigmoid(g) * linear_beta * torch.tanh(u / linear_beta)


def situ_mlp(x, gate, up, down):
    return situ(x @ gate.T, x @ up.T) @ down.T


def moe(x, w, prefix, *, top_k, eps=1e-5, padding=None, chosen=None):
    """x [T, D]; returns the output and the choices [T, K]."""
    scores = torch.sigmoid(x @ w[prefix + "gate.weight"].T)
    if chosen is None:
        chosen = (scores + w[prefix + "gate.e_score_correction_bias"]).topk(top_k, -1).indices
    latent = x @ w[prefix + "routed_expert_down_proj.weight"].T
    rows = []
    for t in range(x.shape[0]):
        mixed = torch.zeros_like(latent[t])
        total = scores[t, chosen[t]].sum() + 1e-20
        for e in chosen[t].tolist():
            if padding is not None and padding[t]:
                continue
            p = f"{prefix}experts.{e}."
            mixed = mixed + scores[t, e] / total * situ_mlp(latent[t], w[p + "w1.weight"], w[p + "w3.weight"], w[p + "w2.weight"])
        rows.append(mixed)
    routed = rms(torch.stack(rows), w[prefix + "routed_expert_norm.weight"], eps) @ w[prefix + "routed_expert_up_proj.weight"].T
    shared = situ_mlp(x, *(w[f"{prefix}shared_experts.{n}_proj.weight"] for n in ("gate", "up", "down")))
    return routed + shared, chosen


def vision(patches, grids, w, *, heads, theta=1e4, eps=1e-5):
    """patches [P, 3 * patch * patch]; image by image. Returns the decoder's rows [P / 4, D]."""
    p = "vision_tower."
    blocks = len({name.split(".")[3] for name in w if name.startswith(p + "encoder.blocks.")})
    table = w[p + "patch_embed.pos_emb.weight"]
    outputs, start = [], 0
    for rows, columns in grids:
        image = patches[start : start + rows * columns]
        start += rows * columns
        positions = torch.nn.functional.interpolate(
            table.permute(2, 0, 1)[None], size=(rows, columns), mode="bilinear", align_corners=False
        )[0].permute(1, 2, 0)
        x = image @ w[p + "patch_embed.proj.weight"].flatten(1).T + positions.reshape(rows * columns, -1)
        for b in range(blocks):
            n = f"{p}encoder.blocks.{b}."
            qkv = rms(x, w[n + "norm0.weight"], eps) @ w[n + "wqkv.weight"].T
            width = qkv.shape[1] // 3 // heads
            q, k, v = qkv.view(-1, 3, heads, width).unbind(1)
            q, k = (_rope_2d(y, rows, columns, theta) for y in (q, k))
            attended = []
            for h in range(heads):
                attended.append(torch.softmax(q[:, h] @ k[:, h].T * width**-0.5, -1) @ v[:, h])
            x = x + torch.cat(attended, -1) @ w[n + "wo.weight"].T
            hidden = rms(x, w[n + "norm1.weight"], eps) @ w[n + "mlp.fc0.weight"].T
            hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
            x = x + hidden @ w[n + "mlp.fc1.weight"].T
        x = rms(x, w[p + "encoder.final_layernorm.weight"], eps).view(rows, columns, -1)
        for r in range(0, rows, 2):
            for c in range(0, columns, 2):
                outputs.append(torch.cat([x[r, c], x[r, c + 1], x[r + 1, c], x[r + 1, c + 1]]))
    merged = torch.stack(outputs) @ w["mm_projector.proj.0.weight"].T
    merged = 0.5 * merged * (1 + torch.erf(merged / math.sqrt(2)))
    return rms(merged @ w["mm_projector.proj.2.weight"].T, w["mm_projector.post_norm.weight"], eps)


def _rope_2d(x, rows, columns, theta):
    out = x.clone()
    width = x.shape[-1]
    for index in range(rows * columns):
        row, column = divmod(index, columns)
        for pair in range(width // 2):
            angle = (column if pair % 2 == 0 else row) * theta ** (-4 * (pair // 2) / width)
            a, b = x[index, :, 2 * pair], x[index, :, 2 * pair + 1]
            out[index, :, 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            out[index, :, 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def decoder(batch, w, config, *, chosen=None):
    """Logits [T, V] and the choices by layer. `w` are released names; routing can be forced by layer."""
    w = {name.removeprefix("language_model."): value.double() for name, value in w.items()}
    bounds = batch.cu_seqlens_N1.tolist()
    spans = [(a, b) for a, b in pairwise(bounds) if b > a]

    def per_document(function, x):
        return torch.cat([function(x[a:b]) for a, b in spans])

    p = w["model.embed_tokens.weight"][batch.tokens_T].clone()
    if batch.image_positions_M.numel():
        grids = [tuple(g) for g in batch.image_grids_I2.tolist()]
        p[batch.image_positions_M] = vision(batch.patches_PD.double(), grids, w, heads=config.vision_num_heads)
    blocks, choices = [], {}
    for i in range(config.num_layers):
        n = f"model.layers.{i}."
        h = attention_residual([*blocks, p], w, n + "self_attention_res") if blocks else p
        if i % config.attn_res_block_size == 0:
            blocks.append(p)
            p = torch.zeros_like(p)
        h = rms(h, w[n + "input_layernorm.weight"], 1e-5)
        if n + "self_attn.A_log" in w:
            p = p + per_document(lambda x, n=n: kda(x, w, n + "self_attn."), h)
        else:
            sizes = {"nope": config.mla_nope_head_dim, "rope": config.mla_rope_head_dim, "value": config.mla_v_head_dim}
            p = p + per_document(lambda x, n=n, sizes=sizes: mla(x, w, n + "self_attn.", **sizes), h)
        h = rms(attention_residual([*blocks, p], w, n + "mlp_res"), w[n + "post_attention_layernorm.weight"], 1e-5)
        if n + "mlp.gate_proj.weight" in w:
            p = p + situ_mlp(h, *(w[f"{n}mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        else:
            forced = None if chosen is None else chosen[i]
            out, choices[i] = moe(h, w, n + "block_sparse_moe.", top_k=config.experts_per_token, padding=batch.is_padding_T, chosen=forced)
            p = p + out
    out = rms(attention_residual([*blocks, p], w, "model.output_attn_res"), w["model.norm.weight"], 1e-5)
    return out @ w["lm_head.weight"].T, choices
