"""Collect the data of a report as compact JSON columns: a row is an index into every list.

names  dtype  shape  role  bytes  count      by tensor; dtype, shape and role are indices into tables
min max mean std zeros nan inf               null if values are not read
bins                                         32 counts as base64 bytes, the largest is 255
heat    {row: [rows, columns, base64, peak]} for the largest tensors: 0..254 is -peak..peak, 255 is not finite
"""

from __future__ import annotations

import base64
import math
from typing import Any

from ..checkpoint import Checkpoint, Move, Tensor
from ..engine.run import Progress
from ..moves.read import each
from ..moves.sources import Sources
from ..rules.templates import separator
from ..verification.compare import EXACT, Difference, diff
from . import outline
from .stats import Picture, picture

MAX_HISTOGRAMS = 20_000  # for the largest tensors: 44 characters each
MAX_HEATMAPS = 600  # about 800 characters each
HEATMAP_SIDE = 24  # cells
MEASURES = ("min", "max", "mean", "std", "zeros", "nan", "inf")


def survey(c: Checkpoint, *, values: bool, workers: int = 1, progress: Progress | None = None) -> dict[str, Any]:
    """Describe a checkpoint; with `values` every tensor is read once or twice."""
    tensors = list(c.tensors.values())
    total = outline.totals(c)
    natural = {t.name: i for i, t in enumerate(outline.ordered(tensors, "name"))}
    out: dict[str, Any] = {
        "format": c.format,
        "separator": separator(c.tensors),
        "totals": total._asdict(),
        "metadata": {text(k): text(v[:2000]) for k, v in c.metadata.items()},
        "notes": [[n.kind, text(n.text), [text(x) for x in n.names[:50]], len(n.names)] for n in c.notes],
        "ties": [[text(n) for n in group] for group in c.ties],
        "names": [text(t.name) for t in tensors],
        "natural": [natural[t.name] for t in tensors],
        "bytes": [t.nbytes for t in tensors],
        "count": [t.count for t in tensors],
        "values": values,
    }
    for key, column in (
        ("dtype", [t.dtype.name for t in tensors]),
        ("shape", [list(t.shape) for t in tensors]),
        ("role", [t.role for t in tensors]),
    ):
        out[key + "s"], out[key] = _coded(column)
    return out | (_values(tensors, workers, progress) if values else {})


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


def _values(tensors: list[Tensor], workers: int, progress: Progress | None) -> dict[str, Any]:
    largest = sorted(range(len(tensors)), key=lambda i: -tensors[i].nbytes)
    counted, mapped = set(largest[:MAX_HISTOGRAMS]), set(largest[:MAX_HEATMAPS])
    done, total = 0, sum(t.nbytes for t in tensors)

    def look(i: int, sources: Sources) -> Picture:
        nonlocal done
        drawn = picture(tensors[i], sources, side=HEATMAP_SIDE, sample=i in mapped)
        done += tensors[i].nbytes
        if progress:
            progress(done, total)
        return drawn

    pictures = each(range(len(tensors)), look, workers)
    columns = {m: [_number(getattr(p.stats, m)) for p in pictures] for m in MEASURES}
    bins = [_bars(p) if i in counted else "" for i, p in enumerate(pictures)]
    heat = {i: _heat(p) for i, p in enumerate(pictures) if p.rows}
    return {**columns, "bins": bins, "heat": heat}


def _number(value: float | int | None) -> float | int | str | None:
    """A number with six digits; infinities are text, because JSON has none."""
    if value is None or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))


def _bars(p: Picture) -> str:
    peak = max(p.bins)
    return base64.b64encode(bytes(-(-255 * n // peak) for n in p.bins)).decode() if peak else ""


def _heat(p: Picture) -> list[Any]:
    peak = max((abs(x) for x in p.sample if math.isfinite(x)), default=0.0)
    cells = bytes(round(127 + 127 * (x / (peak or 1))) if math.isfinite(x) else 255 for x in p.sample)
    return [p.rows, p.columns, base64.b64encode(cells).decode(), _number(peak)]


# --- a conversion -----------------------------------------------------------------------------------------------


def conversion(
    before: Checkpoint, expected: Checkpoint, after: Checkpoint, *, values: bool, workers: int = 1
) -> dict[str, Any]:
    """The conversion of each tensor: source, target and rule; tensors without a counterpart are listed."""
    moved = expected.moved
    pairs = {p.b.name if p.b else p.name: p for p in diff(expected, after, EXACT, workers=workers, values=values).pairs}
    renamed = {p.b.name: p.a.name for p in pairs.values() if p.kind == "renamed" and p.a and p.b}
    origins = {name: renamed.get(name, name) for name in after}
    by = {n: moved.get(o) or (Move("", (o,)) if o in before else None) for n, o in origins.items()}
    rules = list(dict.fromkeys(how.rule for how in by.values() if how))
    used = {n for how in by.values() if how for n in how.sources}
    rows = [_row(how, rules, pairs.get(name), before) for name, how in by.items()]
    whys = {n: note.text for note in expected.notes if note.kind in ("dropped", "skipped") for n in note.names}
    return {
        "rules": [text(r) for r in rules],
        "rows": rows,
        "left": [[text(n), str(t.dtype), list(t.shape), whys.get(n, "")] for n, t in before.items() if n not in used],
        "missing": [text(p.name) for p in pairs.values() if p.kind == "only_a" and p.name in moved],
    }


def _row(how: Move | None, rules: list[str], pair: Difference | None, before: Checkpoint) -> list[Any]:
    """[rule, sources, kind of difference, measures]; the rule is -1 if no source is known."""
    if how is None:
        return [-1, [], pair.kind if pair else "", None]
    sources = [[text(n), str(before[n].dtype), list(before[n].shape)] for n in how.sources if n in before]
    return [rules.index(how.rule), sources, pair.kind if pair else "equal", _measures(pair)]


def _measures(pair: Difference | None) -> dict[str, Any] | None:
    if pair is None or pair.values is None:
        return None
    v = pair.values
    return {
        "differing": v.differing, "elements": v.elements, "first": list(v.first), "abs": _number(v.max_abs),
        "relative": _number(v.max_rel), "ulp": _number(v.max_ulp), "cosine": _number(v.cosine),
    }  # fmt: skip
