"""PyTorch: archives, legacy streams, TorchScript, distributed checkpoints, plain pickles."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .common import (
    FIXTURES,
    ZIP,
    Laid,
    Way,
    archive,
    folder,
    globbed,
    members,
    of_ways,
    raw,
    records,
    several,
    zipped,
)  # fmt: skip


def torch_pickle(data: bytes, folder: Path) -> Laid:
    """The bytes are the pickle of a sound archive, whose storages are as large as the pickle says."""
    from ckptconv.formats.pytorch.pickle import load
    from ckptconv.formats.pytorch.tensors import TORCH, Storage

    sizes: dict[str, int] = {}

    def find(pid: Any) -> Storage:
        _, kind, key, _, count = pid
        size = -(-count * kind.bits // 8)
        if 0 <= size <= 1 << 16 and str(key).isalnum() and len(sizes) < 32:
            sizes[str(key)] = size
        return Storage(kind, str(key), None, size)

    with suppress(Exception):  # only a rehearsal
        load(data, allowed=TORCH, persistent_load=find, opaque=True)
    parts = [(b"x/data.pkl", data), (b"x/version", b"3\n"), (b"x/byteorder", b"little")]
    parts += [(b"x/data/" + key.encode(), bytes(n)) for key, n in sizes.items()]
    (folder / "x.pt").write_bytes(zipped(parts))
    return folder / "x.pt", "torch"


def pickles() -> Iterator[bytes]:
    for path in globbed(["torch/*.pt", "torch/pieces/*.pt", "hostile/pytorch/*.pt"]):
        for data in members(path):
            yield from (body for name, body in records(data) if name.endswith(b"data.pkl"))


def plain_pickles() -> Iterator[bytes]:
    """Dicts of NumPy arrays, as the protocols spell them."""
    import numpy as np

    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": {"c": np.zeros((2, 2), ">i4").T, "d": (np.float32(1), [b"x"])}}
    return (pickle.dumps(arrays | {"e": np.array(["x", None], object), 3: "x"}, protocol=n) for n in range(6))


def plain_pickle(data: bytes, folder: Path) -> Laid:
    (folder / "x.pkl").write_bytes(data)
    return folder / "x.pkl", "pickle"


def torch_shards() -> Iterator[Sequence[bytes]]:
    """Two archives and an index of what they hold."""
    from ckptconv.formats.detect import open_checkpoint

    for pair in (("training", "nested"), ("stream", "training"), ("views", "dtypes")):
        paths = [FIXTURES / "torch" / f"{name}.pt" for name in pair]
        places: dict[str, str] = {}
        for file, path in zip(("a.bin", "b.bin"), paths, strict=True):
            places |= dict.fromkeys(open_checkpoint(str(path)).tensors, file)
        yield [json.dumps({"weight_map": places}).encode(), *(p.read_bytes() for p in paths)]


WAYS = (
    raw("x.pt", None, "torch/*.pt", "hostile/pytorch/*.pt", "hostile/strangers/*"),
    Way(torch_pickle, pickles),
    archive("x.pt", "torch", "torch/[dmntv]*.pt", "torch/pieces/*.pt", "hostile/pytorch/*.pt"),
    raw("x.pt", "torch-legacy", "torch/stream.pt", "hostile/pytorch/stream*.pt"),
    Way(plain_pickle, plain_pickles),
    archive("x.pt", "torchscript", "torch/script.pt", "torch/frozen.pt", "hostile/pytorch/script*.pt"),
    folder("dcp", "torch/dcp", "hostile/dcp/*"),
    several(["x.bin.index.json", "a.bin", "b.bin"], "x.bin.index.json", "hf", torch_shards),
)  # fmt: skip
CONSTANTS = (
    "pytorch.tensors.TORCH",
    "pytorch.values.NUMPY",
    "table.DISTRIBUTED",
)
SPELLED = rb"storage data.pkl byteorder cpu module sys_info }q\x00 (t X\x01\x00\x00\x00" + ZIP
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS)
