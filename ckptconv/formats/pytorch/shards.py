"""One checkpoint in several torch files, as transformers wrote them.

    pytorch_model-00001-of-00002.bin   pytorch_model-00002-of-00002.bin    each a whole archive
    pytorch_model.bin.index.json       which of them holds which tensor (index.py)

Tied names stay in one shard, where they share a storage. sharded.py reads these. Specification: transformers,
modeling_utils.py (shard_checkpoint).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...checkpoint import Checkpoint, Tensor
from ...storage.files import join, split
from .. import shard_index
from ..hash_metadata import unhashed
from ..placement import Patch, Placement, refuse_unheld
from .write import TorchWriter


@dataclass
class ShardedTorchWriter:
    """Cut a checkpoint in order into files of at most `limit` bytes of tensors; one file if it fits."""

    url: str
    limit: int
    writers: list[tuple[TorchWriter, Checkpoint]] = field(default_factory=list)
    placed: Checkpoint | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        return TorchWriter(self.url).cannot_hold(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "torch")
        self.placed = checkpoint
        folder, base = split(self.url)
        suffix = os.path.splitext(base)[1]
        parts = _cut(checkpoint, self.limit)
        names = shard_index.shard_names(base, suffix, len(parts))
        self.writers = [(TorchWriter(join(folder, n)), part) for n, part in zip(names, parts, strict=True)]
        return shard_index.joined(base, suffix, [writer.place(part) for writer, part in self.writers], checkpoint)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        again: Sequence[Patch] = ()
        if metadata and self.placed is not None:
            again = self.place(replace(self.placed, metadata=dict(metadata))).patches
        return [*again, *(patch for writer, _ in self.writers for patch in writer.seal(checks, {}))]


def _cut(checkpoint: Checkpoint, limit: int) -> list[Checkpoint]:
    """Split in order; a tie group goes where its first name goes, and counts once."""
    first = {name: group[0] for group in checkpoint.ties for name in group}
    shard: dict[str, int] = {}
    sizes = [0]
    for name, t in checkpoint.items():
        if first.get(name, name) in shard:
            shard[name] = shard[first[name]]
            continue
        if sizes[-1] and sizes[-1] + t.nbytes > limit:
            sizes.append(0)
        shard[name] = shard[first.get(name, name)] = len(sizes) - 1
        sizes[-1] += t.nbytes
    groups: list[dict[str, Tensor]] = [{} for _ in sizes]
    for name, t in checkpoint.items():
        groups[shard[name]][name] = t
    if len(groups) > 1:  # the index has the hashes
        checkpoint = replace(checkpoint, metadata=unhashed(checkpoint.metadata))
    whole = replace(checkpoint, notes=())
    return [whole.with_tensors(group) for group in groups]
