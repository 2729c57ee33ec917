"""Ports of TensorFlow's nets of images and waves: TF1, slim, object graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    gelu,
    relu,
    relu6,
    scaled_dot_product_attention,
)

from nets.common import (
    Port,
    image,
)

# --- TF1 U-Net, transposed convolutions (PhaseNet) --------------------------------------------------------------------


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


# --- TF1 U-Net, layers numbered by kind (Spleeter) --------------------------------------------------------------------


class Spleeter(nn.Module):
    """A U-Net with strided and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        widths = (2, 8, 16, 32, 64)
        for k in range(4):
            setattr(self, f"conv{k + 1}", nn.Conv2d(widths[k], widths[k + 1], 5, 2, 2))
            setattr(self, f"bn{k + 1}", nn.BatchNorm2d(widths[k + 1], 1e-3))
        ups = ((64, 32), (64, 16), (32, 8), (16, 1))
        for k, (i, o) in enumerate(ups):
            setattr(self, f"up{k + 1}", nn.ConvTranspose2d(i, o, 5, 2, 2, 1))
            setattr(self, f"bn{k + 5}", nn.BatchNorm2d(o, 1e-3))
        self.up7 = nn.Conv2d(1, 2, 4, dilation=2, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for k in range(1, 5):
            kept.append(getattr(self, f"conv{k}")(x))
            x = nn.functional.leaky_relu(getattr(self, f"bn{k}")(kept[-1]), 0.2)
        x = kept[-1]
        for k in range(1, 5):
            x = getattr(self, f"bn{k + 4}")(getattr(self, f"up{k}")(x).relu())
            x = torch.cat([kept[3 - k], x], 1) if k < 4 else x
        return self.up7(x)


# --- TF-slim resnet_v2 ------------------------------------------------------------------------------------------------


class PreAct(nn.Module):
    def __init__(self, i: int, w: int, o: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(i, 1e-5), nn.Conv2d(i, w, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(w, 1e-5), nn.Conv2d(w, w, 3, stride, 1, bias=False)
        self.norm3, self.conv3 = nn.BatchNorm2d(w, 1e-5), nn.Conv2d(w, o, 1)
        self.shortcut = nn.Conv2d(i, o, 1, stride) if i != o else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x).relu()
        z = self.conv3(self.norm3(self.conv2(self.norm2(self.conv1(y)).relu())).relu())
        return z + (x if self.shortcut is None else self.shortcut(y))


class SlimNet(nn.Module):
    """Residual units that normalise first, each stage a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 2, 3)
        self.stage0 = nn.ModuleList([PreAct(8, 8, 32, 1), PreAct(32, 8, 32, 1)])
        self.stage1 = nn.ModuleList([PreAct(32, 16, 64, 2), PreAct(64, 16, 64, 1)])
        self.final_norm, self.classifier = nn.BatchNorm2d(64, 1e-5), nn.Conv2d(64, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for unit in (*self.stage0, *self.stage1):
            x = unit(x)
        return self.classifier(self.final_norm(x).relu().mean((2, 3), True))[..., 0, 0]


# --- TF2 object graph, layers only counted ----------------------------------------------------------------------------


class Graph(nn.Module):
    """A net in the names of nobody: its original's checkpoint only counts layers."""

    def __init__(self) -> None:
        super().__init__()
        self.block_a, self.bn_a = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, 1e-3)
        self.block_b, self.bn_b = nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8, 1e-3)
        self.block_c, self.bn_c = nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8, 1e-3)
        self.hidden, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for conv, bn in ((self.block_a, self.bn_a), (self.block_b, self.bn_b), (self.block_c, self.bn_c)):
            x = relu6(bn(conv(x)))
        return self.out(self.hidden(x.mean((2, 3))).relu())


# --- Swin of TensorFlow into transformers' names ----------------------------------------------------------------------

WINDOW, DEPTHS, WIDTHS, SWIN_HEADS = 4, (2, 2), (12, 24), (2, 4)


def relative(window: int) -> Tensor:
    at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
    away = (at[:, :, None] - at[:, None]) + window - 1
    return away[0] * (2 * window - 1) + away[1]


class SwinSelf(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, heads))
        self.register_buffer("relative_position_index", relative(WINDOW))
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        bias = self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        return scaled_dot_product_attention(q, k, v, attn_mask=bias[None]).transpose(1, 2).flatten(2)


class SwinBlock(nn.Module):
    def __init__(self, d: int, heads: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.layernorm_before = nn.LayerNorm(d)
        self.attention = nn.ModuleDict({"self": SwinSelf(d, heads)})
        self.attention["output"] = nn.ModuleDict({"dense": nn.Linear(d, d)})
        self.layernorm_after = nn.LayerNorm(d)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(d, 4 * d)})
        self.output = nn.ModuleDict({"dense": nn.Linear(4 * d, d)})

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, d = x.shape
        y = torch.roll(self.layernorm_before(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(n, h // WINDOW, WINDOW, w // WINDOW, WINDOW, d).transpose(2, 3).reshape(-1, WINDOW**2, d)
        y = self.attention["output"]["dense"](self.attention["self"](y))
        y = y.view(n, h // WINDOW, w // WINDOW, WINDOW, WINDOW, d).transpose(2, 3).reshape(n, h, w, d)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + self.output["dense"](gelu(self.intermediate["dense"](self.layernorm_after(x))))


class SwinStage(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        d = WIDTHS[k]
        self.blocks = nn.ModuleList(SwinBlock(d, SWIN_HEADS[k], j % 2 * 2) for j in range(DEPTHS[k]))
        if k + 1 < len(WIDTHS):
            self.downsample = nn.ModuleDict({"reduction": nn.Linear(4 * d, 2 * d, bias=False)})
            self.downsample["norm"] = nn.LayerNorm(4 * d)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        if not hasattr(self, "downsample"):
            return x
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.downsample["reduction"](self.downsample["norm"](torch.cat(parts, -1)))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.swin = nn.ModuleDict()
        self.swin["embeddings"] = nn.ModuleDict({"projection": nn.Conv2d(3, WIDTHS[0], 2, 2)})
        self.swin["embeddings"]["norm"] = nn.LayerNorm(WIDTHS[0])
        self.swin["encoder"] = nn.ModuleList(map(SwinStage, range(len(WIDTHS))))
        self.swin["layernorm"] = nn.LayerNorm(WIDTHS[-1])
        self.classifier = nn.Linear(WIDTHS[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        start = self.swin["embeddings"]
        x = start["norm"](start["projection"](x).permute(0, 2, 3, 1))
        for stage in self.swin["encoder"]:
            x = stage(x)
        return self.classifier(self.swin["layernorm"](x).mean((1, 2)))


# --- TF1 WaveNet, filter and gate fused -------------------------------------------------------------------------------

QUANTISED, RESIDUAL, DILATED, SKIP, DILATIONS = 16, 12, 10, 14, (1, 2, 4, 1, 2)


class Gated(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.in_layer = nn.Conv1d(RESIDUAL, 2 * DILATED, 2, dilation=dilation)
        self.res, self.skip = nn.Conv1d(DILATED, RESIDUAL, 1), nn.Conv1d(DILATED, SKIP, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f, g = self.in_layer(x).chunk(2, 1)
        y = f.tanh() * g.sigmoid()
        return x[..., -y.shape[-1] :] + self.res(y), self.skip(y)


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(QUANTISED, RESIDUAL, 2, bias=False)
        self.wn = nn.ModuleList(map(Gated, DILATIONS))
        self.end1, self.end2 = nn.Conv1d(SKIP, SKIP, 1), nn.Conv1d(SKIP, QUANTISED, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(nn.functional.one_hot(x, QUANTISED).float().transpose(1, 2))
        skips = []
        for layer in self.wn:
            x, y = layer(x)
            skips.append(y)
        total = sum(y[..., -x.shape[-1] :] for y in skips)
        return self.end2(relu(self.end1(relu(total))))


PORTS = {
    "unet": Port("TF1 U-Net, transposed convolutions (PhaseNet)", UNet, lambda: (torch.randn(2, 3, 32),)),
    "spleeter": Port("TF1 U-Net, layers numbered by kind (Spleeter)", Spleeter, image(2, 32)),
    "slim": Port("TF-slim resnet_v2", SlimNet, image(3, 32)),
    "graph": Port("TF2 object graph, layers only counted", Graph, image(3, 16)),
    "swin": Port("Swin of TensorFlow into transformers' names", Swin, image(3, 32)),
    "ibab": Port("TF1 WaveNet, filter and gate fused", WaveNet, lambda: (torch.randint(0, 16, (2, 30)),)),
}
