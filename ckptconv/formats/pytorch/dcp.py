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
from collections.abc import Callable, Mapping, Set
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Role, Tensor
from ...errors import CorruptCheckpoint
from ...messages import brief, printable
from ...moves.part import MAX_AXES, checked_count
from ...storage.files import Reader, Seen, exists, is_dir, join, read_all, sibling
from ...storage.ranges import Slice
from ..table import DISTRIBUTED, Reading
from ..tiling import joined
from .archive import PICKLE, enter
from .flatten import gather, stored
from .pickle import load
from .tensors import TORCH, TorchType, View
from .values import SCALARS, Inert, record, shown
from .walk import OPTIMIZER, TENSORS, Walk, is_plain

SUFFIX = ".distcp"
MAX_METADATA = 2**31 - 1
# Slots by their names where all keys are joined in one: Megatron's, or those of any torch optimizer.
FLAT_SLOT = re.compile(
    rf"(?:{OPTIMIZER.pattern})[^.]*\.(?:(?:state|param_groups|fp(?:16|32)_\w+)(?:\.|$)"
    r"|(?:.*\.)?(?:(?:max_)?exp_avg(?:_sq)?|momentum_buffer)(?:\.|$))"
)

# Of torch.distributed; the last two by earlier versions of torch.
_RECORDS = (
    "checkpoint.metadata.Metadata", "checkpoint.metadata.TensorStorageMetadata",
    "checkpoint.metadata.TensorProperties", "checkpoint.metadata._MEM_FORMAT_ENCODING",
    "checkpoint.metadata.ChunkStorageMetadata", "checkpoint.metadata.BytesStorageMetadata",
    "checkpoint.metadata.MetadataIndex", "checkpoint.metadata.StorageMeta", "checkpoint.filesystem._StorageInfo",
    "_shard.sharded_tensor.metadata.TensorProperties", "_shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
)  # fmt: skip
ALLOWED = dict(TORCH)
for _path in _RECORDS:
    ALLOWED |= record(f"torch.distributed.{_path}", ".".join(_path.split(".")[-2:]))


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if DISTRIBUTED in seen.files and any(n.endswith(SUFFIX) for n in seen.files) else 0
    if seen.base.endswith(SUFFIX) and exists(sibling(seen.url, DISTRIBUTED)):
        return 4
    return 3 if seen.base == DISTRIBUTED and b"torch.distributed.checkpoint.metadata" in seen.head else 0


def open(url: str, how: Reading) -> Checkpoint:
    inside = join(url, ".") if is_dir(url) else url if url.endswith(SUFFIX) else ""
    path = sibling(inside, DISTRIBUTED) if inside else url
    raw = read_all(path, MAX_METADATA)
    root = load(raw, allowed=ALLOWED, opaque=how.opaque)
    described, places = _get(root, "state_dict_metadata", dict), _places(_get(root, "storage_data", dict))
    noted = root.state.get("planner_data")
    planned = noted if type(noted) is dict else {}
    urls, loaded = _load(path, {place for (name, _), place in places.items() if name in described}, how.opaque)
    objects = {place for (_, offset), place in places.items() if not offset}
    size = len(raw) + sum(place.length for place in objects)
    walked, scout = Walk(size, {}), Walk(size, {})
    tree, flat = dict[str, Any](), dict[str, Role]()

    def stored_at(name: str, offset: tuple[int, ...] = ()) -> Any:
        if (name, offset) not in places:
            raise CorruptCheckpoint("a chunk of it is described but not stored", tensor=name)
        return loaded[places[name, offset]]

    for name, about in described.items():
        keys = _keys(name, planned, described)
        if len(keys) == 1:
            flat[name] = _role(name, keys if name in planned else tuple(name.split(".")))
        if type(about) is Inert and "TensorStorageMetadata" in about.path:
            value: Any = _tensor(name, about, stored_at, path)
        else:
            value = stored_at(name)
            held = [] if is_plain(value) else scout.leaves(value, name, depth=1)
            if type(value) not in SCALARS and not any(type(leaf.value) in TENSORS for leaf in held):
                value = type(value).__name__
        _put(tree, keys if ".".join(keys) == name else (name,), name, value)
    leaves = [leaf._replace(role=leaf.role or flat.get(leaf.top, "")) for leaf in walked.leaves(tree)]
    return gather(leaves, walked, how, urls, "dcp")


def _keys(name: Any, planned: Mapping[Any, Any], described: Mapping[Any, Any]) -> tuple[str, ...]:
    """The keys that lead to a value in what was saved, which are its name if the planner did not note them."""
    if type(name) is not str:
        raise CorruptCheckpoint(f"describes a tensor called {shown(name)}, which is not text")
    noted = planned.get(name)
    if type(noted) is not tuple or not noted:
        return (name,)
    if any(type(key) not in (str, int) for key in noted):
        raise CorruptCheckpoint(f"is found by {shown(noted)}, not by text and numbers", tensor=name)
    keys = tuple(map(str, noted))
    if (to := ".".join(keys)) != name and to in described:
        raise CorruptCheckpoint(f"was saved as {printable(brief(to))}, which is another's name", tensor=name)
    return keys


def _put(tree: dict[str, Any], keys: tuple[str, ...], name: str, value: Any) -> None:
    """Set what lies at `keys` in what was saved; at its name if something else lies there."""
    node: Any = tree
    for key in keys[:-1]:
        node = node.setdefault(key, {}) if type(node) is dict else None
    if type(node) is dict and keys[-1] not in node:
        node[keys[-1]] = value
    else:
        tree[name] = value


def _role(name: str, keys: tuple[str, ...]) -> Role:
    """What is an optimizer's by a name of one key; a weight that was saved by itself has one, with all its dots."""
    if not (FLAT_SLOT.match(name) if len(keys) == 1 else OPTIMIZER.match(keys[0])):
        return ""
    return "step" if name.endswith(".step") else "slot"


def _get(thing: Any, name: str, kind: type) -> Any:
    """An attribute of a record, which must be of one type."""
    state = thing.state if type(thing) is Inert else None
    value = state.get(name) if type(state) is dict else None
    if type(value) is not kind:
        raise CorruptCheckpoint(f"{shown(thing)} has no proper {name}")
    return value


def _numbers(thing: Any, name: str) -> tuple[int, ...]:
    """An attribute that must be a tuple of whole numbers."""
    value: tuple[int, ...] = _get(thing, name, tuple)
    if len(value) > MAX_AXES or any(type(n) is not int for n in value):
        raise CorruptCheckpoint(f"{shown(thing)} has the {name} {shown(value)}, not whole numbers")
    return value


def _kind(about: Inert) -> str:
    """The dtype to which torch casts a tensor's chunks; '' if it is not said."""
    properties = about.state.get("properties")
    state = properties.state if type(properties) is Inert else None
    kind = state[0] if type(state) is tuple and state else None
    if properties is not None and type(kind) is not TorchType:
        raise CorruptCheckpoint(f"{shown(about)} has no proper properties")
    return kind.name if kind else ""


class Place(NamedTuple):
    """A stretch of a file; its fields are called as in torch's record."""

    relative_path: str
    offset: int
    length: int


Places = Mapping[tuple[str, tuple[int, ...]], Place]


def _places(stored: dict[Any, Any]) -> Places:
    """Where each chunk lies, by name and offset in the tensor (an object: no offset)."""
    out = {}
    for index, info in stored.items():
        name = _get(index, "fqn", str)
        offset = () if index.state.get("offset") is None else _numbers(index, "offset")
        out[name, offset] = Place(
            _get(info, "relative_path", str), _get(info, "offset", int), _get(info, "length", int)
        )
        if info.state.get("transform_descriptors"):
            raise CorruptCheckpoint("is stored through a transform (compressed?), which is not read", tensor=name)
    for one, other in pairwise(sorted(set(out.values()))):  # else one file could be read once for each name
        if one.relative_path == other.relative_path and other.offset < one.offset + one.length:
            what = f"two things are stored at byte {other.offset} of {printable(brief(one.relative_path))}"
            raise CorruptCheckpoint(what)
    return out


def _load(url: str, places: Set[Place], opaque: bool) -> tuple[list[str], dict[Place, Any]]:
    """The files that were opened, one at a time, and the objects of the archives in them."""
    urls, loaded = [url], dict[Place, Any]()
    for name, inside in groupby(sorted(places), key=lambda place: place.relative_path):
        with Reader(sibling(url, name)) as f:
            urls.append(f.url)
            for place in inside:
                _, start, size = place
                if start < 0 or size < 0 or start + size > f.size:
                    text = f"something in it lies at bytes {start} to {start + size} of {f.size} (truncated?)"
                    raise CorruptCheckpoint(text, url=f.url)
                loaded[place] = enter(Slice(f, start, size), start).load(PICKLE, opaque=opaque)
    return urls, loaded


def _tensor(name: str, about: Inert, stored_at: Callable[[str, tuple[int, ...]], Any], url: str) -> Tensor:
    """A tensor, of which each chunk is a part."""
    shape, kind, pieces = _numbers(about, "size"), _kind(about), list[tuple[Tensor, tuple[int, ...]]]()
    checked_count(shape, tensor=name)
    for chunk in _get(about, "chunks", list):
        at, size = _numbers(chunk, "offsets"), _numbers(chunk, "sizes")
        if {len(at), len(size)} != {len(shape)} or min(at, default=0) < 0:
            raise CorruptCheckpoint(f"a chunk at {list(at)} of size {list(size)} is not part of it", tensor=name)
        view = stored_at(name, at)
        if type(view) is not View or (piece := stored(name, view)) is None:
            raise CorruptCheckpoint("a chunk of it is not a plain tensor", tensor=name)
        if view.shape != size or view.torch != (kind := kind or view.torch):
            what = f"is {view.torch}{list(view.shape)}, not as described"
            raise CorruptCheckpoint(f"its chunk at {list(at)} {what}", tensor=name)
        pieces.append((piece, at))
    if not pieces:
        raise CorruptCheckpoint("has no chunks", tensor=name)
    return joined(name, shape, pieces, url)
