"""Write an Orbax checkpoint: an OCDBT database of zarr arrays with uncompressed chunks, and the tree.

    x/values           all chunks, in the order of the tensors, then the one node of the database
    x/_METADATA        the tree, and the metadata
    x/checkpoint       the tree once more, as msgpack, without which Orbax before 0.7 restores nothing
    x/manifest.ocdbt

An array is one chunk, so that a tensor is one range of one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from ...checkpoint import Checkpoint, Tensor
from ...errors import NameCollision, Unrepresentable
from ...messages import listing
from ...moves.part import is_vast
from ...output.destination import OutputFile
from ...storage.checksum import crc
from ..flax import Packed, nested
from ..npy import DESCR
from ..placement import Patch, Placement, Slot, folder_name, is_text, refuse_shards, refuse_unheld
from ..tensorflow.table import common_prefix, varint
from .items import DICT, MAX_PATH
from .ocdbt import COMMITTED, MANIFEST, MANIFEST_MAGIC, MAX_TEXT, METADATA, MSGPACK, NODE_MAGIC

VALUES = "values"
PLACEHOLDER = "PLACEHOLDER://"  # in the msgpack: the name of an array that is stored beside it
MAX_AXES = 32  # of tensorstore
# tensorstore's names of dtypes; it has no uint4, uint2 and float8_e4m3
EXTRA = {
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn", "int4", "int2",
}  # fmt: skip


@dataclass
class OrbaxWriter:
    """Lay out a folder."""

    url: str
    limit: int | None = None
    _paths: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # of each tensor: keys and their kinds
    base: str = ""

    def cannot_hold(self, tensor: Tensor) -> str:
        if tensor.dtype.name not in DESCR and tensor.dtype.name not in EXTRA:
            return f"tensorstore has no dtype {tensor.dtype}"
        if len(tensor.shape) > MAX_AXES:
            return f"tensorstore's arrays have at most {MAX_AXES} axes"
        if is_vast(tensor.shape) and not tensor.count:
            return "it is empty, yet beyond 2^63 bytes"
        if not tensor.name:
            return "an array needs a name"
        if not is_text(tensor.name):
            return "the name is not valid Unicode"
        long = len(tensor.name.encode()) > MAX_TEXT - 1000 or tensor.name.count("/") >= MAX_PATH
        return "the name is too long" if long else ""

    def place(self, checkpoint: Checkpoint) -> Placement:
        self.base = folder_name(self.url, "an Orbax checkpoint")
        refuse_unheld(self, checkpoint, "an Orbax checkpoint")
        refuse_shards(checkpoint, self.limit, "the data of an Orbax checkpoint")
        if not checkpoint:
            raise Unrepresentable("an Orbax checkpoint needs at least one tensor")
        own = checkpoint.details.get("keys", {})  # of the source, whose names may have changed
        self._paths = {}
        for name in checkpoint:
            keys = [(key, kind) for key, kind in own.get(name, ())]
            same = name == "/".join(key for key, _ in keys)
            self._paths[name] = keys if same else [(key, DICT) for key in name.split("/")]
        slots, entries, at = dict[str, Slot](), list[Entry](), 0
        for name, array in self._arrays().items():
            t = checkpoint[name]
            slots[name] = Slot(f"{self.base}/{VALUES}", at, t.nbytes)
            entries.append(_described(array, t))
            if t.count:
                key = f"{array}/{'.'.join('0' * len(t.shape)) or '0'}"
                entries.append(Entry(key.encode(), at, t.nbytes))
                at += t.nbytes
        nodes, manifest = build(sorted(entries), VALUES, at)
        small = {METADATA: self._metadata(checkpoint.metadata), MSGPACK: self._msgpack(),
                 COMMITTED: b"committed", MANIFEST: manifest}  # fmt: skip
        files = {VALUES: at + len(nodes)} | {n: len(data) for n, data in small.items()}
        patches = [(VALUES, at, nodes), *((n, 0, data) for n, data in small.items())]
        return Placement(
            [OutputFile(f"{self.base}/{n}", size) for n, size in files.items()], slots,
            [Patch(f"{self.base}/{n}", start, data) for n, start, data in patches], unit=True,
        )  # fmt: skip

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return [Patch(f"{self.base}/{METADATA}", 0, self._metadata(metadata))] if metadata else []

    def _arrays(self) -> dict[str, str]:
        """The name of each tensor's array; NameCollision if two would be the same."""
        arrays = {name: ".".join(key for key, _ in keys) for name, keys in self._paths.items()}
        first: dict[str, str] = {}
        twice = [n for n, array in arrays.items() if first.setdefault(array, n) != n]
        if twice:
            pairs = listing(f"{first[arrays[n]]}, {n}" for n in twice)
            raise NameCollision(f"Orbax joins the keys of a path by '.', so these would be one array:\n{pairs}")
        return arrays

    def _msgpack(self) -> bytes:
        """The tree as older versions read it: maps, whose leaves name arrays."""
        paths = [[key for key, _ in keys] for keys in self._paths.values()]
        packed = Packed()
        packed.map(nested((path, PLACEHOLDER + ".".join(path)) for path in paths))
        packed.flush()
        return packed.patches[0][1]

    def _metadata(self, metadata: Mapping[str, str]) -> bytes:
        leaf = {"value_type": "np.ndarray", "skip_deserialize": False}
        tree = {
            str(tuple(key for key, _ in keys)): {
                "key_metadata": [{"key": key, "key_type": kind} for key, kind in keys], "value_metadata": leaf,
            }
            for keys in self._paths.values()
        }  # fmt: skip
        said = {"tree_metadata": tree, "use_ocdbt": True, "use_zarr3": False,
                "store_array_data_equal_to_fill_value": True, "custom_metadata": dict(metadata) or None}  # fmt: skip
        return json.dumps(said).encode()


def _described(array: str, t: Tensor) -> Entry:
    kind = DESCR.get(t.dtype.name, t.dtype.name)
    said = {"chunks": [max(1, n) for n in t.shape], "compressor": None, "dimension_separator": ".", "dtype": kind,
            "fill_value": None, "filters": None, "order": "C", "shape": t.shape, "zarr_format": 2}  # fmt: skip
    raw = json.dumps(said, separators=(",", ":")).encode()
    return Entry(f"{array}/.zarray".encode(), 0, len(raw), raw)


# --- the database -------------------------------------------------------------------------------------------------
#
# Nothing is compressed, so that all positions are known before the data is. The identifier of the database is a digest
# of its node, and its time is constant, so that the same arrays give the same bytes. See ocdbt.py for the layout.

ENTRIES = 2**20  # of a node: tensorstore's limit
MAX_INLINE, MAX_NODE, ARITY = 1024, 100_000_000, 4  # what tensorstore and Orbax configure


class Entry(NamedTuple):
    """A key and its value: `data` in the node, or `size` bytes at `start` of the data file."""

    key: bytes
    start: int
    size: int
    data: bytes | None = None


def build(entries: Sequence[Entry], file: str, at: int) -> tuple[bytes, bytes]:
    """The node, which goes to byte `at` of the data file `file`, and the manifest; entries are sorted by key."""
    far = [e for e in entries if e.data is None]
    node = _enveloped(NODE_MAGIC, b"".join((
        b"\0", _files(file), varint(len(entries)), *_texts([e.key for e in entries]),
        *(varint(e.size) for e in entries), *(varint(int(e.data is None)) for e in entries),
        bytes(len(far)), *(varint(e.start) for e in far), *(e.data for e in entries if e.data is not None),
    )))  # fmt: skip
    if len(entries) > ENTRIES or len(node) > MAX_NODE:
        raise Unrepresentable(f"{len(entries)} arrays and chunks are more than one node of an Orbax database holds; "
                              "write two checkpoints")  # fmt: skip
    config = b"".join((sha256(node).digest()[:16], *map(varint, (0, MAX_INLINE, MAX_NODE)), bytes([ARITY, 0])))
    # one version: the first generation, the height 0, in file 0; of the nodes below there are none
    version = map(varint, (1, 1, 0, 0, at, len(node), len(entries), len(node), sum(e.size for e in far)))
    when, older = (1).to_bytes(8, "little"), varint(0)
    return node, _enveloped(MANIFEST_MAGIC, b"".join((config, _files(file), *version, when, older)))


def _files(file: str) -> bytes:
    """A file table with one row, without a shared base path."""
    return varint(1) + varint(len(file)) + varint(0) + file.encode()


def _texts(keys: Sequence[bytes]) -> tuple[bytes, bytes, bytes]:
    """Prefix-compress keys: the lengths of the common prefixes, the lengths of the suffixes, and the suffixes."""
    common = [common_prefix(a, b) for a, b in pairwise(keys)]
    rests = [key[n:] for key, n in zip(keys, (0, *common), strict=True)]
    return b"".join(map(varint, common)), b"".join(varint(len(r)) for r in rests), b"".join(rests)


def _enveloped(magic: int, body: bytes) -> bytes:
    size = 12 + 2 + len(body) + 4
    raw = magic.to_bytes(4, "big") + size.to_bytes(8, "little") + b"\0\0" + body
    return raw + crc("crc32c", raw).to_bytes(4, "little")
