"""Pair tensors by content: equal fingerprints propose pairs, whose order of axes is then proved bit for bit.

    sum over all elements of mix(bits), modulo 2^64, and their number            equal for all permutations of a tensor
    attn.qkv [48, 16]      = query [16, 16] + key [16, 16] + value [16, 16]      few tensors of one module
    layers [12, 16, 64]    = layer_0 [16, 64] + ... + layer_11 [16, 64]          names that count from 0

A constant (zeros, ones) is not evidence. Tensors with the same content are paired by names, and marked so. The
fingerprints of parts add up to that of the whole; the fingerprints of the whole's slices show where each part lies, in
time linear in their number. Tensors are streamed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

import numpy as np

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..moves.copy import Array
from ..moves.read import each, windows
from ..moves.sources import Pool, Sources, decode_all
from ..rules import layout as layouts
from ..verification.compare import first_difference, side_by_side
from .likeness import alike
from .orders.axes import LETTERS, Order, convention, simple
from .orders.cuts import divisors, fused, hidden, uneven, within
from .pairs import LISTED, Pair, Print, folded, leaf, parent

WORD = 2**64
COMMON = {"0.0", "1.0", "nan"}  # single numbers that are common initial values


def _mixed(x: Array) -> Array:
    """A bijection of 64-bit words that leaves no structure for sums to cancel (Steele et al., SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def fingerprint(t: Tensor, sources: Sources) -> Print | None:
    """Read a tensor once; None for one without a fixed number of bytes per element."""
    if t.dtype.kind == "s" or not t.parts:
        return None
    item, total, first, constant = t.dtype.itemsize, 0, None, True
    for raw in windows(t, sources):
        bits = raw.view(f"u{min(item, 8)}").reshape(-1, max(1, item // 8))
        wide = np.add.reduce(bits.astype("u8") * np.arange(1, bits.shape[1] + 1, dtype="u8"), axis=1, dtype="u8")
        first = wide[0] if first is None else first
        constant = constant and bool((wide == first).all())
        if t.count == 1:  # a single number is evidence, unless it is a common initial value
            constant = str(_number(raw, t)) in COMMON
        total += int(np.add.reduce(_mixed(wide + np.uint64(0x9E3779B97F4A7C15)), dtype="u8"))
    return Print(t.dtype.name, t.count, total % WORD, constant)


def fingerprints(tensors: Iterable[Tensor], workers: int) -> dict[str, Print]:
    """Compute the fingerprints of all tensors that have one."""
    rows = [t for t in tensors if t.count]
    found = zip(rows, each(rows, fingerprint, workers), strict=True)
    return {t.name: p for t, p in found if p is not None}


def _number(raw: Array, t: Tensor) -> float:
    return abs(complex(raw.view(t.dtype.dtype)[0]))


PROBE = 256  # elements that are compared first


class Bits:
    """Compares contents; holds the open files."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    @contextmanager
    def decoded(self, *tensors: Tensor) -> Iterator[list[Tensor]]:
        """Yield the tensors with compressed or packed data decoded, once."""
        with closing(Pool(self.sources)) as pool:
            yield [replace(t, parts=decode_all(t.parts, pool)) for t in tensors]

    def order(self, a: Tensor, b: Tensor) -> Order | None:
        """Find the order of axes that turns a into b, bit for bit; try conventions first."""
        usual = convention(a.shape, b.shape, leaf(a.name), leaf(b.name))
        likely = dict.fromkeys([*([usual] if usual else []), *simple(a.shape, b.shape)])
        with self.decoded(a, b) as (left, right):
            every = (*likely, *hidden(a.shape, b.shape))
            return next((order for order in every if self.proved([left], [right], order)), None)

    def proved(self, a: Sequence[Tensor], b: Sequence[Tensor], order: Order) -> bool:
        """Tell whether the order gives b, bit for bit."""
        if not order.text:
            made = [(t.shape, t.parts) for t in a]
        else:
            try:
                made = layouts.parse(order.text).apply(a, dict(order.sizes))
            except LayoutError:
                return False
        return all(
            shape == want.shape and self.same(Tensor(want.name, want.dtype, shape, parts), want)
            for (shape, parts), want in zip(made, b, strict=True)
        )

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Tell whether two tensors of one shape and dtype hold the same bits."""
        first = next(side_by_side(a, b, self.sources, PROBE), None)  # most wrong orders fail there
        return not first or (np.array_equal(*first[1:]) and first_difference(a, b, self.sources) is None)


MADE = 0.1  # share of the target paired by value, above which it was made from this source
Prints = Mapping[str, Print]


@dataclass
class Found:
    """Pairs by value; groups of target names with the same content; other findings that make no rule.

    trained: the target was made from this source, so that tensors with other values are other tensors.
    """

    pairs: list[Pair] = field(default_factory=list)
    ties: list[tuple[str, ...]] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)  # sources with the content of another one
    notes: list[str] = field(default_factory=list)
    prints: tuple[Prints, Prints] = ({}, {})
    trained: bool = False


def find(a: Mapping[str, Tensor], b: Mapping[str, Tensor], workers: int = 1) -> Found:
    """Match two sets of tensors by content; every tensor is read."""
    found = Found(prints=(fingerprints(a.values(), workers), fingerprints(b.values(), workers)))
    with Sources() as sources:
        bits = Bits(sources)
        same: dict[Print, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for side, tensors in enumerate((a, b)):
            for name, p in found.prints[side].items():
                same[p][side].append(tensors[name])
        for p, both in same.items():
            if all(both) and not p.constant:
                _pair(found, bits, *both)
        for side in (0, 1):
            _cut_wholes(found, bits, (a, b), side)
    varied = [n for n, p in found.prints[1].items() if not p.constant]
    done = {n for p in found.pairs for n in p.targets} | {n for t in found.ties for n in t}
    found.trained = sum(n in done for n in varied) > MADE * len(varied)
    return found


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
        why = ("several tensors hold these values: their names tell which is which",) if rivals else ()
        found.pairs.append(Pair((x,), (y,), order, "equal" if rivals else "values", not rivals, why, rivals))
    first_a, first_b = chosen[0]
    taken_a, taken_b = {x for x, _ in chosen}, {y for _, y in chosen}
    found.copies.update({n: first_a for n in a if n not in taken_a})
    twins = [n for n in b if n not in taken_b] if len({t.shape for t in many_b}) == 1 else []
    twins = [n for n in twins if bits.same(b[first_b], b[n])]
    if twins:
        found.ties.append((first_b, *twins))


MAX_SIBLINGS = 16  # unmatched tensors of one module whose sums are tried
MAX_PIECES = 4  # of a tensor that was cut into pieces without numbers
MAX_HEADS = 16  # divisors that are tried as the number of heads
Tensors = Mapping[str, Tensor]


def _cut_wholes(found: Found, bits: Bits, sides: tuple[Tensors, Tensors], side: int) -> None:
    """Find wholes on one side whose parts are on the other."""
    done = {n for p in found.pairs for n in (p.sources, p.targets)[side]} | set(found.copies)
    other = {n for p in found.pairs for n in (p.sources, p.targets)[1 - side]}
    parts = {n: p for n, p in found.prints[1 - side].items() if n not in other}
    wholes: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for name, p in found.prints[side].items():
        if name not in done and not p.constant:
            wholes[p[:3]].append(name)
    used: set[str] = set()
    for names in [*_stacked_names(parts), *_siblings(parts)] if wholes else ():
        many = [parts[n] for n in names]
        if used & set(names) or len({p.kind for p in many}) > 1:
            continue
        key = (many[0].kind, sum(p.elements for p in many), sum(p.total for p in many) % WORD)
        for name in wholes.get(key, ()):
            if name in used:
                continue
            with bits.decoded(sides[side][name], *(sides[1 - side][n] for n in names)) as (whole, *pieces):
                pair = _layout(bits, whole, pieces, [p.total for p in many])
            if pair is None:
                found.notes.append(f"{', '.join(names)} together have the elements of {name}, in an unknown order")
                continue
            found.pairs.append(pair.inverse if side else pair)
            used |= {name, *names}
            break


def _layout(bits: Bits, whole: Tensor, parts: Sequence[Tensor], totals: Sequence[int]) -> Pair | None:
    """Find how the parts lie in the whole: on a new axis, one after another, or interleaved by heads."""
    count, rank, alike = len(parts), len(whole.shape), len({t.shape for t in parts}) == 1
    for axis, n in enumerate(whole.shape):
        sizes = [n * t.count // whole.count for t in parts]
        ways = [*[0] * (n == count), 1, *divisors(n // count)[:MAX_HEADS]] if alike else [1]  # 0: its own axis
        for heads in ways if sum(sizes) == n else ():
            pieces = _pieces(bits, whole, axis, heads, sizes, totals)
            ordered = [parts[k] for k in pieces]
            names = tuple(t.name for t in ordered)
            first = max(pieces, key=lambda k: sizes[k], default=0)  # it has all axes
            shapes = [t.shape for t in (pieces[first], parts[first])] if pieces else []
            for order in (*simple(*shapes), *hidden(*shapes)) if pieces else ():
                if heads:
                    rows = [sizes[k] * (len(parts[k].shape) == len(shapes[1])) for k in pieces]
                    order = fused(order, rank, axis, count, heads) if alike else uneven(order, rank, axis, rows)
                    if bits.proved([whole], ordered, order):
                        return Pair((whole.name,), names, order, "values")
                elif all(bits.proved([piece], [parts[k]], order) for k, piece in pieces.items()):
                    return Pair((whole.name,), names, within(order, rank - 1, axis), "values", each=(1, count))
    return None


def _pieces(
    bits: Bits, whole: Tensor, axis: int, heads: int, sizes: Sequence[int], totals: Sequence[int]
) -> dict[int, Tensor]:
    """Map parts to the slices of a tensor along an axis, in order; empty if a slice is none of the parts."""
    left: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k, both in enumerate(zip(sizes, totals, strict=True)):
        left[both].append(k)
    found: dict[int, Tensor] = {}
    while len(found) < len(sizes):
        for size in {size for (size, _), some in left.items() if some}:
            piece = _cut(whole, axis, heads, sum(sizes[k] for k in found), size)
            held = fingerprint(piece, bits.sources)
            if held and left.get((size, held.total)):
                found[left[size, held.total].pop(0)] = piece
                break
        else:
            return {}
    return found


def _cut(whole: Tensor, axis: int, heads: int, at: int, size: int) -> Tensor:
    """Slice an axis, and drop it if there are no heads; with several heads, take the same slice of each."""
    ends = LETTERS[:axis], LETTERS[axis + 1 : len(whole.shape)]
    inside = ("(before + 1 + after)", "before", "", "after")
    if heads:
        inside = ("(heads (before + size + after))", "(heads before)", "(heads size)", "(heads after)")
    left, *rights = (" ".join([*ends[0], words, *ends[1]]) for words in inside)
    known = {"before": at // heads, "heads": heads, "size": size // heads} if heads else {"before": at}
    shape, parts = layouts.parse(f"{left} -> {', '.join(rights)}").apply([whole], known)[1]
    return Tensor(whole.name, whole.dtype, shape, parts)


def _stacked_names(parts: Mapping[str, Print]) -> Iterator[tuple[str, ...]]:
    """Yield groups of names that differ in one number, which counts from 0: slices along an axis."""
    groups: dict[tuple[object, ...], dict[int, str]] = defaultdict(dict)
    for name in parts:
        text, numbers = folded(name)
        for k, n in enumerate(numbers):
            groups[(text, k, numbers[:k], numbers[k + 1 :], parts[name].elements)][n] = name
    for found in groups.values():
        if len(found) > 1 and set(found) == set(range(len(found))):
            yield tuple(found[i] for i in range(len(found)))


def _siblings(parts: Mapping[str, Print]) -> Iterator[tuple[str, ...]]:
    """Yield small groups of tensors of one module, or of the modules in one."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in parts:
        for home in {parent(name), parent(parent(name))}:
            groups[home].append(name)
    for names in groups.values():
        for count in range(2, MAX_PIECES + 1) if len(names) <= MAX_SIBLINGS else ():
            yield from combinations(names, count)
