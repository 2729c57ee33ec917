"""Blocks that repeat: which block of the source is which of the target, and which of their modules is which.

    conv2_block1_{1,2,3}_conv, conv2_block1_0_conv      layer1.0.conv{1,2,3}, layer1.0.downsample.0
    block2a_expand_conv, block2a_dwconv                 _blocks.1._expand_conv, _blocks.1._depthwise_conv

Blocks whose names differ in numbers only are a family. Two families are aligned in order by what their blocks hold;
then a name inside the one and a name inside the other belong together as far as they stand in the same blocks. No word
is compared: a shortcut is what the first block of each stage has and the others have not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .names import likeness
from .units import Unit, natural
from .words import words

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_CELLS = 40_000  # pairs of blocks of two families that are compared
MAX_FAMILIES = 60  # of a side that are compared with each other, the largest first
HELD = 0.75  # of the modules of two families that must find one of their signature
OUTSIDE = -0.5  # of a module in a block that has a counterpart, and one that is in none
WORDS = 0.3  # weight of the words of two families, against what they hold (0 to 1)
NUMBER = re.compile(r"(?i:conv|pool|norm|lstm)[123][dD]|([0-9]+(?:[a-z](?![a-zA-Z0-9]))?)")  # 2a, but not conv2d
REPEATED = re.compile(r"(?<![^/.])(?![0-9]+[/.])([^/.]+)(?:[/.]\1)+(?![^/.])")  # Keras says the name of a layer twice
Held = Counter[Hashable]  # the signatures of the modules of a block
Signature = Callable[[Unit], Hashable]


class Block(NamedTuple):
    """One block: its name, and its modules by what is left of their names."""

    name: str
    members: Mapping[str, Unit]


Family = list[Block]


class Aligned(NamedTuple):
    """Which block goes with which, and how far two names inside them belong together (0 to 1)."""

    blocks: Mapping[str, str]  # of the source: of the target
    back: Mapping[str, str]
    inside: Mapping[str, Mapping[str, float]]  # by the homes of two modules

    def agree(self, a: Sequence[str], b: Sequence[str]) -> float:
        """1 if blocks within each other go together with others, -1 if they do not, 0 if nothing is known."""
        if not a or not b:
            return OUTSIDE if a or b else 0.0
        return 2 * sum(self.blocks[p] in b for p in a) / len(a) - 1


@lru_cache(maxsize=2**16)
def once(home: str) -> str:
    """A name that says what Keras says twice once."""
    return REPEATED.sub(r"\1", home)


@lru_cache(maxsize=2**16)
def prefixes(home: str) -> tuple[str, ...]:
    """The blocks that hold a module: what stands before it in its name and ends in a number."""
    home = once(home)
    return tuple(home[: m.end()] for m in NUMBER.finditer(home) if m[1] and m.end() < len(home))


def within(home: str) -> tuple[str, ...]:
    """The blocks that hold a module, the module itself among them if its name ends in a number: a block's own scale."""
    bare = once(home)
    return (*prefixes(home), bare) if bare[-1:].isdigit() else prefixes(home)


def aligned(a: Sequence[Unit], b: Sequence[Unit], signature: Signature) -> Aligned:
    """Align the families of two sides, the ones that hold the most of the same first."""
    sides = [_families(a), _families(b)]
    if not sides[0] or not sides[1]:
        return Aligned({}, {}, {})
    held = [[[Counter(map(signature, x.members.values())) for x in family] for family in many] for many in sides]
    sums = [[sum(family, Counter[Hashable]()) for family in many] for many in held]
    like = likeness(*([words(f"{family[0].name}/x") for family in many] for many in sides))
    found = []
    for i, x in enumerate(sums[0]):
        for j, y in enumerate(sums[1]):
            total = x.total() + y.total()
            if 2 * (x & y).total() < HELD * total or len(held[0][i]) * len(held[1][j]) > MAX_CELLS:
                continue
            same, pairs = _in_order(held[0][i], held[1][j])
            if 2 * same >= HELD * total:
                found.append((-2 * same / total - WORDS * float(like[i, j]), -same, i, j, pairs))
    blocks: dict[str, str] = {}
    inside: dict[str, dict[str, float]] = {}
    depth: dict[str, int] = {}
    used: tuple[set[int], set[int]] = (set(), set())
    for _, _, i, j, pairs in sorted(found):
        if i not in used[0] and j not in used[1]:
            used[0].add(i)
            used[1].add(j)
            both = [(sides[0][i][k], sides[1][j][m]) for k, m in pairs]
            blocks |= {p.name: q.name for p, q in both}
            _inside(both, signature, inside, depth)
    return Aligned(blocks, {y: x for x, y in blocks.items()}, inside)


def _families(many: Sequence[Unit]) -> list[Family]:
    """Blocks by name, numbers aside: those that repeat and hold more than one module, in natural order."""
    made: dict[str, dict[str, dict[str, Unit]]] = defaultdict(lambda: defaultdict(dict))
    for u in many:
        bare = once(u.home)
        for p in within(bare):
            made[NUMBER.sub(lambda m: "#" if m[1] else m[0], p)][p][bare[len(p) :]] = u
    found = [
        [Block(name, blocks[name]) for name in sorted(blocks, key=natural)]
        for blocks in made.values()
        if len(blocks) > 1 and max(map(len, blocks.values())) > 1
    ]
    return sorted(found, key=lambda f: -sum(len(x.members) for x in f))[:MAX_FAMILIES]


def _in_order(a: Sequence[Held], b: Sequence[Held]) -> tuple[int, list[tuple[int, int]]]:
    """How many modules two families share if their blocks follow one another, forwards or backwards; and the pairs."""
    table = [[(x & y).total() for y in b] for x in a]
    ahead, back = longest(table), longest(table[::-1])
    return ahead if ahead[0] >= back[0] else (back[0], [(len(a) - 1 - i, j) for i, j in back[1]])


def longest(table: Sequence[Sequence[int]]) -> tuple[int, list[tuple[int, int]]]:
    """The pairs with the greatest sum that follow one another on both sides; the earliest of the same sum."""
    rows, columns = len(table), len(table[0])
    sums = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            sums[i][j] = max(sums[i + 1][j], sums[i][j + 1], table[i][j] + sums[i + 1][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if table[i][j] and sums[i][j] == table[i][j] + sums[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif sums[i][j] == sums[i][j + 1]:
            j += 1
        else:
            i += 1
    return sums[0][0], pairs


def _inside(
    both: Sequence[tuple[Block, Block]],
    signature: Signature,
    found: dict[str, dict[str, float]],
    depth: dict[str, int],
) -> None:
    """How far each two modules of one signature belong together: the share of blocks that have both names or none.

    Of nested blocks, the innermost decide.
    """
    counts = [Counter(n for pair in both for n in pair[side].members) for side in (0, 1)]
    fits: Counter[tuple[str, str]] = Counter()
    homes: list[tuple[str, str, str, str]] = []
    for x, y in both:
        classes: dict[Hashable, list[str]] = defaultdict(list)
        for n, v in y.members.items():
            classes[signature(v)].append(n)
        for m, u in x.members.items():
            if len(x.name) < depth.get(u.home, 0):
                continue
            depth[u.home] = len(x.name)
            for n in classes.get(signature(u), ()):
                fits[m, n] += 1
                homes.append((u.home, y.members[n].home, m, n))
    for home in {h[0] for h in homes}:
        found[home] = {}
    for a, b, m, n in homes:
        found[a][b] = fits[m, n] / (counts[0][m] + counts[1][n] - fits[m, n])
