"""Run torch modules: compare the output of every submodule with a reference, also with other weights."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from ..dtypes import of_numpy
from ..errors import UsageError
from ..messages import listing
from ..moves.torch import memory, to_torch
from .outputs import Comparison, departure

ROUNDING = 1e-5  # of the largest value: outputs that differ by less may be the same


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
    names submodules that the module lacks, or none, if there is no tensor in the output of the module itself, or if one
    is none that can be compared, such as a nested one.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    want = _wanted(reference, arguments)
    if not want:
        raise UsageError(
            "the reference has no outputs, so that there is nothing to compare; '' names the whole module's"
        )
    if odd := set(want) - {n for n, _ in module.named_modules()}:
        raise UsageError(f"the module has no submodules with these names:\n{listing(sorted(odd))}")
    got = _run(module, arguments, {}, want)[0]
    if isinstance(reference, torch.nn.Module):  # what one of them computes with a function, the whole's output tells
        want = {n: x for n, x in want.items() if n in got}
    flat = {n: _flat(x, n) for n, x in want.items()}
    told = {n: x for n, x in flat.items() if x or got.get(n, [None])}
    if not told or "" in flat.keys() - told.keys():
        what = listing("(the whole module)" if n == "" else n for n in flat if n not in told)
        hint = "let the module return some, or compare outputs of submodules, in a mapping"
        raise UsageError(f"these outputs hold no tensors, so that nothing can be compared; {hint}:\n{what}")
    return departure(got, told, rtol, atol)


def _wanted(reference: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if isinstance(reference, torch.nn.Module):
        return dict(outputs(reference, arguments))
    found = reference if isinstance(reference, Mapping) else reference(*arguments)
    return dict(found) if isinstance(found, Mapping) else {"": found}


def outputs(module: torch.nn.Module, arguments: tuple[Any, ...]) -> dict[str, list[Any]]:
    """The outputs of all submodules that ran, as numpy arrays, in the order in which they finished.

    The module runs in evaluation mode and without gradients; a submodule that runs twice is listed by its first run.
    """
    return _run(module, arguments, {})[0]


def _run(
    module: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], only: Collection[str] = ()
) -> tuple[dict[str, list[Any]], list[str]]:
    """The outputs of all submodules, or some, and the names of the whole's own: of a mapping or of fields, else ''."""
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
            whole = module(*map(_input, arguments), **{n: _input(x) for n, x in named.items()})
    finally:
        for hook in hooks:
            hook.remove()
        for m, was in modes.items():
            m.training = was
    return found, [name for name, _ in _leaves(whole)]


def _input(value: Any) -> Any:
    """An array as a tensor with memory of its own, whatever its byte order; all else as it is."""
    if type(value).__module__ != "numpy":
        return value
    array = np.array(value)
    try:
        kind = of_numpy(array.dtype)
    except UsageError:
        raise UsageError(f"an input is an array of {array.dtype}, of which torch has no tensors") from None
    return to_torch(np.asarray(array, array.dtype.newbyteorder("="), order="C"), kind)


def _flat(value: Any, name: str = "") -> list[Any]:
    """All tensors in a submodule's output, however nested, as NumPy arrays with memory of their own."""
    try:
        return [_numbers(leaf) if isinstance(leaf, torch.Tensor) else _array(leaf) for _, leaf in _leaves(value)]
    except UsageError as e:
        raise UsageError(f"an output of {name or 'the whole module'} cannot be compared: {e.message}") from e


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors and arrays in an output by name: of keys and fields, the innermost; '' for those in order."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif is_dataclass(value) or hasattr(value, "_fields"):
        names = value._fields if hasattr(value, "_fields") else [f.name for f in fields(value)]
        yield from (leaf for n in names for leaf in _leaves(getattr(value, n), n))
    elif isinstance(value, Mapping):
        yield from (leaf for n, v in value.items() for leaf in _leaves(v, str(n)))
    elif isinstance(value, list | tuple):
        yield from (leaf for v in value for leaf in _leaves(v, name))
    elif hasattr(value, "__array__"):  # of any framework; caches of keys and values, for one, are no outputs
        yield name, value


def _array(value: Any) -> Any:
    """What is like an array as one of NumPy's own numbers; UsageError if it holds others."""
    array = np.array(value)
    try:
        return array if array.dtype.kind in "fiubc" else array.astype("f8")
    except (TypeError, ValueError) as e:
        raise UsageError(f"it is an array of {array.dtype}") from e


def _numbers(value: torch.Tensor) -> Any:
    """A tensor of any layout as an array of its own; UsageError if it is not one array of numbers."""
    if value.is_nested:
        raise UsageError("it is nested: tensors of several shapes")
    try:
        whole = value.detach().cpu()
        whole = whole.dequantize() if whole.is_quantized else whole
        whole = whole if whole.layout == torch.strided else whole.to_dense()
        whole = whole.resolve_conj().resolve_neg()
        if whole.is_complex() and whole.dtype not in (torch.complex64, torch.complex128):
            return whole.to(torch.complex128).numpy()
        if whole.is_floating_point() and whole.dtype not in (torch.float16, torch.float32, torch.float64):
            return whole.to(torch.float64).numpy()
        return whole.numpy().copy()
    except (RuntimeError, TypeError) as e:
        kind = str(value.dtype).removeprefix("torch.")
        raise UsageError(f"it is a {type(value).__name__} of {kind} on {value.device}, which has no array") from e


class Runner:
    """A module that is run repeatedly with other weights, for matching.proof."""

    def __init__(self, module: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.module, self.arguments, self.named = module, arguments, named
        self.labels: list[str] = []  # of the outputs of the whole
        self.picked: Mapping[str, Sequence[int]] = {}  # the outputs that are compared; none: all
        self.state = memory(module)[0]

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Write arrays into parameters and buffers by name; what the module's state dict computes stays as it is."""
        with torch.no_grad():
            for name, array in arrays.items():
                if name not in self.state:
                    continue
                known = array if array.dtype.kind in "fiubc" and array.dtype.isnative else array.astype("f4")
                self.state[name].copy_(torch.from_numpy(known.copy()).reshape(self.state[name].shape))

    def start(self) -> list[str]:
        """Run once, with the inputs as they are or else changed so that it can be run; say what was changed.

        Floats become those of the weights and integers int64, then all numbers such floats; each also with channels
        that came last in second place. Raises what the module raises with the inputs as they are.
        """
        error: Exception | None = None
        args, named = self.arguments, self.named
        floats = [t.dtype for t in self.state.values() if t.is_floating_point()]
        kind = max(floats, key=floats.count, default=torch.float32)
        for cast, turned in product(("", "alike", "all"), (False, True)):
            changes: dict[str, None] = {}
            self.arguments = tuple(_adapted(a, kind, cast, turned, changes) for a in args)
            self.named = {n: _adapted(a, kind, cast, turned, changes) for n, a in named.items()}
            if (cast or turned) and not changes:
                continue
            try:
                self.outputs()
            except Exception as e:  # the code is the user's, and can raise anything
                error = error or e
            else:
                return list(changes)
        assert error is not None
        raise error

    def outputs(self) -> dict[str, list[Any]]:
        """The outputs of the whole and of every submodule, or those that are compared, in the order of execution."""
        only = {"", *self.picked} if self.picked else ()
        found, self.labels = _run(self.module, self.arguments, self.named, only)
        return {n: [x[k] for k in self.picked.get(n, range(len(x)))] for n, x in found.items()}

    def used(self, names: Sequence[str]) -> set[str]:
        """The tensors that the output depends on: it changes when they do, by more than rounding.

        A bias of attention's keys, for one, moves all scores of a row alike: the softmax takes it away.
        """
        before = self.outputs()[""]
        found = set()
        for name in names:
            own, kept = self.state[name], self.state[name].detach().clone()
            with torch.no_grad():
                own.copy_((kept * 1.5 + 0.1).to(kept.dtype))
                try:
                    after = self.outputs()[""]
                except Exception:  # an index that leads out of a table
                    after = []
                own.copy_(kept)
            if len(after) != len(before) or any(
                a.shape != b.shape or _moved(a, b) for a, b in zip(before, after, strict=True)
            ):
                found.add(name)
        return found


def _adapted(value: Any, kind: torch.dtype, cast: str, turned: bool, changes: dict[str, None]) -> Any:
    """An input as a tensor, with what was changed noted.

    cast: "alike" makes floats `kind` and integers int64, "all" makes both `kind`. turned: channels that come last are
    put second.
    """
    before = after = _input(value)
    if not isinstance(before, torch.Tensor):
        return before
    if cast and not before.is_complex() and before.dtype != torch.bool:
        after = before.to(kind if cast == "all" or before.is_floating_point() else torch.int64)
    if turned and after.dim() > 2:
        after = after.movedim(-1, 1)
        changes["inputs: channels put first"] = None
    if after.dtype != before.dtype:
        changes[f"inputs: {_word(before.dtype)} cast to {_word(after.dtype)}"] = None
    return after


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _moved(a: Any, b: Any) -> bool:
    """Whether two outputs differ by more than rounding does."""
    near = abs(a.astype("c16") - b.astype("c16")) <= ROUNDING * abs(a).max(initial=0)
    return bool((~near & (a != b)).any())


def blamed(e: BaseException) -> str:
    """An exception of the user's code as one line, with the place in that code."""
    message, where = str(e.msg if isinstance(e, SyntaxError) else e).strip().split("\n")[0], raised_in(e)
    return f"{type(e).__name__}: {message}" + (f" ({where})" if where else "")


def raised_in(e: BaseException) -> str:
    """The file and line that raised; '' if that is our code or the import system's."""
    if isinstance(e, SyntaxError):
        return f"{os.path.relpath(e.filename or '?')}:{e.lineno}"
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith("<frozen")]
    others = tuple(os.path.dirname(file) for file in (os.path.dirname(__file__), os.__file__, torch.__file__))
    own = [f for f in frames if not f.filename.startswith(others)]
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""
