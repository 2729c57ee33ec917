"""One of the two checkpoints that are matched: its weights, and what is known of them besides their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from ..checkpoint import Checkpoint, Tensor
from .prints import Print


class Bundle(NamedTuple):
    """Tensors of one shape that are matched as one: stacked along a new first axis, or fused behind each other."""

    names: tuple[str, ...]
    kind: Literal["stacked", "fused", "gates"]
    shape: tuple[int, ...]  # of each
    layers: int = 1  # names that one part of a fusion has: query 0, query 1, ..., key 0, ...
    counted: bool = False  # the parts of a fusion are numbered: experts.0, experts.1, ...


@dataclass(frozen=True, eq=False)
class Side:
    """Weights by name, in the order of the checkpoint.

    `kinds` gives the class of the layer that a tensor belongs to, where the file or the module says so (snake case);
    `prints` the fingerprints of the contents, where these may be compared; `bundles` what a name
    stands for that is not in the checkpoint (see bundles.py).
    """

    tensors: Mapping[str, Tensor]
    kinds: Mapping[str, str] = field(default_factory=dict)
    prints: Mapping[str, Print] = field(default_factory=dict)
    bundles: Mapping[str, Bundle] = field(default_factory=dict)

    def without(self, names: Iterable[str]) -> Side:
        """The side without tensors that are done with."""
        gone = self.tensors.keys() & set(names)
        if not gone:
            return self
        return replace(self, tensors={n: t for n, t in self.tensors.items() if n not in gone})

    def named(self, names: Iterable[str]) -> list[str]:
        """The names of the checkpoint that these names, bundles among them, stand for."""
        return [m for n in names for m in (self.bundles[n].names if n in self.bundles else (n,))]


def weights(checkpoint: Checkpoint) -> Side:
    """The side of a checkpoint: without optimizer slots and the like, and with one name of each tie."""
    again = {n for group in checkpoint.ties for n in group[1:]}
    tensors = {n: t for n, t in checkpoint.items() if not t.role and n not in again}
    return Side(tensors, checkpoint.details.get("kinds", {}))
