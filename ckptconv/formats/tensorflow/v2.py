"""TensorFlow V2 checkpoints: an index and data files. The entry of the format; bundle.py reads.

A checkpoint is written with shards packed in the order of the tensors, and an index with TensorFlow's layout:

    P.data-00000-of-00002 ...    raw elements, without alignment; tied names share one range
    P.index                      written by `seal`, when all checksums are known; with the object graph and the keys of
                                 a TensorFlow source, if its tensors kept their names
    checkpoint                   the state file that tf.train.latest_checkpoint reads
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...checkpoint import Checkpoint, Note, Tensor
from ...dtypes import DTYPES
from ...errors import UnsafeCheckpoint, UsageError
from ...output.destination import OutputFile
from ...storage.checksum import mask
from ...storage.files import Seen, exists, is_remote, join, split
from ...storage.paths import beside
from .. import own_metadata
from ..placement import Patch, Placement, Slot, refuse_unheld
from ..table import SAVED_MODELS, TF_TABLE, Reading
from . import elements, graph, locate, objects, v1
from .bundle import OBJECT_GRAPH, OURS, read
from .locate import STATE_FILE, prefix_of
from .table import build, first_value_tag, varint


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 2 if _in_folder(seen) else 0
    if seen.tail.endswith(TF_TABLE):
        if first_value_tag(seen.head) in (-1, 0x08, 0x10, 0x1A):
            return 3
        return int(seen.base.endswith(".index"))  # a table with a damaged head: opening reports the damage
    if seen.base == STATE_FILE:
        return 2 if locate.begins_state(seen.head) else 0
    prefix = locate.prefix_for(seen.url)
    if seen.size >= 0 and prefix == seen.url:
        return 0
    if seen.url.endswith(".index") and prefix != seen.url:
        return 1
    return 3 if exists(prefix + ".index") else int(bool(locate.DATA.fullmatch(seen.base)))


def _in_folder(seen: Seen) -> bool:
    """Whether a folder holds a checkpoint, or has the name of the prefix of one."""
    folder = seen.url.rstrip("/")
    if any(name in seen.files for name in SAVED_MODELS):
        return False
    try:
        listed = STATE_FILE in seen.files and locate.is_state(join(folder, STATE_FILE), seen.url)
    except UnsafeCheckpoint:
        listed = True  # a link out of the folder, which is not looked at: opening refuses it
    return listed or any(n.endswith(".index") for n in seen.files) or exists(folder + ".index")


def open(url: str, how: Reading) -> Checkpoint:
    """Open the checkpoint at `url`: a prefix, any of its files, its directory, or the state file.

    With `how.salvage`, missing or truncated shards are not an error here but when one of their tensors is read.
    """
    location = locate.find(url)
    if not location.index_file:
        return v1.open_tables(location.tables)
    checkpoint = objects.named(*read(location.index_file, salvage=how.salvage))
    checkpoint = replace(checkpoint, notes=(*location.notes, *checkpoint.notes))
    meta = location.index_file.removesuffix(".index") + ".meta"
    if not is_remote(meta) and exists(meta):
        return replace(checkpoint, details={**checkpoint.details, **graph.meta_details(beside(url, meta))})
    return checkpoint


def writer(url: str, max_shard_size: int | None = None) -> BundleWriter:
    """Write a checkpoint with the prefix `url`; the path of its .index is accepted as well."""
    return BundleWriter(url, max_shard_size)


# --- writing ----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """An entry of the index: the checksum is that of the tensor `name` if it is not known before."""

    key: str
    code: int
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    name: str
    crc: int | None = None
    payload: bytes | None = None  # of strings


@dataclass
class BundleWriter:
    """Lay out a checkpoint with the prefix `url`; `place` records the rows from which `seal` builds the index."""

    url: str
    max_shard_size: int | None = None
    _rows: list[Row] = field(default_factory=list)
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
        graph, keys = objects.kept(checkpoint)
        self._ours = own_metadata.pack(checkpoint.metadata)
        groups: dict[str, list[str]] = {}  # tied names, which share their bytes
        for name, owner in checkpoint.owners().items():
            groups.setdefault(owner, []).append(name)
        self._rows, sizes = [], [0]
        for group in groups.values():
            first = checkpoint[group[0]]
            payload, crc, size = None, None, first.nbytes
            if first.dtype.kind == "s":
                items = [i.encode() if isinstance(i, str) else bytes(i) for i in first.numpy().ravel()]
                payload, crc = elements.pack(items)
                size = len(payload)
            if self.max_shard_size is not None and sizes[-1] and sizes[-1] + size > self.max_shard_size:
                sizes.append(0)
            where = len(sizes) - 1, sizes[-1], size
            for name in group:
                t = checkpoint[name]
                self._rows.append(Row(keys.get(name, name), t.dtype.tf, t.shape, *where, name, crc, payload))
            sizes[-1] += size
        names = [f"{self.base}.data-{i:05d}-of-{len(sizes):05d}" for i in range(len(sizes))]
        slots = {row.name: Slot(names[row.shard], row.start, row.size, row.payload) for row in self._rows}
        patches, notes = [], [*own_metadata.lost(checkpoint.metadata, "a TensorFlow checkpoint", ours=True)]
        if graph:
            payload, crc = elements.pack([graph])
            where = len(names) - 1, sizes[-1], len(payload)
            self._rows.append(Row(OBJECT_GRAPH, DTYPES["string"].tf, (), *where, "", crc))
            patches.append(Patch(names[-1], sizes[-1], payload))
            sizes[-1] += len(payload)
        elif "graph" in checkpoint.details:
            what = "the object graph is left out: it has other names. tf.train.Checkpoint cannot read the result"
            notes.append(Note("dropped", f"{what}; tf.train.load_checkpoint and tf.compat.v1.train.Saver can"))
        state = _state(self.base)
        patches.append(Patch(STATE_FILE, 0, state))
        files = [*map(OutputFile, names, sizes), OutputFile(f"{self.base}.index", 0)]
        files.append(OutputFile(STATE_FILE, len(state), shared=True))
        stale = rf"{re.escape(self.base)}\.(index|data-\d{{5}}-of-\d{{5}})"
        ordered = {name: slots[name] for name in checkpoint}
        return Placement(files, ordered, patches, check="crc32c", stale=stale, notes=notes)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        from . import messages_pb2 as pb

        count = 1 + max((row.shard for row in self._rows), default=0)
        header = pb.BundleHeaderProto(num_shards=count, version=pb.VersionDef(producer=1)).SerializeToString()
        if self._ours:
            header += varint(OURS << 3 | 2) + varint(len(self._ours)) + self._ours
        pairs = {b"": header}
        for row in self._rows:
            shape = pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=n) for n in row.shape])
            crc = mask(checks[row.name] if row.crc is None else row.crc)
            entry = pb.BundleEntryProto(dtype=pb.DataType.Name(row.code), shape=shape, shard_id=row.shard,
                                        offset=row.start, size=row.size, crc32c=crc)  # fmt: skip
            pairs[row.key.encode("utf-8", "surrogateescape")] = entry.SerializeToString()
        return [Patch(f"{self.base}.index", 0, build(sorted(pairs.items())))]


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
