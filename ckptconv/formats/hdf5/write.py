"""The writer of plain HDF5: a tensor's name is its path, metadata are attributes of the root, ties are hard links.

From a Keras file the suffix `.h5` produces a Keras file again (formats.table.target); `to="hdf5"` produces plain HDF5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...checkpoint import Checkpoint, Note, Tensor
from ...output.destination import OutputFile
from ...storage.files import split
from ..placement import Patch, Placement, refuse_shards, refuse_unheld
from ..signatures import KERAS_LISTS
from . import skeleton
from .skeleton import Attributes, Skeleton

MODEL = {"model_config", "training_config"}  # attributes of the root that make a file a model for Keras
MODELS = {"keras", "hdf5"}  # formats whose files Keras loads as models by these


def plain(checkpoint: Checkpoint) -> tuple[Checkpoint, tuple[Note, ...]]:
    """Leave out metadata that would make the file another than it is; return also notes on it.

    Keras builds what a model's description describes, and may run code in it: what a file of mere weights says must not
    become that, so it stays only where the checkpoint's own file could be a model for Keras. Lists of layers and
    weights never stay: by them detection and Keras take a file for a legacy one, whose writer makes its own.
    """
    own = checkpoint.format in MODELS and len(checkpoint.urls) <= 1  # of several files, any may have brought it
    model = set() if own else MODEL & checkpoint.metadata.keys()
    kept = {k: v for k, v in checkpoint.metadata.items() if k not in model and not KERAS_LISTS.fullmatch(k)}
    attributes = {"": checkpoint.metadata} | checkpoint.details.get("attributes", {})
    lists = {f"{p}@{k}" if p else k for p, attrs in attributes.items() for k in attrs if KERAS_LISTS.fullmatch(k)}
    load = "metadata by which Keras would load the file as a model, and may run code; its source holds weights only"
    detect = "metadata by which the file would be taken for a legacy Keras file, and misread"
    notes = [Note("dropped", text, tuple(sorted(found))) for text, found in ((load, model), (detect, lists)) if found]
    return replace(checkpoint, metadata=kept), tuple(notes)


@dataclass
class Hdf5Writer:
    url: str
    max_shard_size: int | None = None
    skeleton: Skeleton | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        if tensor.dtype.kind == "x":
            return f"HDF5 has no dtype {tensor.dtype}, and would return it as plain bytes"
        return skeleton.unheld(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "HDF5")
        refuse_shards(checkpoint, self.max_shard_size, "HDF5")
        checkpoint, notes = plain(checkpoint)
        skeleton.checked(list(checkpoint), checkpoint.metadata, "HDF5")
        owner = checkpoint.owners()
        first = [skeleton.item(t, name) for name, t in checkpoint.items() if owner[name] == name]
        again = [skeleton.item(t, name, owner[name]) for name, t in checkpoint.items() if owner[name] != name]
        items, attributes = [*first, *again], self._attributes(checkpoint)
        self.skeleton = skeleton.lay_out(split(self.url)[1], items, attributes, ordered=True)
        return placed(self.skeleton, list(checkpoint))._replace(notes=notes)

    def _attributes(self, checkpoint: Checkpoint) -> dict[str, Attributes]:
        """Metadata on the root; from an HDF5 source also the attributes of the groups and datasets that remain."""
        original = checkpoint.details.get("attributes", {}) if checkpoint.format == "hdf5" else {}
        paths = {"/".join(n.split("/")[:i]) for n in checkpoint for i in range(1, n.count("/") + 2)}
        return {"": checkpoint.metadata} | {
            p: {
                k: v for k, v in attrs.items() if not KERAS_LISTS.fullmatch(k) and (k != "dtype" or p not in checkpoint)
            }
            for p, attrs in original.items()
            if p in paths
        }

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return resealed(self.skeleton, metadata)


def placed(file: Skeleton, names: Sequence[str]) -> Placement:
    """The placement of one file whose slots are named by their paths."""
    slots = {name: file.slots[name] for name in names}
    return Placement([OutputFile(file.file, file.canvas.length)], slots, file.patches())


def resealed(file: Skeleton | None, metadata: Mapping[str, str]) -> Sequence[Patch]:
    """The patches after metadata is replaced by other values of the same width."""
    if not metadata or file is None:
        return ()
    file.restate(metadata)
    return file.patches()
