"""Compare the outputs of a module with reference outputs, submodule by submodule. No framework is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Outputs = Mapping[str, Sequence[Array]]  # by submodule ('' is the whole), in the order in which they finished


class Step(NamedTuple):
    """The comparison of one submodule's outputs.

    name: of the submodule; '' is the whole module. difference: the largest absolute one. same: whether all elements are
    within the tolerance. why: what differs if it is not the values, such as the shapes.
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
        return all(s.same for s in self.steps)

    @property
    def first(self) -> Step | None:
        """The first submodule whose output differs; None if all are within tolerance."""
        return next((s for s in self.steps if not s.same), None)

    def __str__(self) -> str:
        """One line: the largest difference, or the first submodule that differs."""
        worst = max((s.difference for s in self.steps), default=0.0)
        if self.first is None:
            count = f"{len(self.steps)} output{'s' * (len(self.steps) != 1)}"
            return f"the same: {count}, the largest difference is {worst:.3g}"
        name = self.first.name or "(the whole module)"
        before = [s for s in self.steps if s.same][-1:]
        after = f"; {before[0].name} before it is the same" if before and before[0].name else ""
        return f"{name} departs: {self.first.why or f'by {self.first.difference:.3g}'}{after}"


def step(
    name: str, got: Sequence[Array], want: Sequence[Array], rtol: float, atol: float, *, scaled: bool = False
) -> Step:
    """Compare one submodule's outputs; equal NaNs are the same. If `scaled`, atol is a share of the largest value."""
    import numpy as np

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


def departure(got: Outputs, want: Outputs, rtol: float, atol: float, *, scaled: bool = False) -> Comparison:
    """Compare the outputs that are wanted, in the order of `got`; then those that it lacks, which differ."""
    both = (step(n, x, want[n], rtol, atol, scaled=scaled) for n, x in got.items() if n in want)
    return Comparison((*both, *(Step(n, float("inf"), False, "it did not run") for n in want if n not in got)))
