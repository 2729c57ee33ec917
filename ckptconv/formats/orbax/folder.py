"""Orbax: a folder of zarr arrays, in a database or in folders of their own, and the tree whose leaves they are.

    manifest.ocdbt, d/...               the arrays in an OCDBT database (ocdbt.py)
    params.decoder.kernel/.zarray, 0.0  or each in a folder (arrays.py), as T5X has them as well
    _METADATA, or `checkpoint`          the tree (items.py)

A step of CheckpointManager has items (items.py); of a run's folder the newest step is read (locate.py).
Specification: orbax/checkpoint/_src.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...checkpoint import Checkpoint
from ...errors import CorruptCheckpoint
from ...messages import listing
from ...storage.files import Seen, is_dir, names, split
from ..table import Reading
from . import locate

if TYPE_CHECKING:
    from .write import OrbaxWriter


def sniff(seen: Seen) -> int:
    if not seen.is_dir:
        named = seen.base == locate.MANIFEST or (seen.base == locate.METADATA and b"tree_metadata" in seen.head)
        return 4 if named and seen.size > 0 else 0
    if locate.is_unfinished(seen.url, seen.files) or locate.find(seen.url):
        return 3
    return 2 if any(locate.UNFINISHED in n for n in seen.files) else 0


def open(url: str, how: Reading) -> Checkpoint:
    """Open a checkpoint, a step with its items, or the newest step of a run; also by its manifest or `_METADATA`."""
    by_file = split(url)[1] in (locate.MANIFEST, locate.METADATA) and not is_dir(url)
    root = split(url)[0] if by_file else url
    locate.refuse_incomplete(root)
    place = locate.Place({"": root}) if by_file else locate.find(root)
    if place is None:
        left = [n for n in names(root) if locate.UNFINISHED in n]
        if left:
            raise CorruptCheckpoint(f"holds no finished step:\n{listing(left)}", url=url)
        raise CorruptCheckpoint("holds no arrays of Orbax or zarr", url=url)
    from . import items  # only now: detection asks about every folder

    return items.read(place, how)


def writer(url: str, max_shard_size: int | None = None) -> OrbaxWriter:
    """Write a folder; `max_shard_size` bounds a chunk."""
    from .write import OrbaxWriter

    return OrbaxWriter(url, max_shard_size)
