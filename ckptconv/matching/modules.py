"""Pair modules of one signature: by their names, their neighbours and their order, for all of a class at once.

    conv2d_1, conv2d_2, conv2d_3          stem.conv, blocks.0.conv, blocks.1.conv      k-th with k-th
    batch_normalization_3 after conv2d_3  blocks.1.bn after blocks.1.conv              their neighbours are a pair

The k-th of a class in the natural order of the source's names goes with the k-th in the order in which the target
defines its modules, unless names or neighbours say otherwise. The order of the file is tried as well, if it is not
alphabetic; the better of the two is taken, and where they differ the pair is a real doubt.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from .blocks import Aligned, Named, aligned, companions, longest
from .doubt import TABLES
from .names import assigned, likeness
from .pairs import LISTED, Pair, leaf
from .side import Side
from .surroundings import Near, beside
from .units import COUNT, MAIN, SIGNATURES, Unit, units
from .words import RANK

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_CLASS = 1000  # modules of one signature that are solved at once; names alone decide beyond
ROUNDS = 3  # neighbours that were paired in one round are evidence in the next
SAME = 0.5  # weight of equal words
ORDER = 0.3  # weight of the place in the class, against the likeness of words (0 to 1)
TIE = 0.03  # weight of alphabetical order, where nothing else decides
MAX_STEPS = 250_000  # pairs of modules of one kind that are compared for that
STEP = 0.05  # of the modules, by which one order must be better to be taken for that
SHORT = 0.15  # for a word of one side that begins one of the other
LETTERS = 3  # of a short word, at most
OWN = 0.3  # for layer_norm1 and ln_1, where the numbers of all are the same on both sides
ROLES = 0.1  # for tensors of the same roles: a bias or none
CLEAR = 0.1  # how much likelier a pair must be than all others of its class to be taken by its names
TABLE = 0.5  # against an embedding table and a matrix that is multiplied
OPPOSITE = 0.5  # against a cell that runs forwards and one that runs backwards: no order of a file outweighs that

ONLY = "the only module of its shape on both sides"
NAMES = "the names are alike, not the same"
NUMBERS = "numbers paired in order"
PLACE = "several modules have this shape, paired in order"
SOME = "several modules have this shape, not as many on both sides"


Place = Callable[[Unit], Any]


def counted(u: Unit) -> Any:
    """The place of a module whose file is sorted: the numbers in its name, because alphabetical order means nothing."""
    return u.counted


class Match(NamedTuple):
    """Two modules that go together, why that is not certain, whether it is a real doubt, and what else it could be."""

    a: Unit
    b: Unit
    why: tuple[str, ...]
    real: bool
    rivals: tuple[str, ...]


class Sides(NamedTuple):
    """The modules of both sides that are left, which are known to go together, and what surrounds them."""

    a: list[Unit]
    b: list[Unit]
    known: dict[str, str]
    all_a: list[Unit]
    all_b: list[Unit]
    paired: Mapping[str, str]
    blocks: Aligned
    named: tuple[Mapping[str, Named], Mapping[str, Named]]


def pair(a: Side, b: Side, known: Sequence[Pair], whole: tuple[Side, Side]) -> list[Match]:
    """Pair the modules of two checkpoints; those that share a tensor of `known` stay together.

    `whole` are both sides with what is paired already: the surroundings of the modules that are left.
    """
    around = [
        _units(_merged(side, every), ours) for side, every, ours in zip((a, b), whole, (False, True), strict=True)
    ]
    sides = Sides(
        _units(a, False), _units(b, True), {}, around[0], around[1], _homes(known, around),
        _blocks(*around), (companions(around[0]), companions(around[1])),
    )  # fmt: skip
    sides.known.update(_homes(known, (sides.a, sides.b)))
    found = _solved(sides, a, b, counted)
    if list(a.tensors) == sorted(a.tensors):
        return found[1]
    other = _solved(sides, a, b, lambda u: u.at)
    orders = _in_step(sides, counted), _in_step(sides, lambda u: u.at)
    first = found[0] >= other[0] if abs(orders[0] - orders[1]) < STEP else orders[0] > orders[1]
    best, second = (found, other) if first else (other, found)
    rest = {m.a.home: m.b.home for m in second[1]}
    return [
        m if m.b.home == rest.get(m.a.home, m.b.home) else m._replace(real=True, rivals=(rest[m.a.home], *m.rivals))
        for m in best[1]
    ]


def _blocks(a: Sequence[Unit], b: Sequence[Unit]) -> Aligned:
    """Blocks that hold the same modules; where hardly any keeps its axes, modules of as many elements."""
    found = aligned(a, b, lambda u: u.signatures[MAIN])
    return found if found.blocks else aligned(a, b, lambda u: u.signatures[COUNT])


def _in_step(sides: Sides, place: Place) -> float:
    """The share of modules that follow one another on both sides, kind by kind, by nothing but their signatures.

    The convolutions of a whole net in the right order agree one by one, in another order they do not.
    """
    same = total = 0
    for kind in {u.kind for u in sides.a}:
        a = [u.signatures[MAIN] for u in sorted((u for u in sides.a if u.kind == kind), key=place)]
        b = [u.signatures[MAIN] for u in sides.b if u.kind == kind]
        if a and b and len(a) * len(b) <= MAX_STEPS:
            same += longest([[x == y for y in b] for x in a])[0]
            total += min(len(a), len(b))
    return same / max(1, total)


def _units(side: Side, target: bool) -> list[Unit]:
    """The modules of a side, counters left out; of a target that is a sorted file, which lost their order, sorted."""
    found = [u for u in units(side) if any(t.shape or t.dtype.kind == "f" for t in u.members.values())]
    if target and list(side.tensors) == sorted(side.tensors):
        found.sort(key=lambda u: u.natural)
    return found


def _merged(side: Side, whole: Side) -> Side:
    """What is left of a side, with its bundles, among all that it had, in the order of the whole."""
    at = {n: k for k, n in enumerate(whole.tensors)}
    pieces = {m for n in side.bundles for m in side.bundles[n].names}
    if whole.tensors.keys() <= side.tensors.keys():
        return side
    both = {n: t for n, t in whole.tensors.items() if n not in pieces} | dict(side.tensors)
    order = sorted(both, key=lambda n: at[side.bundles[n].names[0] if n in side.bundles else n])
    return replace(side, tensors={n: both[n] for n in order})


def _homes(known: Iterable[Pair], sides: Sequence[Sequence[Unit]]) -> dict[str, str]:
    """The homes of modules that share a pair."""
    owners = [{t.name: u.home for u in side for t in u.members.values()} for side in sides]
    out: dict[str, str] = {}
    for p in known:
        if len(p.sources) == len(p.targets) == 1 and p.sources[0] in owners[0] and p.targets[0] in owners[1]:
            out.setdefault(owners[0][p.sources[0]], owners[1][p.targets[0]])
    return out


def _solved(sides: Sides, a: Side, b: Side, place: Place) -> tuple[float, list[Match]]:
    """All pairs if the source's modules come in this order, and how well they agree."""
    done = dict(sides.known)
    total, out = 0.0, _known(sides)
    near_by = (lambda u: u.natural) if place is counted else place
    around = beside(sorted(sides.all_a, key=near_by)), beside(sides.all_b)
    norms = {u.home for u in sides.all_b if "norm" in u.kind}
    rows = {home for home in norms if norms & set(around[1][home])}
    for level, even in [(k, e) for e in (True, False) for k in range(len(SIGNATURES))]:
        classes = [Class(x, y, (a, b), place) for x, y in _classes(sides, done, level) if len(x) == len(y) or not even]
        found: list[tuple[Class, float, int, int]] = []
        for _ in range(1 if all(x.alone for x in classes) else ROUNDS):
            pairs = {**sides.paired, **done, **{x.a[r].home: x.b[c].home for x, _, r, c in found}}
            near = Near(pairs, around, sides.blocks, sides.named, rows)
            found = [(x, *solved) for x in classes for solved in x.solved(near)]
        made = [x.judged(r, c) for x, _, r, c in found]
        done |= {m.a.home: m.b.home for m in made}
        total += sum(score for _, score, _, _ in found)
        out += made
    return total, out


def _known(sides: Sides) -> list[Match]:
    by_home = {u.home: u for u in sides.b}
    return [Match(u, by_home[sides.known[u.home]], (), False, ()) for u in sides.a if u.home in sides.known]


def _classes(sides: Sides, done: Mapping[str, str], level: int) -> list[tuple[list[Unit], list[Unit]]]:
    """Unpaired modules of one signature."""
    taken = set(done.values())
    found: dict[Hashable, tuple[list[Unit], list[Unit]]] = defaultdict(lambda: ([], []))
    for u in sides.a:
        if u.home not in done:
            found[u.signatures[level]][0].append(u)
    for u in sides.b:
        if u.home not in taken:
            found[u.signatures[level]][1].append(u)
    return [(x, y) for x, y in found.values() if x and y and max(len(x), len(y)) <= MAX_CLASS]


class Class:
    """Modules of one signature on both sides, and how well their words and places agree."""

    def __init__(self, a: list[Unit], b: list[Unit], sides: tuple[Side, Side], place: Place) -> None:
        self.a, self.b = sorted(a, key=place), b
        self.alone = len(a) == len(b) == 1
        self.last: tuple[Array, list[tuple[float, int, int]]] | None = None  # what was solved, and the solution
        self.held: Array | None = None
        if self.alone:
            return
        import numpy as np

        ids: dict[tuple[str, ...], int] = {}
        self.words = [np.array([ids.setdefault(u.words, len(ids)) for u in many]) for many in (self.a, b)]
        tables = [np.array([_table(u, side) for u in many]) for many, side in zip((self.a, b), sides, strict=True)]
        self.like = likeness([u.words for u in self.a], [u.words for u in b])
        self.like += SAME * (self.words[0][:, None] == self.words[1][None, :])
        self.like -= TABLE * (tables[0][:, None] != tables[1][None, :])
        ways = [np.array([_way(u) for u in many]) for many in (self.a, b)]
        self.like -= OPPOSITE * (ways[0][:, None] * ways[1][None, :] < 0)
        for rows, cols in _opposed(self.a, b):
            self.like[np.ix_(rows, cols)] -= OPPOSITE
        for rows, cols in (*_short(self.a, b), *((r, c) for c, r in _short(b, self.a))):
            self.like[np.ix_(rows, cols)] += SHORT
        own = [np.array([_own(u) for u in many]) for many in (self.a, b)]
        same = (own[0][:, None] == own[1][None, :]) & (own[0][:, None] >= 0)
        columns = np.linspace(0, 1, len(b))[None, :]
        roles = [np.array([hash(frozenset(u.members)) for u in many]) for many in (self.a, b)]
        self.base = self.like + ROLES * (roles[0][:, None] == roles[1][None, :])
        self.base += OWN * same if {*own[0]} - {-1} == {*own[1]} - {-1} else 0.0
        self.base -= ORDER * (_ranks(self.a, place)[:, None] - columns) ** 2
        self.base -= TIE * (_ranks(self.a, lambda u: u.natural)[:, None] - columns) ** 2

    def solved(self, near: Near) -> list[tuple[float, int, int]]:
        """The pairs that agree best, and how well."""
        if self.alone:
            return [(1.0, 0, 0)]
        self.held = near.held(self.a, self.b) if self.held is None else self.held
        agree = self.base + near.gains(self.a, self.b, self.held)
        if self.last is None or (agree != self.last[0]).any():
            self.last = agree, [(float(agree[r, c]), r, c) for r, c in assigned(agree + 10)]
        return self.last[1]

    def judged(self, r: int, c: int) -> Match:
        """A pair with what is doubtful about it."""
        u, v = self.a[r], self.b[c]
        if self.alone:
            return Match(u, v, (ONLY,), False, ())
        import numpy as np

        twins = self.words[1] == self.words[1][c], self.words[0] == self.words[0][r]
        others = np.concatenate([self.like[r, ~twins[0]], self.like[~twins[1], c]])
        if self.like[r, c] >= (others.max() if others.size else 0.0) + CLEAR and twins[0].sum() == twins[1].sum():
            numbered = (NUMBERS,) if twins[0].sum() > 1 else ()
            return Match(u, v, numbered if numbered and u.words == v.words else (NAMES, *numbered), False, ())
        order = np.lexsort((np.abs(np.arange(len(self.b)) - c), -self.like[r].round(2)))
        near = [int(k) for k in order[: LISTED + 1] if k != c]
        why = PLACE if len(self.a) == len(self.b) else SOME
        return Match(u, v, (why,), True, tuple(self.b[k].home for k in near[:LISTED]))


def _ranks(many: Sequence[Unit], place: Place) -> Array:
    """The place of each module among all, 0 to 1; those of one place share it."""
    import numpy as np

    at: dict[Any, list[int]] = defaultdict(list)
    for k, key in enumerate(sorted(place(u) for u in many)):
        at[key].append(k)
    return np.array([np.mean(at[place(u)]) for u in many]) / max(1, len(many) - 1)


def _own(u: Unit) -> int:
    """The number in the last segment of a name, which counts modules of one kind in one place; -1 if it has none."""
    found = re.findall("[0-9]+", RANK.sub(r"\1", leaf(u.home)))
    return int(found[-1]) if found and len(found[-1]) <= LETTERS else -1


def _way(u: Unit) -> int:
    """1 if a name says forward, -1 if it says backward, 0 if it says neither."""
    return ("forward" in u.words) - ("backward" in u.words)


def _opposed(a: Sequence[Unit], b: Sequence[Unit]) -> Iterator[tuple[list[int], list[int]]]:
    """Modules of both sides of which one stands before what the other stands behind: pre_attention, post_attention."""
    for one, other in (("pre", "post"), ("post", "pre")):
        found: tuple[dict[str, list[int]], dict[str, list[int]]] = (defaultdict(list), defaultdict(list))
        for many, way, at in ((a, one, found[0]), (b, other, found[1])):
            for k, u in enumerate(many):
                for x, y in pairwise(u.words) if way in u.words else ():
                    if x == way:
                        at[y].append(k)
        yield from ((found[0][y], found[1][y]) for y in found[0].keys() & found[1].keys())


def _short(a: Sequence[Unit], b: Sequence[Unit]) -> Iterator[tuple[list[int], list[int]]]:
    """Modules of one side with a short word, and those of the other with a word that begins so: in, incoming."""
    known = {w for u in b for w in u.words}
    short: dict[str, list[int]] = defaultdict(list)
    for k, u in enumerate(a):
        for w in {*u.words} - known:
            if len(w) <= LETTERS and w.isalpha():
                short[w].append(k)
    for word, rows in short.items():
        columns = [k for k, u in enumerate(b) if any(w.startswith(word) for w in u.words)]
        if len(columns) < len(b):
            yield rows, columns


def _table(u: Unit, side: Side) -> bool:
    """Whether a matrix is looked up rather than multiplied, as its class or its name says."""
    kind = side.kinds.get(u.members[u.main].name, "")
    return kind == "embedding" if kind else any(word in u.home.lower() for word in TABLES) or "embeddings" in u.words
