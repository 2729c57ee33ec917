"""The writer of plain HDF5: a tensor's name is its path, metadata are attributes of the root, ties are hard links.

Of a Keras file `.h5` makes a Keras file again (formats.target); `--to hdf5` makes it plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...checkpoint import Checkpoint, Tensor
from ...output.destination import OutputFile
from ...storage.files import split
from ..placement import Patch, Placement, refuse_shards, refuse_unheld
from . import skeleton


@dataclass
class Hdf5Writer:
    url: str
    max_shard_size: int | None = None
    made: skeleton.Skeleton | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        if tensor.dtype.kind == "x":
            return f"HDF5 has no dtype {tensor.dtype}, and would give it back as plain bytes"
        return skeleton.bad_name(tensor.name)

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "HDF5")
        refuse_shards(checkpoint, self.max_shard_size, "HDF5")
        skeleton.checked(list(checkpoint), checkpoint.metadata, "HDF5")
        owner = checkpoint.owners()
        first = [skeleton.item(t, name) for name, t in checkpoint.items() if owner[name] == name]
        again = [skeleton.item(t, name, owner[name]) for name, t in checkpoint.items() if owner[name] != name]
        items, attributes = [*first, *again], self._attributes(checkpoint)
        self.made = skeleton.lay_out(split(self.url)[1], items, attributes, ordered=True)
        return placed(self.made, list(checkpoint))

    def _attributes(self, checkpoint: Checkpoint) -> dict[str, skeleton.Attributes]:
        """Metadata on the root; of an HDF5 source also the attributes of what is still there."""
        kept = checkpoint.details.get("attributes", {}) if checkpoint.format == "hdf5" else {}
        there = {"/".join(n.split("/")[:i]) for n in checkpoint for i in range(1, n.count("/") + 2)}
        return {"": checkpoint.metadata} | {
            p: {k: v for k, v in attrs.items() if k != "dtype" or p not in checkpoint}
            for p, attrs in kept.items()
            if p in there
        }

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return resealed(self.made, metadata)


def placed(made: skeleton.Skeleton, names: Sequence[str]) -> Placement:
    """One file whose slots are called by their paths."""
    slots = {name: made.slots[name] for name in names}
    return Placement([OutputFile(made.file, made.canvas.length)], slots, made.patches())


def resealed(made: skeleton.Skeleton | None, metadata: Mapping[str, str]) -> Sequence[Patch]:
    """The patches with other metadata of the same width."""
    if not metadata or made is None:
        return ()
    made.restate(metadata)
    return made.patches()
