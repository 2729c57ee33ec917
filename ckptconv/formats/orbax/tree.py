"""The tree of an Orbax checkpoint, whose leaves are its arrays.

    _METADATA    {"tree_metadata": {"('params', 'norm.scale')": {"key_metadata": [{"key": "params", "key_type": 2},
                 {"key": "norm.scale", "key_type": 2}], "value_metadata": {"value_type": "jax.Array", ...}}},
                 "store_array_data_equal_to_fill_value": true, "custom_metadata": {...}}
    checkpoint   older versions and T5X: Flax's msgpack, which contains small arrays itself

An array is stored under its path joined by '.', so that only the tree shows where a name with dots is split. Names here
are paths joined by '/'. Specification: orbax/checkpoint/_src/metadata/tree.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...checkpoint import Tensor
from ...errors import CorruptCheckpoint
from ...messages import brief, printable
from ...storage.files import join, names, read_all
from ...storage.json import parse_json
from .. import flax
from ..containers.msgpack import Other
from .values import inside

MAX_JSON = 2**28  # bytes
MAX_PROCESSES = 64  # whose descriptions of arrays are read; all of a run's processes have the same names
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


def random_keys(root: str) -> set[str]:
    """The arrays that were JAX's random keys, by what each process says of its arrays."""
    folder = join(root, "array_metadatas")
    found = set()
    for name in names(folder)[:MAX_PROCESSES]:
        url = inside(root, f"array_metadatas/{name}")
        try:
            rows = [row["array_metadata"] for row in parse_json(read_all(url, MAX_JSON), url)["array_metadatas"]]
            found |= {str(row["param_name"]) for row in rows if "random_key_impl" in (row.get("ext_metadata") or ())}
        except (KeyError, TypeError, AttributeError):
            raise CorruptCheckpoint("does not list arrays with their names", url=url) from None
    return found


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
