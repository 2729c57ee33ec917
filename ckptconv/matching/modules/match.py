"""Pair modules of one signature: by their names, their blocks and their order, for all of a class at once.

    conv2d_1, conv2d_2, conv2d_3          stem.conv, blocks.0.conv, blocks.1.conv      k-th with k-th
    conv2_block1_1_conv                   layer1.0.conv1                               in blocks that go together

The k-th of a class in the order of the source's file, or of the numbers in its names if the file is sorted, goes with
the k-th in the order in which the target defines its modules, unless names or blocks say otherwise.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ...checkpoint import Tensor
from ..names.likeness import MAX_CLASS, assigned, likeness, slices, words
from ..names.same import same_names
from ..orders.cells import Piece, cell_pieces
from ..orders.choose import TABLES, Judge
from ..orders.cuts import BundleOrder, bundle_order
from ..pairs import LISTED, Length, Pair, Side, Sides, left
from .bundles import bundled, parted
from .units import COUNT, MAIN, SIGNATURES, Unit, natural, units

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


ORDER = 0.3  # weight of the place in the class, against the likeness of words (0 to 1)
TIE = 0.03  # weight of alphabetical order, where nothing else decides
SHORT = 0.15  # for a word of one side that begins one of the other
LETTERS = 3  # of a short word, at most
CLEAR = 0.1  # how much likelier a pair must be than all others of its class to be taken by its names
TABLE = 0.5  # against an embedding table and a matrix that is multiplied
OPPOSITE = 0.5  # against forwards and backwards, pre and post: no order of a file outweighs that
INSIDE = 0.4  # weight of the blocks that hold them: the same, or others
ROLE = 0.4  # weight of standing in the same blocks

ONLY = "the only module of its shape on both sides"
ALIKE, ALMOST = 0.2, 0.01  # likeness below which names say nothing; what keeps the gain of a pair above zero
NAMES = "the names are alike, not the same"
NUMBERS = "numbers paired in order"
PLACE = "several modules have this shape, paired in order"
SOME = "several modules have this shape, not as many on both sides"
CONSTANTS = {"weight": 1.0, "bias": 0.0}
CONSTANT = "the original normalises without scale or offset: ones and zeros are filled in"

Place = Callable[[Unit], Any]
Class = tuple[list[Unit], list[Unit]]  # modules of both sides that may go together


class Match(NamedTuple):
    """Two modules that go together, why that is not certain, whether it is a real doubt, and what else it could be."""

    a: Unit
    b: Unit
    why: tuple[str, ...] = ()
    real: bool = False
    rivals: tuple[str, ...] = ()


def by_modules(sides: Sides, judge: Judge, pairs: Sequence[Pair], every: Sides) -> list[Pair]:
    """Pairs of modules, tensor by tensor; pieces on one side that are one tensor on the other among them.

    `sides` are what is left of `every`; modules that share a tensor of `pairs` stay together. In a target that holds
    the source's values (`prints`) tensors are paired only with what has the same ones.
    """
    out: list[Pair] = []
    named = same_names((units(sides[0]), units(sides[1])), (units(every[0]), units(every[1])))
    out += _tensors([Match(u, v) for u, v in named if "cell" not in (u.kind, v.kind)], sides, judge)
    rest = left(sides, out)
    whole = rest if every[0].prints else bundled(*rest)
    out += _tensors(_modules(*whole, [*pairs, *out], every), whole, judge)
    a, b = (replace(side, single=True) for side in left(sides, out))
    return out + _tensors(_modules(a, b, (), (a, b)), (a, b), judge)


def _tensors(found: Sequence[Match], sides: Sides, judge: Judge) -> list[Pair]:
    """The pairs of tensors of modules that go together."""
    out: list[Pair] = []
    for m in found:
        if "joint" in m.a.members or m.a.kind == m.b.kind == "cell":
            out += [_of_cell(m, piece, sides[0]) for piece in cell_pieces(m.a, m.b, judge)]
            continue
        both = [(t, m.b.members[role]) for role, t in m.a.members.items() if role in m.b.members]
        if not both and len(m.a.members) == len(m.b.members) == 1:
            both = [(m.a.members[m.a.main], m.b.members[m.b.main])]
        out += [p for a, b in both if (p := _of_role(m, a, b, sides, judge))]
    return out


def _of_cell(m: Match, piece: Piece, source: Side) -> Pair:
    why = tuple(w for w in (*m.why, piece.why, piece.also) if w)
    bundle = source.bundles.get(piece.sources[0])
    order = parted(piece.order, bundle) if bundle else piece.order
    return Pair(
        tuple(source.named(piece.sources)), piece.targets, order, "names", False, why, _rivals(m, piece.targets[0]),
        piece.axis, m.real or piece.real, piece.fills, piece.length,
    )  # fmt: skip


def _of_role(m: Match, a: Tensor, b: Tensor, sides: Sides, judge: Judge) -> Pair | None:
    prints = [side.prints.get(t.name) for side, t in zip(sides, (a, b), strict=True)]
    if a.dtype.kind != b.dtype.kind or prints[0] != prints[1]:
        return None
    if a.name in sides[0].bundles or b.name in sides[1].bundles:
        found = bundle_order(a, b, sides, judge)
    else:
        judged = judge.order(a, b)
        found = BundleOrder(judged) if judged else None
    if found is None:
        return None
    (order, doubt, real), axis, each = found
    constant = prints[0] is not None and prints[0].constant
    kinds = f"{a.dtype} is to be {b.dtype}" if a.dtype != b.dtype else ""
    why = tuple(w for w in (*m.why, "" if constant else doubt, kinds) if w)
    return Pair(
        tuple(sides[0].named([a.name])), tuple(sides[1].named([b.name])), order, "equal" if prints[0] else "names",
        not why, why, _rivals(m, b.name), axis, m.real or (real and not constant), each=each,
    )  # fmt: skip


def _rivals(m: Match, name: str) -> tuple[str, ...]:
    """The same tensor of the modules that it could also be."""
    tail = name.removeprefix(m.b.home) if name.startswith(m.b.home) else ""
    return tuple(f"{home}{tail}" for home in m.rivals) if tail else ()


def with_constants(pairs: Sequence[Pair], sides: Sides) -> list[Pair]:
    """The pairs, those of batch normalisations without scale or offset with what stands for these: ones, zeros."""
    homes = [{t.name: u for u in units(side) for t in u.members.values()} for side in sides]
    made = {n for p in pairs for n in p.targets}
    out = []
    for p in pairs:
        a, b = homes[0].get(p.sources[0]), homes[1].get(p.targets[0])
        if a and b and a.kind == b.kind == "batch norm" and b.members["running_mean"].name in p.targets:
            lacking = [r for r in CONSTANTS if r in b.members and r not in a.members and b.members[r].name not in made]
            if lacking:
                fills = tuple((b.members[r].name, (CONSTANTS[r],)) for r in lacking)
                p = p._replace(fills=(*p.fills, *fills), sure=False, why=(*p.why, CONSTANT))
        out.append(p)
    return out


MULTIPLE = 8  # what a padded length is a multiple of
LEAST, SHARE = 64, 8  # elements that padding may add: so many, or that part of the length
PADDED = "the lengths differ, {} and {}: taken to be a vocabulary that was padded"


def by_length(sides: Sides, judge: Judge) -> list[Pair]:
    """Pairs of what is left whose lengths differ by padding: matrices, then vectors that are as long as they.

    wte [50257, 768] -> transformer.wte.weight [50304, 768]      pad = { axis = 0, from = 50257, to = 50304 }
    """
    out: list[Pair] = []
    for rank in (2, 1):
        ours, theirs = ([t for t in side.tensors.values() if len(t.shape) == rank][:MAX_CLASS] for side in sides)
        if not ours or not theirs:
            break
        gain = ALMOST + likeness([words(t.name) for t in ours], [words(t.name) for t in theirs])
        lengths = {(p.length.before, p.length.to) for p in out if p.length}
        for r, a in enumerate(ours):
            for c, b in enumerate(theirs):
                both = max(a.shape), max(b.shape)
                fits = sorted(a.shape)[:-1] == sorted(b.shape)[:-1] and a.dtype.kind == b.dtype.kind
                if not fits or (both not in lengths if rank == 1 else not padded(*both)):
                    gain[r, c] = 0
        for r, c in assigned(gain):
            a, b = ours[r], theirs[c]
            old, new = max(a.shape), max(b.shape)
            judged = judge.order(replace(a, shape=tuple(new if n == old else n for n in a.shape)), b)
            lone = (gain[r] > 0).sum() == (gain[:, c] > 0).sum() == 1
            if judged and b.shape.count(new) == 1 and (lone or rank == 1 or gain[r, c] >= ALMOST + ALIKE):
                why, change = (PADDED.format(old, new),), Length(b.shape.index(new), old, new)
                out.append(Pair((a.name,), (b.name,), judged.order, sure=False, real=True, why=why, length=change))
    return out


def padded(one: int, other: int) -> bool:
    """Whether the longer of two lengths can be the shorter one, padded."""
    short, long = sorted((one, other))
    return short < long <= short + max(LEAST, short // SHARE) and long % MULTIPLE == 0


# --- which module is which -----------------------------------------------------------------------------------------


def _modules(a: Side, b: Side, pairs: Sequence[Pair], whole: Sides) -> list[Match]:
    """Pair the modules that are left; `whole` are both sides with what is paired already."""
    around = _in_order_of(_merged(a, whole[0]), False), _in_order_of(_merged(b, whole[1]), True)
    paired = _homes(pairs, around)
    ours, theirs = _in_order_of(a, False), _in_order_of(b, True)
    by_home = {u.home: u for u in theirs}
    known = {u.home: p for u in ours if (p := paired.get(u.home)) and p[0] in by_home}
    done = {x: y for x, (y, _) in known.items()}
    out = [Match(u, by_home[done[u.home]], known[u.home][1]) for u in ours if u.home in done]
    blocks = aligned(*around, lambda u: u.signatures[MAIN])
    if not blocks.blocks:  # where hardly any keeps its axes: modules of as many elements
        blocks = aligned(*around, lambda u: u.signatures[COUNT])

    def solved(place: Place) -> tuple[float, list[Match]]:
        return _solved((ours, theirs), dict(done), (a, b), place, blocks)

    best = solved(lambda u: u.counted)
    if list(a.tensors) == sorted(a.tensors):  # alphabetical order means nothing
        return out + best[1]
    best, second = sorted((best, solved(lambda u: u.at)), key=lambda found: -found[0])
    other = {m.a.home: m.b.home for m in second[1]}
    return out + [
        m if m.b.home == other.get(m.a.home, m.b.home) else m._replace(real=True, rivals=(other[m.a.home], *m.rivals))
        for m in best[1]
    ]


def _solved(
    units: tuple[list[Unit], list[Unit]], done: dict[str, str], sides: Sides, place: Place, blocks: Aligned
) -> tuple[float, list[Match]]:
    """All pairs if the source's modules come in this order, and how well they agree."""
    total, out = 0.0, list[Match]()
    for even in (True, False):  # classes of as many modules on both sides first
        for level in range(len(SIGNATURES)):
            for all_a, all_b in _classes(units, sides, done, level):
                if len(all_a) != len(all_b) and even:
                    continue
                for a, b in slices(sorted(all_a, key=place), all_b):
                    score, made = _class(a, b, sides, place, blocks)
                    total += score
                    out += made
                    done |= {m.a.home: m.b.home for m in made}
    return total, out


def _in_order_of(side: Side, target: bool) -> list[Unit]:
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


def _homes(known: Sequence[Pair], sides: Sequence[Sequence[Unit]]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The homes of modules that share a pair, and what is doubtful about that."""
    owners = [{t.name: u.home for u in side for t in u.members.values()} for side in sides]
    out: dict[str, tuple[str, tuple[str, ...]]] = {}
    for p in sorted(known, key=lambda p: not p.sure):
        if len(p.sources) == len(p.targets) == 1 and p.sources[0] in owners[0] and p.targets[0] in owners[1]:
            out.setdefault(owners[0][p.sources[0]], (owners[1][p.targets[0]], p.why))
    return out


def _classes(sides: tuple[list[Unit], list[Unit]], whole: Sides, done: Mapping[str, str], level: int) -> list[Class]:
    """Unpaired modules of one signature, and of one content where that is known."""
    gone = done.keys(), set(done.values())
    found: dict[Hashable, Class] = defaultdict(lambda: ([], []))
    for k, many in enumerate(sides):
        for u in many:
            if u.home not in gone[k]:
                content = whole[k].prints.get(u.members[u.main].name)
                found[u.signatures[level], content][k].append(u)
    return [(x, y) for x, y in found.values() if x and y]


def _class(
    a: Sequence[Unit], b: Sequence[Unit], sides: Sides, place: Place, blocks: Aligned
) -> tuple[float, list[Match]]:
    """Pair modules of one signature by their words, blocks and places, and say how well they agree."""
    if len(a) == len(b) == 1:
        return 1.0, [Match(a[0], b[0], (ONLY,))]
    import numpy as np

    like = likeness([u.words for u in a], [u.words for u in b])
    tables = [np.array([_table(u, side) for u in many]) for many, side in zip((a, b), sides, strict=True)]
    like -= TABLE * (tables[0][:, None] != tables[1][None, :])
    ways = [np.array([("forward" in u.words) - ("backward" in u.words) for u in many]) for many in (a, b)]
    like -= OPPOSITE * (ways[0][:, None] * ways[1][None, :] < 0)
    for rows, cols in _opposed(a, b):
        like[np.ix_(rows, cols)] -= OPPOSITE
    for rows, cols in (*_short(a, b), *((r, c) for c, r in _short(b, a))):
        like[np.ix_(rows, cols)] += SHORT
    columns = np.linspace(0, 1, len(b))[None, :]
    score = like - ORDER * (_ranks(a, place)[:, None] - columns) ** 2
    score -= TIE * (_ranks(a, lambda u: u.natural)[:, None] - columns) ** 2
    score += _in_blocks(blocks, a, b)
    chosen = assigned(score + 10)
    return sum(float(score[r, c]) for r, c in chosen), [_judged(a, b, like, r, c) for r, c in chosen]


def _judged(a: Sequence[Unit], b: Sequence[Unit], like: Array, r: int, c: int) -> Match:
    """A pair with what is doubtful about it."""
    import numpy as np

    u, v = a[r], b[c]
    twins = np.array([x.words == v.words for x in b]), np.array([x.words == u.words for x in a])
    others = np.concatenate([like[r, ~twins[0]], like[~twins[1], c]])
    if like[r, c] >= (others.max() if others.size else 0.0) + CLEAR and twins[0].sum() == twins[1].sum():
        numbered = (NUMBERS,) if twins[0].sum() > 1 else ()
        return Match(u, v, numbered if numbered and u.words == v.words else (NAMES, *numbered))
    order = np.lexsort((np.abs(np.arange(len(b)) - c), -like[r].round(2)))
    near = [int(k) for k in order[: LISTED + 1] if k != c]
    return Match(u, v, (PLACE if len(a) == len(b) else SOME,), True, tuple(b[k].home for k in near[:LISTED]))


def _ranks(many: Sequence[Unit], place: Place) -> Array:
    """The place of each module among all, 0 to 1; those of one place share it."""
    import numpy as np

    at: dict[Any, list[int]] = defaultdict(list)
    for k, key in enumerate(sorted(place(u) for u in many)):
        at[key].append(k)
    return np.array([np.mean(at[place(u)]) for u in many]) / max(1, len(many) - 1)


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
    name = u.members[u.main].name
    kind = side.kinds.get(name, "")
    return kind == "embedding" if kind else any(word in name.lower() for word in TABLES)


def _in_blocks(blocks: Aligned, one: Sequence[Unit], other: Sequence[Unit]) -> Array:
    """What the blocks say: those that go together, and the names inside them; the same for all pairs."""
    import numpy as np

    a, b = [u.home for u in one], [u.home for u in other]
    chains: tuple[dict[tuple[str, ...], int], dict[tuple[str, ...], int]] = ({}, {})
    known = blocks.blocks, blocks.back
    at = [
        np.array([chain.setdefault(tuple(p for p in holding(home) if p in found), len(chain)) for home in homes])
        for homes, chain, found in zip((a, b), chains, known, strict=True)
    ]
    table = np.array([[blocks.agree(x, y) for y in chains[1]] for x in chains[0]])
    out = np.asarray(INSIDE * table[np.ix_(*at)], "f8")
    places = {home: c for c, home in enumerate(b)}
    for r, home in enumerate(a):
        for x, share in blocks.inside.get(home, {}).items():
            if x in places:
                out[r, places[x]] += ROLE * share
    return out


MAX_CELLS = 40_000  # pairs of blocks of two families that are compared
MAX_FAMILIES = 60  # of a side that are compared with each other, the largest first
HELD = 0.75  # of the modules of two families that must find one of their signature
OUTSIDE = -0.5  # of a module in a block that has a counterpart, and one that is in none
WORDS_WEIGHT = 0.3  # weight of the words of two families, against what they hold (0 to 1)
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


def holding(home: str) -> tuple[str, ...]:
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
            same, pairs = _in_step(held[0][i], held[1][j])
            if 2 * same >= HELD * total:
                found.append((-2 * same / total - WORDS_WEIGHT * float(like[i, j]), -same, i, j, pairs))
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
        for p in holding(bare):
            made[NUMBER.sub(lambda m: "#" if m[1] else m[0], p)][p][bare[len(p) :]] = u
    found = [
        [Block(name, blocks[name]) for name in sorted(blocks, key=natural)]
        for blocks in made.values()
        if len(blocks) > 1 and max(map(len, blocks.values())) > 1
    ]
    return sorted(found, key=lambda f: -sum(len(x.members) for x in f))[:MAX_FAMILIES]


def _in_step(a: Sequence[Held], b: Sequence[Held]) -> tuple[int, list[tuple[int, int]]]:
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
