"""Ports of language and speech that were written before `match` saw any of them.

The names are those of published code: taggers with a CRF, TensorFlowASR and a Conformer of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from ports_common import Array, Arrays, Port, State, dense, flat, gates, ids, image, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import glu, scaled_dot_product_attention, silu

# --- TF1 tagger: characters and words in LSTMCells, a CRF whose transitions torch holds the other way round -----------

WORDS, CHARS, TAGS = 30, 12, 6


class CharTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_emb, self.char_emb = nn.Embedding(WORDS, 14), nn.Embedding(CHARS, 8)
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


def char_tagger(s: State) -> Arrays:
    out = {"words/_word_embeddings": s["word_emb.weight"], "chars/_char_embeddings": s["char_emb.weight"]}
    for rnn, home in (("char_rnn", "chars"), ("word_rnn", "bi-lstm")):
        for tail, way in (("", "fw"), ("_reverse", "bw")):
            cell = f"{home}/bidirectional_rnn/{way}/lstm_cell"
            joint = np.concatenate([s[f"{rnn}.weight_ih_l0{tail}"].T, s[f"{rnn}.weight_hh_l0{tail}"].T])
            out[f"{cell}/kernel"] = gates(joint, (0, 2, 1, 3))
            out[f"{cell}/bias"] = gates(s[f"{rnn}.bias_ih_l0{tail}"], (0, 2, 1, 3))
    out |= {"proj/W": s["hidden2tag.weight"].T, "proj/b": s["hidden2tag.bias"], "transitions": s["transitions"].T}
    return dict(sorted(out.items()))


# --- Keras BiGRU with a CRF, into torch's GRU and the parameters of pytorch-crf ---------------------------------------


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


# --- a Conformer of TensorFlowASR: kernels by head, a depthwise kernel k 1 c 1, key and value fused in torch ----------

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


def conformer(s: State) -> Arrays:
    top = "conformer_encoder"

    def by_head(w: Array) -> Array:
        return w.reshape(4, -1, DIM).transpose(0, 2, 1)  # n d h

    def block(k: int) -> Iterator[Arrays]:
        at, name = f"layers.{k}", f"{top}_block_{k}"
        for n, ours in ((1, "ff1"), (2, "ff2")):
            home = f"{top}/{name}/{name}_ff_module_{n}/{name}_ff_module_{n}"
            yield norm(s, f"{at}.{ours}.norm", f"{home}_ln")
            yield dense(s, f"{at}.{ours}.fn.net.0", f"{home}_dense_1")
            yield dense(s, f"{at}.{ours}.fn.net.2", f"{home}_dense_2")
        home = f"{top}/{name}/{name}_mhsa_module/{name}_mhsa_module"
        yield norm(s, f"{at}.attn.norm", f"{home}_ln")
        kv = np.split(s[f"{at}.attn.fn.to_kv.weight"], 2)
        for word, w in zip(("query", "key", "value"), (s[f"{at}.attn.fn.to_q.weight"], *kv), strict=True):
            yield {f"{home}_mhsa/{word}_kernel": by_head(w)}
        out = s[f"{at}.attn.fn.to_out.weight"].T.reshape(4, -1, DIM)
        yield {f"{home}_mhsa/projection_kernel": out, f"{home}_mhsa/projection_bias": s[f"{at}.attn.fn.to_out.bias"]}
        home = f"{top}/{name}/{name}_conv_module/{name}_conv_module"
        yield norm(s, f"{at}.conv.0", f"{home}_ln")
        for n, j in ((1, 2), (2, 7)):
            yield {f"{home}_pw_conv_{n}/kernel": kernel(s[f"{at}.conv.{j}.weight"])[None]}
            yield {f"{home}_pw_conv_{n}/bias": s[f"{at}.conv.{j}.bias"]}
        w = s[f"{at}.conv.4.weight"].transpose(2, 1, 0)[..., None]  # k 1 c 1
        yield {f"{home}_dw_conv/depthwise_kernel": w, f"{home}_dw_conv/bias": s[f"{at}.conv.4.bias"]}
        yield norm(s, f"{at}.conv.5", f"{home}_bn")
        yield norm(s, f"{at}.post_norm", f"{top}/{name}/{name}_ln")

    def layers() -> Iterator[Arrays]:
        for n, j in ((1, 0), (2, 2)):
            yield dense(s, f"subsample.{j}", f"{top}/{top}_subsampling/{top}_subsampling_conv_{n}")
        w = s["project.weight"].reshape(DIM, DIM, 4).transpose(0, 2, 1).reshape(DIM, -1)  # b t (f c)
        yield {f"{top}/{top}_linear/kernel": w.T, f"{top}/{top}_linear/bias": s["project.bias"]}
        yield from block(0)
        yield from block(1)
        yield dense(s, "fc", "ctc_logits")

    return flat(layers())


PORTS = {
    "char-tagger": Port("TF1 tagger, characters and words, CRF", CharTagger, char_tagger, ids(WORDS)),
    "gru-crf": Port("Keras BiGRU with a CRF", GruCrf, gru_crf, ids(40)),
    "conformer": Port("TensorFlowASR Conformer, fused key and value", Conformer, conformer, image(1, 19)),
}
