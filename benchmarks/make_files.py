"""Write the benchmark files with the real frameworks: BERT-large's names and shapes, cut or repeated to a size.

    python benchmarks/make_files.py DIR [GB ...]

Needs tensorflow, torch, safetensors and h5py. For each size: N.ckpt (TensorFlow bundle), N.pt, N.safetensors, N.h5.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

HIDDEN, INNER, VOCABULARY = 1024, 4096, 30522


def names_and_shapes(size: float) -> dict[str, tuple[int, ...]]:
    """BERT's TensorFlow names until `size` bytes of float32 are reached."""
    out: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (VOCABULARY, HIDDEN),
        "bert/embeddings/position_embeddings": (512, HIDDEN),
        "bert/embeddings/token_type_embeddings": (2, HIDDEN),
        "bert/embeddings/LayerNorm/gamma": (HIDDEN,),
        "bert/embeddings/LayerNorm/beta": (HIDDEN,),
        "bert/pooler/dense/kernel": (HIDDEN, HIDDEN),
        "bert/pooler/dense/bias": (HIDDEN,),
    }
    layer = 0
    while 4 * sum(int(np.prod(s)) for s in out.values()) < size:
        at = f"bert/encoder/layer_{layer}/"
        for part in ("query", "key", "value"):
            out[f"{at}attention/self/{part}/kernel"] = (HIDDEN, HIDDEN)
            out[f"{at}attention/self/{part}/bias"] = (HIDDEN,)
        for part, shape in (
            ("attention/output", (HIDDEN, HIDDEN)),
            ("intermediate", (HIDDEN, INNER)),
            ("output", (INNER, HIDDEN)),
        ):
            out[f"{at}{part}/dense/kernel"] = shape
            out[f"{at}{part}/dense/bias"] = shape[1:]
            if part != "intermediate":
                out[f"{at}{part}/LayerNorm/gamma"] = (HIDDEN,)
                out[f"{at}{part}/LayerNorm/beta"] = (HIDDEN,)
        layer += 1
    return out


def write(folder: Path, gigabytes: float) -> None:
    """Write one size in every format."""
    import h5py
    import tensorflow as tf
    import torch
    from safetensors.torch import save_file

    rng = np.random.default_rng(0)
    shapes = names_and_shapes(gigabytes * 1e9)
    arrays = {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    stem = folder / f"{gigabytes:g}"
    tf.raw_ops.SaveV2(
        prefix=f"{stem}.ckpt",
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=[tf.constant(a) for a in arrays.values()],
    )
    tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
    torch.save(tensors, f"{stem}.pt")
    save_file(tensors, f"{stem}.safetensors")
    with h5py.File(f"{stem}.h5", "w") as f:
        for n, a in arrays.items():
            f[n] = a


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for text in sys.argv[2:] or ["0.4", "1.3", "5"]:
        write(target, float(text))
