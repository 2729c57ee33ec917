"""Ports of Keras' nets that make images, find things in them, or read graphs and genomes."""

from __future__ import annotations

import torch
from torch.nn import (
    Conv2d,
    ConvTranspose2d,
    GroupNorm,
    Identity,
    Linear,
    MaxPool2d,
    Module,
    MultiheadAttention,
    Parameter,
    ReLU,
    Sequential,
    SiLU,
)
from torch.nn.functional import elu, interpolate, leaky_relu, relu, silu

from nets.common import (
    Net,
    Port,
    bn,
    bn1d,
    conv,
    conv0,
    conv1d,
    dense0,
    image,
    norm,
    numbers,
    own,
    parameter,
    pooled,
    rows,
)


def dilated(n: int, k: int, d: int) -> Net:
    return Net(
        lambda s, x: x + s.conv2(s.bn2(s.conv1(s.bn1(x).relu())).relu()),
        bn1=bn1d(n), conv1=conv1d(n, n, k, dilation=d), bn2=bn1d(n), conv2=conv1d(n, n, k, dilation=d),
    )  # fmt: skip


def splice() -> Net:
    """A dilated residual net with skips."""

    def compute(s, x):
        x = s.conv1(x)
        y = s.skip(x)
        for k, u in enumerate(s.units):
            x = u(x)
            if k % 2:
                y = y + s.taps[k // 2](x)
        return s.out(y)

    units = ((3, 1), (3, 1), (5, 2), (5, 2))
    return Net(
        compute, conv1=conv1d(4, 16), skip=conv1d(16, 16), units=[dilated(16, k, d) for k, d in units],
        taps=[conv1d(16, 16), conv1d(16, 16)], out=conv1d(16, 3),
    )  # fmt: skip


def conv_lstm() -> Net:
    """A convolutional LSTM over five frames, with convolutions for the inputs and for the state."""

    def compute(s, x):
        h = c = torch.zeros(x.shape[0], 8, *x.shape[3:])
        for t in range(x.shape[1]):
            i, f, g, o = (s.conv_x(x[:, t]) + s.conv_h(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return s.head(h)

    return Net(compute, conv_x=conv(2, 32), conv_h=conv0(8, 32), head=conv(8, 1, 1))


def timed(i: int, o: int) -> Net:
    def compute(s, x, t):
        h = s.in_conv(silu(s.in_norm(x))) + s.emb(silu(t))[:, :, None, None]
        return s.out_conv(silu(s.out_norm(h))) + s.skip(x)

    return Net(
        compute, in_norm=GroupNorm(4, i), in_conv=conv(i, o), emb=Linear(16, o), out_norm=GroupNorm(4, o),
        out_conv=conv(o, o), skip=conv(i, o, 1) if i != o else Identity(),
    )  # fmt: skip


def diffusion() -> Net:
    def compute(s, x):
        t = s.time(x.flatten(1)[:, :8])
        a = s.down1(s.stem(x), t)
        b = s.down2(a, t)
        h = s.up2(torch.cat([s.middle(b, t), b], 1), t)
        h = s.up1(torch.cat([h, a], 1), t)
        return s.final(silu(s.final_norm(h)))

    return Net(
        compute, time=[Linear(8, 16), SiLU(), Linear(16, 16)], stem=conv(3, 8), down1=timed(8, 8),
        down2=timed(8, 16), middle=timed(16, 16), up2=timed(32, 8), up1=timed(16, 8), final_norm=GroupNorm(4, 8),
        final=conv(8, 3),
    )  # fmt: skip


def double(i: int, o: int) -> Net:
    layers = [conv0(i, o), bn(o), ReLU(), conv0(o, o), bn(o), ReLU()]
    return Net(lambda s, x: s.double_conv(x), double_conv=layers)


def down(i: int, o: int) -> Net:
    return Net(lambda s, x: s.maxpool_conv(x), maxpool_conv=[MaxPool2d(2), double(i, o)])


def up(i: int, o: int) -> Net:
    return Net(
        lambda s, x, skip: s.conv(torch.cat([skip, s.up(x)], 1)), up=ConvTranspose2d(i, o, 2, 2), conv=double(i, o)
    )


def unet() -> Net:
    def compute(s, x):
        a = s.inc(x)
        b = s.down1(a)
        c = s.down2(b)
        return s.outc(s.up3(s.up2(s.up1(s.down3(c), c), b), a))

    return Net(
        compute, inc=double(3, 8), down1=down(8, 16), down2=down(16, 32), down3=down(32, 64), up1=up(64, 32),
        up2=up(32, 16), up3=up(16, 8), outc=conv(8, 2, 1),
    )  # fmt: skip


def leaky(i: int, o: int, k: int, stride: int = 1) -> Net:
    return Net(lambda s, x: leaky_relu(s.bn(s.conv(x)), 0.1), conv=conv0(i, o, k, stride), bn=bn(o))


def dark(d: int) -> Net:
    return Net(
        lambda s, x: x + s.layer2(s.layer1(x)), layer1=leaky(d, d // 2, 1), layer2=leaky(d // 2, d, 3)
    )  # fmt: skip


def neck(i: int, d: int) -> Sequential:
    return Sequential(leaky(i, d, 1), leaky(d, 2 * d, 3), leaky(2 * d, d, 1))


def yolo() -> Net:
    def compute(s, x):
        x = s.stem(x)
        kept, out = [], []
        for stage in s.stages:
            x = stage(x)
            kept.append(x)
        for k in range(3):
            if k:
                x = torch.cat([interpolate(s.lateral[k - 1](x), scale_factor=2), kept[2 - k]], 1)
            x = s.neck[k](x)
            out.append(s.detect[k](s.expand[k](x)).flatten(2))
        return torch.cat(out, 2)

    stages = ((16, 1), (32, 2), (64, 1))
    return Net(
        compute, stem=leaky(3, 8, 3),
        stages=[Sequential(leaky(d // 2, d, 3, 2), *(dark(d) for _ in range(n))) for d, n in stages],
        neck=[neck(64, 32), neck(48, 16), neck(24, 8)], lateral=[leaky(32, 16, 1), leaky(16, 8, 1)],
        expand=[leaky(32, 64, 3), leaky(16, 32, 3), leaky(8, 16, 3)], detect=[conv(d, 21, 1) for d in (64, 32, 16)],
    )  # fmt: skip


def dcgan() -> Net:
    """A dense layer in front of an image."""

    def compute(s, x):
        x = leaky_relu(s.norm0(s.project(x)), 0.3).view(-1, 24, 4, 4)
        x = leaky_relu(s.norm1(s.deconv1(x)), 0.3)
        return torch.tanh(s.to_rgb(leaky_relu(s.norm2(s.deconv2(x)), 0.3)))

    def wider(i: int, o: int) -> Module:
        return ConvTranspose2d(i, o, 4, 2, 1, bias=False)

    return Net(
        compute, project=dense0(20, 4 * 4 * 24), norm0=bn1d(4 * 4 * 24), deconv1=wider(24, 12), norm1=bn(12),
        deconv2=wider(12, 6), norm2=bn(6), to_rgb=wider(6, 3),
    )  # fmt: skip


def vae() -> Net:
    def compute(s, x):
        h = relu(s.hidden(relu(s.enc2(relu(s.enc1(x)))).flatten(1)))
        z = s.mu(h) + torch.exp(0.5 * s.log_var(h))
        y = relu(s.expand(z)).view(-1, 16, 4, 4)
        return s.out(relu(s.dec2(relu(s.dec1(y)))))

    return Net(
        compute, enc1=conv(1, 8, 3, 2), enc2=conv(8, 16, 3, 2), hidden=Linear(16 * 16, 24), mu=Linear(24, 5),
        log_var=Linear(24, 5), expand=Linear(5, 16 * 16), dec1=ConvTranspose2d(16, 16, 4, 2, 1),
        dec2=ConvTranspose2d(16, 8, 4, 2, 1), out=conv(8, 1),
    )  # fmt: skip


def capsules() -> Net:
    def compute(s, x):
        u = s.primary(relu(s.conv(x)))
        u = u.view(len(x), 4, 4, 9).permute(0, 3, 1, 2).reshape(len(x), 36, 4)  # by place, then by capsule
        u = u / (1 + u.norm(dim=-1, keepdim=True))
        votes = (s.W @ u[:, None, :, :, None]).squeeze(-1)
        logits = torch.zeros_like(votes[..., :1])
        for _ in range(2):
            v = (logits.softmax(1) * votes).sum(2, keepdim=True)
            logits = logits + (votes * v).sum(-1, keepdim=True)
        return s.decoder(v.flatten(1))

    return Net(
        compute, conv=Conv2d(1, 12, 5), primary=Conv2d(12, 16, 5, 2), W=parameter(1, 3, 36, 6, 4),
        decoder=[Linear(18, 20), ReLU(), Linear(20, 32), ReLU(), Linear(32, 9)],
    )  # fmt: skip


def vit_layer(d: int) -> Net:
    def compute(s, x):
        x = x + own(s.attn, s.norm1(x))
        return x + s.mlp(s.norm2(x))

    return Net(
        compute, norm1=norm(d), attn=MultiheadAttention(d, 2, batch_first=True), norm2=norm(d),
        mlp=[Linear(d, 2 * d), SiLU(), Linear(2 * d, d)],
    )  # fmt: skip


def inverted(i: int, o: int) -> Net:
    return Net(
        lambda s, x: s.bn3(s.reduce(silu(s.bn2(s.depth(silu(s.bn1(s.expand(x)))))))),
        expand=conv0(i, 2 * i, 1), bn1=bn(2 * i), depth=conv0(2 * i, 2 * i, groups=2 * i), bn2=bn(2 * i),
        reduce=conv0(2 * i, o, 1), bn3=bn(o),
    )  # fmt: skip


def mobilevit() -> Net:
    def compute(s, x):
        x = s.mv(silu(s.stem(x)))
        y = silu(s.local1(silu(s.local3(x))))
        y = silu(s.back(s.blocks(rows(y)).transpose(1, 2).reshape(y.shape)))
        return s.head(pooled(silu(s.fuse(torch.cat([x, y], 1)))))

    return Net(
        compute, stem=conv(3, 8, 3, 2), mv=[inverted(8, 8), inverted(8, 12)], local3=conv(12, 12),
        local1=conv(12, 16, 1), blocks=[vit_layer(16), vit_layer(16)], back=conv(16, 12, 1), fuse=conv(24, 12),
        head=Linear(12, 5),
    )  # fmt: skip


def attention(i: int, heads: int, o: int) -> Net:
    def compute(s, x, a):
        h = s.lin(x).unflatten(-1, (heads, o))
        e = (h * s.att_src).sum(-1)[:, :, None] + (h * s.att_dst).sum(-1)[:, None]
        w = leaky_relu(e, 0.2).masked_fill(a[..., None] < 0, -1e9).softmax(2)
        return torch.einsum("bijh,bjho->biho", w, h).flatten(2) + s.bias

    return Net(
        compute, lin=dense0(i, heads * o), att_src=parameter(1, heads, o), att_dst=parameter(1, heads, o),
        bias=Parameter(torch.zeros(heads * o)),
    )  # fmt: skip


def gat() -> Net:
    def compute(s, x):
        a = x @ x.transpose(1, 2)
        return s.readout(elu(s.gat2(elu(s.gat1(x, a)), a)).mean(1))

    return Net(compute, gat1=attention(7, 3, 5), gat2=attention(15, 3, 5), readout=Linear(15, 4))


PORTS = {
    "splice": Port("Keras dilated residual net (SpliceAI)", splice, numbers(2, 4, 40)),
    "conv-lstm": Port("Keras ConvLSTM2D", conv_lstm, numbers(2, 5, 2, 8, 8)),
    "diffusion": Port("Keras diffusion U-Net, layers only counted", diffusion, image(3, 8)),
    "double-unet": Port("Keras U-Net with batch norm into the usual classes", unet, image(3, 32)),
    "yolo": Port("Keras YOLO, layers only counted, three outputs", yolo, image(3, 32)),
    "dcgan": Port("Keras DCGAN, a dense layer in front of an image", dcgan, numbers(8, 20)),
    "vae": Port("Keras variational autoencoder", vae, image(1, 16)),
    "capsules": Port("Keras capsules", capsules, image(1, 14)),
    "mobilevit": Port("Keras MobileViT, layers only counted", mobilevit, image(3, 16)),
    "gat": Port("Keras graph attention", gat, numbers(4, 9, 7)),
}
