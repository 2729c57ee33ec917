"""Ports of language models of T5X, MaxText and Flax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import Embedding, LayerNorm, Module, Parameter, RMSNorm, Sequential
from torch.nn.functional import gelu, silu

from nets.common import Net, Port, attend, dense0, ids


def expert(d: int) -> Net:
    return Net(lambda s, x: s.wo(s.wi(x).relu()), wi=dense0(d, 2 * d), wo=dense0(2 * d, d))


def shared(gate: Module, experts: Sequential, x: Tensor) -> Tensor:
    """What all experts say, weighed."""
    weights = gate(x).softmax(-1)
    return sum(weights[..., k : k + 1] * e(x) for k, e in enumerate(experts))  # type: ignore[return-value]


def sparse(d: int, count: int) -> Net:
    return Net(
        lambda s, x: x + shared(s.gate, s.experts, s.ln(x)), ln=LayerNorm(d), gate=dense0(d, count),
        experts=[expert(d) for _ in range(count)],
    )  # fmt: skip


def moe() -> Net:
    """Layers of eight experts each."""
    return Net(
        lambda s, x: s.lm_head(s.layers(s.shared(x))), shared=Embedding(40, 12),
        layers=[sparse(12, 8), sparse(12, 8)], lm_head=dense0(12, 40),
    )  # fmt: skip


def attention(d: int, heads: int) -> Net:
    def compute(s, x, y, causal=False):
        return s.o(attend(s.q(x), s.k(y), s.v(y), d // heads, is_causal=causal, scale=1.0))

    return Net(compute, **{n: dense0(d, d) for n in "qkvo"})


def gated(d: int) -> Net:
    return Net(
        lambda s, x: s.wo(gelu(s.wi_0(x)) * s.wi_1(x)), wi_0=dense0(d, 2 * d), wi_1=dense0(d, 2 * d),
        wo=dense0(2 * d, d),
    )  # fmt: skip


def t5_layer(d: int, cross: bool) -> Net:
    def compute(s, x, memory=None):
        h = s.norm1(x)
        x = x + s.self_attn(h, h, cross)
        x = x + s.cross_attn(s.norm_x(x), memory) if cross else x
        return x + s.ff(s.norm2(x))

    parts = {"norm1": RMSNorm(d, 1e-6), "self_attn": attention(d, 4)}
    parts |= {"norm_x": RMSNorm(d, 1e-6), "cross_attn": attention(d, 4)} if cross else {}
    return Net(compute, **parts, norm2=RMSNorm(d, 1e-6), ff=gated(d))


def t5() -> Net:
    """Encoder and decoder, norms without bias, a gated layer."""

    def compute(s, x):
        memory, y = s.encoder_norm(s.encoder(s.shared(x))), s.shared(x.roll(1, 1))
        for layer in s.decoder:
            y = layer(y, memory)
        return s.lm_head(s.decoder_norm(y))

    return Net(
        compute, shared=Embedding(40, 16), encoder=[t5_layer(16, False), t5_layer(16, False)],
        encoder_norm=RMSNorm(16, 1e-6), decoder=[t5_layer(16, True), t5_layer(16, True)],
        decoder_norm=RMSNorm(16, 1e-6), lm_head=dense0(16, 40),
    )  # fmt: skip


WIDTH, HEADS = 16, 4  # of Gemma and Mixtral


def rms(base: float = 0.0) -> Net:
    def compute(s, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (base + s.weight)

    return Net(compute, weight=Parameter(torch.ones(WIDTH) - base))


def grouped(groups: int, size: int) -> Net:
    def compute(s, x):
        return s.o_proj(attend(s.q_proj(x), s.k_proj(x), s.v_proj(x), size, is_causal=True, enable_gqa=True))

    return Net(
        compute, q_proj=dense0(WIDTH, HEADS * size), k_proj=dense0(WIDTH, groups * size),
        v_proj=dense0(WIDTH, groups * size), o_proj=dense0(HEADS * size, WIDTH),
    )  # fmt: skip


def layer(mlp: Callable[[Net, Tensor], Tensor], normed: Callable[[], Module], **parts: Module) -> Net:
    def compute(s, x):
        x = x + s.self_attn(s.input_layernorm(x))
        return x + mlp(s, s.post_attention_layernorm(x))

    return Net(compute, **parts, input_layernorm=normed(), post_attention_layernorm=normed())


def gemma() -> Net:
    """Fused einsums, grouped queries, a tied head."""

    def mlp(s, y):
        return s.down_proj(gelu(s.gate_proj(y), approximate="tanh") * s.up_proj(y))

    def one() -> Net:
        queries = grouped(1, 6)
        dense = {"gate_proj": dense0(WIDTH, 24), "up_proj": dense0(WIDTH, 24), "down_proj": dense0(24, WIDTH)}
        return layer(mlp, partial(rms, 1.0), self_attn=queries, **dense)

    return Net(
        lambda s, x: s.norm(s.layers(s.embed_tokens(x) * WIDTH**0.5)) @ s.embed_tokens.weight.T,
        embed_tokens=Embedding(36, WIDTH), layers=[one() for _ in range(3)], norm=rms(1.0),
    )  # fmt: skip


def mixtral_layer(normed: Callable[[], Module], size: int, hidden: int) -> Net:
    def swiglu() -> Net:
        return Net(
            lambda s, x: s.w2(silu(s.w1(x)) * s.w3(x)),
            w1=dense0(WIDTH, hidden), w2=dense0(hidden, WIDTH), w3=dense0(WIDTH, hidden),
        )  # fmt: skip

    queries = grouped(2, size)
    experts = Net(
        lambda s, x: shared(s.gate, s.experts, x), gate=dense0(WIDTH, 4), experts=[swiglu() for _ in range(4)]
    )
    return layer(lambda s, y: s.block_sparse_moe(y), normed, self_attn=queries, block_sparse_moe=experts)


def maxtext() -> Net:
    return Net(
        lambda s, x: s.lm_head(s.norm(s.layers(s.embed_tokens(x)))), embed_tokens=Embedding(36, WIDTH),
        layers=[mixtral_layer(rms, 6, 20) for _ in range(3)], norm=rms(), lm_head=dense0(WIDTH, 36),
    )  # fmt: skip


def mixtral() -> Net:
    normed = partial(RMSNorm, WIDTH)
    model = Net(
        lambda s, x: s.norm(s.layers(s.embed_tokens(x))), embed_tokens=Embedding(40, WIDTH),
        layers=[mixtral_layer(normed, 4, 24) for _ in range(3)], norm=normed(),
    )  # fmt: skip
    return Net(lambda s, x: s.lm_head(s.model(x)), model=model, lm_head=dense0(WIDTH, 40))


PORTS = {
    "moe": Port("T5X mixture of experts, stacked", moe, ids(40)),
    "t5": Port("T5X encoder and decoder", t5, ids(40)),
    "gemma": Port("Flax Gemma, fused einsums, grouped queries", gemma, ids(36)),
    "maxtext": Port("MaxText, scanned experts, into Mixtral's names", maxtext, ids(36)),
    "mixtral": Port("MaxText mixture of experts, scanned, grouped heads", mixtral, ids(40)),
}
