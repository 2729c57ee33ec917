"""Write Keras files: legacy HDF5 with its name lists, and Keras 3 weights by object paths.

Legacy: layers and their order come from the source (order.py). Weight names end in ":0" unless the source's did not.
What several layers share is one dataset with several hard links. With optimizer weights or a model_config it is a whole
model.

Keras 3: a name that the source gave to a path (`details["paths"]`) goes back to that path; any other must be a path
itself, like layers/dense_1/vars/0, because only the model's code knows which object a variable belongs to.
"""

from __future__ import annotations

import re
from typing import Any

from ...checkpoint import Checkpoint, Note, Tensor
from ...errors import Unrepresentable, UsageError
from ...messages import listing
from ..hdf5.write import NAMED, Attributes, FileWriter, encode
from ..placement import Placement
from . import order
from .naming import OPTIMIZER, TOP, in_list, join

VERSION = {"keras_version": "3.0.0", "backend": "tensorflow"}  # without it, Keras assumes a file of Keras 1
LONGEST = 60_000  # bytes of a name: an attribute in an object header holds 64 KB


class _Writer(FileWriter):
    def cannot_hold(self, tensor: Tensor) -> str:
        kind = tensor.dtype
        if kind.name not in NAMED and kind.name != "bfloat16":
            return f"Keras reads no dtype {kind} from HDF5"
        why = super().cannot_hold(tensor)
        if not why and len(encode(tensor.name)) > LONGEST:
            why = "the name is too long for the attribute in which Keras stores it"
        return why


# --- legacy ----------------------------------------------------------------------------------------------------


class LegacyWriter(_Writer):
    title = "Keras legacy HDF5"

    def place(self, checkpoint: Checkpoint) -> Placement:
        checkpoint, dropped = self.held(checkpoint)
        layers = order.layers_to_write(checkpoint)
        slots = {n: in_list(n.removeprefix(OPTIMIZER + "/")) for n in checkpoint if n.startswith(OPTIMIZER + "/")}
        whole = bool(slots) or "model_config" in checkpoint.metadata
        base = "model_weights" if whole else ""
        about = VERSION | {k: v for k, v in checkpoint.metadata.items() if k != order.KEY}
        listed = {"layer_names": [encode(layer) for layer, _ in layers if layer != TOP]}
        groups: dict[str, Attributes] = {"": about, base: {k: about[k] for k in VERSION} | listed}
        if not whole:
            groups[""] = about | listed
        paths: dict[str, str] = {}
        for layer, rows in layers if TOP in dict(layers) else [*layers, (TOP, [])]:
            groups[join(base, layer)] = {"weight_names": [encode(weight) for _, weight in rows]}
            paths |= {join(base, layer, weight): name for name, weight in rows}
        if slots:
            groups[OPTIMIZER] = {"weight_names": [encode(n) for n in slots.values()]}
            paths |= {f"{OPTIMIZER}/{short}": name for name, short in slots.items()}
        there = set(paths.values())
        if lost := [n for n in checkpoint if n not in there]:
            raise Unrepresentable(f"two weights of one layer would have one name in the file:\n{listing(lost)}")
        inside = [layer for layer, rows in layers if rows]
        if len(inside) == 1 and any(layer.startswith("lambda") for layer, _ in layers):
            text = (
                f"all weights stay in the layer {inside[0]}, as multi_gpu_model nests a model: for a file that the "
                "model itself loads, give a fresh one that it saved, as like='fresh.h5'"
            )
            dropped = (*dropped, Note("hint", text))
        return self.laid_out(checkpoint, paths, groups)._replace(notes=dropped)


# --- Keras 3 ---------------------------------------------------------------------------------------------------


class Keras3Writer(_Writer):
    title = "Keras 3"

    def place(self, checkpoint: Checkpoint) -> Placement:
        if self.url.endswith((".keras", ".json")):
            what = "a .keras archive holds the model's code as well, and Keras 3 files cannot be written in shards"
            raise UsageError(f"{what}; write .weights.h5", url=self.url)
        checkpoint, notes = self.held(checkpoint)
        paths = by_path(checkpoint)
        names = order.recorded_order(checkpoint).get("names", {})
        groups: dict[str, dict[str, Any]] = {"": {k: v for k, v in checkpoint.metadata.items() if k != order.KEY}}
        # empty groups, too: Keras 2 looks for that of the model and, up to 2.12, for that of each object on the way
        groups |= {join(path, "vars"): {"name": name} if name else {} for path, name in {"": "", **names}.items()}
        for path, name in paths.items():
            groups.setdefault(path.rpartition("/")[0], {})
            if name != path:
                groups[path] = {"name": name.rpartition("/")[2]}
        return self.laid_out(checkpoint, paths, groups)._replace(notes=notes)


def by_path(checkpoint: Checkpoint) -> dict[str, str]:
    """The tensors by the path where Keras looks for them; Unrepresentable lists those that have none."""
    known = order.recorded_order(checkpoint).get("paths", {})
    paths = {str(known.get(name, name)): name for name in checkpoint}
    lost = [name for path, name in paths.items() if not re.search(r"(^|/)vars/\d+$", path)]
    if lost or len(paths) < len(checkpoint):
        raise Unrepresentable(
            "Keras 3 finds weights by object paths like layers/dense_1/vars/0, which only the model's code knows; "
            f"give a file that the model saved, as like='fresh.weights.h5'; it has no path for these:\n{listing(lost)}"
        )
    return paths
