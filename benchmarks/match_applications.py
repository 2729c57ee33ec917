"""Keras Applications into real classes of torchvision and timm, freshly initialised, with rules that nobody edited.

Each model is built by Keras without weights, all its variables are drawn at random, and it is saved as `.keras`.
`match` sees that file and the class only (names: no outputs; check: the outputs for two images, as with `--check`); the
module is loaded with its rules, and its outputs are compared with those of Keras, relative to the largest. The settings
that no weight holds are those of keras_applications.py. Needs keras, tensorflow, torch, torchvision and timm.

    python benchmarks/match_applications.py [MODEL ...]     a Markdown table: docs/match.md
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

try:
    import keras
    import keras_applications as applications
    import timm
    import torch
    import torchvision
except ImportError as e:
    raise SystemExit(f"skipped: {e}") from None

import ckptconv
from ckptconv.torch import load_into

MODELS = (
    "ResNet50", "MobileNetV2", "MobileNetV3Small", "Xception", "EfficientNetB0", "EfficientNetV2B0", "ConvNeXtTiny",
)  # fmt: skip
SAME = 1e-4  # of the largest output
Array = np.ndarray[Any, Any]


class Original(NamedTuple):
    """A saved model, an image as torch has it, and what Keras computes for it."""

    file: Path
    inputs: Array
    outputs: Array


def original(name: str, folder: Path) -> Original:
    case = applications.CASES[name]
    keras.backend.clear_session()
    shape = (case.size, case.size, 3)
    build = getattr(keras.applications, name)
    model = build(weights=None, input_shape=shape, classes=1000, classifier_activation=None, **case.options)
    applications.fill(model)
    x = np.random.default_rng(2).normal(size=(2, *shape)).astype("f4")
    outputs = np.asarray(model(x * np.float32(case.scale), training=False))
    file = folder / f"{name}.keras"
    model.save(file)
    del model
    gc.collect()
    return Original(file, np.ascontiguousarray(x.transpose(0, 3, 1, 2)), outputs)


def fresh(name: str) -> Any:
    torch.manual_seed(1)
    return applications.CASES[name].build().eval()


def difference(name: str, found: ckptconv.Match, it: Original) -> tuple[float, int]:
    """The largest difference of the outputs of a fresh module with these rules; what stayed at its initial value."""
    rules = it.file.with_suffix(".toml")
    rules.write_text(found.rules)
    module = fresh(name)
    loaded = load_into(module, it.file, converter=str(rules), strict=False)
    with torch.no_grad():
        got = module(torch.from_numpy(it.inputs)).numpy()
    missing = [n for n in loaded.missing if not n.endswith("num_batches_tracked")]
    return float(np.abs(got - it.outputs).max() / np.abs(it.outputs).max()), len(missing)


def row(name: str, folder: Path) -> str:
    it = original(name, folder)
    named = ckptconv.match(it.file, fresh(name), values=False)
    checked = ckptconv.match(it.file, fresh(name), values=False, check=({"x": it.inputs}, {"output": it.outputs}))
    (by_names, left), (after, _) = (difference(name, found, it) for found in (named, checked))
    it.file.unlink()
    pairs = checked.proposal.pairs
    total, proved = (sum(len(p.targets) + len(p.fills) for p in pairs if p.evidence in e) for e in ALL)
    good = "" if max(by_names, after) < SAME and not left and checked.proof and checked.proof.found.same else " **no**"
    title = applications.CASES[name].torch_name
    return f"| {name} | {title} | {total} | {by_names:.1e} | {after:.1e}{good} | {proved} |"


ALL = (("names", "shape", "equal", "values", "proved"), ("proved",))


def main() -> None:
    print("| Keras | class | tensors | difference by names alone | after `--check` | of these proved |")
    print("|---|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        for name in sys.argv[1:] or MODELS:
            start = time.time()
            print(row(name, Path(folder)), flush=True)
            print(f"{name}: {time.time() - start:.0f} s", file=sys.stderr)
    print(f"\nkeras {keras.__version__}, torchvision {torchvision.__version__}, timm {timm.__version__}", end="")
    print(f", torch {torch.__version__}.")


if __name__ == "__main__":
    main()
