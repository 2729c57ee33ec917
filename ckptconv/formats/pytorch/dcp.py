"""torch.distributed.checkpoint: a folder of files, each a row of torch archives, and a pickle that says what is where.

    .metadata       pickle of Metadata(state_dict_metadata = {"model.w": TensorStorageMetadata(size, chunks), ...},
                    storage_data = {MetadataIndex("model.w", (0, 0)): _StorageInfo("__0_0.distcp", 0, 1577), ...},
                    planner_data = {"model.w": ("model", "w"), ...})
    __0_0.distcp    bytes 0 to 1577: a zip as archive.py has it, whose object is one chunk of one tensor; and so on

A tensor's chunks must tile it. What is no tensor is stored as an object, also a tuple of tensors, which are called
as in other pickles: pair.0, pair.1. Specification: torch/distributed/checkpoint/metadata.py, filesystem.py.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Role, Tensor
from ...errors import CorruptCheckpoint
from ...messages import brief, printable
from ...moves.part import checked_count
from ...output.destination import OutputFile
from ...storage.files import Reader, Seen, exists, is_dir, read_all, sibling, within
from ...storage.ranges import Slice
from .. import shard_index
from ..placement import Patch, Placement, Slot, folder_name, refuse_unheld
from ..table import DISTRIBUTED, Reading
from ..tiling import joined
from ..zip import StoredZip
from .archive import BATCH, PICKLE, Memo, archived, enter, integer, numbers, rebuilt, text
from .flatten import MAX_VALUES, METADATA, attached, gather, jsonable, stored
from .pickle import load
from .tensors import TORCH, TorchType, View, ints
from .values import SCALARS, Inert, attribute, shown
from .walk import OPTIMIZER, Walk, holds_tensors

SUFFIX = ".distcp"
MAX_METADATA = 2**31 - 1
# Slots by their names where all keys are joined in one: Megatron's, or those of any torch optimizer.
FLAT_SLOT = re.compile(
    rf"(?:{OPTIMIZER.pattern})[^.]*\.(?:(?:state|param_groups|fp(?:16|32)_\w+)(?:\.|$)"
    r"|(?:.*\.)?(?:(?:max_)?exp_avg(?:_sq)?|momentum_buffer)(?:\.|$))"
)


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        # by itself, too: `open` says which files are gone
        return 3 * (DISTRIBUTED in seen.files and (len(seen.files) == 1 or any(n.endswith(SUFFIX) for n in seen.files)))
    if seen.base.endswith(SUFFIX) and exists(sibling(seen.url, DISTRIBUTED)):
        return 4
    return 3 if seen.base == DISTRIBUTED and b"torch.distributed.checkpoint.metadata" in seen.head else 0


def open(url: str, how: Reading) -> Checkpoint:
    beside = sibling(url, DISTRIBUTED) if url.endswith(SUFFIX) else url
    path = within(url, DISTRIBUTED) if is_dir(url) else beside
    raw = read_all(path, MAX_METADATA)
    root = load(raw, allowed=TORCH, opaque=how.opaque)
    described = attribute(root, "state_dict_metadata", kind=dict)
    places = _places(attribute(root, "storage_data", kind=dict))
    noted = root.state.get("planner_data")
    planned = noted if type(noted) is dict else {}
    urls, loaded = _load(path, {place for (name, _), place in places.items() if name in described}, how.opaque)
    objects = {place for (_, offset), place in places.items() if not offset}
    walked = Walk(len(raw) + sum(place.length for place in objects), {})
    tree, flat, lists = dict[str, Any](), dict[str, Role](), dict[str, list[Any]]()

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
            if type(value) not in SCALARS and not holds_tensors(value):
                if type(value) in (list, tuple) and all(type(x) in SCALARS and jsonable(x) == x for x in value):
                    lists[name] = list(value)
                value = type(value).__name__
        _put(tree, keys, name, value)
    leaves = [leaf._replace(role=leaf.role or flat.get(leaf.top, "")) for leaf in walked.leaves(tree)]
    found = gather(leaves, walked, how, urls, "dcp", metadata=attached(root))
    values = found.details.get("values", {})
    values |= {n: value for n, value in lists.items() if n in values}
    return found


def _keys(name: Any, planned: Mapping[Any, Any], described: Mapping[Any, Any]) -> tuple[str, ...]:
    """The keys that lead to a value in what was saved: those that the planner noted, if they make its name."""
    if type(name) is not str:
        raise CorruptCheckpoint(f"describes a tensor called {shown(name)}, which is not text")
    noted = planned.get(name)
    if type(noted) is not tuple or not noted or any(type(key) not in (str, int) for key in noted):
        return (name,)
    keys = tuple(map(str, noted))
    if (to := ".".join(keys)) != name and to in described:
        raise CorruptCheckpoint(f"was saved as {printable(brief(to))}, which is another's name", tensor=name)
    return keys if to == name else (name,)


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
        name = attribute(index, "fqn", kind=str)
        offset = () if index.state.get("offset") is None else ints(attribute(index, "offset"), "offset")
        out[name, offset] = Place(
            attribute(info, "relative_path", kind=str),
            attribute(info, "offset", kind=int),
            attribute(info, "length", kind=int),
        )
        if info.state.get("transform_descriptors"):
            raise CorruptCheckpoint("is stored through a transform (compressed?), which is not read", tensor=name)
    for one, other in pairwise(sorted(set(out.values()))):  # else one file could be read once for each name
        if one.relative_path == other.relative_path and other.offset < one.offset + one.length:
            raise CorruptCheckpoint(
                f"two things are stored at byte {other.offset} of {printable(brief(one.relative_path))}"
            )
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
                    raise CorruptCheckpoint(
                        f"something in it lies at bytes {start} to {start + size} of {f.size} (truncated?)", url=f.url
                    )
                loaded[place] = enter(Slice(f, start, size), start).load(PICKLE, opaque=opaque)
    return urls, loaded


def _tensor(name: str, about: Inert, stored_at: Callable[[str, tuple[int, ...]], Any], url: str) -> Tensor:
    """A tensor, of which each chunk is a part."""
    shape, kind = ints(attribute(about, "size"), "size"), _kind(about)
    pieces: list[tuple[Tensor, tuple[int, ...]]] = []
    checked_count(shape, tensor=name)
    for chunk in attribute(about, "chunks", kind=list):
        at, size = (ints(attribute(chunk, key), key) for key in ("offsets", "sizes"))
        view = stored_at(name, at)
        if type(view) is not View or (piece := stored(name, view)) is None:
            raise CorruptCheckpoint("a chunk of it is not a plain tensor", tensor=name)
        if view.shape != size or view.torch != (kind := kind or view.torch):
            raise CorruptCheckpoint(
                f"its chunk at {list(at)} is {view.torch}{list(view.shape)}, not as described", tensor=name
            )
        pieces.append((piece, at))
    if not pieces:
        raise CorruptCheckpoint("has no chunks", tensor=name)
    return joined(name, shape, pieces, url)


# --- writing --------------------------------------------------------------------------------------------------------
#
# Each tensor is one chunk: an archive of its own, as torch.save writes it. So is each number of a training state, and
# each list if it was read from such a folder. Positions are known before any data is. `.metadata` has what torch puts
# there, but for what changes from run to run, and as one more attribute the checkpoint's metadata.

Number = int | float | bool | None


@dataclass
class DcpWriter:
    """Lay out a folder. Only the places of archives are kept: `seal` makes again what surrounds the tensors."""

    url: str
    max_shard_size: int | None = None
    placed: Checkpoint = field(default_factory=lambda: Checkpoint({}))
    places: dict[str, Place] = field(default_factory=dict)
    base: str = ""

    def cannot_hold(self, tensor: Tensor) -> str:
        return "" if tensor.dtype.torch_name else f"torch has no dtype {tensor.dtype}"

    def place(self, checkpoint: Checkpoint) -> Placement:
        self.base = folder_name(self.url, "a distributed checkpoint")
        refuse_unheld(self, checkpoint, "a distributed checkpoint")
        self.placed, self.places = checkpoint, {}
        owner = {n: first if checkpoint[n].count else n for n, first in checkpoint.owners().items()}
        shards = [list(shard) for shard in shard_index.cut(checkpoint, self.max_shard_size, owner)]
        values, slots, files = _values(checkpoint), dict[str, Slot](), list[OutputFile]()
        for i, names in enumerate(shards):
            file, end = f"__0_{i}{SUFFIX}", 0
            for name in (*names, *values) if names is shards[-1] else names:
                if (first := owner.get(name, name)) == name:
                    placed = self._archive(name, Place(file, end, 0)).placement()
                    start, end = end, placed.files[0].size
                    self.places[name] = Place(file, start, end - start)
                    slots |= placed.slots
                else:
                    self.places[name], slots[name] = self.places[first], slots[first]
            files.append(OutputFile(f"{self.base}/{file}", end))
        about = self._about(checkpoint.metadata)
        files.append(OutputFile(about.file, len(about.data)))
        slots = {name: slots[name] for name in checkpoint}
        return Placement(files, slots, [about], "crc32", unit=True, values=tuple(values))

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Iterator[Patch]:
        """What surrounds each tensor; and `.metadata` again, if there is metadata."""
        if metadata:
            yield self._about(metadata)
        done = set[Place]()
        for name, place in self.places.items():
            if place not in done:
                archive = self._archive(name, place)
                yield from (*archive.placement().patches, *archive.headers(checks))
            done.add(place)

    def _archive(self, name: str, place: Place) -> StoredZip:
        t, file = self.placed.get(name), f"{self.base}/{place.relative_path}"
        body = _value(self.placed.details["values"][name]) if t is None else rebuilt(t, "0", Memo(), {})
        return archived(file, b"\x80\2" + body + b".", {} if t is None else {name: t.nbytes}, place.offset)

    def _about(self, metadata: Mapping[str, str]) -> Patch:
        """`.metadata`, whose size does not depend on the values of hashes."""
        memo, tensors = Memo(), self.placed.tensors
        described = [text(n) + _described(memo, tensors.get(n)) for n in self.places]
        planned = [text(n) + b"(" + text(n) + b"t" for n in self.places]
        stored = [_placed(memo, n, tensors.get(n), place) for n, place in self.places.items()]
        texts = [text(k) + text(v) for k, v in metadata.items()]
        body = _record(
            memo, "metadata.Metadata", state_dict_metadata=_dict(described), planner_data=_dict(planned),
            storage_data=_dict(stored), version=text("1.0.0"), **({METADATA: _dict(texts)} if texts else {}),
        )  # fmt: skip
        return Patch(f"{self.base}/{DISTRIBUTED}", 0, b"\x80\2" + body + b".")


writer = DcpWriter


def _values(checkpoint: Checkpoint) -> list[str]:
    """The values that are written: no texts, which may stand for objects, and none of more than are kept."""
    found, own = checkpoint.details.get("values", {}), checkpoint.format == "dcp"
    if not own and not any(t.role for t in checkpoint.values()):
        return []
    kinds = (Number, list) if own else Number  # elsewhere a list may be cut
    return [n for n, v in found.items() if isinstance(v, kinds) and n not in checkpoint and len(found) < MAX_VALUES]


def _value(value: Number | str | list[Any]) -> bytes:
    if isinstance(value, list):
        return b"](" + b"".join(map(_value, value)) + b"e"
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    return b"G" + struct.pack(">d", value) if isinstance(value, float) else integer(value)


def _dict(pairs: Sequence[bytes]) -> bytes:
    batches = (pairs[i : i + BATCH] for i in range(0, len(pairs), BATCH))
    return b"}" + b"".join(b"(" + b"".join(batch) + b"u" for batch in batches)


def _record(memo: Memo, path: str, **state: bytes) -> bytes:
    """An object of torch.distributed.checkpoint with these attributes."""
    module, _, name = path.rpartition(".")
    made = memo.once(f"ctorch.distributed.checkpoint.{module}\n{name}\n".encode()) + b")\x81"
    return made + _dict([memo.once(text(key)) + value for key, value in state.items()]) + b"b"


def _size(memo: Memo, values: Sequence[int]) -> bytes:
    return memo.once(b"ctorch\nSize\n") + numbers(values) + b"\x85R"


def _described(memo: Memo, t: Tensor | None) -> bytes:
    """A tensor's dtype, shape and only chunk; of a number nothing."""
    if t is None:
        return _record(memo, "metadata.BytesStorageMetadata")
    properties = memo.once(b"ctorch.distributed.checkpoint.metadata\nTensorProperties\n") + b")\x81("
    properties += memo.once(f"ctorch\n{t.dtype.torch_name}\n".encode())
    properties += memo.once(b"ctorch.serialization\n_get_layout\n" + text("torch.strided") + b"\x85R") + b"\x89"
    properties += memo.once(b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\nK\0\x85R") + b"\x89tb"
    size, zeros = _size(memo, t.shape), _size(memo, [0] * len(t.shape))  # in the order in which they stand
    chunk = _record(memo, "metadata.ChunkStorageMetadata", offsets=zeros, sizes=_size(memo, t.shape))
    return _record(memo, "metadata.TensorStorageMetadata", properties=properties, size=size, chunks=b"]" + chunk + b"a")


def _placed(memo: Memo, name: str, t: Tensor | None, place: Place) -> bytes:
    offset = {} if t is None else {"index": b"K\0", "offset": _size(memo, [0] * len(t.shape))}
    about = {"relative_path": text(place.relative_path), "offset": integer(place.offset)}
    index = _record(memo, "metadata.MetadataIndex", fqn=text(name), **offset)
    return index + _record(memo, "filesystem._StorageInfo", **about, length=integer(place.length))
