"""Ports of Haiku's nets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    gelu,
    layer_norm,
    relu,
)

from nets.common import (
    Lstm,
    Port,
    ResNet18,
    ids,
    image,
)

# --- Haiku ResNet-18 into torchvision's names -------------------------------------------------------------------------


# --- Haiku LSTM, inputs and state in one ------------------------------------------------------------------------------


class HaikuLstm(Lstm):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            for k in (0, 1):
                getattr(self.lstm, f"bias_hh_l{k}")[16:32] = 1.0


# --- Haiku GPT, square matrices ---------------------------------------------------------------------------------------


class HaikuBlock(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.ModuleDict({n: nn.Linear(d, d) for n in ("q_proj", "k_proj", "v_proj", "out_proj")})
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln_1(x)
        q, k, v = (self.attn[n](h).view(*h.shape[:2], 4, -1).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attn["out_proj"](y)
        return x + self.mlp(self.ln_2(x))


class HaikuGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, 16), nn.Embedding(16, 16)
        self.h = nn.ModuleList([HaikuBlock(16) for _ in range(3)])
        self.ln_f, self.head = nn.LayerNorm(16), nn.Linear(16, 40)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            y = block(y)
        return self.head(self.ln_f(y))


# --- Haiku residual tower with two heads ------------------------------------------------------------------------------


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Sequential(nn.Conv2d(4, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24))
        self.tower = nn.ModuleList()
        for _ in range(3):
            pair = [m for _ in range(2) for m in (nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24))]
            self.tower.append(nn.Sequential(*pair))
        self.value = nn.ModuleDict({"conv": nn.Conv2d(24, 1, 1), "hidden": nn.Linear(64, 32), "out": nn.Linear(32, 1)})
        self.policy = nn.ModuleDict({"conv": nn.Conv2d(24, 2, 1), "out": nn.Linear(128, 65)})

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.entry(x))
        for block in self.tower:
            conv1, bn1, conv2, bn2 = block
            x = relu(x + bn2(conv2(relu(bn1(conv1(x))))))
        p = self.policy["out"](relu(self.policy["conv"](x)).flatten(1))
        v = self.value["out"](relu(self.value["hidden"](relu(self.value["conv"](x)).flatten(1))))
        return torch.cat([p, torch.tanh(v)], 1)


# --- Haiku Evoformer into OpenFold's names ----------------------------------------------------------------------------

MSA, PAIR, HIDDEN, HEADS, BLOCKS = 24, 16, 16, 4, 3


class RowAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_norm_m, self.layer_norm_z = nn.LayerNorm(MSA), nn.LayerNorm(PAIR)
        self.linear_z = nn.Linear(PAIR, HEADS, bias=False)
        self.mha = nn.ModuleDict({f"linear_{x}": nn.Linear(MSA, 32, bias=False) for x in "qkv"})
        self.mha["linear_o"], self.mha["linear_g"] = nn.Linear(32, MSA), nn.Linear(MSA, 32)

    def forward(self, m: Tensor, z: Tensor) -> Tensor:
        m = self.layer_norm_m(m)
        q, k, v = (self.mha[f"linear_{x}"](m).unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in "qkv")
        bias = self.linear_z(self.layer_norm_z(z)).permute(2, 0, 1)
        y = (q @ k.transpose(-1, -2) / 8**0.5 + bias).softmax(-1) @ v
        return self.mha["linear_o"](y.transpose(1, 2).flatten(2) * self.mha["linear_g"](m).sigmoid())


class Transition(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.linear_1, self.linear_2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(relu(self.linear_1(self.layer_norm(x))))


class Triangle(nn.Module):
    def __init__(self, *, outgoing: bool) -> None:
        super().__init__()
        self.outgoing = outgoing
        self.linear_a_p, self.linear_a_g = nn.Linear(PAIR, HIDDEN), nn.Linear(PAIR, HIDDEN)
        self.linear_b_p, self.linear_b_g = nn.Linear(PAIR, HIDDEN), nn.Linear(PAIR, HIDDEN)
        self.linear_g, self.linear_z = nn.Linear(PAIR, PAIR), nn.Linear(HIDDEN, PAIR)
        self.layer_norm_in, self.layer_norm_out = nn.LayerNorm(PAIR), nn.LayerNorm(HIDDEN)

    def forward(self, z: Tensor) -> Tensor:
        z = self.layer_norm_in(z)
        a = self.linear_a_p(z) * self.linear_a_g(z).sigmoid()
        b = self.linear_b_p(z) * self.linear_b_g(z).sigmoid()
        x = torch.einsum("ikc,jkc->ijc" if self.outgoing else "kjc,kic->ijc", a, b)
        return self.linear_z(self.layer_norm_out(x)) * self.linear_g(z).sigmoid()


class EvoBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.msa_att_row, self.msa_transition = RowAttention(), Transition(MSA)
        self.core = nn.ModuleDict({"tri_mul_out": Triangle(outgoing=True), "tri_mul_in": Triangle(outgoing=False)})
        self.core["pair_transition"] = Transition(PAIR)

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        m = m + self.msa_att_row(m, z)
        m = m + self.msa_transition(m)
        for part in self.core.values():
            z = z + part(z)
        return m, z


class Evoformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EvoBlock() for _ in range(BLOCKS))
        self.linear = nn.Linear(MSA, 20)

    def forward(self, x: Tensor) -> Tensor:
        z = (x[0, :, None] + 0.5 * x[0] ** 2)[..., :PAIR]
        for block in self.blocks:
            x, z = block(x, z)
        return self.linear(x + layer_norm(z.mean(1), (PAIR,)).repeat(1, 2)[:, :MSA])


# --- Haiku NFNet into timm's names, gains -----------------------------------------------------------------------------


class StdConv(nn.Conv2d):
    def __init__(self, i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(i, o, k, stride, k // 2, groups=groups)
        self.gain = nn.Parameter(torch.ones(o, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        w = w / (w.var((1, 2, 3), unbiased=False, keepdim=True) * w[0].numel() + 1e-4).sqrt() * self.gain
        return nn.functional.conv2d(x, w, self.bias, self.stride, self.padding, groups=self.groups)


class Excite(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(d, d // 2, 1), nn.Conv2d(d // 2, d, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(relu(self.fc1(x.mean((2, 3), keepdim=True)))).sigmoid() * 2


class NFBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        mid = o // 2
        self.downsample = nn.ModuleDict({"conv": StdConv(i, o, 1)}) if i != o else None
        self.stride = stride
        self.conv1, self.conv2 = StdConv(i, mid, 1), StdConv(mid, mid, 3, stride, groups=mid // 8)
        self.conv2b, self.conv3 = StdConv(mid, mid, 3, groups=mid // 8), StdConv(mid, o, 1)
        self.attn_last = Excite(o)
        self.skipinit_gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        y = gelu(x)
        skip = self.downsample["conv"](nn.functional.avg_pool2d(y, self.stride)) if self.downsample else x
        y = self.conv3(gelu(self.conv2b(gelu(self.conv2(gelu(self.conv1(y)))))))
        return self.attn_last(y) * self.skipinit_gain + skip


class NFNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.ModuleDict({"conv1": StdConv(3, 8, 3, 2), "conv2": StdConv(8, 16, 3)})
        self.stages = nn.ModuleList([
            nn.Sequential(NFBlock(16, 32, 1)),
            nn.Sequential(NFBlock(32, 64, 2), NFBlock(64, 64, 1)),
        ])  # fmt: skip
        self.final_conv = StdConv(64, 96, 1)
        self.head = nn.ModuleDict({"fc": nn.Linear(96, 10)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem["conv2"](gelu(self.stem["conv1"](x)))
        for stage in self.stages:
            x = stage(x)
        return self.head["fc"](gelu(self.final_conv(x)).mean((2, 3)))


# --- Haiku neural arithmetic units ------------------------------------------------------------------------------------


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


PORTS = {
    "haiku-resnet": Port("Haiku ResNet-18 into torchvision's names", ResNet18, image(3, 16)),
    "haiku-lstm": Port("Haiku LSTM, inputs and state in one", HaikuLstm, ids(40)),
    "haiku-gpt": Port("Haiku GPT, square matrices", HaikuGpt, lambda: (torch.randint(0, 40, (2, 10)),)),
    "tower": Port("Haiku residual tower with two heads", Tower, image(4, 8)),
    "evoformer": Port("Haiku Evoformer into OpenFold's names", Evoformer, lambda: (torch.randn(5, 7, MSA),)),
    "nfnet": Port("Haiku NFNet into timm's names, gains", NFNet, image(3, 16)),
    "nalu": Port("Haiku neural arithmetic units", Arithmetic, lambda: (torch.randn(16, 6),)),
}
