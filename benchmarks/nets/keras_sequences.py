"""Ports of Keras' recurrent nets, waves, speech and translation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import (
    GLU,
    GRU,
    LSTM,
    Conv2d,
    Dropout,
    Embedding,
    Hardtanh,
    LayerNorm,
    Linear,
    MaxPool2d,
    Module,
    MultiheadAttention,
    ReLU,
    SiLU,
    Tanh,
)
from torch.nn.functional import relu

from nets.common import (
    Net,
    Port,
    attend,
    bn,
    bn1d,
    both,
    conv,
    conv1d,
    dense0,
    ids,
    image,
    lstm,
    norm,
    numbers,
    own,
    parameter,
    second,
)


def cred() -> Net:
    """Convolutions, two bidirectional LSTMs and one that is not."""

    def compute(s, x):
        x = s.bn(s.conv(x)).relu().transpose(1, 2)
        return s.fc(s.last(s.blstm2(s.blstm1(x)[0])[0])[0])

    net = Net(
        compute, conv=conv1d(3, 12, 5), bn=bn1d(12), blstm1=both(12, 10), blstm2=both(20, 10),
        last=LSTM(20, 14, batch_first=True), fc=Linear(14, 2),
    )  # fmt: skip
    for rnn in (net.blstm1, net.blstm2, net.last):
        second(rnn)
    return net


def tagger() -> Net:
    """An embedding, a bidirectional GRU and a dense layer."""
    return Net(
        lambda s, x: s.tags(s.rnn(s.embed(x))[0]), embed=Embedding(50, 12), rnn=both(12, 9, GRU, 2),
        tags=Linear(18, 5),
    )  # fmt: skip


def ocr() -> Net:
    """Convolutions, then two bidirectional LSTMs over the width."""

    def compute(s, x):
        x = s.cnn(x).permute(0, 3, 1, 2).flatten(2)  # width, then channels and height
        return s.fc(s.rnn2(s.rnn1(s.squeeze(x).relu())[0])[0])

    convolutions = [conv(1, 8), bn(8), ReLU(), MaxPool2d(2), conv(8, 16), bn(16), ReLU(), MaxPool2d(2)]
    net = Net(
        compute, cnn=[*convolutions, conv(16, 16), bn(16), ReLU()], squeeze=Linear(16 * 4, 24),
        rnn1=both(24, 12), rnn2=both(24, 12), fc=Linear(24, 30),
    )  # fmt: skip
    second(net.rnn1)
    second(net.rnn2)
    return net


def grus() -> Net:
    """Two GRUs on top of each other."""
    return Net(
        lambda s, x: s.head(s.gru(s.emb(x))[0]), emb=Embedding(40, 12),
        gru=GRU(12, 12, num_layers=2, batch_first=True), head=[Linear(12, 12), Tanh(), Linear(12, 5)],
    )  # fmt: skip


def textgenrnn() -> Net:
    """Two LSTMs, their outputs joined with the embedding."""

    def compute(s, x):
        e = s.embedding(x)
        a = s.rnn_1(e)[0]
        y = torch.cat([e, a, s.rnn_2(a)[0]], -1)
        return s.output((y * s.attention(y).softmax(1)).sum(1))

    return Net(
        compute, embedding=Embedding(40, 10), rnn_1=LSTM(10, 14, batch_first=True),
        rnn_2=LSTM(14, 14, batch_first=True), attention=dense0(38, 1), output=Linear(38, 40),
    )  # fmt: skip


def wavenet() -> Net:
    """Dilated convolutions whose weights are normalised."""

    def compute(s, x):
        x = s.start(x)
        y = torch.zeros_like(x)
        for gate, skip in zip(s.gate, s.skip, strict=True):
            a, b = gate(x).chunk(2, 1)
            x = x + a.tanh() * b.sigmoid()
            y = y + skip(x)
        return s.end(y)

    normalised = nn.utils.parametrizations.weight_norm
    return Net(
        compute, start=conv1d(4, 12), gate=[normalised(conv1d(12, 24, 3, dilation=2**k)) for k in range(3)],
        skip=[normalised(conv1d(12, 12)) for _ in range(3)], end=conv1d(12, 5),
    )  # fmt: skip


def crf(tags: int) -> Net:
    def compute(s, scores):
        alpha = s.start_transitions + scores[:, 0]
        for t in range(1, scores.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + s.transitions, 1) + scores[:, t]
        return alpha + s.end_transitions

    return Net(
        compute, start_transitions=parameter(tags), end_transitions=parameter(tags), transitions=parameter(tags, tags)
    )


def gru_crf() -> Net:
    def compute(s, x):
        y = s.embeds(x)
        for gru in s.encoder:
            y = gru(y)[0]
        return s.crf(s.to_tags(s.mlp(y).tanh()))

    return Net(
        compute, crf=crf(7), embeds=Embedding(40, 10), encoder=[both(10, 8, GRU), both(16, 8, GRU)],
        mlp=Linear(16, 12), to_tags=Linear(12, 7),
    )  # fmt: skip


WIDTH, TAPS = 16, 7  # of the Conformer


def feed_forward() -> Net:
    dense = [Linear(WIDTH, 4 * WIDTH), SiLU(), Dropout(0.0), Linear(4 * WIDTH, WIDTH)]
    return Net(lambda s, x: s.sequential(x), sequential=[LayerNorm(WIDTH), *dense])


def conv_module() -> Net:
    first = [conv1d(WIDTH, 2 * WIDTH), GLU(1), conv1d(WIDTH, WIDTH, TAPS, groups=WIDTH)]
    return Net(
        lambda s, x: s.sequential(s.layer_norm(x).transpose(1, 2)).transpose(1, 2),
        layer_norm=LayerNorm(WIDTH), sequential=[*first, bn1d(WIDTH), SiLU(), conv1d(WIDTH, WIDTH)],
    )  # fmt: skip


def conformer_layer() -> Net:
    def compute(s, x):
        x = x + 0.5 * s.ffn1(x)
        x = x + own(s.self_attn, s.self_attn_layer_norm(x))
        x = x + s.conv_module(x)
        return s.final_layer_norm(x + 0.5 * s.ffn2(x))

    return Net(
        compute, ffn1=feed_forward(), self_attn_layer_norm=LayerNorm(WIDTH),
        self_attn=MultiheadAttention(WIDTH, 4, batch_first=True), conv_module=conv_module(), ffn2=feed_forward(),
        final_layer_norm=LayerNorm(WIDTH),
    )  # fmt: skip


def conformer() -> Net:
    def compute(s, x):
        x = s.input_linear(s.subsample(x[:, None]).permute(0, 2, 1, 3).flatten(2))
        return s.output_linear(s.conformer_layers(x))

    return Net(
        compute, subsample=[conv(1, 8, 3, 2), ReLU(), conv(8, 8, 3, 2), ReLU()],
        input_linear=Linear(8 * 5, WIDTH), conformer_layers=[conformer_layer() for _ in range(3)],
        output_linear=Linear(WIDTH, 30),
    )  # fmt: skip


def turned(layer: Module, x: Tensor) -> Tensor:
    """A layer that wants channels before time."""
    return layer(x.transpose(1, 2)).transpose(1, 2)


def normed_gru(i: int, first: bool = False) -> Net:
    return Net(
        lambda s, x: s.rnn(turned(s.batch_norm, x) if s.batch_norm else x)[0], batch_norm=None if first else bn1d(i),
        rnn=both(i, 10, GRU),
    )  # fmt: skip


def speech() -> Net:
    def compute(s, x):
        """Frequencies before time."""
        x = s.rnns(s.conv(x[:, None]).flatten(1, 2).transpose(1, 2))
        return s.fc[1](turned(s.fc[0], x))

    clipped = Hardtanh(0, 20)
    first = Conv2d(1, 6, (7, 5), (2, 2), (3, 2), bias=False)
    other = Conv2d(6, 6, (5, 3), (2, 1), (2, 1), bias=False)
    return Net(
        compute, conv=[first, bn(6), clipped, other, bn(6), clipped],
        rnns=[normed_gru(6 * 4, first=True), normed_gru(20), normed_gru(20)], fc=[bn1d(20), dense0(20, 29)],
    )  # fmt: skip


def seq2seq() -> Net:
    def compute(s, x):
        memory, h = s.encoder(s.src_embed(x))
        weights = s.score(torch.tanh(s.w_query(h[0])[:, None] + s.w_key(memory))).softmax(1)
        context = (weights * memory).sum(1, keepdim=True)
        y = s.tgt_embed(x % 36)
        return s.vocab(s.decoder(torch.cat([context.expand(-1, y.shape[1], -1), y], -1), h)[0])

    return Net(
        compute, src_embed=Embedding(40, 12), tgt_embed=Embedding(36, 12),
        encoder=GRU(12, 16, batch_first=True), w_query=Linear(16, 16), w_key=Linear(16, 16),
        score=Linear(16, 1), decoder=GRU(28, 16, batch_first=True), vocab=Linear(16, 36),
    )  # fmt: skip


def cross(d: int) -> Net:
    """Attention of four heads to another sequence."""
    parts = {f"to_{n}": Linear(d, d) for n in ("q", "k", "v", "out")}
    return Net(lambda s, x, y: s.to_out(attend(s.to_q(x), s.to_k(y), s.to_v(y), d // 4)), **parts)


def decoder_layer(d: int) -> Net:
    def compute(s, x, memory):
        x = s.norm1(x + s.self_attn(x, x))
        x = s.norm2(x + s.cross_attn(x, memory))
        return s.norm3(x + s.fc2(relu(s.fc1(x))))

    return Net(
        compute, self_attn=cross(d), norm1=norm(d), cross_attn=cross(d), norm2=norm(d), fc1=Linear(d, 32),
        fc2=Linear(32, d), norm3=norm(d),
    )  # fmt: skip


def decoder() -> Net:
    def compute(s, x):
        y, memory = s.embed(x), s.memory(torch.arange(10))[None].expand(len(x), -1, -1)
        for layer in s.layers:
            y = layer(y, memory)
        return s.final(y)

    return Net(
        compute, embed=Embedding(30, 16), memory=Embedding(10, 16), layers=[decoder_layer(16) for _ in range(3)],
        final=Linear(16, 30),
    )  # fmt: skip


PORTS = {
    "cred": Port("Keras convolutions and BiLSTM (CRED)", cred, numbers(2, 3, 20)),
    "tagger": Port("Keras bidirectional GRU", tagger, ids(50)),
    "ocr": Port("Keras CRNN, dense behind the image, BiLSTMs", ocr, image(1, 16)),
    "gru": Port("Keras GRUs, square matrices", grus, ids(40)),
    "cudnn": Port("Keras CuDNNLSTM (textgenrnn)", textgenrnn, ids(40)),
    "keras1": Port("Keras 1 LSTM, a matrix for each gate", lstm, ids(40)),
    "wave": Port("Keras WaveNet, weight normalisation", wavenet, numbers(2, 4, 30)),
    "gru-crf": Port("Keras BiGRU with a CRF", gru_crf, ids(40)),
    "conformer-heads": Port("Keras Conformer into torchaudio's names", conformer, numbers(2, 24, 20)),
    "speech": Port("Keras Deep Speech 2, bidirectional GRUs", speech, numbers(2, 16, 20)),
    "seq2seq": Port("Keras translation, GRUs and additive attention", seq2seq, ids(36)),
    "decoder": Port("Keras Transformer decoder, cross attention", decoder, ids(30)),
}
