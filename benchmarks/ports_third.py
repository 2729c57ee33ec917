"""A third round of ports that were written before match had seen them: nets of kinds that the others do not have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from ports_common import SCALE, Arrays, Port, State, dense, flat, gates, ids, image, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import elu, gelu, leaky_relu, relu, silu

# --- Keras DCGAN: a dense layer and its normalisation in front of an image ----------------------------------------


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.norm0 = nn.Linear(20, 4 * 4 * 24, bias=False), nn.BatchNorm1d(4 * 4 * 24, eps=1e-3)
        self.deconv1, self.norm1 = nn.ConvTranspose2d(24, 12, 4, 2, 1, bias=False), nn.BatchNorm2d(12, eps=1e-3)
        self.deconv2, self.norm2 = nn.ConvTranspose2d(12, 6, 4, 2, 1, bias=False), nn.BatchNorm2d(6, eps=1e-3)
        self.to_rgb = nn.ConvTranspose2d(6, 3, 4, 2, 1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        x = leaky_relu(self.norm0(self.project(z)), 0.3).view(-1, 24, 4, 4)
        x = leaky_relu(self.norm1(self.deconv1(x)), 0.3)
        return torch.tanh(self.to_rgb(leaky_relu(self.norm2(self.deconv2(x)), 0.3)))


def generator(s: State) -> Arrays:
    def shaped(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return x.reshape(24, 4, 4, -1).transpose(1, 2, 0, 3).reshape(x.shape)

    def layers() -> Iterator[Arrays]:
        yield {"dense/kernel": shaped(s["project.weight"]).T}
        yield {n: shaped(x) for n, x in norm(s, "norm0", "batch_normalization").items()}
        for k in (1, 2):
            yield dense(s, f"deconv{k}", f"conv2d_transpose{f'_{k - 1}' if k > 1 else ''}")
            yield norm(s, f"norm{k}", f"batch_normalization_{k}")
        yield dense(s, "to_rgb", "conv2d_transpose_2")

    return flat(layers())


# --- Keras variational autoencoder: two heads of one shape, a decoder ---------------------------------------------


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2 = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.hidden = nn.Linear(16 * 16, 24)
        self.mu, self.log_var = nn.Linear(24, 5), nn.Linear(24, 5)
        self.expand = nn.Linear(5, 16 * 16)
        self.dec1, self.dec2 = nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.ConvTranspose2d(16, 8, 4, 2, 1)
        self.out = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.hidden(relu(self.enc2(relu(self.enc1(x)))).flatten(1)))
        z = self.mu(h) + torch.exp(0.5 * self.log_var(h))
        y = relu(self.expand(z)).view(-1, 16, 4, 4)
        return self.out(relu(self.dec2(relu(self.dec1(y)))))


def vae(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "enc1", "encoder/conv2d") | dense(s, "enc2", "encoder/conv2d_1")
        w = s["hidden.weight"].reshape(24, 16, 4, 4).transpose(0, 2, 3, 1).reshape(24, -1)
        yield {"encoder/dense/kernel": w.T, "encoder/dense/bias": s["hidden.bias"]}
        yield dense(s, "mu", "encoder/z_mean") | dense(s, "log_var", "encoder/z_log_var")
        w, b = (
            x.reshape(16, 4, 4, -1).transpose(1, 2, 0, 3).reshape(x.shape)
            for x in (s["expand.weight"], s["expand.bias"])
        )
        yield {"decoder/dense_1/kernel": w.T, "decoder/dense_1/bias": b}
        yield dense(s, "dec1", "decoder/conv2d_transpose") | dense(s, "dec2", "decoder/conv2d_transpose_1")
        yield dense(s, "out", "decoder/conv2d_transpose_2")

    found = flat(layers())
    found["decoder/conv2d_transpose_2/kernel"] = kernel(s["out.weight"])
    return found


# --- Keras translation: encoder and decoder GRUs, additive attention -----------------------------------


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


# --- Keras Transformer decoder: self and cross attention with heads as axes ---------------------------------------


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


# --- Flax SE-ResNeXt: grouped convolutions, squeeze and excitation ------------------------------------------------


class SeBlock(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(o)
        self.conv3, self.bn3 = nn.Conv2d(o, o, 1, bias=False), nn.BatchNorm2d(o)
        self.fc1, self.fc2 = nn.Linear(o, o // 4), nn.Linear(o // 4, o)
        self.proj = nn.Conv2d(i, o, 1, bias=False) if i != o else nn.Identity()
        self.proj_bn = nn.BatchNorm2d(o) if i != o else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        gate = torch.sigmoid(self.fc2(relu(self.fc1(y.mean((2, 3))))))
        return relu(self.proj_bn(self.proj(x)) + y * gate[:, :, None, None])


class SeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_bn = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.stages = nn.ModuleList([SeBlock(16, 16), SeBlock(16, 16), SeBlock(16, 32), SeBlock(32, 32)])
        self.fc = nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem_bn(self.stem(x)))
        for b in self.stages:
            x = b(x)
        return self.fc(x.mean((2, 3)))


def senet(s: State) -> Arrays:
    def bn(at: str, name: str) -> Arrays:
        home, leaf = name.rpartition("/")[::2]
        top = f"{home}/" if home else ""
        return {
            f"params/{top}{leaf}/scale": s[f"{at}.weight"], f"params/{top}{leaf}/bias": s[f"{at}.bias"],
            f"batch_stats/{top}{leaf}/mean": s[f"{at}.running_mean"],
            f"batch_stats/{top}{leaf}/var": s[f"{at}.running_var"],
        }  # fmt: skip

    def layers() -> Iterator[Arrays]:
        yield dense(s, "stem", "params/conv_init") | bn("stem_bn", "bn_init")
        for k in range(4):
            at, name = f"stages.{k}", f"SEBlock_{k}"
            for j in range(3):
                yield dense(s, f"{at}.conv{j + 1}", f"params/{name}/Conv_{j}") | bn(
                    f"{at}.bn{j + 1}", f"{name}/BatchNorm_{j}"
                )
            yield dense(s, f"{at}.fc1", f"params/{name}/SqueezeExcite_0/Dense_0")
            yield dense(s, f"{at}.fc2", f"params/{name}/SqueezeExcite_0/Dense_1")
            if f"{at}.proj.weight" in s:
                yield dense(s, f"{at}.proj", f"params/{name}/conv_proj") | bn(f"{at}.proj_bn", f"{name}/norm_proj")
        yield dense(s, "fc", "params/Dense_0")

    return dict(sorted(flat(layers()).items()))


# --- Keras graph attention network --------------------------------------------------------------------------------


class Gat(nn.Module):
    def __init__(self, i: int, heads: int, o: int) -> None:
        super().__init__()
        self.lin = nn.Linear(i, heads * o, bias=False)
        self.att_src, self.att_dst = nn.Parameter(torch.randn(1, heads, o)), nn.Parameter(torch.randn(1, heads, o))
        self.bias = nn.Parameter(torch.zeros(heads * o))

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        h = self.lin(x).unflatten(-1, self.att_src.shape[1:])
        e = (h * self.att_src).sum(-1)[:, :, None] + (h * self.att_dst).sum(-1)[:, None]
        w = leaky_relu(e, 0.2).masked_fill(a[..., None] < 0, -1e9).softmax(2)
        return torch.einsum("bijh,bjho->biho", w, h).flatten(2) + self.bias


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gat1, self.gat2 = Gat(7, 3, 5), Gat(15, 3, 5)
        self.readout = nn.Linear(15, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = x @ x.transpose(1, 2)
        return self.readout(elu(self.gat2(elu(self.gat1(x, a)), a)).mean(1))


def graph(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        for k in (1, 2):
            name = f"gat_conv{f'_{k - 1}' if k > 1 else ''}"
            w = s[f"gat{k}.lin.weight"]
            yield {
                f"{name}/kernel": w.T.reshape(w.shape[1], 3, 5),
                f"{name}/attn_kernel_self": s[f"gat{k}.att_src"][0].T[..., None],
                f"{name}/attn_kernel_neigh": s[f"gat{k}.att_dst"][0].T[..., None],
                f"{name}/bias": s[f"gat{k}.bias"],
            }
        yield dense(s, "readout", "dense")

    return flat(layers())


# --- TF1 Tacotron encoder: a bank of convolutions, highways, a bidirectional GRU ----------------------------------


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


def cbhg(s: State) -> Arrays:
    top = "model/inference"
    out = {f"{top}/embedding": s["embedding.weight"]}
    for k in (1, 2):
        out |= dense(s, f"prenet.{k - 1}", f"{top}/prenet/dense_{k}")
        out |= dense(s, f"proj{k}", f"{top}/encoder_cbhg/proj_{k}/conv1d")
        out |= norm(s, f"bn{k}", f"{top}/encoder_cbhg/proj_{k}/batch_normalization")
    for j, k in enumerate((1, 3, 5, 7)):
        out |= dense(s, f"bank.{j}", f"{top}/encoder_cbhg/conv_bank/conv1d_{k}/conv1d")
        out |= norm(s, f"bank_bn.{j}", f"{top}/encoder_cbhg/conv_bank/conv1d_{k}/batch_normalization")
    for k in range(3):
        for p in "HT":
            out |= dense(s, f"highways.{k}.{p}", f"{top}/encoder_cbhg/highway_{k + 1}/{p}")
    return dict(sorted((out | dense(s, "out", f"{top}/dense")).items()))


# --- Haiku neural arithmetic units --------------------------------------------------------------------------------


class Nalu(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.W_hat, self.M_hat, self.G = (nn.Parameter(torch.randn(o, i)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        w = torch.tanh(self.W_hat) * torch.sigmoid(self.M_hat)
        g = torch.sigmoid(x @ self.G.T)
        return g * (x @ w.T) + (1 - g) * torch.exp(torch.log(x.abs() + 1e-2) @ w.T).clamp(max=50)


class Arithmetic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Nalu(6, 8), Nalu(8, 8), Nalu(8, 3)])

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x)
        return x


def arithmetic(s: State) -> Arrays:
    out = {}
    for k in range(3):
        home = f"nalu_net/~/nalu{f'_{k}' if k else ''}"
        out |= {
            f"{home}/{n}": s[f"cells.{k}.{p}"].T for p, n in (("W_hat", "w_hat"), ("M_hat", "m_hat"), ("G", "gate"))
        }
    return out


# --- Keras capsules -----------------------------------------------------------------------------------------------


class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 12, 5), nn.Conv2d(12, 16, 5, 2)
        self.W = nn.Parameter(torch.randn(1, 3, 36, 6, 4))
        self.decoder = nn.Sequential(nn.Linear(18, 20), nn.ReLU(), nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 9))

    def forward(self, x: Tensor) -> Tensor:
        u = self.primary(relu(self.conv(x)))
        u = u.view(len(x), 4, 4, 9).permute(0, 3, 1, 2).reshape(len(x), 36, 4)  # by place, then by capsule
        u = u / (1 + u.norm(dim=-1, keepdim=True))
        votes = (self.W @ u[:, None, :, :, None]).squeeze(-1)
        logits = torch.zeros_like(votes[..., :1])
        for _ in range(2):
            v = (logits.softmax(1) * votes).sum(2, keepdim=True)
            logits = logits + (votes * v).sum(-1, keepdim=True)
        return self.decoder(v.flatten(1))


def capsules(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "conv", "conv1")
        w, b = s["primary.weight"], s["primary.bias"]
        yield {"primarycap_conv2d/kernel": kernel(w), "primarycap_conv2d/bias": b}
        yield {"digitcaps/W": s["W"][0]}
        for k, j in enumerate((0, 2, 4), 1):
            yield dense(s, f"decoder.{j}", f"dense_{k}")

    return flat(layers())


# --- Keras MobileViT: convolutions and a transformer on patches ---------------------------------------------------


class VitLayer(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d, eps=1e-6), nn.MultiheadAttention(d, 2, batch_first=True)
        self.norm2, self.mlp = (
            nn.LayerNorm(d, eps=1e-6),
            nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Inverted(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.expand, self.bn1 = nn.Conv2d(i, 2 * i, 1, bias=False), nn.BatchNorm2d(2 * i, eps=1e-3)
        self.depth, self.bn2 = (
            nn.Conv2d(2 * i, 2 * i, 3, padding=1, groups=2 * i, bias=False),
            nn.BatchNorm2d(2 * i, eps=1e-3),
        )
        self.reduce, self.bn3 = nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn3(self.reduce(silu(self.bn2(self.depth(silu(self.bn1(self.expand(x))))))))


class MobileVit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.mv = nn.ModuleList([Inverted(8, 8), Inverted(8, 12)])
        self.local3, self.local1 = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 16, 1)
        self.blocks = nn.ModuleList([VitLayer(16) for _ in range(2)])
        self.back, self.fuse = nn.Conv2d(16, 12, 1), nn.Conv2d(24, 12, 3, padding=1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = silu(self.stem(x))
        for b in self.mv:
            x = b(x)
        y = silu(self.local1(silu(self.local3(x))))
        z = y.flatten(2).transpose(1, 2)
        for b in self.blocks:
            z = b(z)
        y = silu(self.back(z.transpose(1, 2).reshape(y.shape)))
        return self.head(silu(self.fuse(torch.cat([x, y], 1))).mean((2, 3)))


def mobilevit(s: State) -> Arrays:
    count = dict.fromkeys(("conv2d", "batch_normalization", "depthwise_conv2d", "layer_normalization", "dense"), 0)

    def called(kind: str) -> str:
        count[kind] += 1
        return f"{kind}_{count[kind] - 1}" if count[kind] > 1 else kind

    def layers() -> Iterator[Arrays]:
        yield dense(s, "stem", called("conv2d"))
        for k in range(2):
            at = f"mv.{k}"
            yield dense(s, f"{at}.expand", called("conv2d")) | norm(s, f"{at}.bn1", called("batch_normalization"))
            yield {f"{called('depthwise_conv2d')}/depthwise_kernel": s[f"{at}.depth.weight"].transpose(2, 3, 0, 1)}
            yield norm(s, f"{at}.bn2", called("batch_normalization"))
            yield dense(s, f"{at}.reduce", called("conv2d")) | norm(s, f"{at}.bn3", called("batch_normalization"))
        yield dense(s, "local3", called("conv2d")) | dense(s, "local1", called("conv2d"))
        for k in range(2):
            at, name = f"blocks.{k}", f"multi_head_attention{f'_{k}' if k else ''}"
            yield norm(s, f"{at}.norm1", called("layer_normalization"))
            for j, part in enumerate(("query", "key", "value")):
                rows = slice(16 * j, 16 * j + 16)
                yield {
                    f"{name}/{part}/kernel": s[f"{at}.attn.in_proj_weight"][rows].T.reshape(16, 2, 8),
                    f"{name}/{part}/bias": s[f"{at}.attn.in_proj_bias"][rows].reshape(2, 8),
                }
            yield {
                f"{name}/attention_output/kernel": s[f"{at}.attn.out_proj.weight"].T.reshape(2, 8, 16),
                f"{name}/attention_output/bias": s[f"{at}.attn.out_proj.bias"],
            }
            yield norm(s, f"{at}.norm2", called("layer_normalization"))
            yield dense(s, f"{at}.mlp.0", called("dense")) | dense(s, f"{at}.mlp.2", called("dense"))
        yield (
            dense(s, "back", called("conv2d")) | dense(s, "fuse", called("conv2d")) | dense(s, "head", called("dense"))
        )

    return flat(layers())


# --- Flax Perceiver: learned latents, cross attention, shared between steps ---------------------------------------


class CrossBlock(nn.Module):
    def __init__(self, d: int, e: int) -> None:
        super().__init__()
        self.ln_q, self.ln_kv, self.ln_mlp = (
            nn.LayerNorm(d, eps=1e-6),
            nn.LayerNorm(e, eps=1e-6),
            nn.LayerNorm(d, eps=1e-6),
        )
        self.q, self.kv, self.o = nn.Linear(d, d, bias=False), nn.Linear(e, 2 * d, bias=False), nn.Linear(d, d)
        self.w1, self.w2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.ln_kv(y)
        q, (k, v) = self.q(self.ln_q(x)), self.kv(h).chunk(2, -1)
        x = x + self.o(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.w2(gelu(self.w1(self.ln_mlp(x)), approximate="tanh"))


class Perceiver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, 14))
        self.cross, self.own = CrossBlock(14, 9), nn.ModuleList([CrossBlock(14, 14) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(14, eps=1e-6), nn.Linear(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        z = self.cross(self.latents.expand(len(x), -1, -1), x)
        for block in self.own:
            z = block(z, z)
        return self.head(self.norm(z).mean(1))


def perceiver(s: State) -> Arrays:
    def block(at: str, name: str) -> Iterator[Arrays]:
        for k, p in enumerate(("ln_q", "ln_kv", "ln_mlp")):
            yield norm(s, f"{at}.{p}", f"params/{name}/LayerNorm_{k}", SCALE)
        k, v = np.split(s[f"{at}.kv.weight"], 2)
        for word, w in (("query", s[f"{at}.q.weight"]), ("key", k), ("value", v)):
            yield {f"params/{name}/Attention_0/{word}/kernel": w.T}
        yield dense(s, f"{at}.o", f"params/{name}/Attention_0/out")
        yield dense(s, f"{at}.w1", f"params/{name}/MLP_0/Dense_0") | dense(
            s, f"{at}.w2", f"params/{name}/MLP_0/Dense_1"
        )

    def layers() -> Iterator[Arrays]:
        yield {"params/latents": s["latents"]}
        yield from block("cross", "CrossAttention_0")
        for k in range(2):
            yield from block(f"own.{k}", f"SelfAttention_{k}")
        yield norm(s, "norm", "params/LayerNorm_0", SCALE) | dense(s, "head", "params/Dense_0")

    return dict(sorted(flat(layers()).items()))


PORTS = {
    "dcgan": Port(
        "Keras DCGAN, a dense layer in front of an image", Generator, generator, lambda: (torch.randn(8, 20),)
    ),
    "vae": Port("Keras variational autoencoder", Vae, vae, image(1, 16)),
    "seq2seq": Port("Keras translation, GRUs and additive attention", Seq2Seq, seq2seq, ids(36)),
    "decoder": Port("Keras Transformer decoder, cross attention", Decoder, decoder, ids(30)),
    "senet": Port("Flax SE-ResNeXt, grouped convolutions", SeNet, senet, image(3, 16)),
    "gat": Port("Keras graph attention", Graph, graph, lambda: (torch.randn(4, 9, 7),)),
    "cbhg": Port("TF1 Tacotron encoder, bank and highways", Cbhg, cbhg, ids(30)),
    "nalu": Port("Haiku neural arithmetic units", Arithmetic, arithmetic, lambda: (torch.randn(16, 6),)),
    "capsules": Port("Keras capsules", Capsules, capsules, image(1, 14)),
    "mobilevit": Port("Keras MobileViT, layers only counted", MobileVit, mobilevit, image(3, 16)),
    "perceiver": Port(
        "Flax Perceiver, key and value fused here", Perceiver, perceiver, lambda: (torch.randn(4, 11, 9),)
    ),
}
