"""Compare the output with the conversion, and one checkpoint with another.

    same(expected, got)             every tensor, bit for bit; VerifyError with the first tensor and index
    diff(a, b)                      all differences, measured: only in A or B, renamed, shape, dtype, values

Values are equal if their bits are: -0.0 differs from 0.0, and a NaN equals a NaN with the same bits. With a tolerance
they are compared as numbers, |a - b| <= atol + rtol |b|, NaN equals NaN, and a different dtype alone does not count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack

import numpy as np

from ..checkpoint import Checkpoint, Note, Tensor
from ..dtypes import NO_ZERO, SATURATES
from ..errors import VerifyError
from ..messages import fold, listing, many
from ..moves.cast import BLOCK, numbers
from ..moves.copy import Array
from ..moves.gather import read_strings
from ..moves.read import each, hash_tensor, windows
from ..moves.sources import Sources
from ..storage.files import Reader
from .difference import EXACT, Diff, Difference, Tolerance, Values
from .readback import listed, unlike

WINDOW = 2**20  # elements of a window; two tensors are read in parallel
NO_SIGN = (NO_ZERO, SATURATES)  # floats whose top bit of a byte is not a sign: their steps are not counted


# --- one pair of tensors ----------------------------------------------------------------------------------------


def first_difference(a: Tensor, b: Tensor, sources: Sources) -> tuple[int, ...] | None:
    """The index of the first element whose bits differ; None if there is none. Dtypes and shapes must be equal."""
    for at, x, y in _side_by_side(a, b, sources):
        if not np.array_equal(x, y):
            item = 1 if x.dtype == object else a.dtype.itemsize
            return _index(at + int(np.flatnonzero(x != y)[0]) // item, a.shape)
    return None


def _side_by_side(a: Tensor, b: Tensor, sources: Sources) -> Iterator[tuple[int, Array, Array]]:
    """Windows of both tensors with the offset of their first element: bytes, or objects for string tensors."""
    if a.dtype.kind == "s" or b.dtype.kind == "s":
        yield 0, read_strings(a).reshape(-1), read_strings(b).reshape(-1)
        return
    sizes = [max(1, WINDOW * t.dtype.itemsize) for t in (a, b)]
    pairs = zip(windows(a, sources, sizes[0]), windows(b, sources, sizes[1]), strict=True)
    for i, (x, y) in enumerate(pairs):
        yield i * WINDOW, x, y


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def compare(a: Tensor, b: Tensor, tolerance: Tolerance, sources: Sources) -> Values | None:
    """Measure the difference of two tensors with the same shape; None if they are equal."""
    if a.dtype == b.dtype and first_difference(a, b, sources) is None:
        return None
    if "s" in (a.dtype.kind, b.dtype.kind):
        return _strings(a, b)
    if "c" in (a.dtype.kind, b.dtype.kind) and a.dtype.kind != b.dtype.kind:
        return Values(a.count, a.count, (0,) * len(a.shape)) if a.count else None
    meter = _Meter(a, b, tolerance)
    with np.errstate(all="ignore"):
        for at, x, y in _side_by_side(a, b, sources):
            meter.take(at, x, y)
    return meter.done()


def _strings(a: Tensor, b: Tensor) -> Values | None:
    if a.dtype.kind != b.dtype.kind:
        return Values(a.count, a.count, (0,) * len(a.shape)) if a.count else None
    bad = np.flatnonzero(read_strings(a).reshape(-1) != read_strings(b).reshape(-1))
    return Values(len(bad), a.count, _index(int(bad[0]), a.shape)) if len(bad) else None


class _Meter:
    """Running measures of a pair; complex numbers are measured as pairs of real numbers."""

    def __init__(self, a: Tensor, b: Tensor, tolerance: Tolerance) -> None:
        self.a, self.b, self.tolerance = a, b, tolerance
        self.exact = tolerance.exact and a.dtype == b.dtype
        self.each = 2 if a.dtype.kind == "c" else 1
        self.differing, self.unpaired, self.first = 0, 0, -1
        self.max_abs: float | int | None = None
        self.max_rel: float | None = None
        self.max_ulp: int | None = None
        self.dot = self.aa = self.bb = self.dd = 0.0

    def take(self, at: int, x: Array, y: Array) -> None:
        """Add a window of bytes of each tensor; its first element is the tensors' element `at`."""
        bits: Array | None = np.not_equal(self._words(x), self._words(y)) if self.exact else None
        fa, fb = _real(x, self.a), _real(y, self.b)
        for lo in range(0, len(fa), BLOCK):
            block = slice(lo, lo + BLOCK)
            self._block(fa[block], fb[block], None if bits is None else bits[block], at * self.each + lo)
        if self.a.dtype == self.b.dtype and self.a.dtype.kind in "fc" and self.a.dtype.name not in NO_SIGN:
            self._ulps(self._words(x), self._words(y), np.isfinite(fa) & np.isfinite(fb))

    def _words(self, raw: Array) -> Array:
        return raw.view(f"u{self.a.dtype.itemsize // self.each}")

    def _block(self, a: Array, b: Array, bits: Array | None, at: int) -> None:
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        wrong = self._wrong(wide_a, wide_b, a, b) if bits is None else bits
        places = np.flatnonzero(wrong.reshape(-1, self.each).any(axis=1))
        if len(places):
            self.differing += len(places)
            self.first = at // self.each + int(places[0]) if self.first < 0 else self.first
        finite = np.isfinite(wide_a) & np.isfinite(wide_b)
        if not finite.all():
            alike = finite | (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
            self.unpaired += int(np.count_nonzero(~alike))
            a, b, wide_a, wide_b = a[finite], b[finite], wide_a[finite], wide_b[finite]
        if not len(a):
            return
        apart = _apart(a, b)
        larger = np.maximum(np.abs(wide_a), np.abs(wide_b))
        peak, share = apart.max().item(), float((apart / np.where(larger > 0, larger, 1)).max())
        self.max_abs = max(self.max_abs or 0, peak)
        self.max_rel = max(self.max_rel or 0.0, share)
        self.dot += float((wide_a * wide_b).sum())
        self.aa += float(np.square(wide_a).sum())
        self.bb += float(np.square(wide_b).sum())
        self.dd += float(np.square(apart, dtype=np.float64).sum())

    def _wrong(self, wide_a: Array, wide_b: Array, a: Array, b: Array) -> Array:
        rtol, atol = self.tolerance.rtol or 0.0, self.tolerance.atol or 0.0
        near: Array = (a == b) | (np.isnan(wide_a) & np.isnan(wide_b))
        if not self.tolerance.exact:
            near |= np.isfinite(wide_b) & (_apart(a, b) <= atol + rtol * np.abs(wide_b))
        return ~near

    def _ulps(self, a: Array, b: Array, finite: Array) -> None:
        a, b = _rank(a[finite]), _rank(b[finite])
        if len(a):
            steps = int(np.where(a > b, a - b, b - a).max())
            self.max_ulp = max(self.max_ulp or 0, steps)

    def done(self) -> Values | None:
        if not self.differing:
            return None
        norm = math.sqrt(self.aa) * math.sqrt(self.bb)
        cosine = self.dot / norm if norm and math.isfinite(self.dot / norm) else None
        return Values(
            self.differing, self.a.count, _index(self.first, self.a.shape), self.max_abs, self.max_rel, self.max_ulp,
            None if cosine is None else max(-1.0, min(1.0, cosine)), self.unpaired,
            math.sqrt(self.dd / self.aa) if self.aa and math.isfinite(self.dd / self.aa) else None,
            *(math.sqrt(x) if math.isfinite(x) else None for x in (self.aa, self.dd)),
        )  # fmt: skip


def _real(raw: Array, t: Tensor) -> Array:
    """A window as real numbers: complex ones as alternating real and imaginary parts, opaque ones as bytes."""
    if t.dtype.kind == "c":
        return raw.view(np.dtype(f"f{t.dtype.itemsize // 2}"))
    return raw if t.dtype.kind == "x" else numbers(raw, t.dtype)


def _apart(a: Array, b: Array) -> Array:
    """|a - b|, exact for integers of one dtype."""
    if a.dtype == b.dtype and a.dtype.kind in "iu":
        ua, ub = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
        exact: Array = np.where(a > b, ua - ub, ub - ua)
        return exact
    gap: Array = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return gap


def _rank(bits: Array) -> Array:
    """The rank of each float among all floats of its dtype; -0.0 and 0.0 have the same rank."""
    half = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    size = bits & ~half
    rank: Array = np.where(bits & half, half - size, half + size)
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
    """Pairs of names with equal content; a tensor is read only if the other side has one of its dtype and shape."""
    kinds = {(t.dtype, t.shape) for t in a.values()} & {(t.dtype, t.shape) for t in b.values()}
    groups: list[dict[str, list[str]]] = []
    for side in (a, b):
        rows = [t for t in side.values() if (t.dtype, t.shape) in kinds]
        by_hash = defaultdict(list)
        for t, digest in zip(rows, each(rows, hash_tensor, workers), strict=True):
            by_hash[digest].append(t.name)
        groups.append(by_hash)
    for digest, names in groups[0].items():
        yield from zip(names, groups[1].get(digest, ()), strict=False)


# --- the output -------------------------------------------------------------------------------------------------


def same(expected: Checkpoint, got: Checkpoint, url: str, *, workers: int = 1) -> None:
    """Raise VerifyError unless `got` holds the expected tensors, bit for bit, and no others."""
    wrong = unlike(expected.tensors, got)
    wrong |= {n: "not expected" for n in got if n not in expected}
    if wrong:
        text = f"differs from what the conversion gives in {many(len(wrong), 'tensor')}:\n{listed(wrong)}"
        raise VerifyError(text, url=url)
    pairs = [(t, got[n]) for n, t in expected.items()]
    differences = each(pairs, lambda pair, s: first_difference(pair[0], pair[1], s), workers)
    bad = [(t.name, index) for (t, _), index in zip(pairs, differences, strict=True) if index is not None]
    if bad:
        name, index = bad[0]
        also = f":\n{listing(map(str, fold(n for n, _ in bad)))}" if len(bad) > 1 else ""
        first = f"at index {list(index)}" if index else "in its value"
        raise VerifyError(
            f"differs from what the conversion gives, {first}; differing: {len(bad)} of "
            f"{many(len(pairs), 'tensor')}{also}",
            url=url, tensor=name,
        )  # fmt: skip


# --- What two checkpoints have that a comparison of their tensors does not see ---


BLOCK_READ = 4 << 20  # bytes that are read of each of two files


def told(a: Checkpoint, b: Checkpoint) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """Notes on tensors of either that were not read, and on what is not a tensor.

    Files that are the same byte for byte have the same tensors, read or not: they are told with the rest.
    """
    sides: dict[Note, list[str]] = {}
    for side, checkpoint in (("A", a), ("B", b)):
        for note in dict.fromkeys(n for n in checkpoint.notes if n.kind in ("skipped", "unread")):
            sides.setdefault(note, []).append(side)
    notes = [note._replace(text=f"in {' and '.join(found)}: {note.text}") for note, found in sides.items()]
    known = identical(a.urls, b.urls) if any(n.unread for n in notes) else False
    tensors = tuple(n for n in notes if n.unread and not known)
    return tensors, tuple(n for n in notes if n not in tensors)


def identical(a: Iterable[str], b: Iterable[str]) -> bool:
    """Whether two checkpoints were read from the same files, or from files of the same bytes; False if from none."""
    ones, others = list(a), list(b)
    return bool(ones) and len(ones) == len(others) and all(map(_same_bytes, ones, others))


def _same_bytes(a: str, b: str) -> bool:
    if a == b:
        return True
    with ExitStack() as stack:
        one, other = (stack.enter_context(Reader(url)) for url in (a, b))
        if one.size != other.size:
            return False
        places = ((at, min(BLOCK_READ, one.size - at)) for at in range(0, one.size, BLOCK_READ))
        return all(one.read(*place) == other.read(*place) for place in places)
