"""The order in which Keras lists layers and their weights; it loads a legacy file by position and ignores the names.

The order is known from a legacy file, from a Keras 3 file with its configuration, and from TensorFlow's object graph.
In formats that sort tensors or have no place for the order, it is kept as one entry of the metadata:

    ckptconv.keras   {"layers": [["dense", ["dense/kernel:0", "dense/bias:0"]], ...],    weight names, in order
                      "paths": {"dense/kernel": "layers/dense/vars/0"}, "names": {...},  of a Keras 3 source
                      "rest": [...],                                                     tensors outside of layers
                     "guess": "...", "doubts": [["a/kernel", "b/kernel"]]}              where it was not known

A weight name other than the tensor's name, with or without ":0", is stored as a pair [tensor, weight]. Above 30,000
characters the text is compressed: "zlib:" and base64. If a converter renames tensors one to one, the names are updated.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Details, Note
from . import naming
from .naming import OPTIMIZER, in_list
from .parts import Part, Shapes, doubts, guessed

KEY = "ckptconv.keras"
LONG = 30_000  # characters of a plain entry: an attribute of HDF5 holds 64 KB
MOST = 1 << 20  # bytes of a decompressed entry of few tensors
EACH, AGAIN = 96, 8  # bytes more for each tensor, and how often its name may be there: as layer, weight, path, doubt

SAID = ("layers", "guess", "doubts", "paths", "names")  # the keys of a checkpoint's details that describe an order

Layers = list[tuple[str, list[tuple[str, str]]]]  # layer, [(tensor's name, weight name)]


class Order(NamedTuple):
    """Layers in order. guess: what the order was guessed from, '' if it is known; doubts: see parts.doubts."""

    layers: Layers
    guess: str = ""
    doubts: tuple[tuple[str, ...], ...] = ()

    def names(self) -> list[str]:
        """All tensors in the order in which Keras loads them; tensors that layers share are repeated."""
        return [name for _, weights in self.layers for name, _ in weights]


def derived(layers: Layers, parts: Sequence[Part], shapes: Shapes, source: str, *, trained_known: bool) -> Order:
    """The order of these parts, with the parts of it that are guessed."""
    found = doubts(parts, shapes, trained_known=trained_known)
    return Order(layers, source if found or guessed(parts) else "", found)


def detailed(order: Order) -> Details:
    """The order as details of a checkpoint."""
    out: Details = {"layers": [[layer, [list(w) for w in weights]] for layer, weights in order.layers]}
    if order.guess:
        out |= {"guess": order.guess, "doubts": [list(names) for names in order.doubts]}
    return out


# --- the order that a checkpoint carries --------------------------------------------------------------------------


def said(checkpoint: Checkpoint) -> dict[str, Any]:
    """The order in a checkpoint's metadata or details, under its current names; {} if it lists other tensors."""
    own = {k: v for k, v in checkpoint.details.items() if k in SAID}
    carried = _unpacked(checkpoint.metadata[KEY], checkpoint) if KEY in checkpoint.metadata else {}
    if not own and not carried:
        return {}
    now = _followed(checkpoint)
    return _of_now(carried, checkpoint, now) or _of_now(own, checkpoint, now)


def _of_now(found: Mapping[str, Any], checkpoint: Checkpoint, now: Mapping[str, list[str]]) -> dict[str, Any]:
    """The entries of `found` with the names of the source replaced by those in `now`."""
    rows = [
        (
            str(layer),
            [(new, weight if new == old else in_list(new)) for old, weight in weights for new in now.get(old, ())],
        )
        for layer, weights in found.get("layers", ())
    ]
    out: dict[str, Any] = {"guess": str(found.get("guess", ""))}
    out["doubts"] = [[n for old in names for n in now.get(old, ())] for names in found.get("doubts", ())]
    listed = {n for _, weights in rows for n, _ in weights}
    aside = {n for old in found.get("rest", ()) for n in now.get(old, ())}
    rest = [n for n in checkpoint if n not in listed]
    if listed and all(n in aside or checkpoint[n].role or n.startswith(OPTIMIZER + "/") for n in rest):
        out |= {"layers": rows, "rest": rest}
    paths = {new: path for old, path in found.get("paths", {}).items() for new in now.get(old, ())}
    if paths:
        out |= {"paths": paths, "names": dict(found.get("names", {}))}
    return out if len(out) > 2 else {}


def _followed(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The current names of the tensors of the source, where each became exactly one tensor."""
    now: dict[str, list[str]] = {}
    for name in checkpoint:
        for old in checkpoint.sources(name):
            now.setdefault(old, []).append(name)
    return {old: names for old, names in now.items() if len(names) == len(checkpoint.sources(names[0])) == 1}


def known(checkpoint: Checkpoint) -> Order | None:
    """The order that the checkpoint carries, if it lists exactly the checkpoint's tensors."""
    found = said(checkpoint)
    if "layers" not in found:
        return None
    left = tuple(tuple(names) for names in found["doubts"] if len(names) > 1)
    return Order(found["layers"], found["guess"], left)


def is_keras(checkpoint: Checkpoint) -> bool:
    """Whether the source shows that these are weights of Keras."""
    return checkpoint.format in ("keras", "keras3") or bool(said(checkpoint))


def may_be_keras(checkpoint: Checkpoint) -> bool:
    """Whether all names end as those of Keras do, in a checkpoint that does not show its origin."""
    if checkpoint.format in ("", "memory", "hdf5"):
        return False
    return bool(checkpoint) and all("/" in n and naming.bare(n.rpartition("/")[2]) in naming.NAMES for n in checkpoint)


# --- through other formats ----------------------------------------------------------------------------------------


def fitted(checkpoint: Checkpoint, target: str) -> Checkpoint:
    """The checkpoint as the format `target` needs it: with the order in its metadata, or without random seeds."""
    found = said(checkpoint)
    if target == "keras":
        return _without_seeds(checkpoint, found)
    if target == "keras3" or (not found and KEY not in checkpoint.metadata):
        return checkpoint
    if found:
        return replace(checkpoint, metadata={**checkpoint.metadata, KEY: _packed(found)})
    note = Note("dropped", "the order of Keras layers, in the metadata, because it is of other names")
    metadata = {k: v for k, v in checkpoint.metadata.items() if k != KEY}
    return replace(checkpoint, metadata=metadata, notes=(*checkpoint.notes, note))


def _without_seeds(checkpoint: Checkpoint, found: Mapping[str, Any]) -> Checkpoint:
    seeds = {n for n in found.get("rest", ()) if n in checkpoint and n.endswith("seed_generator_state")}
    if not seeds:
        return checkpoint
    note = Note("dropped", "states of random number generators; a legacy file keeps none", tuple(seeds))
    return checkpoint.with_tensors({n: t for n, t in checkpoint.items() if n not in seeds}, note)


def _packed(found: Mapping[str, Any]) -> str:
    def entry(name: str, weight: str) -> Any:
        return weight if weight.removesuffix(":0") == name else [name, weight]

    rows = [[layer, [entry(*w) for w in weights]] for layer, weights in found.get("layers", ())]
    document = {**found, "layers": rows}
    text = json.dumps({k: v for k, v in document.items() if v}, separators=(",", ":"))
    return text if len(text) <= LONG else "zlib:" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _unpacked(text: str, tensors: Collection[str]) -> dict[str, Any]:
    """Parse an entry; {} if it is not valid, because other programs may write metadata, too.

    A packed one that is much longer than the names of the tensors is not of them, and would take much memory.
    """
    try:
        if text.startswith("zlib:"):
            most = MOST + sum(AGAIN * len(name) + EACH for name in tensors)
            text = zlib.decompressobj().decompress(base64.b64decode(text[5:]), most).decode()
        found = json.loads(text)
        layers = [(str(layer), [_pair(w) for w in weights]) for layer, weights in found.get("layers", ())]
        paths = {str(k): str(v) for k, v in found.get("paths", {}).items()}
        names = {str(k): str(v) for k, v in found.get("names", {}).items()}
        unsure = [[str(n) for n in group] for group in found.get("doubts", ())]
        rest = [str(n) for n in found.get("rest", ())]
    except (ValueError, TypeError, AttributeError, RecursionError, zlib.error):
        return {}
    guess = str(found.get("guess", ""))
    return {"layers": layers, "rest": rest, "paths": paths, "names": names, "doubts": unsure, "guess": guess}


def _pair(entry: Any) -> tuple[str, str]:
    if isinstance(entry, str):
        return entry.removesuffix(":0"), entry
    name, weight = entry
    return str(name), str(weight)
