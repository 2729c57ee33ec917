"""Tensors that were cut or joined, by values: the fingerprints of the parts add up to that of the whole.

    attn.qkv [48, 16]      = query [16, 16] + key [16, 16] + value [16, 16]        few tensors of one module
    layers [12, 16, 64]    = layer_0 [16, 64] + ... + layer_11 [16, 64]            names that count from 0

A sum only proposes. Which part lies where in the whole is read off the fingerprints of the whole's slices, so the time
is linear in their number; then the order of axes is proved bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import prod

from ..checkpoint import Tensor
from . import cuts
from .bits import Bits, moved, slices
from .orders import LETTERS, Order
from .pairs import Pair, folded, parent
from .prints import WORD, Print, fingerprint

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
        for names in [*_stacks(parts), *_siblings(parts)]:
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
            for heads in [1, *cuts.divisors(n // count)[:MAX_HEADS]] if n % count == 0 else []:
                at = self._arranged(whole, axis, heads, count, totals)
                for order in cuts.concatenated(whole.shape, shape, axis, count, heads) if at else []:
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
                for order in cuts.stacked(whole.shape, parts[0].shape, "e", axis):
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
            for order in cuts.split(whole.shape, [t.shape for t in ordered]):
                if self.bits.proved([whole], ordered, order):
                    return order, at, ""
        return None


def _stacks(parts: Mapping[str, Print]) -> Iterator[tuple[str, ...]]:
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
            for chosen in cuts.subsets(len(names), range(2, MAX_PIECES + 1)):
                yield tuple(names[i] for i in chosen)
