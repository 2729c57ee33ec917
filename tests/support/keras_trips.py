"""One model through other formats and back into Keras: its outputs must be what they were."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from keras_models import MODELS

import ckptconv

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
VIA = {"safetensors": "x.safetensors", "npz": "x.npz", "pt": "x.pt", "tf": "x.ckpt"}
ASKED = "asked"  # the order is not recorded: our error
REFUSED = "refused"  # Keras does not load the file, and says so


def built(k: Any, name: str) -> tuple[Any, list[np.ndarray]]:
    """A model with values of its own in every variable, and inputs for it."""
    if hasattr(k.backend, "clear_session"):
        k.backend.clear_session()
    model, shapes = MODELS[name](k)
    rng = np.random.default_rng(crc32(name.encode()))
    inputs = [rng.integers(0, 3, (2, *s)).astype("i4" if name == "embedding" else "f4") for s in shapes]
    outputs(model, inputs)
    for i, v in enumerate(model.weights):
        if "seed" not in v.name and "count" not in v.name:
            v.assign(np.random.default_rng(i).uniform(0.3, 1, tuple(v.shape)).astype("f4"))
    for layer in model.layers:  # Normalization computes with a copy of its variables
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()
    return model, inputs


def outputs(model: Any, inputs: list[np.ndarray]) -> np.ndarray:
    return np.asarray(model(inputs[0] if len(inputs) == 1 else inputs, training=False))


def loads(model: Any, inputs: list[np.ndarray], path: Path) -> bool:
    """Whether the model gives the same outputs after `path` was loaded into it, having been zeroed."""
    wanted, before = outputs(model, inputs), [np.asarray(v) for v in model.weights]
    for v in model.weights:
        v.assign(np.zeros(tuple(v.shape), "f4").astype(np.asarray(v).dtype))
    try:
        model.load_weights(str(path))
    except Exception:
        for v, a in zip(model.weights, before, strict=True):
            v.assign(a)
        raise
    same = np.array_equal(outputs(model, inputs), wanted)
    return same and all(np.array_equal(np.asarray(v), a) for v, a in zip(model.weights, before, strict=True))


def trip(model: Any, inputs: list[np.ndarray], files: list[Path]) -> str:
    """Convert the first file to the second and so on, and load the last: "" if all is right, else what is not."""
    try:
        for source, target in pairwise(files):
            ckptconv.convert(source, target, force=True, to="keras" if target.name == "back.h5" else None)
    except (ckptconv.Unrepresentable, ckptconv.UsageError) as e:
        return f"{ASKED}: {e}"
    try:
        return "" if loads(model, inputs, files[-1]) else "other outputs"
    except ValueError as e:
        return f"{REFUSED}: {str(e)[:200]}"


def trips(name: str, folder: Path, vias: tuple[str, ...] = tuple(VIA)) -> dict[str, list[str]]:
    """All trips of one architecture by column of the table: what went wrong in each, "" for what is right."""
    import keras
    import tf_keras

    middles = [folder / VIA[via] for via in vias]
    out: dict[str, list[str]] = {}
    model, inputs = built(tf_keras, name)
    first, last = folder / "two.h5", folder / "back.h5"
    model.save_weights(str(first))
    out["Keras 2 `.h5`"] = [trip(model, inputs, [first, m, last]) for m in middles]
    model, inputs = built(keras, name)
    model.save_weights(str(folder / "three.weights.h5"))
    model.save(str(folder / "three.keras"))
    for source in ("three.keras", "three.weights.h5"):
        for back in ("back.weights.h5", "back.h5"):
            title = f"`{source[5:]}` to `{back[4:]}`"
            out[title] = [trip(model, inputs, [folder / source, m, folder / back]) for m in middles]
    return out
