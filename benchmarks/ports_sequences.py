"""Ports of recurrent nets, attention and experts, in the words of Keras 1 and 2, TF1, Flax, Haiku and T5X."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from ports_common import SCALE, Array, Arrays, Port, State, dense, flat, gates, ids, image, keras, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import gelu

LSTM = "ifgo"  # torch's order of gates
GRU = "rzn"


def quiet(module: nn.Module) -> None:
    """Zero torch's second bias, which the originals have not."""
    for name, p in module.named_parameters():
        if name.rpartition(".")[2].startswith("bias_hh"):
            nn.init.zeros_(p)


def bias(s: State, at: str, tail: str) -> Array:
    return s[f"{at}.bias_ih_l{tail}"] + s[f"{at}.bias_hh_l{tail}"]


def matrices(s: State, at: str, tail: str) -> tuple[Array, Array]:
    return s[f"{at}.weight_ih_l{tail}"].T, s[f"{at}.weight_hh_l{tail}"].T


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


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 10)
        self.lstm = nn.LSTM(10, 16, num_layers=2, batch_first=True)
        self.out = nn.Linear(16, 40)
        quiet(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0])


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


def flax_lstm(s: State) -> Arrays:
    """Flax: a Dense for each gate, those of the inputs without bias."""
    out = {"params/Embed_0/embedding": s["embed.weight"]}
    for k in (0, 1):
        x, h = matrices(s, "lstm", str(k))
        home = f"params/ScanLSTMCell_{k}" if k else "params/ScanLSTMCell_0"
        for j, g in enumerate(LSTM):
            block = slice(16 * j, 16 * j + 16)
            out |= {f"{home}/i{g}/kernel": x[:, block], f"{home}/h{g}/kernel": h[:, block]}
            out[f"{home}/h{g}/bias"] = bias(s, "lstm", str(k))[block]
    return dict(sorted((out | dense(s, "out", "params/Dense_0")).items()))


class HaikuLstm(Lstm):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            for k in (0, 1):
                getattr(self.lstm, f"bias_hh_l{k}")[16:32] = 1.0


def haiku_lstm(s: State) -> Arrays:
    """Haiku: inputs and state in one matrix, gates i g f o, one added to the forget gate when it runs."""
    out = {"embed/embeddings": s["embed.weight"]}
    for k in (0, 1):
        home = f"lstm{'_1' if k else ''}/linear"
        joint = np.concatenate(matrices(s, "lstm", str(k)))
        out |= {f"{home}/w": gates(joint, (0, 2, 1, 3)), f"{home}/b": gates(s[f"lstm.bias_ih_l{k}"], (0, 2, 1, 3))}
    return out | dense(s, "out", "linear", "w", "b")


class FlaxGru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 10)
        self.gru = nn.GRU(10, 16, batch_first=True)
        self.out = nn.Linear(16, 40)
        with torch.no_grad():
            self.gru.bias_hh_l0[:32] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0])


def flax_gru(s: State) -> Arrays:
    """Flax: the gates of the inputs have biases, of those of the state only the candidate's has."""
    out = {"params/embed/embedding": s["embed.weight"]}
    x, h = matrices(s, "gru", "0")
    for j, g in enumerate(GRU):
        block = slice(16 * j, 16 * j + 16)
        out |= {f"params/gru/i{g}/kernel": x[:, block], f"params/gru/h{g}/kernel": h[:, block]}
        out[f"params/gru/i{g}/bias"] = s["gru.bias_ih_l0"][block]
    out["params/gru/hn/bias"] = s["gru.bias_hh_l0"][32:]
    return dict(sorted((out | dense(s, "out", "params/head")).items()))


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


def bilm(s: State) -> Arrays:
    """TF1's stack_bidirectional_dynamic_rnn."""
    out = {"embeddings": s["lookup.weight"]}
    for k in (0, 1):
        for way, tail in (("fw", f"{k}"), ("bw", f"{k}_reverse")):
            home = f"stack_bidirectional_rnn/cell_{k}/bidirectional_rnn/{way}/lstm_cell"
            joint = np.concatenate(matrices(s, "encoder", tail))
            out[f"{home}/kernel"] = gates(joint, (0, 2, 1, 3))
            out[f"{home}/bias"] = gates(s[f"encoder.bias_ih_l{tail}"], (0, 2, 1, 3))
    return dict(sorted((out | dense(s, "logits", "logits/dense")).items()))


class VisionTransformer(nn.Module):
    """The names of torchvision's ViT, whose attention holds q, k and v in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.conv_proj = nn.Conv2d(3, 16, 4, 4)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.randn(1, 17, 16) * 0.02)
        layers = nn.Sequential()
        for k in range(3):
            layer = nn.Module()
            layer.ln_1, layer.self_attention = nn.LayerNorm(16, 1e-6), nn.MultiheadAttention(16, 4, batch_first=True)
            layer.ln_2 = nn.LayerNorm(16, 1e-6)
            layer.mlp = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.0), nn.Linear(48, 16))
            layers.add_module(f"encoder_layer_{k}", layer)
        self.encoder.layers, self.encoder.ln = layers, nn.LayerNorm(16, 1e-6)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.encoder.pos_embedding
        for layer in self.encoder.layers:
            y = layer.ln_1(x)
            x = x + layer.self_attention(y, y, y, need_weights=False)[0]
            x = x + layer.mlp(layer.ln_2(x))
        return self.heads(self.encoder.ln(x)[:, 0])


def vision(s: State) -> Arrays:
    """Google's ViT in Flax: heads as axes, a layer each."""
    out = {"cls": s["class_token"], "Transformer/posembed_input/pos_embedding": s["encoder.pos_embedding"]}
    out |= dense(s, "conv_proj", "embedding")
    for k in range(3):
        at, name = f"encoder.layers.encoder_layer_{k}", f"Transformer/encoderblock_{k}"
        mha = f"{name}/MultiHeadDotProductAttention_1"
        for j, word in enumerate(("query", "key", "value")):
            rows = slice(16 * j, 16 * j + 16)
            out[f"{mha}/{word}/kernel"] = s[f"{at}.self_attention.in_proj_weight"][rows].T.reshape(16, 4, 4)
            out[f"{mha}/{word}/bias"] = s[f"{at}.self_attention.in_proj_bias"][rows].reshape(4, 4)
        out[f"{mha}/out/kernel"] = s[f"{at}.self_attention.out_proj.weight"].T.reshape(4, 4, 16)
        out[f"{mha}/out/bias"] = s[f"{at}.self_attention.out_proj.bias"]
        out |= norm(s, f"{at}.ln_1", f"{name}/LayerNorm_0", SCALE) | norm(s, f"{at}.ln_2", f"{name}/LayerNorm_2", SCALE)
        out |= dense(s, f"{at}.mlp.0", f"{name}/MlpBlock_3/Dense_0")
        out |= dense(s, f"{at}.mlp.3", f"{name}/MlpBlock_3/Dense_1")
    out |= norm(s, "encoder.ln", "Transformer/encoder_norm", SCALE) | dense(s, "heads.head", "head")
    return dict(sorted(out.items()))


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


class HaikuBlock(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.ModuleDict({n: nn.Linear(d, d) for n in ("q_proj", "k_proj", "v_proj", "out_proj")})
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln_1(x)
        q, k, v = (self.attn[n](h).view(*h.shape[:2], 4, -1).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attn["out_proj"](y)
        return x + self.mlp(self.ln_2(x))


class HaikuGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, 16), nn.Embedding(16, 16)
        self.h = nn.ModuleList([HaikuBlock(16) for _ in range(3)])
        self.ln_f, self.head = nn.LayerNorm(16), nn.Linear(16, 40)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            y = block(y)
        return self.head(self.ln_f(y))


def haiku_gpt(s: State) -> Arrays:
    """Haiku's example: `w`, `b`, `scale`, `offset`, all matrices of the attention square."""
    words = {"weight": "scale", "bias": "offset"}
    out = {"lm/embed/embeddings": s["wte.weight"], "lm/pos_embs": s["wpe.weight"]}
    for k in range(3):
        at, name = f"h.{k}", f"lm/transformer/h{k}"
        out |= norm(s, f"{at}.ln_1", f"{name}_ln_1", words) | norm(s, f"{at}.ln_2", f"{name}_ln_2", words)
        for ours, theirs in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "linear")):
            out |= dense(s, f"{at}.attn.{ours}", f"{name}_attn/{theirs}", "w", "b")
        out |= dense(s, f"{at}.mlp.0", f"{name}_mlp/linear", "w", "b")
        out |= dense(s, f"{at}.mlp.2", f"{name}_mlp/linear_1", "w", "b")
    return out | norm(s, "ln_f", "lm/transformer/ln_f", words) | dense(s, "head", "lm/linear", "w", "b")


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


class Bank(nn.Module):
    """Experts whose matrices are stacked in one parameter."""

    def __init__(self, d: int, count: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(d), nn.Linear(d, count, bias=False)
        self.w1, self.w2 = nn.Parameter(torch.randn(count, d, 2 * d)), nn.Parameter(torch.randn(count, 2 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        y = torch.einsum("btd,edf->btef", h, self.w1).relu()
        return x + torch.einsum("btef,efd,bte->btd", y, self.w2, self.router(h).softmax(-1))


class Banks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 12)
        self.blocks = nn.ModuleList([Bank(12, 6) for _ in range(2)])
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def banks(s: State) -> Arrays:
    """A Flax module for each expert."""
    out = dense(s, "inp", "params/Dense_0") | dense(s, "out", "params/Dense_1")
    for k in range(2):
        at, home = f"blocks.{k}", f"params/MoeBlock_{k}"
        out |= norm(s, f"{at}.norm", f"{home}/LayerNorm_0", SCALE) | dense(s, f"{at}.router", f"{home}/gate")
        for e in range(6):
            out[f"{home}/Expert_{e}/Dense_0/kernel"] = s[f"{at}.w1"][e]
            out[f"{home}/Expert_{e}/Dense_1/kernel"] = s[f"{at}.w2"][e]
    return dict(sorted(out.items()))


class ConvCell(nn.Module):
    """A convolutional LSTM over five frames, with convolutions for the inputs and for the state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_x, self.conv_h = nn.Conv2d(2, 32, 3, padding=1), nn.Conv2d(8, 32, 3, padding=1, bias=False)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], 8, *x.shape[3:])
        for t in range(x.shape[1]):
            i, f, g, o = (self.conv_x(x[:, t]) + self.conv_h(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h)


def conv_lstm(s: State) -> Arrays:
    home = "conv_lstm2d/conv_lstm_cell"
    out = {f"{home}/kernel": kernel(s["conv_x.weight"]), f"{home}/recurrent_kernel": kernel(s["conv_h.weight"])}
    return out | {f"{home}/bias": s["conv_x.bias"]} | dense(s, "head", "conv2d")


def frames() -> tuple[Tensor, ...]:
    return (torch.randn(2, 5, 2, 8, 8),)


def series(channels: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randn(2, channels, length),)


PORTS = {
    "ocr": Port("Keras CRNN, dense behind the image, BiLSTMs", Ocr, ocr, image(1, 16)),
    "gru": Port("Keras GRUs, square matrices", Stacked, stacked, ids(40)),
    "cudnn": Port("Keras CuDNNLSTM (textgenrnn)", Generator, generator, ids(40)),
    "keras1": Port("Keras 1 LSTM, a matrix for each gate", Lstm, per_gate, ids(40)),
    "flax-lstm": Port("Flax LSTMCell, a matrix for each gate", Lstm, flax_lstm, ids(40)),
    "flax-gru": Port("Flax GRUCell, a matrix for each gate", FlaxGru, flax_gru, ids(40)),
    "haiku-lstm": Port("Haiku LSTM, inputs and state in one", HaikuLstm, haiku_lstm, ids(40)),
    "bilm": Port("TF1 stacked bidirectional LSTMCell", BiLm, bilm, ids(40)),
    "flax-vit": Port("Flax ViT into nn.MultiheadAttention", VisionTransformer, vision, image(3, 16)),
    "t5": Port("T5X encoder and decoder", T5, t5x, ids(40)),
    "haiku-gpt": Port("Haiku GPT, square matrices", HaikuGpt, haiku_gpt, lambda: (torch.randint(0, 40, (2, 10)),)),
    "wave": Port("Keras WaveNet, weight normalisation", Wave, wave, lambda: series(4, 30)),
    "banks": Port("Flax experts into stacked parameters", Banks, banks, lambda: (torch.randn(2, 6, 8),)),
    "conv-lstm": Port("Keras ConvLSTM2D", ConvCell, conv_lstm, frames),
}
