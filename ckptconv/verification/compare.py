"""Compare the output with the conversion, and one checkpoint with another.

    same(expected, got)             every tensor, bit for bit; VerifyError with the first tensor and index
    diff(a, b)                      all differences, measured: only in A or B, renamed, shape, dtype, values
    departure(got, want, ...)       outputs of modules: the first submodule that departs

Values are equal if their bits are: -0.0 differs from 0.0, and a NaN equals a NaN with the same bits. With a tolerance
they are compared as numbers, |a - b| <= atol + rtol |b|, NaN equals NaN, and a different dtype alone does not count.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from filecmp import cmp
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Checkpoint, Note, Tensor
from ..dtypes import NO_ZERO, SATURATES
from ..errors import VerifyError
from ..messages import many, reasons
from ..moves.cast import BLOCK, numbers
from ..moves.copy import Array
from ..moves.read import each, hash_tensor, read_strings, windows
from ..moves.sources import Sources
from .difference import EXACT, Diff, Difference, Tolerance, Values
from .readback import mismatches

Outputs = Mapping[str, Sequence[Array]]  # by submodule ('' is the whole module), in the order in which they finished
WINDOW = 2**20  # elements of a window; two tensors are read in parallel
WORDS = 8  # last words of names, by which equal tensors are paired
NO_SIGN = (NO_ZERO, SATURATES)  # floats whose top bit is not a sign, so that steps between them are not counted


# --- one pair of tensors ----------------------------------------------------------------------------------------


def first_difference(a: Tensor, b: Tensor, sources: Sources) -> tuple[int, ...] | None:
    """Find the first element whose bits differ; None if there is none. Dtypes and shapes must be equal."""
    for start, x, y in side_by_side(a, b, sources, WINDOW):
        if not np.array_equal(x, y):
            item = 1 if x.dtype == object else a.dtype.itemsize
            return _index(start + int(np.flatnonzero(x != y)[0]) // item, a.shape)
    return None


def side_by_side(a: Tensor, b: Tensor, sources: Sources, count: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield windows of `count` elements with the index of the first: bytes, or objects for string tensors."""
    if a.dtype.kind == "s" or b.dtype.kind == "s":
        yield 0, read_strings(a).reshape(-1), read_strings(b).reshape(-1)
        return
    both = (windows(t, sources, max(1, count * t.dtype.itemsize)) for t in (a, b))
    for i, (x, y) in enumerate(zip(*both, strict=True)):
        yield i * count, x, y


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(flat, shape)))


def compare(a: Tensor, b: Tensor, tolerance: Tolerance, sources: Sources) -> Values | None:
    """Measure the difference of two tensors with the same shape; None if they are equal."""
    if not a.count or (a.dtype == b.dtype and first_difference(a, b, sources) is None):
        return None
    kinds = {a.dtype.kind, b.dtype.kind}
    if kinds & {"s", "c"} and len(kinds) > 1:
        return Values(a.count, a.count, (0,) * len(a.shape))
    if kinds == {"s"}:
        bad = np.flatnonzero(read_strings(a) != read_strings(b))
        return Values(len(bad), a.count, _index(int(bad[0]), a.shape))
    with np.errstate(all="ignore"):
        blocks = [
            _measured(start, x, y, a, b, tolerance) for start, x, y in side_by_side(a, b, sources, BLOCK)
        ]  # fmt: skip
    differing, firsts, unpaired, *peaks, dots, squares_a, squares_b, squares = zip(*blocks, strict=True)
    if not any(differing):
        return None
    max_abs, max_rel, max_ulp = (max((x for x in column if x is not None), default=None) for column in peaks)
    dot, aa, bb, dd = (sum(column) for column in (dots, squares_a, squares_b, squares))
    norm = math.sqrt(aa) * math.sqrt(bb)
    cosine = dot / norm if norm else math.nan
    change = math.sqrt(dd / aa) if aa else math.nan
    found = Values(
        sum(differing), a.count, _index(next(x for x in firsts if x is not None), a.shape), max_abs, max_rel, max_ulp,
        max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else None, sum(unpaired),
        *(x if math.isfinite(x) else None for x in (change, math.sqrt(aa), math.sqrt(dd))),
    )  # fmt: skip
    if not found.unpaired:
        return found
    return found._replace(max_abs=None, max_rel=None, max_ulp=None, cosine=None, change=None)


class _Measures(NamedTuple):
    """The measures of a block of elements of a pair: counts, then maxima, then sums of products."""

    differing: int
    first: int | None
    unpaired: int
    max_abs: float | int | None = None
    max_rel: float | None = None
    max_ulp: int | None = None
    dot: float = 0.0
    aa: float = 0.0
    bb: float = 0.0
    dd: float = 0.0


def _measured(start: int, x: Array, y: Array, a: Tensor, b: Tensor, tolerance: Tolerance) -> _Measures:
    """Measure a block of bytes of each tensor, whose first element is the tensors' element `start`.

    Complex numbers are measured as pairs of real numbers.
    """
    each = 2 if a.dtype.kind == "c" else 1
    fa, fb = _real(x, a), _real(y, b)
    wide_a, wide_b = fa.astype(np.float64), fb.astype(np.float64)
    words = [raw.view(f"u{a.dtype.itemsize // each}") for raw in (x, y)] if a.dtype == b.dtype else []
    if words and tolerance.exact:
        wrong: Array = np.not_equal(*words)
    else:
        wrong = _far(fa, fb, wide_a, wide_b, tolerance)
    places = np.flatnonzero(wrong.reshape(-1, each).any(axis=1))
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    alike = finite | (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
    counts = len(places), start + int(places[0]) if len(places) else None, int(np.count_nonzero(~alike))
    if not finite.all():
        fa, fb, wide_a, wide_b = fa[finite], fb[finite], wide_a[finite], wide_b[finite]
        words = [w[finite] for w in words]
    if not len(fa):
        return _Measures(*counts)
    apart, larger, steps = _apart(fa, fb), np.maximum(np.abs(wide_a), np.abs(wide_b)), None
    if words and a.dtype.kind in "fc" and a.dtype.name not in NO_SIGN:
        steps = _apart(_rank(words[0]), _rank(words[1])).max().item()
    return _Measures(
        *counts, apart.max().item(), float((apart / np.where(larger > 0, larger, 1)).max()), steps,
        *(float(np.sum(p)) for p in (wide_a * wide_b, wide_a**2, wide_b**2, np.square(apart, dtype=np.float64))),
    )  # fmt: skip


def _far(a: Array, b: Array, wide_a: Array, wide_b: Array, tolerance: Tolerance) -> Array:
    """Mark the numbers that are not equal within the tolerance."""
    near: Array = (a == b) | (np.isnan(wide_a) & np.isnan(wide_b))
    if not tolerance.exact:
        limit = (tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * np.abs(wide_b)
        near |= np.isfinite(wide_b) & (_apart(a, b) <= limit)
    return ~near


def _real(raw: Array, t: Tensor) -> Array:
    """View a window as real numbers: complex ones as alternating real and imaginary parts, opaque ones as bytes."""
    if t.dtype.kind == "c":
        return raw.view(np.dtype(f"f{t.dtype.itemsize // 2}"))
    return raw if t.dtype.kind == "x" else numbers(raw, t.dtype)


def _apart(a: Array, b: Array) -> Array:
    """Compute |a - b|, exactly for integers of one dtype."""
    if a.dtype == b.dtype and a.dtype.kind in "iu":
        ua, ub = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
        exact: Array = np.where(a > b, ua - ub, ub - ua)
        return exact
    gap: Array = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return gap


def _rank(bits: Array) -> Array:
    """Rank each float among all floats of its dtype; -0.0 and 0.0 have the same rank."""
    half = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    rank: Array = np.where(bits >= half, -bits, bits + half)  # negative floats descend
    return rank


# --- two checkpoints --------------------------------------------------------------------------------------------


def diff(a: Checkpoint, b: Checkpoint, tolerance: Tolerance = EXACT, *, workers: int = 1, values: bool = True) -> Diff:
    """Find and measure all differences; renamed tensors are recognised by their content.

    Without `values` no tensor is read: only names, shapes and dtypes are compared.
    """
    tolerance.checked()
    shared = [(t, b[n]) for n, t in a.items() if n in b]
    compared = each(shared, lambda both, s: _pair(*both, tolerance if values else None, s), workers)
    kept = tuple(t for (t, _), p in zip(shared, compared, strict=True) if not p)
    pairs = [p for p in compared if p]
    only_a = {n: t for n, t in a.items() if n not in b}
    only_b = {n: t for n, t in b.items() if n not in a}
    for one, other in list(_renamed(only_a, only_b, workers)) if values else ():
        pairs.append(Difference("renamed", only_a.pop(one), only_b.pop(other)))
    pairs += [Difference("only_a", t, None) for t in only_a.values()]
    pairs += [Difference("only_b", None, t) for t in only_b.values()]
    place = {n: i for i, n in enumerate([*a, *only_b])}
    pairs.sort(key=lambda p: place[p.name])
    return Diff(kept, tuple(pairs), tolerance)


def _pair(a: Tensor, b: Tensor, tolerance: Tolerance | None, sources: Sources) -> Difference | None:
    if a.shape != b.shape:
        return Difference("shape", a, b)
    values = compare(a, b, tolerance, sources) if tolerance is not None else None
    if a.dtype != b.dtype:
        return Difference("dtype", a, b, values)
    return Difference("values", a, b, values) if values else None


def _renamed(a: Mapping[str, Tensor], b: Mapping[str, Tensor], workers: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of names with equal content, first those that end in the same words.

    A tensor is read only if the other side has one with its dtype and shape.
    """
    kinds = {(t.dtype, t.shape) for t in a.values()} & {(t.dtype, t.shape) for t in b.values()}
    hashes = list[dict[str, str]]()
    for side in (a, b):
        rows = [t for t in side.values() if (t.dtype, t.shape) in kinds]
        hashes.append(dict(zip((t.name for t in rows), each(rows, hash_tensor, workers), strict=True)))
    for words in range(WORDS, -1, -1):
        ends = [defaultdict[Any, list[str]](list) for _ in hashes]
        for k, known in enumerate(hashes):
            for n, digest in known.items():
                ends[k][(digest, *f".{n}".replace("/", ".").rsplit(".", words)[1:])].append(n)
        for end, names in ends[0].items():
            for one, other in zip(names, ends[1][end], strict=False):
                yield one, other
                del hashes[0][one], hashes[1][other]


# --- the output -------------------------------------------------------------------------------------------------


def same(expected: Checkpoint, got: Checkpoint, url: str, *, workers: int = 1) -> None:
    """Raise VerifyError unless `got` holds the expected tensors, bit for bit, and no others."""
    wrong = mismatches(expected.tensors, got)
    wrong |= {n: "not expected" for n in got if n not in expected}
    pairs = [(t, got[n]) for n, t in expected.items() if n not in wrong]
    differences = each(pairs, lambda pair, s: first_difference(*pair, s), workers)
    for (t, _), index in zip(pairs, differences, strict=True):
        if index is not None:
            wrong[t.name] = f"its values differ, first at {list(index)}"
    if wrong:
        hints = "".join(f"\n  {n}" for n in expected.notes if n.kind == "hint")
        text = f"differs from what the conversion gives in {many(len(wrong), 'tensor')}:\n{reasons(wrong)}{hints}"
        raise VerifyError(text, url=url)


# --- contents of two checkpoints that a comparison of tensors misses ---


def unread_notes(a: Checkpoint, b: Checkpoint) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """Return the notes on unread tensors of either side, and the notes on what is not a tensor.

    Unread tensors in files with the same bytes are equal, so their notes go with the latter.
    """
    sides: dict[Note, list[str]] = {}
    for side, checkpoint in (("A", a), ("B", b)):
        for note in dict.fromkeys(n for n in checkpoint.notes if n.kind in ("skipped", "unread")):
            sides.setdefault(note, []).append(side)
    notes = [note._replace(text=f"in {' and '.join(names)}: {note.text}") for note, names in sides.items()]
    tensors = tuple(n for n in notes if n.unread)
    if tensors and a.urls and len(a.urls) == len(b.urls) and all(map(_same_bytes, a.urls, b.urls)):
        tensors = ()
    return tensors, tuple(n for n in notes if n not in tensors)


def _same_bytes(a: str, b: str) -> bool:
    """Tell whether two local files have the same bytes; False for remote ones."""
    return a == b or (os.path.isfile(a) and os.path.isfile(b) and cmp(a, b, shallow=False))


# --- the outputs of modules, submodule by submodule; no framework is needed ---


class Step(NamedTuple):
    """The comparison of one submodule's outputs.

    name: of the submodule; '' is the whole module. difference: the largest absolute one. same: whether all elements are
    within the tolerance. why: what differs other than the values, such as the shapes.
    """

    name: str
    difference: float
    same: bool
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`; print() says whether the outputs are the same, and if not, where they first differ.

    steps: the submodules that were compared, in the order in which they finished, and those that did not run.
    """

    steps: tuple[Step, ...]

    @property
    def same(self) -> bool:
        """Whether all outputs are within tolerance."""
        return self.first is None

    @property
    def first(self) -> Step | None:
        """The first submodule whose output differs; None if all are within tolerance."""
        return next((s for s in self.steps if not s.same), None)

    def __str__(self) -> str:
        """One line: the largest difference, or the first submodule that differs."""
        worst = max((s.difference for s in self.steps), default=0.0)
        if self.first is None:
            return f"the same: {many(len(self.steps), 'output')}, the largest difference is {worst:.3g}"
        name = self.first.name or "(the whole module)"
        before = [s for s in self.steps if s.same][-1:]
        after = f"; {before[0].name} before it is the same" if before and before[0].name else ""
        return f"{name} departs: {self.first.why or f'by {self.first.difference:.3g}'}{after}"

    __repr__ = __str__


def step(
    name: str, got: Sequence[Array], want: Sequence[Array], rtol: float, atol: float, *, scaled: bool = False
) -> Step:
    """Compare one submodule's outputs; equal NaNs are the same. If `scaled`, atol is a share of the largest value."""
    shapes = [", ".join(str(list(x.shape)) for x in side) or "none" for side in (got, want)]
    if shapes[0] != shapes[1]:
        return Step(name, float("inf"), False, f"its output has the shape {shapes[0]}, not {shapes[1]}")
    worst, same, why = 0.0, True, ""
    for x, y in zip(got, want, strict=True):
        a, b = (z.astype("c16" if z.dtype.kind == "c" else "f8") for z in (x, y))
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0)) if scaled else 1.0
        same &= bool(np.allclose(a, b, rtol=rtol, atol=atol * largest, equal_nan=True))
        both = np.isfinite(a) & np.isfinite(b)
        worst = max(worst, float(np.abs(a[both] - b[both]).max(initial=0)))
        if (odd := int(np.sum(np.isfinite(a) != np.isfinite(b)))) and not why:
            why = f"{odd} of the {a.size} numbers of its output are NaN or infinite, or should be"
    return Step(name, worst, same, why)


def compare_outputs(got: Outputs, want: Outputs, rtol: float, atol: float, *, scaled: bool = False) -> Comparison:
    """Compare the outputs in `want`, in the order of `got`; those that `got` lacks come last and differ."""
    both = (step(n, x, want[n], rtol, atol, scaled=scaled) for n, x in got.items() if n in want)
    return Comparison((*both, *(Step(n, float("inf"), False, "it did not run") for n in want if n not in got)))
