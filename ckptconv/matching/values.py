"""Pairs by content: equal fingerprints propose, the order of axes is proved bit for bit.

prints.py makes the fingerprints, parts.py looks for tensors that were cut or joined. A constant (zeros, ones) is no
evidence, and tensors that share their content with others are distinguished by names, and marked so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from ..checkpoint import Tensor
from ..moves.sources import Sources
from .bits import Bits
from .names import alike
from .pairs import LISTED, Pair
from .parts import Parts
from .prints import Print, fingerprints

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
            _cut(found, bits, (a, b), side)
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


def _cut(found: Found, bits: Bits, sides: tuple[Mapping[str, Tensor], Mapping[str, Tensor]], side: int) -> None:
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


__all__ = ["Found", "find"]
