"""What names say: words, numbers, order; and the pairs that they make, solved for all tensors at once, not greedily.

bert/encoder/layer_3/attention/self/query/kernel    bert encoder layer # attention self query weight    (3,)
encoder.layer.3.attention.self.query.weight              encoder layer # attention self query weight    (3,)

Names that differ in numbers only are one template. Templates are paired by a linear assignment over the likeness of
their words times the number of tensors they could pair; then the numbers of the two are aligned: as they are, shifted
(layer_{1..12} and layer.{0..11}) or in order, which is assumed. What is left over is tried again. Only templates that
share a shape are compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtra
from ..pairs import COPY, WORDS, Item, Named, Sort, folded, leaf, parent

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


# Variables by what they are called in one place and the other. The last word decides what a tensor is.
LEAVES = {
    "kernel": "weight", "gamma": "weight", "scale": "weight", "embeddings": "weight", "embedding": "weight",
    "w": "weight", "weights": "weight", "g": "weight", "beta": "bias", "b": "bias", "biases": "bias", "offset": "bias",
    "moving_mean": "running_mean", "moving_variance": "running_var", "mean": "running_mean", "var": "running_var",
    "depthwise_kernel": "depthwise_weight", "pointwise_kernel": "pointwise_weight",
    "recurrent_kernel": "weight_hh", "recurrent_bias": "bias_hh",
}  # fmt: skip
SAME = {
    "attn": "attention", "att": "attention", "embedding": "embeddings", "emb": "embeddings", "layernorm": "norm",
    "ln": "norm", "bn": "norm", "batchnorm": "norm", "layers": "layer", "blocks": "block", "linear": "dense",
    "fc": "dense", "conv2d": "conv", "conv1d": "conv", "stages": "stage", "groups": "group", "experts": "expert",
    "convolution": "conv", "normalization": "norm", "batch": "", "self": "self", "crossattention": "cross",
    "q": "query", "k": "key", "v": "value", "o": "output", "out": "output", "encdec": "encoder",
    "bw": "backward", "bwd": "backward", "reverse": "backward", "fw": "forward", "fwd": "forward",
    "ff": "mlp", "ffn": "mlp", "feedforward": "mlp", "dw": "depthwise", "pw": "pointwise", "sep": "separable",
    "pos": "position", "shortcut": "downsample", "router": "gate", "dwconv": "depthwise",
}  # fmt: skip
SEPARATORS = re.compile(r"[/.]+")
AVERAGE = re.compile(r"(?:/~)?/(mean|var)_ema(?:/~)?/average$")
RANK = re.compile(r"(?i)(conv|pool)[123]d")
PLURAL = 4  # of a word that may be a plural, at least
KINDS = {"weight", "bias", "running_mean", "running_var", "weight_hh", "weight_ih", "bias_ih", "bias_hh"}
RECURRENT = re.compile(r"((?:weight|bias)_(?:ih|hh))(?:_l[0-9]+)?(_reverse)?")  # of torch


@lru_cache(maxsize=2**16)
def words(name: str) -> tuple[str, ...]:
    """The words of a name in the order they stand, numbers as #, spellings made one."""
    name = averaged(COPY.sub("", name))
    *scopes, last = SEPARATORS.split(name)
    out: list[str] = []
    for segment in scopes:
        out += _split(segment)
    last = last.lstrip("_") or last
    parameter = LEAVES.get(last.lower())
    out += ["norm"] if last.lower() in ("gamma", "beta") and "norm" not in out[-2:] else []
    return (*out, *([parameter] if parameter else _leaf(last)))


def averaged(name: str) -> str:
    """Haiku's norm/~/mean_ema/average as norm/mean, as others call it."""
    return AVERAGE.sub(r"/\1", name) if name.endswith("average") else name


def _leaf(last: str) -> list[str]:
    if m := RECURRENT.fullmatch(last.lower()):
        return ["backward", m[1]] if m[2] else [m[1]]
    return [last.lower()] if last.lower() in KINDS else _split(last)


@lru_cache(maxsize=2**16)
def _split(segment: str) -> list[str]:
    segment = RANK.sub(r"\1", segment)
    found = ["#" if w.isdigit() else w.lower() for w in WORDS.findall(segment)]
    out = [x for w in found if (x := SAME.get(w, _singular(w)))]
    return [w for k, w in enumerate(out) if w != "layer" or out[k + 1 : k + 2] != ["norm"]]


def _singular(word: str) -> str:
    """tokens as token; bias and class stay."""
    plural = len(word) > PLURAL and word.endswith("s") and not word.endswith(("ss", "us", "is", "as"))
    return word[:-1] if plural and word not in SAME.values() else word


def items(names: Iterable[str], groups: Mapping[str, Hashable]) -> list[Item]:
    """The tensors as this module sees them."""
    every = list(names)
    cells = {n.rpartition("recurrent_kernel")[0] for n in every if "recurrent_kernel" in n}
    out = []
    for at, name in enumerate(every):
        text, home, last = name, parent(name), leaf(name)
        if cells and last in ("kernel", "bias") and f"{home}/" in cells:
            text = f"{parent(text)}/{'weight_ih' if last == 'kernel' else 'bias_ih'}"
        out.append(Item(name, words(text), folded(text)[1], groups[name], at / max(1, len(every) - 1)))
    return out


Templates = tuple[list[int], list[int]]  # templates of both sides that are compared with each other
ROUNDS = 12
MAX_COLUMNS = 4  # numbers of a name that are permuted
MAX_BLOCK = 2500  # templates of one block on a side that are solved at once


# --- likeness ---------------------------------------------------------------------------------------------------------


def likeness(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> Array:
    """The likeness of all words of a to all of b: the cosine of their features, rare ones weighing more.

    Features are words, pairs of neighbours, and the last word as such.
    """
    try:
        import numpy as np
        from scipy import sparse
    except ImportError:
        raise MissingExtra("matching by names needs scipy; pip install 'ckptconv[match]'") from None
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


def assigned(gain: Array) -> list[tuple[int, int]]:
    """The pairs with the greatest sum of gains."""
    if gain.shape == (1, 1):
        return [(0, 0)] if gain[0, 0] > 0 else []
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(gain, maximize=True)
    return [(r, c) for r, c in zip(rows.tolist(), columns.tolist(), strict=True) if gain[r, c] > 0]


def alike(many_a: Sequence[str], many_b: Sequence[str]) -> list[tuple[str, str]]:
    """Pair names whose tensors cannot be distinguished."""
    if len(many_a) == 1 and len(many_b) == 1:
        return [(many_a[0], many_b[0])]
    a, b = items(many_a, dict.fromkeys(many_a)), items(many_b, dict.fromkeys(many_b))
    return [(n.a, n.b) for n in by_likeness(a, b)]


# --- templates --------------------------------------------------------------------------------------------------------


def sorts(found: Iterable[Item]) -> list[Sort]:
    out: dict[tuple[str, ...], list[Item]] = defaultdict(list)
    for i in found:
        out[i.words].append(i)
    return [Sort(w, m) for w, m in out.items()]


def by_likeness(
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
    for rows, columns in _cut_block(a, b):
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

    last = [np.array([s.words[-1] if s.words and s.words[-1] in KINDS else "" for s in side]) for side in (a, b)]
    rows, columns = (np.flatnonzero(x != "") for x in last)
    like[np.ix_(rows, columns)] *= np.where(last[0][rows, None] != last[1][None, columns], 0.05, 1).astype("f4")
    for r, s in enumerate(a if homes else ()):
        for c, t in enumerate(b):
            like[r, c] += homes.get((" ".join(s.words[:-1]), " ".join(t.words[:-1])), 0.0)


def _gain(like: Array, a: Sequence[Sort], b: Sequence[Sort]) -> Array:
    """Likeness times the tensors that could be paired; order in the file weighs little, it is often alphabetic."""
    import numpy as np

    overlap = np.zeros(like.shape, "f4")
    for g in {g for s in a for g in s.groups}:
        overlap += np.minimum.outer([s.groups[g] for s in a], [s.groups[g] for s in b])
    sizes = np.maximum.outer(*([len(s.members) for s in many] for many in (a, b)))
    near = 1 - np.abs(np.subtract.outer(*([s.at for s in many] for many in (a, b))))
    return np.asarray(overlap * (like + 0.02 * near + 0.05 * overlap / sizes), "f4")


def _cut_block(a: Sequence[Sort], b: Sequence[Sort]) -> list[Templates]:
    """All templates, or if these are too many those of equal words, or else slices along their sorted words."""
    rows, columns = [*range(len(a))], [*range(len(b))]
    count = -(-max(len(rows), len(columns)) // MAX_BLOCK)
    if count <= 1:
        return [(rows, columns)]
    same = {b[c].words: c for c in columns}
    if easy := [([r], [same[a[r].words]]) for r in rows if a[r].words in same]:
        return easy  # no assignment is needed for these
    rows.sort(key=lambda r: a[r].words[::-1])
    columns.sort(key=lambda c: b[c].words[::-1])
    starts = [[len(many) * i // count for i in range(count + 1)] for many in (rows, columns)]
    cuts = zip(pairwise(starts[0]), pairwise(starts[1]), strict=True)
    return [(rows[slice(*x)], columns[slice(*y)]) for x, y in cuts]


OPPOSED = {"pre", "post", "left", "right", "first", "last", "before", "after", "up", "down", "input", "output"}
Numbers = tuple[int, ...]
Change = Callable[[Numbers], Numbers]  # numbers of the one side as those of the other


def aligned(s: Sort, t: Sort, like: float, rivals: tuple[str, ...], unique: Unique) -> list[Named]:
    """Pair the members of two templates, as many as their classes allow."""
    same_words = unique(s.words, t.words)
    found, assumed = _by_numbers(s, t)
    if not found:
        found, assumed = list(_by_order(s, t)), "only the order of the names pairs them"
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


def _by_order(s: Sort, t: Sort) -> Iterator[tuple[Item, Item]]:
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
