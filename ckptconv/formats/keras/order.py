"""The order in which Keras lists layers and their weights; it loads a legacy file by position and ignores the names.

The order is recorded in a legacy file and in the configuration of a `.keras` file; the caller of `save` gives it. It is
never guessed from names: without a record, no legacy file is written. In formats that
sort tensors or have no place for the order, it is kept as one entry of the metadata:

    ckptconv.keras   {"layers": [["dense", ["dense/kernel:0", "dense/bias:0"]], ...],    weight names, in order
                      "paths": {"dense/kernel": "layers/dense/vars/0"}, "names": {...},  of a Keras 3 source
                      "rest": [...]}                                                     tensors outside of layers

A weight name other than the tensor's name, with or without ":0", is stored as a pair [tensor, weight]. If a converter
renames tensors one to one, the names are updated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint, Note
from ...errors import Unrepresentable, VerifyError
from ...messages import listing
from . import naming
from .naming import OPTIMIZER, in_list

KEY = "ckptconv.keras"
GIVEN = ("", "memory")  # a caller's dict, in the caller's order

Layers = list[tuple[str, list[tuple[str, str]]]]  # layer, [(tensor's name, weight name)]


# --- the order that a checkpoint carries --------------------------------------------------------------------------


def recorded_order(checkpoint: Checkpoint) -> dict[str, Any]:
    """The order in a checkpoint's metadata or details, under its current names; {} if it lists other tensors."""
    own = {k: v for k, v in checkpoint.details.items() if k in ("layers", "paths", "names")}
    carried = _unpacked(checkpoint.metadata[KEY]) if KEY in checkpoint.metadata else {}
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
    out: dict[str, Any] = {}
    listed = {n for _, weights in rows for n, _ in weights}
    aside = {n for old in found.get("rest", ()) for n in now.get(old, ())}
    rest = [n for n in checkpoint if n not in listed]
    if listed and all(n in aside or checkpoint[n].role or n.startswith(OPTIMIZER + "/") for n in rest):
        out |= {"layers": rows, "rest": rest}
    paths = {new: path for old, path in found.get("paths", {}).items() for new in now.get(old, ())}
    if paths:
        out |= {"paths": paths, "names": dict(found.get("names", {}))}
    return out


def _followed(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The current names of the tensors of the source, where each became exactly one tensor."""
    now: dict[str, list[str]] = {}
    for name in checkpoint:
        for old in checkpoint.sources(name):
            now.setdefault(old, []).append(name)
    return {old: names for old, names in now.items() if len(names) == len(checkpoint.sources(names[0])) == 1}


def layers_to_write(checkpoint: Checkpoint) -> Layers:
    """The layers that the source lists, or those of a caller's dict: the first words of its names, in its order.

    Raises Unrepresentable if nothing records an order, or some weights are in no layer.
    """
    layers: Layers | None = recorded_order(checkpoint).get("layers")
    weights = [n for n in checkpoint if not n.startswith(OPTIMIZER + "/")]
    if layers is None and checkpoint.format in GIVEN:
        words = [n.split("/") for n in weights]
        level = int(len({w[0] for w in words}) == 1 and all(len(w) > 2 for w in words))  # behind the model's own name
        given: dict[str, list[tuple[str, str]]] = {}
        for name, parts in zip(weights, words, strict=True):
            given.setdefault(parts[level], []).append((name, name + ":0"))
        return list(given.items())
    if layers is None:
        raise Unrepresentable(
            "Keras loads a legacy file by position, and nothing records the order of these weights (a TensorFlow "
            "checkpoint never does, nor does a .keras file if several objects in a layer have weights). Give a file "
            "that the model saved, as like='fresh.h5'"
        )
    listed = {name for _, rows in layers for name, _ in rows}
    if extra := [n for n in weights if n not in listed]:
        raise Unrepresentable(
            "these belong to no layer, and a legacy file has no place for them; weights_only=True leaves them out:\n"
            + listing(extra)
        )
    return layers


def refuse_misplaced(expected: Checkpoint, got: Checkpoint, url: str) -> None:
    """Raise VerifyError if Keras, which loads the file `got` by position, would confuse weights.

    expected: the source of the file; if that records no order, there is nothing to compare with.
    """
    planned, found = recorded_order(expected).get("layers"), recorded_order(got).get("layers")
    if planned is None or found is None:
        return
    due, rows = ([(layer, [n for n, _ in ws]) for layer, ws in layers if ws] for layers in (planned, found))
    due += [("", [])] * (len(rows) - len(due))
    wrong = [
        f"{layer} lists {', '.join(names)}, where Keras takes {', '.join(wanted) or 'nothing'}"
        for (layer, names), (_, wanted) in zip(rows, due, strict=False)
        if names != wanted
    ]
    if wrong:
        text = f"{len(wrong)} layers list their weights in another order, and Keras loads by position"
        raise VerifyError(f"{text}:\n{listing(wrong)}", url=url)


def may_be_keras(checkpoint: Checkpoint) -> bool:
    """Whether all names end as those of Keras do, in a checkpoint that does not show its origin."""
    if checkpoint.format in ("", "memory", "hdf5"):
        return False
    return bool(checkpoint) and all("/" in n and naming.bare(n.rpartition("/")[2]) in naming.NAMES for n in checkpoint)


# --- through other formats ----------------------------------------------------------------------------------------


def fit_to_target(checkpoint: Checkpoint, target: str) -> Checkpoint:
    """The checkpoint as the format `target` needs it: with the order in its metadata, or without random seeds."""
    found = recorded_order(checkpoint)
    if target == "keras":
        seeds = [n for n in found.get("rest", ()) if n in checkpoint and n.endswith("seed_generator_state")]
        if not seeds:
            return checkpoint
        note = Note("dropped", "states of random number generators; a legacy file keeps none", tuple(seeds))
        rest = dict(checkpoint.tensors)
        for name in seeds:
            del rest[name]
        return checkpoint.with_tensors(rest, note)
    if target == "keras3" or (not found and KEY not in checkpoint.metadata):
        return checkpoint
    if found:
        return replace(checkpoint, metadata={**checkpoint.metadata, KEY: _packed(found)})
    note = Note("dropped", "the order of Keras layers, in the metadata, because it is of other names")
    metadata = {k: v for k, v in checkpoint.metadata.items() if k != KEY}
    return replace(checkpoint, metadata=metadata, notes=(*checkpoint.notes, note))


def _packed(found: Mapping[str, Any]) -> str:
    def entry(name: str, weight: str) -> Any:
        return weight if weight.removesuffix(":0") == name else [name, weight]

    rows = [[layer, [entry(*w) for w in weights]] for layer, weights in found.get("layers", ())]
    return json.dumps({k: v for k, v in {**found, "layers": rows}.items() if v}, separators=(",", ":"))


def _unpacked(text: str) -> dict[str, Any]:
    """Parse an entry; {} if it is not valid, because other programs may write metadata, too."""
    try:
        found = json.loads(text)
        layers = [(str(layer), [_pair(w) for w in weights]) for layer, weights in found.get("layers", ())]
        paths = {str(k): str(v) for k, v in found.get("paths", {}).items()}
        names = {str(k): str(v) for k, v in found.get("names", {}).items()}
        rest = [str(n) for n in found.get("rest", ())]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {"layers": layers, "rest": rest, "paths": paths, "names": names}


def _pair(entry: Any) -> tuple[str, str]:
    if isinstance(entry, str):
        return entry.removesuffix(":0"), entry
    name, weight = entry
    return str(name), str(weight)
