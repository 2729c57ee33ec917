"""Orbax: folders of zarr arrays and OCDBT databases; manifests and nodes under valid checksums; chunks of blosc."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from ckptconv.formats.orbax.locate import MANIFEST
from ckptconv.formats.orbax.ocdbt import MANIFEST_MAGIC, NODE_MAGIC
from ckptconv.storage.checksum import crc

from .common import READ, Laid, Way, fixtures, folder, globbed, of_ways, packed, records

VALUES = "values"


def envelope(magic: int, body: bytes) -> bytes:
    size = 12 + 2 + len(body) + 4
    raw = magic.to_bytes(4, "big") + size.to_bytes(8, "little") + b"\0\0" + body
    return raw + crc("crc32c", raw).to_bytes(4, "little")


def sealed(data: bytes, home: Path) -> Laid:
    """Records: the manifest's body, the root node's, the bytes before it, and with `b` of a fourth the tree."""
    given = [body for _, body in records(data)] + [b""] * 4
    manifest, node, values, tree = given[:4]
    (home / "x").mkdir()
    (home / "x" / MANIFEST).write_bytes(envelope(MANIFEST_MAGIC, manifest))
    (home / "x" / VALUES).write_bytes(values + envelope(NODE_MAGIC, node))
    if tree:
        (home / "x" / "_METADATA").write_bytes(tree)
    return home / "x", "orbax"


def databases() -> Iterator[bytes]:
    """Those of the hostile files whose one node lies behind eight bytes of values."""
    for manifest in fixtures(f"hostile/orbax/*/{MANIFEST}"):
        values = manifest.with_name(VALUES)
        if not values.exists() or not (raw := values.read_bytes()):
            continue
        at = raw.rfind(NODE_MAGIC.to_bytes(4, "big"))
        tree = manifest.with_name("_METADATA")
        bodies = [manifest.read_bytes()[14:-4], raw[at + 14 : -4], raw[: max(0, at)]]
        yield packed([(b"", b) for b in (*bodies, tree.read_bytes() if tree.exists() else b"")])


BLOSC = 16  # bytes of its header


def chunk(data: bytes, home: Path) -> Laid:
    """One chunk of blosc, whose header tells its size in truth, in an array of as many bytes as it announces."""
    (home / "x" / "a").mkdir(parents=True)
    head = data[: BLOSC - 4].ljust(BLOSC - 4, b"\0")
    size = min(struct.unpack_from("<I", head, 4)[0], READ)
    array = {
        "zarr_format": 2, "shape": [size], "chunks": [max(1, size)], "dtype": "|u1", "order": "C", "filters": None,
        "fill_value": None, "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    }  # fmt: skip
    (home / "x" / "a" / ".zarray").write_text(json.dumps(array))
    (home / "x" / "a" / "0").write_bytes(head + max(BLOSC, len(data)).to_bytes(4, "little") + data[BLOSC:])
    return home / "x", "orbax"


def chunks() -> Iterator[bytes]:
    """Those of the fixtures: four compressors, bytes and bits shuffled or not."""
    return (p.read_bytes() for p in globbed(["orbax/zarr/blosc/*/[0-9]*", "orbax/zarr/blosc/*/c/*/*"]))


WAYS = (
    folder("orbax", "orbax/*", "orbax/zarr/*", "hostile/orbax/*"),
    Way(sealed, databases, packed=True),
    Way(chunk, chunks),
)
CONSTANTS = ("orbax.arrays._V2", "orbax.arrays._V3", "orbax.codecs.RATIOS", "orbax.locate.ASIDE")
SPELLED = rb'.zarray zarr.json "chunk_shape" "sharding_indexed" "transpose" "key_metadata" \x0c\xdb\x20\xde \xff\xff'
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS)
