"""The items of an Orbax checkpoint: their arrays, chunks and trees, read into one checkpoint.

    _METADATA    {"tree_metadata": {"('params', 'norm.scale')": {"key_metadata": [{"key": "params", "key_type": 2},
                 {"key": "norm.scale", "key_type": 2}], "value_metadata": {"value_type": "jax.Array", ...}}},
                 "store_array_data_equal_to_fill_value": true, "custom_metadata": {...}}
    checkpoint   older versions and T5X: Flax's msgpack, which contains small arrays itself

The leaves of the tree are the arrays. An array is stored under its path joined by '.', so that only the tree shows
where a name with dots is split. Names here are paths joined by '/'.
Specification: orbax/checkpoint/_src/metadata/tree.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Note, Tensor, training
from ...errors import CorruptCheckpoint, NameCollision, UnsafeCheckpoint
from ...messages import brief, listing, many, printable
from ...moves.part import FILL_RATIO, MAX_AXES
from ...storage.files import exists, join, read_all, stat
from ...storage.json import parse_json
from .. import Located, flax
from ..table import Reading
from . import ocdbt, zarr
from .ocdbt import ASIDE, MANIFEST, MAX_PARTS, METADATA, MSGPACK, V2, V3, WIDE, Room, Value, inside

SLACK = 2**26
ARRAY, KEY, LETTER = 300, 80, 3  # bytes of memory for an array, and for each key and letter of its name
MAX_JSON = 2**28  # bytes
MAX_PATH = 100  # keys of a path
DICT, SEQUENCE = 2, 1

Path = tuple[str, ...]


class Stored(NamedTuple):
    """An array, the file of its metadata, and its chunks by their positions in the grid."""

    array: zarr.Array
    url: str
    chunks: dict[zarr.Place, Value]


class Leaf(NamedTuple):
    """A leaf of the tree.

    path: its keys. kinds: of each key. array: the name of its array. other: a description if it is not an array.
    inline: the tensor if the tree itself holds it.
    """

    path: Path
    kinds: tuple[int, ...] = ()
    array: str = ""
    other: str = ""
    inline: Tensor | None = None


@dataclass
class Items:
    """What is read of the items.

    room: the memory that may be taken. keys: the paths that cannot be derived from a name.
    """

    room: Room
    salvage: bool
    notes: list[Note]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    keys: dict[str, list[list[Any]]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    urls: dict[str, None] = field(default_factory=dict)

    def add(self, root: str, item: str) -> None:
        """Read the arrays of one folder; if there are several items, names begin with the item's name."""
        heads = [n for n in (MANIFEST, METADATA, MSGPACK) if exists(join(root, n))]
        for url in (inside(root, n) for n in heads):
            self.urls[url] = None
            self.room.give(url, status.size if (status := stat(url)) else 0)
        found, aside = _arrays(ocdbt.values(root, self.room, database=MANIFEST in heads), self.room)
        self.urls |= dict.fromkeys(v.url for stored in found.values() for v in stored.chunks.values())
        leaves, complete = list[Leaf](), False
        if METADATA in heads:
            leaves, complete, self.metadata = of_metadata(inside(root, METADATA))
        elif MSGPACK in heads:
            leaves = of_msgpack(inside(root, MSGPACK), found)
        lacking = [n for n in leaves if n.array not in found and not n.other and n.inline is None]
        if lacking:
            what = f"{many(len(lacking), 'array')} that its tree names are not stored"
            raise CorruptCheckpoint(f"{what}:\n{listing('/'.join(leaf.path) for leaf in lacking)}", url=root)
        # first the arrays that the tree lists, then others, then what the tree holds
        listed = {leaf.array: leaf for leaf in leaves if leaf.array in found}
        listed |= {n: Leaf(tuple(n.split(".")), array=n) for n in found if n not in listed}
        read = [*listed.values(), *(leaf for leaf in leaves if leaf.inline is not None)]
        absent = self._tensors(root, item, found, read, complete)
        what = "chunks are absent, all of which were stored" if complete else "chunks are absent: zeros are read"
        self.note("damaged" if complete else "assumed", what, absent)
        if MANIFEST in heads and not leaves:  # Orbax always writes a tree beside it
            names = ["/".join((item, *leaf.path) if item else leaf.path) for leaf in read]
            self.note("assumed", f"without a {METADATA}, names are divided at each dot", names)
        others = [f"{'/'.join(leaf.path)}: {leaf.other}" for leaf in leaves if leaf.other]
        self.note("skipped", "leaves that are not arrays", others, tensors=False)
        self.note("unread", "files", aside, tensors=False)

    def note(self, kind: Any, what: str, names: Sequence[str], *, tensors: bool = True) -> None:
        if names:
            self.notes.append(Note(kind, what, tuple(names), tensors=tensors))

    def _tensors(
        self, root: str, item: str, found: Mapping[str, Stored], leaves: Sequence[Leaf], complete: bool
    ) -> list[str]:
        """Add the tensors of these leaves; return the names of those that lack chunks.

        complete: whether all chunks must exist. Those that lack some are left out then, and else read with zeros.
        """
        absent, twice = list[str](), list[str]()
        left = sum(v.size for s in found.values() for v in s.chunks.values()) * FILL_RATIO + SLACK
        for leaf in leaves:
            path = (item, *leaf.path) if item else leaf.path
            name, missing = "/".join(path), 0
            if leaf.inline is not None:
                tensor = leaf.inline.renamed(name)
            else:
                array, url, chunks = found[leaf.array]
                with Located(url, name):
                    tensor, missing = zarr.tensor(array, chunks, name, self.room)
                    if missing and complete and not self.salvage:
                        raise CorruptCheckpoint("lacks chunks, all of which were stored")
            left -= missing * tensor.dtype.itemsize
            if left < 0:
                raise UnsafeCheckpoint("its chunks are absent, and its shapes claim far more than is stored", url=root)
            if missing:
                absent.append(name)
                if complete:
                    continue
            if name in self.tensors:
                twice.append(name)
            self.tensors[name] = tensor
            if SEQUENCE in leaf.kinds or any("/" in key for key in leaf.path):
                kinds = (*(DICT,) * (len(path) - len(leaf.kinds)), *leaf.kinds)
                self.keys[name] = [[key, kind] for key, kind in zip(path, kinds, strict=True)]
        if twice:
            raise NameCollision(f"names are equal because a key contains '/':\n{listing(twice)}", url=root)
        return absent


def read(folders: Mapping[str, str], how: Reading, notes: Sequence[Note]) -> Checkpoint:
    """Read the folders of all items by their names, which are '' if there is one. notes: on how they were found."""
    items = Items(Room(next(iter(folders.values()))), how.salvage, [])
    for name, root in folders.items():
        items.add(root, name)
    roles = training.of_names(items.tensors)  # of all items: one may hold the model, and another the optimizer
    tensors = items.tensors | {n: replace(items.tensors[n], role=role) for n, role in roles.items()}
    return Checkpoint(
        tensors, items.metadata if len(folders) == 1 else {}, format="orbax", urls=tuple(items.urls),
        notes=(*items.notes, *notes), details={"keys": items.keys} if items.keys else {},
    )  # fmt: skip


def _arrays(values: Mapping[str, Value], room: Room) -> tuple[dict[str, Stored], list[str]]:
    """The arrays by name, each with its chunks, and the keys outside of arrays. An array may have no other keys."""
    out, aside = dict[str, Stored](), list[str]()
    for key, value in values.items():
        name, _, last = key.rpartition("/")
        if last not in (V2, V3):
            continue
        keys, wide = name.count(".") + 1, 1 if name.isascii() else WIDE
        room.take(ARRAY + KEY * keys * (1 + ("/" in name)) + LETTER * wide * len(name), "arrays")
        with Located(value.url, name):
            array = zarr.parse(value.read(zarr.MAX_JSON), last, value.url)
            if array is None:
                continue
            if not name:
                raise CorruptCheckpoint("its root is one array, which has no name: only named arrays are read")
            if name in out:
                raise CorruptCheckpoint("has metadata of zarr 2 and of zarr 3")
        out[name] = Stored(array, value.url, {})
    known = (*ASIDE, MSGPACK, ".zgroup", ".zattrs", ".zmetadata", V3)
    for key, value in values.items():
        name = key
        if key.count("/") > MAX_PARTS + MAX_AXES:
            raise UnsafeCheckpoint(f"the key {printable(brief(key))} has {key.count('/') + 1} parts", url=value.url)
        while name and name not in out:
            name = name.rpartition("/")[0]
        rest = key[len(name) + 1 :]
        if not name:
            aside += [key] if key.split("/")[0] not in known else []
        elif rest in (V2, V3, ".zattrs"):
            continue
        elif (place := out[name].array.place(rest)) is not None:
            out[name].chunks[place] = value
        else:
            what = f"{printable(brief(rest))} is not one of its chunks in the grid {list(out[name].array.grid)}"
            raise CorruptCheckpoint(what, url=value.url, tensor=name)
    return out, aside


# --- the tree ---------------------------------------------------------------------------------------------------


def of_metadata(url: str) -> tuple[list[Leaf], bool, dict[str, str]]:
    """The leaves in a `_METADATA`, whether all chunks must exist, and the user's metadata."""
    fields = parse_json(read_all(url, MAX_JSON), url)
    entries = fields.get("tree_metadata") if type(fields) is dict else None
    with Located(url):
        if type(entries) is not dict:
            raise CorruptCheckpoint("has no tree_metadata")
        leaves = dict[str, Leaf]()
        for label, entry in entries.items():
            leaf = _leaf(label, entry)
            if leaf.array in leaves:
                paths = " and ".join(printable(brief(repr(p))) for p in (leaves[leaf.array].path, leaf.path))
                raise CorruptCheckpoint(f"{paths} are stored under one name, {printable(brief(leaf.array))}")
            leaves[leaf.array] = leaf
    custom = fields.get("custom_metadata")
    metadata = {k: v if type(v) is str else json.dumps(v) for k, v in custom.items()} if type(custom) is dict else {}
    return list(leaves.values()), fields.get("store_array_data_equal_to_fill_value") is True, metadata


def _leaf(label: str, entry: Any) -> Leaf:
    try:
        keys = [(k["key"], k["key_type"]) for k in entry["key_metadata"]]
        value = entry["value_metadata"]
        kind, skipped = value["value_type"], value.get("skip_deserialize", False)
    except (KeyError, TypeError, AttributeError):
        raise CorruptCheckpoint(f"says of {printable(brief(label))} no keys or no kind") from None
    if len(keys) > MAX_PATH or any(type(k) is not str or t not in (DICT, SEQUENCE) for k, t in keys):
        raise CorruptCheckpoint(f"says of {printable(brief(label))} keys that are not understood")
    path, kinds = tuple(k for k, _ in keys), tuple(t for _, t in keys)
    other = skipped or kind in ("None", "Dict", "List", "NamedTuple", "string")
    return Leaf(path, kinds, ".".join(path), printable(brief(str(kind), 100)) if other else "")


def of_msgpack(url: str, found: Mapping[str, object]) -> list[Leaf]:
    """The leaves of a msgpack: arrays, or references to arrays that are stored beside it under their paths.

    A reference is a text, or with T5X a map for tensorstore, {"driver": ..., "kvstore": {"path": ...}}.
    """
    leaves = dict(flax.contents(url))
    specs = {path[:-2] for path in leaves if path[-2:] == ("kvstore", "path")}
    made = dict[Path, Leaf]()
    for path, leaf in leaves.items():
        spec = next((path[:i] for i in range(len(path)) if path[:i] in specs), None)
        at = path if spec is None else spec
        own = next((p for p in (at, at[1:]) if ".".join(p) in found), ())  # in T5X's file all is inside `optimizer`
        if own or spec is not None:
            made[at] = Leaf(own or at, array=".".join(own or at))
        elif isinstance(leaf, flax.Other):
            made[at] = Leaf(at, other=leaf.what)
        else:
            made[at] = Leaf(at, inline=flax.tensor("/".join(at), leaf, url))
    return list(made.values())
