"""Pairs by name: words, numbers, order; shapes only allow or forbid. Solved for all tensors at once, not greedily.

Names that differ in numbers only are one template. Templates are paired by a linear assignment over the likeness of
their words times the number of tensors they could pair, then the numbers of the two are aligned: as they are, shifted,
or in order. What is left over is tried again. Memory is bounded by comparing only templates that share a shape.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra
from .numbering import Unique, aligned
from .pairs import Item, Named, Sort
from .words import KINDS, items

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Block = tuple[list[int], list[int]]  # templates of both sides that are compared with each other
ROUNDS = 12
FEW = 500  # names of equal tensors that are compared one by one
MAX_BLOCK = 2500  # templates of one block on a side that are solved at once


# --- likeness ---------------------------------------------------------------------------------------------------------


def likeness(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> Array:
    """The likeness of all words of a to all of b: the cosine of their features, rare ones weighing more.

    Features are words, pairs of neighbours, and the last word as such.
    """
    import numpy as np

    sparse = _sparse()
    rows = []
    for text in (*a, *b):
        bare = [w for w in text if w != "#"]
        rows.append(Counter([*bare, *(f"{x} {y}" for x, y in pairwise(bare)), f"{bare[-1] if bare else ''} $"]))
    seen = Counter(f for r in rows for f in r)
    index = {f: i for i, f in enumerate(seen)}
    weight = np.array([math.log(1 + len(rows) / n) * (0.5 if " " in f else 1) for f, n in seen.items()])
    at = np.array([index[f] for r in rows for f in r])
    counts = np.array([n for r in rows for n in r.values()]) * weight[at]
    table = sparse.csr_array((counts, at, np.cumsum([0, *map(len, rows)])), shape=(len(rows), len(index)))
    norm = np.sqrt(np.asarray((table * table).sum(axis=1)).reshape(-1))
    table = sparse.diags_array(1 / np.maximum(norm, 1e-12)) @ table
    return np.asarray((table[: len(a)] @ table[len(a) :].T).toarray(), "f4")


def _sparse() -> Any:
    try:
        from scipy import sparse
    except ImportError:
        raise MissingExtra("matching by names needs scipy; pip install 'ckptconv[match]'") from None
    return sparse


def assigned(gain: Array) -> list[tuple[int, int]]:
    """The pairs with the greatest sum of gains."""
    if gain.shape == (1, 1):
        return [(0, 0)] if gain[0, 0] > 0 else []
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(gain, maximize=True)
    return [(r, c) for r, c in zip(rows.tolist(), columns.tolist(), strict=True) if gain[r, c] > 0]


def alike(many_a: Sequence[str], many_b: Sequence[str]) -> list[tuple[str, str]]:
    """Pair few names whose tensors cannot be distinguished."""
    if len(many_a) == 1 and len(many_b) == 1:
        return [(many_a[0], many_b[0])]
    a, b = items(many_a, dict.fromkeys(many_a)), items(many_b, dict.fromkeys(many_b))
    if len(a) * len(b) > FEW**2:
        return [(n.a, n.b) for n in match(a, b)]
    gain = likeness([i.words for i in a], [j.words for j in b]) + 0.01
    for r, i in enumerate(a):
        for c, j in enumerate(b):
            gain[r, c] += 0.5 * (i.numbers == j.numbers) + 0.1 * (1 - abs(i.at - j.at))
    return [(many_a[r], many_b[c]) for r, c in sorted(assigned(gain))]


# --- templates --------------------------------------------------------------------------------------------------------


def sorts(found: Iterable[Item]) -> list[Sort]:
    out: dict[tuple[str, ...], list[Item]] = defaultdict(list)
    for i in found:
        out[i.words].append(i)
    return [Sort(w, m) for w, m in out.items()]


def match(
    a: Sequence[Item],
    b: Sequence[Item],
    homes: Mapping[tuple[str, str], float] | None = None,
    unique: Unique | None = None,
    least: float = 0.0,
) -> list[Named]:
    """Pair tensors of two checkpoints; `homes` says which words are known to belong together.

    `unique` knows the names of all tensors, if these are but what is left of them. Templates among which none are as
    alike as `least` are not looked at any further.
    """
    out: list[Named] = []
    left = [list(a), list(b)]
    unique = unique or Unique(a, b)
    for _ in range(ROUNDS):
        shared = {i.group for i in left[0]} & {i.group for i in left[1]}
        if not shared:
            break
        found = [sorts(i for i in side if i.group in shared) for side in left]
        made = _round(found[0], found[1], unique, homes or {}, least)
        if not made:
            break
        out += made
        done = {n.a for n in made}, {n.b for n in made}
        left = [[i for i in side if i.name not in names] for side, names in zip(left, done, strict=True)]
    return out


def _round(
    a: list[Sort], b: list[Sort], unique: Unique, homes: Mapping[tuple[str, str], float], least: float
) -> list[Named]:
    out: list[Named] = []
    for rows, columns in _blocks(a, b):
        part_a, part_b = [a[r] for r in rows], [b[c] for c in columns]
        like = likeness([s.words for s in part_a], [s.words for s in part_b])
        _kinds(like, part_a, part_b, homes)
        if like.max() < least:
            continue
        gain = _gain(like, part_a, part_b)
        for r, c in assigned(gain):
            near = [int(k) for k in (-gain[r]).argsort(kind="stable")[:4] if k != c and gain[r, k] > 0.85 * gain[r, c]]
            rivals = tuple(part_b[k].members[0].name for k in near)
            out += aligned(part_a[r], part_b[c], float(like[r, c]), rivals, unique)
    return out


def _kinds(like: Array, a: Sequence[Sort], b: Sequence[Sort], homes: Mapping[tuple[str, str], float]) -> None:
    """A bias is not a weight; tensors of modules that are known to belong together belong together as well."""
    import numpy as np

    numbered = {kind: k for k, kind in enumerate(sorted(KINDS))}  # numbers are compared many times quicker than words
    last = [np.array([numbered.get(s.words[-1] if s.words else "", -1) for s in side]) for side in (a, b)]
    rows, columns = ((x >= 0).nonzero()[0] for x in last)
    if rows.size and columns.size:
        like[np.ix_(rows, columns)] *= np.where(last[0][rows, None] != last[1][None, columns], 0.05, 1).astype("f4")
    places = [defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)]
    for side, many in enumerate((a, b) if homes else ()):
        for k, s in enumerate(many):
            places[side][" ".join(s.words[:-1])].append(k)
    for (x, y), gain in homes.items():
        if places[0][x] and places[1][y]:
            like[np.ix_(places[0][x], places[1][y])] += gain


def _gain(like: Array, a: Sequence[Sort], b: Sequence[Sort]) -> Array:
    """Likeness times the tensors that could be paired; order in the file weighs little, it is often alphabetic."""
    import numpy as np

    classes = {g: i for i, g in enumerate({g for s in (*a, *b) for g in s.groups})}
    places: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {i: ([], []) for i in classes.values()}
    for side, many in enumerate((a, b)):
        for k, s in enumerate(many):
            for g, n in s.groups.items():
                places[classes[g]][side].append((k, n))
    overlap = np.zeros(like.shape, "f4")
    for rows, columns in places.values():
        if rows and columns:
            left, right = np.array(rows), np.array(columns)
            overlap[np.ix_(left[:, 0], right[:, 0])] += np.minimum(left[:, 1, None], right[None, :, 1])
    sizes_a, sizes_b = (np.array([len(s.members) for s in many], "f4") for many in (a, b))
    near = 1 - np.abs(np.array([s.at for s in a], "f4")[:, None] - np.array([s.at for s in b], "f4")[None, :])
    share = overlap / np.maximum(sizes_a[:, None], sizes_b[None, :])
    return np.asarray(overlap * (like + 0.02 * near + 0.05 * share), "f4")


def _blocks(a: Sequence[Sort], b: Sequence[Sort]) -> list[Block]:
    """Templates that share shapes, directly or by way of others; a block too large is cut along its sorted words."""
    import numpy as np

    sparse = _sparse()
    every = [*a, *b]
    groups = {g: k for k, g in enumerate({g for s in every for g in s.groups}, len(every))}
    edges = [(k, groups[g]) for k, s in enumerate(every) for g in s.groups]
    rows, columns = zip(*edges, strict=True)
    size = len(every) + len(groups)
    graph = sparse.coo_array((np.ones(len(edges)), (rows, columns)), shape=(size, size))
    _, label = sparse.csgraph.connected_components(graph, directed=False)
    found: dict[int, Block] = defaultdict(lambda: ([], []))
    for k in range(len(every)):
        found[int(label[k])][k >= len(a)].append(k - len(a) * (k >= len(a)))
    return [block for rows_, columns_ in found.values() if rows_ and columns_ for block in _cut(rows_, columns_, a, b)]


def _cut(rows: list[int], columns: list[int], a: Sequence[Sort], b: Sequence[Sort]) -> list[Block]:
    count = -(-max(len(rows), len(columns)) // MAX_BLOCK)
    if count == 1:
        return [(rows, columns)]
    same = {b[c].words: c for c in columns}
    if easy := [([r], [same[a[r].words]]) for r in rows if a[r].words in same]:
        return easy  # no assignment is needed for these
    rows.sort(key=lambda r: a[r].words[::-1])
    columns.sort(key=lambda c: b[c].words[::-1])
    starts = [[len(many) * i // count for i in range(count + 1)] for many in (rows, columns)]
    cuts = zip(pairwise(starts[0]), pairwise(starts[1]), strict=True)
    return [(rows[slice(*x)], columns[slice(*y)]) for x, y in cuts]
