"""Keras Applications against torchvision and timm: the same images, the same outputs, after `ckptconv -c keras-...`.

Each model is built by Keras without weights, all its variables are drawn at random (batch-norm statistics too), it is
saved as `.keras`, converted, loaded strictly into the torch model under the settings that the converter's notes name,
and both see the same random images. Needs keras, tensorflow, torch, torchvision and timm.

    python benchmarks/keras_applications.py [--names] [MODEL ...]     a Markdown table: docs/keras-applications.md
    --names    also write names and shapes to fixtures/names/applications, for CI
    --match    a table of docs/match.md: into freshly initialised classes, with rules that nobody edited. `match` sees
               the saved file and the class only (names: no outputs; check: the outputs for two images, as --check does)
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional as F  # noqa: N812

import ckptconv
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.torch import load_into

NAMES = Path(__file__).parents[1] / "fixtures" / "names" / "applications"
tv = torchvision.models
A = keras.applications


# --- settings that weights do not hold --------------------------------------------------------------------------


def eps(model: Any, value: float) -> Any:
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.eps = value
    return model


def same_padding(model: Any) -> Any:
    """Pad as TensorFlow's SAME does wherever a convolution or pooling halves images and pads at all."""

    def pad(x: Any, m: Any, value: float) -> Any:
        k, s = (v if isinstance(v, tuple) else (v, v) for v in (m.kernel_size, m.stride))
        need = [max((-(-n // t) - 1) * t + w - n, 0) for n, w, t in zip(x.shape[-2:], k, s, strict=True)]
        return F.pad(x, (need[1] // 2, need[1] - need[1] // 2, need[0] // 2, need[0] - need[0] // 2), value=value)

    for m in model.modules():
        if isinstance(m, nn.Conv2d) and m.stride != (1, 1) and m.padding != (0, 0):
            m.padding = (0, 0)
            m.forward = types.MethodType(lambda m, x: m._conv_forward(pad(x, m, 0.0), m.weight, m.bias), m)
        if isinstance(m, nn.MaxPool2d) and m.padding:
            m.padding = 0
            m.forward = types.MethodType(lambda m, x: F.max_pool2d(pad(x, m, -torch.inf), m.kernel_size, m.stride), m)
    return model


def with_biases(model: Any, names: Callable[[str], bool]) -> Any:
    for name, m in model.named_modules():
        if isinstance(m, nn.Conv2d) and m.bias is None and names(name):
            m.bias = nn.Parameter(torch.zeros(m.out_channels))
    return model


def resnet(model: Any) -> Any:
    for name, m in model.named_modules():
        if name.endswith(".0") and name.startswith(("layer2", "layer3", "layer4")) and hasattr(m, "conv1"):
            m.conv1.stride, m.conv2.stride = (2, 2), (1, 1)
    return eps(with_biases(model, lambda name: True), 1.001e-5)


def resnet_v2(model: Any) -> Any:
    with_biases(model, lambda n: n.endswith(("stem.conv", "conv3", "downsample.conv")))
    model.stem.pool = nn.Sequential(nn.ConstantPad2d(1, 0.0), nn.MaxPool2d(3, 2))

    def forward(block: Any, x: Any) -> Any:
        y = block.norm1(x)
        stride = block.conv2.stride[0]
        shortcut = block.downsample(y) if block.downsample is not None else F.max_pool2d(x, 1, stride)
        return block.conv3(block.norm3(block.conv2(block.norm2(block.conv1(y))))) + shortcut

    for i, stage in enumerate(model.stages):
        for k, block in enumerate(stage.blocks):
            last = k == len(stage.blocks) - 1 and i < 3
            block.conv2.stride = (2, 2) if last else (1, 1)
            if block.downsample is not None:
                block.downsample.conv.stride = (1, 1)
            block.forward = types.MethodType(forward, block)
    return eps(model, 1.001e-5)


def average_pooling(model: Any) -> Any:
    """Leave padding out of averages, as Keras does."""
    for m in model.modules():
        if isinstance(m, nn.AvgPool2d):
            m.count_include_pad = False
    real = F.avg_pool2d

    def pooled(
        x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, **_: Any
    ) -> Any:
        return real(x, kernel_size, stride, padding, ceil_mode, count_include_pad=False)

    tv.inception.F.avg_pool2d = pooled
    return model


NONE: dict[str, Any] = {}


class Case(NamedTuple):
    """One model: how torch builds and adapts it, and how Keras does; images have this size, and this scale there."""

    converter: str
    torch_name: str  # its library, and its name there
    adapt: Callable[[Any], Any] = lambda model: model
    size: int = 96
    made: dict[str, Any] = NONE  # options of the library
    options: dict[str, Any] = NONE  # options of Keras
    scale: float = 1.0

    def build(self) -> Any:
        library_, name = self.torch_name.split()
        if library_ == "timm":
            return self.adapt(timm.create_model(name, pretrained=False, **self.made))
        return self.adapt(getattr(tv, name)(weights=None, **self.made))


def epsilon(value: float) -> Callable[[Any], Any]:
    return lambda model: eps(model, value)


def same(model: Any) -> Any:
    return same_padding(eps(model, 1e-3))


RAW = {"include_preprocessing": False}
INCEPTION = {"init_weights": False, "aux_logits": False, "transform_input": False}
DEEP, B = (50, 101, 152), "keras-efficientnet"
FAMILIES: list[tuple[str, Sequence[object], Case]] = [
    ("ResNet{}", DEEP, Case("keras-resnet", "torchvision resnet{}", resnet)),
    ("ResNet{}V2", DEEP, Case("keras-resnet-v2", "timm resnetv2_{}", resnet_v2)),
    ("VGG{}", (16, 19), Case("keras-vgg", "torchvision vgg{}", size=224)),
    ("DenseNet{}", (121, 169, 201), Case("keras-densenet", "torchvision densenet{}", epsilon(1.001e-5))),
    ("MobileNet{}", ("",), Case("keras-mobilenet-v1", "timm mobilenetv1_100", epsilon(1e-3), made={"pad_type": "same"},
                                options={"dropout": 0.0})),
    ("MobileNetV2{}", ("",), Case("keras-mobilenet-v2", "torchvision mobilenet_v2", same)),
    ("MobileNetV3{}", ("Small", "Large"), Case("keras-mobilenet-v3", "torchvision mobilenet_v3_{}", same_padding,
                                               options=RAW)),
    ("Xception{}", ("",), Case("keras-xception", "timm legacy_xception", same, 128)),
    ("InceptionV3{}", ("",), Case("keras-inception-v3", "torchvision inception_v3", average_pooling, 139, INCEPTION)),
    ("InceptionResNetV2{}", ("",), Case("keras-inception-resnet-v2", "timm inception_resnet_v2", average_pooling, 139)),
    ("EfficientNetB{}", range(8), Case(B, "timm tf_efficientnet_b{}", scale=255.0)),
    ("EfficientNetV2{}", ("B0", "B1", "B2", "B3", "S", "M", "L"), Case(f"{B}-v2", "timm tf_efficientnetv2_{}",
                                                                      options=RAW)),
    ("ConvNeXt{}", ("Tiny", "Small", "Base", "Large", "XLarge"), Case("keras-convnext", "timm convnext_{}",
                                                                     options=RAW)),
]  # fmt: skip
CASES = {
    name.format(size): case._replace(torch_name=case.torch_name.format(str(size).lower()))
    for name, sizes, case in FAMILIES
    for size in sizes
}


# --- the proof --------------------------------------------------------------------------------------------------


def fill(model: Any) -> None:
    """Random variables of a size that keeps activations near one."""
    rng = np.random.default_rng(1)
    for v in model.weights:
        shape = tuple(v.shape)
        if v.path.startswith("normalization") or "seed" in v.path:
            continue
        if v.path.endswith(("gamma", "moving_variance")):
            value = rng.uniform(0.5, 1.5, shape)
        elif len(shape) > 1:
            value = rng.normal(size=shape) * np.sqrt(2 / max(1, np.prod(shape[:-1])))
        else:
            value = rng.normal(size=shape) * 0.1
        v.assign(value.astype("f4"))


def spell(named: dict[str, Any]) -> str:
    return "".join(f"{n} {list(shape)}\n" for n, shape in named.items())


class Original(NamedTuple):
    """A saved model, images as torch has them, and what Keras computes for them."""

    file: Path
    inputs: np.ndarray[Any, Any]
    outputs: np.ndarray[Any, Any]


def original(name: str, folder: Path) -> Original:
    case = CASES[name]
    keras.backend.clear_session()
    shape = (case.size, case.size, 3)
    model = getattr(A, name)(weights=None, input_shape=shape, classes=1000, classifier_activation=None, **case.options)
    fill(model)
    x = np.random.default_rng(2).normal(size=(2, *shape)).astype("f4")
    outputs = np.asarray(model(x * np.float32(case.scale), training=False))
    file = folder / f"{name}.keras"
    model.save(file)
    del model
    gc.collect()
    return Original(file, np.ascontiguousarray(x.transpose(0, 3, 1, 2)), outputs)


def away(module: Any, it: Original) -> float:
    """The largest difference of the outputs, relative to the largest output."""
    with torch.no_grad():
        got = module(torch.from_numpy(it.inputs)).numpy()
    return float(np.abs(got - it.outputs).max() / np.abs(it.outputs).max())


def prove(name: str, folder: Path, write: bool) -> str:
    case, it = CASES[name], original(name, folder)
    before, there = ckptconv.open(it.file), library.load(case.converter)
    params = dict.fromkeys(there.params, case.size // 32)
    after = apply(there, before, params)
    back = apply(there.inverse, after, params if not there.one_way else None)
    gone = {n for note in after.notes if note.kind == "skipped" for n in note.names}
    weights = [n for n in before if not before[n].role and n not in gone]
    if sorted(back) != sorted(weights) or any(
        back[n].numpy().tobytes() != before[n].numpy().tobytes() for n in weights
    ):
        raise SystemExit(f"{name}: the way back does not restore {sorted(set(back) ^ set(weights))[:5]}")
    module = case.build().eval()
    state = {n: torch.from_numpy(t.numpy().copy()) for n, t in after.items()}
    wanted = {n: t for n, t in module.state_dict().items() if not n.endswith("num_batches_tracked")}
    if sorted(wanted) != sorted(state):
        raise SystemExit(f"{name}: {sorted(set(wanted) ^ set(state))[:8]}")
    module.load_state_dict(state | {n: t for n, t in module.state_dict().items() if n not in wanted})
    if write:
        made = case.torch_name.replace(" ", "-")
        (NAMES / f"keras-{name}.txt").write_text(spell({n: before[n].shape for n in weights}))
        (NAMES / f"{made}.txt").write_text(spell({n: tuple(t.shape) for n, t in wanted.items()}))
    it.file.unlink()
    error = away(module, it)
    count = sum(t.count for t in after.values()) / 1e6
    verdict = "" if error < 1e-4 else " **differs**"
    return f"| {name} | {case.torch_name} | `{case.converter}` | {len(after)} | {count:.1f} M | {error:.1e}{verdict} |"


# --- rules that match proposes --------------------------------------------------------------------------------

MODELS = (
    "ResNet50", "MobileNetV2", "MobileNetV3Small", "Xception", "EfficientNetB0", "EfficientNetV2B0", "ConvNeXtTiny",
)  # fmt: skip
SAME = 1e-4  # of the largest output


def fresh(name: str) -> Any:
    torch.manual_seed(1)
    return CASES[name].build().eval()


def difference(name: str, found: ckptconv.Match, it: Original) -> tuple[float, int]:
    """The largest difference of the outputs of a fresh module with these rules; what stayed at its initial value."""
    rules = it.file.with_suffix(".toml")
    rules.write_text(found.rules)
    module = fresh(name)
    loaded = load_into(module, it.file, converter=str(rules), strict=False)
    missing = [n for n in loaded.missing if not n.endswith("num_batches_tracked")]
    return away(module, it), len(missing)


def matched(name: str, folder: Path) -> str:
    it = original(name, folder)
    named = ckptconv.match(it.file, fresh(name), values=False)
    checked = ckptconv.match(it.file, fresh(name), values=False, check=({"x": it.inputs}, {"output": it.outputs}))
    (by_names, left), (after, _) = (difference(name, found, it) for found in (named, checked))
    it.file.unlink()
    pairs = checked.proposal.pairs
    total, proved = (sum(len(p.targets) + len(p.fills) for p in pairs if p.evidence in e) for e in ALL)
    good = "" if max(by_names, after) < SAME and not left and checked.proof and checked.proof.found.same else " **no**"
    title = CASES[name].torch_name
    return f"| {name} | {title} | {total} | {by_names:.1e} | {after:.1e}{good} | {proved} |"


ALL = (("names", "shape", "equal", "values", "proved"), ("proved",))


def main() -> None:
    words = {"--names", "--match"} & {*sys.argv}
    columns = "converter | tensors | numbers | largest difference, relative"
    do, names = partial(prove, write="--names" in words), list(CASES)
    if "--match" in words:
        columns = "tensors | difference by names alone | after `--check` | of these proved"
        do, names = matched, list(MODELS)
    print(f"| Keras | torch | {columns} |\n|{'---|' * (3 + columns.count('|'))}")
    with tempfile.TemporaryDirectory() as folder:
        for name in [a for a in sys.argv[1:] if a not in words] or names:
            start = time.time()
            try:
                print(do(name, Path(folder)), flush=True)
            except (Exception, SystemExit) as e:
                print(f"| {name} | failed: {type(e).__name__}: {str(e)[:600]} |", flush=True)
            print(f"{name}: {time.time() - start:.0f} s", file=sys.stderr)
    made = f"keras {keras.__version__}, torchvision {torchvision.__version__}, timm {timm.__version__}"
    print(f"\n{made}, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
