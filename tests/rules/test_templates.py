"""What a capture may be: every kind of `where` is a bijection, and ties whose names may also stand apart."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ckptconv.checkpoint import Checkpoint, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.moves.part import Held
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.templates import domain

SPECS = ["int", "int+1", "int-4", "2*int", "2*int-1", "3*int+2", "int:3", "int+1:3", "int in 4 4 4", "int in 6 3 3"]


@given(st.sampled_from(SPECS), st.integers(0, 9999))
def test_numbers_come_back(spec: str, number: int) -> None:
    there = domain(spec)
    value = f"{number:03}" if ":3" in spec else str(number)
    if there.kind == "table" and number >= len(there.table):
        return
    target = there.forward(value)
    assert target is None or there.inverse.forward(target) == value


@pytest.mark.parametrize(
    ("spec", "source", "target"),
    [
        ("int:3", "007", "7"),
        ("int:3", "000", "0"),
        ("int:3", "1234", "1234"),
        ("2*int-2", "1", "0"),
        ("2*int-2", "13", "24"),
        ("2*int-2", "0", None),  # below zero
        ("int in 4 4 4", "5", "1.1"),
        ("int in 6 3 3", "5", "0.5"),
        ("int in 6 3 3", "11", "2.2"),
    ],
)
def test_numbers(spec: str, source: str, target: str | None) -> None:
    assert domain(spec).forward(source) == target


def test_between_two_there_is_nothing() -> None:
    assert domain("2*int-2").inverse.forward("3") is None


def held(**arrays: np.ndarray) -> Checkpoint:
    return Checkpoint({n: contiguous(n, DTYPES["float32"], a.shape, Held(a)) for n, a in arrays.items()})


TIED = """
title = "t"
[[rule]]
from = "words"
to = "emb"
[[rule]]
from = "logits"
to = "head"
[[tie]]
names = ["emb", "head"]
apart = true
[[tie]]
names = ["emb", "other"]
if = ["logits"]
"""


def test_ties_that_may_stand_apart() -> None:
    converter = library.parse(TIED, "tied")
    a, b = np.zeros((2, 3), "f4"), np.ones((2, 3), "f4")
    both = apply(converter, held(words=a, logits=b))
    assert list(both) == ["emb", "head", "other"]
    assert list(apply(converter.inverse, both)) == ["words", "logits"]
    one = apply(converter, held(words=a))
    assert list(one) == ["emb", "head"]  # the second tie wants logits
    copies = Checkpoint({n: t.renamed(n) for n, t in held(emb=a, head=a.copy()).items()}, metadata=one.metadata)
    assert list(apply(converter.inverse, copies)) == ["words"]  # the metadata tells that they were tied
    assert list(apply(converter.inverse, held(emb=a, head=b))) == ["words", "logits"]  # a stranger's file: both


@pytest.mark.parametrize(
    ("spec", "names"), [("int:3", "000 001"), ("int", "0 1"), ("2*int", "0 1"), (["a", "b"], "a b")]
)
def test_names_that_were_stacked_come_back_as_they_were(spec: Any, names: str) -> None:
    converter = library.parse(f"[[rule]]\nfrom = 'h.{{l*}}.w'\nto = 'H'\nwhere = {{ l = {json.dumps(spec)} }}", "test")
    before = held(**{f"h.{name}.w": np.full(2, i, "f4") for i, name in enumerate(names.split())})
    made = apply(converter, before)
    assert made["H"].numpy().tolist() == [[0, 0], [1, 1]]
    assert {n: t.numpy().tolist() for n, t in apply(converter.inverse, made).items()} == {
        n: t.numpy().tolist() for n, t in before.items()
    }


@pytest.mark.parametrize(
    ("spec", "source", "target", "others"),
    [
        ("int", "7", "7", ["07", "", "-1", "1" * 10]), ("int:3", "007", "7", ["7", "07", "0007"]),
        ("int+1:2", "09", "10", ["9", "009"]), ("2*int", "3", "6", ["03"]),
    ],
)  # fmt: skip
def test_both_ways_take_what_they_should(spec: str, source: str, target: str, others: list[str]) -> None:
    """A number is padded on the side of the source only."""
    there = domain(spec)
    assert (there.forward(source), there.inverse.forward(target)) == (target, source)
    assert re.fullmatch(there.pattern, source)
    assert re.fullmatch(there.inverse.pattern, target)
    assert not any(re.fullmatch(there.pattern, other) for other in others)
    assert not re.fullmatch(there.inverse.pattern, f"0{target}")
    assert there.inverse.inverse == there
