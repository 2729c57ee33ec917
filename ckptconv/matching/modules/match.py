"""Pair the tensors of modules that go together, and of what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ...checkpoint import Tensor
from ..names.likeness import MAX_CLASS, likeness, words
from ..names.same import same_names
from ..orders.cells import cell_pairs
from ..orders.choose import Judge
from ..orders.cuts import BundleOrder, bundle_order
from ..pairs import Length, Pair, Side, Sides, left
from .bundles import bundled, parted
from .solve import Match, matched
from .units import units

CONSTANTS = {"weight": 1.0, "bias": 0.0}
CONSTANT = "the original normalises without scale or offset: ones and zeros are filled in"


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
    out += _tensors(matched(whole, [*pairs, *out], every), whole, judge)
    a, b = (replace(side, single=True) for side in left(sides, out))
    return out + _tensors(matched((a, b), (), (a, b)), (a, b), judge)


def _tensors(found: Sequence[Match], sides: Sides, judge: Judge) -> list[Pair]:
    """The pairs of tensors of modules that go together; a scale or offset that only the target has is a constant."""
    out: list[Pair] = []
    for m in found:
        if "joint" in m.a.members or m.a.kind == m.b.kind == "cell":
            out += [_of_cell(m, p, sides[0]) for p in cell_pairs(m.a, m.b, judge)]
            continue
        both = [(t, m.b.members[role]) for role, t in m.a.members.items() if role in m.b.members]
        if not both and len(m.a.members) == len(m.b.members) == 1:
            both = [(m.a.members[m.a.main], m.b.members[m.b.main])]
        made = [p for a, b in both if (p := _of_role(m, a, b, sides, judge))]
        lacking = [r for r in CONSTANTS if r in m.b.members and r not in m.a.members]
        fills = tuple((m.b.members[r].name, (CONSTANTS[r],)) for r in lacking if not sides[0].prints)
        for p in made:
            if fills and p.targets[0].endswith("running_mean"):
                p = p._replace(fills=fills, sure=False, why=(*p.why, CONSTANT))
            out.append(p)
    return out


def _of_cell(m: Match, p: Pair, source: Side) -> Pair:
    bundle = source.bundles.get(p.sources[0])
    return p._replace(
        sources=tuple(source.named(p.sources)), order=parted(p.order, bundle) if bundle else p.order,
        why=(*m.why, *p.why), rivals=_rivals(m, p.targets[0]), real=m.real or p.real,
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


ALIKE = 0.2  # likeness below which names say nothing
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
        rows, cols, used = Counter(r for r, _ in both), Counter(c for _, c in both), (set[int](), set[int]())
        for r, c in sorted(both, key=lambda at: -like[at]):
            a, b = ours[r], theirs[c]
            old, new = max(a.shape), max(b.shape)
            lone = rows[r] == cols[c] == 1
            if r in used[0] or c in used[1] or not (lone or rank == 1 or like[r, c] >= ALIKE):
                continue
            judged = judge.order(replace(a, shape=tuple(new if n == old else n for n in a.shape)), b)
            if judged:
                why, change = (PADDED.format(old, new),), Length(b.shape.index(new), old, new)
                out.append(Pair((a.name,), (b.name,), judged.order, sure=False, real=True, why=why, length=change))
                used[0].add(r)
                used[1].add(c)
    return out


def _padded(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors differ in the length of one axis, and the longer one can be padded."""
    (*rest, old), (*other, new) = sorted(a.shape), sorted(b.shape)
    short, long = sorted((old, new))
    fits = short < long <= short + max(LEAST, short // SHARE) and long % MULTIPLE == 0
    return fits and rest == other and new not in rest and a.dtype.kind == b.dtype.kind
