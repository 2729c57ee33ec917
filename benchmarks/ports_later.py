"""Ports that were written after the matching was done and that nobody tuned it with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from ports_common import Arrays, Port, State, dense, flat, ids, image, keras, norm
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

# --- Keras DenseNet into torchvision's names --------------------------------------------------------------------------

BLOCKS, GROWTH = (3, 4), 8


class DenseLayer(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * GROWTH, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * GROWTH), nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x).relu())
        return torch.cat([x, self.conv2(self.norm2(y).relu())], 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        f = nn.Sequential()
        width = 16
        f.add_module("conv0", nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False))
        f.add_module("norm0", nn.BatchNorm2d(width))
        f.add_module("relu0", nn.ReLU())
        for k, count in enumerate(BLOCKS):
            block = nn.Sequential()
            for j in range(count):
                block.add_module(f"denselayer{j + 1}", DenseLayer(width + j * GROWTH))
            f.add_module(f"denseblock{k + 1}", block)
            width += count * GROWTH
            if k + 1 < len(BLOCKS):
                turn = nn.Sequential()
                turn.add_module("norm", nn.BatchNorm2d(width))
                turn.add_module("relu", nn.ReLU())
                turn.add_module("conv", nn.Conv2d(width, width // 2, 1, bias=False))
                f.add_module(f"transition{k + 1}", turn)
                width //= 2
        f.add_module("norm5", nn.BatchNorm2d(width))
        self.features, self.classifier = f, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).relu().mean((2, 3)))


def densenet(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "features.conv0", "conv1_conv")
        yield norm(s, "features.norm0", "conv1_bn")
        for k, count in enumerate(BLOCKS):
            for j in range(count):
                at, name = f"features.denseblock{k + 1}.denselayer{j + 1}", f"conv{k + 2}_block{j + 1}"
                yield norm(s, f"{at}.norm1", f"{name}_0_bn")
                yield dense(s, f"{at}.conv1", f"{name}_1_conv")
                yield norm(s, f"{at}.norm2", f"{name}_1_bn")
                yield dense(s, f"{at}.conv2", f"{name}_2_conv")
            if k + 1 < len(BLOCKS):
                yield norm(s, f"features.transition{k + 1}.norm", f"pool{k + 2}_bn")
                yield dense(s, f"features.transition{k + 1}.conv", f"pool{k + 2}_conv")
        yield norm(s, "features.norm5", "bn")
        yield dense(s, "classifier", "predictions")

    return keras(layers())


# --- Keras ConvNeXt into torchvision's names --------------------------------------------------------------------------

DEPTHS, WIDTHS = (2, 3), (16, 24)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Turned(nn.Module):
    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class CNBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer_scale = nn.Parameter(torch.rand(width, 1, 1))
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width), Turned(0, 2, 3, 1), nn.LayerNorm(width, 1e-6),
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), Turned(0, 3, 1, 2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer_scale * self.block(x)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        f: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, WIDTHS[0], 4, 4), LayerNorm2d(WIDTHS[0], 1e-6))]
        for k, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
            f += [nn.Sequential(*(CNBlock(width) for _ in range(depth)))]
            if k + 1 < len(DEPTHS):
                f += [nn.Sequential(LayerNorm2d(width, 1e-6), nn.Conv2d(width, WIDTHS[k + 1], 2, 2))]
        self.features = nn.Sequential(*f)
        self.classifier = nn.Sequential(LayerNorm2d(WIDTHS[-1], 1e-6), nn.Flatten(1), nn.Linear(WIDTHS[-1], 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3), keepdim=True))


def convnext(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        name = "convnext_tiny"
        yield dense(s, "features.0.0", f"{name}_stem_conv")
        yield norm(s, "features.0.1", f"{name}_stem_layernorm")
        for k, depth in enumerate(DEPTHS):
            for j in range(depth):
                at, block = f"features.{2 * k + 1}.{j}", f"{name}_stage_{k}_block_{j}"
                w = s[f"{at}.block.0.weight"]
                yield {
                    f"{block}_depthwise_conv/kernel": w.transpose(2, 3, 1, 0),
                    f"{block}_depthwise_conv/bias": s[f"{at}.block.0.bias"],
                }
                yield norm(s, f"{at}.block.2", f"{block}_layernorm")
                yield dense(s, f"{at}.block.3", f"{block}_pointwise_conv_1")
                yield dense(s, f"{at}.block.5", f"{block}_pointwise_conv_2")
                yield {f"{block}_layer_scale/gamma": s[f"{at}.layer_scale"].reshape(-1)}
            if k + 1 < len(DEPTHS):
                yield norm(s, f"features.{2 * k + 2}.0", f"{name}_downsampling_layernorm_{k}")
                yield dense(s, f"features.{2 * k + 2}.1", f"{name}_downsampling_conv_{k}")
        yield norm(s, "classifier.0", f"{name}_head_layernorm")
        yield dense(s, "classifier.2", f"{name}_head_dense")

    return keras(layers())


# --- TF1 ALBERT-like encoder, the vocabulary padded in the source -----------------------------------------------------

VOCABULARY, PADDED, HIDDEN = 50, 56, 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.to_out, self.norm_att = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.up, self.down, self.norm_mlp = nn.Linear(HIDDEN, 96), nn.Linear(96, HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        x = self.norm_att(x + self.to_out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm_mlp(x + self.down(gelu(self.up(x))))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(10, HIDDEN)
        self.norm_in = nn.LayerNorm(HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.transform, self.norm_out = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.output_bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_in(self.tokens(x) + self.positions.weight)
        for block in self.blocks:
            x = block(x)
        return self.norm_out(gelu(self.transform(x))) @ self.tokens.weight.T + self.output_bias


def masked(s: State) -> Arrays:
    def padded(name: str) -> np.ndarray:
        return np.concatenate([s[name], np.zeros((PADDED - VOCABULARY, *s[name].shape[1:]), "f4")])

    def layers() -> Iterator[Arrays]:
        yield {"bert/embeddings/word_embeddings": padded("tokens.weight")}
        yield {"bert/embeddings/position_embeddings": s["positions.weight"]}
        yield norm(s, "norm_in", "bert/embeddings/LayerNorm")
        for k in range(3):
            at, name = f"blocks.{k}", f"bert/encoder/layer_{k}"
            for one in ("query", "key", "value"):
                yield dense(s, f"{at}.to_{one[0]}", f"{name}/attention/self/{one}")
            yield dense(s, f"{at}.to_out", f"{name}/attention/output/dense")
            yield norm(s, f"{at}.norm_att", f"{name}/attention/output/LayerNorm")
            yield dense(s, f"{at}.up", f"{name}/intermediate/dense")
            yield dense(s, f"{at}.down", f"{name}/output/dense")
            yield norm(s, f"{at}.norm_mlp", f"{name}/output/LayerNorm")
        yield {"cls/predictions/output_bias": padded("output_bias")}
        yield dense(s, "transform", "cls/predictions/transform/dense")
        yield norm(s, "norm_out", "cls/predictions/transform/LayerNorm")

    return flat(layers())


PORTS = {
    "densenet": Port("Keras DenseNet into torchvision's names", DenseNet, densenet, image(3, 32)),
    "convnext": Port("Keras ConvNeXt into torchvision's names", ConvNeXt, convnext, image(3, 32)),
    "masked": Port("TF1 BERT whose vocabulary is padded", Masked, masked, ids(VOCABULARY)),
}
