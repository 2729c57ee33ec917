"""Pairs by name: words, numbers, order; shapes only allow or forbid. Solved for all tensors at once, not greedily.

Names that differ in numbers only are one template. Templates are paired by a linear assignment over the likeness of
their words times the number of tensors they could pair, then the numbers of the two are aligned: as they are, shifted,
or in order. What is left over is tried again. Memory is bounded by comparing only templates that share a shape.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
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
BEGINS = 4  # letters of a word that say nearly what it does
FEW = 500  # names of equal tensors that are compared one by one
DENSE = 10_000  # numbers of a table of features that is quicker made in full
CHUNK = 500  # rows of likeness at a time, where all would not fit
ENOUGH = 0.3  # likeness of templates that are taken for each other's without an assignment
MAX_SOLVED = 600  # rows or columns of an assignment that is solved exactly
MAX_BLOCK = 2500  # templates of one block on a side that are solved at once


# --- likeness ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2**16)
def _features(text: tuple[str, ...]) -> Mapping[str, int]:
    """Words and pairs of neighbours, the last word as such too."""
    bare = [w for w in text if w != "#"]
    out: Counter[str] = Counter(bare)
    out.update(f"{x} {y}" for x, y in pairwise(bare))
    out.update(f"{w[:BEGINS]} .." for w in bare if len(w) > BEGINS)  # token and tokens, embed and embedding
    out[f"{bare[-1] if bare else ''} $"] = 1
    return out


def likeness(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> Array:
    """The likeness of all words of a to all of b: the cosine of their features, rare ones weighing more."""
    return _product(*_vectors(a, b))


def _product(left: Any, right: Any) -> Array:
    import numpy as np

    found = left @ right.T
    return np.asarray(found if isinstance(found, np.ndarray) else found.toarray(), "f4")


def _vectors(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> list[Any]:
    """The features of all words as rows of length one, sparse where there are many."""
    try:
        import numpy as np
        from scipy import sparse
    except ImportError:
        raise MissingExtra("matching by names needs scipy; pip install 'ckptconv[match]'") from None
    rows = [[_features(tuple(t)) for t in side] for side in (a, b)]
    seen = Counter(f for side in rows for r in side for f in r)
    total = len(a) + len(b)
    index = {f: i for i, f in enumerate(seen)}
    weight = np.array([math.log(1 + total / n) * (0.5 if " " in f else 1) for f, n in seen.items()])

    def table(side: list[Mapping[str, int]]) -> Any:
        lengths = [len(r) for r in side]
        at = np.fromiter((index[f] for r in side for f in r), int, sum(lengths))
        n = np.fromiter((c for r in side for c in r.values()), float, sum(lengths))
        if total * len(index) <= DENSE:
            full = np.zeros((len(side), len(index)))
            full[np.repeat(np.arange(len(side)), lengths), at] = n * weight[at]
            return full / np.maximum(np.sqrt((full * full).sum(axis=1, keepdims=True)), 1e-12)
        made = sparse.csr_array((n * weight[at], at, np.cumsum([0, *lengths])), shape=(len(side), len(index)))
        norm = np.sqrt(np.asarray((made * made).sum(axis=1)).reshape(-1))
        return sparse.diags_array(1 / np.maximum(norm, 1e-12)) @ made

    return [table(side) for side in rows]


def assigned(gain: Array) -> list[tuple[int, int]]:
    """The pairs with the greatest sum of gains; of many, what is each other's best, and the rest in order."""
    if gain.shape == (1, 1):
        return [(0, 0)] if gain[0, 0] > 0 else []
    import numpy as np

    out: list[tuple[int, int]] = []
    rows, columns = (np.arange(n) for n in gain.shape)
    for _ in range(ROUNDS if max(gain.shape) > MAX_SOLVED else 0):  # solving takes the cube of the number
        if max(len(rows), len(columns)) <= MAX_SOLVED or not len(rows) or not len(columns):
            break
        part = gain[np.ix_(rows, columns)]
        best = part.argmax(axis=1)
        mutual = part.argmax(axis=0)[best] == np.arange(len(rows))
        out += zip(rows[mutual].tolist(), columns[best[mutual]].tolist(), strict=True)
        rows, columns = rows[~mutual], np.delete(columns, best[mutual])
    if max(len(rows), len(columns)) > MAX_SOLVED:
        out += zip(rows.tolist(), columns.tolist(), strict=False)
    elif len(rows) and len(columns):
        from scipy.optimize import linear_sum_assignment

        chosen = linear_sum_assignment(gain[np.ix_(rows, columns)], maximize=True)
        out += zip(rows[chosen[0]].tolist(), columns[chosen[1]].tolist(), strict=True)
    return [(r, c) for r, c in sorted(out) if gain[r, c] > 0]


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
            best = [int(k) for k in _highest(gain[r], 0.85 * gain[r, c]) if k != c]
            rivals = tuple(part_b[k].members[0].name for k in best)
            out += aligned(part_a[r], part_b[c], float(like[r, c]), rivals, unique)
    return out


def _highest(gains: Array, least: float) -> Array:
    """The places of the four highest of some gains that exceed a bound; few do, so that few are sorted."""
    near = (gains > least).nonzero()[0]
    return near[(-gains[near]).argsort(kind="stable")[:4]]


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
    first: dict[Hashable, int] = {}
    root = list(range(len(a) + len(b)))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = k = root[root[k]]
        return k

    for k, s in enumerate((*a, *b)):
        for g in s.groups:
            root[find(k)] = find(first.setdefault(g, k))
    found: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for k in range(len(a)):
        found[find(k)][0].append(k)
    for k in range(len(b)):
        found[find(len(a) + k)][1].append(k)
    out = []
    for rows, columns in found.values():
        if rows and columns:
            out += _cut(rows, columns, a, b)
    return out


def _cut(rows: list[int], columns: list[int], a: Sequence[Sort], b: Sequence[Sort]) -> list[Block]:
    count = -(-max(len(rows), len(columns)) // MAX_BLOCK)
    if count == 1:
        return [(rows, columns)]
    same = {s.words: c for c in columns for s in [b[c]]}
    easy = [(r, same[a[r].words]) for r in rows if a[r].words in same]  # no assignment is needed for these
    if easy:
        return [([r], [c]) for r, c in easy]
    if best := _mutual([a[r] for r in rows], [b[c] for c in columns]):
        return [([rows[r]], [columns[c]]) for r, c in best]
    rows.sort(key=lambda r: a[r].words[::-1])
    columns.sort(key=lambda c: b[c].words[::-1])
    return [(_slice(rows, i, count), _slice(columns, i, count)) for i in range(count)]


def _mutual(a: Sequence[Sort], b: Sequence[Sort]) -> list[tuple[int, int]]:
    """Pairs of templates that are each other's likest, found some rows at a time."""
    import numpy as np

    right, top = [-1] * len(a), np.zeros(len(b), "f4")
    left = np.full(len(b), -1)
    rows, columns = _vectors([s.words for s in a], [s.words for s in b])
    for start in range(0, len(a), CHUNK):
        like = _product(rows[start : start + CHUNK], columns)
        _kinds(like, a[start : start + CHUNK], b, {})
        for r, c in enumerate(like.argmax(axis=1)):
            right[start + r] = int(c)
        better = like.max(axis=0) > top
        left[better] = start + like.argmax(axis=0)[better]
        top = np.maximum(top, like.max(axis=0))
    return [(r, c) for r, c in enumerate(right) if left[c] == r and top[c] > ENOUGH]


def _slice(many: list[int], i: int, count: int) -> list[int]:
    return many[len(many) * i // count : len(many) * (i + 1) // count]
