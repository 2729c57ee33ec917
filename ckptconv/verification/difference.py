"""The differences of two checkpoints, and how they are shown: a line for each pattern of names that changed alike.

Diff(kept, pairs)      pairs of kind only_a, only_b, renamed, shape, dtype or values, with measures
Diff.by("layer")       the changes of the tensors of a layer, a part of the layers or a kind, as if they were one tensor
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ..checkpoint import Note, Tensor
from ..errors import UsageError
from ..messages import Fold, Told, did_you_mean, fold, in_digits, in_shape, many, shortened, table
from ..moves.cast import numbers
from ..moves.read import each, windows
from ..moves.sources import Sources

KINDS = {"only_a": "only in A", "only_b": "only in B"}  # the other kinds are shown by their own names
SUMS = KINDS | {"values": "with other values", "dtype": "with another dtype", "shape": "with another shape"}
ORDER = ("only_a", "only_b", "shape", "dtype", "values", "renamed")
MEASURES = ("differ", "change", "max abs", "cosine", "first")
SIDES = "llrllrrrrl"
SPREAD = 100  # changes on one line differ by at most this factor


class Tolerance(NamedTuple):
    """Allowed difference of two numbers: |a - b| <= atol + rtol |b|. Without either, bits are compared."""

    rtol: float | None = None
    atol: float | None = None

    @property
    def exact(self) -> bool:
        """Whether values are compared bit for bit."""
        return self.rtol is None and self.atol is None

    def checked(self) -> Tolerance:
        """Return self; UsageError unless both are finite and not negative."""
        if not all(x is None or (isinstance(x, Real) and x >= 0 and math.isfinite(x)) for x in self):
            raise UsageError("rtol= and atol= must be finite and not negative")
        return self


EXACT = Tolerance()


class Values(NamedTuple):
    """The difference of two tensors of one shape, measured over pairs of finite numbers; None if there is no such pair.

    relative: |a - b| / max(|a|, |b|). ulp: steps between neighbouring floats of their dtype. unpaired: elements where
    one side is finite and the other is not, or where infinities differ; with one, the differences, the cosine and the
    change are None. norm, apart: the Euclidean norms of a and of b - a; change: apart / norm.
    """

    differing: int
    elements: int
    first: tuple[int, ...]
    max_abs: float | int | None = None
    max_rel: float | None = None
    max_ulp: int | None = None
    cosine: float | None = None
    unpaired: int = 0
    change: float | None = None
    norm: float | None = None
    apart: float | None = None


PairKind = Literal["only_a", "only_b", "renamed", "shape", "dtype", "values"]


class Difference(NamedTuple):
    """One difference of two checkpoints; `a` or `b` is None if only the other has the tensor."""

    kind: PairKind
    a: Tensor | None
    b: Tensor | None
    values: Values | None = None

    @property
    def name(self) -> str:
        """The name in A, or in B if only B has the tensor."""
        found = self.a or self.b
        return found.name if found else ""


By = Literal["layer", "part", "kind"]


class Group(NamedTuple):
    """The change of several tensors that both checkpoints have, measured as if they were one tensor.

    tensors: their number; changed: the number of those with other values. The other fields are those of Values;
    change is None if the norm of A is 0, and change and max_abs are None if values are unpaired.
    """

    name: str
    tensors: int
    changed: int
    change: float | None
    norm: float
    apart: float
    max_abs: float | None
    unpaired: int

    def __repr__(self) -> str:
        what = "NaN or Inf on one side" if self.unpaired else f"|b - a| / |a| is {in_digits(self.change)}"
        return f"<{self.name}: {self.changed} of {many(self.tensors, 'tensor')} changed, {what}>"


@dataclass(frozen=True, repr=False)
class Diff(Told):
    """The result of `diff`.

    kept: the tensors of A that are equal in B; `equal` is their number. pairs: all differences, in the order of A, then
    of B; each has `kind` (only_a, only_b, renamed, shape, dtype or values), `name`, the tensors `a` and `b`, and
    `values` with measures. tolerance: the allowed difference. damaged: notes on tensors of either side that were not
    compared, because `keep_going` left them out; unread: on those that no reader looks at (a dtype that nothing else
    can hold, constants of a graph). beside: notes on things that are not compared because they are not tensors
    (settings, files), or are unread in files with the same bytes. `by` sums the changes.
    """

    kept: tuple[Tensor, ...]
    pairs: tuple[Difference, ...]
    tolerance: Tolerance
    damaged: tuple[Note, ...] = ()
    unread: tuple[Note, ...] = ()
    beside: tuple[Note, ...] = ()

    @property
    def equal(self) -> int:
        """The number of equal tensors."""
        return len(self.kept)

    def by(self, what: By, *, workers: int = 1) -> list[Group]:
        """Sum the changes by layer, by part of the layers (of all layers together), or by kind (attention, norms ...).

        Tensors are grouped by name; modules outside of layers are groups of their own, and so are optimizer slots and
        state. Tensors that only one side has, or whose shapes differ, are not counted. Tensors that did not change are
        read for their norms, in `workers` threads. The largest change comes first, the optimizer's last.
        """
        if what not in get_args(By):
            raise UsageError(
                f"changes are summed by layer, part or kind, not by {what!r}{did_you_mean(what, get_args(By))}"
            )
        moved = [(p.a, p.values) for p in self.pairs if p.a and p.values]
        still = [*self.kept, *(p.a for p in self.pairs if p.a and not p.values and p.kind in ("renamed", "dtype"))]
        rows = [
            *moved,
            *((t, Values(0, t.count, (), norm=n)) for t, n in zip(still, each(still, _norm, workers), strict=True)),
        ]
        groups: dict[str, list[Values]] = {}
        for (_, values), place in zip(rows, places(t for t, _ in rows), strict=True):
            groups.setdefault(_group(place, what), []).append(values)
        return sorted((_together(name, values) for name, values in groups.items()), key=_worst)

    @property
    def same(self) -> bool:
        """True if nothing differs, is damaged or unread; with a tolerance, a different dtype alone does not count."""
        return not (self.damaged or self.unread or self._counted)

    @property
    def _counted(self) -> list[str]:
        """The kinds of the differences that count; with a tolerance, tensors of other dtypes differ by their values."""
        exact = self.tolerance.exact
        return [p.kind if exact or not p.values else "values" for p in self.pairs if exact or not _is_cast(p)]

    def __bool__(self) -> bool:
        """Refuse: `assert diff(a, b)` would always hold."""
        raise TypeError("a Diff is neither true nor false; use diff(a, b).same")

    @property
    def columns(self) -> tuple[str, ...]:
        """The column titles of `rows`."""
        measured = any(p.values for p in self.pairs)
        return ("kind", "name", "many", "A", "B", *(MEASURES if measured else ()))

    def rows(self, *, folded: bool = True) -> list[tuple[str, ...]]:
        """Return a row for each difference, or for names that differ only in numbers and changed alike.

        Missing and renamed tensors and other shapes and dtypes come first, then values, the largest change first, those
        of the optimizer last.
        """
        groups: dict[tuple[Any, ...], dict[str, Difference]] = {}
        for p in self.pairs:
            name = f"{p.a.name} -> {p.b.name}" if p.kind == "renamed" and p.a and p.b else p.name
            broken = bool(p.values and p.values.unpaired)
            shaped = not (folded and _is_cast(p))
            sides = _side(p.a, shaped=shaped), _side(p.b, shaped=shaped)
            state = bool(p.a and _is_state(p.a))
            groups.setdefault((p.kind, *sides, state, broken, _magnitude(p)), {})[name] = p
        rows = list[tuple[Any, tuple[str, ...]]]()  # each with its place
        measured = len(self.columns) > len(MEASURES)
        for (kind, left, right, state, *_), pairs in groups.items():
            lines = fold(pairs) if folded else [Fold(n, (n,)) for n in pairs]
            if folded and all(map(_is_cast, pairs.values())):
                lines = [Fold(shortened(list(pairs), 1), tuple(pairs))]
            for line in lines:
                values = [v for n in line.names if (v := pairs[n].values)]
                sides = (left, right) if kind != "values" else (left, "")
                count = f"x{len(line.names)}" if len(line.names) > 1 else ""
                cells = KINDS.get(kind, kind), line.text, count, *sides, *(_measures(values) if measured else ())
                change = max(_change(pairs[n].values) for n in line.names)
                rows.append(((ORDER.index(kind), state, -change), cells))
        return [cells for _, cells in sorted(rows, key=itemgetter(0))]

    def to_json(self, by: By | None = None) -> dict[str, Any]:
        """The comparison as JSON values; `by` adds sums of the changes."""

        def side(t: Tensor | None) -> dict[str, Any] | None:
            return {"name": t.name, "dtype": t.dtype.name, "shape": list(t.shape)} if t else None

        return {
            "same": self.same, "equal": self.equal,
            **({"by": by, "groups": [g._asdict() for g in self.by(by)]} if by else {}),
            "differences": [
                {"kind": p.kind, "a": side(p.a), "b": side(p.b), "values": p.values and p.values._asdict()}
                for p in self.pairs
            ],
            **{key: [n.to_json() for n in getattr(self, key)] for key in ("damaged", "unread", "beside")},
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Return what the command line prints: a summary, a table of the differences, and the notes."""
        rows = table(self.columns, self.rows(), SIDES) if self.pairs else ()
        return [self.sum(), *rows, *map(str, (*self.damaged, *self.unread, *self.beside))]

    def sum(self) -> str:
        """Say in one line whether the checkpoints are the same, and how many tensors are equal or differ how."""
        exact = self.tolerance.exact
        cast = [
            f"{p.a.dtype} in A and {p.b.dtype} in B" for p in self.pairs if p.a and p.b and _is_cast(p) and not exact
        ]
        kinds = Counter(self._counted)
        for what in ("damaged", "unread"):
            kinds[what] += sum(len(n.names) or 1 for n in getattr(self, what))
        counts = ", ".join(f"{n} {SUMS.get(k, k)}" for k, n in kinds.items() if n)
        unlike = "different" if self.damaged or self._counted else "not known to be the same"
        equal = f"{many(self.equal + len(cast), 'tensor')} equal" + " within the tolerance" * (not exact)
        if cast:
            some = f"{len(cast)} of them " if self.equal else "all " * (len(cast) > 1)
            equal += f", {some}{', '.join(sorted({*cast}))}"
        return f"{'the same' if self.same else unlike}: {equal}" + (f"; {counts}" if counts else "")


def _norm(t: Tensor, sources: Sources) -> float:
    """Compute the Euclidean norm of the finite elements; 0 for strings."""
    if t.dtype.kind in "sx":
        return 0.0
    wide = (np.abs(numbers(raw, t.dtype)).astype(np.float64) for raw in windows(t, sources))
    return math.sqrt(sum(float(np.square(x[np.isfinite(x)]).sum()) for x in wide))


def _group(place: Place, what: By) -> str:
    if place.kind == STATE or what == "kind":
        return place.kind
    return place.part if what == "part" else place.stack.replace("*", str(place.layer))


def _together(name: str, values: Sequence[Values]) -> Group:
    norm, apart = (
        math.hypot(*(x or 0.0 for x in column)) for column in zip(*((v.norm, v.apart) for v in values), strict=True)
    )
    unpaired = sum(v.unpaired for v in values)
    change = apart / norm if norm and not unpaired else None
    largest = None if unpaired else max(v.max_abs or 0 for v in values)
    return Group(name, len(values), sum(v.differing > 0 for v in values), change, norm, apart, largest, unpaired)


def _worst(g: Group) -> tuple[bool, float]:
    return g.name == STATE, -_change(g)


def _side(t: Tensor | None, *, shaped: bool = True) -> str:
    return (f"{t.dtype} {in_shape(t.shape)}" if shaped else t.dtype.name) if t else ""


def _is_cast(p: Difference) -> bool:
    """Tell whether the dtypes differ and the values do not."""
    return p.kind == "dtype" and not p.values


def _change(v: Values | Group | None) -> float:
    """Return |b - a| / |a|; infinite if NaN or Inf is on one side only, or if A was 0."""
    return 0.0 if v is None else math.inf if v.unpaired or (v.change is None and v.apart) else v.change or 0.0


def _magnitude(p: Difference) -> float:
    """Return the order of magnitude of a change; changes of different orders get separate lines."""
    change = _change(p.values)
    return math.log(min(change, 1e300), SPREAD) // 1 if change else -math.inf


def _measures(found: Sequence[Values]) -> tuple[str, ...]:
    """Format the worst of each measure over a group."""
    if not found:
        return ("",) * len(MEASURES)

    def most(numbers: Iterable[float | None]) -> str:
        known = [n for n in numbers if n is not None]
        return in_digits(max(known)) if known else "-"

    cosines = [v.cosine for v in found if v.cosine is not None]
    odd = sum(v.unpaired for v in found)
    return (
        f"{sum(v.differing for v in found):,} of {sum(v.elements for v in found):,}"
        + (f" ({odd:,} NaN or Inf)" if odd else ""),
        most(v.change for v in found),
        most(v.max_abs for v in found),
        f"{min(cosines):.6f}" if cosines else "-",
        str(list(found[0].first)) if len(found) == 1 else "",
    )


# --- where a tensor belongs, by its name: a layer of a stack, a part of that layer, and a kind ----------------------
#
# encoder.layer.3.attention.self.key.weight     stack encoder.layer.*, layer 3, part attention.self.key.weight
#
# Names only group the tensors for display; no conversion depends on them.


_NUMBER = re.compile(r"(\d{1,9})")
_EDGES = "/._-:"
STATE, OTHER = "optimizer and state", "other"
# The first line with a word of the name wins: the norm of an attention layer is a norm, its dense layer is attention.
_MEANINGS = {
    "norms": re.compile(r".*norm.*|ln|bn|gamma|beta"),
    "attention": re.compile(r".*attn.*|.*attention.*|query|qkv|[qkv]"),
    "recurrent": re.compile(r".*lstm.*|.*gru|.*rnn|ih|hh"),
    "embeddings": re.compile(r".*embed.*|emb|wte|wpe|relpos"),
    "convolutions": re.compile(r"conv.*|.*conv|depthwise|pointwise|downsample"),
    "heads": re.compile(r"classifier|heads?|logits|pooler|cls|predictions?"),
    "MLP": re.compile(r".*mlp.*|ffn?|fc|feed|feedforward|intermediate|dense|linear|wi|wo|experts?|gate|up|down"),
}
PART_KINDS = (*_MEANINGS, OTHER, STATE)


class Place(NamedTuple):
    """The place of a tensor. stack: the prefix of the names in a stack, with * for the layer.

    A tensor outside of stacks has layer -1, its module as the stack, and its name as the part.
    """

    stack: str
    layer: int
    part: str
    kind: str


def places(tensors: Iterable[Tensor]) -> list[Place]:
    """Return the place of each tensor, in order."""
    rows = [(t, _NUMBER.split(t.name)) for t in tensors]
    seen: dict[tuple[str, ...], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for _, words in rows:
        for at in range(1, len(words), 2):
            seen[tuple(words[::2])][at].add(words[at])
    slots = {  # by pattern of names, the number that counts layers: the first with three values, or with two
        pattern: next((at for least in (3, 2) for at, values in numbers.items() if len(values) >= least), 0)
        for pattern, numbers in seen.items()
    }
    return [_place(words, slots.get(tuple(words[::2]), 0), t) for t, words in rows]


def _place(words: Sequence[str], at: int, t: Tensor) -> Place:
    kind = STATE if _is_state(t) else _kind("0".join(words[::2]))  # without numbers
    if not at:
        return Place(re.sub(r"[/.][^/.]*$", "", t.name), -1, t.name, kind)
    return Place("".join(words[:at]) + "*", int(words[at]), "".join(words[at + 1 :]).lstrip(_EDGES) or "value", kind)


def _is_state(t: Tensor) -> bool:
    """Tell whether a tensor is no weight: training state, or a counter such as `num_batches_tracked`."""
    return bool(t.role) or (not t.shape and t.dtype.kind in "iu")


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """Guess the kind, one of PART_KINDS, from a tensor's name."""
    words = re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1_\2", name[:1000]).lower())
    if "cls" in words and "token" in words:
        return "embeddings"
    rest = "heads" if {*words[:1]} & {"out", "output"} else OTHER  # of a model, not of a layer
    return next((kind for kind, meaning in _MEANINGS.items() if any(map(meaning.fullmatch, words))), rest)
