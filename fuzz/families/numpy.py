"""NumPy: .npy, .npz, folders of .npy, and the release of GPT."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

from .common import ZIP, Laid, Way, archive, folder, globbed, of_ways, packed, raw, records


def npy_header(data: bytes, folder: Path) -> Laid:
    head, body = (records(data) or [(b"", b"")])[0]
    head = head[:65535]
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body)
    return folder / "x.npy", "npy"


def npy_headers() -> Iterator[bytes]:
    for kind, shape, size in (
        ("<f4", "(3, 2)", 24), (">i8", "()", 8), ("|b1", "(4,)", 4), ("|S3", "(2,)", 6), ("<U2", "(2, 2)", 32),
        (">c16", "(2,)", 32), ("|V2", "(2, 0)", 0),
    ):  # fmt: skip
        for order in (False, True):
            head = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
            yield packed([(head.ljust(117) + b"\n", bytes(size))])


def npy_pickle(data: bytes, folder: Path) -> Laid:
    """The bytes are the pickle of an array of objects."""
    head = b"{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n"
    return npy_header(packed([(head, data)]), folder)


def npy_pickles() -> Iterator[bytes]:
    import numpy as np

    for held in ({"a": np.arange(6.0).reshape(2, 3), "b": [np.zeros(2, ">i4"), "x"]}, [np.ones(2), None]):
        array = np.empty((), object)
        array[()] = held
        yield from (pickle.dumps(array, protocol=n) for n in (2, 3, 5))
    for path in globbed(["hostile/numpy/pickle*.npy"]):
        yield path.read_bytes().partition(b"\n")[2]


WAYS = (
    raw("x.npy", "npy", "hostile/numpy/*.npy"),
    raw("x.npz", None, "hostile/numpy/*.npz", "tf/*.npz", "flax/*.npz", "torch/*.npz", "keras/*.npz"),
    archive("x.npz", "npz", "tf/*.npz", "flax/*.npz", "hostile/numpy/*.npz"),
    Way(npy_header, npy_headers, packed=True),
    folder("gpt", "originals/openai-gpt--release"),
    folder("npy", "originals/openai-gpt--release", "hostile/numpy"),
    Way(npy_pickle, npy_pickles),
)
CONSTANTS = (
    "table.NPY",
    "npy.SPELLING",
    "npy.ASSUMED",
    "gpt.SHAPES",
    "pytorch.values.NUMPY",
)
SPELLED = b"'descr' 'fortran_order' 'shape' True" + ZIP
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS)
