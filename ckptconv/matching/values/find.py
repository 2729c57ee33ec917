"""Pairs by content: equal fingerprints propose, the order of axes is proved bit for bit.

    attn.qkv [48, 16]      = query [16, 16] + key [16, 16] + value [16, 16]        few tensors of one module
    layers [12, 16, 64]    = layer_0 [16, 64] + ... + layer_11 [16, 64]            names that count from 0

A constant (zeros, ones) is no evidence, and tensors that share their content with others are told apart by names, and
marked so. The fingerprints of parts add up to that of the whole. Which part lies where in the whole is read off the
fingerprints of the whole's slices, so that the time is linear in their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from math import prod

from ...checkpoint import Tensor
from ...moves.sources import Sources
from ..names.likeness import alike
from ..orders.axes import LETTERS, Order
from ..orders.cuts import concatenated, divisors, split, stacked, subsets
from ..pairs import LISTED, Pair, Print, folded, parent
from .fingerprints import WORD, Bits, fingerprint, fingerprints, moved, slices

MADE = 0.1  # of the target found by value: it was made from this source, and other values are other tensors
Prints = Mapping[str, Print]


@dataclass
class Found:
    """Pairs by value; groups of names in the target that hold one content; what is known but not a rule.

    `trained` says that the target was made from this source: other values then are other tensors.
    """

    pairs: list[Pair] = field(default_factory=list)
    ties: list[tuple[str, ...]] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)  # a source that holds what another one does
    notes: list[str] = field(default_factory=list)
    prints: tuple[Prints, Prints] = ({}, {})
    trained: bool = False


def find(a: Mapping[str, Tensor], b: Mapping[str, Tensor], workers: int = 1) -> Found:
    """Match two sets of tensors by content; every tensor is read."""
    found = Found(prints=(fingerprints(a.values(), workers), fingerprints(b.values(), workers)))
    with Sources() as sources:
        bits = Bits(sources)
        for many_a, many_b in _groups(*found.prints):
            _pair(found, bits, [a[n] for n in many_a], [b[n] for n in many_b])
        for side in (0, 1):
            _cut_wholes(found, bits, (a, b), side)
    varied = [n for n, p in found.prints[1].items() if not p.constant]
    done = {n for p in found.pairs for n in p.targets} | {n for t in found.ties for n in t}
    found.trained = sum(n in done for n in varied) > MADE * len(varied)
    return found


def _groups(a: Prints, b: Prints) -> list[tuple[list[str], list[str]]]:
    """Names of both sides that have one fingerprint."""
    groups: dict[Print, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, prints in enumerate((a, b)):
        for name, p in prints.items():
            if not p.constant:
                groups[p][side].append(name)
    return [(x, y) for x, y in groups.values() if x and y]


def _pair(found: Found, bits: Bits, many_a: list[Tensor], many_b: list[Tensor]) -> None:
    """Pair tensors that all hold the same elements: by names, where there are several."""
    a, b = {t.name: t for t in many_a}, {t.name: t for t in many_b}
    chosen = alike(list(a), list(b))
    for x, y in chosen:
        order = bits.order(a[x], b[y])
        if order is None:
            found.notes.append(f"{x} and {y} hold the same elements, in an order that no simple layout gives")
            continue
        rivals = tuple(islice((n for n in b if n != y), LISTED + 1)) if len(a) > 1 else ()
        why = ("several tensors hold these values: names decide which is which",) if rivals else ()
        found.pairs.append(Pair((x,), (y,), order, "equal" if rivals else "values", not rivals, why, rivals))
    first_a, first_b = chosen[0]
    taken_a, taken_b = {x for x, _ in chosen}, {y for _, y in chosen}
    found.copies.update({n: first_a for n in a if n not in taken_a})
    twins = [n for n in b if n not in taken_b] if len({t.shape for t in many_b}) == 1 else []
    twins = [n for n in twins if bits.same(b[first_b], b[n])]
    if twins:
        found.ties.append((first_b, *twins))


def _cut_wholes(found: Found, bits: Bits, sides: tuple[Mapping[str, Tensor], Mapping[str, Tensor]], side: int) -> None:
    """Find wholes on one side whose parts are on the other."""
    done = {n for p in found.pairs for n in (p.sources, p.targets)[side]} | set(found.copies)
    other = {n for p in found.pairs for n in (p.sources, p.targets)[1 - side]}
    wholes = {n: p for n, p in found.prints[side].items() if n not in done and not p.constant}
    parts = {n: p for n, p in found.prints[1 - side].items() if n not in other}
    if wholes and parts:
        search = Parts(bits, sides[side], sides[1 - side], backwards=bool(side))
        search.find(wholes, parts)
        found.pairs += search.pairs
        found.notes += search.notes


MAX_SIBLINGS = 16  # unmatched tensors of one module whose sums are tried
MAX_PIECES = 4  # of a tensor that was cut without an index
MAX_HEADS = 16  # divisors that are tried as the number of heads


class Parts:
    """Looks for wholes on one side and their parts on the other."""

    def __init__(
        self, bits: Bits, wholes: Mapping[str, Tensor], parts: Mapping[str, Tensor], *, backwards: bool
    ) -> None:
        self.bits, self.wholes, self.parts, self.backwards = bits, wholes, parts, backwards
        self.pairs: list[Pair] = []
        self.notes: list[str] = []

    def find(self, wholes: Mapping[str, Print], parts: Mapping[str, Print]) -> None:
        """Pair what adds up; `wholes` and `parts` are the fingerprints of what is still unmatched."""
        want: dict[tuple[str, int, int], list[str]] = defaultdict(list)
        for name, p in wholes.items():
            want[p[:3]].append(name)
        used: set[str] = set()
        for names in [*_stacked_names(parts), *_siblings(parts)]:
            if used & set(names) or len({parts[n].kind for n in names}) > 1:
                continue
            total = sum(parts[n].total for n in names) % WORD
            key = (parts[names[0]].kind, sum(parts[n].elements for n in names), total)
            for whole in want.get(key, ()):
                if whole not in used and (pair := self._cut(whole, names, [parts[n].total for n in names])):
                    self.pairs.append(pair)
                    used |= {whole, *names}
                    break

    def _cut(self, name: str, names: tuple[str, ...], totals: list[int]) -> Pair | None:
        """The layout that cuts the whole into the named parts; backwards, if the whole is in the target."""
        with self.bits.decoded(self.wholes[name], *(self.parts[n] for n in names)) as (whole, *parts):
            found = self._found(whole, parts, totals)
        if found is None:
            self.notes.append(f"{', '.join(names)} together hold what {name} does, in an order that was not found")
            return None
        order, at, axis = found
        ordered = tuple(names[k] for k in at)
        if self.backwards:
            return Pair(ordered, (name,), order.inverse, "values", axis=axis)
        return Pair((name,), ordered, order, "values", axis=axis)

    def _found(
        self, whole: Tensor, parts: list[Tensor], totals: list[int]
    ) -> tuple[Order, tuple[int, ...], str] | None:
        """How the parts lie in the whole: the layout, the order of the parts, and the axis that stacks them."""
        if len({t.shape for t in parts}) > 1:
            return self._uneven(whole, parts)
        found = self._stacked(whole, parts, totals) if len(parts) > MAX_PIECES else None
        return found or self._concatenated(whole, parts, totals) or self._stacked(whole, parts, totals)

    def _concatenated(
        self, whole: Tensor, parts: list[Tensor], totals: list[int]
    ) -> tuple[Order, tuple[int, ...], str] | None:
        """Equal parts behind each other along an axis, or interleaved within it, head by head."""
        count, shape = len(parts), parts[0].shape
        for axis, n in enumerate(whole.shape):
            for heads in [1, *divisors(n // count)[:MAX_HEADS]] if n % count == 0 else []:
                at = self._arranged(whole, axis, heads, count, totals)
                for order in concatenated(whole.shape, shape, axis, count, heads) if at else []:
                    if at and self.bits.proved([whole], [parts[k] for k in at], order):
                        return order, at, ""
        return None

    def _stacked(
        self, whole: Tensor, parts: list[Tensor], totals: list[int]
    ) -> tuple[Order, tuple[int, ...], str] | None:
        """Equal parts along an axis of their own."""
        count = len(parts)
        for axis, n in enumerate(whole.shape):
            if n != count or prod(whole.shape) != count * parts[0].count:
                continue
            if at := self._arranged(whole, axis, 1, count, totals):
                ordered = [parts[k] for k in at]
                for order in stacked(whole.shape, parts[0].shape, "e", axis):
                    if self._slices(whole, order, ordered):
                        return order, at, "e"
        return None

    def _slices(self, whole: Tensor, order: Order, parts: Sequence[Tensor]) -> bool:
        """Whether the slices along {e*}, their axes moved, are the parts."""
        left, _, right = order.text.partition("->")
        front = moved(whole, Order(f"{left}-> e {right}".rstrip(), (*order.sizes, ("e", len(parts)))))
        if front is None or front.shape != (len(parts), *parts[0].shape):
            return False
        return all(self.bits.same(a, b) for a, b in zip(slices(front), parts, strict=True))

    def _arranged(self, whole: Tensor, axis: int, heads: int, count: int, totals: list[int]) -> tuple[int, ...] | None:
        """Which part each of `count` slices along an axis is; None if they are not the parts.

        With several heads, slice k is the k-th block of every head.
        """
        letters = list(LETTERS[: len(whole.shape)])
        rest = " ".join(x for k, x in enumerate(letters) if k != axis)
        letters[axis] = "(heads slice rest)"
        front = moved(
            whole, Order(f"{' '.join(letters)} -> slice heads rest {rest}", (("heads", heads), ("slice", count)))
        )
        if front is None:
            return None
        places: dict[int, list[int]] = defaultdict(list)
        for k, total in enumerate(totals):
            places[total].append(k)
        out: list[int] = []
        for piece in slices(front):
            found = fingerprint(piece, self.bits.sources)
            if found is None or not places[found.total]:
                return None
            out.append(places[found.total].pop(0))
        return tuple(out)

    def _uneven(self, whole: Tensor, parts: list[Tensor]) -> tuple[Order, tuple[int, ...], str] | None:
        """Parts of several sizes, few of them: in any order, gates inside reordered."""
        for at in permutations(range(len(parts))) if len(parts) <= MAX_PIECES else [tuple(range(len(parts)))]:
            ordered = [parts[k] for k in at]
            for order in split(whole.shape, [t.shape for t in ordered]):
                if self.bits.proved([whole], ordered, order):
                    return order, at, ""
        return None


def _stacked_names(parts: Mapping[str, Print]) -> Iterator[tuple[str, ...]]:
    """Names that differ in one number, which counts from 0: slices along an axis."""
    groups: dict[tuple[object, ...], dict[int, str]] = defaultdict(dict)
    for name in parts:
        text, numbers = folded(name)
        for k, n in enumerate(numbers):
            groups[(text, k, numbers[:k], numbers[k + 1 :], parts[name].elements)][n] = name
    for found in groups.values():
        if len(found) > 1 and set(found) == set(range(len(found))):
            yield tuple(found[i] for i in range(len(found)))


def _siblings(parts: Mapping[str, Print]) -> Iterator[tuple[str, ...]]:
    """Few tensors of one module, or of the modules in one."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in parts:
        for home in {parent(name), parent(parent(name))}:
            groups[home].append(name)
    for names in groups.values():
        if 1 < len(names) <= MAX_SIBLINGS:
            for chosen in subsets(len(names), range(2, MAX_PIECES + 1)):
                yield tuple(names[i] for i in chosen)
