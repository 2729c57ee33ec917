"""Collect the data of a report as compact JSON columns: a row is an index into every list.

names  dtype  shape  role  bytes  count      by tensor; dtype, shape and role are indices into tables
kind  stack  layer  part                     where a tensor belongs, by its name (places.py); layer -1 is in no stack
min max mean std zeros nan inf               null if values are not read
bins                                         32 counts as base64 bytes, the largest is 255
clip    {row: [low, high, below, above]}     of histograms that do not span all values
heat    {row: [rows, columns, base64, top]}  for the largest tensors, the largest |x| of each cell: 0..253 is 0..top,
                                             254 is larger, 255 is not finite
was     {row: [bins, min, max, mean, std]}   the values that are compared with; both histograms have the same bins
findings  [[check, row, text, index]]        what the checks find; checks {name: [severity, title, meaning]}

`compared`, of two:
rows           [rule, sources, kind, measures] for each tensor of the page; rule -1: none is known
left, missing  source tensors that no row uses, with the reason; what the conversion gives but the target lacks

`series`, of several, whose rows are those of the last; null is what cannot be measured:
urls                 of the checkpoints, in order
norm                 {row: one for each checkpoint}        its Euclidean norm
step, drift          {row: one for each but the first}     |x - before| / |before| and |x - first| / |first|
came, gone           [[checkpoint, name]]                  tensors that the one before did not have, or alone still had
reshaped             [[checkpoint, name, from, to]]
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Checkpoint, Move, Tensor
from ..engine.run import Progress
from ..errors import VerifyError
from ..formats.own_metadata import OPTIONS, stated
from ..messages import in_bytes, many
from ..moves.cast import numbers
from ..moves.copy import Array
from ..moves.read import each, windows
from ..moves.sources import Sources
from ..rules.passes import separator
from ..verification.compare import diff
from ..verification.difference import EXACT, PART_KINDS, Difference, places
from . import checks
from .inspection import ordered
from .inspection import totals as totals_of
from .pictures import Picture, draw, scan

MAX_HISTOGRAMS = 20_000  # for the largest tensors: 44 characters each
MAX_HEATMAPS = 600  # about 800 characters each
MEASURES = ("min", "max", "mean", "std", "zeros", "nan", "inf")


def survey(
    c: Checkpoint,
    *,
    values: bool,
    workers: int = 1,
    progress: Progress | None = None,
    before: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Describe a checkpoint; with `values` every tensor is read once or twice.

    before: by names of `c`, tensors whose histograms are drawn with the same bins.
    """
    tensors = list(c.tensors.values())
    natural = {t.name: i for i, t in enumerate(ordered(tensors, "name"))}
    belong = places(tensors)
    out: dict[str, Any] = {
        "format": c.format,
        "separator": separator(c.tensors),
        "totals": totals_of(c)._asdict(),
        "metadata": {text(k): text(v[:2000]) for k, v in c.metadata.items()},
        "notes": [[n.kind, text(n.text), [text(x) for x in n.names[:50]], len(n.names)] for n in c.notes],
        "ties": [[text(n) for n in group] for group in c.ties],
        "names": [text(t.name) for t in tensors],
        "natural": [natural[t.name] for t in tensors],
        "bytes": [t.nbytes for t in tensors],
        "count": [t.count for t in tensors],
        "values": values,
        "kinds": list(PART_KINDS),
        "kind": [PART_KINDS.index(p.kind) for p in belong],
        "layer": [p.layer for p in belong],
    }
    for key, column in (
        ("dtype", [t.dtype.name for t in tensors]),
        ("shape", [list(t.shape) for t in tensors]),
        ("role", [t.role for t in tensors]),
        ("stack", [text(p.stack) for p in belong]),
        ("part", [text(p.part) if p.stack else "" for p in belong]),
    ):
        out[key + "s"], out[key] = _coded(column)
    if not values:
        return out
    pairs = _pictures(tensors, before or {}, workers, progress)
    pictures = [after for after, _ in pairs]
    found = checks.findings(c, pictures, belong, checks.limits(), workers=workers)
    return out | _values(pairs) | _found(found, tensors)


def text(name: str) -> str:
    """A name in UTF-8; a lone surrogate is escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def _coded(column: list[Any]) -> tuple[list[Any], list[int]]:
    """A table of the distinct values in the order of their first appearance, and an index into it for each row."""
    place: dict[str, int] = {}
    table = list[Any]()
    rows = []
    for value in column:
        key = repr(value)
        if key not in place:
            place[key] = len(table)
            table.append(value)
        rows.append(place[key])
    return table, rows


# --- values -----------------------------------------------------------------------------------------------------

Pair = tuple[Picture, Picture | None]


def _pictures(
    tensors: list[Tensor], before: Mapping[str, Tensor], workers: int, progress: Progress | None
) -> list[Pair]:
    """The picture of each tensor, without the values that it kept, and of what it is compared with."""
    largest = sorted(range(len(tensors)), key=lambda i: -tensors[i].nbytes)
    mapped, drawn = set(largest[:MAX_HEATMAPS]), set(largest[:MAX_HISTOGRAMS])
    done, total = 0, sum(t.nbytes for t in tensors)

    def look(i: int, sources: Sources) -> Pair:
        nonlocal done
        t, other = tensors[i], before.get(tensors[i].name)
        after = scan(t, sources, heat=i in mapped)
        pair: Pair
        if other is None or i not in drawn:
            pair = draw(after, sources, bars=i in drawn), None
        else:
            old = scan(other, sources, heat=False)
            spans = [s for s in (after.span, old.span) if s]
            span = (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None
            pair = draw(after, sources, span), draw(old, sources, span)
        done += t.nbytes
        if progress:
            progress(done, total)
        return pair

    return each(range(len(tensors)), look, workers)


def _values(pairs: Sequence[Pair]) -> dict[str, Any]:
    pictures = [after for after, _ in pairs]
    out: dict[str, Any] = {m: [number(getattr(p.scan.stats, m)) for p in pictures] for m in MEASURES}
    peaks = [max([*(p.bars.counts if p.bars else ()), *(b.bars.counts if b and b.bars else ())], default=0)
             for p, b in pairs]  # fmt: skip
    out["bins"] = [_bars(p, peak) for p, peak in zip(pictures, peaks, strict=True)]
    out["clip"] = {i: clip for i, p in enumerate(pictures) if (clip := _clip(p))}
    out["heat"] = {i: _heat(p) for i, p in enumerate(pictures) if p.scan.cells is not None}
    out["was"] = {
        i: [_bars(b, peaks[i]), *(number(getattr(b.scan.stats, m)) for m in MEASURES[:4])]
        for i, (_, b) in enumerate(pairs)
        if b
    }
    return out


def number(value: float | int | None) -> float | int | str | None:
    """A number with six digits; infinities are text, because JSON has none."""
    if value is None or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))


def _bars(p: Picture, peak: int) -> str:
    return base64.b64encode(bytes(-(-255 * n // peak) for n in p.bars.counts)).decode() if p.bars and peak else ""


def _clip(p: Picture) -> list[Any] | None:
    s, bars = p.scan.stats, p.bars
    if bars is None or (bars.low == s.min and bars.high == s.max):
        return None
    return [number(bars.low), number(bars.high), bars.below, bars.above]


def _heat(p: Picture) -> list[Any]:
    """Colours span what a clipped histogram spans, so that an outlier does not make all else pale."""
    cells = p.scan.cells
    if cells is None:
        return []
    return shaded(cells, max(map(abs, p.scan.span)) if p.outliers.count and p.scan.span else math.inf)


def shaded(cells: Array, most: float) -> list[Any]:
    """Rows, columns, a byte for each cell, and what the shade 253 stands for: at most `most`."""
    finite = np.isfinite(cells)
    top = min(float(cells[finite].max()) if finite.any() else 0.0, most)
    part = np.minimum(np.where(finite, cells, 0), top) / (top or 1.0)  # first: 253 times a cell may overflow
    shade = np.where(cells > top, 254, np.rint(253 * part))
    coded = np.where(finite, shade, 255).astype(np.uint8)
    return [*cells.shape, base64.b64encode(coded.tobytes()).decode(), number(top)]


def one(t: Tensor, sources: Sources) -> dict[str, Any]:
    """The columns of a single tensor, whose row is 0, with what the checks find in it alone."""
    picture = draw(scan(t, sources, heat=False), sources)
    found = checks.findings(Checkpoint({t.name: t}), [picture], places([t]), checks.limits())
    return _values([(picture, None)]) | _found(found, [t])


def _found(found: Sequence[checks.Finding], tensors: Sequence[Tensor]) -> dict[str, Any]:
    row = {t.name: i for i, t in enumerate(tensors)}
    used = {f.check for f in found}
    return {
        "findings": [[f.check, row[f.tensor], text(f.text), list(f.index or ())] for f in found if f.tensor in row],
        "checks": {
            name: [
                check.severity,
                check.title,
                check.meaning.replace("LIMIT", f"{check.limit:g}" if check.limit else ""),
            ]
            for name, check in checks.CHECKS.items()
            if name in used
        },
    }


# --- two checkpoints --------------------------------------------------------------------------------------------

ALIKE = ("values", "dtype")  # kinds of difference whose values can be laid over each other


class Compared:
    """The differences of two checkpoints. `both` has the tensors of the second, then those that only the first has."""

    def __init__(self, a: Checkpoint, b: Checkpoint, *, values: bool, workers: int = 1) -> None:
        pairs = diff(a, b, EXACT, workers=workers, values=values).pairs
        self.a, self.b = a, b
        self.pairs = {p.b.name if p.b else p.name: p for p in pairs}
        self.renamed = {p.b.name: p.a.name for p in pairs if p.kind == "renamed" and p.a and p.b}
        only = {p.a.name: p.a for p in pairs if p.kind == "only_a" and p.a}
        self.both = replace(b, tensors={**b.tensors, **only})

    def changed(self) -> dict[str, Tensor]:
        """By names of `b`, the tensors of `a` whose values differ."""
        return {name: p.a for name, p in self.pairs.items() if p.kind in ALIKE and p.a and p.values}

    def comparison(self) -> dict[str, Any]:
        """The rows of `both`."""
        origins = [(name, self.renamed.get(name, name)) for name in self.both]
        rows: list[list[Any]] = [
            [-1, [self._tensor(self.a[old])] if old in self.a else [], *self._kind(name)] for name, old in origins
        ]
        return {"mode": "comparison", "rules": [], "rows": rows, "left": [], "missing": []}

    def conversion(self, before: Checkpoint) -> dict[str, Any]:
        """The rows of `b`; `a` is what the conversion gives of `before`."""
        moved = self.a.moved
        olds = {source: t for name, t in before.items() for source in before.sources(name)}
        origins = {name: self.renamed.get(name, name) for name in self.b}
        by = {n: moved.get(o) or (Move("", (o,)) if o in before else None) for n, o in origins.items()}
        rules = list(dict.fromkeys(how.rule for how in by.values() if how))
        used = {n for how in by.values() if how for n in how.sources}
        whys = {n: note.text for note in self.a.notes if note.kind in ("dropped", "skipped") for n in note.names}
        rows: list[list[Any]] = [
            [rules.index(how.rule), [self._tensor(olds[n]) for n in how.sources if n in olds], *self._kind(name)]
            if how else [-1, [], *self._kind(name)]
            for name, how in by.items()
        ]  # fmt: skip
        return {
            "mode": "conversion",
            "rules": [text(r) for r in rules],
            "rows": rows,
            "left": [
                [*self._tensor(t), whys.get(n, "")] for n, t in before.items() if used.isdisjoint(before.sources(n))
            ],
            "missing": [text(p.name) for p in self.pairs.values() if p.kind == "only_a" and p.name in moved],
            "hashes": [hashes.get(n, "") for n in by] if (hashes := _hashes(self.b)) else [],
        }

    def _kind(self, name: str) -> tuple[str, dict[str, Any] | None]:
        pair = self.pairs.get(name)
        return (pair.kind, _measures(pair)) if pair else ("equal", None)

    def _tensor(self, t: Tensor) -> list[Any]:
        return [text(t.name), str(t.dtype), list(t.shape)]


def _hashes(c: Checkpoint) -> dict[str, str]:
    """The content hashes that a file carries; none if they do not belong to its tensors."""
    try:
        return stated(c)
    except VerifyError:
        return {}


def _measures(pair: Difference) -> dict[str, Any] | None:
    v = pair.values
    if v is None:
        return None
    return {
        "differing": v.differing, "elements": v.elements, "first": list(v.first), "unpaired": v.unpaired,
        "abs": number(v.max_abs), "relative": number(v.max_rel), "ulp": number(v.max_ulp), "change": number(v.change),
        "norm": number(v.norm), "apart": number(v.apart),
        "cosine": None if v.cosine is None else round(v.cosine, 12),
    }  # fmt: skip


def provenance(source: str, before: Checkpoint, target: str, after: Checkpoint) -> list[list[str]]:
    """What is known of how the second was made: formats, sizes, and what the file itself records."""
    out = [
        [title, f"{name}: {c.format}, {many(len(c), 'tensor')}, {in_bytes(sum(t.nbytes for t in c.values()))}"]
        for title, name, c in (("Before", source, before), ("After", target, after))
    ]
    if options := after.hashes.get(OPTIONS):
        out.append(["Recorded", f"options {options:.2000}"])
    if hashed := len(after.hashes) - bool(options):
        out.append(["Content hashes in the file", f"{hashed:,}; `ckptconv verify {quote(target)}` checks them"])
    return [[title, text(value)] for title, value in out]


# --- a series -------------------------------------------------------------------------------------------------
#
# All checkpoints are read once, side by side: of each tensor a window of each is in memory, however large it is. What
# is not finite on one side is not measured.

ELEMENTS = 2**21  # of a tensor of all checkpoints together, in memory
LISTED = 1000  # names that came, went or were reshaped


class Moved(NamedTuple):
    """The measures of one tensor; step and drift begin with the second checkpoint."""

    norm: list[float | None]
    step: list[float | None]
    drift: list[float | None]


def series(
    checkpoints: Sequence[Checkpoint], urls: Sequence[str], *, values: bool, workers: int, progress: Progress | None
) -> dict[str, Any]:
    """The data of a page about the last checkpoint, with the way that led to it."""
    last = checkpoints[-1]
    apart = sum(t.nbytes for c in checkpoints for t in c.values()) if values else 0
    whole = apart + sum(t.nbytes for t in last.values())
    done = 0

    def look(name: str, sources: Sources) -> Moved | None:
        nonlocal done
        found = moved([c.tensors.get(name) for c in checkpoints], sources)
        done += sum(c.tensors[name].nbytes for c in checkpoints if name in c)
        if progress:
            progress(done, whole)
        return found

    rows = each(last, look, workers) if values else []
    later = (lambda n, _: progress(apart + n, whole)) if progress else None
    data = survey(last, values=values, workers=workers, progress=later)
    measured = {i: row for i, row in enumerate(rows) if row}
    data["series"] = {
        "urls": [text(u) for u in urls],
        **{key: {i: getattr(row, key) for i, row in measured.items()} for key in Moved._fields},
        **_told(checkpoints),
    }
    return data


def moved(tensors: Sequence[Tensor | None], sources: Sources) -> Moved | None:
    """Measure one tensor of all checkpoints; None if it has no numbers. Those with another shape are left out."""
    last = tensors[-1]
    if last is None or not last.count or last.dtype.kind not in "fiub":
        return None
    alike = [k for k, t in enumerate(tensors) if t and t.shape == last.shape and t.dtype.kind in "fiub"]
    many = len(tensors)
    size, step, drift, base, start = (np.zeros(many) for _ in range(5))
    with np.errstate(all="ignore"):
        for blocks in _side_by_side([t for k, t in enumerate(tensors) if t and k in alike], sources):
            for at, k in enumerate(alike):
                size[k] += _square(blocks[at])
                if at and alike[at - 1] == k - 1:
                    _apart(blocks[at - 1], blocks[at], base, step, k)
                if at and alike[0] == 0:
                    _apart(blocks[0], blocks[at], start, drift, k)
    return Moved(
        [_root(size[k]) if k in alike else None for k in range(many)],
        [_root(float(step[k]) / float(base[k])) if base[k] else None for k in range(1, many)],
        [_root(float(drift[k]) / float(start[k])) if start[k] else None for k in range(1, many)],
    )


def _side_by_side(tensors: Sequence[Tensor], sources: Sources) -> Iterator[list[Array]]:
    step = max(2**12, ELEMENTS // len(tensors))
    streams = [windows(t, sources, step * t.dtype.itemsize) for t in tensors]
    for raws in zip(*streams, strict=True):
        yield [numbers(raw, t.dtype).astype(np.float64) for raw, t in zip(raws, tensors, strict=True)]


def _square(x: Array) -> float:
    found = float(np.square(x).sum())
    return found if math.isfinite(found) else float(np.square(x[np.isfinite(x)]).sum())


def _apart(a: Array, b: Array, base: Array, gap: Array, k: int) -> None:
    """Add the squares of a, and of b - a, where both are finite."""
    d = b - a
    squares = float(np.square(d).sum())
    if not math.isfinite(squares):
        finite = np.isfinite(d)
        a, d = a[finite], d[finite]
        squares = float(np.square(d).sum())
    base[k] += float(np.square(a).sum())
    gap[k] += squares


def _root(x: float) -> float | None:
    return float(f"{math.sqrt(x):.4g}") if math.isfinite(x) else None


def _told(checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """Which tensors came, went, and changed their shape on the way."""
    came, gone, reshaped = list[list[Any]](), list[list[Any]](), list[list[Any]]()
    for k in range(1, len(checkpoints)):
        before, after = checkpoints[k - 1], checkpoints[k]
        came += [[k, text(n)] for n in after if n not in before]
        gone += [[k, text(n)] for n in before if n not in after]
        reshaped += [
            [k, text(n), list(before[n].shape), list(t.shape)]
            for n, t in after.items() if n in before and before[n].shape != t.shape
        ]  # fmt: skip
    return {"came": came[:LISTED], "gone": gone[:LISTED], "reshaped": reshaped[:LISTED]}


__all__ = ["Compared", "Moved", "moved", "number", "one", "provenance", "series", "shaded", "survey", "text"]
