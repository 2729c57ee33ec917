"""Signatures of files, and names of files that a folder is known by, each stated once.

Detection asks for them before any format is imported; the formats use the same.
"""

from __future__ import annotations

import re

from ..storage.files import Seen

HDF5 = b"\x89HDF\r\n\x1a\n"
HDF5_AT = (0, 512, 1024, 2048)  # bytes of a user block before it, of which only some sizes are allowed
NPY = b"\x93NUMPY"
TABLE = bytes.fromhex("57fb808b247547db")  # of TensorFlow, at the end
SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt")
DISTRIBUTED = ".metadata"  # of PyTorch's distributed checkpoints
KERAS_WEIGHTS = "model.weights.h5"
KERAS_LISTS = re.compile(r"(?:layer|weight)_names\d*")  # attributes of HDF5 that make a file one of Keras


def is_hdf5(seen: Seen) -> bool:
    return any(seen.head.startswith(HDF5, at) for at in HDF5_AT)


def is_npy(seen: Seen) -> bool:
    return seen.head.startswith(NPY)


def is_table(seen: Seen) -> bool:
    return seen.tail.endswith(TABLE)


def is_safetensors(seen: Seen) -> bool:
    """Whether a header of less than 4 GiB comes first: there is no signature, and only such a header is common."""
    return seen.head[4:8] == bytes(4) and seen.head[8:9] == b"{"
