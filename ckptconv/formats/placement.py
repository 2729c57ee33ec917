"""Where a format puts the bytes: slots for tensors, patches for all else, decided before any data exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ..checkpoint import Checkpoint, Note, Tensor
from ..errors import (
    Unrepresentable,
    UsageError,
)
from ..messages import listing
from ..output.destination import OutputFile


class Slot(NamedTuple):
    """Where a tensor's bytes go, C-contiguous and little-endian: `size` bytes at `start` of an output file.

    `payload` replaces the tensor's own elements (a string tensor in the target's encoding).
    """

    file: str
    start: int
    size: int
    payload: bytes | None = None


class Patch(NamedTuple):
    """Bytes that are no tensor: headers, directories, indexes."""

    file: str
    start: int
    data: bytes


class Placement(NamedTuple):
    """The layout of an output before any data exists.

    files: in the order in which they are published (the index last); names relative to the destination's folder.
    slots: one per tensor name; tied names may share one slot. Everything outside slots and patches is zero.
    check: 'crc32', 'crc32c' or '': the checksum of each slot that `seal` wants.
    stale: names in the destination's folder (a regular expression) that belong to an older checkpoint of this name.
    unit: the output is a folder without an index: it is replaced as a whole.
    renamed: what a tensor will be called when it is read, where the format does not keep its name.
    notes: what a person should know of this layout, such as an order that was guessed.
    """

    files: Sequence[OutputFile]
    slots: Mapping[str, Slot]
    patches: Sequence[Patch] = ()
    check: str = ""
    stale: str = ""
    unit: bool = False
    renamed: Mapping[str, str] = {}
    notes: Sequence[Note] = ()

    def named(self, found: Checkpoint) -> Checkpoint:
        """What was read, under the names that it had when it was placed."""
        before = {new: old for old, new in self.renamed.items()}
        return found.with_tensors({before.get(n, n): t for n, t in found.tensors.items()}) if before else found


class Writer(Protocol):
    """Lay out an output. Both methods are pure; the engine does all writing."""

    def place(self, checkpoint: Checkpoint) -> Placement:
        """Choose files and offsets for all tensors; Unrepresentable, naming all, for what the format cannot hold."""

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        """Patches that could not be known before the data was written. Files may grow by them.

        checks: the checksum of each slot, by tensor name, if the placement asks for them.
        metadata: the checkpoint's again, if values of it were not known when it was placed, each as wide as then;
        a writer that keeps metadata renders again what holds it. Empty otherwise.
        """

    def cannot_hold(self, tensor: Tensor) -> str:
        """Why the format cannot hold this tensor (dtype or name), or ''."""


def refuse_unheld(writer: Writer, checkpoint: Checkpoint, title: str) -> None:
    """Raise Unrepresentable naming every tensor that the format cannot hold, and why."""
    whys = [(name, writer.cannot_hold(tensor)) for name, tensor in checkpoint.tensors.items()]
    bad = [f"{name}: {why}" for name, why in whys if why]
    if bad:
        raise Unrepresentable(
            f"{title} cannot hold {len(bad)} of {len(checkpoint)} tensors; leave them out with exclude= or "
            f"skip_unrepresentable=True, or cast them with dtype=:\n{listing(bad)}"
        )


def refuse_shards(checkpoint: Checkpoint, limit: int | None, title: str) -> None:
    """Raise UsageError where one file would pass the size asked for and the format knows no shards."""
    if limit is not None and checkpoint.nbytes > limit:
        raise UsageError(f"{title} is one file; max_shard_size= needs a format that can be split")
