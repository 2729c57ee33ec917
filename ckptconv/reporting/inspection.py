"""inspect(path): the tensors of a checkpoint with what can be said of them, in the order that was asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import api
from ..api.options import SELECT, Path, takes
from ..checkpoint import Checkpoint, Tensor, uncollected
from ..messages import redacted
from ..moves.read import each, hash_tensor
from . import outline
from .outline import Graph, Totals

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.options import ReadOptions


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint holds. `extra` has columns by name of the tensor: statistics, hashes."""

    url: str
    checkpoint: Checkpoint
    tensors: tuple[Tensor, ...]
    totals: Totals
    extra: Mapping[str, Mapping[str, Any]]
    graph: Graph | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        rows = [
            {
                "name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "parameters": t.count, "bytes": t.nbytes,
                "role": t.role, **self.extra.get(t.name, {}),
            }
            for t in self.tensors
        ]  # fmt: skip
        found = self.checkpoint
        return {
            "url": redacted(self.url), "format": found.format, "totals": self.totals._asdict(), "tensors": rows,
            "metadata": found.metadata, "ties": found.ties,
            "notes": [n._asdict() for n in found.notes if n.kind != "dropped"],
        }  # fmt: skip


@takes(*SELECT, "jobs")
@uncollected()
def inspect(
    path: Path,
    *,
    stats: bool = False,
    hashes: bool = False,
    graph: bool = False,
    sort: str | None = None,
    **given: Unpack[ReadOptions],
) -> Inspection:
    """List the tensors of a checkpoint: names, dtypes, shapes, sizes and roles. Only headers are read.

    `stats` and `hashes` read all values, for their minimum, maximum, mean and so on, and for a hash that equal tensors
    have in common. `graph` adds what a graph or a configuration lists. `sort` is name, size, parameters, dtype, shape
    or role; `-size` inverts it.
    """
    select, _, _, resources = api.bundle(given, *SELECT, "jobs")
    url = os.fspath(path)
    found = api.opened(url, select)
    tensors = outline.ordered(found.tensors.values(), sort) if sort else list(found.tensors.values())
    extra = _extra(tensors, stats, hashes, resources.workers)
    drawn = outline.graph(found) if graph else None
    return Inspection(url, found, tuple(tensors), outline.totals(found), extra, drawn)


def _extra(tensors: list[Tensor], stats: bool, hashes: bool, workers: int) -> dict[str, dict[str, Any]]:
    """Columns that need the values, by name of the tensor."""
    if not stats and not hashes:
        return {}
    from .stats import stats as measured

    out: dict[str, dict[str, Any]] = {t.name: {} for t in tensors}
    if stats:
        for t, found in zip(tensors, each(tensors, measured, workers), strict=True):
            out[t.name] |= found._asdict()
    if hashes:
        for t, digest in zip(tensors, each(tensors, hash_tensor, workers), strict=True):
            out[t.name]["hash"] = digest
    return out


__all__ = ["Inspection", "inspect"]
