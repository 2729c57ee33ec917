"""Run a module repeatedly with different weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch

from ...moves.torch import memory
from ...verification.compare import compare_outputs
from ...verification.torch import run, to_tensor

ROUNDING = 1e-5  # of the largest value: outputs that differ by less may be the same


class Runner:
    """A module with its inputs, and the choice of outputs that are compared."""

    def __init__(self, module: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.module, self.arguments, self.named = module, arguments, named
        self.labels: list[str] = []  # of the outputs of the whole
        self.picked: Mapping[str, Sequence[int]] = {}  # the outputs that are compared; none: all
        self.state = memory(module)[0]

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Write arrays into parameters and buffers by name; tensors that the state dict computes are unchanged."""
        with torch.no_grad():
            for name in arrays.keys() & self.state.keys():
                self.state[name].copy_(to_tensor(arrays[name]).reshape(self.state[name].shape))

    def start(self) -> list[str]:
        """Run once with the inputs, or with changed ones if the module cannot be run; return the changes.

        First floats get the dtype of the weights and integers int64, then all numbers the former; each also with
        channels moved from last to second place. Raises the module's error for the unchanged inputs.
        """
        errors = list[Exception]()
        args, named = self.arguments, self.named
        floats = [t.dtype for t in self.state.values() if t.is_floating_point()]
        kind = max(floats, key=floats.count, default=torch.float32)
        for cast, turned in product((None, torch.int64, kind), (False, True)):
            changes: dict[str, None] = {}
            self.arguments = tuple(_adapted(a, kind, cast, turned, changes) for a in args)
            self.named = {n: _adapted(a, kind, cast, turned, changes) for n, a in named.items()}
            if changes or not (cast or turned):
                try:
                    self.outputs()
                    return list(changes)
                except Exception as e:  # the code is the user's, and can raise anything
                    errors.append(e)
        raise errors[0]

    def outputs(self) -> dict[str, list[Any]]:
        """Return the outputs of the whole and of every submodule, or those to compare, in the order of execution."""
        only = {"", *self.picked} if self.picked else ()
        found, self.labels = run(self.module, self.arguments, self.named, only)
        return {n: [x[k] for k in self.picked.get(n, range(len(x)))] for n, x in found.items()}

    def used(self, names: Sequence[str]) -> set[str]:
        """Return the tensors that the output depends on: changing them changes it by more than rounding.

        For example, a bias of attention's keys shifts all scores of a row alike, which the softmax cancels.
        """
        before, found = {"": self.outputs()[""]}, set()
        for name in names:
            own, kept = self.state[name], self.state[name].detach().clone()
            with torch.no_grad():
                own.copy_((kept * 1.5 + 0.1).to(kept.dtype))
                try:
                    after = self.outputs()
                except Exception:  # an index that leads out of a table
                    after = {}
                own.copy_(kept)
            if not compare_outputs(after, before, 0, ROUNDING, scaled=True).same:
                found.add(name)
        return found


def _adapted(value: Any, kind: torch.dtype, cast: torch.dtype | None, turned: bool, changes: dict[str, None]) -> Any:
    """Convert an input to a tensor, and note changes in `changes`.

    cast: floats become `kind` and integers this. turned: move channels from last to second place.
    """
    before = after = to_tensor(value)
    if not isinstance(before, torch.Tensor):
        return before
    if cast and not before.is_complex() and before.dtype != torch.bool:
        after = before.to(kind if before.is_floating_point() else cast)
    if turned and after.dim() > 2:
        after = after.movedim(-1, 1)
        changes["inputs: channels put first"] = None
    if after.dtype != before.dtype:
        changes[f"inputs: {before.dtype} cast to {after.dtype}".replace("torch.", "")] = None
    return after
