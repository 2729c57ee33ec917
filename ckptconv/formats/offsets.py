"""Where the parts of tensors begin that one process of a distributed run of torch saved in a safetensors file.

    shard-00002-model-00001-of-00001.safetensors       what the second process holds; distributed.py joins them
    __metadata__: {"DCP_SHARDING_INFO": '{"a.w": {"saved_offsets": [2, 0]}}', "DCP_VERSION": "1.0"}

The shape in the header is that of the part; the whole's is in no file. Specification: HuggingFaceStorageWriter, in
torch/distributed/checkpoint/hf_storage.py and _hf_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, Note
from ..errors import CkptError, CorruptCheckpoint
from ..messages import listing
from ..moves.part import MAX_ELEMENTS
from ..storage.files import split
from ..storage.json import parse_json, unique

INFO = "DCP_SHARDING_INFO"
KEYS = (INFO, "DCP_VERSION")
SHARD = re.compile(r"shard-\d{5,}-model-\d{5,}-of-(\d{5,})\.safetensors")

# The first shard says the same as a file that holds whole tensors.
ALONE = Note(
    "assumed",
    f"read as whole tensors; its {INFO} does not say that they are, and the first shard of a distributed run "
    "holds only the first part of each",
)

Start = tuple[int, ...]


def shards(files: Iterable[str]) -> list[str]:
    """Those names in a folder that such files have."""
    return sorted(n for n in files if SHARD.fullmatch(n))


def read(metadata: Mapping[str, str], url: str) -> dict[str, Start]:
    """The index of the first element of each part; {} if the file says nothing of parts."""
    found = parse_json(metadata[INFO].encode(errors="replace"), url, _start) if INFO in metadata else {}
    if not isinstance(found, dict) or not all(isinstance(start, tuple) for start in found.values()):
        raise CorruptCheckpoint(f"its {INFO} does not say where the parts of tensors begin", url=url)
    return found


def _start(pairs: list[tuple[str, Any]]) -> Any:
    """{"saved_offsets": [2, 0]} as (2, 0), which takes less memory."""
    found = unique(pairs)
    start = found.get("saved_offsets")
    if type(start) is list and all(type(n) is int and 0 <= n <= MAX_ELEMENTS for n in start):
        return tuple(start)
    return found


def alone(found: Checkpoint, url: str) -> Checkpoint:
    """A file that is read without others, with a note if it may hold parts of tensors.

    Raises CorruptCheckpoint if it holds parts that begin elsewhere than the tensors do.
    """
    starts = dict[str, Start]()
    with suppress(CkptError):  # another program's metadata
        starts = read(found.metadata, url)
    if parts := [f"{n}, from {list(start)} on" for n, start in starts.items() if any(start) and n in found]:
        text = "holds only parts of tensors, one shard of those that a distributed run saved; give the folder with all"
        name = "" if SHARD.fullmatch(split(url)[1]) else ", under the names that torch gave them"
        raise CorruptCheckpoint(f"{text}{name}:\n{listing(parts)}", url=url)
    return replace(found, notes=(*found.notes, ALONE)) if any(starts.values()) else found
