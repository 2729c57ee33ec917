"""Pair modules by names, blocks and order, all modules of one signature at once.

    conv2d_1, conv2d_2, conv2d_3          stem.conv, blocks.0.conv, blocks.1.conv      k-th with k-th
    conv2_block1_1_conv                   layer1.0.conv1                               in matching blocks

The k-th module of a class in the order of the source's file, or of the numbers in its names if the file is sorted, is
paired with the k-th in the order of the target's definition, unless names or blocks say otherwise.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...messages import natural
from ...moves.copy import Array
from ..likeness import assigned, likeness, slices, words
from ..orders.choose import TABLE
from ..pairs import LISTED, Pair, Side, Sides
from .bundles import with_bundles
from .units import COUNT, MAIN, SIGNATURES, Unit, units

ORDER = 0.3  # weight of the place in the class, against the similarity of words (0 to 1)
TIE = 0.03  # weight of the order of words in the file and of numbers in names, to break ties
SHORT = 0.15  # bonus for a word of one side that begins one of the other
LETTERS = 3  # longest short word
CLEAR = 0.1  # names decide if a pair's similarity exceeds that of all others in its class by this
OPPOSITE = 0.5  # penalty for contradictions, such as forward and backward, which outweighs the order in a file
AGAINST = {"table": "matrix", "forward": "backward", "pre": "post"}
AGAINST |= {b: a for a, b in AGAINST.items()}
INSIDE = 0.4  # weight of being in matching blocks or in others, and of matching names inside the blocks

ONLY = "the only module of its shape on both sides"
NAMES = "the names are alike, not the same"
NUMBERS = "numbers paired in order"
PLACE = "several modules have this shape, paired in order"
SOME = "several modules have this shape, more of them on one side"

Place = Callable[[Unit], Any]
Twins = dict[tuple[str, ...], list[int]]


class Match(NamedTuple):
    """Two modules that go together, the reasons for doubt, whether the doubt is real, and rivals."""

    a: Unit
    b: Unit
    why: tuple[str, ...] = ()
    real: bool = False
    rivals: tuple[str, ...] = ()


def matched(sides: Sides, pairs: Sequence[Pair], every: Sides) -> list[Match]:
    """Pair the remaining modules; `every` has both sides including the tensors already in `pairs`."""
    solver = Solver(sides, pairs, every)
    best = solver.solved(lambda u: u.counted)
    if solver.alphabetical:  # an order without meaning
        return solver.known + best[1]
    best, second = sorted((best, solver.solved(lambda u: u.at)), key=lambda found: -found[0])
    other = {m.a.home: m.b.home for m in second[1]}
    return solver.known + [
        m if m.b.home == other.get(m.a.home, m.b.home) else m._replace(real=True, rivals=(other[m.a.home], *m.rivals))
        for m in best[1]
    ]


def _in_order(side: Side, *, target: bool) -> list[Unit]:
    """Return the modules of a side without counters; sort those of a target whose file lost their order by sorting."""
    found = [u for u in units(side) if any(t.shape or t.dtype.kind == "f" for t in u.members.values())]
    if target and list(side.tensors) == sorted(side.tensors):
        found.sort(key=lambda u: u.natural)
    return found


class Solver:
    """The modules of both sides, those that share a pair, and the blocks that go together."""

    def __init__(self, sides: Sides, pairs: Sequence[Pair], every: Sides) -> None:
        self.sides = sides
        self.alphabetical = list(sides[0].tensors) == sorted(sides[0].tensors)
        self.units = _in_order(sides[0], target=False), _in_order(sides[1], target=True)
        whole = [
            with_bundles(both, {n: (t, side.bundles[n]) for n, t in side.tensors.items() if n in side.bundles})
            for side, both in zip(sides, every, strict=True)
        ]
        around = _in_order(whole[0], target=False), _in_order(whole[1], target=True)
        owners = [{t.name: u.home for u in many for t in u.members.values()} for many in around]
        left = [{u.home: u for u in many} for many in self.units]
        together: dict[str, Match] = {}
        for p in sorted(pairs, key=lambda p: not p.sure):
            a, b = left[0].get(owners[0].get(p.sources[0], "")), left[1].get(owners[1].get(p.targets[0], ""))
            if a and b and len(p.sources) == len(p.targets) == 1:
                together.setdefault(a.home, Match(a, b, p.why))
        self.known = [*together.values()]
        self.blocks = aligned(*around, lambda u: u.signatures[MAIN])
        if not self.blocks.blocks:  # if hardly any module keeps its axes, compare numbers of elements
            self.blocks = aligned(*around, lambda u: u.signatures[COUNT])
        self.back = set(self.blocks.blocks.values())

    def solved(self, place: Place) -> tuple[float, list[Match]]:
        """Return how well all pairs agree if the source's modules have this order, and the pairs."""
        total, out = 0.0, list[Match]()
        done = {m.a.home for m in self.known}, {m.b.home for m in self.known}
        for even in (True, False):  # first classes with equally many modules on both sides
            for level in range(len(SIGNATURES)):
                for all_a, all_b in self._classes(done, level):
                    if len(all_a) != len(all_b) and even:
                        continue
                    if len({tuple(w for w in u.words if w != "#") for u in all_b}) == 1:  # only numbers differ
                        all_b = sorted(all_b, key=lambda u: u.natural)
                    for a, b in slices(sorted(all_a, key=place), all_b):
                        score, made = self._class(a, b, place)
                        total += score
                        out += made
                        done[0].update(m.a.home for m in made)
                        done[1].update(m.b.home for m in made)
        return total, out

    def _classes(self, done: tuple[set[str], set[str]], level: int) -> list[tuple[list[Unit], list[Unit]]]:
        """Group unpaired modules by signature, and by content if that is known."""
        found: dict[Hashable, tuple[list[Unit], list[Unit]]] = defaultdict(lambda: ([], []))
        for k, many in enumerate(self.units):
            for u in many:
                if u.home not in done[k]:
                    content = self.sides[k].prints.get(u.members[u.main].name)
                    found[u.signatures[level], content][k].append(u)
        return [(x, y) for x, y in found.values() if x and y]

    def _class(self, a: Sequence[Unit], b: Sequence[Unit], place: Place) -> tuple[float, list[Match]]:
        """Pair modules of one signature by their words, blocks and places; return how well they agree, too."""
        if len(a) == len(b) == 1 and a[0].fits(b[0]):
            return 1.0, [Match(a[0], b[0], (ONLY,))]
        like = likeness([u.words for u in a], [u.words for u in b])
        claims = [[_claims(u, side) for u in many] for many, side in zip((a, b), self.sides, strict=True)]
        for word, of in {claim for some in claims[0] for claim in some}:
            like[np.ix_([(word, of) in c for c in claims[0]], [(AGAINST[word], of) in c for c in claims[1]])] -= (
                OPPOSITE
            )
        for some, others in (*_short(a, b), *((x, y) for y, x in _short(b, a))):
            like[np.ix_(some, others)] += SHORT
        columns = np.linspace(0, 1, len(b))[None, :]
        score = like - ORDER * (_ranks(a, place)[:, None] - columns) ** 2
        first = {u.words: 0 if self.alphabetical else u.at for u in sorted(a, key=lambda u: -u.at)}
        score -= TIE * (_ranks(a, lambda u: (first[u.words], u.natural))[:, None] - columns) ** 2
        score += self._in_blocks(a, b)
        chosen = [(r, c) for r, c in assigned(score + 10) if a[r].fits(b[c])]
        twins: list[Twins] = [defaultdict(list), defaultdict(list)]
        for side, many in zip(twins, (a, b), strict=True):
            for k, u in enumerate(many):
                side[u.words].append(k)
        return sum(float(score[r, c]) for r, c in chosen), [_judged(a, b, like, twins, r, c) for r, c in chosen]

    def _in_blocks(self, a: Sequence[Unit], b: Sequence[Unit]) -> Array:
        """Score pairs by their blocks: -1 to 1 for the share of matching blocks, plus the names inside them."""
        blocks, inside, _ = self.blocks
        ours, theirs = ([{p for p in holding(u.home) if p in own} for u in many]
                        for many, own in ((a, blocks), (b, self.back)))  # fmt: skip
        share = np.zeros((len(a), len(b)))
        for p in {p for some in ours for p in some}:
            share[np.ix_([p in some for some in ours], [blocks[p] in some for some in theirs])] += 1
        depth = np.array([len(some) for some in ours])[:, None]
        both = (depth > 0) & np.array([bool(some) for some in theirs])[None, :]
        out: Array = np.where(both, INSIDE * (2 * share / np.maximum(depth, 1) - 1), 0)
        places = {u.home: c for c, u in enumerate(b)}
        for r, u in enumerate(a):
            for home, near in inside.get(u.home, {}).items():
                if home in places:
                    out[r, places[home]] += INSIDE * near
        return out


def _claims(u: Unit, side: Side) -> set[tuple[str, str]]:
    """Return a module's properties that can contradict others: table or matrix, forward or backward, pre or post."""
    name = u.members[u.main].name
    kind = side.kinds.get(name, "")
    table = kind == "embedding" if kind else bool(TABLE.search(name))
    ways = {(w, "") for w in u.words if w in ("forward", "backward")}
    return {("table" if table else "matrix", ""), *ways, *(p for p in pairwise(u.words) if p[0] in ("pre", "post"))}


def _short(a: Sequence[Unit], b: Sequence[Unit]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield modules of one side with a short word, and those of the other with a word that begins so: in, incoming."""
    known = {w for u in b for w in u.words}
    for word in {w for u in a for w in u.words if w not in known and len(w) <= LETTERS and w.isalpha()}:
        columns = [k for k, u in enumerate(b) if any(w.startswith(word) for w in u.words)]
        if len(columns) < len(b):
            yield [k for k, u in enumerate(a) if word in u.words], columns


def _ranks(many: Sequence[Unit], place: Place) -> Array:
    """Rank each module among all, from 0 to 1; equal places share a rank."""
    keys = [place(u) for u in many]
    order = sorted(keys)
    return np.array([bisect_left(order, k) + bisect_right(order, k) - 1 for k in keys]) / 2 / max(1, len(many) - 1)


def _judged(a: Sequence[Unit], b: Sequence[Unit], like: Array, twins: Sequence[Twins], r: int, c: int) -> Match:
    """Make a pair with its doubts; `twins` are the modules of both sides by their words."""
    u, v = a[r], b[c]
    rows, cols = twins[0][u.words], twins[1][v.words]
    others = max(np.delete(like[r], cols).max(initial=0), np.delete(like[:, c], rows).max(initial=0))
    if like[r, c] >= others + CLEAR and len(rows) == len(cols):
        return Match(u, v, (NUMBERS if len(cols) > 1 else NAMES,))
    near = [k for k in np.lexsort((np.abs(np.arange(len(b)) - c), -like[r].round(2))) if k != c][:LISTED]
    return Match(u, v, (PLACE if len(a) == len(b) else SOME,), True, tuple(b[k].home for k in near))


# --- which blocks of the two sides match, and how well the names inside them do ---
#
#     conv2_block1, conv2_block2, conv3_block1     layer1.0, layer1.1, layer2.0
#     block2a, block2b                             _blocks.1, _blocks.2
#
# Blocks whose names differ only in numbers are a family. Two families are aligned in order, by the modules they hold.


MAX_CELLS = 40_000  # pairs of blocks of two families that are compared
MAX_FAMILIES = 60  # of a side that are compared with each other, the largest first
HELD = 0.75  # share of the modules of two families that need a counterpart of their signature
WORDS_WEIGHT = 0.3  # weight of the words of two families, against their modules (0 to 1)
NUMBER = re.compile(r"(?i:conv|pool|norm|lstm)[123][dD]|([0-9]+(?:[a-z](?![a-zA-Z0-9]))?)")  # 2a, but not conv2d
REPEATED = re.compile(r"(?<![^/.])(?![0-9]+[/.])([^/.]+)(?:[/.]\1)+(?![^/.])")  # Keras repeats the name of a layer
Signature = Callable[[Unit], Hashable]
Way = tuple[int, Any]  # a sum, and its pairs as a linked list


class Block(NamedTuple):
    """One block: its name, and its modules by the rest of their names."""

    name: str
    members: Mapping[str, Unit]


class Aligned(NamedTuple):
    """Target blocks by source blocks; how well two modules match (0 to 1), by their homes."""

    blocks: dict[str, str]
    inside: dict[str, dict[str, float]]
    depth: dict[str, int]  # the length of the name of the block that decided about a module


@lru_cache(maxsize=2**16)
def holding(home: str) -> tuple[str, ...]:
    """Return the blocks that hold a module: prefixes of its name that end in a number, perhaps the full name."""
    home = REPEATED.sub(r"\1", home)
    found = [home[: m.end()] for m in NUMBER.finditer(home) if m[1] and m.end() < len(home)]
    return (*found, home) if home[-1:].isdigit() else tuple(found)


def aligned(a: Sequence[Unit], b: Sequence[Unit], signature: Signature) -> Aligned:
    """Align the families of two sides, first those that have the most in common."""
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
    """Group blocks by name without numbers: those that repeat and hold several modules, in natural order."""
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
    """Find the pairs with the greatest sum that are in order on both sides; of equal sums, the earliest pairs."""
    columns = len(table[0])
    below: list[Way] = [(0, None)] * (columns + 1)  # with the last 0, 1, 2 ... columns
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
    """Add two families. Two modules match by the share of matching blocks that have both with one signature.

    If blocks are nested, the innermost decide.
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
