"""Ports of Haiku's nets."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import GELU, BatchNorm2d, Conv2d, Embedding, LayerNorm, Linear, Module, Parameter, Sequential
from torch.nn.functional import avg_pool2d, conv2d, gelu, layer_norm, relu

from nets.common import Net, Port, attend, conv, conv0, dense0, ids, image, lstm, numbers, parameter, pooled, resnet18


def gpt_block(d: int) -> Net:
    def compute(s, x):
        h, a = s.ln_1(x), s.attn
        x = x + a.out_proj(attend(a.q_proj(h), a.k_proj(h), a.v_proj(h), d // 4, is_causal=True))
        return x + s.mlp(s.ln_2(x))

    return Net(
        compute, ln_1=LayerNorm(d), ln_2=LayerNorm(d),
        attn=Net(**{f"{n}_proj": Linear(d, d) for n in ("q", "k", "v", "out")}),
        mlp=[Linear(d, 4 * d), GELU(), Linear(4 * d, d)],
    )  # fmt: skip


def gpt() -> Net:
    return Net(
        lambda s, x: s.head(s.ln_f(s.h(s.wte(x) + s.wpe(torch.arange(x.shape[1]))))), wte=Embedding(40, 16),
        wpe=Embedding(16, 16), h=[gpt_block(16) for _ in range(3)], ln_f=LayerNorm(16), head=Linear(16, 40),
    )  # fmt: skip


def tower() -> Net:
    """A residual tower with two heads."""

    def compute(s, x):
        x = relu(s.entry(x))
        for block in s.tower:
            x = relu(x + block[2:](relu(block[:2](x))))
        p = s.policy.out(relu(s.policy.conv(x)).flatten(1))
        v = s.value.out(relu(s.value.hidden(relu(s.value.conv(x)).flatten(1))))
        return torch.cat([p, torch.tanh(v)], 1)

    def pair(i: int) -> list[Module]:
        return [conv0(i, 24), BatchNorm2d(24)]

    return Net(
        compute, entry=pair(4), tower=[Sequential(*pair(24), *pair(24)) for _ in range(3)],
        value=Net(conv=conv(24, 1, 1), hidden=Linear(64, 32), out=Linear(32, 1)),
        policy=Net(conv=conv(24, 2, 1), out=Linear(128, 65)),
    )  # fmt: skip


MSA, PAIR = 24, 16  # widths of the Evoformer


def row_attention() -> Net:
    def compute(s, m, z):
        m, a = s.layer_norm_m(m), s.mha
        bias = s.linear_z(s.layer_norm_z(z)).permute(2, 0, 1)
        y = attend(a.linear_q(m), a.linear_k(m), a.linear_v(m), 8, attn_mask=bias)
        return a.linear_o(y * a.linear_g(m).sigmoid())

    norms = {"layer_norm_m": LayerNorm(MSA), "layer_norm_z": LayerNorm(PAIR)}
    linear_z, mha = dense0(PAIR, 4), {f"linear_{n}": dense0(MSA, 32) for n in "qkv"}
    heads = Net(**mha, linear_o=Linear(32, MSA), linear_g=Linear(MSA, 32))
    return Net(compute, **norms, linear_z=linear_z, mha=heads)


def transition(width: int) -> Net:
    return Net(
        lambda s, x: s.linear_2(relu(s.linear_1(s.layer_norm(x)))), layer_norm=LayerNorm(width),
        linear_1=Linear(width, 2 * width), linear_2=Linear(2 * width, width),
    )  # fmt: skip


def triangle(sum_: str) -> Net:
    def compute(s, z):
        z = s.layer_norm_in(z)
        a = s.linear_a_p(z) * s.linear_a_g(z).sigmoid()
        b = s.linear_b_p(z) * s.linear_b_g(z).sigmoid()
        return s.linear_z(s.layer_norm_out(torch.einsum(sum_, a, b))) * s.linear_g(z).sigmoid()

    parts = {f"linear_{n}": Linear(PAIR, PAIR) for n in ("a_p", "a_g", "b_p", "b_g", "g", "z")}
    return Net(compute, **parts, layer_norm_in=LayerNorm(PAIR), layer_norm_out=LayerNorm(PAIR))


def evo_block() -> Net:
    def compute(s, m, z):
        m = m + s.msa_att_row(m, z)
        m = m + s.msa_transition(m)
        for part in s.core.children():
            z = z + part(z)
        return m, z

    att, turn = row_attention(), transition(MSA)
    out, into = triangle("ikc,jkc->ijc"), triangle("kjc,kic->ijc")
    core = Net(tri_mul_out=out, tri_mul_in=into, pair_transition=transition(PAIR))
    return Net(compute, msa_att_row=att, msa_transition=turn, core=core)


def evoformer() -> Net:
    def compute(s, x):
        z = (x[0, :, None] + 0.5 * x[0] ** 2)[..., :PAIR]
        for block in s.blocks:
            x, z = block(x, z)
        return s.linear(x + layer_norm(z.mean(1), (PAIR,)).repeat(1, 2)[:, :MSA])

    return Net(compute, blocks=[evo_block() for _ in range(3)], linear=Linear(MSA, 20))


class StdConv(Conv2d):
    def __init__(self, i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(i, o, k, stride, k // 2, groups=groups)
        self.gain = Parameter(torch.ones(o, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        w = w / (w.var((1, 2, 3), unbiased=False, keepdim=True) * w[0].numel() + 1e-4).sqrt() * self.gain
        return conv2d(x, w, self.bias, self.stride, self.padding, groups=self.groups)


def excite(d: int) -> Net:
    return Net(
        lambda s, x: x * s.fc2(relu(s.fc1(x.mean((2, 3), keepdim=True)))).sigmoid() * 2, fc1=conv(d, d // 2, 1),
        fc2=conv(d // 2, d, 1),
    )  # fmt: skip


def nf_block(i: int, o: int, stride: int) -> Net:
    def compute(s, x):
        y = gelu(x)
        skip = s.downsample.conv(avg_pool2d(y, stride)) if s.downsample else x
        y = s.conv3(gelu(s.conv2b(gelu(s.conv2(gelu(s.conv1(y)))))))
        return s.attn_last(y) * s.skipinit_gain + skip

    mid = o // 2
    groups = mid // 8
    return Net(
        compute, downsample=Net(conv=StdConv(i, o, 1)) if i != o else None, conv1=StdConv(i, mid, 1),
        conv2=StdConv(mid, mid, 3, stride, groups), conv2b=StdConv(mid, mid, 3, groups=groups),
        conv3=StdConv(mid, o, 1), attn_last=excite(o), skipinit_gain=Parameter(torch.tensor(0.7)),
    )  # fmt: skip


def nfnet() -> Net:
    def compute(s, x):
        x = s.stages(s.stem.conv2(gelu(s.stem.conv1(x))))
        return s.head.fc(pooled(gelu(s.final_conv(x))))

    return Net(
        compute, stem=Net(conv1=StdConv(3, 8, 3, 2), conv2=StdConv(8, 16, 3)),
        stages=[Sequential(nf_block(16, 32, 1)), Sequential(nf_block(32, 64, 2), nf_block(64, 64, 1))],
        final_conv=StdConv(64, 96, 1), head=Net(fc=Linear(96, 10)),
    )  # fmt: skip


def nalu_cell(i: int, o: int) -> Net:
    def compute(s, x):
        w = torch.tanh(s.W_hat) * torch.sigmoid(s.M_hat)
        g = torch.sigmoid(x @ s.G.T)
        return g * (x @ w.T) + (1 - g) * torch.exp(torch.log(x.abs() + 1e-2) @ w.T).clamp(max=50)

    return Net(compute, W_hat=parameter(o, i), M_hat=parameter(o, i), G=parameter(o, i))


def nalu() -> Net:
    return Net(lambda s, x: s.cells(x), cells=[nalu_cell(6, 8), nalu_cell(8, 8), nalu_cell(8, 3)])


PORTS = {
    "haiku-resnet": Port("Haiku ResNet-18 into torchvision's names", resnet18, image(3, 16)),
    "haiku-lstm": Port("Haiku LSTM, inputs and state in one", partial(lstm, 1.0), ids(40)),
    "haiku-gpt": Port("Haiku GPT, square matrices", gpt, ids(40)),
    "tower": Port("Haiku residual tower with two heads", tower, image(4, 8)),
    "evoformer": Port("Haiku Evoformer into OpenFold's names", evoformer, numbers(5, 7, MSA)),
    "nfnet": Port("Haiku NFNet into timm's names, gains", nfnet, image(3, 16)),
    "nalu": Port("Haiku neural arithmetic units", nalu, numbers(16, 6)),
}
