"""Ports of language models of T5X, MaxText and Flax."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    gelu,
    scaled_dot_product_attention,
    silu,
)

from nets.common import (
    Port,
    ids,
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


PORTS = {
    "moe": Port("T5X mixture of experts, stacked", Moe, ids(40)),
    "t5": Port("T5X encoder and decoder", T5, ids(40)),
    "gemma": Port("Flax Gemma, fused einsums, grouped queries", Gemma, ids(36)),
    "maxtext": Port("MaxText, scanned experts, into Mixtral's names", ScannedMixtral, ids(36)),
    "mixtral": Port("MaxText mixture of experts, scanned, grouped heads", Mixtral, ids(40)),
}
