"""Which block of one side goes with which of the other, and how far the names inside them belong together.

    conv2_block1, conv2_block2, conv3_block1     layer1.0, layer1.1, layer2.0
    block2a, block2b                             _blocks.1, _blocks.2

Blocks whose names differ in numbers only are a family. Two families are aligned in order, by the modules they hold.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..likeness import likeness, words
from .units import Unit, natural

MAX_CELLS = 40_000  # pairs of blocks of two families that are compared
MAX_FAMILIES = 60  # of a side that are compared with each other, the largest first
HELD = 0.75  # of the modules of two families that must find one of their signature
WORDS_WEIGHT = 0.3  # weight of the words of two families, against what they hold (0 to 1)
NUMBER = re.compile(r"(?i:conv|pool|norm|lstm)[123][dD]|([0-9]+(?:[a-z](?![a-zA-Z0-9]))?)")  # 2a, but not conv2d
REPEATED = re.compile(r"(?<![^/.])(?![0-9]+[/.])([^/.]+)(?:[/.]\1)+(?![^/.])")  # Keras says the name of a layer twice
Signature = Callable[[Unit], Hashable]
Way = tuple[int, Any]  # a sum, and its pairs: the first, and the way after it


class Block(NamedTuple):
    """One block: its name, and its modules by what is left of their names."""

    name: str
    members: Mapping[str, Unit]


class Aligned(NamedTuple):
    """The block of the target by that of the source; how far two modules belong together (0 to 1), by their homes."""

    blocks: dict[str, str]
    inside: dict[str, dict[str, float]]
    depth: dict[str, int]  # the length of the name of the block that decided about a module


@lru_cache(maxsize=2**16)
def holding(home: str) -> tuple[str, ...]:
    """The blocks that hold a module: what ends in a number in its name; perhaps all of it: a block's own scale."""
    home = REPEATED.sub(r"\1", home)
    found = [home[: m.end()] for m in NUMBER.finditer(home) if m[1] and m.end() < len(home)]
    return (*found, home) if home[-1:].isdigit() else tuple(found)


def aligned(a: Sequence[Unit], b: Sequence[Unit], signature: Signature) -> Aligned:
    """Align the families of two sides, the ones that hold the most of the same first."""
    sides = [_families(a), _families(b)]
    out = Aligned({}, {}, {})
    if not sides[0] or not sides[1]:
        return out
    held = [[[Counter(map(signature, x.members.values())) for x in family] for family in many] for many in sides]
    sums = [[sum(family, Counter[Hashable]()) for family in many] for many in held]
    like = likeness(*([words(f"{family[0].name}/x") for family in many] for many in sides))
    found = []
    for i, x in enumerate(sums[0]):
        for j, y in enumerate(sums[1]):
            total = x.total() + y.total()
            if 2 * (x & y).total() < HELD * total or len(held[0][i]) * len(held[1][j]) > MAX_CELLS:
                continue
            same, pairs = in_step([[(p & q).total() for q in held[1][j]] for p in held[0][i]])
            if 2 * same >= HELD * total:
                found.append((-2 * same / total - WORDS_WEIGHT * float(like[i, j]), -same, i, j, pairs))
    rows, columns = set[int](), set[int]()
    for _, _, i, j, pairs in sorted(found):
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            _add(out, [(sides[0][i][k], sides[1][j][m]) for k, m in pairs], signature)
    return out


def _families(many: Sequence[Unit]) -> list[list[Block]]:
    """Blocks by name, numbers aside: those that repeat and hold more than one module, in natural order."""
    made: dict[str, dict[str, dict[str, Unit]]] = defaultdict(lambda: defaultdict(dict))
    for u in many:
        bare = REPEATED.sub(r"\1", u.home)
        for p in holding(u.home):
            made[NUMBER.sub(lambda m: "#" if m[1] else m[0], p)][p][bare[len(p) :]] = u
    found = [
        [Block(name, blocks[name]) for name in sorted(blocks, key=natural)]
        for blocks in made.values()
        if len(blocks) > 1 and max(map(len, blocks.values())) > 1
    ]
    return sorted(found, key=lambda f: -sum(len(x.members) for x in f))[:MAX_FAMILIES]


def in_step(table: Sequence[Sequence[int]]) -> tuple[int, list[tuple[int, int]]]:
    """The pairs with the greatest sum that follow one another on both sides; the earliest of the same sum."""
    columns = len(table[0])
    below: list[Way] = [(0, None)] * (columns + 1)  # with the last columns: none of them, one, two ...
    for i in reversed(range(len(table))):
        row: list[Way] = [(0, None)]
        for k, j in enumerate(reversed(range(columns))):
            taken = (table[i][j] + below[k][0], ((i, j), below[k][1]))
            ways = [taken] * bool(table[i][j]) + [row[k], below[k + 1]]
            row.append(max(ways, key=lambda way: way[0]))
        below = row
    total, rest = below[columns]
    pairs = []
    while rest:
        pair, rest = rest
        pairs.append(pair)
    return total, pairs


def _add(out: Aligned, both: Sequence[tuple[Block, Block]], signature: Signature) -> None:
    """Add two families. Two modules belong together as far as the same blocks have them, with one signature.

    Of nested blocks, the innermost decide.
    """
    counts = [Counter(n for pair in both for n in pair[side].members) for side in (0, 1)]
    fits: Counter[tuple[str, str]] = Counter()
    near: list[tuple[int, str, str, str, str]] = []
    for x, y in both:
        out.blocks[x.name] = y.name
        classes: dict[Hashable, list[str]] = defaultdict(list)
        for n, v in y.members.items():
            classes[signature(v)].append(n)
        for m, u in x.members.items():
            for n in classes[signature(u)]:
                fits[m, n] += 1
                near.append((len(x.name), u.home, y.members[n].home, m, n))
    for depth, a, b, m, n in near:
        if depth > out.depth.get(a, 0):
            out.depth[a], out.inside[a] = depth, {}
        if depth == out.depth[a]:
            out.inside[a][b] = fits[m, n] / (counts[0][m] + counts[1][n] - fits[m, n])
