"""Ports of Keras' nets that make images, find things in them, or read graphs and genomes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    elu,
    interpolate,
    leaky_relu,
    relu,
    silu,
)

from nets.common import (
    Port,
    image,
)

# --- Keras dilated residual net (SpliceAI) ----------------------------------------------------------------------------


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


# --- Keras ConvLSTM2D -------------------------------------------------------------------------------------------------


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


def frames() -> tuple[Tensor, ...]:
    return (torch.randn(2, 5, 2, 8, 8),)


# --- Keras diffusion U-Net, layers only counted -----------------------------------------------------------------------


class Res(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.in_norm, self.in_conv = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1)
        self.emb = nn.Linear(16, o)
        self.out_norm, self.out_conv = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.in_conv(silu(self.in_norm(x))) + self.emb(silu(t))[:, :, None, None]
        return self.out_conv(silu(self.out_norm(h))) + self.skip(x)


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.down1, self.down2, self.middle = Res(8, 8), Res(8, 16), Res(16, 16)
        self.up2, self.up1 = Res(32, 8), Res(16, 8)
        self.final_norm, self.final = nn.GroupNorm(4, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        t = self.time(x.flatten(1)[:, :8])
        a = self.down1(self.stem(x), t)
        b = self.down2(a, t)
        h = self.middle(b, t)
        h = self.up2(torch.cat([h, b], 1), t)
        h = self.up1(torch.cat([h, a], 1), t)
        return self.final(silu(self.final_norm(h)))


# --- Keras U-Net with batch norm into the usual classes ---------------------------------------------------------------


class DoubleConv(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o, eps=1e-3), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o, eps=1e-3), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(i, o))

    def forward(self, x: Tensor) -> Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(i, i // 2, 2, 2)
        self.conv = DoubleConv(i, o)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat([skip, self.up(x)], 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inc = DoubleConv(3, 8)
        self.down1, self.down2, self.down3 = Down(8, 16), Down(16, 32), Down(32, 64)
        self.up1, self.up2, self.up3 = Up(64, 32), Up(32, 16), Up(16, 8)
        self.outc = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.inc(x)
        b = self.down1(a)
        c = self.down2(b)
        x = self.down3(c)
        return self.outc(self.up3(self.up2(self.up1(x, c), b), a))


# --- Keras YOLO, layers only counted, three outputs -------------------------------------------------------------------


class Unit(nn.Module):
    def __init__(self, i: int, o: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(i, o, k, stride, k // 2, bias=False), nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return leaky_relu(self.bn(self.conv(x)), 0.1)


class Dark(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = Unit(d, d // 2, 1), Unit(d // 2, d, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer2(self.layer1(x))


def last(i: int, d: int) -> nn.Sequential:
    return nn.Sequential(Unit(i, d, 1), Unit(d, 2 * d, 3), Unit(2 * d, d, 1))


class Yolo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = Unit(3, 8, 3)
        self.stages = nn.ModuleList(
            nn.Sequential(Unit(d // 2, d, 3, 2), *(Dark(d) for _ in range(n))) for d, n in ((16, 1), (32, 2), (64, 1))
        )
        self.neck = nn.ModuleList([last(64, 32), last(48, 16), last(24, 8)])
        self.lateral = nn.ModuleList([Unit(32, 16, 1), Unit(16, 8, 1)])
        self.expand = nn.ModuleList([Unit(32, 64, 3), Unit(16, 32, 3), Unit(8, 16, 3)])
        self.detect = nn.ModuleList([nn.Conv2d(d, 21, 1) for d in (64, 32, 16)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        kept = []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        out = []
        for k in range(3):
            if k:
                x = torch.cat([interpolate(self.lateral[k - 1](x), scale_factor=2), kept[2 - k]], 1)
            x = self.neck[k](x)
            out.append(self.detect[k](self.expand[k](x)).flatten(2))
        return torch.cat(out, 2)


# --- Keras DCGAN, a dense layer in front of an image ------------------------------------------------------------------


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.norm0 = nn.Linear(20, 4 * 4 * 24, bias=False), nn.BatchNorm1d(4 * 4 * 24, eps=1e-3)
        self.deconv1, self.norm1 = nn.ConvTranspose2d(24, 12, 4, 2, 1, bias=False), nn.BatchNorm2d(12, eps=1e-3)
        self.deconv2, self.norm2 = nn.ConvTranspose2d(12, 6, 4, 2, 1, bias=False), nn.BatchNorm2d(6, eps=1e-3)
        self.to_rgb = nn.ConvTranspose2d(6, 3, 4, 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = leaky_relu(self.norm0(self.project(x)), 0.3).view(-1, 24, 4, 4)
        x = leaky_relu(self.norm1(self.deconv1(x)), 0.3)
        return torch.tanh(self.to_rgb(leaky_relu(self.norm2(self.deconv2(x)), 0.3)))


# --- Keras variational autoencoder ------------------------------------------------------------------------------------


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


# --- Keras capsules ---------------------------------------------------------------------------------------------------


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


# --- Keras MobileViT, layers only counted -----------------------------------------------------------------------------


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


# --- Keras graph attention --------------------------------------------------------------------------------------------


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


PORTS = {
    "splice": Port("Keras dilated residual net (SpliceAI)", Splice, lambda: (torch.randn(2, 4, 40),)),
    "conv-lstm": Port("Keras ConvLSTM2D", ConvCell, frames),
    "diffusion": Port("Keras diffusion U-Net, layers only counted", Diffusion, image(3, 8)),
    "double-unet": Port("Keras U-Net with batch norm into the usual classes", UNet, image(3, 32)),
    "yolo": Port("Keras YOLO, layers only counted, three outputs", Yolo, image(3, 32)),
    "dcgan": Port("Keras DCGAN, a dense layer in front of an image", Generator, lambda: (torch.randn(8, 20),)),
    "vae": Port("Keras variational autoencoder", Vae, image(1, 16)),
    "capsules": Port("Keras capsules", Capsules, image(1, 14)),
    "mobilevit": Port("Keras MobileViT, layers only counted", MobileVit, image(3, 16)),
    "gat": Port("Keras graph attention", Graph, lambda: (torch.randn(4, 9, 7),)),
}
