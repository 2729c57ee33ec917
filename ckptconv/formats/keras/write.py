"""Write Keras files: legacy HDF5 with its name lists, and Keras 3 weights by object paths.

Legacy: layers and their order come from the source (order.py). Weight names end in ":0" unless the source's did not.
What several layers share is one dataset with several hard links. With optimizer weights or a model_config it is a whole
model.

Keras 3: a name that the source gave to a path (`details["paths"]`) goes back to that path; any other must be a path
itself, like layers/dense_1/vars/0, because only the model's code knows which object a variable belongs to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...checkpoint import Checkpoint, Tensor
from ...errors import Unrepresentable, UsageError
from ...messages import listing
from ...output.destination import OutputFile
from ...storage.files import split
from ..hdf5 import write as hdf5
from ..hdf5.write import plain
from ..placement import Patch, Placement, Slot, refuse_shards, refuse_unheld
from . import order
from .naming import OPTIMIZER, TOP, in_list, join

VERSION = {"keras_version": "3.0.0", "backend": "tensorflow"}  # without it, Keras assumes a file of Keras 1
HELD = {"float64", "float32", "float16", "bfloat16", "bool", "complex64", "complex128", "string"}
SHARD = 5 << 30
LONGEST = 60_000  # bytes of a name: an attribute in an object header holds 64 KB


@dataclass
class _Writer:
    url: str
    max_shard_size: int | None = None
    made: hdf5.Skeleton | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        kind = tensor.dtype
        if kind.name not in HELD and not re.fullmatch(r"u?int(8|16|32|64)", kind.name):
            return f"Keras reads no dtype {kind} from HDF5"
        why = hdf5.unheld(tensor)
        if not why and len(hdf5.encode(tensor.name)) > LONGEST:
            why = "the name is too long for the attribute in which Keras stores it"
        return why

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return self.made.resealed(metadata) if self.made else ()


# --- legacy ----------------------------------------------------------------------------------------------------


class LegacyWriter(_Writer):
    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "Keras legacy HDF5")
        refuse_shards(checkpoint, self.max_shard_size, "Keras legacy HDF5")
        checkpoint, dropped = plain(checkpoint)
        layers = order.layers_to_write(checkpoint)
        slots = {n: in_list(n.removeprefix(OPTIMIZER + "/")) for n in checkpoint if n.startswith(OPTIMIZER + "/")}
        whole = bool(slots) or "model_config" in checkpoint.metadata
        base = "model_weights" if whole else ""
        about = VERSION | {k: v for k, v in checkpoint.metadata.items() if k != order.KEY}
        listed = {"layer_names": [hdf5.encode(layer) for layer, _ in layers if layer != TOP]}
        groups: dict[str, hdf5.Attributes] = {"": about, base: {k: about[k] for k in VERSION} | listed}
        if not whole:
            groups[""] = about | listed
        paths: dict[str, str] = {}
        for layer, rows in layers if TOP in dict(layers) else [*layers, (TOP, [])]:
            groups[join(base, layer)] = {"weight_names": [hdf5.encode(weight) for _, weight in rows]}
            paths |= {join(base, layer, weight): name for name, weight in rows}
        if slots:
            groups[OPTIMIZER] = {"weight_names": [hdf5.encode(n) for n in slots.values()]}
            paths |= {f"{OPTIMIZER}/{short}": name for name, short in slots.items()}
        there = set(paths.values())
        if lost := [n for n in checkpoint if n not in there]:
            raise Unrepresentable(f"two weights of one layer would have one name in the file:\n{listing(lost)}")
        placement, self.made = _place(self.url, checkpoint, paths, groups)
        return placement._replace(notes=dropped)


def _place(
    url: str, checkpoint: Checkpoint, paths: Mapping[str, str], groups: Mapping[str, hdf5.Attributes]
) -> tuple[Placement, hdf5.Skeleton]:
    """Make the datasets, with further paths of a tensor as hard links to the first; return them and the file."""
    hdf5.checked(list(paths), checkpoint.metadata, "a Keras file")
    first: dict[str, str] = {}
    items = []
    for path, name in paths.items():
        items.append((path, checkpoint[name], first.get(name, "")))
        first.setdefault(name, path)
    made = hdf5.Skeleton(split(url)[1], items, groups)
    done = made.placed(paths)
    return done._replace(slots={name: done.slots[first[name]] for name in checkpoint}), made


# --- Keras 3 ---------------------------------------------------------------------------------------------------


class Keras3Writer(_Writer):
    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "Keras 3")
        checkpoint, notes = plain(checkpoint)
        paths = by_path(checkpoint)
        names = order.recorded(checkpoint).get("names", {})
        groups: dict[str, dict[str, Any]] = {"": {k: v for k, v in checkpoint.metadata.items() if k != order.KEY}}
        # empty groups, too: Keras 2 looks for that of the model and, up to 2.12, for that of each object on the way
        groups |= {join(path, "vars"): {"name": name} if name else {} for path, name in {"": "", **names}.items()}
        for path, name in paths.items():
            groups.setdefault(path.rpartition("/")[0], {})
            if name != path:
                groups[path] = {"name": name.rpartition("/")[2]}
        if self.url.endswith(".weights.json"):
            return self._shards(checkpoint, paths, groups)._replace(notes=notes)
        if self.max_shard_size is not None and checkpoint.nbytes > self.max_shard_size:
            raise UsageError("shards of Keras 3 have an index that ends in .weights.json; name that", url=self.url)
        placement, self.made = _place(self.url, checkpoint, paths, groups)
        return placement._replace(notes=notes)

    def _shards(
        self, checkpoint: Checkpoint, paths: Mapping[str, str], groups: Mapping[str, dict[str, Any]]
    ) -> Placement:
        """Fill NAME_00000.weights.h5 and so on in order; NAME.weights.json maps each group to its files."""
        _, base = split(self.url)
        stem = base.removesuffix(".weights.json")
        files: list[OutputFile] = []
        slots: dict[str, Slot] = {}
        patches: list[Patch] = []
        places: dict[str, list[str]] = {}
        for i, shard in enumerate(self._cut(checkpoint, paths)):
            file = f"{stem}_{i:05d}.weights.h5"
            own = homes(shard) | shard.keys() | (set() if i else groups.keys() - homes(paths) - paths.keys())
            mine = {g: attrs for g, attrs in groups.items() if g in own}
            done, made = _place(file, checkpoint.with_tensors({n: checkpoint[n] for n in shard.values()}), shard, mine)
            self.made = self.made if i else made  # the first file has the metadata
            files += done.files
            patches += done.patches
            slots |= done.slots
            for group in (g for g in mine if g and g not in paths):
                places.setdefault("/" + group, []).append(file)
        total = float(sum(slot.size for slot in slots.values()))
        index = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=4).encode()
        files.append(OutputFile(base, len(index)))
        stale = rf"{re.escape(base)}|{re.escape(stem)}_\d{{5}}\.weights\.h5"
        ordered = {name: slots[name] for name in checkpoint}
        return Placement(files, ordered, [*patches, Patch(base, 0, index)], stale=stale)

    def _cut(self, checkpoint: Checkpoint, paths: Mapping[str, str]) -> list[dict[str, str]]:
        limit = self.max_shard_size or SHARD
        shards: list[dict[str, str]] = [{}]
        size = 0
        for path, name in paths.items():
            if shards[-1] and size + checkpoint[name].nbytes > limit:
                shards.append({})
                size = 0
            shards[-1][path] = name
            size += checkpoint[name].nbytes
        return shards


def homes(paths: Mapping[str, str]) -> set[str]:
    """The groups that hold variables."""
    return {p.rpartition("/")[0] for p in paths}


def by_path(checkpoint: Checkpoint) -> dict[str, str]:
    """The tensors by the path where Keras looks for them; Unrepresentable lists those that have none."""
    known = order.recorded(checkpoint).get("paths", {})
    paths = {str(known.get(name, name)): name for name in checkpoint}
    lost = [name for path, name in paths.items() if not re.search(r"(^|/)vars/\d+$", path)]
    if lost or len(paths) < len(checkpoint):
        raise Unrepresentable(
            "Keras 3 finds weights by object paths like layers/dense_1/vars/0, which only the model's code knows; "
            f"change names with converter= or rename=, or write to='keras', for these:\n{listing(lost)}"
        )
    return paths
