"""TensorFlow V2 checkpoints: an index and data files. The format's face; bundle.py reads, write.py writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...checkpoint import Checkpoint
from ...storage.files import Seen, exists, is_remote
from ..reading import Reading
from . import locate
from .bundle import read
from .table import MAGIC, first_value_tag

if TYPE_CHECKING:
    from .write import BundleWriter


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        if "saved_model.pb" in seen.files or "saved_model.pbtxt" in seen.files:
            return 0
        state = "checkpoint" in seen.files and locate.is_state(seen.url.rstrip("/") + "/checkpoint")
        if any(n.endswith(".index") for n in seen.files):
            return 2
        return 2 if state or exists(seen.url.rstrip("/") + ".index") else 0
    if seen.tail.endswith(MAGIC):
        if first_value_tag(seen.head) in (-1, 0x08, 0x10, 0x1A):
            return 3
        return int(seen.base.endswith(".index"))  # a table, but damaged at its head: opening says how
    if seen.base == "checkpoint":
        return 2 if seen.head.lstrip().startswith((locate.STATE, b"all_" + locate.STATE)) else 0
    prefix = locate.meant(seen.url)
    if seen.size >= 0 and prefix == seen.url:
        return 0
    if seen.url.endswith(".index") and prefix != seen.url:
        return 1
    return 3 if exists(prefix + ".index") else int(bool(locate.DATA.fullmatch(seen.base)))


def open(url: str, how: Reading) -> Checkpoint:
    """Open the checkpoint at `url`: a prefix, any of its files, its directory, or the state file.

    With `how.salvage`, missing or cut shards are no error yet; it comes for each tensor when it is read.
    """
    found = locate.find(url)
    if not found.file:
        from . import v1

        return v1.open_tables(found.tables)
    bundle = read(found.file, salvage=how.salvage)
    from . import objects, saved_model

    checkpoint = objects.named(bundle, found.notes)
    meta = found.file.removesuffix(".index") + ".meta"
    if not is_remote(meta) and exists(meta):
        return replace(checkpoint, details={**checkpoint.details, **saved_model.meta_details(meta)})
    return checkpoint


def writer(url: str, max_shard_size: int | None = None) -> BundleWriter:
    """Write a checkpoint whose prefix is `url` (its .index will do)."""
    from .write import BundleWriter

    return BundleWriter(url, max_shard_size)
