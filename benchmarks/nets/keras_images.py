"""Ports of Keras' classifiers of images."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    avg_pool2d,
    elu,
    relu,
    silu,
)

from nets.common import (
    Port,
    image,
)

# --- Keras conv net, batch norm, dense behind the image ---------------------------------------------------------------


class ConvBN(nn.Module):
    """Convolutions with batch normalisation, a dense layer behind the flattened image."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 16, 16, 24)
        blocks = []
        for i, o in itertools.pairwise(widths):
            blocks.append(nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o, eps=1e-3), nn.ReLU()))
        self.features = nn.ModuleList(blocks)
        self.hidden = nn.Linear(24 * 16, 32)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for k, f in enumerate(self.features):
            x = f(x)
            if k < 2:
                x = nn.functional.max_pool2d(x, 2)
        return self.classifier(self.hidden(x.flatten(1)).relu())


# --- Keras separable residual net (mini-XCEPTION) ---------------------------------------------------------------------


class Separable(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(i, i, 3, padding=1, groups=i, bias=False)
        self.pointwise = nn.Conv2d(i, o, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))


class XBlock(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.sep1, self.bn1 = Separable(i, o), nn.BatchNorm2d(o, eps=1e-3)
        self.sep2, self.bn2 = Separable(o, o), nn.BatchNorm2d(o, eps=1e-3)
        self.shortcut, self.shortcut_bn = nn.Conv2d(i, o, 1, stride=2, bias=False), nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.sep2(self.bn1(self.sep1(x)).relu()))
        return nn.functional.max_pool2d(y, 2) + self.shortcut_bn(self.shortcut(x))


class MiniX(nn.Module):
    """Separable convolutions in residual blocks, after mini-XCEPTION."""

    def __init__(self) -> None:
        super().__init__()
        self.stem1, self.bn1 = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8, eps=1e-3)
        self.stem2, self.bn2 = nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8, eps=1e-3)
        self.blocks = nn.ModuleList([XBlock(8, 16), XBlock(16, 32), XBlock(32, 64)])
        self.head = nn.Conv2d(64, 7, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn2(self.stem2(self.bn1(self.stem1(x)).relu())).relu()
        for b in self.blocks:
            x = b(x)
        return self.head(x).mean((2, 3))


# --- Keras ResNet50 into torchvision's names --------------------------------------------------------------------------


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


# --- Keras MobileNetV2 into torchvision's names -----------------------------------------------------------------------


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


# --- Keras EfficientNet, squeeze and excitation -----------------------------------------------------------------------


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


# --- Keras VGG16 into torchvision's names, flattened ------------------------------------------------------------------


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


# --- Keras EEGNet, depth multiplier, flattened ------------------------------------------------------------------------


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


# --- Keras SqueezeNet, defined backwards ------------------------------------------------------------------------------


class Fire(nn.Module):
    def __init__(self, i: int, s: int, e: int) -> None:
        super().__init__()
        self.e3, self.e1, self.s1 = nn.Conv2d(s, e, 3, padding=1), nn.Conv2d(s, e, 1), nn.Conv2d(i, s, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.s1(x))
        return torch.cat([relu(self.e1(x)), relu(self.e3(x))], 1)


class Squeeze(nn.Module):
    """The classifier is defined first, and the fires from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Conv2d(48, 10, 1)
        self.d, self.c, self.b, self.a = Fire(48, 8, 24), Fire(32, 8, 24), Fire(32, 8, 16), Fire(16, 8, 16)
        self.first = nn.Conv2d(3, 16, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.first(x))
        for fire in (self.a, self.b, self.c, self.d):
            x = fire(x)
        return self.logits(x).mean((2, 3))


PORTS = {
    "conv-bn": Port("Keras conv net, batch norm, dense behind the image", ConvBN, image(3, 16)),
    "mini-x": Port("Keras separable residual net (mini-XCEPTION)", MiniX, image(1, 36)),
    "resnet": Port("Keras ResNet50 into torchvision's names", ResNet, image(3, 32)),
    "mobilenet": Port("Keras MobileNetV2 into torchvision's names", MobileNet, image(3, 32)),
    "efficientnet": Port("Keras EfficientNet, squeeze and excitation", EfficientNet, image(3, 32)),
    "vgg": Port("Keras VGG16 into torchvision's names, flattened", Vgg, image(3, 16)),
    "eegnet": Port("Keras EEGNet, depth multiplier, flattened", EegNet, lambda: (torch.randn(2, 1, 6, 64),)),
    "densenet": Port("Keras DenseNet into torchvision's names", DenseNet, image(3, 32)),
    "convnext": Port("Keras ConvNeXt into torchvision's names", ConvNeXt, image(3, 32)),
    "squeeze": Port("Keras SqueezeNet, defined backwards", Squeeze, image(3, 32)),
}
