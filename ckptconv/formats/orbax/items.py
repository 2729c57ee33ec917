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
from . import arrays, locate, ocdbt
from .locate import MAX_PARTS, WIDE, Room, Value, check_apart, inside, of_folder

SLACK = 2**26
ARRAY, KEY, LETTER = 300, 80, 3  # bytes of memory for an array, and for each key and letter of its name
BLOCK = 4096  # bytes that a file takes at least
MAX_JSON = 2**28  # bytes
MAX_PATH = 100  # keys of a path
DICT, SEQUENCE = 2, 1

Path = tuple[str, ...]


class Stored(NamedTuple):
    """An array, the file of its metadata, and its chunks by their positions in the grid."""

    array: arrays.Array
    url: str
    chunks: dict[arrays.Place, Value]


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

    keys: the paths that cannot be derived from a name. room: the memory that may be taken.
    """

    room: Room
    salvage: bool
    tensors: dict[str, Tensor] = field(default_factory=dict)
    keys: dict[str, list[list[Any]]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    urls: dict[str, None] = field(default_factory=dict)

    def add(self, root: str, item: str) -> None:
        """Read the arrays of one folder; if there are several items, names begin with the item's name."""
        locate.refuse_incomplete(root)
        heads = [n for n in (locate.MANIFEST, locate.METADATA, locate.MSGPACK) if exists(join(root, n))]
        for url in (inside(root, n) for n in heads):
            self.urls[url] = None
            self.room.give(url, status.size if (status := stat(url)) else 0)
        database = locate.MANIFEST in heads
        values = ocdbt.read(root, self.room) if database else of_folder(root)
        if not database:
            self.room.give(root, sum(v.size + BLOCK for v in values.values()))
        check_apart(values)
        found = _arrays(values, self.room)
        aside = _divide(found, values)
        leaves, complete = list[Leaf](), False
        if locate.METADATA in heads:
            leaves, complete, self.metadata = of_metadata(inside(root, locate.METADATA))
        elif locate.MSGPACK in heads:
            leaves = of_msgpack(inside(root, locate.MSGPACK), found)
        lacking = [
            "/".join(leaf.path) for leaf in leaves if leaf.array not in found and not leaf.other and leaf.inline is None
        ]
        if lacking:
            what = f"{many(len(lacking), 'array')} that its tree names are not stored:\n{listing(lacking)}"
            raise CorruptCheckpoint(what, url=root)
        absent, damaged, names = self._tensors(root, item, found, leaves, complete)
        others = [f"{'/'.join(leaf.path)}: {leaf.other}" for leaf in leaves if leaf.other]
        self.note("damaged", "chunks are absent, all of which were stored", damaged)
        self.note("assumed", "chunks are absent: the fill value is read", absent)
        if database and not leaves:  # Orbax always writes a tree beside it
            self.note("assumed", f"without a {locate.METADATA}, names are divided at each dot", names)
        self.note("skipped", "leaves that are not arrays", others, tensors=False)
        self.note("unread", "files", aside, tensors=False)
        self.urls |= dict.fromkeys(v.url for stored in found.values() for v in stored.chunks.values())

    def note(self, kind: Any, what: str, names: Sequence[str], *, tensors: bool = True) -> None:
        if names:
            self.notes.append(Note(kind, what, tuple(names), tensors=tensors))

    def _tensors(
        self, root: str, item: str, found: Mapping[str, Stored], leaves: list[Leaf], complete: bool
    ) -> tuple[list[str], list[str], list[str]]:
        """Add the arrays under the names of the tree: first those that it lists, then others, then what it holds.

        complete: whether all chunks must exist. Return the names of those that lack chunks and are read with the fill
        value, of those that are damaged, and of all that are read.
        """
        absent, damaged, twice, names = (list[str]() for _ in range(4))
        left = sum(v.size for s in found.values() for v in s.chunks.values()) * FILL_RATIO + SLACK
        listed = {leaf.array: leaf for leaf in leaves if leaf.array in found}
        listed |= {n: Leaf(tuple(n.split(".")), array=n) for n in found if n not in listed}
        for leaf in (*listed.values(), *(leaf for leaf in leaves if leaf.inline is not None)):
            path = (item, *leaf.path) if item else leaf.path
            name, missing = "/".join(path), 0
            if leaf.inline is not None:
                tensor = leaf.inline.renamed(name)
            else:
                array, url, chunks = found[leaf.array]
                with Located(url, name):
                    tensor, missing = arrays.tensor(array, chunks, name, self.room)
                    if missing and complete and not self.salvage:
                        raise CorruptCheckpoint("lacks chunks, all of which were stored")
            left -= missing * tensor.dtype.itemsize
            if left < 0:
                raise UnsafeCheckpoint("its chunks are absent, and its shapes claim far more than is stored", url=root)
            if missing:
                (damaged if complete else absent).append(name)
                if complete:
                    continue
            if name in self.tensors:
                twice.append(name)
            self.tensors[name] = tensor
            names.append(name)
            if SEQUENCE in leaf.kinds or any("/" in key for key in leaf.path):
                kinds = (*(DICT,) * (len(path) - len(leaf.kinds)), *leaf.kinds)
                self.keys[name] = [[key, kind] for key, kind in zip(path, kinds, strict=True)]
        if twice:
            raise NameCollision(f"names are equal because a key contains '/':\n{listing(twice)}", url=root)
        return absent, damaged, names


def read(place: locate.Place, how: Reading) -> Checkpoint:
    """Read all items that were found."""
    items = Items(Room(next(iter(place.items.values()))), how.salvage)
    for name, root in place.items.items():
        items.add(root, name)
    roles = training.of_names(items.tensors)  # of all items: one may hold the model, and another the optimizer
    tensors = items.tensors | {n: replace(items.tensors[n], role=role) for n, role in roles.items()}
    if place.step:
        step = printable(brief(place.step))
        items.notes.append(Note("assumed", f"of the steps in the folder the newest, {step}, is read"))
    items.note("unread", "newer steps, which are not finished", place.passed, tensors=False)
    items.note("assumed", "the folders are read as items of one checkpoint", tuple(place.items) if place.loose else ())
    items.note("unread", "items that hold no arrays", place.others, tensors=False)
    return Checkpoint(
        tensors, items.metadata if len(place.items) == 1 else {}, format="orbax", urls=tuple(items.urls),
        notes=tuple(items.notes), details={"keys": items.keys} if items.keys else {},
    )  # fmt: skip


def _arrays(values: Mapping[str, Value], room: Room) -> dict[str, Stored]:
    """The arrays by name, from the metadata among the keys; groups are left out."""
    out: dict[str, Stored] = {}
    for key, value in values.items():
        name, _, last = key.rpartition("/")
        if last not in (locate.V2, locate.V3):
            continue
        keys, wide = name.count(".") + 1, 1 if name.isascii() else WIDE
        room.take(ARRAY + KEY * keys * (1 + ("/" in name)) + LETTER * wide * len(name), "arrays")
        with Located(value.url, name):
            array = arrays.parse(value.read(arrays.MAX_JSON), last, value.url)
            if array is None:
                continue
            if not name:
                raise CorruptCheckpoint("its root is one array, which has no name: only named arrays are read")
            if name in out:
                raise CorruptCheckpoint("has metadata of zarr 2 and of zarr 3")
        out[name] = Stored(array, value.url, {})
    return out


def _divide(found: Mapping[str, Stored], values: Mapping[str, Value]) -> list[str]:
    """Give each array its chunks; return the keys outside of arrays. An array may have no other keys."""
    known = (*locate.ASIDE, locate.MSGPACK, ".zgroup", ".zattrs", ".zmetadata", locate.V3)
    aside = []
    for key, value in values.items():
        name = key
        if key.count("/") > MAX_PARTS + MAX_AXES:
            raise UnsafeCheckpoint(f"the key {printable(brief(key))} has {key.count('/') + 1} parts", url=value.url)
        while name and name not in found:
            name = name.rpartition("/")[0]
        rest = key[len(name) + 1 :]
        if not name:
            aside += [key] if key.split("/")[0] not in known else []
        elif rest in (locate.V2, locate.V3, ".zattrs"):
            continue
        elif (place := found[name].array.place(rest)) is not None:
            found[name].chunks[place] = value
        else:
            what = f"{printable(brief(rest))} is not one of its chunks in the grid {list(found[name].array.grid)}"
            raise CorruptCheckpoint(what, url=value.url, tensor=name)
    return aside


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
