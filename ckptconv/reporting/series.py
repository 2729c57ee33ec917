"""A series of checkpoints, such as the epochs of a training run: how each tensor moved from one to the next.

urls        of the checkpoints, in order; what follows has rows of the last
norm        {row: one for each checkpoint}   its Euclidean norm
step        {row: one for each but the first}  |x - before| / |before|
drift       {row: one for each but the first}  |x - first| / |first|
came, gone  [[checkpoint, name]]             tensors that the one before did not have, or that it alone still had
reshaped    [[checkpoint, name, from, to]]

All checkpoints are read once, side by side: of each tensor a window of each is in memory, however large it is. What is
not finite on one side is not measured; null is what cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Checkpoint, Tensor
from ..engine.run import Progress
from ..moves.cast import numbers
from ..moves.copy import Array
from ..moves.read import each, windows
from ..moves.sources import Sources
from .survey import survey, text

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


__all__ = ["Moved", "moved", "series"]
