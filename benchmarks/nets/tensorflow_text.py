"""Ports of TensorFlow's nets of text and speech."""

from __future__ import annotations

import torch
from torch.nn import (
    GRU,
    LSTM,
    Conv2d,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    ModuleDict,
    Parameter,
    ReLU,
    SiLU,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from torch.nn.functional import gelu, glu, relu, silu

from nets.common import Net, Port, attend, bn1d, both, conv1d, dense0, ids, image, parameter, second


def cells() -> Net:
    """Two LSTM cells of TensorFlow 1 on top of each other."""
    net = Net(
        lambda s, x: s.proj(s.lstm(s.embedding(x))[0]), embedding=Embedding(40, 8),
        lstm=LSTM(8, 12, num_layers=2, batch_first=True), proj=Linear(12, 40),
    )  # fmt: skip
    second(net.lstm, 1.0)  # forget_bias, which TensorFlow adds when it runs
    return net


def fused(d: int, heads: int) -> Net:
    return Net(
        lambda s, x: s.proj(attend(*s.qkv(x).chunk(3, -1), d // heads, is_causal=True)), qkv=Linear(d, 3 * d),
        proj=Linear(d, d),
    )  # fmt: skip


def gpt_block(d: int) -> Net:
    def compute(s, x):
        x = x + s.attn(s.norm1(x))
        return x + s.down(gelu(s.up(s.norm2(x)), approximate="tanh"))

    return Net(
        compute, norm1=LayerNorm(d), attn=fused(d, 4), norm2=LayerNorm(d), up=Linear(d, 4 * d),
        down=Linear(4 * d, d),
    )  # fmt: skip


def gpt() -> Net:
    """A decoder with a fused QKV and tied head."""
    net = Net(
        lambda s, x: s.head(s.final(s.layers(s.tokens(x) + s.positions(torch.arange(x.shape[1]))))),
        tokens=Embedding(60, 16), positions=Embedding(20, 16), layers=[gpt_block(16) for _ in range(3)],
        final=LayerNorm(16), head=dense0(16, 60),
    )  # fmt: skip
    net.head.weight = net.tokens.weight
    return net


def encoder() -> Net:
    """torch's own encoder, whose attention holds q, k and v in one matrix."""

    def compute(s, x):
        y = s.norm(s.word(x) + s.place(torch.arange(x.shape[1])))
        return s.pooler(s.encoder(y)[:, 0]).tanh()

    word, place = Embedding(70, 16), Embedding(24, 16)
    layer = TransformerEncoderLayer(16, 4, 48, 0.0, "gelu", batch_first=True)
    layers = TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return Net(compute, word=word, place=place, norm=LayerNorm(16), encoder=layers, pooler=Linear(16, 16))


def bilm() -> Net:
    """A bidirectional LSTM of two layers in one module."""
    net = Net(
        lambda s, x: s.logits(s.encoder(s.lookup(x))[0]), lookup=Embedding(40, 10),
        encoder=both(10, 8, layers=2), logits=Linear(16, 6),
    )  # fmt: skip
    second(net.encoder, 1.0)
    return net


VOCABULARY, HIDDEN = 50, 24  # of the BERT whose vocabulary is padded to 56


def masked_block() -> Net:
    def compute(s, x):
        x = s.norm_att(x + s.to_out(attend(s.to_q(x), s.to_k(x), s.to_v(x), HIDDEN // 4)))
        return s.norm_mlp(x + s.down(gelu(s.up(x))))

    return Net(
        compute, **{f"to_{n}": Linear(HIDDEN, HIDDEN) for n in ("q", "k", "v", "out")},
        norm_att=LayerNorm(HIDDEN), up=Linear(HIDDEN, 96), down=Linear(96, HIDDEN),
        norm_mlp=LayerNorm(HIDDEN),
    )  # fmt: skip


def masked() -> Net:
    def compute(s, x):
        x = s.blocks(s.norm_in(s.tokens(x) + s.positions.weight))
        return s.norm_out(gelu(s.transform(x))) @ s.tokens.weight.T + s.output_bias

    return Net(
        compute, tokens=Embedding(VOCABULARY, HIDDEN), positions=Embedding(10, HIDDEN),
        norm_in=LayerNorm(HIDDEN), blocks=[masked_block() for _ in range(3)], transform=Linear(HIDDEN, HIDDEN),
        norm_out=LayerNorm(HIDDEN), output_bias=Parameter(torch.zeros(VOCABULARY)),
    )  # fmt: skip


def char_tagger() -> Net:
    def compute(s, x):
        chars = (x[..., None] * torch.tensor([1, 5, 7, 3]) + 2) % 12
        ends = s.char_rnn(s.char_emb(chars.flatten(0, 1)))[1][0]
        ends = torch.cat([ends[0], ends[1]], -1).view(*x.shape, -1)
        scores = s.hidden2tag(s.word_rnn(torch.cat([s.word_emb(x), ends], -1))[0])
        alpha, out = scores[:, 0], []
        for t in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha[:, None] + s.transitions, -1) + scores[:, t]
            out.append(alpha)
        return torch.stack(out, 1)

    net = Net(
        compute, word_emb=Embedding(30, 14), char_emb=Embedding(12, 8), char_rnn=both(8, 9),
        word_rnn=both(14 + 18, 11), hidden2tag=Linear(22, 6), transitions=parameter(6, 6),  # to, from
    )  # fmt: skip
    second(net.char_rnn, 1.0)
    second(net.word_rnn, 1.0)
    return net


DIM, INNER = 16, 24  # of the Conformer


def keras_norm() -> LayerNorm:
    return LayerNorm(DIM, 1e-3)


def before(part: Net) -> Net:
    """A part whose input is normalised first."""
    return Net(lambda s, x: s.fn(s.norm(x)), norm=keras_norm(), fn=part)


def feed() -> Net:
    net = [Linear(DIM, 4 * DIM), SiLU(), Linear(4 * DIM, DIM)]
    return before(Net(lambda s, x: s.net(x), net=net))


def heads() -> Net:
    return Net(
        lambda s, x: s.to_out(attend(s.to_q(x), *s.to_kv(x).chunk(2, -1), INNER // 4)), to_q=dense0(DIM, INNER),
        to_kv=dense0(DIM, 2 * INNER), to_out=Linear(INNER, DIM),
    )  # fmt: skip


def conformer_block() -> Net:
    def compute(s, x):
        x = x + 0.5 * s.ff1(x)
        x = x + s.attn(x)
        c = s.conv
        y = glu(c["2"](c["0"](x).transpose(1, 2)), 1)
        x = x + c["7"](silu(c["5"](c["4"](y)))).transpose(1, 2)
        return s.post_norm(x + 0.5 * s.ff2(x))

    return Net(
        compute, ff1=feed(), attn=before(heads()),
        conv=ModuleDict({
            "0": keras_norm(), "2": conv1d(DIM, 2 * DIM), "4": conv1d(DIM, DIM, 5, groups=DIM), "5": bn1d(DIM),
            "7": conv1d(DIM, DIM),
        }),
        ff2=feed(), post_norm=keras_norm(),
    )  # fmt: skip


def conformer() -> Net:
    def compute(s, x):
        return s.fc(s.layers(s.project(s.subsample(x).transpose(1, 2).flatten(2))))  # b t (c f)

    return Net(
        compute, subsample=[Conv2d(1, DIM, 3, 2), ReLU(), Conv2d(DIM, DIM, 3, 2), ReLU()],
        project=Linear(DIM * 4, DIM), layers=[conformer_block(), conformer_block()], fc=Linear(DIM, 11),
    )  # fmt: skip


WORDS, UNITS = 30, 12  # of the translation


def additive() -> Net:
    def compute(s, query, keys):
        score = s.energy(torch.tanh(s.query_proj(query)[:, None] + s.key_proj(keys)))
        return (score.softmax(1) * keys).sum(1)

    return Net(compute, query_proj=Linear(UNITS, UNITS), key_proj=Linear(UNITS, UNITS), energy=Linear(UNITS, 1))


def half(inputs: int) -> dict[str, Module]:
    return {"embed": Embedding(WORDS, UNITS), "rnn": GRU(inputs, UNITS, batch_first=True)}


def translator() -> Net:
    def compute(s, x):
        keys, state = s.encoder.rnn(s.encoder.embed(x))
        out = []
        for t in range(x.shape[1]):
            context = s.decoder.attn(state[0], keys)
            step = torch.cat([context, s.decoder.embed(x[:, t].flip(0))], -1)[:, None]
            y, state = s.decoder.rnn(step, state)
            out.append(s.decoder.out(y[:, 0]))
        return torch.stack(out, 1)

    encoder, decoder = Net(**half(UNITS)), Net(**half(2 * UNITS), attn=additive(), out=Linear(UNITS, WORDS))
    decoder.out.weight = decoder.embed.weight
    return Net(compute, encoder=encoder, decoder=decoder)


def highway() -> Net:
    def compute(s, x):
        t = torch.sigmoid(s.T(x))
        return relu(s.H(x)) * t + x * (1 - t)

    return Net(compute, H=Linear(8, 8), T=Linear(8, 8))


def cbhg() -> Net:
    """Tacotron's encoder: a bank of convolutions, and highways."""

    def compute(s, x):
        h = s.embedding(x)
        for layer in s.prenet:
            h = relu(layer(h))
        x = h.transpose(1, 2)
        y = torch.cat([bn(relu(c(x))) for c, bn in zip(s.bank, s.bank_bn, strict=True)], 1)
        y = s.bn2(s.proj2(s.bn1(relu(s.proj1(y))))) + x
        return s.out(s.highways(y.transpose(1, 2)))

    return Net(
        compute, embedding=Embedding(30, 12), prenet=[Linear(12, 12), Linear(12, 8)],
        bank=[conv1d(8, 8, k) for k in (1, 3, 5, 7)], bank_bn=[bn1d(8) for _ in range(4)], proj1=conv1d(32, 8, 3),
        bn1=bn1d(8), proj2=conv1d(8, 8, 3), bn2=bn1d(8), highways=[highway() for _ in range(3)], out=Linear(8, 6),
    )  # fmt: skip


PORTS = {
    "cells": Port("TF1 BasicLSTMCell, two layers", cells, ids(40)),
    "gpt": Port("TF1 GPT-2, fused QKV, tied head", gpt, ids(60)),
    "encoder": Port("TF1 BERT into nn.TransformerEncoder", encoder, ids(70)),
    "bilm": Port("TF1 stacked bidirectional LSTMCell", bilm, ids(40)),
    "masked": Port("TF1 BERT whose vocabulary is padded", masked, ids(VOCABULARY)),
    "char-tagger": Port("TF1 tagger, characters and words, CRF", char_tagger, ids(30)),
    "conformer": Port("TensorFlowASR Conformer, fused key and value", conformer, image(1, 19)),
    "translator": Port("TF2 translation with attention, tied output", translator, ids(WORDS)),
    "cbhg": Port("TF1 Tacotron encoder, bank and highways", cbhg, ids(30)),
}
