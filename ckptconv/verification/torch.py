"""Run torch modules: compare the output of every submodule with a reference, also with other weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import UsageError
from ..messages import listing
from .outputs import RUNNING, Comparison, departure

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

    reference: another module (submodules with equal names are compared), a mapping from names of submodules to their
    expected outputs ('' for the module itself; arrays of any framework), or a function of the inputs that returns
    either the output or such a mapping. inputs: the argument of the module, or a tuple of its arguments. rtol, atol:
    outputs are the same if |got - expected| <= atol + rtol |expected| for all elements. UsageError if the reference
    names submodules that the module lacks.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    want = _wanted(reference, arguments)
    if odd := set(want) - {n for n, _ in module.named_modules()}:
        raise UsageError(f"the module has no submodules with these names:\n{listing(sorted(odd))}")
    return departure(outputs(module, arguments), {n: _flat(x) for n, x in want.items()}, rtol, atol)


def _wanted(reference: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if isinstance(reference, torch.nn.Module):
        return dict(outputs(reference, arguments))
    found = reference if isinstance(reference, Mapping) else reference(*arguments)
    return dict(found) if isinstance(found, Mapping) else {"": found}


def outputs(module: torch.nn.Module, arguments: tuple[Any, ...]) -> dict[str, list[Any]]:
    """The outputs of all submodules that ran, as numpy arrays, in the order in which they finished.

    The module runs in evaluation mode and without gradients; a submodule that runs twice is listed by its first run.
    """
    found: dict[str, list[Any]] = {}
    hooks = [
        m.register_forward_hook(lambda _m, _i, out, name=name: found.setdefault(name, _flat(out)) and None)
        for name, m in module.named_modules()
    ]
    was = module.training
    module.eval()
    try:
        with torch.no_grad():
            module(*(_input(a) for a in arguments))
    finally:
        for hook in hooks:
            hook.remove()
        module.train(was)
    return found


def _input(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if type(value).__module__ == "numpy" else value


def _flat(value: Any) -> list[Any]:
    """All tensors in an output, however nested, as NumPy arrays with memory of their own."""
    if isinstance(value, torch.Tensor):
        whole = value.detach().cpu()
        return [whole.to(torch.float64).numpy() if whole.dtype == torch.bfloat16 else whole.numpy().copy()]
    if isinstance(value, Mapping | list | tuple):
        return [t for v in (value.values() if isinstance(value, Mapping) else value) for t in _flat(v)]
    if value is None or isinstance(value, str | int | float | bool):
        return []
    import numpy as np

    return [np.array(value)]


class Runner:
    """A module that is run repeatedly with other weights, for matching.proof."""

    def __init__(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        self.module, self.arguments = module, arguments
        found = module.state_dict(keep_vars=True)
        self.state = {n: t for n, t in found.items() if isinstance(t, torch.Tensor)}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Write arrays into parameters and buffers by name."""
        with torch.no_grad():
            for name, array in arrays.items():
                known = array if array.dtype.kind in "fiubc" and array.dtype.isnative else array.astype("f4")
                self.state[name].copy_(torch.from_numpy(known.copy()).reshape(self.state[name].shape))

    def outputs(self) -> dict[str, list[Any]]:
        """The outputs of every submodule, in the order of execution."""
        return outputs(self.module, self.arguments)

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
                except RUNNING:  # an index that leads out of a table
                    after = []
                own.copy_(kept)
            if len(after) != len(before) or any(
                a.shape != b.shape or _moved(a, b) for a, b in zip(before, after, strict=False)
            ):
                found.add(name)
        return found


def _moved(a: Any, b: Any) -> bool:
    """Whether two outputs differ by more than rounding does."""
    near = abs(a.astype("c16") - b.astype("c16")) <= ROUNDING * abs(a).max(initial=0)
    return bool((~near & (a != b)).any())


__all__ = ["Runner", "compare", "outputs"]
