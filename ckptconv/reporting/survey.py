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
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, Tensor
from ..engine.run import Progress
from ..moves.copy import Array
from ..moves.read import each
from ..moves.sources import Sources
from ..rules.passes import separator
from ..verification.difference import PART_KINDS, places
from . import checks, outline
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
    natural = {t.name: i for i, t in enumerate(outline.ordered(tensors, "name"))}
    belong = places(tensors)
    out: dict[str, Any] = {
        "format": c.format,
        "separator": separator(c.tensors),
        "totals": outline.totals(c)._asdict(),
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


__all__ = ["MAX_HEATMAPS", "MAX_HISTOGRAMS", "number", "one", "shaded", "survey", "text"]
