"""The arrays of a check: which input is which argument, which output is whose, and what cannot prove anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    parameters = signature.parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known, odd = [n for n in inputs if n in named], [n for n in inputs if n not in named]
    takes = f"{getattr(function, '__name__', 'the function')}({', '.join(map(str, _plain(parameters)))})"
    if known and odd and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise UsageError(
            f"some inputs are called as parameters of {takes} and others are not: {', '.join(map(printable, odd))}; "
            "call all of them so, or none, to give them in order"
        )
    try:
        found = signature.bind(**inputs) if known else signature.bind(*inputs.values())
    except TypeError as e:
        raise UsageError(f"inputs {', '.join(map(printable, inputs)) or '(none)'} do not fit {takes}: {e}") from e
    order = [n for n, p in signature.parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = ", ".join(f"{printable(n)} as {p}" for n, p in zip(inputs, order, strict=False))
    return Arguments(found.args, dict(found.kwargs), "" if known or not taken else f"inputs in order: {taken}")


def _plain(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """Parameters without the types that are beside them."""
    return [p.replace(annotation=inspect.Parameter.empty) for p in parameters]


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
    known = {n: n if n in got else homes.get(n, "") for n in wanted if not n or n not in labels}
    layers = {n: place for n, place in known.items() if place and place in got}
    others = [n for n in wanted if n not in layers]
    out = Placed({}, {}, ())
    odd = []
    for n, place in layers.items():
        at = len(out.picked.get(place, []))
        if _fits([wanted[n]], got[place][at : at + 1]):
            _put(out, place, at, wanted[n], got)
        else:
            gives = f"{printable(place)} gives {_shapes(got[place])}"
            odd.append(f"output {printable(n)} is left out: its shape is {_shape(wanted[n])}, but {gives}")
    whole = got.get("", [])
    picked = _picked(others, labels, wanted, whole)
    if picked is None and layers:
        *_, last = wanted
        alone = last in others and _fits([wanted[last]], whole)
        left = [printable(n) for n in others if n != last or not alone]
        odd.append(f"outputs left out, as no module is called so: {', '.join(left)}")
        others, picked = [last] * alone, [0] * alone
    for n, k in zip(others, picked or (), strict=False):
        _put(out, "", k, wanted[n], got)
        if len(whole) > 1 and labels[k] != n:
            label = f", {printable(labels[k])}" if labels[k] else ""
            odd.append(f"output {printable(n)} is taken for number {k + 1} of the module's {len(whole)}{label}")
    if picked is None or not out.wanted:
        raise UsageError("\n  ".join(odd) if odd else _unlike({n: wanted[n] for n in others}, labels, whole))
    return out._replace(notes=tuple(odd))


def _put(out: Placed, place: str, at: int, array: Array, got: Outputs) -> None:
    """Compare the output number `at` of a place with the array, turned if only that fits."""
    out.picked.setdefault(place, []).append(at)
    turned = array if array.shape == got[place][at].shape else channels_first(array)
    out.wanted.setdefault(place, []).append(turned)


def _picked(
    names: Sequence[str], labels: Sequence[str], wanted: Mapping[str, Array], whole: Sequence[Array]
) -> list[int] | None:
    """Which outputs of the whole these are: by name, or in order; None if none fit."""
    by_name = [labels.index(n) for n in names if n and n in labels]
    if names and len(by_name) == len(names) and _fits([wanted[n] for n in names], [whole[k] for k in by_name]):
        return by_name
    some = [wanted[n] for n in names]
    if _fits(some, whole[: len(some)]):
        return list(range(len(some)))
    return None


def _fits(arrays: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Whether arrays can be these outputs, one by one."""
    both = zip(arrays, outputs, strict=False)
    return len(arrays) == len(outputs) and all(b.shape in (a.shape, channels_first(a).shape) for a, b in both)


def channels_first(array: Any) -> Any:
    """An image or a sequence whose channels came last, as torch has it."""
    return array.transpose(0, -1, *range(1, array.ndim - 1)) if getattr(array, "ndim", 0) > 2 else array


def _unlike(given: Mapping[str, Array], labels: Sequence[str], whole: Sequence[Array]) -> str:
    """Why outputs of the whole cannot be compared."""
    have = ", ".join(f"{printable(n)} {_shape(x)}" for n, x in given.items())
    gives = ", ".join(f"{printable(n)} {_shape(x)}".strip() for n, x in zip(labels, whole, strict=True))
    first = next(iter(given.values()))
    rows = len(whole) == len(given) == 1 and first.shape[1:] == whole[0].shape[1:]
    hint = ": was the original run with the same inputs?" if rows else ""
    return f"the outputs have other shapes than the module's: {have}; it gives {gives or 'no tensor'}{hint}"


def _shape(array: Array) -> str:
    return str(list(array.shape))


def _shapes(many: Sequence[Array]) -> str:
    return ", ".join(map(_shape, many)) or "no tensor"
