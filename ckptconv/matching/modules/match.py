"""Pair the tensors of modules that go together, then the remaining tensors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...checkpoint import Tensor
from ..likeness import MAX_CLASS, likeness, words
from ..orders.choose import Judge, cell_pairs, is_torch
from ..orders.cuts import bundle_order
from ..pairs import Length, Pair, Sides, leaf, left
from .bundles import bundled, parted
from .solve import NUMBERS, Match, matched
from .units import COUNT, MAIN, Unit, units

CONSTANTS = {"weight": 1.0, "bias": 0.0}
INVERSE = ("inv_std", "invstd")  # of Lasagne
INVERSE_TEXT = "one holds 1 / sqrt(variance + epsilon) and the other the variance, which no rule computes"
CONSTANT = "the original normalises without scale or offset: ones and zeros are filled in"


def by_modules(sides: Sides, judge: Judge, pairs: Sequence[Pair], every: Sides) -> list[Pair]:
    """Pair modules, tensor by tensor, including pieces on one side that are one tensor on the other.

    sides: the unmatched tensors of `every`. Modules that share a tensor of `pairs` stay together. If the target holds
    the source's values (`prints`), only tensors with equal values are paired.
    """
    out: list[Pair] = []
    named = same_names((units(sides[0]), units(sides[1])), (units(every[0]), units(every[1])))
    out += _tensors([m for m in named if "cell" not in (m.a.kind, m.b.kind)], sides, judge)
    rest = left(sides, out)
    whole = rest if every[0].prints else bundled(*rest)
    out += _tensors(matched(whole, [*pairs, *out], every), whole, judge)
    a, b = (replace(side, single=True) for side in left(sides, out))
    return out + _tensors(matched((a, b), (), (a, b)), (a, b), judge)


def _tensors(found: Sequence[Match], sides: Sides, judge: Judge) -> list[Pair]:
    """Pair the tensors of matched modules; a scale or offset that only the target has becomes a constant."""
    out: list[Pair] = []
    for m in found:
        if "joint" in m.a.members or m.a.kind == m.b.kind == "cell":
            out += _of_cells(m, sides, judge)
            continue
        both = [(t, m.b.members[role]) for role, t in m.a.members.items() if role in m.b.members]
        if not both and m.why and len(m.a.members) == len(m.b.members) == 1:
            both = [(m.a.members[m.a.main], m.b.members[m.b.main])]
        lacking = () if sides[0].prints else m.b.members.keys() - m.a.members
        fills = tuple((m.b.members[r].name, (c,)) for r, c in CONSTANTS.items() if r in lacking)
        for p in filter(None, (_of_role(m, *pair, sides, judge) for pair in both)):
            if fills and p.targets[0].endswith("running_mean"):
                p = p._replace(fills=fills, sure=False, real=p.real or len(fills) > 1, why=(*p.why, CONSTANT))
            out.append(p)
    return out


def _of_cells(m: Match, sides: Sides, judge: Judge) -> Iterator[Pair]:
    """Pair the tensors of two cells, one of which is torch's."""
    back = is_torch(m.a) and not is_torch(m.b) and judge.target is not None
    side = sides[back]
    for p in cell_pairs(m.b, m.a, judge.target) if back and judge.target else cell_pairs(m.a, m.b, judge):
        bundle = side.bundles.get(p.sources[0])
        p = p._replace(sources=tuple(side.named(p.sources)), order=parted(p.order, bundle) if bundle else p.order)
        p = p.inverse if back else p
        yield p._replace(why=(*m.why, *p.why), rivals=_rivals(m, p.targets[0]), real=m.real or p.real)


def _of_role(m: Match, a: Tensor, b: Tensor, sides: Sides, judge: Judge) -> Pair | None:
    prints = [side.prints.get(t.name) for side, t in zip(sides, (a, b), strict=True)]
    if a.dtype.kind != b.dtype.kind or prints[0] != prints[1]:
        return None
    pieces = a.name in sides[0].bundles or b.name in sides[1].bundles
    found = bundle_order(a, b, sides, judge) if pieces else judge.order(a, b)
    if found is None:
        return None
    order, doubt, real, each = found
    constant = prints[0] is not None and prints[0].constant
    kinds = f"the source has {a.dtype}, the target {b.dtype}" if a.dtype != b.dtype else ""
    inverse = INVERSE_TEXT if (leaf(a.name) in INVERSE) != (leaf(b.name) in INVERSE) else ""
    why = tuple(w for w in (*m.why, "" if constant else doubt, kinds, inverse) if w)
    return Pair(
        tuple(sides[0].named([a.name])), tuple(sides[1].named([b.name])), order, "equal" if prints[0] else "names",
        not why, why, _rivals(m, b.name), m.real or bool(inverse) or (real and not constant), each=each,
    )  # fmt: skip


def _rivals(m: Match, name: str) -> tuple[str, ...]:
    """Return the same tensor in the rival modules."""
    home = m.b.home
    return tuple(name.replace(home, other, 1) for other in m.rivals if name.startswith(home))


MULTIPLE = 8  # padded lengths are multiples of this
LEAST, SHARE = 64, 8  # padding may add LEAST elements, or the length divided by SHARE
PADDED = "the lengths differ, {} and {}: taken to be a vocabulary that was padded"


def by_length(sides: Sides, judge: Judge) -> list[Pair]:
    """Pair remaining tensors, except those of cells, whose lengths differ by padding: matrices, then their vectors.

    wte [50257, 768] -> transformer.wte.weight [50304, 768]      pad = { axis = 0, from = 50257, to = 50304 }
    """
    out: list[Pair] = []
    used = set[tuple[int, str]]()
    free = [[t for u in units(side) if u.kind != "cell" for t in u.members.values()] for side in sides]
    for rank in (2, 1):
        ours, theirs = ([t for t in many if len(t.shape) == rank][:MAX_CLASS] for many in free)
        lengths = {(p.length.before, p.length.to) for p in out if p.length}
        both = [
            (r, c)
            for r, a in enumerate(ours)
            for c, b in enumerate(theirs)
            if _padded(a, b) and (rank == 2 or (a.count, b.count) in lengths)
        ]
        if not both:
            break
        like = likeness([words(t.name) for t in ours], [words(t.name) for t in theirs])
        for r, c in sorted(both, key=lambda at: -like[at]):
            a, b = ours[r], theirs[c]
            old, new = max(a.shape), max(b.shape)
            judged = judge.order(replace(a, shape=tuple(new if n == old else n for n in a.shape)), b)
            pair = {(0, a.name), (1, b.name)}
            if judged and not used & pair:
                why, change = (PADDED.format(old, new),), Length(b.shape.index(new), old, new)
                out.append(Pair((a.name,), (b.name,), judged.order, sure=False, real=True, why=why, length=change))
                used |= pair
    return out


def _padded(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors differ in the length of one axis, and the longer one may be padded."""
    (*rest, old), (*other, new) = sorted(a.shape), sorted(b.shape)
    short, long = sorted((old, new))
    fits = short < long <= short + max(LEAST, short // SHARE) and long % MULTIPLE == 0
    return fits and rest == other and new not in rest and a.dtype.kind == b.dtype.kind


# --- modules whose names mean the same, as no others do; their numbers are equal or all shifted ---
#
# bert/encoder/layer_3/attention/self/query     encoder.layer.3.attention.self.query
# enc/layer_1, enc/layer_2, enc/layer_3         enc.layers.0, enc.layers.1, enc.layers.2
#
# Words that the other side never uses are left out, and a repeated name (conv1/conv1) is read once. The remaining words
# must be equal, or end with one another, and no third name may end so. If both sides leave out words in one place, they
# contradict each other: pre_attention_norm is not post_attention_norm. Words that most modules have, such as the name
# of the model, do not count.


CLASSES = {"#", "dense", "conv", "norm"}  # words for kinds of modules, not single ones
Words = tuple[str, ...]  # of a module, with # for numbers
Numbers = tuple[int, ...]
Kept = list[tuple[str, frozenset[str]]]  # words that both sides use, each with those that were left out before it
Both = tuple[Sequence[Unit], Sequence[Unit]]


def same_names(sides: Both, every: Both) -> Iterator[Match]:
    """Pair modules of both sides by names; all modules in `every` decide which words matter."""
    ends = [_ends(_read(every, side)) for side in (0, 1)]
    members: list[dict[Words, list[Unit]]] = [defaultdict(list), defaultdict(list)]
    for k, many in enumerate(sides):
        for u in many:
            members[k][_words(u)].append(u)
    level = len(sides[0]) == len(sides[1])  # otherwise bn may not be bn1, the last of several
    for end in [e for e in ends[0] if e in ends[1] and len(e) > 1]:  # not the kind alone
        if len(ends[0][end]) == len(ends[1][end]) == 1:
            (s, x), (t, y) = (next(iter(found[end].items())) for found in ends)
            a, b = members[0][s], members[1][t]
            same = len(a) == len(b) and (level or len(a) != 1 or a[0].counted == b[0].counted)
            said = same or not CLASSES.issuperset(end[:-1])  # not by fc1, fc2 and Dense_0, Dense_1, Dense_2
            gaps = zip(x[-len(end) :], y[-len(end) :], strict=True)
            if said and len(end) in (len(x), len(y)) and not any(v and w and v != w for (_, v), (_, w) in gaps):
                yield from _by_numbers(a, b)


def _words(u: Unit) -> Words:
    return (*u.words, u.kind)


def _read(every: Both, side: int) -> Iterator[tuple[Words, Kept]]:
    """Yield the names of a side without numbers, and the words kept of each."""
    used = {w for u in every[1 - side] for w in _words(u)} - {"#"}
    held = Counter(w for u in every[side] for w in {*u.words})
    whole = {"#", *(w for w, n in held.items() if n > len(every[side]) / 2)}
    for name in dict.fromkeys(map(_words, every[side])):
        out: Kept = []
        gap: set[str] = set()
        for word in name:
            if word not in used:
                gap |= {word} - whole
                continue
            out.append((word, frozenset(gap)))
            gap.clear()
            bare = [w for w, _ in out]
            twice = [n for n in range(1, len(out) // 2 + 1) if bare[-n:] == bare[-2 * n : -n]]
            del out[len(out) - min(twice, default=0) :]
        yield name, out


def _ends(read: Iterator[tuple[Words, Kept]]) -> dict[Words, dict[Words, Kept]]:
    """Group the names by their ends."""
    out: dict[Words, dict[Words, Kept]] = defaultdict(dict)
    for name, kept in read:
        for k in range(len(kept)):
            out[tuple(w for w, _ in kept[k:])][name] = kept
    return out


def _by_numbers(a: Sequence[Unit], b: Sequence[Unit]) -> list[Match]:
    """Pair the modules of two names if their numbers are equal, or all shifted alike; none otherwise."""
    rows, columns = [u.counted for u in a], [u.counted for u in b]
    if not a or not b:
        return []
    ours, theirs = (Counter(u.signatures[MAIN] for u in many) for many in (a, b))
    level = MAIN if ours <= theirs or theirs <= ours else COUNT
    ways = [(rows, columns, tuple[str, ...]())]
    fixed = [{c[0] for c in zip(*many, strict=True) if len(set(c)) == 1} for many in (rows, columns)]
    rows, columns = _varying(rows), _varying(columns)
    if len(rows[0]) == len(columns[0]) and (fixed[0] <= fixed[1] or fixed[1] <= fixed[0]):
        steps = [min(y) - min(x) for x, y in zip(zip(*rows, strict=True), zip(*columns, strict=True), strict=True)]
        shifted = [tuple(n + step for n, step in zip(row, steps, strict=True)) for row in rows]
        ways += [(rows, columns, ()), (shifted, columns, (NUMBERS,))]
    for rows, columns, why in ways:
        known = dict(zip(columns, b, strict=True))
        both = ((u, known[n]) for u, n in zip(a, rows, strict=True) if n in known and u.fits(known[n]))
        found = [Match(u, v, why) for u, v in both if u.shape == v.shape and u.signatures[level] == v.signatures[level]]
        if len(found) == min(len(a), len(b)) and len({*rows}) == len(a) and len(known) == len(b):
            return found
    return []


def _varying(many: Sequence[Numbers]) -> list[Numbers]:
    """Drop the numbers of names that never vary or repeat another number."""
    kept: list[Numbers] = []
    for c in dict.fromkeys(zip(*many, strict=True)):
        if len(set(c)) > 1 and not any(len(set(zip(c, k, strict=True))) == len(set(c)) == len(set(k)) for k in kept):
            kept.append(c)
    return list(zip(*kept, strict=True)) if kept else [()] * len(many)
