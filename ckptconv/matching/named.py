"""Pair tensors by their names; shapes only allow or forbid. `Known` holds what both sides as a whole show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from ..checkpoint import Tensor
from . import names as by_name
from . import orders
from .doubt import Judge
from .images import Images, in_front
from .numbering import Unique
from .pairs import Item, Named, Pair, leaf, parent
from .side import Side
from .units import units
from .words import items, words

ALIKE = 0.2  # likeness below which names say nothing
CLOSE = 0.3  # likeness that goes before equal dimensions
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
    biased: tuple[Mapping[str, str], Mapping[str, str]]  # the kinds of modules by the names of their biases

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
    biased = [
        {u.members["bias"].name: u.kind for u in many if "bias" in u.members and len(u.members) > 1} for many in made
    ]
    statistics = [any(words(n)[-1:] == ("running_var",) for n in side.tensors) for side in sides]
    before = in_front(sides[0].tensors, sides[1].tensors, sides[1].kinds)
    judge = Judge(Images(sides[0].tensors, sides[0].kinds, before), module=bool(sides[1].kinds))
    return Known(
        judge, Unique(*read), trained, statistics == [True, False],
        ({i.name: i for i in read[0]}, {i.name: i for i in read[1]}), cells, (biased[0], biased[1]),
    )  # fmt: skip


def left(sides: Sides, pairs: Iterable[Pair], done: tuple[set[str], set[str]]) -> Sides:
    """What is still unpaired."""
    used = {n for p in pairs for n in p.sources}
    made = {n for p in pairs for n in (*p.targets, *(f for f, _ in p.fills))}
    return sides[0].without(used | done[0]), sides[1].without(made | done[1])


def by_names(sides: Sides, known: Known, pairs: Sequence[Pair], done: tuple[set[str], set[str]]) -> list[Pair]:
    """Pair what is left: what is alike first, of the same dimensions or as many elements."""
    out = list(pairs)
    for least in (CLOSE, 0.0):
        for stage in (DIMENSIONS, ELEMENTS):
            out += by_likeness(left(sides, out, done), known, out, stage, least)
    return out


def by_same_names(sides: Sides, known: Known, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs of names that say the same, as no others do; the order of axes may still be doubtful.

    Recurrent cells are left to cells.py, which knows their gates and biases.
    """
    return _found(sides, known, pairs, DIMENSIONS, CLOSE, lambda n: not n.why and not {n.a, n.b} & known.cells)


def by_likeness(sides: Sides, known: Known, pairs: Sequence[Pair], stage: Stage, least: float) -> list[Pair]:
    """Pairs by the likeness of names among tensors of one group."""
    return _found(sides, known, pairs, stage, least)


def _found(
    sides: Sides,
    known: Known,
    pairs: Sequence[Pair],
    stage: Stage,
    least: float,
    enough: Callable[[Named], bool] = lambda _: True,
) -> list[Pair]:
    groups = [_groups(side, known, stage) for side in sides]
    if not known.trained and not stage.doubt:
        _reshaped(groups, sides)
    if not set(groups[0].values()) & set(groups[1].values()):
        return []
    proved = [p for p in pairs if p.sure or p.evidence == "equal"]
    near = dict.fromkeys(((_home(x), _home(y)) for x, y in _single(proved)), 1.0)
    found = by_name.match(*known.grouped(groups), near, known.unique, least)
    # modules whose other tensors are proved
    at_home = {(parent(x), parent(y)) for x, y in _single(p for p in proved if p.evidence == "values")}
    counts = [Counter(g.values()) for g in groups]
    lone = {n for n, g in groups[1].items() if counts[0][g] == counts[1][g] == 1 and not stage.doubt}
    sound = _sound([n for n in found if n.likeness >= least and enough(n)], sides, known)
    made = (
        _pair(n, sides, known, stage, lone, not stage.doubt and (parent(n.a), parent(n.b)) in at_home) for n in sound
    )
    return [p for p in made if p is not None]


def _single(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Source and target of the pairs of one tensor each."""
    return ((p.sources[0], p.targets[0]) for p in pairs if len(p.sources) == len(p.targets) == 1)


def _groups(side: Side, known: Known, stage: Stage) -> dict[str, Group]:
    """What two tensors must share to be paired: in a trained target the content too."""
    content = side.prints if known.trained else {}
    return {n: (t.dtype.kind, stage.size(t), content.get(n)) for n, t in side.tensors.items()}


def _reshaped(groups: list[dict[str, Group]], sides: Sides) -> None:
    """Let tensors whose dimensions the other side lacks be of the class they can be reshaped to: heads apart."""
    shapes = [{g: side.tensors[n].shape for n, g in found.items()} for side, found in zip(sides, groups, strict=True)]
    for k in (0, 1):
        other = shapes[1 - k]
        sized: dict[Hashable, list[Group]] = defaultdict(list)
        for g, s in other.items():
            sized[g[0], len(s), prod(s)].append(g)
        moved: dict[Group, Group] = {}
        for group, shape in shapes[k].items():
            if group in other or len(shape) not in (2, 3):
                continue
            fits = sized[group[0], len(shape) - 1, prod(shape)]
            if fits := [g for g in fits if orders.simple(shape, other[g])]:
                moved[group] = fits[0]
        groups[k].update({n: moved[g] for n, g in groups[k].items() if g in moved})


def _sound(found: list[Named], sides: Sides, known: Known) -> list[Named]:
    """Without pairs of a norm's bias and another's, and without kernels into which a batch norm was folded."""
    kinds = known.biased
    kept = [
        n for n in found if kinds[0].get(n.a, "") == kinds[1].get(n.b, "") or not (n.a in kinds[0] and n.b in kinds[1])
    ]
    homes = {parent(n.b) for n in kept if folds(n.a, n.b, sides, known)}
    return [n for n in kept if parent(n.b) not in homes]


def folds(a: str, b: str, sides: Sides, known: Known) -> bool:
    """Whether a batch normalisation seems to be folded into b: it has a bias and a has none."""
    if not known.folded or not leaf(a).endswith("kernel"):
        return False
    biased = (
        any(f"{parent(name)}{mark}bias" in side.tensors for mark in "/.")
        for name, side in ((a, sides[0]), (b, sides[1]))
    )
    return [*biased] == [False, True]


def _pair(named: Named, sides: Sides, known: Known, stage: Stage, lone: set[str], at_home: bool) -> Pair | None:
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
