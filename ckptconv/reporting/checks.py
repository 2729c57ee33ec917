"""What may be wrong with a checkpoint: named checks with limits, and findings with their reasons and places.

    nan  inf  outliers  saturated  zero  exploding                 of one tensor
    spike  stuck                                                   of one among its layers
    duplicate                                                      of two tensors
    missing  shape  step  grown  new                               against a reference
    constant  dead  denormal                                       notes: usual in some models, telling in others

Errors and warnings are what a check of a training run should stop for; notes are only told.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ..api.options import as_tuple
from ..checkpoint import Checkpoint, Tensor
from ..errors import UsageError
from ..messages import did_you_mean, many, shortened
from ..moves.read import each, hash_tensor
from ..moves.sources import Sources
from ..verification.difference import places
from .pictures import OUTLIER, Picture, draw, scan, stats

ERROR, WARNING, NOTE = "error", "warning", "note"


class Check(NamedTuple):
    """A check: how serious a finding is, what it means, and the limit that can be set."""

    severity: str
    meaning: str
    limit: float | None = None


CHECKS = {
    "damaged": Check(ERROR, "Tensors that were left out, because they cannot be read or do not match their "
                     "checksums."),
    "nan": Check(ERROR, "Values that are not a number."),
    "inf": Check(ERROR, "Values that are infinite."),
    "missing": Check(ERROR, "Tensors of the reference that are not there."),
    "shape": Check(ERROR, "Another shape, or another kind of numbers, than in the reference."),
    "step": Check(ERROR, "A step counter that is not above that of the reference."),
    "outliers": Check(WARNING, "Weights further from the middle half of their tensor than LIMIT times its "
                      "width.", OUTLIER),
    "saturated": Check(WARNING, "Values at the largest number that the dtype has, as after a cast.", 0),
    "zero": Check(WARNING, "Weights with two or more axes that are zero throughout."),
    "spike": Check(WARNING, "The standard deviation is LIMIT times that of the same part of other "
                   "layers, or less than one LIMIT-th.", 10),
    "stuck": Check(WARNING, "One value throughout, where the same part of most layers has "
                   "many values."),
    "exploding": Check(WARNING, "Weights with two or more axes and a standard deviation above LIMIT.", 10),
    "grown": Check(WARNING, "A standard deviation of more than LIMIT times that in the reference.", 10),
    "duplicate": Check(WARNING, "Different tensors with equal values that the file does not tie."),
    "dead": Check(NOTE, "Indices of the first or last axis at which all weights are zero."),
    "constant": Check(NOTE, "Weights with one value throughout, as norms and biases have before training."),
    "denormal": Check(NOTE, "Too small for the full precision of the dtype: more than LIMIT of the values.",
                      0.001),
    "new": Check(NOTE, "Tensors that the reference does not have."),
}  # fmt: skip
LEAST = 64  # elements of tensors that are equal by more than chance
SERIES = 4  # layers that can have a spike


@dataclass(frozen=True)
class Finding:
    """check: a name of CHECKS. tensor: its name. text: what was found, in words. index: the place of the first."""

    check: str
    tensor: str
    text: str
    index: tuple[int, ...] | None = None

    @property
    def severity(self) -> str:
        """error, warning or note."""
        return CHECKS[self.check].severity

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {"severity": self.severity, **asdict(self)}


Limits = Mapping[str, float | None]


def limits(given: Mapping[str, Any] | str | Iterable[str] = ()) -> dict[str, float | None]:
    """Limits of the checks by name: `outliers=20` sets one, `spike=off` leaves the check out. Else UsageError."""
    out = {name: check.limit for name, check in CHECKS.items()}
    pairs = given.items() if isinstance(given, Mapping) else (text.partition("=")[::2] for text in as_tuple(given))
    for name, limit in pairs:
        value = str(limit)
        if name not in CHECKS:
            raise UsageError(f"there is no check {name!r}{did_you_mean(name, CHECKS, 'checks')}")
        if value == "off":
            out.pop(name, None)
        elif CHECKS[name].limit is None:
            raise UsageError(f"the check {name} has no limit: {name}=off leaves it out")
        elif re.fullmatch(r"\d+\.?\d*(e-?\d\d?)?|\.\d+", value, re.ASCII):
            out[name] = float(value)
        else:
            raise UsageError(f"the limit of {name} is a number or off, not {value!r}")
    return out


def check(c: Checkpoint, limit: Limits, *, workers: int = 1, reference: Checkpoint | None = None) -> list[Finding]:
    """Read all values of a checkpoint, in bounded memory, and list what the checks find."""
    tensors = list(c.values())
    far = limit.get("outliers")

    def look(t: Tensor, sources: Sources) -> Picture:
        return draw(scan(t, sources, heat=False, outlier=OUTLIER if far is None else far), sources, bars=False)

    return findings(c, each(tensors, look, workers), limit, workers=workers, reference=reference)


def findings(
    c: Checkpoint, pictures: Sequence[Picture], limit: Limits, *, workers: int = 1, reference: Checkpoint | None = None
) -> list[Finding]:
    """What the checks find in these pictures, the most serious first, then in the order of the checkpoint."""
    found = [Finding("damaged", name, n.text) for n in c.notes if n.kind == "damaged" for name in n.names or ("",)]
    spikes = [f for f in _spikes(pictures, limit.get("spike")) if f.check in limit]
    stuck = {f.tensor for f in spikes if f.check == "stuck"}  # which says more than that all is zero or constant
    found += [
        f for p in pictures for f in _odd(p, limit) if f.tensor not in stuck or f.check not in ("zero", "constant")
    ]
    found += spikes
    if reference is not None:
        found += _regressions(c, reference, pictures, limit, workers)
    found += _duplicates(c, pictures, workers) if "duplicate" in limit else []
    order = [*CHECKS]
    place = {name: i for i, name in enumerate(c)}
    return sorted((f for f in found if f.check in limit), key=lambda f: (order.index(f.check), place.get(f.tensor, 0)))


# --- one tensor -------------------------------------------------------------------------------------------------


def _odd(p: Picture, limit: Limits) -> Iterator[Finding]:
    t, weights = p.tensor, p.tensor.dtype.kind == "f" and not p.tensor.role
    low, top = p.fences or (0.0, 0.0)
    beyond = f"outside of {low:.3g} to {top:.3g}" if math.isfinite(low) else f"above {top:.3g}"
    for name, what, most in (
        ("nan", "NaN", 0.0),
        ("inf", "infinite", 0.0),
        # scales make the largest of 8 bits usual
        ("saturated", f"at the largest {t.dtype}", limit.get("saturated") or 0),
        ("outliers", beyond, 0.0),
        ("denormal", "denormal", (limit.get("denormal") or 0) * t.count),
    ):
        found = p.odd.get(name)
        wanted = t.dtype.itemsize > 1 if name == "saturated" else weights or name in ("nan", "inf")
        if found and found.count > most and wanted:
            index = tuple(map(int, np.unravel_index(found.first, t.shape)))
            first = f", first at {list(index)}" if index else ""
            yield Finding(name, t.name, f"{found.count:,} of {t.count:,} {what}{first}", index)
    if not weights:  # slots are zero and uneven from the start
        return
    s, far = p.stats, limit.get("exploding")
    both = (s.min or 0) < 0 < (s.max or 0)  # variances, which are of one sign, may be large
    if far is not None and len(t.shape) > 1 and both and s.std and s.std > far:
        yield Finding("exploding", t.name, f"standard deviation {s.std:.3g}")
    yield from _flat(p)


def _flat(p: Picture) -> Iterator[Finding]:
    """All zero, constant, or with dead rows and columns."""
    t, s = p.tensor, p.stats
    if t.count > 1 and s.min is not None and s.min == s.max and not s.nan + s.inf:
        if s.min == 0 and len(t.shape) > 1:
            yield Finding("zero", t.name, f"all {t.count:,} values are zero")
        else:
            yield Finding("constant", t.name, f"all {t.count:,} values are {s.min:.3g}")
        return
    for what, dead, axis in zip(("row", "column"), p.dead, (0, -1), strict=False):
        if len(dead):
            first = ", ".join(map(str, dead[:4])) + " and more" * (len(dead) > 4)
            count = f"{len(dead):,} of {many(t.shape[axis], what)}"
            yield Finding("dead", t.name, f"{count} {'is' if len(dead) == 1 else 'are'} zero: {first}")


# --- several tensors --------------------------------------------------------------------------------------------


def _spikes(pictures: Sequence[Picture], times: float | None) -> Iterator[Finding]:
    series = defaultdict[Any, list[Picture]](list)  # with as many axes: convolutions and norms may alternate
    rows = [*zip(pictures, places([p.tensor for p in pictures]), strict=True)]
    solid = {place[:2] for p, place in rows if len(p.tensor.shape) > 1}  # layers of a sequence that are no norms
    for p, place in rows:
        t = p.tensor
        if place.layer >= 0 and not t.role and t.dtype.kind == "f" and t.count > 1:
            series[place.stack, place.part, len(t.shape), place[:2] in solid].append(p)
    for alike in series.values():
        varied = [(p.tensor, p.stats.std) for p in alike if p.stats.std]
        still = [p for p in alike if p.stats.std == 0]
        if len(alike) >= SERIES and 3 * len(still) < len(varied):
            for p in still:
                text = f"all values are {p.stats.min:.3g}; constant in only {len(still)} of {len(alike)} layers"
                yield Finding("stuck", p.tensor.name, text)
        if times is None or len(varied) < SERIES:
            continue
        usual = median(std for _, std in varied)
        for t, std in varied:
            if len(t.shape) > 1 and (std > times * usual or std * times < usual):
                text = f"the median of {len(varied)} layers is {usual:.3g}"
                yield Finding("spike", t.name, f"standard deviation {std:.3g}, where {text}")


def _duplicates(c: Checkpoint, pictures: Sequence[Picture], workers: int) -> Iterator[Finding]:
    """Tensors with equal statistics are read again, and compared by their hashes."""
    tied = {n for group in c.ties for n in group[1:]}
    alike = defaultdict[tuple[object, ...], list[Tensor]](list)
    for p in pictures:
        t, s = p.tensor, p.stats
        if t.count >= LEAST and not t.role and t.name not in tied and s.min != s.max:
            alike[(t.dtype, t.shape, *s[:6])].append(t)
    doubtful = [t for group in alike.values() if len(group) > 1 for t in group]
    equal = defaultdict[str, list[str]](list)
    for t, digest in zip(doubtful, each(doubtful, hash_tensor, workers), strict=True):
        equal[digest].append(t.name)
    for names in equal.values():
        if len(names) > 1:
            yield Finding("duplicate", names[1], f"equal to {shortened([names[0], *names[2:]], 3)}")


# --- what is worse than in a reference, such as the checkpoint before of the same training run ------------------


def _regressions(
    c: Checkpoint, reference: Checkpoint, pictures: Sequence[Picture], limit: Limits, workers: int
) -> Iterator[Finding]:
    """Compare names, shapes, steps and standard deviations; the values of `c` have been read."""
    now = {p.tensor.name: p.stats for p in pictures}
    alike = list[Tensor]()
    for name, old in reference.items():
        t = c.get(name)
        if t is None:
            yield Finding("missing", name, f"the reference has it: {form(old)}")
        elif t.shape != old.shape or t.dtype.kind != old.dtype.kind:
            yield Finding("shape", name, f"{form(t)}, in the reference {form(old)}")
        elif t.role == "step" or (t.dtype.kind == "f" and not t.role and not old.role):
            alike.append(old)
    for name, t in c.items():
        if name not in reference:
            yield Finding("new", name, f"the reference does not have it: {form(t)}")
    times = limit.get("grown")
    for old, was in zip(alike, each(alike, stats, workers), strict=True):
        step, std = now[old.name].min, now[old.name].std
        if c[old.name].role == "step":
            if step is not None and was.min is not None and step <= was.min:
                yield Finding("step", old.name, f"{step:,}, in the reference {was.min:,}")
        elif times is not None and std and was.std and std > times * was.std:
            grown = f"standard deviation {std:.3g}, {std / was.std:.3g} times the reference's {was.std:.3g}"
            yield Finding("grown", old.name, grown)


def form(t: Tensor) -> str:
    """The dtype and shape of a tensor, in words."""
    return f"{t.dtype} {list(t.shape)}"
