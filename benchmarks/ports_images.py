"""Ports of convolutional nets, in the words of Keras' applications, Keras' default names, TF1 and slim."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from ports_common import SCALE, Arrays, Port, State, dense, depthwise, flat, image, keras, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, elu, gelu, relu6, silu


class Bottleneck(nn.Module):
    def __init__(self, i: int, w: int, stride: int, down: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, w, 1, stride), nn.BatchNorm2d(w, 1e-3)
        self.conv2, self.bn2 = nn.Conv2d(w, w, 3, padding=1), nn.BatchNorm2d(w, 1e-3)
        self.conv3, self.bn3 = nn.Conv2d(w, 4 * w, 1), nn.BatchNorm2d(4 * w, 1e-3)
        self.downsample = None
        if down:
            self.downsample = nn.Sequential(nn.Conv2d(i, 4 * w, 1, stride), nn.BatchNorm2d(4 * w, 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        return (self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    """The names of torchvision's ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8, 1e-3)
        widths = [(8, 8, 1), (32, 16, 2), (64, 32, 2)]
        for k, (i, w, stride) in enumerate(widths, 1):
            layers = [Bottleneck(i, w, stride, True), Bottleneck(4 * w, w, 1, False), Bottleneck(4 * w, w, 1, False)]
            setattr(self, f"layer{k}", nn.Sequential(*layers))
        self.fc = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def resnet(s: State) -> Arrays:
    """keras.applications.ResNet50, layers in the order of a Keras file."""

    def layers() -> Iterator[Arrays]:
        yield dense(s, "conv1", "conv1_conv")
        yield norm(s, "bn1", "conv1_bn")
        for k in (1, 2, 3):
            for b in range(3):
                at, name = f"layer{k}.{b}", f"conv{k + 1}_block{b + 1}"
                for n in (1, 2):
                    yield dense(s, f"{at}.conv{n}", f"{name}_{n}_conv")
                    yield norm(s, f"{at}.bn{n}", f"{name}_{n}_bn")
                if b == 0:
                    yield dense(s, f"{at}.downsample.0", f"{name}_0_conv")
                yield dense(s, f"{at}.conv3", f"{name}_3_conv")
                if b == 0:
                    yield norm(s, f"{at}.downsample.1", f"{name}_0_bn")
                yield norm(s, f"{at}.bn3", f"{name}_3_bn")
        yield dense(s, "fc", "predictions")

    return keras(layers())


def conv_bn(i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o, 1e-3), nn.ReLU6())


class Inverted(nn.Module):
    def __init__(self, i: int, o: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = i * expand
        layers = [conv_bn(i, wide, 1)] if expand > 1 else []
        project = nn.Conv2d(wide, o, 1, bias=False)
        layers += [conv_bn(wide, wide, 3, stride, wide), project, nn.BatchNorm2d(o, 1e-3)]
        self.conv = nn.Sequential(*layers)
        self.same = stride == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.same else self.conv(x)


class MobileNet(nn.Module):
    """The names of torchvision's MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(8, 8, 1, 1), (8, 12, 2, 6), (12, 12, 1, 6), (12, 16, 2, 6), (16, 16, 1, 6), (16, 16, 1, 6)]
        self.features = nn.Sequential(conv_bn(3, 8, 3, 2), *(Inverted(*x) for x in shapes), conv_bn(16, 48, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(48, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def mobilenet(s: State) -> Arrays:
    """keras.applications.MobileNetV2, written by Keras 3."""

    def layers() -> Iterator[Arrays]:
        yield dense(s, "features.0.0", "Conv1")
        yield norm(s, "features.0.1", "bn_Conv1")
        for k in range(6):
            at, name = f"features.{k + 1}.conv", "expanded_conv" if not k else f"block_{k}"
            if k:
                yield dense(s, f"{at}.0.0", f"{name}_expand")
                yield norm(s, f"{at}.0.1", f"{name}_expand_BN")
            n = bool(k)
            yield depthwise(s, f"{at}.{int(n)}.0", f"{name}_depthwise", "kernel")
            yield norm(s, f"{at}.{int(n)}.1", f"{name}_depthwise_BN")
            yield dense(s, f"{at}.{1 + n}", f"{name}_project")
            yield norm(s, f"{at}.{2 + n}", f"{name}_project_BN")
        yield dense(s, "features.7.0", "Conv_1")
        yield norm(s, "features.7.1", "Conv_1_bn")
        yield dense(s, "classifier.1", "predictions")

    return keras(layers())


class MBConv(nn.Module):
    def __init__(self, i: int, o: int, k: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = i * expand
        if expand > 1:
            self._expand_conv, self._bn0 = nn.Conv2d(i, wide, 1, bias=False), nn.BatchNorm2d(wide, 1e-3)
        self._depthwise_conv = nn.Conv2d(wide, wide, k, stride, k // 2, groups=wide, bias=False)
        self._bn1 = nn.BatchNorm2d(wide, 1e-3)
        self._se_reduce, self._se_expand = nn.Conv2d(wide, i // 4, 1), nn.Conv2d(i // 4, wide, 1)
        self._project_conv, self._bn2 = nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o, 1e-3)
        self.expand, self.same = expand, stride == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        y = silu(self._bn0(self._expand_conv(x))) if self.expand > 1 else x
        y = silu(self._bn1(self._depthwise_conv(y)))
        y = y * self._se_expand(silu(self._se_reduce(y.mean((2, 3), True)))).sigmoid()
        y = self._bn2(self._project_conv(y))
        return x + y if self.same else y


class EfficientNet(nn.Module):
    """The names of the best-known port of EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, 1e-3)
        shapes = [(8, 8, 3, 1, 1), (8, 12, 3, 2, 6), (12, 12, 3, 1, 6), (12, 16, 5, 2, 6), (16, 16, 5, 1, 6)]
        self._blocks = nn.ModuleList([MBConv(*x) for x in shapes])
        self._conv_head, self._bn1 = nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64, 1e-3)
        self._fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = silu(self._bn0(self._conv_stem(x)))
        for b in self._blocks:
            x = b(x)
        return self._fc(silu(self._bn1(self._conv_head(x))).mean((2, 3)))


def efficientnet(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "_conv_stem", "stem_conv")
        yield norm(s, "_bn0", "stem_bn")
        for k, name in enumerate(("block1a", "block2a", "block2b", "block3a", "block3b")):
            at = f"_blocks.{k}"
            if k:
                yield dense(s, f"{at}._expand_conv", f"{name}_expand_conv")
                yield norm(s, f"{at}._bn0", f"{name}_expand_bn")
            yield depthwise(s, f"{at}._depthwise_conv", f"{name}_dwconv")
            yield norm(s, f"{at}._bn1", f"{name}_bn")
            yield dense(s, f"{at}._se_reduce", f"{name}_se_reduce")
            yield dense(s, f"{at}._se_expand", f"{name}_se_expand")
            yield dense(s, f"{at}._project_conv", f"{name}_project_conv")
            yield norm(s, f"{at}._bn2", f"{name}_project_bn")
        yield dense(s, "_conv_head", "top_conv")
        yield norm(s, "_bn1", "top_bn")
        yield dense(s, "_fc", "predictions")

    return dict(sorted(keras(layers()).items()))


class Vgg(nn.Module):
    """The names of torchvision's VGG: numbers in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        last = 3
        for w in (8, 8, 0, 16, 16, 0, 32, 32, 32, 0):
            layers += [nn.Conv2d(last, w, 3, padding=1), nn.ReLU()] if w else [nn.MaxPool2d(2)]
            last = w or last
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(128, 48), nn.ReLU(), nn.Dropout(), nn.Linear(48, 48), nn.ReLU(), nn.Dropout(), nn.Linear(48, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def vgg(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        places = iter((0, 2, 5, 7, 10, 12, 14))
        for block, count in ((1, 2), (2, 2), (3, 3)):
            for k in range(count):
                yield dense(s, f"features.{next(places)}", f"block{block}_conv{k + 1}")
        moved = s["classifier.0.weight"].reshape(48, 32, 2, 2).transpose(0, 2, 3, 1).reshape(48, -1)
        yield {"fc1/kernel": moved.T, "fc1/bias": s["classifier.0.bias"]}
        yield dense(s, "classifier.3", "fc2")
        yield dense(s, "classifier.6", "predictions")

    return keras(layers())


class EegNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temporal = nn.Sequential(nn.Conv2d(1, 8, (1, 16), padding="same", bias=False), nn.BatchNorm2d(8, 1e-3))
        self.spatial = nn.Sequential(nn.Conv2d(8, 16, (6, 1), groups=8, bias=False), nn.BatchNorm2d(16, 1e-3))
        self.separable = nn.Sequential(
            nn.Conv2d(16, 16, (1, 8), padding="same", groups=16, bias=False),
            nn.Conv2d(16, 16, 1, bias=False),
            nn.BatchNorm2d(16, 1e-3),
        )
        self.classify = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = avg_pool2d(elu(self.spatial(self.temporal(x))), (1, 4))
        return self.classify(avg_pool2d(elu(self.separable(x)), (1, 8)).flatten(1))


def eegnet(s: State) -> Arrays:
    """Keras 2: a depth multiplier of two, a separable layer, and a dense layer behind the flattened image."""

    def layers() -> Iterator[Arrays]:
        yield dense(s, "temporal.0", "conv2d")
        yield norm(s, "temporal.1", "batch_normalization")
        yield depthwise(s, "spatial.0", "depthwise_conv2d", inputs=8)
        yield norm(s, "spatial.1", "batch_normalization_1")
        point = {"separable_conv2d/pointwise_kernel": kernel(s["separable.1.weight"])}
        yield depthwise(s, "separable.0", "separable_conv2d") | point
        yield norm(s, "separable.2", "batch_normalization_2")
        moved = s["classify.weight"].reshape(4, 16, 2).transpose(0, 2, 1).reshape(4, -1)
        yield {"dense/kernel": moved.T, "dense/bias": s["classify.bias"]}

    return keras(layers())


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


def spleeter(s: State) -> Arrays:
    """TF1: layers are numbered by kind, as they were made."""

    def layers() -> Iterator[Arrays]:
        for k in range(9):
            tail = f"_{k}" if k else ""
            at = f"conv{k + 1}" if k < 4 else "up7"
            if k < 5:
                yield dense(s, at, f"conv2d{tail}")
            if k < 4:
                yield dense(s, f"up{k + 1}", f"conv2d_transpose{tail}")
            if k < 8:
                yield norm(s, f"bn{k + 1}", f"batch_normalization{tail}")

    return dict(sorted(flat(layers()).items()))


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


def slimnet(s: State) -> Arrays:
    """TF-slim's resnet_v2, sorted as a checkpoint of TensorFlow 1 is."""

    def layers() -> Iterator[Arrays]:
        top = "resnet_v2_50"
        yield dense(s, "stem", f"{top}/conv1", "weights", "biases")
        for k in range(2):
            for u in range(2):
                at, name = f"stage{k}.{u}", f"{top}/block{k + 1}/unit_{u + 1}/bottleneck_v2"
                yield norm(s, f"{at}.norm1", f"{name}/preact")
                for n in (1, 2, 3):
                    yield dense(s, f"{at}.conv{n}", f"{name}/conv{n}", "weights", "biases")
                    if n < 3:
                        yield norm(s, f"{at}.norm{n + 1}", f"{name}/conv{n}/BatchNorm")
                if f"{at}.shortcut.weight" in s:
                    yield dense(s, f"{at}.shortcut", f"{name}/shortcut", "weights", "biases")
        yield norm(s, "final_norm", f"{top}/postnorm")
        yield dense(s, "classifier", f"{top}/logits", "weights", "biases")

    return dict(sorted(flat(layers()).items()))


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


def mixer(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "stem.proj", "stem")
        for k in range(3):
            at, name = f"blocks.{k}", f"MixerBlock_{k}"
            yield norm(s, f"{at}.norm1", f"{name}/LayerNorm_0", SCALE)
            yield norm(s, f"{at}.norm2", f"{name}/LayerNorm_1", SCALE)
            for ours, theirs in (("tokens", "token"), ("channels", "channel")):
                for n in (0, 1):
                    yield dense(s, f"{at}.mlp_{ours}.fc{n + 1}", f"{name}/{theirs}_mixing/Dense_{n}")
        yield norm(s, "norm", "pre_head_layer_norm", SCALE)
        yield dense(s, "head", "head")

    return dict(sorted(flat(layers()).items()))


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


def graph(s: State) -> Arrays:
    """The object graph of a TF2 checkpoint of a Sequential."""

    def layers() -> Iterator[Arrays]:
        for k, at in enumerate("abc"):
            yield dense(s, f"block_{at}", f"layer_with_weights-{2 * k}")
            yield norm(s, f"bn_{at}", f"layer_with_weights-{2 * k + 1}")
        yield dense(s, "hidden", "layer_with_weights-6")
        yield dense(s, "out", "layer_with_weights-7")

    return dict(sorted(flat(layers()).items()))


class Basic(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet18(nn.Module):
    """The names of torchvision's ResNet-18."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Basic(8, 8, 1), Basic(8, 8, 1))
        self.layer2 = nn.Sequential(Basic(8, 16, 2), Basic(16, 16, 1))
        self.layer3 = nn.Sequential(Basic(16, 32, 2), Basic(32, 32, 1))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def basic_blocks() -> Iterator[tuple[int, str, int, int]]:
    """The blocks of ResNet18: count, name, stage and number."""
    for k in range(6):
        yield k, f"layer{k // 2 + 1}.{k % 2}", k // 2, k % 2


def flax_resnet(s: State) -> Arrays:
    """Flax's example: averages in a tree of their own."""

    def batch(at: str, name: str) -> Arrays:
        out = norm(s, at, f"params/{name}", SCALE)
        means = {"mean": "running_mean", "var": "running_var"}
        return out | {f"batch_stats/{name}/{k}": s[f"{at}.{v}"] for k, v in means.items()}

    out = dense(s, "conv1", "params/conv_init") | batch("bn1", "bn_init") | dense(s, "fc", "params/Dense_0")
    for k, at, _, _ in basic_blocks():
        name = f"ResNetBlock_{k}"
        for n in (0, 1):
            out |= dense(s, f"{at}.conv{n + 1}", f"params/{name}/Conv_{n}")
            out |= batch(f"{at}.bn{n + 1}", f"{name}/BatchNorm_{n}")
        if f"{at}.downsample.0.weight" in s:
            out |= dense(s, f"{at}.downsample.0", f"params/{name}/conv_proj")
            out |= batch(f"{at}.downsample.1", f"{name}/norm_proj")
    return dict(sorted(out.items()))


def haiku_resnet(s: State) -> Arrays:
    """Haiku's ResNet: `w`, and averages in the state."""
    top = "res_net18/~"

    def batch(at: str, name: str) -> Arrays:
        out = norm(s, at, f"params/{name}", {"weight": "scale", "bias": "offset"})
        means = {"mean_ema": "running_mean", "var_ema": "running_var"}
        return out | {f"state/{name}/~/{k}/average": s[f"{at}.{v}"] for k, v in means.items()}

    out = dense(s, "conv1", f"params/{top}/initial_conv", "w", "b") | batch("bn1", f"{top}/initial_batchnorm")
    for _, at, stage, block in basic_blocks():
        name = f"{top}/block_group_{stage}/~/block_{block}/~"
        for n in (0, 1):
            out |= dense(s, f"{at}.conv{n + 1}", f"params/{name}/conv_{n}", "w", "b")
            out |= batch(f"{at}.bn{n + 1}", f"{name}/batchnorm_{n}")
        if f"{at}.downsample.0.weight" in s:
            out |= dense(s, f"{at}.downsample.0", f"params/{name}/shortcut_conv", "w", "b")
            out |= batch(f"{at}.downsample.1", f"{name}/shortcut_batchnorm")
    return dict(sorted((out | dense(s, "fc", f"params/{top}/logits", "w", "b")).items()))


PORTS = {
    "flax-resnet": Port("Flax ResNet-18 into torchvision's names", ResNet18, flax_resnet, image(3, 16)),
    "haiku-resnet": Port("Haiku ResNet-18 into torchvision's names", ResNet18, haiku_resnet, image(3, 16)),
    "resnet": Port("Keras ResNet50 into torchvision's names", ResNet, resnet, image(3, 32)),
    "mobilenet": Port("Keras MobileNetV2 into torchvision's names", MobileNet, mobilenet, image(3, 32)),
    "efficientnet": Port("Keras EfficientNet, squeeze and excitation", EfficientNet, efficientnet, image(3, 32)),
    "vgg": Port("Keras VGG16 into torchvision's names, flattened", Vgg, vgg, image(3, 16)),
    "eegnet": Port("Keras EEGNet, depth multiplier, flattened", EegNet, eegnet, lambda: (torch.randn(2, 1, 6, 64),)),
    "spleeter": Port("TF1 U-Net, layers numbered by kind (Spleeter)", Spleeter, spleeter, image(2, 32)),
    "slim": Port("TF-slim resnet_v2", SlimNet, slimnet, image(3, 32)),
    "mixer": Port("Flax MLP-Mixer into timm's names", Mixer, mixer, image(3, 16)),
    "graph": Port("TF2 object graph, layers only counted", Graph, graph, image(3, 16)),
}
