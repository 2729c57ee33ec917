"""Keras Applications into real classes of torchvision and timm, freshly initialised, with rules that nobody edited.

Each model is built by Keras without weights, all its variables are drawn at random, and it is saved as `.keras`.
`match` sees that file and the class only (names: no outputs; check: the outputs for two images, as with `--check`); the
module is loaded with its rules, and its outputs are compared with those of Keras, relative to the largest. The settings
that no weight holds are those of keras_applications.py. Needs keras, tensorflow, torch, torchvision and timm.

    python benchmarks/match_applications.py [MODEL ...]     a Markdown table: docs/match.md
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

try:
    import keras_applications as applications
    import torch
except ImportError as e:
    raise SystemExit(f"skipped: {e}") from None

import ckptconv
from ckptconv.torch import load_into

MODELS = (
    "ResNet50", "MobileNetV2", "MobileNetV3Small", "Xception", "EfficientNetB0", "EfficientNetV2B0", "ConvNeXtTiny",
)  # fmt: skip
SAME = 1e-4  # of the largest output


def fresh(name: str) -> Any:
    torch.manual_seed(1)
    return applications.CASES[name].build().eval()


def difference(name: str, found: ckptconv.Match, it: applications.Original) -> tuple[float, int]:
    """The largest difference of the outputs of a fresh module with these rules; what stayed at its initial value."""
    rules = it.file.with_suffix(".toml")
    rules.write_text(found.rules)
    module = fresh(name)
    loaded = load_into(module, it.file, converter=str(rules), strict=False)
    missing = [n for n in loaded.missing if not n.endswith("num_batches_tracked")]
    return applications.away(module, it), len(missing)


def row(name: str, folder: Path) -> str:
    it = applications.original(name, folder)
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
    print(applications.versions())


if __name__ == "__main__":
    main()
