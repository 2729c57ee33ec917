"""Ports of Keras' recurrent nets, waves, speech and translation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import (
    relu,
)

from nets.common import (
    LSTM,
    Array,
    Arrays,
    Lstm,
    Port,
    State,
    bias,
    dense,
    flat,
    gates,
    ids,
    image,
    keras,
    keras_gru,
    kernel,
    matrices,
    norm,
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


def cred(s: State) -> Arrays:
    out = keras(iter([dense(s, "conv", "conv1d_1"), norm(s, "bn", "batch_normalization_1")]))
    for k in (1, 2):
        home = f"bidirectional_{k}/bidirectional_{k}"
        out |= keras_lstm(s, f"blstm{k}", "0", f"{home}/forward_lstm_{k}/lstm_cell")
        out |= keras_lstm(s, f"blstm{k}", "0_reverse", f"{home}/backward_lstm_{k}/lstm_cell")
    out |= keras_lstm(s, "last", "0", "lstm_3/lstm_3/lstm_cell")
    return out | keras(iter([dense(s, "fc", "time_distributed_1")]))


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


def tagger(s: State) -> Arrays:
    out = {"embedding_1/embeddings": s["embed.weight"]}
    for layer in range(2):
        for way, tail in (("forward", ""), ("backward", "_reverse")):
            home = f"bidirectional_{layer + 1}/{way}_gru_{layer + 1}/gru_cell"
            two = np.stack([s[f"rnn.bias_ih_l{layer}{tail}"], s[f"rnn.bias_hh_l{layer}{tail}"]])
            out |= {
                f"{home}/kernel": gates(s[f"rnn.weight_ih_l{layer}{tail}"].T, (1, 0, 2)),
                f"{home}/recurrent_kernel": gates(s[f"rnn.weight_hh_l{layer}{tail}"].T, (1, 0, 2)),
                f"{home}/bias": gates(two, (1, 0, 2)),
            }
    return out | dense(s, "tags", "dense_1")


# --- Keras CRNN, dense behind the image, BiLSTMs ----------------------------------------------------------------------


def keras_lstm(s: State, at: str, tail: str, name: str) -> Arrays:
    x, h = matrices(s, at, tail)
    return {f"{name}/kernel": x, f"{name}/recurrent_kernel": h, f"{name}/bias": bias(s, at, tail)}


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


def ocr(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        for k in range(3):
            yield dense(s, f"cnn.{4 * k}", f"conv{k + 1}")
            yield norm(s, f"cnn.{4 * k + 1}", "batch_normalization" + (f"_{k}" if k else ""))
        moved = s["squeeze.weight"].reshape(24, 16, 4).transpose(0, 2, 1).reshape(24, -1)
        yield {"dense1/kernel": moved.T, "dense1/bias": s["squeeze.bias"]}

    out = keras(layers())
    for k, name in ((1, "bidirectional"), (2, "bidirectional_1")):
        for way, tail in (("forward", "0"), ("backward", "0_reverse")):
            cell = f"{way}_lstm" + ("_1" if k == 2 else "")
            out |= keras_lstm(s, f"rnn{k}", tail, f"{name}/{name}/{cell}/lstm_cell")
    return out | keras([dense(s, "fc", "dense2")])


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


def stacked(s: State) -> Arrays:
    """Keras GRUs that reset after the matrix, the matrices square."""
    out = {"embedding/embeddings": s["emb.weight"]}
    for k, tail in enumerate(("", "_1")):
        x, h = matrices(s, "gru", str(k))
        two = np.stack([s[f"gru.bias_ih_l{k}"], s[f"gru.bias_hh_l{k}"]])
        home = f"gru{tail}/gru_cell{tail}"
        out |= {f"{home}/kernel": gates(x, (1, 0, 2)), f"{home}/recurrent_kernel": gates(h, (1, 0, 2))}
        out |= {f"{home}/bias": gates(two, (1, 0, 2))}
    return out | dense(s, "head.0", "dense") | dense(s, "head.2", "dense_1")


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


def generator(s: State) -> Arrays:
    """textgenrnn: Keras' CuDNNLSTM, whose bias is both of torch's behind each other."""
    out = {"embedding/embeddings": s["embedding.weight"]}
    for k in (1, 2):
        x, h = matrices(s, f"rnn_{k}", "0")
        two = np.concatenate([s[f"rnn_{k}.bias_ih_l0"], s[f"rnn_{k}.bias_hh_l0"]])
        out |= {f"rnn_{k}/kernel": x, f"rnn_{k}/recurrent_kernel": h, f"rnn_{k}/bias": two}
    out |= {"attention/attention_W": s["attention.weight"].T}
    return keras([out | dense(s, "output", "output")])


# --- Keras 1 LSTM, a matrix for each gate -----------------------------------------------------------------------------


def per_gate(s: State) -> Arrays:
    """Keras 1: each gate by itself, in the order of its code."""
    out = {"embedding_1/embedding_1_W": s["embed.weight"]}
    for k in (0, 1):
        x, h = matrices(s, "lstm", str(k))
        for g in "icfo":
            block = slice(16 * LSTM.index(g.replace("c", "g")), 16 * LSTM.index(g.replace("c", "g")) + 16)
            name = f"lstm_{k + 1}/lstm_{k + 1}"
            out |= {f"{name}_W_{g}": x[:, block], f"{name}_U_{g}": h[:, block]}
            out[f"{name}_b_{g}"] = bias(s, "lstm", str(k))[block]
    return out | {"dense_1/dense_1_W": s["out.weight"].T, "dense_1/dense_1_b": s["out.bias"]}


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


def wave(s: State) -> Arrays:
    """Keras' weight normalisation: `g` beside the kernel, which is the direction."""

    def layers() -> Iterator[Arrays]:
        yield dense(s, "start", "start")
        for k in range(3):
            for at, name in ((f"gate.{k}", f"dilated_{k}"), (f"skip.{k}", f"skip_{k}")):
                made = f"{at}.parametrizations.weight.original"
                yield {
                    f"{name}/g": s[f"{made}0"].reshape(-1), f"{name}/kernel": kernel(s[f"{made}1"]),
                    f"{name}/bias": s[f"{at}.bias"],
                }  # fmt: skip
        yield dense(s, "end", "end")

    return flat(layers())


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


def gru_crf(s: State) -> Arrays:
    turned = partial(gates, order=(1, 0, 2))
    out = {"embedding/embeddings": s["embeds.weight"]}
    for k in range(2):
        top = "bidirectional" + f"_{k}" * (k > 0)
        for tail, way in (("", "forward"), ("_reverse", "backward")):
            cell, ours = f"{top}/{way}_gru{f'_{k}' * (k > 0)}/gru_cell", f"encoder.{k}"
            two = np.stack([s[f"{ours}.bias_ih_l0{tail}"], s[f"{ours}.bias_hh_l0{tail}"]])
            out |= {
                f"{cell}/kernel": turned(s[f"{ours}.weight_ih_l0{tail}"].T),
                f"{cell}/recurrent_kernel": turned(s[f"{ours}.weight_hh_l0{tail}"].T), f"{cell}/bias": turned(two),
            }  # fmt: skip
    out |= dense(s, "mlp", "time_distributed") | dense(s, "to_tags", "crf/dense")
    out |= {"crf/left_boundary": s["crf.start_transitions"], "crf/right_boundary": s["crf.end_transitions"]}
    return out | {"crf/chain_kernel": s["crf.transitions"]}


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


def conformer(s: State) -> Arrays:
    top = "conformer_encoder"

    def layers() -> Iterator[Arrays]:
        yield dense(s, "subsample.0", f"{top}/subsampling/conv_1")
        yield dense(s, "subsample.2", f"{top}/subsampling/conv_2")
        w = s["input_linear.weight"].reshape(WIDTH, 8, 5).transpose(0, 2, 1).reshape(WIDTH, -1)
        yield {f"{top}/linear/kernel": w.T, f"{top}/linear/bias": s["input_linear.bias"]}
        for k in range(LAYERS):
            yield from block(f"conformer_layers.{k}", f"{top}_block_{k}")
        yield dense(s, "output_linear", "conformer_logits")

    def block(at: str, b: str) -> Iterator[Arrays]:
        home = f"{top}/{b}"
        for n in (1, 2):
            name = f"{home}/{b}_ff_module_{n}/{b}_ff_module_{n}"
            yield norm(s, f"{at}.ffn{n}.sequential.0", f"{name}_ln")
            yield dense(s, f"{at}.ffn{n}.sequential.1", f"{name}_dense_1")
            yield dense(s, f"{at}.ffn{n}.sequential.4", f"{name}_dense_2")
        name = f"{home}/{b}_mhsa_module/{b}_mhsa_module"
        yield norm(s, f"{at}.self_attn_layer_norm", f"{name}_ln")
        for j, x in enumerate(("query", "key", "value")):
            rows = slice(WIDTH * j, WIDTH * (j + 1))
            w = s[f"{at}.self_attn.in_proj_weight"][rows].T.reshape(WIDTH, HEADS, -1)
            yield {f"{name}_mhsa/{x}/kernel": w}
            yield {f"{name}_mhsa/{x}/bias": s[f"{at}.self_attn.in_proj_bias"][rows].reshape(HEADS, -1)}
        w = s[f"{at}.self_attn.out_proj.weight"].T.reshape(HEADS, -1, WIDTH)
        yield {f"{name}_mhsa/attention_output/kernel": w}
        yield {f"{name}_mhsa/attention_output/bias": s[f"{at}.self_attn.out_proj.bias"]}
        name = f"{home}/{b}_conv_module/{b}_conv_module"
        yield norm(s, f"{at}.conv_module.layer_norm", f"{name}_ln")
        yield dense(s, f"{at}.conv_module.sequential.0", f"{name}_pw_conv_1")
        w = s[f"{at}.conv_module.sequential.2.weight"].transpose(2, 0, 1)
        yield {f"{name}_dw_conv/depthwise_kernel": w}
        yield {f"{name}_dw_conv/bias": s[f"{at}.conv_module.sequential.2.bias"]}
        yield norm(s, f"{at}.conv_module.sequential.3", f"{name}_bn")
        yield dense(s, f"{at}.conv_module.sequential.5", f"{name}_pw_conv_2")
        yield norm(s, f"{at}.final_layer_norm", f"{home}/{b}_ln")

    return dict(sorted(flat(layers()).items()))


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


def deep_speech(s: State) -> Arrays:
    """Keras has time before frequencies, and flattens frequencies before channels."""
    out: Arrays = {}
    for n in (1, 2):
        out[f"conv_{n}/kernel"] = s[f"conv.{3 * n - 3}.weight"].transpose(3, 2, 1, 0)
        out |= norm(s, f"conv.{3 * n - 2}", f"conv_{n}_bn")
    for k in range(3):
        if k:
            out |= norm(s, f"rnns.{k}.batch_norm", f"bn_{k}")
        for way, tail in (("forward", ""), ("backward", "_reverse")):
            name = f"bidirectional_{k + 1}/{way}_gru_{k + 1}/gru_cell"
            out |= keras_gru(s, f"rnns.{k}.rnn", name, tail)
            if not k:
                w: Array = out[f"{name}/kernel"]
                out[f"{name}/kernel"] = w.reshape(6, 4, -1).transpose(1, 0, 2).reshape(24, -1)
    out |= norm(s, "fc.0", "bn_3")
    return out | dense(s, "fc.1", "dense")


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


def seq2seq(s: State) -> Arrays:
    def gru(at: str, name: str) -> Arrays:
        two = np.stack([s[f"{at}.bias_ih_l0"], s[f"{at}.bias_hh_l0"]])
        return {
            f"{name}/gru_cell/kernel": gates(s[f"{at}.weight_ih_l0"].T, (1, 0, 2)),
            f"{name}/gru_cell/recurrent_kernel": gates(s[f"{at}.weight_hh_l0"].T, (1, 0, 2)),
            f"{name}/gru_cell/bias": gates(two, (1, 0, 2)),
        }

    def layers() -> Iterator[Arrays]:
        yield {"encoder/embedding/embeddings": s["src_embed.weight"]} | gru("encoder", "encoder/gru")
        yield {"decoder/embedding_1/embeddings": s["tgt_embed.weight"]} | gru("decoder", "decoder/gru_1")
        yield dense(s, "vocab", "decoder/dense")
        home = "decoder/bahdanau_attention"
        yield dense(s, "w_query", f"{home}/dense_1") | dense(s, "w_key", f"{home}/dense_2")
        yield dense(s, "score", f"{home}/dense_3")

    return flat(layers())


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


def decoder(s: State) -> Arrays:
    def attention(at: str, name: str) -> Iterator[Arrays]:
        for ours, theirs in (("to_q", "query"), ("to_k", "key"), ("to_v", "value")):
            yield {
                f"{name}/{theirs}/kernel": s[f"{at}.{ours}.weight"].T.reshape(16, 4, 4),
                f"{name}/{theirs}/bias": s[f"{at}.{ours}.bias"].reshape(4, 4),
            }
        yield {
            f"{name}/attention_output/kernel": s[f"{at}.to_out.weight"].T.reshape(4, 4, 16),
            f"{name}/attention_output/bias": s[f"{at}.to_out.bias"],
        }

    def layers() -> Iterator[Arrays]:
        yield {"decoder/embedding/embeddings": s["embed.weight"], "decoder/memory/embeddings": s["memory.weight"]}
        for k in range(3):
            at, name = f"layers.{k}", f"decoder/decoder_layer{f'_{k}' if k else ''}"
            yield from attention(f"{at}.self_attn", f"{name}/causal_self_attention/multi_head_attention")
            yield norm(s, f"{at}.norm1", f"{name}/causal_self_attention/layer_normalization")
            yield from attention(f"{at}.cross_attn", f"{name}/cross_attention/multi_head_attention")
            yield norm(s, f"{at}.norm2", f"{name}/cross_attention/layer_normalization")
            yield dense(s, f"{at}.fc1", f"{name}/feed_forward/dense") | dense(
                s, f"{at}.fc2", f"{name}/feed_forward/dense_1"
            )
            yield norm(s, f"{at}.norm3", f"{name}/feed_forward/layer_normalization")
        yield dense(s, "final", "dense")

    return flat(layers())


PORTS = {
    "cred": Port("Keras convolutions and BiLSTM (CRED)", Cred, cred, lambda: (torch.randn(2, 3, 20),)),
    "tagger": Port("Keras bidirectional GRU", Tagger, tagger, ids(50)),
    "ocr": Port("Keras CRNN, dense behind the image, BiLSTMs", Ocr, ocr, image(1, 16)),
    "gru": Port("Keras GRUs, square matrices", Stacked, stacked, ids(40)),
    "cudnn": Port("Keras CuDNNLSTM (textgenrnn)", Generator, generator, ids(40)),
    "keras1": Port("Keras 1 LSTM, a matrix for each gate", Lstm, per_gate, ids(40)),
    "wave": Port("Keras WaveNet, weight normalisation", Wave, wave, lambda: series(4, 30)),
    "gru-crf": Port("Keras BiGRU with a CRF", GruCrf, gru_crf, ids(40)),
    "conformer-heads": Port(
        "Keras Conformer into torchaudio's names", Conformer, conformer, lambda: (torch.randn(2, 24, 20),)
    ),
    "speech": Port("Keras Deep Speech 2, bidirectional GRUs", DeepSpeech, deep_speech, waves),
    "seq2seq": Port("Keras translation, GRUs and additive attention", Seq2Seq, seq2seq, ids(36)),
    "decoder": Port("Keras Transformer decoder, cross attention", Decoder, decoder, ids(30)),
}
