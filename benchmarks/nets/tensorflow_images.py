"""Ports of TensorFlow's nets of images and waves: TF1, slim, object graphs."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import (
    BatchNorm2d,
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    LayerNorm,
    Linear,
    Module,
    Parameter,
    Sequential,
)
from torch.nn.functional import gelu, leaky_relu, max_pool1d, one_hot, relu, relu6

from nets.common import Net, Port, attend, bn, bn1d, conv, conv0, conv1d, dense0, image, numbers, pooled


def phasenet() -> Net:
    """A U-Net over time whose original is two-dimensional with a width of one."""

    def compute(s, x):
        x = s.in_bn(s.inc(x)).relu()
        kept = []
        for pair in s.down:
            x = pair(x).relu()
            kept.append(x)
            if len(kept) < 3:
                x = max_pool1d(x, 2)
        for turn, pair, skip in zip(s.turn, s.up, kept[1::-1], strict=True):
            x = pair(torch.cat([skip, turn(x)], 1)).relu()
        return s.out(x)

    def pair(i: int, o: int) -> Sequential:
        return Sequential(conv1d(i, o, 7, bias=False), bn1d(o))

    def turn(i: int, o: int) -> Module:
        return ConvTranspose1d(i, o, 2, 2, bias=False)

    return Net(
        compute, inc=conv1d(3, 8, 7), in_bn=bn1d(8), down=[pair(8, 8), pair(8, 16), pair(16, 32)],
        up=[pair(32, 16), pair(16, 8)], turn=[turn(32, 16), turn(16, 8)], out=conv1d(8, 3),
    )  # fmt: skip


def spleeter() -> Net:
    """A U-Net with strided and transposed convolutions, whose layers are numbered by kind."""

    def compute(s, x):
        kept = []
        for k in range(1, 5):
            kept.append(getattr(s, f"conv{k}")(x))
            x = leaky_relu(getattr(s, f"bn{k}")(kept[-1]), 0.2)
        x = kept[-1]
        for k in range(1, 5):
            x = getattr(s, f"bn{k + 4}")(getattr(s, f"up{k}")(x).relu())
            x = torch.cat([kept[3 - k], x], 1) if k < 4 else x
        return s.up7(x)

    parts: dict[str, Module] = {}
    for k, (i, o) in enumerate(pairwise((2, 8, 16, 32, 64)), 1):
        parts |= {f"conv{k}": conv(i, o, 5, 2), f"bn{k}": bn(o)}
    for k, (i, o) in enumerate(((64, 32), (64, 16), (32, 8), (16, 1)), 1):
        parts |= {f"up{k}": ConvTranspose2d(i, o, 5, 2, 2, 1), f"bn{k + 4}": bn(o)}
    return Net(compute, **parts, up7=Conv2d(1, 2, 4, dilation=2, padding=3))


def preactivated(i: int, w: int, o: int, stride: int = 1) -> Net:
    def compute(s, x):
        y = s.norm1(x).relu()
        z = s.conv3(s.norm3(s.conv2(s.norm2(s.conv1(y)).relu())).relu())
        return z + (s.shortcut(y) if s.shortcut else x)

    return Net(
        compute, norm1=BatchNorm2d(i), conv1=conv0(i, w, 1), norm2=BatchNorm2d(w),
        conv2=conv0(w, w, 3, stride), norm3=BatchNorm2d(w), conv3=conv(w, o, 1),
        shortcut=conv(i, o, 1, stride) if i != o else None,
    )  # fmt: skip


def slim() -> Net:
    """Residual units that normalise first, each stage a module of its own."""
    return Net(
        lambda s, x: s.classifier(s.final_norm(s.stage1(s.stage0(s.stem(x)))).relu().mean((2, 3), True))[..., 0, 0],
        stem=conv(3, 8, 7, 2), stage0=[preactivated(8, 8, 32), preactivated(32, 8, 32)],
        stage1=[preactivated(32, 16, 64, 2), preactivated(64, 16, 64)], final_norm=BatchNorm2d(64),
        classifier=conv(64, 10, 1),
    )  # fmt: skip


def graph() -> Net:
    """A net in the names of nobody: its original's checkpoint only counts layers."""

    def compute(s, x):
        for k in "abc":
            x = relu6(getattr(s, f"bn_{k}")(getattr(s, f"block_{k}")(x)))
        return s.out(s.hidden(pooled(x)).relu())

    parts: dict[str, Module] = {}
    for k, i in zip("abc", (3, 8, 8), strict=True):
        parts |= {f"block_{k}": conv0(i, 8, padding=0), f"bn_{k}": bn(8)}
    return Net(compute, **parts, hidden=Linear(8, 8), out=Linear(8, 8))


WINDOW = 4  # of Swin


def relative(window: int) -> Tensor:
    at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
    away = (at[:, :, None] - at[:, None]) + window - 1
    return away[0] * (2 * window - 1) + away[1]


def swin_self(d: int, heads: int) -> Net:
    def compute(s, x):
        bias = s.relative_position_bias_table[s.relative_position_index].permute(2, 0, 1)
        return attend(s.query(x), s.key(x), s.value(x), d // heads, attn_mask=bias[None])

    net = Net(
        compute, relative_position_bias_table=Parameter(torch.zeros((2 * WINDOW - 1) ** 2, heads)),
        query=Linear(d, d), key=Linear(d, d), value=Linear(d, d),
    )  # fmt: skip
    net.register_buffer("relative_position_index", relative(WINDOW))
    return net


def swin_block(d: int, heads: int, shift: int) -> Net:
    def compute(s, x):
        n, h, w, d = x.shape
        y = torch.roll(s.layernorm_before(x), (-shift, -shift), (1, 2))
        y = y.view(n, h // WINDOW, WINDOW, w // WINDOW, WINDOW, d).transpose(2, 3).reshape(-1, WINDOW**2, d)
        y = s.attention.output.dense(s.attention.self(y))
        y = y.view(n, h // WINDOW, w // WINDOW, WINDOW, WINDOW, d).transpose(2, 3).reshape(n, h, w, d)
        x = x + torch.roll(y, (shift, shift), (1, 2))
        return x + s.output.dense(gelu(s.intermediate.dense(s.layernorm_after(x))))

    def dense(i: int, o: int) -> Net:
        return Net(dense=Linear(i, o))

    inside = {"self": swin_self(d, heads), "output": dense(d, d)}
    return Net(
        compute, layernorm_before=LayerNorm(d), attention=Net(None, **inside), layernorm_after=LayerNorm(d),
        intermediate=dense(d, 4 * d), output=dense(4 * d, d),
    )  # fmt: skip


def swin_stage(d: int, heads: int, last: bool) -> Net:
    def compute(s, x):
        x = s.blocks(x)
        if last:
            return x
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return s.downsample.reduction(s.downsample.norm(torch.cat(parts, -1)))

    blocks = [swin_block(d, heads, 0), swin_block(d, heads, 2)]
    down = None if last else Net(reduction=dense0(4 * d, 2 * d), norm=LayerNorm(4 * d))
    return Net(compute, blocks=blocks, downsample=down)


def swin() -> Net:
    def compute(s, x):
        start = s.swin.embeddings
        x = s.swin.encoder(start.norm(start.projection(x).permute(0, 2, 3, 1)))
        return s.classifier(s.swin.layernorm(x).mean((1, 2)))

    model = Net(
        embeddings=Net(projection=Conv2d(3, 12, 2, 2), norm=LayerNorm(12)),
        encoder=[swin_stage(12, 2, False), swin_stage(24, 4, True)], layernorm=LayerNorm(24),
    )  # fmt: skip
    return Net(compute, swin=model, classifier=Linear(24, 10))


QUANTISED, RESIDUAL, DILATED, SKIP = 16, 12, 10, 14  # of WaveNet


def gated(dilation: int) -> Net:
    def compute(s, x):
        f, g = s.in_layer(x).chunk(2, 1)
        y = f.tanh() * g.sigmoid()
        return x[..., -y.shape[-1] :] + s.res(y), s.skip(y)

    return Net(
        compute, in_layer=Conv1d(RESIDUAL, 2 * DILATED, 2, dilation=dilation), res=conv1d(DILATED, RESIDUAL),
        skip=conv1d(DILATED, SKIP),
    )  # fmt: skip


def wavenet() -> Net:
    def compute(s, x):
        x = s.start(one_hot(x, QUANTISED).float().transpose(1, 2))
        skips = []
        for layer in s.wn:
            x, y = layer(x)
            skips.append(y)
        return s.end2(relu(s.end1(relu(sum(y[..., -x.shape[-1] :] for y in skips)))))

    return Net(
        compute, start=Conv1d(QUANTISED, RESIDUAL, 2, bias=False), wn=[gated(k) for k in (1, 2, 4, 1, 2)],
        end1=conv1d(SKIP, SKIP), end2=conv1d(SKIP, QUANTISED),
    )  # fmt: skip


PORTS = {
    "unet": Port("TF1 U-Net, transposed convolutions (PhaseNet)", phasenet, numbers(2, 3, 32)),
    "spleeter": Port("TF1 U-Net, layers numbered by kind (Spleeter)", spleeter, image(2, 32)),
    "slim": Port("TF-slim resnet_v2", slim, image(3, 32)),
    "graph": Port("TF2 object graph, layers only counted", graph, image(3, 16)),
    "swin": Port("Swin of TensorFlow into transformers' names", swin, image(3, 32)),
    "ibab": Port("TF1 WaveNet, filter and gate fused", wavenet, lambda: (torch.randint(0, 16, (2, 30)),)),
}
