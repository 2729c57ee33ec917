"""Ports of images, waves and proteins that were written before `match` saw any of them: they show what it meets blind.

The names are those of published code: TensorFlow's WaveNet of 2016, AlphaFold 2 and OpenFold, the usual U-Nets.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from ports_common import Array, Arrays, Port, State, dense, flat, image, keras, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import layer_norm, relu

# --- Keras U-Net with transposed convolutions and batch normalisation, into the usual classes of torch ----------------


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


def unet(s: State) -> Arrays:
    count = dict.fromkeys(("conv2d", "batch_normalization", "conv2d_transpose"), -1)

    def named(kind: str) -> str:
        count[kind] += 1
        return f"{kind}_{count[kind]}" if count[kind] else kind

    def double(at: str) -> Iterator[Arrays]:
        for k in (0, 3):
            yield dense(s, f"{at}.double_conv.{k}", named("conv2d"))
            yield norm(s, f"{at}.double_conv.{k + 1}", named("batch_normalization"))

    def layers() -> Iterator[Arrays]:
        yield from double("inc")
        for k in (1, 2, 3):
            yield from double(f"down{k}.maxpool_conv.1")
        for k in (1, 2, 3):
            yield dense(s, f"up{k}.up", named("conv2d_transpose"))
            yield from double(f"up{k}.conv")
        yield dense(s, "outc", named("conv2d"))

    return keras(layers())


# --- TensorFlow 1 WaveNet, whose filters and gates are one convolution in torch ---------------------------------------

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


def wavenet(s: State) -> Arrays:
    out = {"wavenet/causal_layer/filter": kernel(s["start.weight"])}
    for k in range(len(DILATIONS)):
        home = f"wavenet/dilated_stack/layer{k}"
        w, b = kernel(s[f"wn.{k}.in_layer.weight"]), s[f"wn.{k}.in_layer.bias"]
        for j, word in enumerate(("filter", "gate")):
            half = slice(DILATED * j, DILATED * (j + 1))
            out |= {f"{home}/{word}": w[..., half], f"{home}/{word}_bias": b[half]}
        for ours, word in (("res", "dense"), ("skip", "skip")):
            out |= {
                f"{home}/{word}": kernel(s[f"wn.{k}.{ours}.weight"]),
                f"{home}/{word}_bias": s[f"wn.{k}.{ours}.bias"],
            }
    for k in (1, 2):
        out[f"wavenet/postprocessing/postprocess{k}"] = kernel(s[f"end{k}.weight"])
        out[f"wavenet/postprocessing/postprocess{k}_bias"] = s[f"end{k}.bias"]
    return dict(sorted(out.items()))


# --- Haiku Evoformer: scanned blocks, heads as axes, triangles of square matrices -------------------------------------

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


TRIANGLE = {
    "linear_a_p": "left_projection", "linear_b_p": "right_projection", "linear_a_g": "left_gate",
    "linear_b_g": "right_gate", "linear_z": "output_projection", "linear_g": "gating_linear",
}  # fmt: skip


def evoformer(s: State) -> Arrays:
    top = "alphafold/alphafold_iteration/evoformer/evoformer_iteration"
    out: Arrays = {}

    def put(ours: str, theirs: str, shape: tuple[int, ...] = (), *, turn: bool = False) -> None:
        every: list[Array] = [s[f"blocks.{k}.{ours}"] for k in range(BLOCKS)]
        every = [w.T if turn else w for w in every]
        out[f"{top}/{theirs}"] = np.stack([w.reshape(shape or w.shape) for w in every])

    def both(ours: str, theirs: str, *, is_norm: bool = False) -> None:
        put(f"{ours}.weight", f"{theirs}//{'scale' if is_norm else 'weights'}", turn=not is_norm)
        put(f"{ours}.bias", f"{theirs}//{'offset' if is_norm else 'bias'}")

    row, theirs = "msa_att_row", "msa_row_attention_with_pair_bias"
    both(f"{row}.layer_norm_m", f"{theirs}/query_norm", is_norm=True)
    both(f"{row}.layer_norm_z", f"{theirs}/feat_2d_norm", is_norm=True)
    put(f"{row}.linear_z.weight", f"{theirs}//feat_2d_weights", turn=True)
    for x, word in zip("qkvg", ("query", "key", "value", "gating"), strict=True):
        put(f"{row}.mha.linear_{x}.weight", f"{theirs}/attention//{word}_w", (MSA, HEADS, 8), turn=True)
    put(f"{row}.mha.linear_g.bias", f"{theirs}/attention//gating_b", (HEADS, 8))
    put(f"{row}.mha.linear_o.weight", f"{theirs}/attention//output_w", (HEADS, 8, MSA), turn=True)
    put(f"{row}.mha.linear_o.bias", f"{theirs}/attention//output_b")
    for ours, name in (("msa_transition", "msa_transition"), ("core.pair_transition", "pair_transition")):
        both(f"{ours}.layer_norm", f"{name}/input_layer_norm", is_norm=True)
        both(f"{ours}.linear_1", f"{name}/transition1")
        both(f"{ours}.linear_2", f"{name}/transition2")
    for way in ("out", "in"):
        ours, name = f"core.tri_mul_{way}", f"triangle_multiplication_{way}{'going' if way == 'out' else 'coming'}"
        both(f"{ours}.layer_norm_in", f"{name}/layer_norm_input", is_norm=True)
        both(f"{ours}.layer_norm_out", f"{name}/center_layer_norm", is_norm=True)
        for x, word in TRIANGLE.items():
            both(f"{ours}.{x}", f"{name}/{word}")
    out |= flat([{f"{top[:-20]}/single_activations//{n}": x for n, x in dense(s, "linear", "", "weights").items()}])
    return dict(sorted((n.replace("///", "//"), x) for n, x in out.items()))


PORTS = {
    "double-unet": Port("Keras U-Net with batch norm into the usual classes", UNet, unet, image(3, 32)),
    "ibab": Port("TF1 WaveNet, filter and gate fused", WaveNet, wavenet, lambda: (torch.randint(0, 16, (2, 30)),)),
    "evoformer": Port("Haiku Evoformer into OpenFold's names", Evoformer, evoformer, lambda: (torch.randn(5, 7, MSA),)),
}
