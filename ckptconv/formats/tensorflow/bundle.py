"""TensorFlow V2 checkpoints (tensor bundles): an index and data files.

    P.index                    a sorted string table (table.py):
        ""                     BundleHeaderProto: number of shards, endianness, version
        name                   BundleEntryProto: dtype, shape, shard, offset, size, masked CRC-32C
        name                   ... of a partitioned variable: dtype, full shape, slices
        slice key (elements.py)  BundleEntryProto of one slice
    P.data-00000-of-00002 ...  raw elements in C order, packed without alignment, in any order; ranges may be shared
    P.meta                     a training graph, which is not read
    checkpoint                 the state file: text that says which of several prefixes is the newest

A path may be the prefix P, one of its files, a folder, or the state file, whose paths are often absolute and from
another machine: only files beside it are considered. A V1 checkpoint (v1.py) is opened by its own files.

A checkpoint is written with shards packed in the order of the tensors; tied names share one range. `seal` writes the
index, with TensorFlow's layout, when all checksums are known; with the object graph and the keys of a TensorFlow
source, if its tensors kept their names.
Specification: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ...checkpoint import Checkpoint, Details, Note, Tensor
from ...dtypes import DTYPES, DType
from ...errors import (
    AmbiguousFormat,
    CkptError,
    CorruptCheckpoint,
    StorageError,
    UnknownFormat,
    UsageError,
)
from ...messages import brief, listing, many, shortened
from ...moves.part import Coded, Data, Span, checked_count
from ...output.destination import OutputFile
from ...storage.checksum import mask, unmask
from ...storage.files import Reader, Seen, exists, is_dir, join, names, read_all, sibling, split, within
from ...storage.paths import beside, spelled
from .. import Located, own_metadata
from ..placement import Patch, Placement, Slot, refuse_unheld
from ..table import SAVED_MODEL, TF_DATA, TF_TABLE, Reading
from ..tiling import Tile
from . import elements, objects
from .elements import parse, text
from .table import GIT_LFS, POINTER, Table, build

if TYPE_CHECKING:
    from . import messages_pb2 as pb

FORMAT = "tf"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
STRING = DTYPES["string"].tf
STATE_FILE = "checkpoint"  # beside the checkpoints of a folder, which share it
STATE = b"model_checkpoint_path"
STATE_LIMIT = 1 << 24


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        if SAVED_MODEL in seen.files:
            return 0
        try:
            find(seen.url)
        except UnknownFormat:
            return 0
        except CkptError:
            pass  # opening reports it
        return 2
    if seen.tail.endswith(TF_TABLE):
        return 3 if seen.base.endswith(".index") else 0
    if seen.base == STATE_FILE:
        return 2 if begins_state(seen.head) else 0
    if seen.size >= 0 and prefix_of(seen.url) == seen.url:  # nothing is asked of the server
        return 0
    prefix = prefix_for(seen.url)
    if seen.url.endswith(".index") and prefix != seen.url:
        return 1
    return 3 if exists(prefix + ".index") else int(bool(TF_DATA.fullmatch(seen.base)))


def open(url: str, how: Reading) -> Checkpoint:
    """Open the checkpoint at `url`: a prefix, any of its files, its directory, or the state file.

    With `how.salvage`, missing or truncated shards are not an error here but when one of their tensors is read.
    """
    index, chosen = find(url)
    checkpoint = objects.with_readable_names(*read(index, how))
    return replace(checkpoint, notes=(*chosen, *checkpoint.notes))


# --- which files are meant -----------------------------------------------------------------------------------------


def prefix_of(url: str) -> str:
    """Strip the suffix of any of a V2 checkpoint's files."""
    data = TF_DATA.fullmatch(url)
    return data[1] if data else url.removesuffix(".index") if url.endswith(".index") else url.removesuffix(".meta")


def prefix_for(url: str) -> str:
    """The prefix that a name stands for, which is the name itself if that is a prefix, though it ends like a file's."""
    return url if exists(url + ".index") else prefix_of(url)


def find(url: str) -> tuple[str, tuple[Note, ...]]:
    """The index of the checkpoint at `url`, and notes on the choice. StorageError lists the files that are there."""
    if is_dir(url):
        return _in_folder(url, url)
    folder, base = split(url)
    if base == STATE_FILE and is_state(url):
        return _in_folder(folder, url)
    prefix = prefix_for(url)
    if exists(prefix + ".index"):
        return beside(url, prefix + ".index"), ()
    base = split(prefix)[1]
    present = names(folder)
    near = [n for n in present if n.startswith(base)] or present
    what = f"there is no index {base}.index (was saving interrupted?); the folder holds: {', '.join(near[:8])}"
    raise StorageError(what, url=prefix)


def is_state(url: str, given: str = "") -> bool:
    """Whether a file is the text file that lists checkpoints (other programs also use the name `checkpoint`).

    UnsafeCheckpoint if it is a link out of its folder, unless it is itself what was given.
    """
    return exists(url) and not is_dir(url) and begins_state(Seen(beside(given or url, url)).head)


def begins_state(head: bytes) -> bool:
    """Whether these are the first bytes of such a file."""
    return head.lstrip().startswith((STATE, b"all_" + STATE))


def _in_folder(folder: str, given: str) -> tuple[str, tuple[Note, ...]]:
    """The newest checkpoint according to the state file, or the only checkpoint in the folder."""
    present = sorted(n.removesuffix(".index") for n in names(folder) if n.endswith(".index"))
    state = join(folder, STATE_FILE)
    note: tuple[Note, ...] = ()
    if is_state(state, given):
        path = _newest(state)
        base = re.split(r"[/\\]", path)[-1]  # empty if the files are called .index and so on
        if path and base in present:
            return within(folder, base + ".index"), (
                Note("assumed", f"{brief(base)!r} is read, as the state file says, of {shortened(present)}"),
            ) * (len(present) > 1)
        what = f"the state file names {brief(base)!r}, which has no .index here (a V1 checkpoint is given by its name)"
        if len(present) != 1:
            what += f"; the folder holds {many(len(present), 'checkpoint')}:\n{listing(present)}" * bool(present)
            raise StorageError(what, url=state)
        note = (Note("assumed", f"{what}; {present[0]!r} is read instead"),)
    if len(present) == 1:
        return within(folder, present[0] + ".index"), note
    if present:
        raise AmbiguousFormat(f"holds {len(present)} checkpoints; give one of them:\n{listing(present)}", url=folder)
    if exists(folder.rstrip("/") + ".index"):  # a folder with the name of the prefix beside it
        return beside(given, folder.rstrip("/") + ".index"), ()
    raise UnknownFormat("holds no checkpoint: there is no file *.index", url=folder)


def _newest(state: str) -> str:
    from google.protobuf import text_format

    from . import messages_pb2 as pb

    try:
        text = read_all(state, STATE_LIMIT).decode()
        parsed = text_format.Parse(text, pb.CheckpointState(), allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as e:
        raise CorruptCheckpoint(f"the state file is not a text message ({brief(str(e))})", url=state) from e
    return parsed.model_checkpoint_path


# --- reading ----------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """The fields of a BundleEntryProto; the message itself would take four times the memory."""

    dtype: int
    shape: tuple[int, ...]  # most entries share a few
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[pb.TensorSliceProto, ...]


def read(index: str, how: Reading) -> tuple[Checkpoint, bytes | None]:
    """Read an index and check it against its shards; tensors are not read.

    Return the tensors by key, and the object graph, which is empty if there is none, and None if it is damaged.
    """
    with Reader(index) as f, Located(index):
        pairs = iter(Table(f))
        header = _header(next(pairs, None))
        stored = _Stored(index, header, _entries(pairs))
        tensors, notes = elements.assembled(stored.rows(), swap=stored.order == "big")
        if not how.salvage:
            stored.check()
        graph: bytes | None = b""
        if OBJECT_GRAPH in tensors:
            try:
                graph = _object_graph(tensors.pop(OBJECT_GRAPH))
            except CkptError as e:
                if not how.salvage:
                    raise
                why = " ".join(e.message.split())
                what = f"names are those of the keys alone, and which tensors are the optimizer's is not known: {why}"
                graph, notes = None, (*notes, Note("damaged", what, (OBJECT_GRAPH,)))
    details: Details = {"shards": header.num_shards, "endianness": stored.order}
    urls = (index, *(stored.urls[shard] for shard in sorted(stored.urls)))
    metadata = own_metadata.unpack(header.ours) if header.ours else {}
    return Checkpoint(tensors, metadata, (), FORMAT, urls, notes, details), graph


def _object_graph(tensor: Tensor) -> bytes:
    if tensor.shape:  # it is read at once: any number of strings would take any amount of memory
        raise CorruptCheckpoint("the object graph is not one string", tensor=OBJECT_GRAPH)
    data = tensor.parts[0].data
    return b"".join(elements.decode(data)) if isinstance(data, Coded) else b""


def _header(first: tuple[bytes, bytes] | None) -> pb.BundleHeaderProto:
    from . import messages_pb2 as pb

    if first is None or first[0]:
        raise CorruptCheckpoint("has no header entry")
    header = parse(pb.BundleHeaderProto, first[1], "the header")
    elements.check_version(header.version)
    if header.num_shards < 0 or header.endianness not in (0, 1):
        raise CorruptCheckpoint("the header's shard count or endianness is out of range")
    return header


def _entries(pairs: Iterator[tuple[bytes, bytes]]) -> dict[bytes, Entry]:
    from . import messages_pb2 as pb

    entries: dict[bytes, Entry] = {}
    shapes: dict[bytes, tuple[int, ...]] = {}
    for key, value in pairs:
        with Located(tensor=text(key)):
            e = parse(pb.BundleEntryProto, value, "the entry")
            raw = e.shape.SerializeToString()
            shape = shapes.get(raw)
            if shape is None:
                if e.shape.unknown_rank:
                    raise CorruptCheckpoint("the shape has no rank")
                shape = shapes[raw] = tuple([d.size for d in e.shape.dim])
                checked_count(shape)
        entries[key] = Entry(e.dtype, shape, e.shard_id, e.offset, e.size, e.crc32c, tuple(e.slices))
    return entries


class _Stored:
    """What an index says: where the tensors lie in the data files, and how long these must therefore be."""

    def __init__(self, index: str, header: pb.BundleHeaderProto, entries: dict[bytes, Entry]) -> None:
        self.index, self.entries, self.count = index, entries, header.num_shards
        self.order: elements.Order = "big" if header.endianness else "little"
        self.base = spelled(index).removesuffix(".index")
        self.urls: dict[int, str] = {}  # of the shards that hold tensors
        self.reach: dict[int, int] = {}  # the bytes that are needed of each

    def rows(self) -> Iterator[elements.Row]:
        """The tensors: all entries but those of slices."""
        sliced = {k: e for k, e in self.entries.items() if e.slices}
        if sum(len(k) * len(e.slices) for k, e in sliced.items()) > sum(map(len, self.entries)) + 2**16:
            raise CorruptCheckpoint("lists more slices than are stored")
        hidden = {elements.slice_key(k, s) for k, e in sliced.items() for s in e.slices}
        for key, entry in self.entries.items():
            if key not in hidden:
                data = partial(self.tiles, key, entry) if entry.slices else partial(self.data, entry)
                yield text(key), entry.dtype, entry.shape, data

    def data(self, entry: Entry, kind: DType) -> Data:
        """The location of an entry's bytes."""
        offset, size, check = entry.offset, entry.size, unmask(entry.crc32c)
        count = prod(entry.shape)
        what = ""
        if offset < 0 or size < 0:
            what = "the offset or size is negative"
        elif kind.kind == "s" and count > size:
            what = f"{count} strings do not fit in {size} bytes"
        elif kind.kind != "s" and count * kind.itemsize != size:
            what = f"the entry has {size} bytes, but {kind} {list(entry.shape)} has {count * kind.itemsize}"
        elif not 0 <= entry.shard_id < self.count:
            what = f"is in shard {entry.shard_id}, but the number of shards is {self.count}"
        if what:
            raise CorruptCheckpoint(what)
        shard = entry.shard_id
        if shard not in self.urls:
            self.urls[shard] = sibling(self.index, f"{self.base}.data-{shard:05d}-of-{self.count:05d}")
        self.reach[shard] = max(offset + size, self.reach.get(shard, 0))
        if kind.kind == "s":
            return Coded(elements.__name__, self.urls[shard], (offset, count, check, self.order), size)
        return Span(self.urls[shard], offset, size, f"crc32c:{check:08x}")

    def tiles(self, key: bytes, entry: Entry, kind: DType) -> list[tuple[Tile, Data]]:
        """The slices of a partitioned variable."""
        tiles = list[tuple[Tile, Data]]()
        for piece in entry.slices:
            tile = elements.tile_of(piece, entry.shape)
            # TensorFlow takes a whole tensor from its own entry, whatever is stored under the key of the slice
            whole = not any(extent.HasField("length") for extent in piece.extent)
            part = entry if whole else self.entries.get(elements.slice_key(key, piece))
            what = f"the slice at {list(tile.start)} of size {list(tile.shape)} is"
            if part is None:
                raise CorruptCheckpoint(f"{what} listed but not stored")
            if (part.dtype, part.shape) != (entry.dtype, tile.shape):
                what += f" stored with dtype {part.dtype} and shape {list(part.shape)}"
                raise CorruptCheckpoint(what)
            tiles.append((tile, self.data(part, kind)))
        return tiles

    def check(self) -> None:
        """Compare the sizes of the files with those that the entries need; one error lists all problems."""
        problems, damaged = list[str](), False
        for shard, url in sorted(self.urls.items()):
            needed, name = self.reach[shard], split(url)[1]
            if not exists(url):
                problems.append(f"the shard {name} is missing")
                continue
            with Reader(url) as f:
                pointer = f.read(0, min(64, f.size)).startswith(GIT_LFS)
                if pointer or f.size < needed:
                    why = POINTER if pointer else f"has {f.size} bytes, {needed} are needed (truncated?)"
                    problems.append(f"the shard {name}: {why}")
                    damaged = True
        if problems:
            how = "; keep_going=True goes on with the other shards" * (len(problems) < len(self.urls))
            kind = CorruptCheckpoint if damaged else StorageError
            raise kind(f"is not complete{how}:\n{listing(problems)}")


# --- writing ----------------------------------------------------------------------------------------------------


@dataclass
class BundleWriter:
    """Lay out a checkpoint with the prefix `url`, or the path of its .index; `place` makes what `seal` completes."""

    url: str
    max_shard_size: int | None = None
    _entries: dict[str, tuple[str, pb.BundleEntryProto]] = field(default_factory=dict)  # with its key, by name
    _ours: bytes = b""  # metadata, for the header

    @property
    def base(self) -> str:
        return split(prefix_of(self.url))[1]

    def cannot_hold(self, tensor: Tensor) -> str:
        if not tensor.dtype.tf:
            return f"TensorFlow has no dtype {tensor.dtype}"
        if tensor.name in ("", OBJECT_GRAPH):
            return "the name is reserved for the index's header, or for the object graph"
        try:
            tensor.name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return "the name is not valid Unicode"
        return ""

    def place(self, checkpoint: Checkpoint) -> Placement:
        if not self.base:
            raise UsageError("a TensorFlow checkpoint needs a prefix, like folder/model.ckpt", url=self.url)
        if self.base == STATE_FILE:
            raise UsageError("the prefix `checkpoint` is the name of the state file; choose another", url=self.url)
        refuse_unheld(self, checkpoint, "a TensorFlow checkpoint")
        graph, keys = objects.saved_graph(checkpoint)
        self._ours = own_metadata.pack(checkpoint.metadata)
        owners = checkpoint.owners()  # tied names share their bytes
        made: dict[str, pb.BundleEntryProto] = {}  # by owner
        sizes = [0]
        payloads: dict[str, bytes] = {}  # of strings
        for owner in dict.fromkeys(owners.values()):
            t = checkpoint[owner]
            size, crc = t.nbytes, 0
            if t.dtype.kind == "s":
                items = [i.encode() if isinstance(i, str) else bytes(i) for i in t.numpy().ravel()]
                payloads[owner], crc = elements.pack(items)
                size = len(payloads[owner])
            if self.max_shard_size is not None and sizes[-1] and sizes[-1] + size > self.max_shard_size:
                sizes.append(0)
            made[owner] = _entry(t.dtype.tf, t.shape, len(sizes) - 1, sizes[-1], size, crc)
            sizes[-1] += size
        self._entries = {name: (keys.get(name, name), made[owner]) for name, owner in owners.items()}
        files = [f"{self.base}.data-{i:05d}-of-{len(sizes):05d}" for i in range(len(sizes))]
        slots = {
            name: Slot(files[e.shard_id], e.offset, e.size, payloads.get(owners[name]))
            for name, (_, e) in self._entries.items()
        }
        patches, notes = [], [*own_metadata.lost_metadata(checkpoint.metadata, "a TensorFlow checkpoint", ours=True)]
        if graph:
            payload, crc = elements.pack([graph])
            entry = _entry(STRING, (), len(files) - 1, sizes[-1], len(payload), crc)
            self._entries[OBJECT_GRAPH] = OBJECT_GRAPH, entry
            patches.append(Patch(files[-1], sizes[-1], payload))
            sizes[-1] += len(payload)
        elif "graph" in checkpoint.details:
            what = "the object graph is left out: it has other names. tf.train.Checkpoint cannot read the result"
            notes.append(Note("dropped", f"{what}; tf.train.load_checkpoint and tf.compat.v1.train.Saver can"))
        state = _state(self.base)
        patches.append(Patch(STATE_FILE, 0, state))
        outputs = [*map(OutputFile, files, sizes), OutputFile(f"{self.base}.index", 0)]
        outputs.append(OutputFile(STATE_FILE, len(state), shared=True))
        stale = rf"{re.escape(self.base)}\.(index|data-\d{{5}}-of-\d{{5}})"
        return Placement(outputs, slots, patches, check="crc32c", stale=stale, notes=notes)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        from . import messages_pb2 as pb

        count = 1 + max((e.shard_id for _, e in self._entries.values()), default=0)
        header = pb.BundleHeaderProto(num_shards=count, version=pb.VersionDef(producer=1), ours=self._ours)
        pairs = {b"": header.SerializeToString()}
        for name, (key, entry) in self._entries.items():
            if entry.dtype != STRING:
                entry.crc32c = mask(checks[name])
            pairs[key.encode("utf-8", "surrogateescape")] = entry.SerializeToString()
        return [Patch(f"{self.base}.index", 0, build(sorted(pairs.items())))]


writer = BundleWriter


def _entry(code: int, shape: Sequence[int], shard: int, start: int, size: int, check: int) -> pb.BundleEntryProto:
    """An entry of the index; the checksum of what is not strings is set by `seal`."""
    from . import messages_pb2 as pb

    dims = pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=n) for n in shape])
    kind = pb.DataType.Name(code)
    return pb.BundleEntryProto(dtype=kind, shape=dims, shard_id=shard, offset=start, size=size, crc32c=mask(check))


def _state(base: str) -> bytes:
    """The text of the state file, as TensorFlow writes it."""
    from google.protobuf import text_format

    from . import messages_pb2 as pb

    try:
        state = pb.CheckpointState(model_checkpoint_path=base, all_model_checkpoint_paths=[base])
    except ValueError:
        what = "TensorFlow's state file holds the prefix in UTF-8; choose one that is valid Unicode"
        raise UsageError(what) from None
    return str(text_format.MessageToString(state, as_utf8=True)).encode()
