"""What is worse than in a reference checkpoint, such as the one before of the same training run.

missing   a tensor of the reference is not there     shape   it has another shape or another kind of numbers
step      a step counter went back or did not move   grown   a standard deviation is LIMIT times the reference's
new       a note: the reference does not have it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..checkpoint import Checkpoint, Tensor
from ..moves.read import each, read_array
from ..moves.sources import Sources
from .pictures import Picture
from .stats import Stats, stats

Found = tuple[str, str, str]  # check, tensor, text
MAX_STEPS = 1000  # step counters that are compared


def regressions(
    c: Checkpoint,
    reference: Checkpoint,
    pictures: Sequence[Picture],
    limit: Mapping[str, float | None],
    *,
    workers: int,
) -> list[Found]:
    """Compare names, shapes, steps and standard deviations; the values of `c` have been read."""
    now = {p.scan.tensor.name: p.scan.stats for p in pictures}
    shared = [(t, reference[n]) for n, t in c.items() if n in reference and reference[n].shape == t.shape]
    weights = [(t, old) for t, old in shared if _measured(t) and _measured(old)]
    steps = [(t, old) for t, old in shared if t.role == "step" and t.count == 1 and t.dtype.kind in "iu"][:MAX_STEPS]
    out = [*_places(c, reference), *_steps(steps)]
    times = limit.get("grown")
    if times is not None:
        before = each([old for _, old in weights], stats, workers)
        for (t, _), old in zip(weights, before, strict=True):
            out += _grown(t, now[t.name], old, times)
    return out


def _measured(t: Tensor) -> bool:
    return t.dtype.kind == "f" and not t.role and t.count > 1


def _places(c: Checkpoint, reference: Checkpoint) -> Iterator[Found]:
    for name, old in reference.items():
        t = c.get(name)
        if t is None:
            yield "missing", name, f"the reference has it: {old.dtype} {list(old.shape)}"
        elif t.shape != old.shape or t.dtype.kind != old.dtype.kind:
            yield "shape", name, f"{t.dtype} {list(t.shape)}, in the reference {old.dtype} {list(old.shape)}"
    for name, t in c.items():
        if name not in reference:
            yield "new", name, f"the reference does not have it: {t.dtype} {list(t.shape)}"


def _steps(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Found]:
    with Sources() as sources:
        for t, old in pairs:
            now, before = (int(read_array(x, sources).reshape(-1)[0]) for x in (t, old))
            if now <= before:
                yield "step", t.name, f"{now:,}, in the reference {before:,}"


def _grown(t: Tensor, now: Stats, old: Stats, times: float) -> Iterator[Found]:
    if now.std and old.std and now.std > times * old.std:
        many = now.std / old.std
        yield "grown", t.name, f"standard deviation {now.std:.3g}, {many:.3g} times the reference's {old.std:.3g}"


__all__ = ["regressions"]
