"""Collect the data of a report as compact JSON columns: a row is an index into every list.

names  dtype  shape  role  bytes  count      by tensor; dtype, shape and role are indices into tables
kind  stack  layer  part                     where a tensor belongs, by its name; in no stack, the layer is -1, the
                                             stack its module, and there is no part
min max mean std zeros nan inf               null if values are not read
bins                                         32 counts as base64 bytes, the largest is 255
clip    {row: [low, high, below, above]}     of histograms that do not span all values
heat    {row: [rows, columns, base64, top, moved]}  for the largest tensors, the largest |x| of each cell, or if it
                                             moved |B - A|: 0..253 is 0..top, 254 is larger, 255 is not finite
was     {row: [bins, min, max, mean, std]}   the values that are compared with; both histograms have the same bins
findings  [{severity, check, tensor, text, index}]   what the checks find
before    the same                           in what is compared with; of a conversion by the names of its source
checks    {name: [severity, meaning, limit]}
text      [[line]]                           what is shown where no script runs

`compared`, of two:
rows           [rule, sources, kind, measures] for each tensor of the page; rule -1: none is known
left, missing  source tensors that no row uses, with the reason; what the conversion gives but the target lacks

`moved`, of several, whose rows are those of the last: {row: [norms, steps, drifts]}, the Euclidean norm in each
checkpoint, "nan" if a value is not finite, and in each but the first |x - before| / |before| and |x - first| / |first|;
null is what is absent, cannot be measured, or has no share because its norm was 0 before.
"""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..api.comparing import advice, sided
from ..api.options import Options
from ..checkpoint import Checkpoint, Move, Tensor
from ..messages import in_digits, shortened
from ..moves.cast import numbers
from ..moves.copy import Array
from ..moves.read import each, windows
from ..moves.sources import Sources
from ..rules.passes import separator
from ..verification.compare import diff
from ..verification.difference import EXACT, PART_KINDS, Difference, places
from . import checks
from .inspection import Checked, Inspection, notes_to_show, role, totals as totals_of
from .pictures import Picture, Stats, draw, heat_of, scan

MAX_HISTOGRAMS = 20_000  # for the largest tensors: 44 characters each
MAX_HEATMAPS = 600  # about 800 characters each
MAX_LINES = 1000  # of each table that is shown where no script runs
MEASURES = Stats._fields


def survey(
    c: Checkpoint,
    how: Options = Options(),  # noqa: B008 - frozen
    *,
    values: bool,
    both: Compared | None = None,
    early: Sequence[tuple[str, checks.Finding]] = (),
) -> dict[str, Any]:
    """Describe a checkpoint; with `values` every tensor is read once or twice.

    how: threads and progress. both: what it is compared with; histograms have the same bins, and heat maps show the
    change. early: what was found in the checkpoints before it in a series, with its URL.
    """
    tensors = list(c.tensors.values())
    belong = places(tensors)
    about, notes = both.b if both else c, notes_to_show(c)
    if both and c is both.both:
        told = sided(notes_to_show(both.a), notes_to_show(both.b))
        notes = [*dict.fromkeys([*advice(both.found, told, how), *told])]
    elif both:
        notes += both.a.notes
    out: dict[str, Any] = {
        "format": c.format,
        "separator": separator(c.tensors),
        "totals": (totals := totals_of(about))._asdict(),
        "metadata": {k: v[:2000] for k, v in c.metadata.items()},
        "beside": {k: str(v)[:2000] for k, v in c.details.get("values", {}).items()},
        "notes": [[k, text, shortened(n, 50), len(n)] for k, text, n, _ in notes if not values or k != "damaged"],
        "ties": c.ties,
        "names": [t.name for t in tensors],
        "bytes": [t.nbytes for t in tensors],
        "count": [t.count for t in tensors],
        "values": values,
        "kinds": list(PART_KINDS),
        "kind": [PART_KINDS.index(p.kind) for p in belong],
        "layer": [p.layer for p in belong],
    }
    for key, column in (
        ("dtype", [t.dtype.name for t in tensors]),
        ("shape", [t.shape for t in tensors]),
        ("role", [role(t) for t in tensors]),
        ("stack", [p.stack for p in belong]),
        ("part", [p.part * (p.layer >= 0) for p in belong]),
    ):
        table = {value: i for i, value in enumerate(dict.fromkeys(column))}
        out[key + "s"], out[key] = [*table], [table[value] for value in column]
    listed = Inspection("", about, (*about.values(),)[:MAX_LINES], totals, {}).lines()
    text = out["text"] = [both.found.lines()[:MAX_LINES], listed] if both else [listed]
    if not values:
        return out
    pairs = _pictures(tensors, both.changed() if both else {}, how)
    here = [p.now for p in pairs if p.now.tensor.name in about]
    ties = (*(both.a.ties if both else ()), *c.ties)  # a tie that only one side keeps is no duplicate of the other
    found = (*_of_all(early, checks.findings(replace(about, ties=ties), here, checks.limits(), workers=how.workers)),)
    text.insert(0, Checked(about, found).lines()[:MAX_LINES])
    if both and c is both.both:  # no conversion, so that what is equal has been seen
        was = [p.was or p.now for p in pairs if both.kind(p.now.tensor.name) != "only_b"]
        first = replace(c, notes=both.a.notes, ties=ties)  # tensors that were renamed have names of B
        out["before"] = [f.to_json() for f in checks.findings(first, was, checks.limits(), workers=how.workers)]
    return out | _values(pairs) | {"findings": [f.to_json() for f in found], "checks": checks.CHECKS}


# --- values -----------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Pictures of a tensor and of what it is compared with, and the largest |B - A| of each cell."""

    now: Picture
    was: Picture | None = None
    moved: Array | None = None


def _pictures(tensors: list[Tensor], before: Mapping[str, Tensor], how: Options) -> list[Pair]:
    """The picture of each tensor, without the values that it kept, and of what it is compared with."""
    largest = sorted(range(len(tensors)), key=lambda i: -tensors[i].nbytes)
    mapped, drawn = set(largest[:MAX_HEATMAPS]), set(largest[:MAX_HISTOGRAMS])
    done, total = 0, sum(t.nbytes for t in tensors)

    def look(i: int, sources: Sources) -> Pair:
        nonlocal done
        t = tensors[i]
        other = before.get(t.name)
        moved = _moved(other, t, sources) if other and i in mapped else None
        scans = [scan(t, sources, heat=i in mapped and moved is None)]
        scans += [scan(other, sources, heat=False)] if other else []
        spans = [s.span for s in scans if s.span]
        span = (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None
        pictures = [draw(s, sources, span, bars=i in drawn) for s in scans]
        done += t.nbytes
        if how.progress:
            how.progress(done, total)
        return Pair(pictures[0], pictures[1] if other else None, moved)

    return each(range(len(tensors)), look, how.workers)


def _moved(a: Tensor, b: Tensor, sources: Sources) -> Array | None:
    heat, at = heat_of(b), 0
    if heat is None or a.shape != b.shape or not {a.dtype.kind, b.dtype.kind} <= {*NUMERIC}:
        return None
    with np.errstate(all="ignore"):
        for both in _side_by_side({0: a, 1: b}, sources):
            heat.take(both[1] - both[0], at)
            at += both[0].size
    return heat.cells


def _values(pairs: Sequence[Pair]) -> dict[str, Any]:
    out: dict[str, Any] = {m: [number(getattr(p.now.stats, m)) for p in pairs] for m in MEASURES}
    out |= {"bins": [], "clip": {}, "heat": {}, "was": {}}
    for i, (p, old, moved) in enumerate(pairs):
        s, bars, cells = p.stats, p.bars, p.cells if moved is None else moved
        peak = max((n for x in (p, old) if x and x.bars for n in x.bars.counts), default=0)
        out["bins"].append(_bars(p, peak))
        if bars and (bars.low, bars.high) != (s.min, s.max):
            out["clip"][i] = [number(bars.low), number(bars.high), bars.below, bars.above]
        if cells is not None:
            out["heat"][i] = [*shade_cells(cells), moved is not None]
        if old and old.bars:
            out["was"][i] = [_bars(old, peak), *(number(getattr(old.stats, m)) for m in MEASURES[:4])]
    return out


def _bars(p: Picture, peak: int) -> str:
    return base64.b64encode(bytes(-(-255 * n // peak) for n in p.bars.counts)).decode() if p.bars and peak else ""


def number(value: float | int | None) -> float | int | str | None:
    """A number with six digits; infinities are text, because JSON has none."""
    if value is None or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))


def shade_cells(cells: Array) -> list[Any]:
    """Rows, columns, a byte for each cell, and what the shade 253 stands for; a few large values make no other pale."""
    finite = np.isfinite(cells)
    known = np.sort(cells[finite], axis=None)
    top = min(float(known[-1]), 2 * float(known[9 * (known.size - 1) // 10]) or math.inf) if known.size else 0.0
    part = np.minimum(np.where(finite, cells, 0), top) / (top or 1.0)  # first: 253 times a cell may overflow
    shade = np.where(cells > top, 254, np.rint(253 * part))
    coded = np.where(finite, shade, 255).astype(np.uint8)
    return [*cells.shape, base64.b64encode(coded.tobytes()).decode(), number(top)]


def single_tensor(t: Tensor, sources: Sources) -> dict[str, Any]:
    """The columns of a single tensor, whose row is 0, with what the checks find in it alone."""
    picture = draw(scan(t, sources, heat=False), sources)
    found = checks.findings(Checkpoint({t.name: t}), [picture], checks.limits())
    return _values([Pair(picture)]) | {"findings": [f.to_json() for f in found]}


# --- two checkpoints --------------------------------------------------------------------------------------------


class Compared:
    """The differences of two checkpoints. `both` has the tensors of the second, then those that only the first has."""

    def __init__(self, a: Checkpoint, b: Checkpoint, *, values: bool, workers: int = 1) -> None:
        self.found = diff(a, b, EXACT, workers=workers, values=values)
        self.a, self.b, pairs = a, b, self.found.pairs
        self.pairs = {p.b.name if p.b else p.name: p for p in pairs}
        only = {p.a.name: p.a for p in pairs if p.kind == "only_a" and p.a}
        self.both = replace(b, tensors={**b.tensors, **only})

    def changed(self) -> dict[str, Tensor]:
        """By names of `b`, the tensors of `a` that differ."""
        return {name: p.a for name, p in self.pairs.items() if p.kind in ("values", "dtype", "shape") and p.a}

    def kind(self, name: str) -> str:
        """How a tensor of `both` differs."""
        return self.pairs[name].kind if name in self.pairs else "equal"

    def comparison(self) -> dict[str, Any]:
        """The rows of `both`."""
        rows = [self._row(name, -1, [self._origin(name)], self.a) for name in self.both]
        return {"mode": "comparison", "rows": rows}

    def conversion(self, before: Checkpoint) -> dict[str, Any]:
        """The rows of `b`; `a` is what the conversion gives of `before`."""
        originals = {source: t for name, t in before.items() for source in before.sources(name)}
        moves = {
            name: self.a.moved.get(n := self._origin(name)) or (Move("", (n,)) if n in before else None)
            for name in self.b
        }
        rules = list(dict.fromkeys(move.rule for move in moves.values() if move))
        used = {n for move in moves.values() if move for n in move.sources}
        whys = {n: note.text for note in self.a.notes if note.kind in ("dropped", "skipped") for n in note.names}
        rows = [
            self._row(name, rules.index(move.rule) if move else -1, move.sources if move else (), originals)
            for name, move in moves.items()
        ]
        left = {n: t for n, t in before.items() if used.isdisjoint(before.sources(n))}
        return {
            "mode": "conversion",
            "rules": rules,
            "rows": rows,
            "left": [[*_described(t), whys.get(n, "")] for n, t in left.items()],
            "missing": [n for n, p in self.pairs.items() if p.kind == "only_a"],
        }

    def _origin(self, name: str) -> str:
        """The name in `a` of a tensor of `b`."""
        pair = self.pairs.get(name)
        return pair.a.name if pair and pair.kind == "renamed" and pair.a else name

    def _row(self, name: str, rule: int, sources: Iterable[str], tensors: Mapping[str, Tensor]) -> list[Any]:
        found = [_described(tensors[n]) for n in sources if n in tensors]
        return [rule, found, self.kind(name), _measures(self.pairs.get(name))]


def _described(t: Tensor) -> list[Any]:
    return [t.name, str(t.dtype), list(t.shape)]


def _measures(pair: Difference | None) -> dict[str, Any] | None:
    if pair is None or pair.values is None:
        return None
    return {key: x if key in ("cosine", "first") else number(x) for key, x in pair.values._asdict().items()}


# --- a series -------------------------------------------------------------------------------------------------
#
# After the checks all checkpoints are read side by side: of each tensor a window of each is in memory, however large it
# is. What is not finite is not measured.

ELEMENTS = 2**21  # of a tensor of all checkpoints together, in memory
NUMERIC = "fiub"  # kinds of dtypes that have a norm


class Moved(NamedTuple):
    """The measures of one tensor; step and drift begin with the second checkpoint."""

    norm: list[float | str | None]
    step: list[float | None]
    drift: list[float | None]


def series(checkpoints: Sequence[Checkpoint], urls: Sequence[str], how: Options, *, values: bool) -> dict[str, Any]:
    """The data of a page about the last checkpoint, with the way that led to it."""
    last = checkpoints[-1]
    apart = sum(c.nbytes for c in checkpoints) if values else 0
    done, tell = 0, how.progress or (lambda *_: None)
    whole = apart + last.nbytes

    def look(name: str, sources: Sources) -> Moved | None:
        nonlocal done
        tensors = [c.tensors.get(name) for c in checkpoints]
        found = measure_series(tensors, sources)
        done += sum(t.nbytes for t in tensors if t)
        tell(done, whole)
        return found

    measured = {i: row for i, row in enumerate(each(last, look, how.workers) if values else ()) if row}
    early = list[tuple[str, checks.Finding]]()
    for url, c in zip(urls, checkpoints[:-1] if values else (), strict=False):
        tell(apart, whole)
        early += [(url, f) for f in checks.check(c, checks.limits(), workers=how.workers) if f.severity != checks.NOTE]
    how = replace(how, progress=lambda size, _: tell(apart + size, whole))
    data = survey(last, how, values=values, early=early)
    shapes = {n: t.shape for c in checkpoints for n, t in c.items()}
    for url, c in zip(urls, checkpoints, strict=True):
        if odd := [n for n, shape in shapes.items() if n not in c or c[n].shape != shape]:
            data["notes"].append(["skipped", f"not in {url}, or of another shape there", shortened(odd, 50), len(odd)])
    data["moved"] = measured
    lines = [
        f"{in_digits(row.step[-1]):>9}  {in_digits(row.drift[-1]):>10}  {data['names'][i]}"
        f"{'  (NaN or Inf)' * (row.norm[-1] == 'nan')}"
        for i, row in measured.items()
        if not data["roles"][data["role"][i]]
    ]
    data["text"][1:1] = [
        ["last step  from first  |d| / |x| of each weight; -: x was zero, or cannot be measured", *lines[:MAX_LINES]]
    ] * values
    return data


def _of_all(early: Iterable[tuple[str, checks.Finding]], last: Iterable[checks.Finding]) -> Iterator[checks.Finding]:
    """One finding for each check and tensor: that of the last checkpoint, otherwise of the first that has it."""
    was = defaultdict[tuple[str, str], dict[str, checks.Finding]](dict)
    for url, f in early:
        was[f.check, f.tensor][url] = f
    for f in last:
        also = was.pop((f.check, f.tensor), ())
        yield replace(f, text=f"{f.text}; also in {shortened([*also])}") if also else f
    for gone in was.values():
        first = next(iter(gone.values()))
        yield replace(first, text=f"{first.text}, only in {shortened([*gone])}")


def measure_series(tensors: Sequence[Tensor | None], sources: Sources) -> Moved | None:
    """Measure one tensor of all checkpoints; None if it has no numbers. Those with another shape are left out."""
    last = tensors[-1]
    if last is None or not last.count or last.dtype.kind not in NUMERIC:
        return None
    alike = {k: t for k, t in enumerate(tensors) if t and t.shape == last.shape and t.dtype.kind in NUMERIC}
    size, step, drift = ([0.0 if k in alike else math.inf for k in range(len(tensors))] for _ in range(3))
    with np.errstate(all="ignore"):
        for blocks in _side_by_side(alike, sources):
            for k, block in blocks.items():
                size[k] += _square(block) if np.isfinite(block).all() else math.nan
                step[k] += _square(block - blocks[k - 1]) if k - 1 in alike else math.nan
                drift[k] += _square(block - blocks[0]) if 0 in alike else math.nan
    return Moved(
        ["nan" if math.isnan(x) else _root(x) for x in size],
        [*map(_root, step[1:], size)],
        [_root(x, size[0]) for x in drift[1:]],
    )


def _side_by_side(tensors: Mapping[int, Tensor], sources: Sources) -> Iterator[dict[int, Array]]:
    """Windows of the same elements of each tensor, as float64."""
    step = max(2**12, ELEMENTS // len(tensors))
    streams = [windows(t, sources, step * t.dtype.itemsize) for t in tensors.values()]
    for raws in zip(*streams, strict=True):
        yield {k: numbers(raw, tensors[k].dtype).astype(np.float64) for k, raw in zip(tensors, raws, strict=True)}


def _square(x: Array) -> float:
    """The sum of the squares; NaN or infinite if a value is."""
    return float(np.square(x).sum())


def _root(a: float, b: float = 1.0) -> float | None:
    """The root of a / b; None if it cannot be measured."""
    return float(f"{math.sqrt(a / b):.4g}") if b and math.isfinite(a) and math.isfinite(b) else None
