"""Blocks that repeat, and what speaks for a pair of modules besides their words."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import examples

from ckptconv.checkpoint import held
from ckptconv.matching import blocks, surroundings
from ckptconv.matching.blocks import Aligned, aligned, companions, prefixes, within
from ckptconv.matching.side import Side
from ckptconv.matching.surroundings import Near, beside
from ckptconv.matching.units import Unit, natural, units

pytest.importorskip("scipy", reason="matching by names is an extra")

PREFIXES = {
    "layer1.0.conv1": ["layer1", "layer1.0"],  # the last number is the module's own
    "block2a_expand_conv": ["block2a"],
    "block2ab_expand": ["block2"],
    "conv2_block1_1_conv/conv2_block1_1_conv": ["conv2", "conv2_block1", "conv2_block1_1"],
    "enc/layer_3/x": ["enc/layer_3"],
    "conv2d_3": [],
    "Conv1D_7/x": ["Conv1D_7"],
    "conv4d_3/x": ["conv4d", "conv4d_3"],
    "a/a/b": [],
    "net.3": [],
    "aa/a1/a1/x": ["aa/a1"],
    "blocks.1.1.conv": ["blocks.1", "blocks.1.1"],  # the same number twice is two numbers
}


@pytest.mark.parametrize("home", PREFIXES)
def test_the_blocks_that_hold_a_module(home: str) -> None:
    assert [*prefixes(home)] == PREFIXES[home]


@pytest.mark.parametrize(
    ("home", "held_by"),
    [
        ("stages.0.blocks.1", ["stages.0", "stages.0.blocks.1"]),  # a scale that the block itself has
        ("stages.0.blocks.1.norm", ["stages.0", "stages.0.blocks.1"]),
        ("a1/a1", ["a1"]),
        ("scale", []),
    ],
)
def test_what_a_block_has_itself_is_inside_it(home: str, held_by: list[str]) -> None:
    assert [*within(home)] == held_by


def test_numbers_are_in_natural_order() -> None:
    names = ["l10", "l9", "l", "2", "10", "l9a", "l9" + "0" * 19]
    assert sorted(names, key=natural) == ["2", "10", "l", "l9", "l9a", "l10", "l9" + "0" * 19]


def modules(text: str) -> list[Unit]:
    """`b1: x y, b2: x z`: each word is a module whose shape depends on its first letter, capital or not."""
    tensors = {}
    for block in text.split(", "):
        name, _, held_ = block.partition(": ")
        for module in held_.split():
            size = ord(module[0].lower()) - 90
            tensors[f"{name}.{module}.weight"] = held(f"{name}.{module}.weight", np.zeros((size, 2), "f4"))
    return units(Side(tensors))


def signature(u: Unit) -> Hashable:
    return u.members[u.main].shape


ALIGNED: dict[str, tuple[str, str, str]] = {
    "in order": ("a1: x y, a2: x y, a3: x y", "b.0: X Y, b.1: X Y, b.2: X Y", "a1=b.0 a2=b.1 a3=b.2"),
    "ten before two": ("a2: x y, a10: x z", "b.0: X Y, b.1: X Z", "a2=b.0 a10=b.1"),
    "backwards": ("a1: x y, a2: x z, a3: w w2", "b0: W W2, b1: X Z, b2: X Y", "a1=b2 a2=b1 a3=b0"),
    "one more here": ("a1: x y, a2: z z1, a3: x w", "b1: X Y, b3: X W", "a1=b1 a3=b3"),
    "one more there": ("a1: x y, a3: x w", "b1: X Y, b2: V V1, b3: X W", "a1=b1 a3=b3"),
    "by what they hold, not by place": ("a1: x y, a2: x z", "b0: W W1, b1: X Y, b2: X Z", "a1=b1 a2=b2"),
    "too little in common": ("a1: x y, a2: x y", "b1: X Z, b2: X W", ""),
    "half in common": ("a1: x y, a2: x y", "b1: X Z, b2: X Z", ""),
    "three quarters in common": ("a1: x y z w, a2: x y z w", "b1: X Y Z V, b2: X Y Z V", "a1=b1 a2=b2"),
    "one module is no block": ("a1: x, a2: x", "b1: X, b2: X", ""),
    "one block does not repeat": ("a1: x y", "b1: X Y", ""),
    "two families": (
        "dec1: x y, dec2: x y, enc1: x y, enc2: x y, enc3: x y",
        "enc.1: X Y, enc.2: X Y, enc.3: X Y, dec.1: X Y, dec.2: X Y",
        "dec1=dec.1 dec2=dec.2 enc1=enc.1 enc2=enc.2 enc3=enc.3",
    ),
    "nothing here": ("a: x", "b1: X Y, b2: X Y", ""),
}


@pytest.mark.parametrize("case", ALIGNED)
def test_which_block_is_which(case: str) -> None:
    a, b, wanted = ALIGNED[case]
    found = aligned(modules(a), modules(b), signature)
    assert dict(found.blocks) == dict(pair.split("=") for pair in wanted.split())
    assert {x: y for y, x in found.back.items()} == found.blocks


def test_of_many_blocks_the_kth_goes_with_the_kth(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = modules("a1: x y, a2: x z, a3: x w"), modules("b1: X W, b2: X Z, b3: X Y")
    assert aligned(a, b, signature).blocks == {"a1": "b3", "a2": "b2", "a3": "b1"}  # backwards
    monkeypatch.setattr(blocks, "HELD", 0.5)
    monkeypatch.setattr(blocks, "MAX_BLOCKS", 2)
    assert aligned(a, b, signature).blocks == {"a1": "b1", "a2": "b2", "a3": "b3"}
    assert aligned(a[:-2], b, signature).blocks == {}  # as many on one side only
    monkeypatch.setattr(blocks, "MAX_BLOCKS", 3)
    assert aligned(a, b, signature).blocks == {"a1": "b3", "a2": "b2", "a3": "b1"}


def chains(table: list[list[int]], i: int, j: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to choose entries that follow one another on both sides."""
    yield ()
    for r, c in product(range(i, len(table)), range(j, len(table[0]))):
        for rest in chains(table, r + 1, c + 1) if table[r][c] else ():
            yield ((r, c), *rest)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1)))
@examples(100)
def test_the_pairs_of_the_greatest_sum_are_found(table: list[list[int]]) -> None:
    table = table[:4]
    total, pairs = blocks.longest(table)
    found = {way: sum(table[r][c] for r, c in way) for way in chains(table, 0, 0)}
    assert found[tuple(pairs)] == total == max(found.values())


@pytest.mark.parametrize("table", [[[1, 1], [1, 1]], [[2, 2]], [[2], [2]], [[1, 0, 1], [1, 0, 1]]])
def test_of_equal_sums_the_earliest_pairs_count(table: list[list[int]]) -> None:
    assert blocks.longest(table)[1][0] == (0, 0)


@pytest.mark.parametrize(("cells", "pairs"), [(3, 0), (4, 2), (7, 2), (8, 4)])
def test_no_more_is_compared_than_there_is_time_for(cells: int, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_CELLS", cells)
    a = modules("p1: x y, p2: x y, q1: z w, q2: z w")
    b = modules("p.1: X Y, p.2: X Y, q.1: Z W, q.2: Z W")
    assert len(aligned(a, b, signature).blocks) == pairs


def test_names_inside_belong_together_as_far_as_they_stand_in_the_same_blocks() -> None:
    """x and X are in all blocks; of the shortcuts p and q, of one shape, each is in its own blocks."""
    a, b = modules("a1: x p0, a2: x, a3: x q0"), modules("b1: X s0, b2: X, b3: X t0")
    found = aligned(a, b, lambda u: u.home[-1] == "0" or signature(u))
    assert found.inside["a1.x"] == {"b1.X": 1.0}
    assert found.inside["a1.p0"] == {"b1.s0": 1.0}
    assert found.inside["a3.q0"] == {"b3.t0": 1.0}
    a, b = modules("a1: x p0, a2: x p0, a3: x p0"), modules("b1: X s0, b2: X t0, b3: X s0")
    found = aligned(a, b, lambda u: u.home[-1] == "0" or signature(u))
    assert found.inside["a1.p0"] == {"b1.s0": pytest.approx(2 / 3)}
    assert found.inside["a2.p0"] == {"b2.t0": pytest.approx(1 / 3)}


def test_blocks_agree_with_blocks() -> None:
    known = Aligned({"a": "b", "a.1": "b.1"}, {"b": "a", "b.1": "a.1"}, {})
    assert known.agree(["a", "a.1"], ["b", "b.1"]) == 1
    assert known.agree(["a", "a.1"], ["b", "b.2"]) == 0
    assert known.agree(["a"], ["c"]) == -1
    assert known.agree([], []) == 0
    assert known.agree([], ["b"]) == known.agree(["a"], []) == -0.5  # in a block that has a counterpart, and in none


# --- what a normalisation is named after ------------------------------------------------------------------------------


def layers(*names: str) -> list[Unit]:
    """Convolutions, and normalisations where the name says so."""
    tensors = {}
    for name in names:
        norm = any(w in name.rpartition("/")[2] for w in ("bn", "norm"))
        leaf, shape = ("gamma", (4,)) if norm else ("kernel", (3, 3, 4, 4))
        tensors[f"{name}/{leaf}"] = held(f"{name}/{leaf}", np.zeros(shape, "f4"))
    return units(Side(tensors))


COMPANIONS: dict[str, tuple[tuple[str, ...], dict[str, tuple[set[str], bool, bool]]]] = {
    "by number, in a block": (
        ("b1/conv1", "b1/bn1", "b1/conv2", "b1/bn2"),
        {"b1/bn1": ({"b1/conv1"}, True, True), "b1/bn2": ({"b1/conv2"}, True, True)},
    ),
    "a number outside of any block is a count": (("conv1", "bn1", "conv2", "bn2"), {}),
    "by a word": (
        ("expand_conv", "expand_bn", "project_conv", "project_bn"),
        {"expand_bn": ({"expand_conv"}, True, True), "project_bn": ({"project_conv"}, True, True)},
    ),
    "before it": (
        ("b1/pre_attn_norm", "b1/attn", "b1/mlp"), {"b1/pre_attn_norm": ({"b1/attn"}, True, False)},
    ),
    "after it": (
        ("b1/attn", "b1/post_attn_norm", "b1/mlp"), {"b1/post_attn_norm": ({"b1/attn"}, False, True)},
    ),
    "a number by chance": (("b1/wi_1", "b1/norm1", "b1/x"), {}),
    "of two": (
        ("b1/mlp_in", "b1/mlp_out", "b1/mlp_norm", "b1/q"), {"b1/mlp_norm": ({"b1/mlp_in", "b1/mlp_out"}, True, True)},
    ),
    "the rarer word": (
        ("b1/top_conv", "b1/side_conv", "b1/side_x", "b1/side_top_norm"),
        {"b1/side_top_norm": ({"b1/top_conv"}, True, True)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPANIONS)
def test_what_a_normalisation_is_named_after(case: str) -> None:
    names, wanted = COMPANIONS[case]
    found = companions(layers(*names))
    assert {home: (set(n.homes), n.before, n.after) for home, n in found.items()} == wanted


@pytest.mark.parametrize(
    ("word", "before", "after"),
    [
        ("pre", True, False), ("before", True, False), ("input", True, False), ("post", False, True),
        ("after", False, True), ("output", False, True), ("own", True, True),
    ],
)  # fmt: skip
def test_words_that_say_on_which_side_a_normalisation_is(word: str, before: bool, after: bool) -> None:
    found = companions(layers("b1/attn", f"b1/{word}_attn_norm", "b1/mlp"))
    assert {home: (set(n.homes), n.before, n.after) for home, n in found.items()} == {
        f"b1/{word}_attn_norm": ({"b1/attn"}, before, after)
    }


@pytest.mark.parametrize(("count", "named"), [(16, True), (17, False)])
def test_a_word_that_names_many_names_none(count: int, named: bool) -> None:
    found = companions(layers(*(f"top_x{'abcdefghijklmnopqr'[k]}" for k in range(count)), "top_norm", "other"))
    assert bool(found) is named


def test_the_share_of_a_name_is_less_if_it_fits_several_groups() -> None:
    assert blocks.Named(frozenset({"a/x", "a/y"}), True, True).share == 1
    assert blocks.Named(frozenset({"a/x", "b/y"}), True, True).share == 0.5


# --- surroundings -----------------------------------------------------------------------------------------------------

NONE = Aligned({}, {}, {})


def near(
    a: list[Unit], b: list[Unit], pairs: Mapping[str, str], known: Aligned = NONE, rows: set[str] | None = None,
    named: tuple[Mapping[str, blocks.Named], Mapping[str, blocks.Named]] = ({}, {}),
) -> list[list[float]]:  # fmt: skip
    found = Near(pairs, (beside(a), beside(b)), known, named, rows or set()).gains(a, b)
    return [[round(float(x), 3) for x in row] for row in found]


def test_neighbours() -> None:
    assert beside(layers("x", "y", "z")) == {"x": ("", "y"), "y": ("x", "z"), "z": ("y", "")}
    assert beside([]) == {}


def test_neighbours_that_are_a_pair_speak_for_a_pair() -> None:
    a, b = layers("x", "y", "z"), layers("p", "q", "r")
    assert near(a, b, {}) == [[0] * 3] * 3
    assert near(a, b, {"x": "p"}) == [[0, 0, 0], [0, 0.1, 0], [0, 0, 0]]  # y follows x, and q follows p
    assert near(a, b, {"x": "p", "z": "r"}) == [[0, 0, 0], [0, 0.2, 0], [0, 0, 0]]
    assert near(a, b, {"y": "q"}) == [[0.1, 0, 0], [0, 0, 0], [0, 0, 0.1]]
    assert near(a, b, {"z": "p"}) == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]  # nothing stands before p
    assert near(a, b, {"y": "p"}) == [[0, 0, 0], [0, 0, 0], [0, 0.1, 0]]


def test_blocks_that_go_together_speak_for_a_pair() -> None:
    a, b = layers("b1/x", "b2/x", "top"), layers("c1/y", "c2/y", "end")
    known = Aligned({"b1": "c1", "b2": "c2"}, {"c1": "b1", "c2": "b2"}, {"b1/x": {"c1/y": 0.5, "gone": 1.0}})
    assert near(a, b, {}, known) == [[0.6, -0.4, -0.2], [-0.4, 0.4, -0.2], [-0.2, -0.2, 0]]


@pytest.mark.parametrize(
    ("before", "after", "gains"),
    [
        (True, True, [0.3, 0.3]),  # p before conv's partner, q behind it
        (True, False, [0.3, 0]),
        (False, True, [0, 0.3]),
        (False, False, [0, 0]),
    ],
)
def test_the_module_that_a_normalisation_is_named_after_speaks_for_its_neighbours(
    before: bool, after: bool, gains: list[float]
) -> None:
    a, b = layers("other", "mid", "n_norm", "conv"), layers("p_norm", "c", "q_norm")
    named = {"n_norm": blocks.Named(frozenset({"other"}), before, after)}
    row = near(a, b, {"other": "c"}, named=(named, {}))[2]
    assert [row[0], row[2]] == gains
    row = near(a, b, {"other": "c"}, named=(named, {}), rows={"p_norm", "q_norm"})[2]
    assert [row[0], row[2]] == [0, 0]  # beside each other their place says nothing
    theirs = {"p_norm": blocks.Named(frozenset({"c"}), True, True)}
    row = near(a, b, {"other": "c"}, named=(named, theirs), rows={"p_norm", "q_norm"})[2]
    assert [row[0], row[2]] == [0.3, 0]  # but their names do


def test_a_name_that_fits_several_groups_says_less() -> None:
    a, b = layers("g/x", "h/x", "n_norm"), layers("c", "q_norm")
    named = {"n_norm": blocks.Named(frozenset({"g/x", "h/x"}), True, True)}
    assert near(a, b, {"g/x": "c"}, named=(named, {}))[2][1] == 0.15
    assert surroundings.NAMED == 0.3


def test_siblings_of_pairs_speak_for_a_pair() -> None:
    a, b = layers("in/x", "in/y", "out/x", "z"), layers("p.i", "p.j", "q.i", "r")
    found = near(a, b, {"in/w": "p.k", "out/v": "q.k", "out/u": "p.h"})  # of the pairs of in and p, two are of p
    assert [row[:3] for row in found[:3]] == [[0.1, 0.1, 0], [0.1, 0.1, 0], [0.1, 0.1, 0.1]]
    assert all(row[3] == 0 for row in found)
    assert found[3] == [0, 0, 0, 0]  # at the top all stand beside each other
