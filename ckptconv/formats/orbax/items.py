"""The items of an Orbax checkpoint: their arrays, chunks and trees, read into one checkpoint.

Chunks that are stored as they are are spans; others are unpacked when they are read (arrays.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Note, Tensor, training
from ...errors import CorruptCheckpoint, NameCollision, UnsafeCheckpoint
from ...messages import brief, listing, many, printable
from ...moves.part import FILL_RATIO, MAX_AXES
from ...storage.files import exists, join, read_all, stat
from ...storage.json import parse_json
from .. import flax
from ..flax import Other
from ..table import Reading
from . import arrays, locate, ocdbt
from .arrays import Array
from .locate import MAX_PARTS, WIDE, Room, Value, check_apart, inside, of_folder

SLACK = 2**26
ARRAY, KEY, LETTER = 300, 80, 3  # bytes of memory for an array, and for each key and letter of its name
BLOCK = 4096  # bytes that a file takes at least


def read(place: locate.Place, how: Reading) -> Checkpoint:
    """Read all items that were found."""
    room = Room(next(iter(place.items.values())))
    items = [_item(at, name, how, room) for name, at in place.items.items()]
    tensors = {n: t for one in items for n, t in one.items()}
    roles = training.of_names(tensors)  # of all items: one may hold the model, and another the optimizer
    tensors |= {n: replace(tensors[n], role=role) for n, role in roles.items()}
    notes = [note for one in items for note in one.notes]
    if place.step:
        notes.append(Note("assumed", f"of the steps in the folder the newest, {printable(brief(place.step))}, is read"))
    if place.passed:
        notes.append(Note("unread", "newer steps, which are not finished", place.passed, tensors=False))
    if place.loose:
        notes.append(Note("assumed", "the folders are read as items of one checkpoint", tuple(place.items)))
    if place.others:
        notes.append(Note("unread", "items that hold no arrays", place.others, tensors=False))
    keys = {n: k for one in items for n, k in one.details["keys"].items()}
    urls = tuple(dict.fromkeys(u for one in items for u in one.urls))
    metadata = items[0].metadata if len(items) == 1 else {}
    return Checkpoint(tensors, metadata, format="orbax", urls=urls, notes=tuple(notes),
                      details={"keys": keys} if keys else {})  # fmt: skip


def _item(root: str, item: str, how: Reading, room: Room) -> Checkpoint:
    """The arrays of one folder; if there are several items, names begin with the item's name."""
    locate.refuse_incomplete(root)
    there = [n for n in (locate.MANIFEST, locate.METADATA, locate.MSGPACK) if exists(join(root, n))]
    heads = [inside(root, n) for n in there]
    for url in heads:
        room.give(url, status.size if (status := stat(url)) else 0)
    database = locate.MANIFEST in there
    values = ocdbt.read(root, room) if database else of_folder(root)
    if not database:
        room.give(root, sum(v.size + BLOCK for v in values.values()))
    check_apart(values)
    found = _arrays(values, room)
    chunks, aside = _chunks(found, values)
    tree = Tree({}, {}, False, {})
    if locate.METADATA in there:
        tree = of_metadata(inside(root, locate.METADATA))
    elif locate.MSGPACK in there:
        tree = of_msgpack(inside(root, locate.MSGPACK), found)
    lacking = ["/".join(leaf.path) for name, leaf in tree.leaves.items() if not leaf.other and name not in found]
    if lacking:
        what = f"{many(len(lacking), 'array')} that its tree names are not stored:\n{listing(lacking)}"
        raise CorruptCheckpoint(what, url=root)
    made = _tensors(root, item, found, chunks, tree, how.salvage, room)
    skipped = tuple(f"{'/'.join(leaf.path)}: {leaf.other}" for leaf in tree.leaves.values() if leaf.other)
    dotted = tuple(made.tensors) if database and not tree.leaves else ()  # Orbax always writes a tree beside it
    notes = (
        Note("damaged", "chunks are absent, all of which were stored", tuple(made.damaged)),
        Note("assumed", "chunks are absent: the fill value is read", tuple(made.absent)),
        Note("assumed", f"without a {locate.METADATA}, names are divided at each dot", dotted),
        Note("skipped", "leaves that are not arrays", skipped, tensors=False),
        Note("unread", "files", tuple(aside), tensors=False),
    )  # fmt: skip
    urls = (*heads, *dict.fromkeys(v.url for name in found for v in chunks[name].values()))
    return Checkpoint(made.tensors, tree.metadata, format="orbax", urls=urls,
                      notes=tuple(n for n in notes if n.names), details={"keys": made.keys})  # fmt: skip


class Made(NamedTuple):
    """Tensors by name, the paths that cannot be derived from a name, and the tensors that lack chunks: they are read
    with the fill value, or damaged.
    """

    tensors: dict[str, Tensor]
    keys: dict[str, list[list[Any]]]
    absent: list[str]
    damaged: list[str]


def _tensors(
    root: str, item: str, found: Mapping[str, Array], chunks: Mapping[str, Mapping[arrays.Place, Value]], tree: Tree,
    salvage: bool, room: Room,
) -> Made:  # fmt: skip
    """The arrays under the names of the tree: first those that it lists, in its order."""
    made, twice = Made({}, {}, [], []), list[str]()
    stored = sum(v.size for values in chunks.values() for v in values.values()) * FILL_RATIO + SLACK
    leaves = {n: leaf for n, leaf in tree.leaves.items() if n in found}
    leaves |= {n: Leaf(tuple(n.split(".")), (), "") for n in found if n not in leaves}
    for name, leaf in (leaves | {path: Leaf(path, (), "") for path in tree.inline}).items():
        path = (item, *leaf.path) if item else leaf.path
        full, absent = "/".join(path), 0
        if isinstance(name, tuple):
            tensor = tree.inline[name].renamed(full)
        else:
            tensor, absent = arrays.tensor(found[name], chunks[name], full, room)
        stored -= absent * tensor.dtype.itemsize
        if stored < 0:
            raise UnsafeCheckpoint("its chunks are absent, and its shapes claim far more than is stored", url=root)
        if absent and tree.complete:
            if not salvage:
                raise CorruptCheckpoint("lacks chunks, all of which were stored", url=found[str(name)].url, tensor=full)
            made.damaged.append(full)
            continue
        if full in made.tensors:
            twice.append(full)
        made.tensors[full] = tensor
        if absent:
            made.absent.append(full)
        if SEQUENCE in leaf.kinds or any("/" in key for key in leaf.path):
            kinds = (*(DICT,) * (len(path) - len(leaf.kinds)), *leaf.kinds)
            made.keys[full] = [[key, kind] for key, kind in zip(path, kinds, strict=True)]
    if twice:
        raise NameCollision(f"names are equal because a key contains '/':\n{listing(twice)}", url=root)
    return made


def _arrays(values: Mapping[str, Value], room: Room) -> dict[str, Array]:
    """The arrays by name, from the metadata among the keys; groups are left out."""
    out: dict[str, Array] = {}
    for key, value in values.items():
        name, _, last = key.rpartition("/")
        if last not in (locate.V2, locate.V3):
            continue
        keys, wide = name.count(".") + 1, 1 if name.isascii() else WIDE
        room.take(ARRAY + KEY * keys * (1 + ("/" in name)) + LETTER * wide * len(name), "arrays")
        array = arrays.parse(name, value.read(arrays.MAX_JSON), last, value.url)
        if array is None:
            continue
        if not name:
            raise CorruptCheckpoint(
                "its root is one array, which has no name: only named arrays are read", url=value.url
            )
        if name in out:
            raise CorruptCheckpoint("has metadata of zarr 2 and of zarr 3", url=value.url, tensor=name)
        out[name] = array
    return out


def _chunks(
    found: Mapping[str, Array], values: Mapping[str, Value]
) -> tuple[dict[str, dict[arrays.Place, Value]], list[str]]:
    """The chunks of each array by position, and the keys outside of arrays; an array may have no other keys."""
    out: dict[str, dict[arrays.Place, Value]] = {name: {} for name in found}
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
        elif (place := found[name].place(rest)) is not None:
            out[name][place] = value
        else:
            what = f"{printable(brief(rest))} is not one of its chunks in the grid {list(found[name].grid)}"
            raise CorruptCheckpoint(what, url=value.url, tensor=name)
    return out, aside


# --- the tree of an Orbax checkpoint, whose leaves are its arrays ---------------------------------------------------
#
#     _METADATA    {"tree_metadata": {"('params', 'norm.scale')": {"key_metadata": [{"key": "params", "key_type": 2},
#                  {"key": "norm.scale", "key_type": 2}], "value_metadata": {"value_type": "jax.Array", ...}}},
#                  "store_array_data_equal_to_fill_value": true, "custom_metadata": {...}}
#     checkpoint   older versions and T5X: Flax's msgpack, which contains small arrays itself
#
# An array is stored under its path joined by '.', so that only the tree shows where a name with dots is split. Names
# here are paths joined by '/'. Specification: orbax/checkpoint/_src/metadata/tree.py.


MAX_JSON = 2**28  # bytes
MAX_PATH = 100  # keys of a path
DICT, SEQUENCE = 2, 1

Path = tuple[str, ...]


class Leaf(NamedTuple):
    """A leaf: its path, the kind of each key, and a description if it is not an array ('' if it is)."""

    path: Path
    kinds: tuple[int, ...]
    other: str


class Tree(NamedTuple):
    """The leaves by the names of their arrays; the arrays in the msgpack; whether all chunks must exist; metadata."""

    leaves: dict[str, Leaf]
    inline: dict[Path, Tensor]
    complete: bool
    metadata: dict[str, str]


def of_metadata(url: str) -> Tree:
    """The tree of a `_METADATA`."""
    said = parse_json(read_all(url, MAX_JSON), url)
    entries = said.get("tree_metadata") if type(said) is dict else None
    if type(entries) is not dict:
        raise CorruptCheckpoint("has no tree_metadata", url=url)
    leaves: dict[str, Leaf] = {}
    for label, entry in entries.items():
        leaf = _leaf(label, entry, url)
        name = ".".join(leaf.path)
        if name in leaves:
            paths = " and ".join(printable(brief(repr(p))) for p in (leaves[name].path, leaf.path))
            raise CorruptCheckpoint(f"{paths} are stored under one name, {printable(brief(name))}", url=url)
        leaves[name] = leaf
    custom = said.get("custom_metadata")
    metadata = {k: v if type(v) is str else json.dumps(v) for k, v in custom.items()} if type(custom) is dict else {}
    return Tree(leaves, {}, said.get("store_array_data_equal_to_fill_value") is True, metadata)


def _leaf(label: str, entry: Any, url: str) -> Leaf:
    try:
        keys = [(k["key"], k["key_type"]) for k in entry["key_metadata"]]
        value = entry["value_metadata"]
        kind, skipped = value["value_type"], value.get("skip_deserialize", False)
    except (KeyError, TypeError, AttributeError):
        raise CorruptCheckpoint(f"says of {printable(brief(label))} no keys or no kind", url=url) from None
    if len(keys) > MAX_PATH or any(type(k) is not str or t not in (DICT, SEQUENCE) for k, t in keys):
        raise CorruptCheckpoint(f"says of {printable(brief(label))} keys that are not understood", url=url)
    other = (
        printable(brief(str(kind), 100)) if skipped or kind in ("None", "Dict", "List", "NamedTuple", "string") else ""
    )
    return Leaf(tuple(k for k, _ in keys), tuple(t for _, t in keys), other)


def of_msgpack(url: str, arrays: Mapping[str, object]) -> Tree:
    """The tree of a msgpack: its leaves are arrays, or refer to an array that is stored beside it under their path.

    Such a reference is a text, or with T5X a map for tensorstore, {"driver": ..., "kvstore": {"path": ...}}.
    """
    found = list(flax.contents(url))
    specs = {path[:-2] for path, _ in found if path[-2:] == ("kvstore", "path")}
    leaves, inline = dict[str, Leaf](), dict[Path, Tensor]()
    for path, leaf in found:
        spec = next((path[:i] for i in range(len(path)) if path[:i] in specs), None)
        at = path if spec is None else spec
        name = next((n for n in (".".join(at), ".".join(at[1:])) if n in arrays), "")
        if name:
            at = at if name == ".".join(at) else at[1:]  # in T5X's file, everything is inside `optimizer`
            leaves[name] = Leaf(at, (DICT,) * len(at), "")
        elif isinstance(leaf, Other) or spec is not None:
            leaves[".".join(at)] = Leaf(at, (DICT,) * len(at), "" if spec is not None else leaf.what)
        else:
            inline[at] = flax.tensor("/".join(at), leaf, url)
    return Tree(leaves, inline, False, {})
