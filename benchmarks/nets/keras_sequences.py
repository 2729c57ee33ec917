"""Ports of Keras' recurrent nets, waves, speech and translation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    relu,
)

from nets.common import (
    Lstm,
    Port,
    ids,
    image,
    quiet,
)

# --- Keras convolutions and BiLSTM (CRED) -----------------------------------------------------------------------------


class Cred(nn.Module):
    """Convolutions, two bidirectional LSTMs and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(3, 12, 5, padding=2), nn.BatchNorm1d(12, eps=1e-3)
        self.blstm1 = nn.LSTM(12, 10, batch_first=True, bidirectional=True)
        self.blstm2 = nn.LSTM(20, 10, batch_first=True, bidirectional=True)
        self.last = nn.LSTM(20, 14, batch_first=True)
        self.fc = nn.Linear(14, 2)
        quiet(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x)).relu().transpose(1, 2)
        for rnn in (self.blstm1, self.blstm2, self.last):
            x = rnn(x)[0]
        return self.fc(x)


# --- Keras bidirectional GRU ------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """An embedding, a bidirectional GRU and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.rnn = nn.GRU(12, 9, num_layers=2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(18, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.tags(self.rnn(self.embed(x))[0])


# --- Keras CRNN, dense behind the image, BiLSTMs ----------------------------------------------------------------------


class Ocr(nn.Module):
    """Convolutions, then two bidirectional LSTMs over the width."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, 1e-3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16, 1e-3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16, 1e-3), nn.ReLU(),
        )  # fmt: skip
        self.squeeze = nn.Linear(16 * 4, 24)
        self.rnn1 = nn.LSTM(24, 12, batch_first=True, bidirectional=True)
        self.rnn2 = nn.LSTM(24, 12, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(24, 30)
        quiet(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cnn(x).permute(0, 3, 1, 2).flatten(2)  # width, then channels and height
        return self.fc(self.rnn2(self.rnn1(self.squeeze(x).relu())[0])[0])


# --- Keras GRUs, square matrices --------------------------------------------------------------------------------------


class Stacked(nn.Module):
    """Two GRUs on top of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(40, 12)
        self.gru = nn.GRU(12, 12, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.emb(x))[0])


# --- Keras CuDNNLSTM (textgenrnn) -------------------------------------------------------------------------------------


class Generator(nn.Module):
    """Two LSTMs, their outputs joined with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 10)
        self.rnn_1, self.rnn_2 = nn.LSTM(10, 14, batch_first=True), nn.LSTM(14, 14, batch_first=True)
        self.attention, self.output = nn.Linear(38, 1, bias=False), nn.Linear(38, 40)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedding(x)
        a = self.rnn_1(e)[0]
        y = torch.cat([e, a, self.rnn_2(a)[0]], -1)
        return self.output((y * self.attention(y).softmax(1)).sum(1))


# --- Keras 1 LSTM, a matrix for each gate -----------------------------------------------------------------------------


# --- Keras WaveNet, weight normalisation ------------------------------------------------------------------------------


class Wave(nn.Module):
    """Dilated convolutions whose weights are normalised."""

    def __init__(self) -> None:
        super().__init__()
        wn = nn.utils.parametrizations.weight_norm
        self.start = nn.Conv1d(4, 12, 1)
        self.gate = nn.ModuleList([wn(nn.Conv1d(12, 24, 3, padding=2**k, dilation=2**k)) for k in range(3)])
        self.skip = nn.ModuleList([wn(nn.Conv1d(12, 12, 1)) for _ in range(3)])
        self.end = nn.Conv1d(12, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        y = torch.zeros_like(x)
        for gate, skip in zip(self.gate, self.skip, strict=True):
            a, b = gate(x).chunk(2, 1)
            x = x + a.tanh() * b.sigmoid()
            y = y + skip(x)
        return self.end(y)


def series(channels: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randn(2, channels, length),)


# --- Keras BiGRU with a CRF -------------------------------------------------------------------------------------------


class Crf(nn.Module):
    def __init__(self, tags: int) -> None:
        super().__init__()
        self.start_transitions, self.end_transitions = nn.Parameter(torch.randn(tags)), nn.Parameter(torch.randn(tags))
        self.transitions = nn.Parameter(torch.randn(tags, tags))

    def forward(self, scores: Tensor) -> Tensor:
        alpha = self.start_transitions + scores[:, 0]
        for t in range(1, scores.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transitions, 1) + scores[:, t]
        return alpha + self.end_transitions


class GruCrf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.crf = Crf(7)
        self.embeds = nn.Embedding(40, 10)
        self.encoder = nn.ModuleList(nn.GRU(i, 8, batch_first=True, bidirectional=True) for i in (10, 16))
        self.mlp, self.to_tags = nn.Linear(16, 12), nn.Linear(12, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embeds(x)
        for gru in self.encoder:
            y = gru(y)[0]
        return self.crf(self.to_tags(self.mlp(y).tanh()))


# --- Keras Conformer into torchaudio's names --------------------------------------------------------------------------

WIDTH, HEADS, LAYERS, TAPS = 16, 4, 3, 7


def feed_forward() -> nn.ModuleDict:
    layers = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Dropout(0.0), nn.Linear(4 * WIDTH, WIDTH))
    return nn.ModuleDict({"sequential": nn.Sequential(*layers)})


class ConvModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(WIDTH)
        self.sequential = nn.Sequential(
            nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.GLU(1),
            nn.Conv1d(WIDTH, WIDTH, TAPS, padding=TAPS // 2, groups=WIDTH),
            nn.BatchNorm1d(WIDTH, eps=1e-3), nn.SiLU(), nn.Conv1d(WIDTH, WIDTH, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.sequential(self.layer_norm(x).transpose(1, 2)).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ffn1 = feed_forward()
        self.self_attn_layer_norm = nn.LayerNorm(WIDTH)
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.conv_module, self.ffn2 = ConvModule(), feed_forward()
        self.final_layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ffn1["sequential"](x)
        y = self.self_attn_layer_norm(x)
        x = x + self.self_attn(y, y, y, need_weights=False)[0]
        x = x + self.conv_module(x)
        return self.final_layer_norm(x + 0.5 * self.ffn2["sequential"](x))


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.input_linear = nn.Linear(8 * 5, WIDTH)
        self.conformer_layers = nn.ModuleList(ConformerLayer() for _ in range(LAYERS))
        self.output_linear = nn.Linear(WIDTH, 30)

    def forward(self, x: Tensor) -> Tensor:
        x = self.subsample(x[:, None])
        x = self.input_linear(x.permute(0, 2, 1, 3).flatten(2))
        for layer in self.conformer_layers:
            x = layer(x)
        return self.output_linear(x)


# --- Keras Deep Speech 2, bidirectional GRUs --------------------------------------------------------------------------

STATE = 10


class BatchRnn(nn.Module):
    def __init__(self, inputs: int, *, first: bool) -> None:
        super().__init__()
        self.batch_norm = None if first else nn.BatchNorm1d(inputs, eps=1e-3)
        self.rnn = nn.GRU(inputs, STATE, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_norm is not None:
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        return self.rnn(x)[0]


class DeepSpeech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 6, (7, 5), (2, 2), (3, 2), bias=False), nn.BatchNorm2d(6, eps=1e-3), nn.Hardtanh(0, 20),
            nn.Conv2d(6, 6, (5, 3), (2, 1), (2, 1), bias=False), nn.BatchNorm2d(6, eps=1e-3), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.rnns = nn.ModuleList(BatchRnn(2 * STATE if k else 6 * 4, first=not k) for k in range(3))
        self.fc = nn.Sequential(nn.BatchNorm1d(2 * STATE, eps=1e-3), nn.Linear(2 * STATE, 29, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Frequencies before time."""
        x = self.conv(x[:, None]).flatten(1, 2).transpose(1, 2)
        for rnn in self.rnns:
            x = rnn(x)
        return self.fc[1](self.fc[0](x.transpose(1, 2)).transpose(1, 2))


def waves() -> tuple[Tensor, ...]:
    return (torch.randn(2, 16, 20),)


# --- Keras translation, GRUs and additive attention -------------------------------------------------------------------


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(40, 12), nn.Embedding(36, 12)
        self.encoder = nn.GRU(12, 16, batch_first=True)
        self.w_query, self.w_key, self.score = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.decoder = nn.GRU(28, 16, batch_first=True)
        self.vocab = nn.Linear(16, 36)

    def forward(self, x: Tensor) -> Tensor:
        memory, h = self.encoder(self.src_embed(x))
        q = self.w_query(h[0])[:, None]
        weights = self.score(torch.tanh(q + self.w_key(memory))).softmax(1)
        context = (weights * memory).sum(1, keepdim=True)
        y = self.tgt_embed(x % 36)
        return self.vocab(self.decoder(torch.cat([context.expand(-1, y.shape[1], -1), y], -1), h)[0])


# --- Keras Transformer decoder, cross attention -----------------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (
            m(z).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for m, z in ((self.to_q, x), (self.to_k, y), (self.to_v, y))
        )
        return self.to_out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.self_attn, self.norm1 = Heads(d, 4), nn.LayerNorm(d, eps=1e-6)
        self.cross_attn, self.norm2 = Heads(d, 4), nn.LayerNorm(d, eps=1e-6)
        self.fc1, self.fc2, self.norm3 = nn.Linear(d, 32), nn.Linear(32, d), nn.LayerNorm(d, eps=1e-6)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, x))
        x = self.norm2(x + self.cross_attn(x, memory))
        return self.norm3(x + self.fc2(relu(self.fc1(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.memory = nn.Embedding(30, 16), nn.Embedding(10, 16)
        self.layers = nn.ModuleList([DecoderLayer(16) for _ in range(3)])
        self.final = nn.Linear(16, 30)

    def forward(self, x: Tensor) -> Tensor:
        y, memory = self.embed(x), self.memory(torch.arange(10))[None].expand(len(x), -1, -1)
        for layer in self.layers:
            y = layer(y, memory)
        return self.final(y)


PORTS = {
    "cred": Port("Keras convolutions and BiLSTM (CRED)", Cred, lambda: (torch.randn(2, 3, 20),)),
    "tagger": Port("Keras bidirectional GRU", Tagger, ids(50)),
    "ocr": Port("Keras CRNN, dense behind the image, BiLSTMs", Ocr, image(1, 16)),
    "gru": Port("Keras GRUs, square matrices", Stacked, ids(40)),
    "cudnn": Port("Keras CuDNNLSTM (textgenrnn)", Generator, ids(40)),
    "keras1": Port("Keras 1 LSTM, a matrix for each gate", Lstm, ids(40)),
    "wave": Port("Keras WaveNet, weight normalisation", Wave, lambda: series(4, 30)),
    "gru-crf": Port("Keras BiGRU with a CRF", GruCrf, ids(40)),
    "conformer-heads": Port(
        "Keras Conformer into torchaudio's names",
        Conformer,
        lambda: (torch.randn(2, 24, 20),),
    ),
    "speech": Port("Keras Deep Speech 2, bidirectional GRUs", DeepSpeech, waves),
    "seq2seq": Port("Keras translation, GRUs and additive attention", Seq2Seq, ids(36)),
    "decoder": Port("Keras Transformer decoder, cross attention", Decoder, ids(30)),
}
