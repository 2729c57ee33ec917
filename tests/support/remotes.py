"""A checkpoint of each format that is written to remote storage and read back."""

from __future__ import annotations

import numpy as np

import ckptconv
from ckptconv.formats import detect

WRITABLE = {
    "safetensors": "m.safetensors", "npz": "m.npz", "npy": "arrays", "tf": "tf/m.ckpt", "torch": "m.pt",
    "flax": "m.msgpack", "hdf5": "m.hdf5", "keras": "m.h5",
}  # fmt: skip


def arrays(count: int = 6) -> dict[str, np.ndarray]:
    r = np.random.default_rng(count)
    return {f"t{i}": r.standard_normal((20 + i, 7)).astype("f4") for i in range(count)}


def there_and_back(url: str, name: str) -> None:
    ckptconv.save(arrays(), url, to=name)
    assert detect.detect(url).name == name
    got = ckptconv.open(url)
    assert {n: t.numpy().tobytes() for n, t in got.items()} == {n: a.tobytes() for n, a in arrays().items()}
