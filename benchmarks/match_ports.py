"""How often a port loads: original weights into freshly initialised modules written by another hand.

    python benchmarks/match_ports.py [--only NAME,NAME] [--every]     the table of docs/match.md

Each port is a torch module of our own with weights that stand for trained ones, the same weights as the original's
framework stores them (its names, orders of axes and of gates, its fused tensors), and a fresh module of the same class.
A check begins by comparing, so a port that loads by names alone passes it; `--every` runs it all the same.
`match` sees the stored weights and the fresh module only. A tensor is right if the fresh module then holds the trained
bits; the port loads if its outputs are the trained module's. Nobody edits the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from ports_blind import PORTS as BLIND
from ports_blind_jax import PORTS as BLIND_JAX
from ports_blind_text import PORTS as BLIND_TEXT
from ports_common import Arrays, Port, State, dense, gates, ids, image, keras, kernel, norm
from ports_images import PORTS as IMAGES
from ports_later import PORTS as LATER
from ports_second import PORTS as SECOND
from ports_second_text import PORTS as SECOND_TEXT
from ports_sequences import PORTS as SEQUENCES
from ports_strangers import PORTS as STRANGERS
from ports_third import PORTS as THIRD
from torch import Tensor, nn

from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import CkptError
from ckptconv.matching.check.prove import prove
from ckptconv.matching.pairs import Proposal
from ckptconv.matching.rules import toml
from ckptconv.matching.search import match
from ckptconv.torch import load_into, outline

SECONDS = 120.0  # of a search that does not end; a person would wait five minutes

# --- nets of convolutions ---------------------------------------------------------------------------------------------


class ConvBN(nn.Module):
    """Convolutions with batch normalisation, a dense layer behind the flattened image."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 16, 16, 24)
        blocks = []
        for i, o in itertools.pairwise(widths):
            blocks.append(nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o, eps=1e-3), nn.ReLU()))
        self.features = nn.ModuleList(blocks)
        self.hidden = nn.Linear(24 * 16, 32)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for k, f in enumerate(self.features):
            x = f(x)
            if k < 2:
                x = nn.functional.max_pool2d(x, 2)
        return self.classifier(self.hidden(x.flatten(1)).relu())


def conv_bn(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        for k in range(4):
            yield dense(s, f"features.{k}.0", f"conv2d_{k + 1}")
            yield norm(s, f"features.{k}.1", f"batch_normalization_{k + 1}")
        flat = s["hidden.weight"].reshape(32, 24, 4, 4).transpose(0, 2, 3, 1).reshape(32, -1)
        yield {"dense_1/kernel": flat.T, "dense_1/bias": s["hidden.bias"]}
        yield dense(s, "classifier", "dense_2")

    return keras(layers())


class Separable(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(i, i, 3, padding=1, groups=i, bias=False)
        self.pointwise = nn.Conv2d(i, o, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))


class XBlock(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.sep1, self.bn1 = Separable(i, o), nn.BatchNorm2d(o, eps=1e-3)
        self.sep2, self.bn2 = Separable(o, o), nn.BatchNorm2d(o, eps=1e-3)
        self.shortcut, self.shortcut_bn = nn.Conv2d(i, o, 1, stride=2, bias=False), nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.sep2(self.bn1(self.sep1(x)).relu()))
        return nn.functional.max_pool2d(y, 2) + self.shortcut_bn(self.shortcut(x))


class MiniX(nn.Module):
    """Separable convolutions in residual blocks, after mini-XCEPTION."""

    def __init__(self) -> None:
        super().__init__()
        self.stem1, self.bn1 = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8, eps=1e-3)
        self.stem2, self.bn2 = nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8, eps=1e-3)
        self.blocks = nn.ModuleList([XBlock(8, 16), XBlock(16, 32), XBlock(32, 64)])
        self.head = nn.Conv2d(64, 7, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn2(self.stem2(self.bn1(self.stem1(x)).relu())).relu()
        for b in self.blocks:
            x = b(x)
        return self.head(x).mean((2, 3))


def minix(s: State) -> Arrays:
    """Keras counts a block's shortcut before its convolutions, and its separable layers apart."""

    def sep(at: str, name: str) -> Arrays:
        d = s[f"{at}.depthwise.weight"].transpose(2, 3, 0, 1)
        return {f"{name}/depthwise_kernel": d, f"{name}/pointwise_kernel": kernel(s[f"{at}.pointwise.weight"])}

    def layers() -> Iterator[Arrays]:
        yield dense(s, "stem1", "conv2d_1")
        yield norm(s, "bn1", "batch_normalization_1")
        yield dense(s, "stem2", "conv2d_2")
        yield norm(s, "bn2", "batch_normalization_2")
        for k in range(3):
            b = f"blocks.{k}"
            yield sep(f"{b}.sep1", f"separable_conv2d_{2 * k + 1}")
            yield norm(s, f"{b}.bn1", f"batch_normalization_{3 * k + 4}")
            yield sep(f"{b}.sep2", f"separable_conv2d_{2 * k + 2}")
            yield norm(s, f"{b}.bn2", f"batch_normalization_{3 * k + 5}")
            yield dense(s, f"{b}.shortcut", f"conv2d_{k + 3}")
            yield norm(s, f"{b}.shortcut_bn", f"batch_normalization_{3 * k + 3}")
        yield dense(s, "head", "conv2d_6")

    return keras(layers())


class Dilated(nn.Module):
    def __init__(self, n: int, k: int, d: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm1d(n, eps=1e-3), nn.Conv1d(n, n, k, dilation=d, padding="same")
        self.bn2, self.conv2 = nn.BatchNorm1d(n, eps=1e-3), nn.Conv1d(n, n, k, dilation=d, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.bn2(self.conv1(self.bn1(x).relu())).relu())


class Splice(nn.Module):
    """A dilated residual net with skips, after SpliceAI."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.skip = nn.Conv1d(4, 16, 1), nn.Conv1d(16, 16, 1)
        self.units = nn.ModuleList([Dilated(16, k, d) for k, d in ((3, 1), (3, 1), (5, 2), (5, 2))])
        self.taps = nn.ModuleList([nn.Conv1d(16, 16, 1), nn.Conv1d(16, 16, 1)])
        self.out = nn.Conv1d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        y = self.skip(x)
        for k, u in enumerate(self.units):
            x = u(x)
            if k % 2:
                y = y + self.taps[k // 2](x)
        return self.out(y)


def splice(s: State) -> Arrays:
    """Keras numbers convolutions and normalisations in the order in which they were made."""
    order = ["conv1", "skip"]
    for k in range(4):
        order += [f"units.{k}.conv1", f"units.{k}.conv2"] + ([f"taps.{k // 2}"] if k % 2 else [])

    def layers() -> Iterator[Arrays]:
        for n, at in enumerate([*order, "out"], 1):
            yield dense(s, at, f"conv1d_{n}")
        for n, at in enumerate((f"units.{k}.bn{j}" for k in range(4) for j in (1, 2)), 1):
            yield norm(s, at, f"batch_normalization_{n}")

    return dict(sorted(keras(layers()).items()))


class UNet(nn.Module):
    """A U-Net over time whose original is two-dimensional with a width of one, after PhaseNet."""

    def __init__(self) -> None:
        super().__init__()

        def pair(i: int, o: int) -> nn.ModuleList:
            return nn.ModuleList([nn.Conv1d(i, o, 7, padding=3, bias=False), nn.BatchNorm1d(o, eps=1e-3)])

        self.inc, self.in_bn = nn.Conv1d(3, 8, 7, padding=3), nn.BatchNorm1d(8, eps=1e-3)
        self.down = nn.ModuleList([pair(8, 8), pair(8, 16), pair(16, 32)])
        self.up = nn.ModuleList([pair(32, 16), pair(16, 8)])
        self.turn = nn.ModuleList(
            [nn.ConvTranspose1d(32, 16, 2, 2, bias=False), nn.ConvTranspose1d(16, 8, 2, 2, bias=False)]
        )
        self.out = nn.Conv1d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.in_bn(self.inc(x)).relu()
        kept = []
        for conv, bn in self.down:
            x = bn(conv(x)).relu()
            kept.append(x)
            if len(kept) < 3:
                x = nn.functional.max_pool1d(x, 2)
        for turn, (conv, bn), skip in zip(self.turn, self.up, kept[1::-1], strict=True):
            x = bn(conv(torch.cat([skip, turn(x)], 1))).relu()
        return self.out(x)


def unet(s: State) -> Arrays:
    def conv(w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return kernel(w)[:, None]  # k 1 i o

    out = {"Input/input_conv/kernel": conv(s["inc.weight"]), "Input/input_conv/bias": s["inc.bias"]}
    out |= norm(s, "in_bn", "Input/input_bn")
    for k in range(3):
        out[f"DownConv_{k}/down_conv1_{k + 1}/kernel"] = conv(s[f"down.{k}.0.weight"])
        out |= norm(s, f"down.{k}.1", f"DownConv_{k}/down_bn1_{k + 1}")
    for k in range(2):
        out[f"UpConv_{1 - k}/up_conv0_{2 - k}/kernel"] = conv(s[f"turn.{k}.weight"])
        out[f"UpConv_{1 - k}/up_conv1_{2 - k}/kernel"] = conv(s[f"up.{k}.0.weight"])
        out |= norm(s, f"up.{k}.1", f"UpConv_{1 - k}/up_bn1_{2 - k}")
    out |= {"Output/output_conv/kernel": conv(s["out.weight"]), "Output/output_conv/bias": s["out.bias"]}
    return dict(sorted(out.items()))


# --- recurrent nets ---------------------------------------------------------------------------------------------------


class Cred(nn.Module):
    """Convolutions, two bidirectional LSTMs and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(3, 12, 5, padding=2), nn.BatchNorm1d(12, eps=1e-3)
        self.blstm1 = nn.LSTM(12, 10, batch_first=True, bidirectional=True)
        self.blstm2 = nn.LSTM(20, 10, batch_first=True, bidirectional=True)
        self.last = nn.LSTM(20, 14, batch_first=True)
        self.fc = nn.Linear(14, 2)
        for name, p in self.named_parameters():
            if name.rpartition(".")[2].startswith("bias_hh"):
                nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x)).relu().transpose(1, 2)
        for rnn in (self.blstm1, self.blstm2, self.last):
            x = rnn(x)[0]
        return self.fc(x)


def keras_lstm(s: State, at: str, tail: str, name: str) -> Arrays:
    return {
        f"{name}/kernel": s[f"{at}.weight_ih_l0{tail}"].T,
        f"{name}/recurrent_kernel": s[f"{at}.weight_hh_l0{tail}"].T,
        f"{name}/bias": s[f"{at}.bias_ih_l0{tail}"] + s[f"{at}.bias_hh_l0{tail}"],
    }


def cred(s: State) -> Arrays:
    out = keras(iter([dense(s, "conv", "conv1d_1"), norm(s, "bn", "batch_normalization_1")]))
    for k in (1, 2):
        home = f"bidirectional_{k}/bidirectional_{k}"
        out |= keras_lstm(s, f"blstm{k}", "", f"{home}/forward_lstm_{k}/lstm_cell")
        out |= keras_lstm(s, f"blstm{k}", "_reverse", f"{home}/backward_lstm_{k}/lstm_cell")
    out |= keras_lstm(s, "last", "", "lstm_3/lstm_3/lstm_cell")
    return out | keras(iter([dense(s, "fc", "time_distributed_1")]))


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


def cells(s: State) -> Arrays:
    out = {"model/embedding": s["embedding.weight"]}
    for k in range(2):
        home = f"model/rnn/multi_rnn_cell/cell_{k}/basic_lstm_cell"
        joint = np.concatenate([s[f"lstm.weight_ih_l{k}"].T, s[f"lstm.weight_hh_l{k}"].T])
        out |= {
            f"{home}/kernel": gates(joint, (0, 2, 1, 3)),
            f"{home}/bias": gates(s[f"lstm.bias_ih_l{k}"], (0, 2, 1, 3)),
        }
    return dict(sorted((out | {"model/softmax_w": s["proj.weight"].T, "model/softmax_b": s["proj.bias"]}).items()))


# --- attention --------------------------------------------------------------------------------------------------------


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


class Block(nn.Module):
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
        self.layers = nn.ModuleList([Block(16) for _ in range(3)])
        self.final = nn.LayerNorm(16)
        self.head = nn.Linear(16, 60, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers:
            y = layer(y)
        return self.head(self.final(y))


def gpt(s: State) -> Arrays:
    """As OpenAI's checkpoint of GPT-2: convolutions of width one, `w` and `b`, `g` and `b`."""
    out = {"model/wte": s["tokens.weight"], "model/wpe": s["positions.weight"]}
    names = {"attn.qkv": "attn/c_attn", "attn.proj": "attn/c_proj", "up": "mlp/c_fc", "down": "mlp/c_proj"}
    for k in range(3):
        for ours, theirs in names.items():
            out[f"model/h{k}/{theirs}/w"] = s[f"layers.{k}.{ours}.weight"].T[None]
            out[f"model/h{k}/{theirs}/b"] = s[f"layers.{k}.{ours}.bias"]
        for n in (1, 2):
            out[f"model/h{k}/ln_{n}/g"] = s[f"layers.{k}.norm{n}.weight"]
            out[f"model/h{k}/ln_{n}/b"] = s[f"layers.{k}.norm{n}.bias"]
    out |= {"model/ln_f/g": s["final.weight"], "model/ln_f/b": s["final.bias"]}
    return dict(sorted(out.items()))


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


def encoder(s: State) -> Arrays:
    """As a BERT checkpoint of TensorFlow 1."""
    top = "bert/embeddings"
    out = {f"{top}/word_embeddings": s["word.weight"], f"{top}/position_embeddings": s["place.weight"]}
    out |= norm(s, "norm", f"{top}/LayerNorm")
    for k in range(3):
        at, name = f"encoder.layers.{k}", f"bert/encoder/layer_{k}"
        for j, word in enumerate(("query", "key", "value")):
            rows = slice(16 * j, 16 * j + 16)
            out[f"{name}/attention/self/{word}/kernel"] = s[f"{at}.self_attn.in_proj_weight"][rows].T
            out[f"{name}/attention/self/{word}/bias"] = s[f"{at}.self_attn.in_proj_bias"][rows]
        out |= dense(s, f"{at}.self_attn.out_proj", f"{name}/attention/output/dense")
        out |= norm(s, f"{at}.norm1", f"{name}/attention/output/LayerNorm")
        out |= dense(s, f"{at}.linear1", f"{name}/intermediate/dense")
        out |= dense(s, f"{at}.linear2", f"{name}/output/dense") | norm(s, f"{at}.norm2", f"{name}/output/LayerNorm")
    return dict(sorted((out | dense(s, "pooler", "bert/pooler/dense")).items()))


class Split(nn.Module):
    """One block whose q, k and v are matrices of their own."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.o_proj, self.fc1, self.fc2 = nn.Linear(d, d), nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.ln1(x)
        q, k, v = (p(h).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.o_proj(y)
        return x + self.fc2(self.fc1(self.ln2(x)).relu())


class Vit(nn.Module):
    """A vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 12, 4, 4)
        self.blocks = nn.ModuleList([Split(12, 3) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x).mean(1))


def scanned(s: State) -> Arrays:
    """As Flax stores layers that `nn.scan` made: one tensor for all layers, and heads as axes."""
    out = {"params/embedding/kernel": kernel(s["patch.weight"]), "params/embedding/bias": s["patch.bias"]}
    home = "params/Transformer/encoderblock"

    def stack(make: Callable[[str], np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        return np.stack([make(f"blocks.{k}") for k in range(4)])

    for ours, theirs in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        at = f"{home}/MultiHeadDotProductAttention_0/{theirs}"
        out[f"{at}/kernel"] = stack(lambda b, p=ours: s[f"{b}.{p}.weight"].T.reshape(12, 3, 4))
        out[f"{at}/bias"] = stack(lambda b, p=ours: s[f"{b}.{p}.bias"].reshape(3, 4))
    at = f"{home}/MultiHeadDotProductAttention_0/out"
    out[f"{at}/kernel"] = stack(lambda b: s[f"{b}.o_proj.weight"].T.reshape(3, 4, 12))
    out[f"{at}/bias"] = stack(lambda b: s[f"{b}.o_proj.bias"])
    for k in (0, 1):
        out[f"{home}/LayerNorm_{k}/scale"] = stack(lambda b, n=k + 1: s[f"{b}.ln{n}.weight"])
        out[f"{home}/LayerNorm_{k}/bias"] = stack(lambda b, n=k + 1: s[f"{b}.ln{n}.bias"])
        out[f"{home}/MlpBlock_0/Dense_{k}/kernel"] = stack(lambda b, n=k + 1: s[f"{b}.fc{n}.weight"].T)
        out[f"{home}/MlpBlock_0/Dense_{k}/bias"] = stack(lambda b, n=k + 1: s[f"{b}.fc{n}.bias"])
    out |= {"params/Transformer/encoder_norm/scale": s["norm.weight"]}
    out |= {"params/Transformer/encoder_norm/bias": s["norm.bias"]}
    return dict(sorted((out | dense(s, "head", "params/head")).items()))


# --- experts ----------------------------------------------------------------------------------------------------------


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


PORTS = {
    "conv-bn": Port("Keras conv net, batch norm, dense behind the image", ConvBN, conv_bn, image(3, 16)),
    "mini-x": Port("Keras separable residual net (mini-XCEPTION)", MiniX, minix, image(1, 36)),
    "splice": Port("Keras dilated residual net (SpliceAI)", Splice, splice, lambda: (torch.randn(2, 4, 40),)),
    "unet": Port("TF1 U-Net, transposed convolutions (PhaseNet)", UNet, unet, lambda: (torch.randn(2, 3, 32),)),
    "cred": Port("Keras convolutions and BiLSTM (CRED)", Cred, cred, lambda: (torch.randn(2, 3, 20),)),
    "tagger": Port("Keras bidirectional GRU", Tagger, tagger, ids(50)),
    "cells": Port("TF1 BasicLSTMCell, two layers", Cells, cells, ids(40)),
    "gpt": Port("TF1 GPT-2, fused QKV, tied head", Gpt, gpt, ids(60)),
    "encoder": Port("TF1 BERT into nn.TransformerEncoder", Encoder, encoder, ids(70)),
    "vit": Port("Flax ViT, scanned layers, heads as axes", Vit, scanned, image(3, 16)),
    "moe": Port("T5X mixture of experts, stacked", Moe, moe, ids(40)),
    **IMAGES,
    **SEQUENCES,
    **LATER,
    **STRANGERS,
    **BLIND,
    **BLIND_TEXT,
    **BLIND_JAX,
    **SECOND,
    **SECOND_TEXT,
    **THIRD,
}


def trained(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose weights are all different, as those of a trained one."""
    torch.manual_seed(seed)
    module = build().eval()
    with torch.no_grad():
        for name, t in module.state_dict().items():
            if t.is_floating_point() and "bias_hh" not in name and "running_var" not in name:
                t += 0.05 * torch.randn_like(t)
            elif "running_var" in name:
                t.copy_(torch.rand_like(t) + 0.5)
    return module


class Row(NamedTuple):
    """What came of a port."""

    total: int
    right: int
    unmarked: int  # wrong and not marked
    doubts: int
    names: bool  # the outputs are the original's, by names alone
    checked: bool  # after --check
    seconds: float
    note: str


def state(module: nn.Module) -> Arrays:
    return {n: t.detach().numpy().copy() for n, t in module.state_dict().items() if t.is_floating_point()}


def same(module: nn.Module, other: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    with torch.no_grad():
        return torch.allclose(module(*inputs), other(*inputs), rtol=1e-3, atol=1e-4)


def run(port: Port, folder: Path, *, check: bool = True, every: bool = False) -> Row:
    original, fresh = trained(port.build, 1), trained(port.build, 2)
    source = Checkpoint({n: held(n, np.ascontiguousarray(x)) for n, x in port.store(state(original)).items()})
    inputs = port.inputs()
    began = time.perf_counter()
    try:
        found = match(source, outline(fresh))
    except CkptError as e:
        return Row(len(state(original)), 0, 0, 0, False, False, time.perf_counter() - began, e.message[:60])
    rules = folder / "rules.toml"
    rules.write_text(toml(found))
    note = ""
    try:
        load_into(fresh, source, str(rules), strict=False)
    except CkptError as e:
        note = e.message.splitlines()[0][:70]
    want, have = state(original), state(fresh)
    wrong = {n for n in want if want[n].tobytes() != have[n].tobytes()}
    owner = {t: p for p in found.pairs for t in p.targets}
    unmarked = sum(owner[n].sure for n in wrong if n in owner)
    names = same(original, fresh, inputs)
    checked = proved(port, original, found, source, inputs) if check and (every or not names) else names
    doubts = sum(not p.sure for p in found.pairs)
    return Row(len(want), len(want) - len(wrong), unmarked, doubts, names, checked, time.perf_counter() - began, note)


def proved(port: Port, original: nn.Module, found: Any, source: Checkpoint, inputs: tuple[Tensor, ...]) -> bool:
    """Whether --check, given the original's outputs only, ends with a module that computes the same."""
    fresh = trained(port.build, 3)
    with torch.no_grad():
        wanted = original(*inputs)
    target = outline(fresh)

    def propose(order: Sequence[str]) -> Proposal:
        return match(source, target.with_tensors({n: target[n] for n in order}), values=False)

    arrays = {"x": inputs[0].numpy()}, {"output": wanted.numpy()}
    proof = prove(fresh, found, source, *arrays, propose=propose, seconds=SECONDS)
    wrong = {n for n, x in state(original).items() if x.tobytes() != state(fresh)[n].tobytes()}
    if any(p.sure and wrong & set(p.targets) for p in proof.proposal.pairs):
        raise SystemExit(f"{port.title}: a wrong pair is not marked")
    return proof.found.same and same(original, fresh, inputs)


def main(only: str, every: bool) -> int:
    """Print the table; 1 if a wrong pair is not marked."""
    torch.set_num_threads(1)  # the modules are tiny
    print(
        "| port | tensors right by names | wrong, not marked | loads by names alone | after `--check` | then a person |"
    )
    print("|---|---|---|---|---|---|")
    done: list[Row] = []
    for name, port in PORTS.items():
        if only and name not in only.split(","):
            continue
        with TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            row = run(port, Path(folder), every=every)
        done.append(row)
        names, checked = ("yes" if f else "no" for f in (row.names, row.checked))
        right = f"{row.right} of {row.total}"
        told = "nothing" if row.names or row.checked else "edit the rules"
        print(f"| {port.title} | {right} | {row.unmarked} | {names} | {checked} | {told} |", flush=True)
        print(f"{name}: {row.doubts} pairs marked, {row.seconds:.1f} s {row.note}", file=sys.stderr)
    loaded, proved_ = sum(r.names for r in done), sum(r.checked for r in done)
    tensors = sum(r.right for r in done), sum(r.total for r in done)
    print(f"\n{loaded} of {len(done)} by names alone, {proved_} after `--check`; {tensors[0]} of {tensors[1]} tensors.")
    return int(any(r.unmarked for r in done))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of ports, with commas")
    parser.add_argument("--every", action="store_true", help="check ports that load by names alone, too")
    args = parser.parse_args()
    raise SystemExit(main(args.only, args.every))
