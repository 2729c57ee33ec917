"""Ports of TensorFlow's nets of text and speech."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    gelu,
    glu,
    relu,
    scaled_dot_product_attention,
    silu,
)

from nets.common import (
    Port,
    ids,
    image,
    quiet,
)

# --- TF1 BasicLSTMCell, two layers ------------------------------------------------------------------------------------


class Cells(nn.Module):
    """Two LSTM cells of TensorFlow 1 on top of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True)
        self.proj = nn.Linear(12, 40)
        with torch.no_grad():
            for k in range(2):
                bias = getattr(self.lstm, f"bias_hh_l{k}")
                bias.zero_()
                bias[12:24] = 1.0  # forget_bias, which TensorFlow adds when it runs

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.lstm(self.embedding(x))[0])


# --- TF1 GPT-2, fused QKV, tied head ----------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (m.view(b, t, self.heads, -1).transpose(1, 2) for m in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class GptBlock(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), Attention(d, 4)
        self.norm2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A decoder with a fused QKV and tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(60, 16), nn.Embedding(20, 16)
        self.layers = nn.ModuleList([GptBlock(16) for _ in range(3)])
        self.final = nn.LayerNorm(16)
        self.head = nn.Linear(16, 60, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers:
            y = layer(y)
        return self.head(self.final(y))


# --- TF1 BERT into nn.TransformerEncoder ------------------------------------------------------------------------------


class Encoder(nn.Module):
    """torch's own encoder, whose attention holds q, k and v in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(70, 16), nn.Embedding(24, 16)
        self.norm = nn.LayerNorm(16)
        layer = nn.TransformerEncoderLayer(16, 4, 48, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.pooler = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.word(x) + self.place(torch.arange(x.shape[1])))
        return self.pooler(self.encoder(y)[:, 0]).tanh()


# --- TF1 stacked bidirectional LSTMCell -------------------------------------------------------------------------------


class BiLm(nn.Module):
    """A bidirectional LSTM of two layers in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup = nn.Embedding(40, 10)
        self.encoder = nn.LSTM(10, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.logits = nn.Linear(16, 6)
        with torch.no_grad():
            quiet(self)
            for name, p in self.encoder.named_parameters():
                if name.startswith("bias_hh"):
                    p[8:16] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.encoder(self.lookup(x))[0])


# --- TF1 BERT whose vocabulary is padded ------------------------------------------------------------------------------

VOCABULARY, PADDED, HIDDEN = 50, 56, 24


class MaskedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.to_out, self.norm_att = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.up, self.down, self.norm_mlp = nn.Linear(HIDDEN, 96), nn.Linear(96, HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        x = self.norm_att(x + self.to_out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm_mlp(x + self.down(gelu(self.up(x))))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(10, HIDDEN)
        self.norm_in = nn.LayerNorm(HIDDEN)
        self.blocks = nn.ModuleList(MaskedBlock() for _ in range(3))
        self.transform, self.norm_out = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.output_bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_in(self.tokens(x) + self.positions.weight)
        for block in self.blocks:
            x = block(x)
        return self.norm_out(gelu(self.transform(x))) @ self.tokens.weight.T + self.output_bias


# --- TF1 tagger, characters and words, CRF ----------------------------------------------------------------------------

TAGGED_WORDS, CHARS, TAGS = 30, 12, 6


class CharTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_emb, self.char_emb = nn.Embedding(TAGGED_WORDS, 14), nn.Embedding(CHARS, 8)
        self.char_rnn = nn.LSTM(8, 9, batch_first=True, bidirectional=True)
        self.word_rnn = nn.LSTM(14 + 18, 11, batch_first=True, bidirectional=True)
        self.hidden2tag = nn.Linear(22, TAGS)
        self.transitions = nn.Parameter(torch.randn(TAGS, TAGS))  # to, from
        with torch.no_grad():
            for rnn in (self.char_rnn, self.word_rnn):
                for tail in ("", "_reverse"):
                    bias = getattr(rnn, f"bias_hh_l0{tail}")
                    bias.zero_()
                    bias[rnn.hidden_size : 2 * rnn.hidden_size] = 1.0  # forget_bias

    def forward(self, x: Tensor) -> Tensor:
        chars = (x[..., None] * torch.tensor([1, 5, 7, 3]) + 2) % CHARS
        ends = self.char_rnn(self.char_emb(chars.flatten(0, 1)))[1][0]
        ends = torch.cat([ends[0], ends[1]], -1).view(*x.shape, -1)
        scores = self.hidden2tag(self.word_rnn(torch.cat([self.word_emb(x), ends], -1))[0])
        alpha, out = scores[:, 0], []
        for t in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha[:, None] + self.transitions, -1) + scores[:, t]
            out.append(alpha)
        return torch.stack(out, 1)


# --- TensorFlowASR Conformer, fused key and value ---------------------------------------------------------------------

DIM, INNER, KERNEL = 16, 24, 5


def feed() -> nn.Module:
    net = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.SiLU(), nn.Linear(4 * DIM, DIM))
    return nn.ModuleDict({"norm": nn.LayerNorm(DIM, 1e-3), "fn": nn.ModuleDict({"net": net})})


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(DIM, INNER, bias=False), nn.Linear(DIM, 2 * INNER, bias=False)
        self.to_out = nn.Linear(INNER, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in (self.to_q(x), *self.to_kv(x).chunk(2, -1)))
        return self.to_out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ConformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ff1 = feed()
        self.attn = nn.ModuleDict({"norm": nn.LayerNorm(DIM, 1e-3), "fn": Heads()})
        self.conv = nn.ModuleDict({"0": nn.LayerNorm(DIM, 1e-3), "2": nn.Conv1d(DIM, 2 * DIM, 1)})
        self.conv["4"] = nn.Conv1d(DIM, DIM, KERNEL, padding=KERNEL // 2, groups=DIM)
        self.conv["5"], self.conv["7"] = nn.BatchNorm1d(DIM, 1e-3), nn.Conv1d(DIM, DIM, 1)
        self.ff2, self.post_norm = feed(), nn.LayerNorm(DIM, 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1["fn"]["net"](self.ff1["norm"](x))
        x = x + self.attn["fn"](self.attn["norm"](x))
        y = glu(self.conv["2"](self.conv["0"](x).transpose(1, 2)), 1)
        x = x + self.conv["7"](silu(self.conv["5"](self.conv["4"](y)))).transpose(1, 2)
        return self.post_norm(x + 0.5 * self.ff2["fn"]["net"](self.ff2["norm"](x)))


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, DIM, 3, 2), nn.ReLU(), nn.Conv2d(DIM, DIM, 3, 2), nn.ReLU())
        self.project = nn.Linear(DIM * 4, DIM)
        self.layers = nn.ModuleList(ConformerBlock() for _ in range(2))
        self.fc = nn.Linear(DIM, 11)

    def forward(self, x: Tensor) -> Tensor:
        y = self.subsample(x)
        y = self.project(y.transpose(1, 2).flatten(2))  # b t (c f)
        for layer in self.layers:
            y = layer(y)
        return self.fc(y)


# --- TF2 translation with attention, tied output ----------------------------------------------------------------------

WORDS, UNITS = 30, 12


class Additive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_proj, self.key_proj = nn.Linear(UNITS, UNITS), nn.Linear(UNITS, UNITS)
        self.energy = nn.Linear(UNITS, 1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        score = self.energy(torch.tanh(self.query_proj(query)[:, None] + self.key_proj(keys)))
        return (score.softmax(1) * keys).sum(1)


class Half(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, UNITS), nn.GRU(inputs, UNITS, batch_first=True)


class Decoder(Half):
    def __init__(self) -> None:
        super().__init__(2 * UNITS)
        self.attn = Additive()
        self.out = nn.Linear(UNITS, WORDS)
        self.out.weight = self.embed.weight


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Half(UNITS), Decoder()

    def forward(self, x: Tensor) -> Tensor:
        keys, state = self.encoder.rnn(self.encoder.embed(x))
        out = []
        for t in range(x.shape[1]):
            context = self.decoder.attn(state[0], keys)
            step = torch.cat([context, self.decoder.embed(x[:, t].flip(0))], -1)[:, None]
            y, state = self.decoder.rnn(step, state)
            out.append(self.decoder.out(y[:, 0]))
        return torch.stack(out, 1)


# --- TF1 Tacotron encoder, bank and highways --------------------------------------------------------------------------


class Highway(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.H, self.T = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.sigmoid(self.T(x))
        return relu(self.H(x)) * t + x * (1 - t)


class Cbhg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.prenet = nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 8)])
        self.bank = nn.ModuleList([nn.Conv1d(8, 8, k, padding="same") for k in (1, 3, 5, 7)])
        self.bank_bn = nn.ModuleList([nn.BatchNorm1d(8, eps=1e-3) for _ in range(4)])
        self.proj1, self.bn1 = nn.Conv1d(32, 8, 3, padding=1), nn.BatchNorm1d(8, eps=1e-3)
        self.proj2, self.bn2 = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8, eps=1e-3)
        self.highways = nn.ModuleList([Highway(8) for _ in range(3)])
        self.out = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        for layer in self.prenet:
            h = relu(layer(h))
        x = h.transpose(1, 2)
        y = torch.cat([bn(relu(c(x))) for c, bn in zip(self.bank, self.bank_bn, strict=True)], 1)
        y = self.bn2(self.proj2(self.bn1(relu(self.proj1(y))))) + x
        y = y.transpose(1, 2)
        for layer in self.highways:
            y = layer(y)
        return self.out(y)


PORTS = {
    "cells": Port("TF1 BasicLSTMCell, two layers", Cells, ids(40)),
    "gpt": Port("TF1 GPT-2, fused QKV, tied head", Gpt, ids(60)),
    "encoder": Port("TF1 BERT into nn.TransformerEncoder", Encoder, ids(70)),
    "bilm": Port("TF1 stacked bidirectional LSTMCell", BiLm, ids(40)),
    "masked": Port("TF1 BERT whose vocabulary is padded", Masked, ids(VOCABULARY)),
    "char-tagger": Port("TF1 tagger, characters and words, CRF", CharTagger, ids(TAGGED_WORDS)),
    "conformer": Port("TensorFlowASR Conformer, fused key and value", Conformer, image(1, 19)),
    "translator": Port("TF2 translation with attention, tied output", Translator, ids(WORDS)),
    "cbhg": Port("TF1 Tacotron encoder, bank and highways", Cbhg, ids(30)),
}
