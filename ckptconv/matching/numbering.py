"""Tensors of two templates: which number on the one side is which on the other, and how sure that is. Pure.

layer_{1..12} and layer.{0..11}     one number, shifted by one
conv3/conv3_7/kernel, conv3.weight  numbers that never vary or repeat another say nothing
block_{1,2,4}, stages.{0,1,2}       in order: assumed
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import permutations, product

from .pairs import Item, Named, Sort

OPPOSED = {"pre", "post", "left", "right", "first", "last", "before", "after", "up", "down", "input", "output"}
MAX_COLUMNS = 4  # numbers of a name that are permuted
Numbers = tuple[int, ...]
Change = Callable[[Numbers], Numbers]  # numbers of the one side as those of the other


def aligned(s: Sort, t: Sort, like: float, rivals: tuple[str, ...], unique: Unique) -> list[Named]:
    """Pair the members of two templates, as many as their classes allow."""
    same_words = unique(s.words, t.words)
    found, assumed = _by_numbers(s, t)
    if not found:
        found, assumed = list(_in_order(s, t)), "only the order of the names pairs them"
    why: tuple[str, ...] = () if same_words else ("the names are alike, not the same",)
    why += (assumed,) if assumed else ()
    shown = () if same_words and not assumed else rivals
    return [Named(a.name, b.name, like, not why, why, shown) for a, b in found]


def _by_numbers(s: Sort, t: Sort) -> tuple[list[tuple[Item, Item]], str]:
    """The pairs under the best way to align the numbers, and what had to be assumed for it."""
    if len(s.members) == len(t.members) == 1:
        a, b = s.members[0], t.members[0]
        return ([(a, b)], _fixed(s, t)) if a.group == b.group else ([], "")
    same = _paired(s, t, [i.numbers for i in s.members], [i.numbers for i in t.members], lambda n: n)
    if len(same) == min(len(s.members), len(t.members)) and s.members[0].numbers:
        return same, ""
    rows, columns = _telling(s.members), _telling(t.members)
    if len(rows[0]) != len(columns[0]) or len(rows[0]) > MAX_COLUMNS:
        return [], ""
    best, how = _best(s, t, rows, columns)
    if len({j.name for _, j in best}) < len(best):
        return [], ""
    return best, how or _fixed(s, t)


def _best(s: Sort, t: Sort, rows: Sequence[Numbers], columns: Sequence[Numbers]) -> tuple[list[tuple[Item, Item]], str]:
    """The order of the numbers and the map between them that pair most; of those that pair as many, the plainest.

    Numbers that swap and stay what they are come before numbers that all become others: 0_5, 1_5, 0_6 is 5.0, 5.1, 6.0.
    """
    best: list[tuple[Item, Item]] = []
    how = ""
    orders = list(permutations(range(len(rows[0]))))
    for way, order in product((_same, _ranked), orders):
        turned = [tuple(r[k] for k in order) for r in rows]
        change, assumed = way(turned, columns)
        pairs = _paired(s, t, turned, columns, change)
        if len(pairs) > len(best):
            best, how = pairs, assumed or ("" if order == orders[0] else "the numbers of the names swap")
        if len(best) == min(len(rows), len(columns)):
            break
    return best, how


def _paired(
    s: Sort, t: Sort, rows: Sequence[Numbers], columns: Sequence[Numbers], change: Change
) -> list[tuple[Item, Item]]:
    """Members of one class whose numbers, changed, are the other's."""
    known = dict(zip(columns, t.members, strict=True))
    found = ((i, known.get(change(n))) for i, n in zip(s.members, rows, strict=True))
    return [(i, j) for i, j in found if j is not None and j.group == i.group]


def _fixed(s: Sort, t: Sort) -> str:
    """Doubt, if numbers that never vary are others on the two sides: block 1 is not block 2."""
    sides = [{c[0] for c in zip(*(i.numbers for i in x.members), strict=True) if len(set(c)) == 1} for x in (s, t)]
    same = sides[0] <= sides[1] or sides[1] <= sides[0]
    return "" if same else "the numbers in the names differ"


def _telling(members: Sequence[Item]) -> list[Numbers]:
    """The numbers of the names without those that never vary or repeat another."""
    columns = list(dict.fromkeys(zip(*(i.numbers for i in members), strict=True)))
    columns = [c for c in columns if len(set(c)) > 1]
    kept: list[tuple[int, ...]] = []
    for c in columns:
        if not any(len(set(zip(c, k, strict=True))) == len(set(c)) == len(set(k)) for k in kept):
            kept.append(c)
    return list(zip(*kept, strict=True)) if kept else [()] * len(members)


def _same(rows: Sequence[Numbers], columns: Sequence[Numbers]) -> tuple[Change, str]:
    """Numbers stay what they are; nothing is assumed."""
    return (lambda n: n), ""


def _ranked(rows: Sequence[Numbers], columns: Sequence[Numbers]) -> tuple[Change, str]:
    """The k-th number of the one side becomes the k-th of the other, and what that assumes."""
    sets = [[sorted(set(c)) for c in zip(*side, strict=True)] for side in (rows, columns)]
    if [len(x) for x in sets[0]] != [len(y) for y in sets[1]]:
        return _same(rows, columns)
    tables = [dict(zip(x, y, strict=True)) for x, y in zip(*sets, strict=True)]
    even = all(len({y - x for x, y in t.items()}) == 1 for t in tables)
    return (
        (lambda n: tuple(t[k] for t, k in zip(tables, n, strict=True))),
        ("" if even else "numbers that are not the same are paired in order"),
    )


def _in_order(s: Sort, t: Sort) -> Iterator[tuple[Item, Item]]:
    """The members of each class as they follow one another by their numbers."""
    sides: list[dict[Hashable, list[Item]]] = []
    for sort in (s, t):
        found: dict[Hashable, list[Item]] = defaultdict(list)
        for i in sorted(sort.members, key=lambda i: i.numbers):
            found[i.group].append(i)
        sides.append(found)
    for group, many in sides[0].items():
        yield from zip(many, sides[1].get(group, ()), strict=False)


class Unique:
    """Whether two names say the same, and no other name does.

    Words that the other side never uses are left out, and a name that repeats itself (conv1/conv1) is read once. What
    is left must be equal, or one the end of the other, and no third name may end so. Where both leave out words in one
    place, these may contradict: pre_attention_norm is not post_attention_norm. Only before the first word they are
    taken for the name of the whole model, unless they are opposites.
    """

    def __init__(self, a: Sequence[Item], b: Sequence[Item]) -> None:
        sides = [{i.words for i in side} for side in (a, b)]
        vocabulary = [{w for text in side for w in text} for side in sides]
        self.common = vocabulary[0] & vocabulary[1] - {"#"}
        self.ends = [Counter(e for text in side for e in _ends(self.read(text))) for side in sides]

    def read(self, text: Sequence[str]) -> tuple[str, ...]:
        return tuple(word for word, _ in self._kept(text))

    def _kept(self, text: Sequence[str]) -> list[tuple[str, frozenset[str]]]:
        """The words that the other side uses too, each with those that were left out before it."""
        out: list[tuple[str, frozenset[str]]] = []
        gap: set[str] = set()
        for word in text:
            if word not in self.common:
                gap |= {word} - {"#"}
                continue
            out.append((word, frozenset(gap)))
            gap.clear()
            bare = [w for w, _ in out]
            for size in range(1, len(out) // 2 + 1):
                if bare[-size:] == bare[-2 * size : -size]:
                    del out[-size:]
                    break
        return out

    def __call__(self, a: Sequence[str], b: Sequence[str]) -> bool:
        x, y = sorted((self._kept(a), self._kept(b)), key=len)
        bare = tuple(w for w, _ in x)
        end = y[-len(x) :]
        if not x or bare != tuple(w for w, _ in end) or any(ends[bare] != 1 for ends in self.ends):
            return False
        gaps = [(one, other) for (_, one), (_, other) in zip(x, end, strict=True) if one and other and one != other]
        return not gaps or (len(gaps) == 1 and x[0][1] == gaps[0][0] and not (gaps[0][0] ^ gaps[0][1]) & OPPOSED)


def _ends(text: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [text[k:] for k in range(len(text))]
