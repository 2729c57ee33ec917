"""Modules whose names say the same, as no others do; their numbers stay as they are or are all shifted.

    bert/encoder/layer_3/attention/self/query     encoder.layer.3.attention.self.query
    enc/layer_1, enc/layer_2, enc/layer_3         enc.layers.0, enc.layers.1, enc.layers.2

Words that the other side never uses are left out, and a name that repeats itself (conv1/conv1) is read once. What is
left must be equal, or one the end of the other, and no third name may end so. Where both leave out words in one place,
these may contradict: pre_attention_norm is not post_attention_norm. Only before the first word they are taken for the
name of the whole model, unless they are opposites.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..modules.units import Unit

OPPOSED = {"pre", "post", "left", "right", "first", "last", "before", "after", "up", "down", "input", "output"}
Words = tuple[str, ...]  # of a module, numbers as #
Numbers = tuple[int, ...]
Kept = list[tuple[str, frozenset[str]]]  # words that both sides use, each with those that were left out before it
Both = tuple[Sequence[Unit], Sequence[Unit]]


def same_names(sides: Both, every: Both) -> Iterator[tuple[Unit, Unit]]:
    """Pairs of the modules of both sides, `every` of which decides what a name says."""
    ends = [_ends(_read(every, side)) for side in (0, 1)]
    members: list[dict[Words, list[Unit]]] = [defaultdict(list), defaultdict(list)]
    for found, many in zip(members, sides, strict=True):
        for u in many:
            found[_words(u)].append(u)
    for end in [e for e in ends[0] if e in ends[1] and len(e) > 1]:  # not the kind alone
        if len(ends[0][end]) == len(ends[1][end]) == 1:
            (s, x), (t, y) = (next(iter(found[end].items())) for found in ends)
            if len(end) in (len(x), len(y)) and not _contradict(x[-len(end) :], y[-len(end) :]):
                yield from _by_numbers(members[0][s], members[1][t])


def _words(u: Unit) -> Words:
    return (*u.words, u.kind)


def _read(every: Both, side: int) -> Iterator[tuple[Words, Kept]]:
    """The names of a side, numbers aside, and what is kept of each."""
    used = {w for u in every[1 - side] for w in _words(u)} - {"#"}
    for words in dict.fromkeys(map(_words, every[side])):
        out: Kept = []
        gap: set[str] = set()
        for word in words:
            if word not in used:
                gap |= {word} - {"#"}
                continue
            out.append((word, frozenset(gap)))
            gap.clear()
            bare = [w for w, _ in out]
            twice = [n for n in range(1, len(out) // 2 + 1) if bare[-n:] == bare[-2 * n : -n]]
            del out[len(out) - min(twice, default=0) :]
        yield words, out


def _ends(read: Iterator[tuple[Words, Kept]]) -> dict[Words, dict[Words, Kept]]:
    """The names by how they end."""
    out: dict[Words, dict[Words, Kept]] = defaultdict(dict)
    for words, kept in read:
        for k in range(len(kept)):
            out[tuple(w for w, _ in kept[k:])][words] = kept
    return out


def _contradict(x: Kept, y: Kept) -> bool:
    """Whether the words that were left out are others in one place, but for those of the model's name."""
    gaps = [(a, b, k) for k, ((_, a), (_, b)) in enumerate(zip(x, y, strict=True)) if a and b and a != b]
    return any(k or len(gaps) > 1 or (a ^ b) & OPPOSED for a, b, k in gaps)


def _by_numbers(a: Sequence[Unit], b: Sequence[Unit]) -> list[tuple[Unit, Unit]]:
    """The modules of two names whose numbers are the same, or all shifted by as much; none if others differ."""
    rows, columns = [u.counted for u in a], [u.counted for u in b]
    if not a or not b:
        return []
    ways = [(rows, columns)]
    fixed = [{c[0] for c in zip(*many, strict=True) if len(set(c)) == 1} for many in (rows, columns)]
    rows, columns = _varying(rows), _varying(columns)
    if len(rows[0]) == len(columns[0]) and (fixed[0] <= fixed[1] or fixed[1] <= fixed[0]):
        steps = [min(y) - min(x) for x, y in zip(zip(*rows, strict=True), zip(*columns, strict=True), strict=True)]
        shifted = [tuple(n + step for n, step in zip(row, steps, strict=True)) for row in rows]
        ways += [(rows, columns), (shifted, columns)]
    for rows, columns in ways:
        known = dict(zip(columns, b, strict=True))
        found = [(u, known[n]) for u, n in zip(a, rows, strict=True) if n in known and u.shape == known[n].shape]
        if len(found) == min(len(a), len(b)) and len({*rows}) == len(a) and len(known) == len(b):
            return found
    return []


def _varying(many: Sequence[Numbers]) -> list[Numbers]:
    """The numbers of names without those that never vary or repeat another."""
    kept: list[Numbers] = []
    for c in dict.fromkeys(zip(*many, strict=True)):
        if len(set(c)) > 1 and not any(len(set(zip(c, k, strict=True))) == len(set(c)) == len(set(k)) for k in kept):
            kept.append(c)
    return list(zip(*kept, strict=True)) if kept else [()] * len(many)
