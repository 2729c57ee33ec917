"""The layout of an output: slots for tensors, patches for everything else, decided before any data exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from ..checkpoint import Checkpoint, Note, Tensor
from ..dtypes import DTYPES
from ..errors import Unrepresentable, UsageError
from ..messages import many, reasons
from ..output.destination import OutputFile
from ..storage.files import split

HALF = re.compile("[\\ud800-\\udfff]")  # of a surrogate pair


class Slot(NamedTuple):
    """The place of a tensor's bytes, C-contiguous and little-endian: `size` bytes at byte `start` of an output file.

    file: the name of the OutputFile. payload: replaces the tensor's elements (a string tensor in the target's
    encoding).
    """

    file: str
    start: int
    size: int
    payload: bytes | None = None


class Patch(NamedTuple):
    """Bytes that do not belong to a tensor: headers, directories, indexes.

    file: the name of the OutputFile. start: the position of the first byte. data: the bytes.
    """

    file: str
    start: int
    data: bytes


class Placement(NamedTuple):
    """The layout of an output before any data exists.

    files: in the order of publication (the index last); names are relative to the destination's folder.
    slots: one per tensor name; tied names can share one slot. Bytes outside of slots and patches are zero.
    check: 'crc32', 'crc32c' or '': the checksum of each slot that `seal` needs.
    stale: a regular expression for names in the destination's folder that belong to an older checkpoint of this name.
    unit: the output is a folder without an index, which is replaced as a whole.
    renamed: what a tensor will be called when it is read, where the format does not keep its name.
    notes: what the user should know about this layout, such as an order that was guessed.
    copied: the urls of other files that are copied into it. values: the names of values that are not tensors and are
    written as well.
    """

    files: Sequence[OutputFile]
    slots: Mapping[str, Slot]
    patches: Sequence[Patch] = ()
    check: str = ""
    stale: str = ""
    unit: bool = False
    renamed: Mapping[str, str] = {}
    notes: Sequence[Note] = ()
    copied: Sequence[str] = ()
    values: Sequence[str] = ()

    def named(self, found: Checkpoint) -> Checkpoint:
        """The checkpoint that was read back, under the names that its tensors had when they were placed."""
        before = {new: old for old, new in self.renamed.items()}
        return found.with_tensors({before.get(n, n): t for n, t in found.tensors.items()}) if before else found


def together(placed: Sequence[Placement]) -> Placement:
    """The layout of several files, each of which was laid out by itself."""
    slots = {name: slot for p in placed for name, slot in p.slots.items()}
    patches = [patch for p in placed for patch in p.patches]
    return Placement([f for p in placed for f in p.files], slots, patches, placed[0].check)


class Writer(Protocol):
    """Lay out an output. All methods are pure; the engine does all writing."""

    def place(self, checkpoint: Checkpoint) -> Placement:
        """Choose files and offsets for all tensors; Unrepresentable lists all tensors that the format cannot hold."""

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Iterable[Patch]:
        """The patches that depend on the data, after it is written. Files can grow by them.

        checks: the checksum of each slot, by tensor name, if the placement has a `check`.
        metadata: the checkpoint's metadata with values that are known only now, each as wide as when it was placed; a
        writer that keeps metadata renders the parts that contain it again. Empty if nothing changed.
        """

    def cannot_hold(self, tensor: Tensor) -> str:
        """The reason why the format cannot hold this tensor (dtype or name), or ''."""


def is_text(name: str) -> bool:
    """Whether a name is valid Unicode, without half a surrogate pair."""
    return name.isascii() or HALF.search(name) is None


def refuse_unheld(writer: Writer, checkpoint: Checkpoint, title: str) -> None:
    """Raise Unrepresentable with every tensor that the format cannot hold, and the reasons."""
    if bad := {name: why for name, tensor in checkpoint.items() if (why := writer.cannot_hold(tensor))}:
        hint = "; skip_unrepresentable=True leaves them out" * (len(bad) < len(checkpoint))
        cast = [replace(t, dtype=DTYPES["float32"]) for n in bad if (t := checkpoint[n]).dtype.kind == "f"]
        hint += "; dtype='float32' casts floats" * (len(cast) == len(bad) and not any(map(writer.cannot_hold, cast)))
        raise Unrepresentable(
            f"{title} cannot hold {len(bad)} of {many(len(checkpoint), 'tensor')}{hint}:\n{reasons(bad)}"
        )


def refuse_shards(checkpoint: Checkpoint, limit: int | None, title: str) -> None:
    """Raise UsageError if the checkpoint is larger than `limit` bytes; for formats without shards."""
    if limit is not None and checkpoint.nbytes > limit:
        raise UsageError(f"{title} is one file; max_shard_size= needs a format with shards")


def folder_name(url: str, title: str) -> str:
    """The name of an output that is a folder; UsageError if the path ends in none."""
    base = split(url.rstrip("/"))[1]
    if base in ("", ".", ".."):
        raise UsageError(f"{title} is a folder, which needs a name", url=url)
    return base
