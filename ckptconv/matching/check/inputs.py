"""The arrays of a check: which input is which argument, which output is whose, and what cannot prove anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import UsageError
from ...messages import printable
from ..pairs import Proposal, parent

if TYPE_CHECKING:
    from ...verification.outputs import Array, Outputs


def arrays(given: Any, what: str) -> dict[str, Any]:
    """Arrays of any framework by name, as NumPy's; UsageError for anything else. An input may be None."""
    if not isinstance(given, Mapping):
        raise UsageError(f"{what}s are arrays by name, or an .npz file, not {type(given).__name__}")
    found = {str(n): None if x is None and what == "input" else _array(x, f"{what} {n}") for n, x in given.items()}
    for name, array in found.items():
        if array is None:
            continue
        kind = array.dtype.kind
        if kind not in "fiubc":
            raise UsageError(f"{what} {printable(name)} holds {array.dtype}, not numbers")
        nan = kind in "fc" and bool((array != array).any())
        if nan or (what == "output" and not array.size):
            then = "run the original on other inputs" if what == "output" else "give others"
            raise UsageError(
                f"{what} {printable(name)} has {'NaN' if nan else 'no element'}: it proves nothing; {then}"
            )
    if what == "output" and not found:
        raise UsageError("the outputs are empty: there is nothing to compare with")
    return found


def _array(value: Any, what: str) -> Array:
    import numpy as np

    value = value.detach().cpu() if hasattr(value, "detach") else value
    value = value.float() if str(getattr(value, "dtype", "")) == "torch.bfloat16" else value
    found: Array = np.asarray(value)
    if found.dtype == object:
        raise UsageError(f"{printable(what)} holds Python objects ({type(value).__name__}), not numbers")
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


class Arguments(NamedTuple):
    """Those of a call in order and by name, and what was assumed about them."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    note: str = ""


def arguments(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Arguments:
    """The inputs as arguments: by the names of the parameters, or in order if no name is one of theirs.

    UsageError if some names are and others are not, or if there are too many or too few.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return Arguments(tuple(inputs.values()), {})
    parameters = signature.parameters
    named = any(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for n in inputs if (p := parameters.get(n)))
    try:
        found = signature.bind(**inputs) if named else signature.bind(*inputs.values())
    except TypeError as e:
        takes = f"{getattr(function, '__name__', 'the function')}({', '.join(parameters)})"
        raise UsageError(f"inputs {', '.join(map(printable, inputs)) or '(none)'} do not fit {takes}: {e}") from e
    order = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = ", ".join(f"{printable(n)} as {p}" for n, p in zip(inputs, order, strict=False))
    return Arguments(found.args, dict(found.kwargs), "" if named or not taken else f"inputs in order: {taken}")


class Placed(NamedTuple):
    """What each submodule should give ('' is the whole), which of its outputs these are, and what was assumed."""

    wanted: dict[str, list[Array]]
    picked: dict[str, list[int]]
    notes: tuple[str, ...]


def places(proposal: Proposal, got: Outputs, labels: Sequence[str], wanted: Mapping[str, Array]) -> Placed:
    """Find out whose outputs the arrays are.

    An array is called as one of the whole's outputs (`labels`, '' for those without a name), as a submodule, or as a
    module of the source that is paired with one; all others are the outputs of the whole, in order. If these do not
    fit, they are taken for layers without counterpart (an activation, a flattened image): the last array is then the
    output and the others are left out. Arrays whose channels come last are turned where only that fits.

    UsageError, with all shapes, if nothing is left, or if only outputs of the whole are given and these do not fit.
    """
    homes = {parent(p.sources[0]): parent(p.targets[0]) for p in proposal.pairs}
    out, odd, rest = Placed({}, {}, ()), list[str](), list[str]()
    for n, array in wanted.items():
        place = "" if not n or n in labels else n if n in got else homes.get(n, "")
        at = len(out.picked.get(place, []))
        if not place or place not in got:
            rest.append(n)
        elif _fits([array], got[place][at : at + 1]):
            _put(out, place, at, array, got)
        else:
            gives = f"{printable(place)} gives {_shapes(got[place])}"
            odd.append(f"output {printable(n)} is left out: its shape is {_shapes([array])}, but {gives}")
    whole, layers = got.get("", []), len(rest) < len(wanted)
    ways: list[tuple[list[str], list[int]]] = [(rest, [labels.index(n) for n in rest if n and n in labels])]
    ways.append((rest, [*range(len(rest))]))
    if layers and len(whole) == 1:
        ways += [([n], [0]) for n in [*wanted][-1:] if n in rest]
    fit = (way for way in ways if _fits([wanted[n] for n in way[0]], [whole[k] for k in way[1] if k < len(whole)]))
    names, numbers = next(fit, ([], []))
    if left := [printable(n) for n in rest if n not in names]:
        odd.append(f"outputs left out, as no module is called so: {', '.join(left)}")
    for n, k in zip(names, numbers, strict=True):
        _put(out, "", k, wanted[n], got)
        if len(whole) > 1 and labels[k] != n:
            label = f", {printable(labels[k])}" if labels[k] else ""
            odd.append(f"output {printable(n)} is taken for number {k + 1} of the module's {len(whole)}{label}")
    if not out.wanted:
        raise UsageError("\n  ".join(odd) if layers else _unlike({n: wanted[n] for n in rest}, labels, whole))
    return out._replace(notes=tuple(odd))


def _put(out: Placed, place: str, at: int, array: Array, got: Outputs) -> None:
    """Compare the output number `at` of a place with the array, turned if only that fits."""
    out.picked.setdefault(place, []).append(at)
    turned = array if array.shape == got[place][at].shape else channels_first(array)
    out.wanted.setdefault(place, []).append(turned)


def _fits(arrays: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Whether arrays can be these outputs, one by one."""
    both = zip(arrays, outputs, strict=False)
    return len(arrays) == len(outputs) and all(b.shape in (a.shape, channels_first(a).shape) for a, b in both)


def channels_first(array: Any) -> Any:
    """An image or a sequence whose channels came last, as torch has it."""
    return array.transpose(0, -1, *range(1, array.ndim - 1)) if getattr(array, "ndim", 0) > 2 else array


def _unlike(given: Mapping[str, Array], labels: Sequence[str], whole: Sequence[Array]) -> str:
    """Why outputs of the whole cannot be compared."""
    have = ", ".join(f"{printable(n)} {_shapes([x])}" for n, x in given.items())
    gives = ", ".join(f"{printable(n)} {_shapes([x])}".strip() for n, x in zip(labels, whole, strict=True))
    return f"the outputs have other shapes than the module's: {have}; it gives {gives or 'no tensor'}"


def _shapes(many: Sequence[Array]) -> str:
    return ", ".join(str(list(x.shape)) for x in many) or "no tensor"
