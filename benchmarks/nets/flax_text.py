"""Ports of language models of T5X, MaxText and Flax."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import (
    gelu,
    scaled_dot_product_attention,
    silu,
)

from nets.common import (
    Array,
    Arrays,
    Port,
    State,
    ids,
    kernel,
)

# --- T5X mixture of experts, stacked ----------------------------------------------------------------------------------


class Expert(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(self.wi(x).relu())


class Sparse(nn.Module):
    def __init__(self, d: int, count: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(d)
        self.gate = nn.Linear(d, count, bias=False)
        self.experts = nn.ModuleList([Expert(d) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(x)
        weights = self.gate(h).softmax(-1)
        return x + sum(weights[..., k : k + 1] * e(h) for k, e in enumerate(self.experts))


class Moe(nn.Module):
    """Layers of eight experts each."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(40, 12)
        self.layers = nn.ModuleList([Sparse(12, 8) for _ in range(2)])
        self.lm_head = nn.Linear(12, 40, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.shared(x)
        for layer in self.layers:
            y = layer(y)
        return self.lm_head(y)


def moe(s: State) -> Arrays:
    """As T5X stores them: the experts of a layer in one tensor."""
    out = {"target/token_embedder/embedding": s["shared.weight"]}
    for k in range(2):
        at, home = f"layers.{k}", f"target/decoder/layers_{k}"
        out |= {f"{home}/pre_mlp_layer_norm/scale": s[f"{at}.ln.weight"]}
        out |= {f"{home}/pre_mlp_layer_norm/bias": s[f"{at}.ln.bias"]}
        out[f"{home}/mlp/router/router_weights/w/kernel"] = s[f"{at}.gate.weight"].T
        for p in ("wi", "wo"):
            every = [s[f"{at}.experts.{e}.{p}.weight"].T for e in range(8)]
            out[f"{home}/mlp/expert/{p}/kernel"] = np.stack(every)
    return dict(sorted((out | {"target/decoder/logits_dense/kernel": s["lm_head.weight"].T}).items()))


# --- T5X encoder and decoder ------------------------------------------------------------------------------------------


class Attend(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, causal: bool = False) -> Tensor:
        q, k, v = (
            m(z).view(*z.shape[:2], self.heads, -1).transpose(1, 2) for m, z in ((self.q, x), (self.k, y), (self.v, y))
        )
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1.0)
        return self.o(z.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False)
        self.wo = nn.Linear(2 * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(gelu(self.wi_0(x)) * self.wi_1(x))


class T5(nn.Module):
    """Encoder and decoder, norms without bias, a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        d = 16
        self.shared = nn.Embedding(40, d)

        def layer(cross: bool) -> nn.ModuleDict:
            parts = {"norm1": nn.RMSNorm(d, 1e-6), "self_attn": Attend(d, 4)}
            parts |= {"norm_x": nn.RMSNorm(d, 1e-6), "cross_attn": Attend(d, 4)} if cross else {}
            return nn.ModuleDict(parts | {"norm2": nn.RMSNorm(d, 1e-6), "ff": Gated(d)})

        self.encoder = nn.ModuleList([layer(False) for _ in range(2)])
        self.encoder_norm = nn.RMSNorm(d, 1e-6)
        self.decoder = nn.ModuleList([layer(True) for _ in range(2)])
        self.decoder_norm = nn.RMSNorm(d, 1e-6)
        self.lm_head = nn.Linear(d, 40, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        e = self.shared(x)
        for layer in self.encoder:
            h = layer["norm1"](e)
            e = e + layer["self_attn"](h, h)
            e = e + layer["ff"](layer["norm2"](e))
        e, y = self.encoder_norm(e), self.shared(x.roll(1, 1))
        for layer in self.decoder:
            h = layer["norm1"](y)
            y = y + layer["self_attn"](h, h, True)
            y = y + layer["cross_attn"](layer["norm_x"](y), e)
            y = y + layer["ff"](layer["norm2"](y))
        return self.lm_head(self.decoder_norm(y))


def t5x(s: State) -> Arrays:
    out = {"target/token_embedder/embedding": s["shared.weight"]}
    names = {"q": "query", "k": "key", "v": "value", "o": "out"}
    for stack in ("encoder", "decoder"):
        for k in range(2):
            at, home = f"{stack}.{k}", f"target/{stack}/layers_{k}"
            attention = "attention" if stack == "encoder" else "self_attention"
            before = "pre_attention_layer_norm" if stack == "encoder" else "pre_self_attention_layer_norm"
            out[f"{home}/{before}/scale"] = s[f"{at}.norm1.weight"]
            for q, name in names.items():
                out[f"{home}/{attention}/{name}/kernel"] = s[f"{at}.self_attn.{q}.weight"].T
                if stack == "decoder":
                    out[f"{home}/encoder_decoder_attention/{name}/kernel"] = s[f"{at}.cross_attn.{q}.weight"].T
            if stack == "decoder":
                out[f"{home}/pre_cross_attention_layer_norm/scale"] = s[f"{at}.norm_x.weight"]
            out[f"{home}/pre_mlp_layer_norm/scale"] = s[f"{at}.norm2.weight"]
            for w in ("wi_0", "wi_1", "wo"):
                out[f"{home}/mlp/{w}/kernel"] = s[f"{at}.ff.{w}.weight"].T
        out[f"target/{stack}/{stack}_norm/scale"] = s[f"{stack}_norm.weight"]
    out["target/decoder/logits_dense/kernel"] = s["lm_head.weight"].T
    return dict(sorted(out.items()))


# --- Flax Gemma, fused einsums, grouped queries -----------------------------------------------------------------------

WIDTH, LAYERS, SCANNED_EXPERTS, HEADS, GROUPS, SIZE, MLP = 16, 3, 4, 4, 2, 6, 20


class Rms(nn.Module):
    def __init__(self, width: int, base: float = 0.0) -> None:
        super().__init__()
        self.weight, self.base = nn.Parameter(torch.ones(width) - base), base

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (self.base + self.weight)


class GroupedQueries(nn.Module):
    def __init__(self, groups: int = GROUPS) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, groups * SIZE, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (y.repeat_interleave(HEADS // k.shape[1], 1) for y in (k, v))
        return self.o_proj(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class GemmaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = GroupedQueries(1)
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


# --- MaxText, scanned experts, into Mixtral's names -------------------------------------------------------------------


class MixtralExpert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, MLP, bias=False), nn.Linear(MLP, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, MLP, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class ScannedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = GroupedQueries()
        self.block_sparse_moe = nn.ModuleDict({"gate": nn.Linear(WIDTH, SCANNED_EXPERTS, bias=False)})
        self.block_sparse_moe["experts"] = nn.ModuleList(MixtralExpert() for _ in range(SCANNED_EXPERTS))
        self.input_layernorm, self.post_attention_layernorm = Rms(WIDTH), Rms(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        share = self.block_sparse_moe["gate"](y).softmax(-1)
        return x + sum(share[..., k, None] * f(y) for k, f in enumerate(self.block_sparse_moe["experts"]))


class ScannedMixtral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(36, WIDTH)
        self.layers = nn.ModuleList(ScannedLayer() for _ in range(LAYERS))
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
        every = [scanned(f"block_sparse_moe.experts.{e}.{ours}") for e in range(SCANNED_EXPERTS)]
        out[f"{home}/MoeBlock_0/{theirs}"] = np.stack(every)
    out[f"{home}/pre_self_attention_layer_norm/scale"] = scanned("input_layernorm")
    out[f"{home}/post_self_attention_layer_norm/scale"] = scanned("post_attention_layernorm")
    out |= {"params/decoder/decoder_norm/scale": s["norm.weight"]}
    return dict(sorted((out | {"params/decoder/logits_dense/kernel": s["lm_head.weight"].T}).items()))


# --- MaxText mixture of experts, scanned, grouped heads ---------------------------------------------------------------

D, KV, EXPERTS, HIDDEN = 16, 2, 4, 24


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(D, D, bias=False), nn.Linear(D, 4 * KV, bias=False)
        self.v_proj, self.o_proj = nn.Linear(D, 4 * KV, bias=False), nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Swiglu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(D, HIDDEN, bias=False), nn.Linear(HIDDEN, D, bias=False)
        self.w3 = nn.Linear(D, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class SparseBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Swiglu() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(weights[..., k : k + 1] * e(x) for k, e in enumerate(self.experts))


class MixtralLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.block_sparse_moe = Grouped(), SparseBlock()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(D), nn.RMSNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.block_sparse_moe(self.post_attention_layernorm(x))


class Mixtral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(40, D)})
        self.model["layers"] = nn.ModuleList(MixtralLayer() for _ in range(3))
        self.model["norm"] = nn.RMSNorm(D)
        self.lm_head = nn.Linear(D, 40, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.model["embed_tokens"](x)
        for layer in self.model["layers"]:
            y = layer(y)
        return self.lm_head(self.model["norm"](y))


def mixtral(s: State) -> Arrays:
    home = "params/decoder/layers"

    def stack(ours: str, shape: tuple[int, ...] = ()) -> Array:
        every = [s[f"model.layers.{k}.{ours}.weight"].T for k in range(3)]
        return np.stack([w.reshape(shape or w.shape) for w in every], 1)

    out = {"params/token_embedder/embedding": s["model.embed_tokens.weight"]}
    out[f"{home}/pre_self_attention_layer_norm/scale"] = stack("input_layernorm")
    out[f"{home}/post_self_attention_layer_norm/scale"] = stack("post_attention_layernorm")
    for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value")):
        out[f"{home}/self_attention/{theirs}/kernel"] = stack(f"self_attn.{ours}_proj", (D, -1, 4))
    out[f"{home}/self_attention/out/kernel"] = stack("self_attn.o_proj", (4, 4, D))
    out[f"{home}/MoeBlock_0/gate/kernel"] = stack("block_sparse_moe.gate")
    for ours, theirs in (("w1", "wi_0"), ("w3", "wi_1"), ("w2", "wo")):
        every = [stack(f"block_sparse_moe.experts.{e}.{ours}").transpose(1, 0, 2) for e in range(EXPERTS)]
        out[f"{home}/MoeBlock_0/{theirs}"] = np.stack(every)
    out["params/decoder/decoder_norm/scale"] = s["model.norm.weight"]
    out["params/decoder/logits_dense/kernel"] = kernel(s["lm_head.weight"])
    return dict(sorted(out.items()))


PORTS = {
    "moe": Port("T5X mixture of experts, stacked", Moe, moe, ids(40)),
    "t5": Port("T5X encoder and decoder", T5, t5x, ids(40)),
    "gemma": Port("Flax Gemma, fused einsums, grouped queries", Gemma, gemma, ids(36)),
    "maxtext": Port("MaxText, scanned experts, into Mixtral's names", ScannedMixtral, maxtext, ids(36)),
    "mixtral": Port("MaxText mixture of experts, scanned, grouped heads", Mixtral, mixtral, ids(40)),
}
