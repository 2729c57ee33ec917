"""Orbax: folders of zarr arrays and OCDBT databases; manifests and nodes under valid checksums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ckptconv.formats.orbax.ocdbt import MANIFEST, MANIFEST_MAGIC, NODE_MAGIC
from ckptconv.storage.checksum import crc

from .common import Laid, Way, fixtures, folder, of_ways, packed, records

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


WAYS = (
    folder("orbax", "orbax/*", "orbax/zarr/*", "hostile/orbax/*"),
    Way(sealed, databases, packed=True),
)
CONSTANTS = ("orbax.zarr.FIXED", "orbax.zarr.RATIOS", "orbax.ocdbt.ASIDE")
SPELLED = rb'.zarray zarr.json "chunk_shape" "sharding_indexed" "key_metadata" \x0c\xdb\x20\xde \xff\xff'
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS)
