"""How names of pairs become templates: what several names of a stack have in common."""

from __future__ import annotations

import pytest

from ckptconv.matching.rows import MARK, _one

ONE: list[tuple[str, str, str]] = [
    ("a0w a1w", "#", '["a0w", "a1w"]'),
    ("a/0/w a/1/w", "a/#/w", ""),
    ("a/0 a/1 a/2", "a/#", ""),
    ("0/w 1/w", "#/w", ""),
    ("a/1/w a/2/w", "a/#/w", '["1", "2"]'),
    ("a/9/w a/10/w", "a/#/w", '["9", "10"]'),
    ("l.query.w l.key.w l.value.w", "l.#.w", '["query", "key", "value"]'),
    ("l.q_a.w l.k_a.w", "l.#_a.w", '["q", "k"]'),
    ("l.wide.w l.wine.w", "l.#.w", '["wide", "wine"]'),
    ("a/x a/x/x", "a/#x", '["", "x/"]'),
    ("a.b a.b.b", "a.#b", '["", "b."]'),
    ("x x", "#", '["x", "x"]'),
    ("a/ a//", "a/#", '["", "/"]'),
]


@pytest.mark.parametrize(("names", "one", "spec"), ONE)
def test_names_of_a_stack_as_one(names: str, one: str, spec: str) -> None:
    """Words stay whole, and nothing belongs to what is common at the beginning and at the end."""
    assert _one(names.split()) == (one.replace("#", MARK), spec)
