"""Prove a proposal with a torch module and arrays: which input is which argument, which array is whose output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..errors import UsageError
from ..messages import printable
from ..verification.outputs import RUNNING
from .pairs import Proposal, parent
from .proof import SECONDS, Proof
from .proof import prove as search

if TYPE_CHECKING:
    from ..verification.outputs import Array


def prove(
    module: Any,
    proposal: Proposal,
    source: Checkpoint,
    inputs: Mapping[str, Array],
    wanted: Mapping[str, Array],
    *,
    propose: Callable[[Sequence[str]], Proposal] | None = None,
    seconds: float = SECONDS,
) -> Proof:
    """Load a proposal of matching, compare the module's outputs, and try what is marked until they agree.

    `inputs` are the arguments of `forward`, by its names or in order. `wanted` are arrays: those under the name of a
    submodule, or of a module of the source that is paired with one, are its output; all others are the outputs of the
    whole, in order. Arrays whose channels come last are turned where only that fits. The search ends after so many
    seconds. The module keeps what is found. `propose` matches again with the module's tensors in another order: that
    in which its modules run, which is tried if the outputs do not agree at once.

    Raises UsageError if the module cannot be run with the inputs.
    """
    from ..torch import Runner

    _without_nan(wanted)
    runner = Runner(module, _in_order(module.forward, inputs))
    try:
        got = runner.outputs()
    except RUNNING as e:
        runner.arguments = tuple(_channels_first(a) for a in runner.arguments)
        try:
            got = runner.outputs()
        except RUNNING:
            raise UsageError(f"the module cannot be run with these inputs: {str(e).splitlines()[0]}") from e
    order = _as_run(list(runner.state), list(got))
    as_run = propose(order) if propose and order != list(runner.state) else None
    return search(proposal, source, runner, _places(proposal, got, wanted), as_run=as_run, seconds=seconds)


def _without_nan(wanted: Mapping[str, Array]) -> None:
    """UsageError if outputs cannot prove anything."""
    if not wanted:
        raise UsageError("the outputs are empty: there is nothing to compare with")
    for name, array in wanted.items():
        if array.dtype.kind not in "fiubc":
            raise UsageError(f"output {printable(name)} holds {array.dtype}, not numbers")
        if not array.size or (array != array).any():
            what = "NaN" if array.size else "no element"
            raise UsageError(
                f"output {printable(name)} has {what}: it proves nothing; run the original on other inputs"
            )


def _as_run(names: Sequence[str], ran: Sequence[str]) -> list[str]:
    """The tensors of a module in the order in which its submodules ran; those of what did not run stay at the end."""
    at = {home: k for k, home in enumerate(ran) if home}
    return sorted(names, key=lambda n: at.get(parent(n), len(at)))


def outputs_of(original: Callable[..., Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the original computes for the inputs, given by the names of its parameters or in order, as arrays by name.

    It returns an array of any framework, several in order, or a mapping from names of modules. UsageError if it raises.
    """
    try:
        found = original(*_in_order(original, inputs))
        if not isinstance(found, Mapping):
            several = found if isinstance(found, tuple | list) else [found]
            found = {f"output {k}": x for k, x in enumerate(several)}
        return {str(n): _array(x) for n, x in found.items()}
    except Exception as e:  # the code is the user's, and can raise anything
        said = str(e).strip().splitlines() or ["no reason given"]
        raise UsageError(f"the original cannot be run with these inputs: {type(e).__name__}: {said[0]}") from e


def _array(value: Any) -> Array:
    import numpy as np

    found: Array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if found.dtype == object:
        raise UsageError(f"it returns {type(value).__name__}, which is not an array")
    return found


def _in_order(function: Callable[..., Any], inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The inputs in the order of the function's parameters, if they are called so."""
    try:
        order = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a function in C
        order = []
    names = sorted(inputs, key=order.index) if set(inputs) <= set(order) else inputs
    return tuple(inputs[n] for n in names)


def _channels_first(array: Any) -> Any:
    """An image or a sequence whose channels came last, as torch has it."""
    return array.transpose(0, -1, *range(1, array.ndim - 1)) if array.ndim > 2 else array


def _places(proposal: Proposal, got: Mapping[str, list[Any]], wanted: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What each submodule should give; layers without counterpart (an activation, a flattened image) are left out."""
    homes = {parent(p.sources[0]): parent(p.targets[0]) for p in proposal.pairs}
    places = {n: n if n in got else homes.get(n, "") for n in wanted}
    places = {n: place if place in got else "" for n, place in places.items()}
    others = [n for n, place in places.items() if not place]
    whole = got.get("", [])
    if len(others) < len(wanted) and not _fit([wanted[n] for n in others], whole):
        *_, last = wanted
        last_fits = last in others and len(whole) == 1 and _fit([wanted[last]], whole)
        places = {n: place for n, place in places.items() if place or (n == last and last_fits)}
    out: dict[str, list[Any]] = {}
    for name, place in places.items():
        array, have = wanted[name], got.get(place, [])
        at = len(out.get(place, []))
        turned = at < len(have) and have[at].shape != array.shape and _channels_first(array).shape == have[at].shape
        out.setdefault(place, []).append(_channels_first(array) if turned else array)
    return out


def _fit(arrays: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether arrays can be the outputs of the whole, one by one."""
    both = zip(arrays, outputs, strict=False)
    return len(arrays) <= len(outputs) and all(b.shape in (a.shape, _channels_first(a).shape) for a, b in both)
