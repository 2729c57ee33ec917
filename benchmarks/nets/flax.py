"""Ports of Flax' nets of images, gates and experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import (
    gelu,
    relu,
)

from nets.common import (
    LSTM,
    SCALE,
    Arrays,
    Lstm,
    Port,
    ResNet18,
    State,
    basic_blocks,
    bias,
    dense,
    flat,
    ids,
    image,
    kernel,
    matrices,
    norm,
)

# --- Flax ResNet-18 into torchvision's names --------------------------------------------------------------------------


def flax_resnet(s: State) -> Arrays:
    """Flax's example: averages in a tree of their own."""

    def batch(at: str, name: str) -> Arrays:
        out = norm(s, at, f"params/{name}", SCALE)
        means = {"mean": "running_mean", "var": "running_var"}
        return out | {f"batch_stats/{name}/{k}": s[f"{at}.{v}"] for k, v in means.items()}

    out = dense(s, "conv1", "params/conv_init") | batch("bn1", "bn_init") | dense(s, "fc", "params/Dense_0")
    for k, at, _, _ in basic_blocks():
        name = f"ResNetBlock_{k}"
        for n in (0, 1):
            out |= dense(s, f"{at}.conv{n + 1}", f"params/{name}/Conv_{n}")
            out |= batch(f"{at}.bn{n + 1}", f"{name}/BatchNorm_{n}")
        if f"{at}.downsample.0.weight" in s:
            out |= dense(s, f"{at}.downsample.0", f"params/{name}/conv_proj")
            out |= batch(f"{at}.downsample.1", f"{name}/norm_proj")
    return dict(sorted(out.items()))


# --- Flax MLP-Mixer into timm's names ---------------------------------------------------------------------------------


class TokenMix(nn.Module):
    def __init__(self, d: int, n: int, tokens: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.mlp_tokens = nn.LayerNorm(d), nn.ModuleDict({"fc1": nn.Linear(n, tokens)})
        self.mlp_tokens["fc2"] = nn.Linear(tokens, n)
        self.norm2, self.mlp_channels = nn.LayerNorm(d), nn.ModuleDict({"fc1": nn.Linear(d, channels)})
        self.mlp_channels["fc2"] = nn.Linear(channels, d)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x).transpose(1, 2)
        x = x + self.mlp_tokens["fc2"](gelu(self.mlp_tokens["fc1"](y))).transpose(1, 2)
        return x + self.mlp_channels["fc2"](gelu(self.mlp_channels["fc1"](self.norm2(x))))


class Mixer(nn.Module):
    """The names of timm's MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.ModuleDict({"proj": nn.Conv2d(3, 16, 4, 4)})
        self.blocks = nn.Sequential(*(TokenMix(16, 16, 32, 32) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem["proj"](x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def mixer(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "stem.proj", "stem")
        for k in range(3):
            at, name = f"blocks.{k}", f"MixerBlock_{k}"
            yield norm(s, f"{at}.norm1", f"{name}/LayerNorm_0", SCALE)
            yield norm(s, f"{at}.norm2", f"{name}/LayerNorm_1", SCALE)
            for ours, theirs in (("tokens", "token"), ("channels", "channel")):
                for n in (0, 1):
                    yield dense(s, f"{at}.mlp_{ours}.fc{n + 1}", f"{name}/{theirs}_mixing/Dense_{n}")
        yield norm(s, "norm", "pre_head_layer_norm", SCALE)
        yield dense(s, "head", "head")

    return dict(sorted(flat(layers()).items()))


# --- Flax LSTMCell, a matrix for each gate ----------------------------------------------------------------------------


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


# --- Flax GRUCell, a matrix for each gate -----------------------------------------------------------------------------

GRU = "rzn"


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


# --- Flax ViT into nn.MultiheadAttention ------------------------------------------------------------------------------


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


# --- Flax experts into stacked parameters -----------------------------------------------------------------------------


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


# --- Flax ViT, scanned layers, heads as axes --------------------------------------------------------------------------


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


# --- Flax CLIP into OpenAI's, two towers ------------------------------------------------------------------------------

CLIP, CLIP_HEADS, CLIP_LAYERS = 16, 2, 3


class ClipBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ln_1 = nn.MultiheadAttention(CLIP, CLIP_HEADS, batch_first=True), nn.LayerNorm(CLIP)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(CLIP, 4 * CLIP), "c_proj": nn.Linear(4 * CLIP, CLIP)})
        self.ln_2 = nn.LayerNorm(CLIP)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        y = self.mlp["c_fc"](self.ln_2(x))
        return x + self.mlp["c_proj"](y * torch.sigmoid(1.702 * y))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.resblocks = nn.Sequential(*(ClipBlock() for _ in range(CLIP_LAYERS)))


class Visual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.randn(CLIP))
        self.positional_embedding = nn.Parameter(torch.randn(17, CLIP))
        self.proj = nn.Parameter(torch.randn(CLIP, 12))
        self.conv1 = nn.Conv2d(3, CLIP, 4, 4, bias=False)
        self.ln_pre, self.transformer, self.ln_post = nn.LayerNorm(CLIP), Tower(), nn.LayerNorm(CLIP)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], 1) + self.positional_embedding
        return self.ln_post(self.transformer.resblocks(self.ln_pre(x))[:, 0]) @ self.proj


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(10, CLIP))
        self.text_projection = nn.Parameter(torch.randn(CLIP, 12))
        self.logit_scale = nn.Parameter(torch.tensor(1.0))
        self.visual, self.transformer = Visual(), Tower()
        self.token_embedding, self.ln_final = nn.Embedding(40, CLIP), nn.LayerNorm(CLIP)

    def forward(self, x: Tensor) -> Tensor:
        """The text is made of the image's first row."""
        text = (x[:, 0, 0, :10].abs() * 20).long() % 40
        y = self.transformer.resblocks(self.token_embedding(text) + self.positional_embedding)
        y = self.ln_final(y)[:, -1] @ self.text_projection
        return torch.cat([self.visual(x), y, self.visual(x) @ y.T * self.logit_scale.exp()], 1)


def clip(s: State) -> Arrays:
    out = {"logit_scale": s["logit_scale"]}
    for ours, theirs in (("visual.", "vision_model"), ("", "text_model")):
        for k in range(CLIP_LAYERS):
            at, name = f"{ours}transformer.resblocks.{k}", f"{theirs}/encoder/layers/{k}"
            for j, x in enumerate("qkv"):
                rows = slice(CLIP * j, CLIP * (j + 1))
                out[f"{name}/self_attn/{x}_proj/kernel"] = s[f"{at}.attn.in_proj_weight"][rows].T
                out[f"{name}/self_attn/{x}_proj/bias"] = s[f"{at}.attn.in_proj_bias"][rows]
            out |= dense(s, f"{at}.attn.out_proj", f"{name}/self_attn/out_proj")
            for n in (1, 2):
                out |= scaled(s, f"{at}.ln_{n}", f"{name}/layer_norm{n}")
            out |= dense(s, f"{at}.mlp.c_fc", f"{name}/mlp/fc1") | dense(s, f"{at}.mlp.c_proj", f"{name}/mlp/fc2")
    out |= {
        "text_model/embeddings/token_embedding/embedding": s["token_embedding.weight"],
        "text_model/embeddings/position_embedding/embedding": s["positional_embedding"],
        "text_projection/kernel": s["text_projection"],
        "visual_projection/kernel": s["visual.proj"],
        "vision_model/embeddings/class_embedding": s["visual.class_embedding"],
        "vision_model/embeddings/position_embedding/embedding": s["visual.positional_embedding"],
        "vision_model/embeddings/patch_embedding/kernel": kernel(s["visual.conv1.weight"]),
    }
    out |= scaled(s, "ln_final", "text_model/final_layer_norm")
    out |= scaled(s, "visual.ln_pre", "vision_model/pre_layrnorm")
    return dict(sorted((out | scaled(s, "visual.ln_post", "vision_model/post_layernorm")).items()))


def scaled(s: State, at: str, name: str) -> Arrays:
    return {f"{name}/scale": s[f"{at}.weight"], f"{name}/bias": s[f"{at}.bias"]}


# --- Flax SE-ResNeXt, grouped convolutions ----------------------------------------------------------------------------


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


# --- Flax Perceiver, key and value fused here -------------------------------------------------------------------------


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
    "flax-resnet": Port("Flax ResNet-18 into torchvision's names", ResNet18, flax_resnet, image(3, 16)),
    "mixer": Port("Flax MLP-Mixer into timm's names", Mixer, mixer, image(3, 16)),
    "flax-lstm": Port("Flax LSTMCell, a matrix for each gate", Lstm, flax_lstm, ids(40)),
    "flax-gru": Port("Flax GRUCell, a matrix for each gate", FlaxGru, flax_gru, ids(40)),
    "flax-vit": Port("Flax ViT into nn.MultiheadAttention", VisionTransformer, vision, image(3, 16)),
    "banks": Port("Flax experts into stacked parameters", Banks, banks, lambda: (torch.randn(2, 6, 8),)),
    "vit": Port("Flax ViT, scanned layers, heads as axes", Vit, scanned, image(3, 16)),
    "clip": Port("Flax CLIP into OpenAI's, two towers", Clip, clip, image(3, 16)),
    "senet": Port("Flax SE-ResNeXt, grouped convolutions", SeNet, senet, image(3, 16)),
    "perceiver": Port(
        "Flax Perceiver, key and value fused here", Perceiver, perceiver, lambda: (torch.randn(4, 11, 9),)
    ),
}
