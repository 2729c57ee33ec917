"""Pair tensors by their names; shapes only allow or forbid. `Known` holds what both sides as a whole show.

    wte [50257, 768] -> transformer.wte.weight [50304, 768]      pad = { axis = 0, from = 50257, to = 50304 }

Last come tensors of which one axis is longer on one side, a vocabulary that was padded for the machine: matrices whose
names are alike, or that are the only ones left of their width; then what is as long as they, the bias of a head. Always
a real doubt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...checkpoint import Tensor
from ...errors import LayoutError
from ...rules import layout as layouts
from ..modules.units import units
from ..orders.axes import Order
from ..orders.choose import Images, Judge, in_front
from ..pairs import Item, Length, Named, Pair, Side, parent
from .likeness import Unique, by_likeness, items, words

ALIKE = 0.2  # likeness below which names say nothing
CLOSE = 0.3  # likeness of names that say the same, at least
Sides = tuple[Side, Side]
Group = tuple[Hashable, ...]  # kind, dimensions, content: what two tensors must share to be paired


class Stage(NamedTuple):
    """How tensors are grouped by shape: by their dimensions, or (`doubt` says so) by their number of elements."""

    size: Callable[[Tensor], Hashable]
    doubt: str


DIMENSIONS = Stage(lambda t: tuple(sorted(n for n in t.shape if n != 1)), "")
ELEMENTS = Stage(lambda t: t.count, "the dimensions differ")


class Known(NamedTuple):
    """What all stages know of the two sides as a whole."""

    judge: Judge
    unique: Unique
    trained: bool
    folded: bool  # the source has batch normalisation and the target has none
    items: tuple[Mapping[str, Item], Mapping[str, Item]]  # every tensor by name
    cells: frozenset[str]  # tensors of recurrent cells, of both sides

    def grouped(self, groups: Sequence[Mapping[str, Hashable]]) -> tuple[list[Item], list[Item]]:
        """The tensors of both sides that have a group, with it."""
        a, b = (
            [every[n]._replace(group=g) for n, g in some.items()]
            for every, some in zip(self.items, groups, strict=True)
        )
        return a, b


def known_of(sides: Sides, trained: bool) -> Known:
    read = [items(side.tensors, dict.fromkeys(side.tensors)) for side in sides]
    made = [units(side) for side in sides]
    cells = frozenset(t.name for many in made for u in many if u.kind == "cell" for t in u.members.values())
    statistics = [any(words(n)[-1:] == ("running_var",) for n in side.tensors) for side in sides]
    before = in_front(sides[0].tensors, sides[1].tensors, sides[1].kinds)
    judge = Judge(Images(sides[0].tensors, sides[0].flattened, before), module=bool(sides[1].kinds))
    return Known(
        judge, Unique(*read), trained, statistics == [True, False],
        ({i.name: i for i in read[0]}, {i.name: i for i in read[1]}), cells,
    )  # fmt: skip


def left(sides: Sides, pairs: Iterable[Pair], done: tuple[set[str], set[str]]) -> Sides:
    """What is still unpaired."""
    used = {n for p in pairs for n in p.sources}
    made = {n for p in pairs for n in (*p.targets, *(f for f, _ in p.fills))}
    return sides[0].without(used | done[0]), sides[1].without(made | done[1])


def by_names(sides: Sides, known: Known, pairs: Sequence[Pair], done: tuple[set[str], set[str]]) -> list[Pair]:
    """Pair what is left by the likeness of names: of the same dimensions first, then of as many elements."""
    out = list(pairs)
    for stage in (DIMENSIONS, ELEMENTS):
        out += _found(left(sides, out, done), known, out, stage, 0.0)
    return out


def by_same_names(sides: Sides, known: Known, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs of names that say the same, as no others do; the order of axes may still be doubtful.

    Recurrent cells are left to cells.py, which knows their gates and biases.
    """
    return _found(sides, known, pairs, DIMENSIONS, CLOSE, lambda n: not n.why and not {n.a, n.b} & known.cells)


def _found(
    sides: Sides,
    known: Known,
    pairs: Sequence[Pair],
    stage: Stage,
    least: float,
    enough: Callable[[Named], bool] = lambda _: True,
) -> list[Pair]:
    groups = [_groups(side, known, stage) for side in sides]
    if not set(groups[0].values()) & set(groups[1].values()):
        return []
    proved = [p for p in pairs if p.sure or p.evidence == "equal"]
    near = dict.fromkeys(((_home(x), _home(y)) for x, y in _single(proved)), 1.0)
    found = by_likeness(*known.grouped(groups), near, known.unique, least)
    # modules whose other tensors are proved
    at_home = {(parent(x), parent(y)) for x, y in _single(p for p in proved if p.evidence == "values")}
    counts = [Counter(g.values()) for g in groups]
    lone = {n for n, g in groups[1].items() if counts[0][g] == counts[1][g] == 1 and not stage.doubt}
    made = (
        _named_pair(n, sides, known, stage, lone, not stage.doubt and (parent(n.a), parent(n.b)) in at_home)
        for n in found
        if n.likeness >= least and enough(n)
    )
    return [p for p in made if p is not None]


def _single(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Source and target of the pairs of one tensor each."""
    return ((p.sources[0], p.targets[0]) for p in pairs if len(p.sources) == len(p.targets) == 1)


def _groups(side: Side, known: Known, stage: Stage) -> dict[str, Group]:
    """What two tensors must share to be paired: in a trained target the content too."""
    content = side.prints if known.trained else {}
    return {n: (t.dtype.kind, stage.size(t), content.get(n)) for n, t in side.tensors.items()}


def _named_pair(named: Named, sides: Sides, known: Known, stage: Stage, lone: set[str], at_home: bool) -> Pair | None:
    """A pair by name with its order of axes; None if there is no order."""
    a, b = sides[0].tensors[named.a], sides[1].tensors[named.b]
    judged = known.judge.order(a, b)
    if judged is None:
        return None
    equal = known.trained and named.a in sides[0].prints and named.b in sides[1].prints
    constant = equal and sides[0].prints[named.a].constant
    evidence = "equal" if equal else "names" if named.likeness >= ALIKE else "shape"
    why = () if at_home else named.why
    if evidence == "shape":
        why = ("no other tensor has this shape" if named.b in lone else "others have this shape too",)
    kinds = f"{a.dtype} is to be {b.dtype}" if a.dtype != b.dtype else ""
    reasons = tuple(dict.fromkeys(w for w in (*why, stage.doubt, "" if constant else judged.doubt, kinds) if w))
    rivals = _rivals(named, sides[1]) if reasons else ()
    open_ = bool(rivals or stage.doubt) or (bool(why) and named.b not in lone)
    real = bool(reasons) and (judged.real or open_)
    return Pair((named.a,), (named.b,), judged.order, evidence, not reasons, reasons, rivals, real=real)


def _rivals(named: Named, side: Side) -> tuple[str, ...]:
    """Tensors of the same dimensions that it could also be."""
    dims = DIMENSIONS.size(side.tensors[named.b])
    return tuple(r for r in named.rivals if DIMENSIONS.size(side.tensors[r]) == dims)


def _home(name: str) -> str:
    return " ".join(words(name)[:-1])


MULTIPLE = 8  # what a padded length is a multiple of
LEAST, SHARE = 64, 8  # elements that padding may add: so many, or that part of the length
DOUBT = "the lengths differ, {} and {}: taken to be a vocabulary that was padded"


def by_length(sides: Sides, known: Known) -> list[Pair]:
    """Pairs of what is left, where a length can be padding: matrices first, then vectors that are as long as they."""
    out: list[Pair] = []
    for rank in (2, 1):
        lengths = {(p.length.before, p.length.to) for p in out if p.length}
        groups: list[dict[str, Hashable]] = [
            {
                n: (t.dtype.kind, *sorted(t.shape)[:-1])
                for n, t in side.tensors.items()
                if len(t.shape) == rank and (rank == 2 or t.shape[0] in {both[k] for both in lengths})
            }
            for k, side in enumerate(sides)
        ]
        counts = [Counter(g.values()) for g in groups]
        for found in by_likeness(*known.grouped(groups), unique=known.unique):
            a, b = sides[0].tensors[found.a], sides[1].tensors[found.b]
            old, new = max(a.shape), max(b.shape)
            alone = counts[0][groups[0][found.a]] == counts[1][groups[1][found.b]] == 1
            if (rank == 2 and found.likeness < ALIKE and not alone) or (rank == 1 and (old, new) not in lengths):
                continue
            if not padded(old, new) or b.shape.count(new) > 1:
                continue
            judged = known.judge.order(replace(a, shape=tuple(new if n == old else n for n in a.shape)), b)
            if judged and (axis := _axis(judged.order, a, b)) is not None:
                why = (DOUBT.format(old, new),)
                out.append(
                    Pair(
                        (a.name,),
                        (b.name,),
                        judged.order,
                        sure=False,
                        real=True,
                        why=why,
                        length=Length(axis, old, new),
                    )
                )
    return out


def padded(one: int, other: int) -> bool:
    """Whether the longer of two lengths can be the shorter one, padded."""
    short, long = sorted((one, other))
    return short < long <= short + max(LEAST, short // SHARE) and long % MULTIPLE == 0


def _axis(order: Order, a: Tensor, b: Tensor) -> int | None:
    """The only axis of the target whose length differs; None if there are more, or if the order does not fit."""
    shape = a.shape
    if order.text:
        try:
            pattern = layouts.parse(order.text)
            shape = pattern.shapes(pattern.solve([a.shape], dict(order.sizes)))[0]
        except LayoutError:
            return None
    odd = [k for k, (m, n) in enumerate(zip(shape, b.shape, strict=True)) if m != n]
    return odd[0] if len(odd) == 1 else None
