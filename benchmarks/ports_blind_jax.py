"""Ports of decoders that JAX trained, written before `match` saw any of them: MaxText into Mixtral, and Gemma."""

from __future__ import annotations

import numpy as np
import torch
from ports_common import Array, Arrays, Port, State, ids
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

# --- MaxText: layers scanned along the second axis, experts, grouped queries, into Mixtral's names --------------------

WIDTH, LAYERS, EXPERTS, HEADS, GROUPS, SIZE, MLP = 16, 3, 4, 4, 2, 6, 20


class Rms(nn.Module):
    def __init__(self, width: int, base: float = 0.0) -> None:
        super().__init__()
        self.weight, self.base = nn.Parameter(torch.ones(width) - base), base

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (self.base + self.weight)


class Grouped(nn.Module):
    def __init__(self, groups: int = GROUPS) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, groups * SIZE, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (y.repeat_interleave(HEADS // k.shape[1], 1) for y in (k, v))
        return self.o_proj(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MixtralExpert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, MLP, bias=False), nn.Linear(MLP, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, MLP, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class MixtralLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Grouped()
        self.block_sparse_moe = nn.ModuleDict({"gate": nn.Linear(WIDTH, EXPERTS, bias=False)})
        self.block_sparse_moe["experts"] = nn.ModuleList(MixtralExpert() for _ in range(EXPERTS))
        self.input_layernorm, self.post_attention_layernorm = Rms(WIDTH), Rms(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        share = self.block_sparse_moe["gate"](y).softmax(-1)
        return x + sum(share[..., k, None] * f(y) for k, f in enumerate(self.block_sparse_moe["experts"]))


class Mixtral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(36, WIDTH)
        self.layers = nn.ModuleList(MixtralLayer() for _ in range(LAYERS))
        self.norm, self.lm_head = Rms(WIDTH), nn.Linear(WIDTH, 36, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed_tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def maxtext(s: State) -> Arrays:
    home, out = "params/decoder/layers", {"params/token_embedder/embedding": s["embed_tokens.weight"]}

    def scanned(ours: str, *shape: int) -> Array:
        every = [s[f"layers.{k}.{ours}.weight"].T for k in range(LAYERS)]
        return np.stack([w.reshape(shape or w.shape) for w in every], 1)

    attention = f"{home}/self_attention"
    out[f"{attention}/query/kernel"] = scanned("self_attn.q_proj", WIDTH, HEADS, SIZE)
    out[f"{attention}/key/kernel"] = scanned("self_attn.k_proj", WIDTH, GROUPS, SIZE)
    out[f"{attention}/value/kernel"] = scanned("self_attn.v_proj", WIDTH, GROUPS, SIZE)
    out[f"{attention}/out/kernel"] = scanned("self_attn.o_proj", HEADS, SIZE, WIDTH)
    out[f"{home}/MoeBlock_0/gate/kernel"] = scanned("block_sparse_moe.gate")
    for ours, theirs in (("w1", "wi_0"), ("w3", "wi_1"), ("w2", "wo")):
        every = [scanned(f"block_sparse_moe.experts.{e}.{ours}") for e in range(EXPERTS)]
        out[f"{home}/MoeBlock_0/{theirs}"] = np.stack(every)
    out[f"{home}/pre_self_attention_layer_norm/scale"] = scanned("input_layernorm")
    out[f"{home}/post_self_attention_layer_norm/scale"] = scanned("post_attention_layernorm")
    out |= {"params/decoder/decoder_norm/scale": s["norm.weight"]}
    return dict(sorted((out | {"params/decoder/logits_dense/kernel": s["lm_head.weight"].T}).items()))


# --- Gemma of Flax: einsums with heads first, key and value in one, gate and up in one --------------------------------


class GemmaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Grouped(1)
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down_proj = nn.Linear(24, WIDTH, bias=False)
        self.input_layernorm, self.post_attention_layernorm = Rms(WIDTH, 1.0), Rms(WIDTH, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(gelu(self.gate_proj(y), approximate="tanh") * self.up_proj(y))


class Gemma(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(36, WIDTH)
        self.layers = nn.ModuleList(GemmaLayer() for _ in range(LAYERS))
        self.norm = Rms(WIDTH, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed_tokens(x) * WIDTH**0.5
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.embed_tokens.weight.T


def gemma(s: State) -> Arrays:
    out = {"transformer/embedder/input_embedding": s["embed_tokens.weight"]}
    for k in range(LAYERS):
        at, home = f"layers.{k}", f"transformer/layer_{k}"
        q, key, value, o = (s[f"{at}.self_attn.{x}_proj.weight"] for x in "qkvo")
        heads = [w.reshape(-1, SIZE, WIDTH).transpose(0, 2, 1) for w in (q, key, value)]  # n d h
        out |= {f"{home}/attn/q_einsum/w": heads[0], f"{home}/attn/kv_einsum/w": np.stack(heads[1:])}
        out[f"{home}/attn/attn_vec_einsum/w"] = o.T.reshape(HEADS, SIZE, WIDTH)
        out[f"{home}/mlp/gating_einsum"] = np.stack([s[f"{at}.{x}_proj.weight"].T for x in ("gate", "up")])
        out[f"{home}/mlp/linear"] = s[f"{at}.down_proj.weight"].T
        out[f"{home}/pre_attention_norm/scale"] = s[f"{at}.input_layernorm.weight"]
        out[f"{home}/pre_ffw_norm/scale"] = s[f"{at}.post_attention_layernorm.weight"]
    return dict(sorted((out | {"transformer/final_norm/scale": s["norm.weight"]}).items()))


PORTS = {
    "maxtext": Port("MaxText, scanned experts, into Mixtral's names", Mixtral, maxtext, ids(36)),
    "gemma": Port("Flax Gemma, fused einsums, grouped queries", Gemma, gemma, ids(36)),
}
