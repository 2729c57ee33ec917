"""How often `match` is right: published pairs of checkpoints, against what the shipped converters make of them.

    python benchmarks/match.py [--oracles DIR] [--real DIR]      a table: with values, and with names and shapes only
    python benchmarks/match.py --applications      Keras Applications into torchvision and timm
    python benchmarks/match.py --large 10000                     the time for so many tensors against as many
    python benchmarks/match.py --unrelated 8000                  the same, if no name says what another says

A pair is right if it has the converter's source and gives the converter's bits. "unmarked" are wrong pairs that are not
marked `assumed`; there must be none.
"""

from __future__ import annotations

import argparse
import random
import resource
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor, held
from ckptconv.dtypes import DTYPES
from ckptconv.errors import CkptError
from ckptconv.matching.pairs import Proposal
from ckptconv.matching.proposal import propose as match
from ckptconv.matching.rules import toml
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint

ROOT = Path(__file__).parents[1]
APPLICATIONS = [  # a model of Keras, the class of torchvision or timm, and the converter that outputs prove
    ("ResNet50", "torchvision-resnet50", "keras-resnet"),
    ("ResNet50V2", "timm-resnetv2_50", "keras-resnet-v2"),
    ("VGG16", "torchvision-vgg16", "keras-vgg"),
    ("DenseNet121", "torchvision-densenet121", "keras-densenet"),
    ("MobileNet", "timm-mobilenetv1_100", "keras-mobilenet-v1"),
    ("MobileNetV2", "torchvision-mobilenet_v2", "keras-mobilenet-v2"),
    ("MobileNetV3Small", "torchvision-mobilenet_v3_small", "keras-mobilenet-v3"),
    ("MobileNetV3Large", "torchvision-mobilenet_v3_large", "keras-mobilenet-v3"),
    ("Xception", "timm-legacy_xception", "keras-xception"),
    ("InceptionV3", "torchvision-inception_v3", "keras-inception-v3"),
    ("InceptionResNetV2", "timm-inception_resnet_v2", "keras-inception-resnet-v2"),
    ("EfficientNetB0", "timm-tf_efficientnet_b0", "keras-efficientnet"),
    ("EfficientNetV2B0", "timm-tf_efficientnetv2_b0", "keras-efficientnet-v2"),
    ("EfficientNetV2S", "timm-tf_efficientnetv2_s", "keras-efficientnet-v2"),
    ("ConvNeXtTiny", "timm-convnext_tiny", "keras-convnext"),
]
FILES = {"hf-tf": "tf_model.h5", "hf-flax": "flax_model.msgpack"}


class Score(NamedTuple):
    total: int  # targets that the converter gives
    right: int
    assumed: int  # of all pairs
    wrong: int
    unmarked: int  # wrong and not marked


class Case(NamedTuple):
    """A source, what another loader made of it, and the converter that is proved to do the same."""

    name: str
    source: Path
    target: Path
    converter: str

    def open(self) -> tuple[Checkpoint, Checkpoint]:
        return ckptconv.open(self.source, weights_only=True), ckptconv.open(self.target)


def cases(oracles: Path) -> Iterator[Case]:
    for kind, file in FILES.items():
        for folder in sorted((oracles / kind).glob("*/")):
            yield Case(f"{kind}/{folder.name}", folder / file, folder / "expected.safetensors", kind)
    known = library.names()
    for folder in sorted(f for f in (ROOT / "fixtures" / "originals").glob("*/") if f.name in known):
        name = f"originals/{folder.name}"
        yield Case(name, folder / "model.ckpt", folder / "expected.safetensors", folder.name)


def applied(found: Proposal, source: Checkpoint) -> Checkpoint:
    """What the proposed file makes of the source."""
    converter = library.parse(toml(found), "proposed")
    if problems := lint(converter):
        raise SystemExit("\n".join(problems))
    return apply(converter, source)


def score(found: Proposal, source: Checkpoint, truth: Checkpoint, lost: set[str], values: bool) -> Score:
    """Count against the truth; a tie counts where its first name does."""
    moved = truth.moved
    names = list(truth)
    if not values:  # that names share a tensor is not seen without values: once is right
        once = {moved[n].sources: n for n in reversed(names)}
        names = [n for n in names if once[moved[n].sources] == n or len(truth[n].parts) > 1]
    by_target = {t: p for p in found.pairs for t in p.targets}
    ties = {n: g[0] for g in found.ties for n in g[1:]}
    computed = {n for n in names if any(op.startswith("fill") for p in truth[n].parts for op in p.ops)}
    names = [n for n in names if n not in computed]
    got = applied(found, source)
    right = wrong = unmarked = total = 0
    seen = set()
    for name in names:
        if values and name in lost:
            continue
        total += 1
        pair = by_target.get(ties.get(name, name))
        if pair is None:
            continue
        seen.add(id(pair))
        have, want = got[name].numpy(), truth[name].numpy()
        same = have.shape == want.shape and have.tobytes() == want.tobytes()
        origin = values or set(pair.sources) <= set(moved[name].sources)
        right += same and origin
        wrong += not (same and origin)
        unmarked += not (same and origin) and pair.sure
    extra = [p for p in found.pairs if id(p) not in seen and not (set(p.targets) & set(truth))]
    wrong += len(extra) if not values else 0
    unmarked += sum(p.sure for p in extra) if not values else 0
    return Score(total, right, sum(not p.sure for p in found.pairs), wrong, unmarked)


def truth_of(source: Checkpoint, converter: str) -> Checkpoint:
    return apply(library.load(converter), source)


def lost_by(truth: Checkpoint, target: Checkpoint) -> set[str]:
    """Targets that the old loader did not load: it left other values there."""
    return {n for n, t in truth.items() if n in target and t.numpy().tobytes() != target[n].numpy().tobytes()}


def table(oracles: Path, only: str) -> bool:
    print(f"{'pair':42} by values   wrong  by names         % assumed wrong unmarked")
    good = True
    for case in cases(oracles):
        if only not in case.name:
            continue
        name, (a, b) = case.name, case.open()
        try:
            truth = truth_of(a, case.converter)
        except CkptError as e:  # it asks for a parameter
            print(f"{name:44} {e.message.splitlines()[0]}")
            continue
        lost = lost_by(truth, b)
        v = score(match(a, b), a, truth, lost, True)
        n = score(match(a, b, values=False), a, truth, lost, False)
        share = 100 * n.right / n.total
        good &= v.right == v.total and not v.unmarked and share >= 95 and not n.unmarked
        flag = "" if v.right == v.total and share >= 95 and not n.unmarked else "  <--"
        print(
            f"{name:42} {v.right:4} of {v.total:3} {v.wrong:5}  {n.right:4} of {n.total:3} {share:5.1f} {n.assumed:7} "
            f"{n.wrong:5} {n.unmarked:8}{flag}"
        )
    return good


def spelled(name: str) -> Checkpoint:
    """The names and shapes of a published model, without values."""
    lines = (ROOT / "fixtures" / "names" / "applications" / f"{name}.txt").read_text().splitlines()
    split = ((n, shape.rstrip("]")) for n, _, shape in (line.rpartition(" [") for line in lines))
    shapes = {n: tuple(int(x) for x in shape.split(",") if x) for n, shape in split}
    return Checkpoint({n: Tensor(n, DTYPES["float32"], shape, ()) for n, shape in shapes.items()})


def application(keras: str, target: str, converter: str) -> Score:
    """Count the pairs that have the sources of the shipped converter, which outputs prove; orders of axes aside."""
    a, b = spelled(f"keras-{keras}"), spelled(target)
    there = library.load(converter)
    truth = apply(there, a, dict.fromkeys(there.params, 7 if keras.startswith("VGG") else 3)).moved
    found = match(a, b, values=False)
    by_target = {t: p for p in found.pairs for t in (*p.targets, *(n for n, _ in p.fills))}
    same = {n: set(p.sources) == set(truth[n].sources) for n, p in by_target.items()}
    unmarked = sum(not good and by_target[n].sure for n, good in same.items())
    return Score(
        len(b), sum(same.values()), sum(not p.sure for p in found.pairs), len(same) - sum(same.values()), unmarked
    )


def large(count: int) -> None:
    """So many tensors of few shapes, half of them under names that say little."""
    rng = np.random.default_rng(0)
    for title, values in (("names and shapes", False), ("values", True)):
        a, b = {}, {}
        for i in range(count // 4):
            x = rng.normal(size=(16, 32)).astype("f4")
            y = rng.normal(size=(32,)).astype("f4")
            for p, q, m in (("q", "query", x), ("k", "key", x + 1)):
                a[f"net/block_{i}/{p}/kernel"] = m
                b[f"model.layers.{i}.{q}_proj.weight"] = m.T.copy()
            for p, q, m in (("ln/gamma", "norm.weight", y), ("ln/beta", "norm.bias", y + 1)):
                a[f"net/block_{i}/{p}"] = m
                b[f"model.layers.{i}.{q}"] = m
        sides = [Checkpoint({n: held(n, m) for n, m in side.items()}) for side in (a, b)]
        began = time.perf_counter()
        found = match(*sides, values=values, workers=2)
        rules = toml(found).count("[[rule]]")
        told(f"{len(a)} x {len(b)}, by {title}", found, time.perf_counter() - began, f", {rules} rules")


def told(title: str, found: Proposal, seconds: float, more: str = "") -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{title}: {len(found.pairs)} pairs{more}, {seconds:.1f} s, peak {peak:.0f} MB", flush=True)


def unrelated(count: int) -> None:
    """So many tensors against as many whose names are random letters: the least processor time of three."""
    shapes: dict[str, Callable[[random.Random], tuple[int, ...]]] = {
        "one shape": lambda _: (8, 8),
        "four shapes": lambda r: r.choice([(16, 32), (32,), (3, 3, 16, 32), (64, 64)]),
        "4,096 shapes, numbers in the names": lambda r: (r.randint(1, 64), r.randint(1, 64)),
    }
    for title, shape in shapes.items():
        r = random.Random(1)

        def word(r: random.Random = r, digits: bool = "numbers" in title) -> str:
            letters = "".join(r.choices(string.ascii_lowercase, k=r.randint(3, 9)))
            return f"{letters}{r.randint(0, 99)}" if digits else letters

        sides = []
        for mark in "/.":
            names = (mark.join(word() for _ in range(3)) for _ in range(count))
            sides.append(Checkpoint({n: Tensor(n, DTYPES["float32"], shape(r), ()) for n in names}))
        took = []
        for _ in range(3):
            began = time.process_time()
            found = match(*sides, values=False)
            took.append(time.process_time() - began)
        told(f"{count} x {count}, {title}", found, min(took))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oracles", type=Path, default=ROOT.parent / "shared" / "oracles")
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--unrelated", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--applications", action="store_true")
    args = parser.parse_args()
    if args.large:
        large(args.large)
    elif args.unrelated:
        unrelated(args.unrelated)
    elif args.applications:
        print("| Keras | class | right | wrong, not marked |\n|---|---|---|---|")
        for case in APPLICATIONS:
            row = application(*case)
            library_, _, name = case[1].partition("-")
            print(f"| {case[0]} | {library_} {name} | {row.right} of {row.total} | {row.unmarked} |", flush=True)
    else:
        raise SystemExit(not table(args.oracles, args.only))
