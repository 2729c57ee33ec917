"""The operations of a rule: which there are, what undoes each, and what they are once sizes are known. Pure.

    neg  conj  swap                      the inverse is the operation itself
    add:X  mul:X                         undone by add:-X, and by mul:1/X if X is a power of two
    mul:sqrt(k)  mul:rsqrt(k)            times the root of an axis of the layout, or of a product of axes: sqrt(h k)
    div:sqrt(k)  div:sqrt(k):bfloat16    divided by it; the root is first rounded to bfloat16

The last ones round, in float32, once: so do programs that keep 1/sqrt(k) in the weights of a query. Their inverses are
mul:rsqrt, mul:sqrt and again mul:sqrt, which round as well.

What a dtype does not have is refused when the plan is made: a sign, fractions, numbers beyond it. Results that it does
not have are refused when they are computed, by moves/cast.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..checkpoint import Tensor
from ..dtypes import NO_ZERO, SATURATES, DType
from ..errors import ConversionError, LayoutError, UsageError
from ..messages import did_you_mean
from ..moves.part import Part

if TYPE_CHECKING:
    from .layout import Layout

_NUMBER = re.compile(r"(?:add|mul|fill):(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?)")
_ROOT = re.compile(r"(mul:sqrt|mul:rsqrt|div:sqrt)\(([A-Za-z_][\w.]*(?: [A-Za-z_][\w.]*)*)\)(:bfloat16)?")
OWN_INVERSE = ("neg", "conj", "swap")
KINDS = {"neg": "ifc", "add": "iufc", "mul": "iufc", "fill": "iufcb"}  # of dtypes; others take all that are numbers
_LACKING = {"neg": NO_ZERO, "add": SATURATES, "mul": SATURATES}  # the first has no sign
_UNDONE = {"mul:sqrt": "mul:rsqrt", "mul:rsqrt": "mul:sqrt", "div:sqrt": "mul:sqrt"}


def scales(op: str) -> bool:
    """Whether an operation depends on the size of an axis."""
    return _ROOT.fullmatch(op) is not None


def check(op: str, axes: Collection[str]) -> None:
    """Refuse an operation that does not exist, or whose axes the layout does not have."""
    if m := _ROOT.fullmatch(op):
        if odd := sorted(set(m[2].split()) - set(axes)):
            raise UsageError(f"the operation {op!r} refers to {odd[0]}, which is not an axis of the layout")
        return
    if op in OWN_INVERSE:
        return
    if m := _NUMBER.fullmatch(op):
        if math.isinf(float(m[1])):
            raise UsageError(f"the operation {op!r} has a number beyond those of 64 bits")
        return
    hint = did_you_mean(op, [*OWN_INVERSE, "add:X", "fill:X", "mul:X", *(f"{w}(AXIS)" for w in _UNDONE)], "operations")
    raise UsageError(f"unknown operation {op!r}{hint}")


def inverse(op: str) -> str:
    """The operation that undoes `op`, exactly unless it takes the size of an axis; UsageError if there is none."""
    name, _, x = op.partition(":")
    if op in OWN_INVERSE:
        return op
    if m := _ROOT.fullmatch(op):
        return f"{_UNDONE[m[1]]}({m[2]}){m[3] or ''}"
    if name == "add":
        return f"add:{x[1:]}" if x.startswith("-") else f"add:-{x}"
    if name == "mul" and float(x):
        value = abs(Fraction(x))
        if {value.numerator & (value.numerator - 1), value.denominator & (value.denominator - 1)} == {0}:
            return f"mul:{1 / float(x)!r}"
    raise UsageError(f"the operation {op!r} cannot be undone exactly")


def resolved(
    ops: Sequence[str], pattern: Layout | None, sources: Sequence[Tensor], known: Mapping[str, int]
) -> tuple[str, ...]:
    """The operations of a rule, with numbers in place of the axes of its layout that some refer to."""
    sizes = known
    if pattern and any(map(scales, ops)):
        shapes = [t.shape for t in sources]
        sizes = pattern.unrolled(shapes).solve(shapes, known)
    return tuple(_resolved(op, sources, sizes) for op in ops)


def _resolved(op: str, sources: Sequence[Tensor], sizes: Mapping[str, int]) -> str:
    """The operation with a number in place of axes; LayoutError if it is not for the dtypes of the tensors."""
    m = _ROOT.fullmatch(op)
    if m is None:
        fits(op, [p for t in sources for p in t.parts])
        return op
    if odd := [t for t in sources if t.dtype.kind != "f" or t.dtype.name == SATURATES]:
        raise LayoutError(f"{op} is for floating-point numbers, not {odd[0].dtype}")
    root = math.sqrt(math.prod(sizes[axis] for axis in m[2].split()))
    if not root:
        return "times:1.0"  # an axis without elements: there is nothing to scale
    import numpy as np

    value = np.float32(1 / root if m[1] == "mul:rsqrt" else root)
    if m[3]:
        import ml_dtypes

        value = np.float32(ml_dtypes.bfloat16(value))
    return f"{'over' if m[1] == 'div:sqrt' else 'times'}:{float(value)!r}"


def fits(op: str, parts: Sequence[Part]) -> None:
    """LayoutError if the elements of some parts cannot take an operation, or its number."""
    name, _, x = op.partition(":")
    for kind in {p.dtype for p in parts}:
        if kind.kind not in KINDS.get(name, "iufcb") or kind.name == _LACKING.get(name):
            raise LayoutError(f"{op} is not for {kind}")
        if x:
            _check_number(op, name, float(x), kind)


def _check_number(op: str, name: str, x: float, kind: DType) -> None:
    from ..moves import cast  # here, as numpy above: a copy to most formats needs neither

    if name == "fill" or kind.kind not in "iu":
        constant(x, kind, f"`{name}`")
        return
    low, high = cast.limits(kind)
    n, d = x.as_integer_ratio()
    if (d != 1 and (name == "add" or abs(n) != 1)) or max(abs(n), d) > high - low:
        numbers = "whole numbers" if name == "add" else "whole numbers, and 1 divided by powers of two,"
        raise LayoutError(f"{op} is not for {kind}, which takes {numbers} up to {high - low}")


def constant(x: float, kind: DType, what: str) -> Any:
    """A number as an element of a dtype; LayoutError, with what it is for, if the dtype cannot hold it."""
    from ..moves.cast import element

    try:
        return element(x, kind)
    except ConversionError as e:
        raise LayoutError(f"{e.message} of {what}") from e


__all__ = ["check", "constant", "fits", "inverse", "resolved", "scales"]
