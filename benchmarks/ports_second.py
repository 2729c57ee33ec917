"""The second blind round, images: ports that were written before `match` saw any of them.

The names are those of published code: Swin in TensorFlow and in transformers, DeepMind's NFNet and timm's, CLIP of Flax
and of OpenAI, keras-yolo3 and a detector as a person would write it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from ports_common import Arrays, Port, State, dense, flat, image, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, leaky_relu, relu, scaled_dot_product_attention

# --- Swin of TensorFlow, fused QKV, into the names of transformers ----------------------------------------------------

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


def swin(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "swin.embeddings.projection", "swin/patch_embed/proj")
        yield norm(s, "swin.embeddings.norm", "swin/patch_embed/norm")
        for k, depth in enumerate(DEPTHS):
            for j in range(depth):
                at, name = f"swin.encoder.{k}.blocks.{j}", f"swin/layers{k}/blocks{j}"
                yield norm(s, f"{at}.layernorm_before", f"{name}/norm1")
                three = [(s[f"{at}.attention.self.{x}.{r}"]) for r in ("weight", "bias") for x in WORDS]
                yield {f"{name}/attn/qkv/kernel": np.concatenate(three[:3]).T}
                yield {f"{name}/attn/qkv/bias": np.concatenate(three[3:])}
                table = "relative_position_bias_table"
                yield {f"{name}/attn/{table}": s[f"{at}.attention.self.{table}"]}
                yield {f"{name}/attn/relative_position_index": relative(WINDOW).numpy()}
                yield dense(s, f"{at}.attention.output.dense", f"{name}/attn/proj")
                yield norm(s, f"{at}.layernorm_after", f"{name}/norm2")
                yield dense(s, f"{at}.intermediate.dense", f"{name}/mlp/fc1")
                yield dense(s, f"{at}.output.dense", f"{name}/mlp/fc2")
            if k + 1 < len(DEPTHS):
                yield dense(s, f"swin.encoder.{k}.downsample.reduction", f"swin/layers{k}/downsample/reduction")
                yield norm(s, f"swin.encoder.{k}.downsample.norm", f"swin/layers{k}/downsample/norm")
        yield norm(s, "swin.layernorm", "swin/norm")
        yield dense(s, "classifier", "swin/head")

    return flat(layers())


WORDS = ("query", "key", "value")

# --- NFNet of Haiku: scaled standardised convolutions with gains, squeeze and excitation, scalars ---------------------


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


def nfnet(s: State) -> Arrays:
    def conv(at: str, name: str) -> Arrays:
        out = {f"{name}/w": kernel(s[f"{at}.weight"]), f"{name}/b": s[f"{at}.bias"]}
        return out | {f"{name}/gain": s[f"{at}.gain"].reshape(-1)}

    def linear(at: str, name: str) -> Arrays:
        w = s[f"{at}.weight"]
        return {f"{name}/w": w.reshape(w.shape[:2]).T, f"{name}/b": s[f"{at}.bias"]}

    out = conv("stem.conv1", "NFNet/~/stem_conv0") | conv("stem.conv2", "NFNet/~/stem_conv1")
    for n, at in enumerate(("stages.0.0", "stages.1.0", "stages.1.1")):
        home = f"NFNet/~/nf_block{f'_{n}' if n else ''}"
        if f"{at}.downsample.conv.weight" in s:
            out |= conv(f"{at}.downsample.conv", f"{home}/~/conv_shortcut")
        for ours, theirs in (("conv1", "conv0"), ("conv2", "conv1"), ("conv2b", "conv1b"), ("conv3", "conv2")):
            out |= conv(f"{at}.{ours}", f"{home}/~/{theirs}")
        out |= linear(f"{at}.attn_last.fc1", f"{home}/~/squeeze_excite/~/linear")
        out |= linear(f"{at}.attn_last.fc2", f"{home}/~/squeeze_excite/~/linear_1")
        out[f"{home}/skip_gain"] = s[f"{at}.skipinit_gain"]
    out |= conv("final_conv", "NFNet/~/final_conv") | linear("head.fc", "NFNet/~/linear")
    return dict(sorted(out.items()))


# --- CLIP of Flax into OpenAI's: two towers of one shape --------------------------------------------------------------

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


# --- keras-yolo3: layers that are only counted, three outputs, defined in another order -------------------------------


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


def yolo(s: State) -> Arrays:
    order = ["stem"]
    for k, n in enumerate((1, 2, 1)):
        order += [f"stages.{k}.0"] + [f"stages.{k}.{j + 1}.layer{m}" for j in range(n) for m in (1, 2)]
    for k in range(3):
        order += ([f"lateral.{k - 1}"] if k else []) + [f"neck.{k}.{j}" for j in range(3)] + [f"expand.{k}"]
        order.append(f"detect.{k}")
    out: Arrays = {}
    norms = 0
    for n, at in enumerate(order, 1):
        if at.startswith("detect"):
            out |= dense(s, at, f"conv2d_{n}/conv2d_{n}")
            continue
        norms += 1
        out |= dense(s, f"{at}.conv", f"conv2d_{n}/conv2d_{n}")
        out |= norm(s, f"{at}.bn", f"batch_normalization_{norms}/batch_normalization_{norms}")
    return dict(sorted(out.items()))


PORTS = {
    "swin": Port("Swin of TensorFlow into transformers' names", Swin, swin, image(3, 32)),
    "nfnet": Port("Haiku NFNet into timm's names, gains", NFNet, nfnet, image(3, 16)),
    "clip": Port("Flax CLIP into OpenAI's, two towers", Clip, clip, image(3, 16)),
    "yolo": Port("Keras YOLO, layers only counted, three outputs", Yolo, yolo, image(3, 32)),
}
