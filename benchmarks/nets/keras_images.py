"""Ports of Keras' classifiers of images."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import (
    GELU,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool2d,
    Module,
    Parameter,
    ReLU,
    ReLU6,
    Sequential,
)
from torch.nn.functional import avg_pool2d, elu, max_pool2d, relu, silu

from nets.common import Net, Port, bn, conv, conv0, image, norm, numbers, pooled


def conv_bn() -> Net:
    """Convolutions with batch normalisation, a dense layer behind the flattened image."""

    def compute(s, x):
        for k, f in enumerate(s.features):
            x = f(x) if k > 1 else max_pool2d(f(x), 2)
        return s.classifier(s.hidden(x.flatten(1)).relu())

    features = [Sequential(conv(i, o), bn(o), ReLU()) for i, o in pairwise((3, 8, 16, 16, 24))]
    return Net(compute, features=features, hidden=Linear(24 * 16, 32), classifier=Linear(32, 10))


def separable(i: int, o: int) -> Net:
    return Net(lambda s, x: s.pointwise(s.depthwise(x)), depthwise=conv0(i, i, groups=i), pointwise=conv0(i, o, 1))


def mini_block(i: int, o: int) -> Net:
    def compute(s, x):
        y = s.bn2(s.sep2(s.bn1(s.sep1(x)).relu()))
        return max_pool2d(y, 2) + s.shortcut_bn(s.shortcut(x))

    return Net(
        compute, sep1=separable(i, o), bn1=bn(o), sep2=separable(o, o), bn2=bn(o),
        shortcut=conv0(i, o, 1, 2), shortcut_bn=bn(o),
    )  # fmt: skip


def mini_xception() -> Net:
    """Separable convolutions in residual blocks."""

    def compute(s, x):
        x = s.bn2(s.stem2(s.bn1(s.stem1(x)).relu())).relu()
        return pooled(s.head(s.blocks(x)))

    return Net(
        compute, stem1=conv0(1, 8, padding=0), bn1=bn(8), stem2=conv0(8, 8, padding=0), bn2=bn(8),
        blocks=[mini_block(8, 16), mini_block(16, 32), mini_block(32, 64)], head=conv(64, 7),
    )  # fmt: skip


def bottleneck(i: int, w: int, stride: int = 1) -> Net:
    def compute(s, x):
        y = s.bn2(s.conv2(s.bn1(s.conv1(x)).relu())).relu()
        return (s.bn3(s.conv3(y)) + (s.downsample(x) if s.downsample else x)).relu()

    return Net(
        compute, conv1=conv(i, w, 1, stride), bn1=bn(w), conv2=conv(w, w), bn2=bn(w), conv3=conv(w, 4 * w, 1),
        bn3=bn(4 * w), downsample=[conv(i, 4 * w, 1, stride), bn(4 * w)] if i != 4 * w else None,
    )  # fmt: skip


def resnet() -> Net:
    """The names of torchvision's ResNet."""

    def compute(s, x):
        x = s.bn1(s.conv1(x)).relu()
        return s.fc(pooled(s.layer3(s.layer2(s.layer1(x)))))

    def layer(i: int, w: int, stride: int) -> list[Net]:
        return [bottleneck(i, w, stride), bottleneck(4 * w, w), bottleneck(4 * w, w)]

    return Net(
        compute, conv1=conv(3, 8, 7, 2), bn1=bn(8), layer1=layer(8, 8, 1), layer2=layer(32, 16, 2),
        layer3=layer(64, 32, 2), fc=Linear(128, 10),
    )  # fmt: skip


def activated(i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> Sequential:
    return Sequential(conv0(i, o, k, stride, groups=groups), bn(o), ReLU6())


def inverted(i: int, o: int, stride: int, expand: int) -> Net:
    wide, same = i * expand, stride == 1 and i == o
    layers = [activated(i, wide, 1)] if expand > 1 else []
    project = conv0(wide, o, 1)
    layers += [activated(wide, wide, 3, stride, wide), project, bn(o)]
    return Net(lambda s, x: x + s.conv(x) if same else s.conv(x), conv=layers)


def mobilenet() -> Net:
    """The names of torchvision's MobileNetV2."""
    shapes = [(8, 8, 1, 1), (8, 12, 2, 6), (12, 12, 1, 6), (12, 16, 2, 6), (16, 16, 1, 6), (16, 16, 1, 6)]
    return Net(
        lambda s, x: s.classifier(pooled(s.features(x))),
        features=[activated(3, 8, 3, 2), *(inverted(*x) for x in shapes), activated(16, 48, 1)],
        classifier=[Dropout(0.2), Linear(48, 10)],
    )


def excited(i: int, o: int, k: int, stride: int, expand: int) -> Net:
    wide, same = i * expand, stride == 1 and i == o

    def compute(s, x):
        y = silu(s._bn0(s._expand_conv(x))) if expand > 1 else x
        y = silu(s._bn1(s._depthwise_conv(y)))
        y = y * s._se_expand(silu(s._se_reduce(y.mean((2, 3), True)))).sigmoid()
        y = s._bn2(s._project_conv(y))
        return x + y if same else y

    first = {"_expand_conv": conv0(i, wide, 1), "_bn0": bn(wide)} if expand > 1 else {}
    return Net(
        compute, **first, _depthwise_conv=conv0(wide, wide, k, stride, groups=wide), _bn1=bn(wide),
        _se_reduce=conv(wide, i // 4, 1), _se_expand=conv(i // 4, wide, 1), _project_conv=conv0(wide, o, 1), _bn2=bn(o),
    )  # fmt: skip


def efficientnet() -> Net:
    """The names of the best-known port of EfficientNet."""

    def compute(s, x):
        x = s._blocks(silu(s._bn0(s._conv_stem(x))))
        return s._fc(pooled(silu(s._bn1(s._conv_head(x)))))

    shapes = [(8, 8, 3, 1, 1), (8, 12, 3, 2, 6), (12, 12, 3, 1, 6), (12, 16, 5, 2, 6), (16, 16, 5, 1, 6)]
    return Net(
        compute, _conv_stem=conv0(3, 8, 3, 2), _bn0=bn(8), _blocks=[excited(*x) for x in shapes],
        _conv_head=conv0(16, 64, 1), _bn1=bn(64), _fc=Linear(64, 10),
    )  # fmt: skip


def vgg() -> Net:
    """The names of torchvision's VGG: numbers in a Sequential."""
    layers: list[Module] = []
    last = 3
    for w in (8, 8, 0, 16, 16, 0, 32, 32, 32, 0):
        layers += [conv(last, w), ReLU()] if w else [MaxPool2d(2)]
        last = w or last
    classifier = [Linear(128, 48), ReLU(), Dropout(), Linear(48, 48), ReLU(), Dropout()]
    return Net(
        lambda s, x: s.classifier(s.features(x).flatten(1)),
        features=layers,
        classifier=[*classifier, Linear(48, 10)],
    )


def eegnet() -> Net:
    def compute(s, x):
        x = avg_pool2d(elu(s.spatial(s.temporal(x))), (1, 4))
        return s.classify(avg_pool2d(elu(s.separable(x)), (1, 8)).flatten(1))

    same = {"padding": "same", "bias": False}
    return Net(
        compute, temporal=[Conv2d(1, 8, (1, 16), **same), bn(8)],
        spatial=[Conv2d(8, 16, (6, 1), groups=8, bias=False), bn(16)],
        separable=[Conv2d(16, 16, (1, 8), groups=16, **same), conv0(16, 16, 1), bn(16)], classify=Linear(32, 4),
    )  # fmt: skip


BLOCKS, GROWTH = (3, 4), 8


def dense_layer(i: int) -> Net:
    def compute(s, x):
        y = s.conv1(s.norm1(x).relu())
        return torch.cat([x, s.conv2(s.norm2(y).relu())], 1)

    return Net(
        compute, norm1=BatchNorm2d(i), conv1=conv0(i, 4 * GROWTH, 1), norm2=BatchNorm2d(4 * GROWTH),
        conv2=conv0(4 * GROWTH, GROWTH),
    )  # fmt: skip


def densenet() -> Net:
    width = 16
    parts: dict[str, Module] = {"conv0": conv0(3, width, 7, 2), "norm0": BatchNorm2d(width), "relu0": ReLU()}
    for k, count in enumerate(BLOCKS):
        layers = {f"denselayer{j + 1}": dense_layer(width + j * GROWTH) for j in range(count)}
        parts[f"denseblock{k + 1}"] = Sequential(OrderedDict(layers))
        width += count * GROWTH
        if k + 1 < len(BLOCKS):
            turn = conv0(width, width // 2, 1)
            parts[f"transition{k + 1}"] = Sequential(OrderedDict(norm=BatchNorm2d(width), relu=ReLU(), conv=turn))
            width //= 2
    features = Sequential(OrderedDict(parts, norm5=BatchNorm2d(width)))
    return Net(lambda s, x: s.classifier(pooled(s.features(x).relu())), features=features, classifier=Linear(width, 10))


def turned(*order: int) -> Net:
    return Net(lambda s, x: x.permute(order))


class LayerNorm2d(LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def next_block(width: int) -> Net:
    scale = Parameter(torch.rand(width, 1, 1))
    depthwise = conv(width, width, 7, groups=width)
    layers = [Linear(width, 4 * width), GELU(), Linear(4 * width, width)]
    return Net(
        lambda s, x: x + s.layer_scale * s.block(x), layer_scale=scale,
        block=[depthwise, turned(0, 2, 3, 1), norm(width), *layers, turned(0, 3, 1, 2)],
    )  # fmt: skip


def convnext() -> Net:
    return Net(
        lambda s, x: s.classifier(s.features(x).mean((2, 3), keepdim=True)),
        features=[
            Sequential(Conv2d(3, 16, 4, 4), LayerNorm2d(16, 1e-6)),
            Sequential(next_block(16), next_block(16)),
            Sequential(LayerNorm2d(16, 1e-6), Conv2d(16, 24, 2, 2)),
            Sequential(next_block(24), next_block(24), next_block(24)),
        ],
        classifier=[LayerNorm2d(24, 1e-6), Flatten(1), Linear(24, 10)],
    )


def fire(i: int, s: int, e: int) -> Net:
    def compute(net, x):
        x = relu(net.s1(x))
        return torch.cat([relu(net.e1(x)), relu(net.e3(x))], 1)

    return Net(compute, e3=conv(s, e), e1=conv(s, e, 1), s1=conv(i, s, 1))


def squeeze() -> Net:
    """The classifier is defined first, and the fires from the last to the first."""
    return Net(
        lambda s, x: pooled(s.logits(s.d(s.c(s.b(s.a(relu(s.first(x)))))))), logits=conv(48, 10, 1),
        d=fire(48, 8, 24), c=fire(32, 8, 24), b=fire(32, 8, 16), a=fire(16, 8, 16), first=conv(3, 16, 3, 2, padding=0),
    )  # fmt: skip


PORTS = {
    "conv-bn": Port("Keras conv net, batch norm, dense behind the image", conv_bn, image(3, 16)),
    "mini-x": Port("Keras separable residual net (mini-XCEPTION)", mini_xception, image(1, 36)),
    "resnet": Port("Keras ResNet50 into torchvision's names", resnet, image(3, 32)),
    "mobilenet": Port("Keras MobileNetV2 into torchvision's names", mobilenet, image(3, 32)),
    "efficientnet": Port("Keras EfficientNet, squeeze and excitation", efficientnet, image(3, 32)),
    "vgg": Port("Keras VGG16 into torchvision's names, flattened", vgg, image(3, 16)),
    "eegnet": Port("Keras EEGNet, depth multiplier, flattened", eegnet, numbers(2, 1, 6, 64)),
    "densenet": Port("Keras DenseNet into torchvision's names", densenet, image(3, 32)),
    "convnext": Port("Keras ConvNeXt into torchvision's names", convnext, image(3, 32)),
    "squeeze": Port("Keras SqueezeNet, defined backwards", squeeze, image(3, 32)),
}
