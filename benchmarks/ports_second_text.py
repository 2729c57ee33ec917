"""The second blind round, speech and text: ports that were written before `match` saw any of them.

The names are those of published code: TensorFlowASR's Conformer and torchaudio's, TensorFlow's translation tutorial,
Keras Deep Speech 2 and the usual port of it, MaxText's Mixtral and that of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from ports_common import Array, Arrays, Port, State, dense, flat, gates, ids, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

# --- Keras Conformer, heads as axes, into torchaudio's names ----------------------------------------------------------

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


# --- TensorFlow 2's translation tutorial: GRUs, additive attention, here with a tied output ---------------------------

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


def keras_gru(s: State, at: str, name: str, tail: str = "") -> Arrays:
    two = np.stack([s[f"{at}.bias_ih_l0{tail}"], s[f"{at}.bias_hh_l0{tail}"]])
    return {
        f"{name}/kernel": gates(s[f"{at}.weight_ih_l0{tail}"].T, (1, 0, 2)),
        f"{name}/recurrent_kernel": gates(s[f"{at}.weight_hh_l0{tail}"].T, (1, 0, 2)),
        f"{name}/bias": gates(two, (1, 0, 2)),
    }


def translator(s: State) -> Arrays:
    out = {f"{side}/embedding/embeddings": s[f"{side}.embed.weight"] for side in ("encoder", "decoder")}
    for side in ("encoder", "decoder"):
        out |= keras_gru(s, f"{side}.rnn", f"{side}/gru/cell")
    out["decoder/bias"] = s["decoder.out.bias"]
    for ours, theirs in (("key_proj", "W1"), ("query_proj", "W2"), ("energy", "V")):
        out |= dense(s, f"decoder.attn.{ours}", f"decoder/attention/{theirs}")
    return dict(sorted(out.items()))


# --- Keras Deep Speech 2: time and frequency change places, bidirectional GRUs ----------------------------------------

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


# --- MaxText's Mixtral: layers on the second axis, experts on the first, grouped heads --------------------------------

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


def wave() -> tuple[Tensor, ...]:
    return (torch.randn(2, 16, 20),)


PORTS = {
    "conformer-heads": Port(
        "Keras Conformer into torchaudio's names", Conformer, conformer, lambda: (torch.randn(2, 24, 20),)
    ),
    "translator": Port("TF2 translation with attention, tied output", Translator, translator, ids(WORDS)),
    "speech": Port("Keras Deep Speech 2, bidirectional GRUs", DeepSpeech, deep_speech, wave),
    "mixtral": Port("MaxText mixture of experts, scanned, grouped heads", Mixtral, mixtral, ids(40)),
}
