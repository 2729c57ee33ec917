"""Run torch modules, and compare the output of every submodule with a reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from ..dtypes import of_numpy
from ..errors import UsageError
from ..messages import listing
from ..moves.torch import kind_of, to_array, to_torch
from .compare import Comparison, compare_outputs


def compare(
    module: torch.nn.Module,
    reference: torch.nn.Module | Mapping[str, Any] | Callable[..., Any],
    inputs: Any,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> Comparison:
    """Run a module and compare its outputs with a reference; `first` is the first submodule whose output differs.

    reference: another module (submodules with equal names that run in both are compared), a mapping from names of
    submodules to their expected outputs ('' for the module itself; arrays of any framework), or a function of the
    inputs that returns either the output or such a mapping. inputs: the argument of the module, or a tuple of its
    arguments. rtol, atol: outputs are the same if |got - expected| <= atol + rtol |expected| for all elements. A
    submodule that a mapping names and that did not run differs. Tensors are compared, wherever they are in lists,
    mappings and fields of dataclasses; a submodule whose outputs hold none does not count. UsageError if the reference
    names submodules that the module lacks, or names none, if the output of the module itself holds no tensor, or if a
    tensor cannot be compared, such as a nested one.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    want = _wanted(reference, arguments)
    if not want:
        raise UsageError(
            "the reference has no outputs, so that there is nothing to compare; '' names the whole module's"
        )
    if odd := set(want) - {n for n, _ in module.named_modules()}:
        raise UsageError(f"the module has no submodules with these names:\n{listing(sorted(odd))}")
    got = run(module, arguments, {}, want)[0]
    if isinstance(reference, torch.nn.Module):  # one may use a function instead of a submodule
        want = {n: x for n, x in want.items() if n in got}
    flat = {n: _flat(x, n) for n, x in want.items()}
    told = {n: x for n, x in flat.items() if x or got.get(n, [None])}
    if not told or "" in flat.keys() - told.keys():
        what = listing("(the whole module)" if n == "" else n for n in flat if n not in told)
        hint = "let the module return some, or compare outputs of submodules, in a mapping"
        raise UsageError(f"these outputs hold no tensors, so that nothing can be compared; {hint}:\n{what}")
    return compare_outputs(got, told, rtol, atol)


def _wanted(reference: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if isinstance(reference, torch.nn.Module):
        return dict(outputs(reference, arguments))
    found = reference if isinstance(reference, Mapping) else reference(*arguments)
    return dict(found) if isinstance(found, Mapping) else {"": found}


def outputs(module: torch.nn.Module, arguments: tuple[Any, ...]) -> dict[str, list[Any]]:
    """Return the outputs of all submodules that ran, as NumPy arrays, in the order in which they finished.

    The module runs in evaluation mode and without gradients; if a submodule runs twice, its first run counts.
    """
    return run(module, arguments, {})[0]


def run(
    module: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], only: Collection[str] = ()
) -> tuple[dict[str, list[Any]], list[str]]:
    """Return outputs by submodule (all, or `only` some), and the names in the whole output: keys, fields, or ''."""
    found: dict[str, list[Any]] = {}

    def keep(name: str, out: Any) -> None:
        if name not in found:
            found[name] = _flat(out, name)

    hooks = [
        m.register_forward_hook(lambda _m, _i, out, name=name: keep(name, out))
        for name, m in module.named_modules()
        if not only or name in only
    ]
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            whole = module(*map(to_tensor, arguments), **{n: to_tensor(x) for n, x in named.items()})
    finally:
        for hook in hooks:
            hook.remove()
        for m, was in modes.items():
            m.training = was
    return found, [name for name, _ in _leaves(whole)]


def to_tensor(value: Any) -> Any:
    """Copy a NumPy array of any byte order into a tensor; return other values unchanged."""
    if type(value).__module__ != "numpy":
        return value
    array = np.array(value)
    try:
        kind = of_numpy(array.dtype)
    except UsageError:
        raise UsageError(f"an input is an array of {array.dtype}, a dtype that torch lacks") from None
    return to_torch(np.asarray(array, array.dtype.newbyteorder("="), order="C"), kind)


def _flat(value: Any, name: str = "") -> list[Any]:
    """Copy all tensors in a submodule's output, however nested, into NumPy arrays."""
    try:
        return [numbers(leaf) for _, leaf in _leaves(value)]
    except UsageError as e:
        raise UsageError(f"an output of {name or 'the whole module'} cannot be compared: {e.message}") from e


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors and arrays in an output by the innermost key or field name; '' for items of lists."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif is_dataclass(value) or hasattr(value, "_fields"):
        names = value._fields if hasattr(value, "_fields") else [f.name for f in fields(value)]
        yield from (leaf for n in names for leaf in _leaves(getattr(value, n), n))
    elif isinstance(value, Mapping):
        yield from (leaf for n, v in value.items() for leaf in _leaves(v, str(n)))
    elif isinstance(value, list | tuple):
        yield from (leaf for v in value for leaf in _leaves(v, name))
    elif hasattr(value, "__array__"):  # of any framework; other objects, such as KV caches, are not outputs
        yield name, value


def numbers(value: Any) -> Any:
    """Copy a tensor of any layout, or an array, into an array of NumPy's own number types; UsageError for others."""
    if not isinstance(value, torch.Tensor):
        array = np.array(value)
    elif value.is_nested:
        raise UsageError("it is nested: tensors of several shapes")
    else:
        try:
            whole = value.dequantize() if value.is_quantized else value.detach()
            if kind_of(whole).kind == "x":
                raise UsageError("its elements are not numbers")
            array = to_array(whole if whole.layout == torch.strided else whole.to_dense()).copy()
        except (RuntimeError, UsageError) as e:
            kind = str(value.dtype).removeprefix("torch.")
            raise UsageError(f"it is a {type(value).__name__} of {kind} on {value.device}, which has no array") from e
    try:
        return array if array.dtype.kind in "fiubc" else array.astype("f8")
    except (TypeError, ValueError) as e:
        raise UsageError(f"it is an array of {array.dtype}") from e
