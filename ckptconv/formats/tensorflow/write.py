"""Write a TensorFlow V2 checkpoint: shards packed in the order of the tensors, the index as TensorFlow lays it out.

P.data-00000-of-00002 ...    raw elements, no alignment; tied names share one range
P.index                      known when all checksums are (seal)
checkpoint                   the state file by which tf.train.latest_checkpoint finds P
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...checkpoint import Checkpoint, Tensor
from ...errors import UsageError
from ...output.destination import OutputFile
from ...storage.checksum import mask
from ...storage.files import split
from ..placement import Patch, Placement, Slot, refuse_unheld
from . import strings
from .bundle import OBJECT_GRAPH
from .locate import prefix_of
from .table import build

STATE = "checkpoint"


@dataclass
class BundleWriter:
    """Lay out a checkpoint with the prefix `url`; `place` keeps what `seal` needs for the index."""

    url: str
    max_shard_size: int | None = None
    _placed: list[tuple[Tensor, Slot, int]] = field(default_factory=list)  # tensor, slot, shard
    _strings: dict[str, int] = field(default_factory=dict)  # CRCs of string tensors, which no slot's bytes have

    @property
    def base(self) -> str:
        return split(prefix_of(self.url))[1]

    def cannot_hold(self, tensor: Tensor) -> str:
        if not tensor.dtype.tf:
            return f"TensorFlow has no dtype {tensor.dtype}"
        if not tensor.name:
            return "the empty name is the index's header"
        if tensor.name == OBJECT_GRAPH:
            return "the name is that of the object graph"
        try:
            tensor.name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return "the name is not valid Unicode"
        return ""

    def place(self, checkpoint: Checkpoint) -> Placement:
        if not self.base:
            raise UsageError("a TensorFlow checkpoint needs a prefix, like folder/model.ckpt", url=self.url)
        if self.base == STATE:
            raise UsageError("the prefix `checkpoint` is the state file's name; choose another", url=self.url)
        refuse_unheld(self, checkpoint, "a TensorFlow checkpoint")
        shards = self._cut(checkpoint)
        names = [f"{self.base}.data-{i:05d}-of-{len(shards):05d}" for i in range(len(shards))]
        files = [OutputFile(name, sum(size for _, size, _ in shard)) for name, shard in zip(names, shards, strict=True)]
        self._placed.clear()
        slots: dict[str, Slot] = {}
        for i, (name, shard) in enumerate(zip(names, shards, strict=True)):
            at = 0
            for group, size, payload in shard:
                slot = Slot(name, at, size, payload)
                slots |= dict.fromkeys(group, slot)
                self._placed += [(checkpoint[n], slot, i) for n in group]
                at += size
        state = _state(self.base)
        files += [OutputFile(f"{self.base}.index", 0), OutputFile(STATE, len(state), shared=True)]
        ours = rf"{re.escape(self.base)}\.(index|data-\d{{5}}-of-\d{{5}})"
        ordered = {name: slots[name] for name in checkpoint}
        return Placement(files, ordered, [Patch(STATE, 0, state)], check="crc32c", stale=ours)

    def _cut(self, checkpoint: Checkpoint) -> list[list[tuple[Sequence[str], int, bytes | None]]]:
        """Groups of tied names with their sizes, in order, cut into shards of the size asked for."""
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
        payload, crc = strings.pack(list(items))
        self._strings |= dict.fromkeys(names, crc)
        return payload

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        from . import messages_pb2 as pb

        count = 1 + max((shard for _, _, shard in self._placed), default=0)
        header = pb.BundleHeaderProto(num_shards=count, version=pb.VersionDef(producer=1))
        pairs = {b"": header.SerializeToString()}
        for tensor, slot, shard in self._placed:
            crc = self._strings.get(tensor.name, checks[tensor.name])
            shape = pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=n) for n in tensor.shape])
            kind = pb.DataType.Name(tensor.dtype.tf)
            entry = pb.BundleEntryProto(
                dtype=kind, shape=shape, shard_id=shard, offset=slot.start, size=slot.size, crc32c=mask(crc)
            )
            pairs[tensor.name.encode("utf-8", "surrogateescape")] = entry.SerializeToString()
        return [Patch(f"{self.base}.index", 0, build(sorted(pairs.items())))]


def _state(base: str) -> bytes:
    """The text of the state file, as TensorFlow writes it."""
    from google.protobuf import text_format

    from . import messages_pb2 as pb

    state = pb.CheckpointState(model_checkpoint_path=base, all_model_checkpoint_paths=[base])
    return str(text_format.MessageToString(state, as_utf8=True)).encode()
