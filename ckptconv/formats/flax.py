"""Flax's msgpack: nested maps whose leaves are arrays, each an extension that contains a small msgpack.

    82                                    map of 2
      a6 "params" 81 a1 "k"               map of 1, key
        c7 13 01                          extension of 0x13 bytes, type 1: array (3: NumPy scalar; 2: complex)
          93 92 01 02  a8 "bfloat16"      [shape, dtype name,
          c4 04 80 3f 80 3f                elements in C order]
      a4 "step" ...

Names are joined by '/'. Arrays of more than 2^30 bytes are divided into chunks: {"__msgpack_chunked_array__": true,
"shape": {"0": n, ...}, "chunks": {"0": array, ...}}. Elements are located but not read (msgpack.py).
Specification: flax/serialization.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, Note, Tensor, contiguous, training
from ..dtypes import DTYPES
from ..errors import CorruptCheckpoint, NameCollision, Unrepresentable, UnsafeCheckpoint
from ..messages import listing
from ..moves.part import Held, Part, Span, checked_count
from ..output.destination import OutputFile
from ..storage.files import Reader, Seen, split
from . import carried
from .containers.msgpack import CHUNKED, MAX_DEPTH, MAX_TEXT, ROWS, Array, Other, Packed, Walker, max_count
from .placement import Patch, Placement, Slot, refuse_shards, refuse_unheld
from .reading import Reading

SUFFIX = ".msgpack"
MAX_NUMBERS = 100_000  # each is a tensor of its own, which takes a kilobyte; a vocabulary or a history fits
MAX_GROUPS = MAX_DEPTH - 4  # in one name; an array in chunks takes four levels more
NAME_RATIO = 64  # characters of names per byte of the file
_KEY = re.compile(rb"([\x80-\x8f]|\xde..|\xdf....)([\xa0-\xbf]|\xd9|\xda|\xdb)", re.DOTALL)
_ARRAY = re.compile(rb"(\xc7.|\xc8..|\xc9....|[\xd4-\xd8])[\1\3]\x93([\x90-\x9f]|\xdc)", re.DOTALL)


def sniff(seen: Seen) -> int:
    named = seen.base.endswith(SUFFIX) and not seen.is_dir
    if not _KEY.match(seen.head):
        return int(named)
    return 3 if _ARRAY.search(seen.head) else 2 * named


def open(url: str, how: Reading) -> Checkpoint:
    tensors: dict[str, Tensor] = {}
    numbers, skipped, collisions = [], [], []
    for path, leaf in contents(url):
        name = "/".join(path)
        if isinstance(leaf, Other):
            skipped.append(f"{name}: {leaf.what}")
            continue
        if name in tensors:
            collisions.append(name)
        if not isinstance(leaf, (Array, dict)):
            numbers.append(name)
        tensors[name] = tensor(name, leaf, url)
    if collisions:
        raise NameCollision(f"names are equal because a key contains '/':\n{listing(collisions)}", url=url)
    notes = (
        Note("assumed", "Python's numbers, read as tensors without axes", tuple(numbers)),
        Note("skipped", "values that are not tensors", tuple(skipped), tensors=False),
    )
    tensors |= {n: replace(tensors[n], role=role) for n, role in training.of_names(tensors).items()}
    return Checkpoint(tensors, format="flax", urls=(url,), notes=tuple(n for n in notes if n.names))


def contents(url: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of the maps in a file, with the keys that lead to each: arrays, numbers, or `Other`."""
    with Reader(url) as f:
        walker = Walker(f)
        root = walker.value(0)
        if walker.at != f.size:
            raise CorruptCheckpoint(f"{f.size - walker.at} bytes follow the end at byte {walker.at}", url=url)
    room, most = NAME_RATIO * f.size + 2**20, MAX_NUMBERS + f.size // 1000
    if _numbers(root) > most:  # checked before the first becomes a tensor
        raise UnsafeCheckpoint(f"holds more than {most} numbers outside of arrays", url=url)
    for path, leaf in _leaves((), root):
        room -= sum(map(len, path)) + len(path) - 1
        if room < 0:  # the keys of outer maps prefix all names inside them
            raise UnsafeCheckpoint("the names of its maps are repeated without bound", url=url)
        yield path, leaf


def _numbers(node: Any) -> int:
    """Count the leaves that are bare numbers."""
    if isinstance(node, dict):
        return 0 if CHUNKED in node else sum(map(_numbers, node.values()))
    if isinstance(node, list):
        return sum(map(_numbers, node))
    return not isinstance(node, (Array, Other))


def _leaves(path: tuple[str, ...], node: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, list):
        node = {str(i): item for i, item in enumerate(node)}
    if not isinstance(node, dict) or CHUNKED in node:
        yield path, node
    elif not node:
        yield path, Other("an empty container")
    else:
        for key, item in node.items():
            yield from _leaves((*path, key), item)


def tensor(name: str, leaf: Any, url: str) -> Tensor:
    """The tensor of a leaf: an array, one in chunks, or a number."""
    if isinstance(leaf, Array):
        return contiguous(name, leaf.kind, leaf.shape, Span(url, leaf.start, leaf.size))
    if isinstance(leaf, dict):
        return _joined(name, leaf, url)
    import numpy as np

    try:
        array = np.array(leaf, {bool: "?", int: "i8", float: "f8", complex: "c16"}[type(leaf)])
    except OverflowError:
        array = np.array(leaf, "u8")
    return contiguous(name, DTYPES[array.dtype.name], (), Held(array))


def _joined(name: str, node: Mapping[str, Any], url: str) -> Tensor:
    """Join a chunked array: its chunks, flattened and in order, are the parts of the tensor."""
    try:
        shape = tuple(node["shape"][str(i)] for i in range(len(node["shape"])))
        chunks = [node["chunks"][str(i)] for i in range(len(node["chunks"]))]
    except (KeyError, TypeError):
        raise CorruptCheckpoint("its chunks or shape are not numbered 0, 1, ...", url=url, tensor=name) from None
    if not chunks or not all(type(n) is int for n in shape) or not all(type(c) is Array for c in chunks):
        raise CorruptCheckpoint("its chunks are not arrays, or its shape is not numbers", url=url, tensor=name)
    kind, at, parts = chunks[0].kind, 0, []
    for c in chunks:
        count = checked_count(c.shape)
        parts.append(Part(Span(url, c.start, c.size), kind, (count,), 0, (1,), at, (1,)))
        at += count
    if at != checked_count(shape, url=url, tensor=name) or any(c.kind != kind for c in chunks):
        raise CorruptCheckpoint(f"its chunks do not make up the shape {list(shape)}", url=url, tensor=name)
    return Tensor(name, kind, shape, tuple(parts))


# --- writing ----------------------------------------------------------------------------------------------------


def writer(url: str, max_shard_size: int | None = None) -> FlaxWriter:
    return FlaxWriter(url, max_shard_size)


class FlaxWriter:
    """One msgpack of maps nested by '/', groups in the order of their first tensor; large arrays in chunks."""

    def __init__(self, url: str, max_shard_size: int | None = None) -> None:
        self.file = split(url)[1]
        self.limit = max_shard_size

    def cannot_hold(self, tensor: Tensor) -> str:
        if tensor.dtype.name not in ROWS:
            return f"Flax has no dtype {tensor.dtype}"
        if CHUNKED in tensor.name.split("/"):
            return f"Flax reserves the key {CHUNKED} for arrays in chunks"
        try:
            long = len(tensor.name.encode()) > MAX_TEXT
        except UnicodeEncodeError:
            return "the name is not valid Unicode"
        if tensor.name.count("/") > MAX_GROUPS:
            return f"its name has more than {MAX_GROUPS} groups"
        return "the name is too long" if long else ""

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "Flax")
        refuse_shards(checkpoint, self.limit, "msgpack")
        out = Packed()
        out.map(_nested(checkpoint.tensors.values()))
        out.flush()
        slots = {name: self._slot(t, *out.runs[name]) for name, t in checkpoint.items()}
        patches = [Patch(self.file, start, raw) for start, raw in out.patches]
        notes = carried.lost(checkpoint.metadata, "Flax")
        return Placement([OutputFile(self.file, out.at)], slots, patches, notes=notes)

    def _slot(self, t: Tensor, start: int, *more: int) -> Slot:
        step = max_count(t.dtype) * t.dtype.itemsize
        return Slot(self.file, start, t.nbytes, cuts=tuple((i * step, at) for i, at in enumerate(more, 1)))

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return ()


def _nested(tensors: Any) -> dict[str, Any]:
    root: dict[str, Any] = {}
    bad = []
    for t in tensors:
        *groups, last = t.name.split("/")
        node: Any = root
        for group in groups:
            node = node.setdefault(group, {}) if isinstance(node, dict) else node
        if not isinstance(node, dict) or last in node:
            bad.append(t.name)
        else:
            node[last] = t
    if bad:
        raise Unrepresentable(
            "a name cannot be both a tensor and a group; leave some out or change names, as a conversion does "
            f"with weights_only=True (slots are below their weights), exclude= and rename=:\n{listing(bad)}"
        )
    return root
