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

from ...checkpoint import Checkpoint, Note, Tensor
from ...errors import UnsafeCheckpoint, UsageError
from ...output.destination import OutputFile
from ...storage.checksum import mask
from ...storage.files import Seen, exists, is_remote, join, split
from ...storage.paths import beside
from .. import own_metadata
from ..keras.order import KEY
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
    return (
        any(n.endswith(".index") for n in seen.files)
        or (STATE_FILE in seen.files and _has_state(seen.url))
        or exists(folder + ".index")
    )


def _has_state(folder: str) -> bool:
    try:
        return locate.is_state(join(folder, STATE_FILE), folder)
    except UnsafeCheckpoint:
        return True  # a link out of the folder, which is not looked at: opening refuses it


def open(url: str, how: Reading) -> Checkpoint:
    """Open the checkpoint at `url`: a prefix, any of its files, its directory, or the state file.

    With `how.salvage`, missing or truncated shards are not an error here but when one of their tensors is read.
    """
    location = locate.find(url)
    if not location.index_file:
        return v1.open_tables(location.tables)
    bundle = read(location.index_file, salvage=how.salvage)
    checkpoint = objects.named(bundle, location.notes)
    meta = location.index_file.removesuffix(".index") + ".meta"
    if not is_remote(meta) and exists(meta):
        return replace(checkpoint, details={**checkpoint.details, **graph.meta_details(beside(url, meta))})
    return checkpoint


def writer(url: str, max_shard_size: int | None = None) -> BundleWriter:
    """Write a checkpoint with the prefix `url`; the path of its .index is accepted as well."""
    return BundleWriter(url, max_shard_size)


# --- writing ----------------------------------------------------------------------------------------------------


@dataclass
class BundleWriter:
    """Lay out a checkpoint with the prefix `url`; `place` records the slots from which `seal` builds the index."""

    url: str
    max_shard_size: int | None = None
    _placed: list[tuple[Tensor, Slot, int]] = field(default_factory=list)  # tensor, slot, shard
    _strings: dict[str, int] = field(default_factory=dict)  # CRCs of string tensors, which differ from their slots'
    _keys: dict[str, str] = field(default_factory=dict)  # keys of tensors in the object graph, by name
    _graph: tuple[Slot, int, int] | None = None  # the object graph's slot, shard and CRC
    _ours: bytes = b""  # metadata, for the header

    @property
    def base(self) -> str:
        return split(prefix_of(self.url))[1]

    def cannot_hold(self, tensor: Tensor) -> str:
        if not tensor.dtype.tf:
            return f"TensorFlow has no dtype {tensor.dtype}"
        if not tensor.name:
            return "the empty name is reserved for the index's header"
        if tensor.name == OBJECT_GRAPH:
            return "the name is reserved for the object graph"
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
        shards = self._cut(checkpoint)
        names = [f"{self.base}.data-{i:05d}-of-{len(shards):05d}" for i in range(len(shards))]
        files = [OutputFile(name, sum(size for _, size, _ in shard)) for name, shard in zip(names, shards, strict=True)]
        self._placed.clear()
        object_graph, self._keys = objects.kept(checkpoint)
        metadata = {
            k: v for k, v in checkpoint.metadata.items() if not object_graph or k != KEY
        }  # the graph holds its own
        self._ours = own_metadata.pack(metadata)
        slots: dict[str, Slot] = {}
        for i, (name, shard) in enumerate(zip(names, shards, strict=True)):
            at = 0
            for group, size, payload in shard:
                slot = Slot(name, at, size, payload)
                slots |= dict.fromkeys(group, slot)
                self._placed += [(checkpoint[n], slot, i) for n in group]
                at += size
        patches, notes = [], [*own_metadata.lost(checkpoint.metadata, "a TensorFlow checkpoint", ours=True)]
        self._graph = None
        if object_graph:
            payload, crc = elements.pack([object_graph])
            self._graph = Slot(names[-1], files[-1].size, len(payload)), len(shards) - 1, crc
            patches.append(Patch(names[-1], files[-1].size, payload))
            files[-1] = OutputFile(names[-1], files[-1].size + len(payload))
        elif "graph" in checkpoint.details:
            text = "the object graph is left out: it has other names. tf.train.Checkpoint cannot read the result"
            notes.append(Note("dropped", f"{text}; tf.train.load_checkpoint and tf.compat.v1.train.Saver can"))
        state = _state(self.base)
        files += [OutputFile(f"{self.base}.index", 0), OutputFile(STATE_FILE, len(state), shared=True)]
        ours = rf"{re.escape(self.base)}\.(index|data-\d{{5}}-of-\d{{5}})"
        ordered = {name: slots[name] for name in checkpoint}
        patches.append(Patch(STATE_FILE, 0, state))
        return Placement(files, ordered, patches, check="crc32c", stale=ours, notes=notes)

    def _cut(self, checkpoint: Checkpoint) -> list[list[tuple[Sequence[str], int, bytes | None]]]:
        """Groups of tied names with their sizes, in order, divided into shards of at most `max_shard_size`."""
        self._strings.clear()
        shards: list[list[tuple[Sequence[str], int, bytes | None]]] = [[]]
        groups: dict[str, list[str]] = {}
        for name, owner in checkpoint.owners().items():
            groups.setdefault(owner, []).append(name)
        filled = 0
        for group in groups.values():
            tensor = checkpoint[group[0]]
            payload = self._encode(tensor, group) if tensor.dtype.kind == "s" else None
            size = tensor.nbytes if payload is None else len(payload)
            if self.max_shard_size is not None and shards[-1] and filled + size > self.max_shard_size:
                shards.append([])
                filled = 0
            shards[-1].append((group, size, payload))
            filled += size
        return shards

    def _encode(self, tensor: Tensor, names: Sequence[str]) -> bytes:
        items = (i.encode() if isinstance(i, str) else bytes(i) for i in tensor.numpy().ravel())
        payload, crc = elements.pack(list(items))
        self._strings |= dict.fromkeys(names, crc)
        return payload

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        from . import messages_pb2 as pb

        count = 1 + max((shard for _, _, shard in self._placed), default=0)
        header = pb.BundleHeaderProto(num_shards=count, version=pb.VersionDef(producer=1))
        more = varint(OURS << 3 | 2) + varint(len(self._ours)) + self._ours if self._ours else b""
        pairs = {b"": header.SerializeToString() + more}
        for tensor, slot, shard in self._placed:
            crc = self._strings.get(tensor.name, checks[tensor.name])
            key = self._keys.get(tensor.name, tensor.name)
            kind = pb.DataType.Name(tensor.dtype.tf)
            pairs[key.encode("utf-8", "surrogateescape")] = _entry(kind, tensor.shape, shard, slot, crc)
        if self._graph:
            slot, shard, crc = self._graph
            pairs[OBJECT_GRAPH.encode()] = _entry("DT_STRING", (), shard, slot, crc)
        return [Patch(f"{self.base}.index", 0, build(sorted(pairs.items())))]


def _state(base: str) -> bytes:
    """The text of the state file, as TensorFlow writes it."""
    from google.protobuf import text_format

    from . import messages_pb2 as pb

    try:
        state = pb.CheckpointState(model_checkpoint_path=base, all_model_checkpoint_paths=[base])
    except ValueError:
        raise UsageError(
            "TensorFlow's state file holds the prefix in UTF-8; choose one that is valid Unicode"
        ) from None
    return str(text_format.MessageToString(state, as_utf8=True)).encode()


def _entry(kind: str, shape: Sequence[int], shard: int, slot: Slot, crc: int) -> bytes:
    from . import messages_pb2 as pb

    dims = pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=n) for n in shape])
    return pb.BundleEntryProto(
        dtype=kind, shape=dims, shard_id=shard, offset=slot.start, size=slot.size, crc32c=mask(crc)
    ).SerializeToString()
