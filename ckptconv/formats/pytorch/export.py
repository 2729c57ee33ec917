"""torch.export's .pt2: a zip of a program and of the tensors that it uses.

    R/archive_format                               "pt2"
    R/models/model.json                            the program, never looked at
    R/data/weights/weight_0                        a storage; names that share one are tied
    R/data/weights/model_weights_config.json       {"config": {"fc.weight": {
        "path_name": "weight_0", "use_pickle": false, "tensor_meta": {"dtype": 7, "sizes": [{"as_int": 3}],
        "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}, "layout": 7}}, ...}}
    R/data/constants/model_constants_config.json   the same, of tensors outside of the state dict, which are not read

Specification: torch/export/pt2_archive/_package.py; ScalarType and Layout of torch/_export/serde/schema.py.
"""

from __future__ import annotations

from typing import Any

from ...checkpoint import Checkpoint, Note
from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint, UnknownFormat
from ...messages import printable
from ...storage.files import Reader, Seen
from ...storage.json import parse_json
from .. import Located
from ..table import Reading
from .archive import Archive, enter
from .flatten import checkpoint
from .tensors import UNTYPED, Storage, TorchType, View, look

FOLDER = "data/weights"
WEIGHTS = f"{FOLDER}/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
STRIDED = 7
_NAMES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn",
    30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
TYPES = {number: DTYPES[name] for number, name in _NAMES.items()}


def sniff(seen: Seen) -> int:
    return 3 if any(m.partition("/")[2] == "archive_format" for m in seen.members) else 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        archive = enter(f)
        if WEIGHTS not in archive.members:
            text = "is a PyTorch package without a table of weights (AOTInductor); take the checkpoint it was made from"
            raise UnknownFormat(text)
        tensors, size = _tensors(archive), archive.members[WEIGHTS].size
        apart = tuple(_config(archive, CONSTANTS)) if CONSTANTS in archive.members else ()
    text = "tensors of the program that are not in its state_dict(), such as buffers that are not persistent"
    notes = [Note("skipped", text, apart)] if apart else []
    return checkpoint(tensors, size, how, url=url, format="pt2", notes=notes)


def _config(archive: Archive, name: str) -> dict[str, Any]:
    table = parse_json(archive.pickle(name), archive.f.url)
    config = table.get("config") if type(table) is dict else None
    if type(config) is not dict:
        raise CorruptCheckpoint("its table of weights has no config")
    return config


def _tensors(archive: Archive) -> dict[str, View]:
    """A view for each name; names of one file share its storage."""
    out, storages = {}, dict[str, Storage]()
    for name, about in _config(archive, WEIGHTS).items():
        try:
            path, meta = str(about["path_name"]), about["tensor_meta"]
            kind, layout, pickled = meta["dtype"], meta["layout"], about["use_pickle"]
            sizes, strides = ([item["as_int"] for item in meta[key]] for key in ("sizes", "strides"))
            offset = meta["storage_offset"]["as_int"]  # symbolic sizes are not sizes of weights
        except (KeyError, TypeError) as e:
            text = f"its table of weights has no proper entry for it: {type(e).__name__} {e}"
            raise CorruptCheckpoint(text, tensor=name) from None
        row = TYPES.get(kind) if type(kind) is int else None
        if row is None or layout != STRIDED or pickled:
            text = f"is stored in a way that is not read (dtype {kind}, layout {layout}{', pickled' * bool(pickled)})"
            raise CorruptCheckpoint(text, tensor=name)
        member = f"{FOLDER}/{path}"
        if member not in archive.members:
            raise CorruptCheckpoint(f"its data {printable(path)} is missing", tensor=name)
        if path not in storages:
            data, size = archive.member(member), archive.members[member].size
            storages[path] = Storage(UNTYPED, path, data, size, swapped=archive.swapped)
        with Located(tensor=name):
            out[name] = look(storages[path], TorchType(row.torch_name or row.name, row), offset, sizes, strides)
    return out
