"""Ports of Flax' nets of images, gates and experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    gelu,
    relu,
)

from nets.common import (
    Lstm,
    Port,
    ResNet18,
    ids,
    image,
)

# --- Flax ResNet-18 into torchvision's names --------------------------------------------------------------------------


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


# --- Flax LSTMCell, a matrix for each gate ----------------------------------------------------------------------------


# --- Flax GRUCell, a matrix for each gate -----------------------------------------------------------------------------


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


PORTS = {
    "flax-resnet": Port("Flax ResNet-18 into torchvision's names", ResNet18, image(3, 16)),
    "mixer": Port("Flax MLP-Mixer into timm's names", Mixer, image(3, 16)),
    "flax-lstm": Port("Flax LSTMCell, a matrix for each gate", Lstm, ids(40)),
    "flax-gru": Port("Flax GRUCell, a matrix for each gate", FlaxGru, ids(40)),
    "flax-vit": Port("Flax ViT into nn.MultiheadAttention", VisionTransformer, image(3, 16)),
    "banks": Port("Flax experts into stacked parameters", Banks, lambda: (torch.randn(2, 6, 8),)),
    "vit": Port("Flax ViT, scanned layers, heads as axes", Vit, image(3, 16)),
    "clip": Port("Flax CLIP into OpenAI's, two towers", Clip, image(3, 16)),
    "senet": Port("Flax SE-ResNeXt, grouped convolutions", SeNet, image(3, 16)),
    "perceiver": Port("Flax Perceiver, key and value fused here", Perceiver, lambda: (torch.randn(4, 11, 9),)),
}
