"""safetensors, alone and in shards beside an index."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from .common import JSON, Laid, Way, fixtures, folder, globbed, of_ways, packed, raw, records


def safetensors_header(data: bytes, folder: Path) -> Laid:
    """a is the header's JSON, b the payload."""
    head, body = (records(data) or [(b"", b"")])[0]
    (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
    return folder / "x.safetensors", "safetensors"


def safetensors_headers() -> Iterator[bytes]:
    for path in globbed(["hostile/safetensors/*.safetensors", "t5x/*.safetensors", "originals/bert/*.safetensors"]):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        if size < min(len(data), 1 << 16):
            yield packed([(data[8 : 8 + size], data[8 + size :])])


def index(data: bytes, folder: Path) -> Laid:
    """a is an index, b the one shard beside it."""
    head, body = (records(data) or [(b"", b"")])[0]
    (folder / "model.safetensors.index.json").write_bytes(head)
    (folder / "a.safetensors").write_bytes(body)
    return folder / "model.safetensors.index.json", "hf"


def indexes() -> Iterator[bytes]:
    for home in fixtures("hostile/sharded/*"):
        if home.is_dir():
            for path in home.glob("*.index.json"):
                shard = next(iter(sorted(home.glob("*.safetensors"))), None)
                yield packed([(path.read_bytes(), shard.read_bytes() if shard else b"")])
    good = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    yield packed(
        [(json.dumps({"weight_map": {"w": "a.safetensors"}}).encode(), struct.pack("<Q", len(good)) + good + bytes(8))]
    )


WAYS = (
    raw("x.safetensors", None, "hostile/safetensors/*.safetensors", "t5x/*.safetensors"),
    Way(safetensors_header, safetensors_headers, packed=True),
    Way(index, indexes, packed=True),
    folder("hf", "hostile/sharded/*"),
)
CONSTANTS = (
    "safetensors.ORDER",
    "safetensors.SUFFIX",
    "huggingface.MODELS",
)
FAMILY = of_ways(WAYS, JSON + b" DCP_SHARDING_INFO saved_offsets", CONSTANTS)
