"""A missing layer, heads that do not fit the shapes, and models of another size are refused, with the remedy."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint, Note
from ckptconv.errors import CkptError
from ckptconv.rules import library
from ckptconv.rules.apply import apply

RULES = """
[let]
layers = ["enc/layer_{l}", "layers.{l}"]
[params]
layers = { config = "num_layers", help = "the number of layers" }
heads = { of = "{x...}/q", axis = -2, config = "heads", help = "heads" }
groups = { of = "{x...}/k", axis = -2, config = "groups", help = "groups of heads" }
size = { config = "size", help = "the size of a head" }
[where]
l = "int"
[count]
"<layers>" = "layers"
[axes]
k = "size"
[[refuse]]
equal = ["heads", "groups"]
why = "take the other"
[[rule]]
from = "<layers>/q"
to = "<layers>.q"
layout = "e h k -> (h k) e"
sizes = { h = "heads" }
[[rule]]
from = "<layers>/k"
to = "<layers>.k"
layout = "e h k -> (h k) e"
sizes = { h = "groups" }
"""
STACKED = RULES.replace('"enc/layer_{l}", "layers.{l}"', '"enc", "layers.{l*}"').replace('"e h k -', '"l e h k -')
FROM_ONE = RULES.replace('l = "int"', 'l = "int-1"')
SHAPES = {"q": (8, 4, 2), "k": (8, 2, 2)}
BACK = {"q": (8, 8), "k": (4, 8)}


def layers(numbers: Collection[int], **more: Any) -> Checkpoint:
    names = {f"enc/layer_{i}/{n}": shape for i in numbers for n, shape in SHAPES.items()}
    return in_memory({n: np.ones(shape, "f4") for n, shape in names.items()}, **more)


def torch_layers(numbers: Collection[int], **more: Any) -> Checkpoint:
    names = {f"layers.{i}.{n}": shape for i in numbers for n, shape in BACK.items()}
    return in_memory({n: np.ones(shape, "f4") for n, shape in names.items()}, **more)


def left(*numbers: int) -> tuple[Note, ...]:
    return (Note("dropped", "not selected", tuple(f"enc/layer_{i}/{n}" for i in numbers for n in SHAPES)),)


HEADS = {"heads": 4, "groups": 2}
BOTH = {"heads": 4, "groups": 2, "layers": 3}
RIGHT: dict[str, tuple[str, Checkpoint, dict[str, int]]] = {
    "all": (RULES, layers(range(12)), {}),
    "more than given": (RULES, layers(range(4)), {"layers": 3}),
    "removed on purpose": (RULES, layers((0, 1, 3)), {"layers": 3}),
    "not selected": (RULES, layers((0, 3), notes=left(1, 2)), {}),
    "a part": (RULES, layers((5, 6, 9), notes=(Note("skipped", "not all of the model: it lacks a shard"),)), {}),
    "other names": (
        RULES.replace('"enc/layer_{l}"', '"enc/{l}"').replace('[where]\nl = "int"\n', ""),
        in_memory(dict.fromkeys(("enc/0/q", "enc/norm/q"), np.ones(SHAPES["q"], "f4"))),
        {},
    ),
    "back, stacked": (f"inverse {STACKED}", torch_layers(range(3)), BOTH),
    "back, stacked by the thousand": (f"inverse {STACKED}", torch_layers(range(1200)), HEADS),
}
WRONG: dict[str, tuple[str, Checkpoint, dict[str, int], str]] = {
    "in the middle": (
        RULES, layers((0, 1, 3)), {},
        "the source is not whole; give all of its files:\n"
        "  enc/layer_{l}: 2 is missing; if that is right, param='layers=3'",
    ),
    "the first, from 1": (FROM_ONE, layers((2, 3)), {}, ": 1 is missing"),
    "at the end": (RULES, layers((0, 1)), {"layers": 4}, ": 2, 3 are missing, where layers=4"),
    "not selected, and missing": (RULES, layers((0, 3), notes=left(1)), {}, ": 2 is missing"),
    "a huge number": (RULES, layers((0, 999999999)), {}, ": 1, 2, 3, 4, 5, 6, 7, 8, ... are missing"),
    "all shards": (
        RULES, layers((0, 2), urls=("/x/m-00001-of-00002.pt", "/x/m-00002-of-00002.pt")), {}, "1 is missing"
    ),
    "back, stacked": (f"inverse {STACKED}", torch_layers((0, 2)), HEADS, r"layers\.\{l\}: 1 is missing"),
    "back, stacked, at the end": (f"inverse {STACKED}", torch_layers((0, 1)), BOTH, "2 is missing, where layers=3"),
    "heads that divide": (
        f"inverse {RULES}", torch_layers((0,)), {"heads": 2, "groups": 1, "size": 2},
        r"size would be 4 in layers.0.q \[8, 8\], with heads=2, groups=1, size=2",
    ),
    "no parameter": (
        RULES.replace('h = "heads"', 'h = "hands"'), layers((0,)), {},
        "the converter counted refers to 'hands', which is not one of its parameters",
    ),
    "another size": (
        f"inverse {RULES}", torch_layers((0,)), {"heads": 2, "groups": 2},
        "is not for this model:\n  heads and groups are 2: take the other",
    ),
}  # fmt: skip


def converted(rules: str, source: Checkpoint, params: dict[str, int]) -> Checkpoint:
    made = library.parse(rules.removeprefix("inverse "), "counted")
    assert not [text for text in library.lint(made) if "'hands'" not in text]
    return apply(made.inverse if rules.startswith("inverse") else made, source, params)


@pytest.mark.parametrize("case", RIGHT)
def test_whole(case: str) -> None:
    assert converted(*RIGHT[case])


@pytest.mark.parametrize("case", WRONG)
def test_not_whole(case: str) -> None:
    rules, source, params, words = WRONG[case]
    with pytest.raises(CkptError, match=words.replace("{l}", r"\{l\}") if "\\" not in words else words):
        converted(rules, source, params)


def test_config_says_how_many_there_are(tmp_path: Path) -> None:
    file, rules = tmp_path / "m.npz", tmp_path / "rules.toml"
    rules.write_text(RULES)
    np.savez(file, **{f"enc/layer_{i}/{n}": np.ones(shape, "f4") for i in range(3) for n, shape in SHAPES.items()})
    (tmp_path / "config.json").write_text(json.dumps({"num_layers": 4}))
    with pytest.raises(CkptError, match="3 is missing, where layers=4"):
        ckptconv.convert(file, tmp_path / "no.npz", converter=rules)
    (tmp_path / "config.json").write_text(json.dumps({"num_layers": 3}))
    ckptconv.convert(file, tmp_path / "out.npz", converter=rules)
    assert len(ckptconv.open(tmp_path / "out.npz")) == 6
