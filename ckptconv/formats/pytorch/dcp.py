"""torch.distributed.checkpoint: a folder of files, each a row of torch archives, and a pickle that says what is where.

    .metadata       pickle of Metadata(state_dict_metadata = {"model.w": TensorStorageMetadata(size, chunks), ...},
                    storage_data = {MetadataIndex("model.w", (0, 0)): _StorageInfo("__0_0.distcp", 0, 1577), ...},
                    planner_data = {"model.w": ("model", "w"), ...})
    __0_0.distcp    bytes 0 to 1577: a zip as archive.py reads it, whose object is one chunk of one tensor; and so on

A tensor's chunks must tile it. What is no tensor is stored as an object, also a tuple of tensors, which are called
as in other pickles: pair.0, pair.1. Specification: torch/distributed/checkpoint/metadata.py, filesystem.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Role, Tensor
from ...errors import CorruptCheckpoint
from ...messages import brief, printable
from ...moves.part import MAX_AXES, Part, c_strides, checked_count
from ...storage.files import Reader, Seen, exists, is_dir, join, read_all, sibling
from ...storage.ranges import Slice
from ..table import DISTRIBUTED, Reading
from ..tiling import Tile, check_tiling
from .archive import enter
from .flatten import Made, jsonable, unwrap
from .globals import TORCH, record
from .pickle import load
from .tensors import TorchType, View
from .values import Inert, shown
from .walk import OPTIMIZER, TENSORS, Leaf, Walk, is_plain

SUFFIX = ".distcp"
MAX_METADATA = 2**31 - 1
# Slots by their names where all keys are joined in one: Megatron's, or those of any torch optimizer.
FLAT_SLOT = re.compile(
    rf"(?:{OPTIMIZER.pattern})[^.]*\.(?:(?:state|param_groups|fp(?:16|32)_\w+)(?:\.|$)"
    r"|(?:.*\.)?(?:(?:max_)?exp_avg(?:_sq)?|momentum_buffer)(?:\.|$))"
)
OPEN = 64  # files of a thousand processes are not all open at a time

Chunks = tuple[tuple[int, ...], tuple[Part, ...]]  # a tensor's shape, and a part for each of its chunks

_CLASSES = {
    "checkpoint.metadata": (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING", "ChunkStorageMetadata",
        "BytesStorageMetadata", "MetadataIndex", "StorageMeta",
    ),
    "checkpoint.filesystem": ("_StorageInfo",),
    "_shard.sharded_tensor.metadata": ("TensorProperties", "MEM_FORMAT_ENCODING"),  # by earlier versions of torch
}  # fmt: skip
ALLOWED = TORCH | {
    (f"torch.distributed.{module}", name): record(f"{module.rpartition('.')[2]}.{name}")
    for module, names in _CLASSES.items()
    for name in names
}


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if DISTRIBUTED in seen.files and any(n.endswith(SUFFIX) for n in seen.files) else 0
    if seen.base.endswith(SUFFIX) and exists(sibling(seen.url, DISTRIBUTED)):
        return 4
    return 3 if seen.base == DISTRIBUTED and b"torch.distributed.checkpoint.metadata" in seen.head else 0


def open(url: str, how: Reading) -> Checkpoint:
    inside = join(url, ".") if is_dir(url) else url if url.endswith(SUFFIX) else ""
    path = sibling(inside, DISTRIBUTED) if inside else url
    root = load(read_all(path, MAX_METADATA), allowed=ALLOWED, opaque=how.opaque, url=path)
    described, stored = _get(root, "state_dict_metadata", dict, path), _get(root, "storage_data", dict, path)
    planned = root.state.get("planner_data")
    places = _places(stored, path)
    walked, made = Walk(0, path), Made(path, how)
    leaves: list[Leaf] = []
    chunks: list[Chunks | None] = []  # of the tensors that are described; None for a leaf of an object
    with ExitStack() as files:
        folder = Folder(path, how.opaque, files)
        for name, about in described.items():
            at = _described(name, planned, described, path)
            role = _role(name, planned, at)
            if type(about) is Inert and "TensorStorageMetadata" in about.path:
                found, first = folder.tensor(name, about, places)
                leaves.append(Leaf(name, first, role, at[0]))
                chunks.append(found)
                continue
            place = places.get((name, ()))
            if place and place not in folder.loaded:
                walked.allow(place.size)
            value = folder.load(name, place)
            held = [] if is_plain(value) else list(walked.leaves(value, name, role, at[0], depth=1))
            if any(type(leaf.value) in TENSORS for leaf in held):
                leaves += held
                chunks += [None] * len(held)
            else:
                made.values[name] = jsonable(value) if type(value) in (int, float, bool, str) else type(value).__name__
    renamed, notes, details = unwrap(leaves)
    for leaf, whole in zip(renamed, chunks, strict=True):  # unwrap keeps the order
        if whole is None:
            made.add(leaf)
        else:
            shape, parts = whole
            made.put(Tensor(leaf.name, parts[0].dtype, shape, parts, leaf.role))
    details |= made.details()
    notes += (*walked.notes(), *made.notes())
    urls = (path, *folder.opened)
    return Checkpoint(made.tensors, {}, made.ties(), "dcp", urls, tuple(notes), details)


def _described(name: Any, planned: Any, described: Mapping[Any, Any], url: str) -> tuple[str, ...]:
    """The keys that lead to what is described as `name`, in what was saved."""
    if type(name) is not str:
        raise CorruptCheckpoint(f"describes a tensor called {shown(name)}, which is not text", url=url)
    at = _path(planned.get(name) if type(planned) is dict else None, name, url)
    if (to := ".".join(at)) != name and to in described:
        raise CorruptCheckpoint(f"was saved as {printable(brief(to))}, which is another's name", url=url, tensor=name)
    return at


def _role(name: str, planned: Any, keys: tuple[str, ...]) -> Role:
    """What is in an optimizer's entry; a weight that was saved by itself is called by one key, with all its dots."""
    keys = keys if type(planned) is dict and name in planned else tuple(name.split("."))
    if not (FLAT_SLOT.match(name) if len(keys) == 1 else OPTIMIZER.match(keys[0])):
        return ""
    return "step" if name.endswith(".step") else "slot"


def _get(thing: Any, name: str, kind: type, url: str) -> Any:
    """An attribute of a record, which must be of one type."""
    state = thing.state if type(thing) is Inert else None
    value = state.get(name) if type(state) is dict else None
    if type(value) is not kind:
        raise CorruptCheckpoint(f"{shown(thing)} has no proper {name}", url=url)
    return value


def _numbers(thing: Any, name: str, url: str) -> tuple[int, ...]:
    """An attribute that must be a tuple of whole numbers."""
    value: tuple[int, ...] = _get(thing, name, tuple, url)
    if len(value) > MAX_AXES or any(type(n) is not int for n in value):
        raise CorruptCheckpoint(f"{shown(thing)} has the {name} {shown(value)}, not whole numbers", url=url)
    return value


def _path(planned: Any, name: str, url: str) -> tuple[str, ...]:
    """The keys that lead to a value in what was saved, which are its name if the planner did not note them."""
    if type(planned) is not tuple or not planned:
        return (name,)
    if any(type(key) not in (str, int) for key in planned):
        raise CorruptCheckpoint(f"is found by {shown(planned)}, not by text and numbers", url=url, tensor=name)
    return tuple(map(str, planned))


def _kind(about: Inert, url: str) -> str:
    """The dtype to which torch casts a tensor's chunks; '' if it is not said."""
    properties = about.state.get("properties")
    state = properties.state if type(properties) is Inert else None
    kind = state[0] if type(state) is tuple and state else None
    if properties is not None and type(kind) is not TorchType:
        raise CorruptCheckpoint(f"{shown(about)} has no proper properties", url=url)
    return kind.name if kind else ""


class Place(NamedTuple):
    file: str
    start: int
    size: int


def _places(stored: dict[Any, Any], url: str) -> dict[tuple[str, tuple[int, ...]], Place]:
    """Where each chunk lies, by name and offset in the tensor (an object: no offset)."""
    out = {}
    for index, info in stored.items():
        name = _get(index, "fqn", str, url)
        offset = () if index.state.get("offset") is None else _numbers(index, "offset", url)
        file, start, size = (
            _get(info, n, k, url) for n, k in (("relative_path", str), ("offset", int), ("length", int))
        )
        if info.state.get("transform_descriptors"):
            raise CorruptCheckpoint(
                "is stored through a transform (compressed?), which is not read", url=url, tensor=name
            )
        out[name, offset] = Place(file, start, size)
    ranges = sorted(set(out.values()))
    for one, other in pairwise(ranges):  # else one file could be read once for each name
        if one.file == other.file and other.start < one.start + one.size:
            raise CorruptCheckpoint(
                f"two things are stored at byte {other.start} of {printable(brief(one.file))}", url=url
            )
    return out


@dataclass
class Folder:
    """The data files, a few of them open at a time."""

    url: str
    opaque: bool
    stack: ExitStack
    files: dict[str, Reader] = field(default_factory=dict)
    loaded: dict[Place, Any] = field(default_factory=dict)
    opened: dict[str, None] = field(default_factory=dict)

    def load(self, name: str, place: Place | None) -> Any:
        """The object of the archive at one place."""
        if place is None:
            raise CorruptCheckpoint("a chunk of it is described but not stored", url=self.url, tensor=name)
        if place in self.loaded:
            return self.loaded[place]
        f = self.files.get(place.file)
        if f is None:
            if len(self.files) >= OPEN:
                self.files.pop(next(iter(self.files))).close()
            f = self.files[place.file] = self.stack.enter_context(Reader(sibling(self.url, place.file)))
            self.opened[f.url] = None
        if place.start < 0 or place.size < 0 or place.start + place.size > f.size:
            raise CorruptCheckpoint(
                f"lies at bytes {place.start} to {place.start + place.size} of {f.size} (truncated?)",
                url=f.url, tensor=name,
            )  # fmt: skip
        window = Slice(f, place.start, place.size)
        archive = enter(window, place.start)
        raw = archive.pickle(window, "data.pkl")
        made = load(raw, allowed=TORCH, persistent_load=archive.storage("data"), opaque=self.opaque, url=f.url)
        self.loaded[place] = made
        return made

    def tensor(self, name: str, about: Inert, places: dict[tuple[str, tuple[int, ...]], Place]) -> tuple[Chunks, View]:
        """A tensor's shape and parts, one for each chunk; and the view of its first chunk."""
        shape = _numbers(about, "size", self.url)
        total, steps = checked_count(shape, url=self.url, tensor=name), c_strides(shape)
        parts: list[Part] = []
        boxes, view, kind = [], None, _kind(about, self.url)
        for chunk in _get(about, "chunks", list, self.url):
            at, size = _numbers(chunk, "offsets", self.url), _numbers(chunk, "sizes", self.url)
            if {len(at), len(size)} != {len(shape)} or min(at, default=0) < 0:
                what = f"a chunk at {list(at)} of size {list(size)} is not part of it"
                raise CorruptCheckpoint(what, url=self.url, tensor=name)
            view = self.load(name, places.get((name, at)))
            if type(view) is not View or view.row is None or view.storage.data is None:
                raise CorruptCheckpoint("a chunk of it is not a plain tensor", url=self.url, tensor=name)
            if view.shape != size or view.torch != (kind := kind or view.torch):
                what = f"is {view.torch}{list(view.shape)}, not as described"
                raise CorruptCheckpoint(f"its chunk at {list(at)} {what}", url=self.url, tensor=name)
            boxes.append(Tile(at, size))
            if total:
                start = sum(a * b for a, b in zip(at, steps, strict=True))
                parts.append(Part(view.storage.data, view.row, size, view.offset, view.strides, start, steps, view.ops))
        check_tiling(name, shape, boxes, self.url)
        if view is None:
            raise CorruptCheckpoint("has no chunks", url=self.url, tensor=name)
        if not total:
            parts = [Part(view.storage.data, view.row, shape, 0, steps, 0, steps)]
        return (shape, tuple(parts)), view
