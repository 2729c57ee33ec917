"""Where a tensor belongs, by its name: a layer of a stack, a part of that layer, and a kind.

    encoder.layer.3.attention.self.key.weight     stack encoder.layer.*, layer 3, part attention.self.key.weight

Names only group what people look at together: nothing is converted by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..checkpoint import Tensor

_NUMBER = re.compile(r"(\d{1,9})")
_EDGES = "/._-:"
STATE, OTHER = "optimizer and state", "other"
# The first line with a word of the name wins: the norm of an attention layer is a norm, its dense layer is attention.
_WORDS: tuple[tuple[str, str], ...] = (
    ("norms", r".*norm.*|ln|bn|gamma|beta"),
    ("attention", r".*attn.*|.*attention.*|query|qkv|[qkv]"),
    ("recurrent", r".*lstm.*|.*gru|.*rnn|ih|hh"),
    ("embeddings", r".*embed.*|emb|wte|wpe|relpos"),
    ("convolutions", r"conv.*|.*conv|depthwise|pointwise|downsample"),
    ("heads", r"classifier|heads?|logits|pooler|cls|predictions?"),
    ("MLP", r".*mlp.*|ffn?|fc|feed|feedforward|intermediate|dense|linear|wi|wo|experts?|gate|up|down"),
)
KINDS = (*(kind for kind, _ in _WORDS), OTHER, STATE)
_MEANINGS = [(kind, re.compile(words)) for kind, words in _WORDS]


class Place(NamedTuple):
    """stack: what names of a stack begin with, * for the layer; empty for a tensor that is in no stack (layer -1)."""

    stack: str
    layer: int
    part: str
    kind: str


def places(tensors: Iterable[Tensor]) -> list[Place]:
    """The place of each tensor, in order."""
    rows = list(tensors)
    cut = [_NUMBER.split(t.name) for t in rows]
    slots = _slots(cut)
    return [_place(words, slots.get(_pattern(words)), t) for words, t in zip(cut, rows, strict=True)]


def _pattern(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[::2])


def _slots(cut: Iterable[Sequence[str]]) -> dict[tuple[str, ...], int]:
    """For each pattern of names, which of its numbers counts layers: the first with three values, or with two."""
    values: dict[tuple[str, ...], list[set[str]]] = {}
    for words in cut:
        seen = values.setdefault(_pattern(words), [set() for _ in words[1::2]])
        for kept, number in zip(seen, words[1::2], strict=True):
            kept.add(number)
    found = {}
    for pattern, seen in values.items():
        several = [i for least in (3, 2) for i, kept in enumerate(seen) if len(kept) >= least]
        if several:
            found[pattern] = 2 * several[0] + 1
    return found


def _place(words: Sequence[str], at: int | None, t: Tensor) -> Place:
    kind = STATE if t.role else _known("0".join(words[::2]))  # numbers do not tell a kind
    if at is None:
        return Place("", -1, t.name, kind)
    return Place("".join(words[:at]) + "*", int(words[at]), "".join(words[at + 1 :]).lstrip(_EDGES) or "value", kind)


@lru_cache(maxsize=4096)
def _known(pattern: str) -> str:
    return kind_of(pattern)


def kind_of(name: str) -> str:
    """What a tensor of this name is probably part of: a kind of KINDS."""
    words = re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1_\2", name[:1000]).lower())
    if "cls" in words and "token" in words:
        return "embeddings"
    known = (kind for kind, meaning in _MEANINGS if any(map(meaning.fullmatch, words)))
    return next(known, OTHER)


__all__ = ["KINDS", "OTHER", "STATE", "Place", "kind_of", "places"]
