"""TensorFlow V2 checkpoints: an index and data files. The entry of the format; bundle.py reads, write.py writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...checkpoint import Checkpoint
from ...errors import UnsafeCheckpoint
from ...storage.files import Seen, exists, is_remote, join
from ...storage.paths import beside
from ..reading import Reading
from ..signatures import SAVED_MODELS, is_table
from . import locate
from .bundle import read
from .table import first_value_tag

if TYPE_CHECKING:
    from .write import BundleWriter


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 2 if _in_folder(seen) else 0
    if is_table(seen):
        if first_value_tag(seen.head) in (-1, 0x08, 0x10, 0x1A):
            return 3
        return int(seen.base.endswith(".index"))  # a table with a damaged head: opening reports the damage
    if seen.base == locate.STATE_FILE:
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
        or (locate.STATE_FILE in seen.files and _has_state(seen.url))
        or exists(folder + ".index")
    )


def _has_state(folder: str) -> bool:
    try:
        return locate.is_state(join(folder, locate.STATE_FILE), folder)
    except UnsafeCheckpoint:
        return True  # a link out of the folder, which is not looked at: opening refuses it


def open(url: str, how: Reading) -> Checkpoint:
    """Open the checkpoint at `url`: a prefix, any of its files, its directory, or the state file.

    With `how.salvage`, missing or truncated shards are not an error here but when one of their tensors is read.
    """
    location = locate.find(url)
    if not location.index_file:
        from . import v1

        return v1.open_tables(location.tables)
    bundle = read(location.index_file, salvage=how.salvage)
    from . import objects, saved_model

    checkpoint = objects.named(bundle, location.notes)
    meta = location.index_file.removesuffix(".index") + ".meta"
    if not is_remote(meta) and exists(meta):
        return replace(checkpoint, details={**checkpoint.details, **saved_model.meta_details(beside(url, meta))})
    return checkpoint


def writer(url: str, max_shard_size: int | None = None) -> BundleWriter:
    """Write a checkpoint with the prefix `url`; the path of its .index is accepted as well."""
    from .write import BundleWriter

    return BundleWriter(url, max_shard_size)
