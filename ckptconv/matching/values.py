"""Pairs by content: a fingerprint that no order of elements changes, then the order of axes, proved bit for bit.

    sum over all elements of mix(bits), modulo 2^64, and their number

Equal for all permutations of a tensor, and additive: a fused QKV has the sum of its parts. It only proposes; a pair is
one only when every bit has been compared. Tensors are streamed. One that is constant (zeros, ones) is no evidence, and
tensors that share their content with others are told apart by names, and marked so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..moves.gather import read_into
from ..moves.part import Piece
from ..moves.read import each, windows
from ..moves.sources import Sources, resolved
from ..rules import layout as layouts
from ..verification.compare import first_difference
from . import orders
from .names import alike
from .orders import Order
from .pairs import LISTED, Pair, folded, leaf, parent

Array = np.ndarray[Any, Any]
PROBE = 256  # elements compared before all are
MAX_SIBLINGS = 16  # unmatched tensors of one module whose sums are tried
MAX_PIECES = 4  # of a tensor that was cut without an index
WORD = 2**64
MADE = 0.1  # of the target found by value: it was made from this source, and other values are other tensors
COMMON = {"0.0", "1.0", "nan"}  # single numbers that tell nothing


class Print(NamedTuple):
    """Content up to the order of elements."""

    kind: str
    elements: int
    total: int
    constant: bool


def _mixed(x: Array) -> Array:
    """A bijection of 64-bit words that leaves no structure for sums to cancel (Steele et al., SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def fingerprint(t: Tensor, sources: Sources) -> Print | None:
    """Read a tensor once; None for what has no fixed number of bytes per element."""
    if t.dtype.kind == "s" or not t.parts:
        return None
    item, total, first, constant = t.dtype.itemsize, 0, None, True
    for raw in windows(t, sources):
        bits = raw.view(f"u{min(item, 8)}").reshape(-1, max(1, item // 8))
        wide = np.add.reduce(bits.astype("u8") * np.arange(1, bits.shape[1] + 1, dtype="u8"), axis=1, dtype="u8")
        first = wide[0] if first is None else first
        constant = constant and bool((wide == first).all())
        if t.count == 1:  # one number is as good as a fingerprint, unless it is one that everything begins with
            constant = str(_number(raw, t)) in COMMON
        total += int(np.add.reduce(_mixed(wide + np.uint64(0x9E3779B97F4A7C15)), dtype="u8"))
    return Print(t.dtype.name, t.count, total % WORD, constant)


def fingerprints(tensors: Iterable[Tensor], workers: int) -> dict[str, Print]:
    """The fingerprints of all tensors that have one."""
    rows = [t for t in tensors if t.count]
    found = zip(rows, each(rows, fingerprint, workers), strict=True)
    return {t.name: p for t, p in found if p is not None}


def _number(raw: Array, t: Tensor) -> float:
    return abs(complex(raw.view(t.dtype.np)[0]))


@dataclass
class Found:
    """Pairs by value; groups of names in the target that hold one content; what is known but not a rule."""

    pairs: list[Pair] = field(default_factory=list)
    ties: list[tuple[str, ...]] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)  # a source that holds what another one does
    notes: list[str] = field(default_factory=list)
    trained: bool = False


class Values:
    """Match two sets of tensors by content."""

    def __init__(self, a: Mapping[str, Tensor], b: Mapping[str, Tensor], workers: int = 1) -> None:
        self.a, self.b = a, b
        self.prints = (fingerprints(a.values(), workers), fingerprints(b.values(), workers))
        self.found = Found()

    def run(self) -> Found:
        with Sources() as self.sources:
            self._whole()
            self._sums()
        telling = [n for n, p in self.prints[1].items() if not p.constant]
        done = {n for p in self.found.pairs for n in p.targets} | {n for t in self.found.ties for n in t}
        self.found.trained = sum(n in done for n in telling) > MADE * len(telling)
        return self.found

    # --- one to one -----------------------------------------------------------------------------------------------

    def _whole(self) -> None:
        groups: dict[Print, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for side in (0, 1):
            for name, p in self.prints[side].items():
                if not p.constant:
                    groups[p][side].append(name)
        for many_a, many_b in groups.values():
            if many_a and many_b:
                self._group(many_a, many_b)

    def _group(self, many_a: list[str], many_b: list[str]) -> None:
        """Pair tensors that all hold the same elements: by names, where there are several."""
        several = len(many_a) > 1 or len(many_b) > 1
        chosen = alike(many_a, many_b) if several else [(many_a[0], many_b[0])]
        equal_targets = len(many_b) > 1 and len({self.b[n].shape for n in many_b}) == 1
        for a, b in chosen:
            order = self.order(self.a[a], self.b[b], leaf(a), leaf(b))
            if order is None:
                self.found.notes.append(f"{a} and {b} hold the same elements, in an order that no simple layout gives")
                continue
            rivals = tuple(islice((n for n in many_b if n != b), LISTED + 1)) if several and len(many_a) > 1 else ()
            why = ("several tensors hold these values: names decide which is which",) if rivals else ()
            self.found.pairs.append(Pair((a,), (b,), order, "equal" if rivals else "values", not rivals, why, rivals))
        taken_a, taken_b = {a for a, _ in chosen}, {b for _, b in chosen}
        first_a, first_b = chosen[0]
        self.found.copies.update({a: first_a for a in many_a if a not in taken_a})
        twins = [b for b in many_b if b not in taken_b and equal_targets and self._same(self.b[first_b], self.b[b])]
        if twins:
            self.found.ties.append((first_b, *twins))

    def _same(self, a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and first_difference(a, b, self.sources) is None

    def order(self, a: Tensor, b: Tensor, leaf_a: str, leaf_b: str) -> Order | None:
        """The order of axes that turns a into b, proved; conventions are tried first."""
        a, b = self._decoded(a), self._decoded(b)
        told = orders.convention(a.shape, b.shape, leaf_a, leaf_b)
        seen = dict.fromkeys([*([told] if told else []), *orders.simple(a.shape, b.shape)])
        known = next((o for o in seen if self.proved([a], [b], o)), None)
        if known is not None:
            return known
        return next((o for o in orders.hidden(a.shape, b.shape) if self.proved([a], [b], o)), None)

    def _decoded(self, t: Tensor) -> Tensor:
        return replace(t, parts=tuple(resolved(p, self.sources) for p in t.parts))

    def proved(self, a: Sequence[Tensor], b: Sequence[Tensor], order: Order) -> bool:
        """Whether the order gives b, to the last bit."""
        if not order.text:
            made = [(t.shape, t.parts) for t in a]
        else:
            try:
                made = layouts.parse(order.text).apply(a, dict(order.sizes))
            except LayoutError:
                return False
        for (shape, parts), want in zip(made, b, strict=True):
            if shape != want.shape:
                return False
            have = Tensor(want.name, want.dtype, shape, parts)
            if not self._begins(have, want) or first_difference(have, want, self.sources) is not None:
                return False
        return True

    def _begins(self, a: Tensor, b: Tensor) -> bool:
        """Compare the first elements only: most wrong orders fail here."""
        count = min(PROBE, b.count)
        raw = [np.empty(count * b.dtype.itemsize, "u1") for _ in range(2)]
        for t, buffer in zip((a, b), raw, strict=True):
            read_into(Piece(t.name, t.dtype, 0, count, 0, t.parts), memoryview(buffer), self.sources)
        return bool((raw[0] == raw[1]).all())

    # --- one to many ----------------------------------------------------------------------------------------------

    def _sums(self) -> None:
        """What was cut or joined: the fingerprints of the parts add up to that of the whole."""
        for side in (0, 1):
            done = {n for p in self.found.pairs for n in (p.sources, p.targets)[side]} | set(self.found.copies)
            other = {n for p in self.found.pairs for n in (p.sources, p.targets)[1 - side]}
            wholes = {n: p for n, p in self.prints[side].items() if n not in done and not p.constant}
            parts = {n: p for n, p in self.prints[1 - side].items() if n not in other}
            if wholes and parts:
                self._added(side, wholes, parts)

    def _added(self, side: int, wholes: Mapping[str, Print], parts: Mapping[str, Print]) -> None:
        want: dict[tuple[str, int, int], list[str]] = defaultdict(list)
        for name, p in wholes.items():
            want[p[:3]].append(name)
        used: set[str] = set()
        for names in [*self._stacks(parts), *self._siblings(parts)]:
            if used & set(names) or len({parts[n].kind for n in names}) > 1:
                continue
            total = sum(parts[n].total for n in names) % WORD
            key = (parts[names[0]].kind, sum(parts[n].elements for n in names), total)
            for whole in want.get(key, ()):
                if whole not in used and (pair := self._cut(side, whole, names)):
                    self.found.pairs.append(pair)
                    used |= {whole, *names}
                    break

    def _stacks(self, parts: Mapping[str, Print]) -> Iterator[tuple[str, ...]]:
        """Names that differ in one number, which counts from 0: slices along an axis."""
        groups: dict[tuple[object, ...], dict[int, str]] = defaultdict(dict)
        for name in parts:
            text, numbers = folded(name)
            for k, n in enumerate(numbers):
                groups[(text, k, numbers[:k], numbers[k + 1 :], parts[name].elements)][n] = name
        for found in groups.values():
            if len(found) > 1 and set(found) == set(range(len(found))):
                yield tuple(found[i] for i in range(len(found)))

    def _siblings(self, parts: Mapping[str, Print]) -> Iterator[tuple[str, ...]]:
        """Few tensors of one module."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name in parts:
            for home in {parent(name), parent(parent(name))}:
                groups[home].append(name)
        for names in groups.values():
            if 1 < len(names) <= MAX_SIBLINGS:
                for chosen in orders.subsets(len(names), range(2, MAX_PIECES + 1)):
                    yield tuple(names[i] for i in chosen)

    def _cut(self, side: int, whole: str, names: tuple[str, ...]) -> Pair | None:
        """The layout that cuts the whole into the named parts; backwards, if the whole is in the target."""
        one = self._decoded((self.a, self.b)[side][whole])
        many = [self._decoded((self.b, self.a)[side][n]) for n in names]
        for order, pieces in orders.split(one.shape, [t.shape for t in many]):
            if self.proved([one], [many[p] for p in pieces], order):
                return _pair(side, whole, tuple(names[p] for p in pieces), order)
        if len({t.shape for t in many}) == 1:
            for turn in (many, many[::-1]):
                if found := self._stacked(one, turn):
                    return _pair(side, whole, tuple(t.name for t in turn), found, "e")
        self.found.notes.append(f"{', '.join(names)} together hold what {whole} does, in an order that was not found")
        return None

    def _stacked(self, one: Tensor, many: Sequence[Tensor]) -> Order | None:
        """The layout of each slice along the axis that is gone."""
        for order in orders.stacked(one.shape, many[0].shape, "e"):
            left, _, right = order.text.partition("->")
            text = f"{left}-> e {right}" if right.strip() else f"{left}-> e"
            whole = layouts.parse(text)
            try:
                ((shape, parts),) = whole.apply([one], {"e": len(many), **dict(order.sizes)})
            except LayoutError:
                continue
            if shape == (len(many), *many[0].shape) and self._slices(Tensor("", one.dtype, shape, parts), many):
                return order
        return None

    def _slices(self, whole: Tensor, many: Sequence[Tensor]) -> bool:
        cut = layouts.parse("(before + 1 + after) ... -> before ..., ..., after ...")
        for i, t in enumerate(many):
            shape, parts = cut.apply([whole], {"before": i})[1]
            have = Tensor(t.name, t.dtype, shape, parts)
            if not self._begins(have, t) or first_difference(have, t, self.sources) is not None:
                return False
        return True


def _pair(side: int, whole: str, names: tuple[str, ...], order: Order, axis: str = "") -> Pair:
    if side == 0:
        return Pair((whole,), names, order, "values", axis=axis)
    return Pair(names, (whole,), order.inverse, "values", axis=axis)
