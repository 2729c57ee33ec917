"""Orbax: a folder of zarr arrays, in a database or in folders of their own, and the tree whose leaves they are.

    manifest.ocdbt, d/...               the arrays in an OCDBT database (ocdbt.py)
    params.decoder.kernel/.zarray, 0.0  or each in a folder (zarr.py), as T5X has them as well
    _METADATA, or `checkpoint`          the tree (items.py)

A step of a training run has items, which are such folders; of the folder of a run the newest finished step is read:

    run/1000/state/_METADATA            run: CheckpointManager's folder; run/1000: a step; run/1000/state: an item
    run/1000/metrics/metrics            an item without arrays
    run/2000.orbax-checkpoint-tmp-17/   a step that was not finished
    checkpoint_1000/target.encoder.w/.zarray    T5X: arrays, and `checkpoint` beside them

Specification: orbax/checkpoint/_src/path/step.py, atomicity.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...checkpoint import Checkpoint, Note
from ...errors import CorruptCheckpoint
from ...messages import brief, listing, printable
from ...storage.files import Seen, is_dir, is_remote, join, names, split, within
from ..table import Reading
from .ocdbt import ASIDE, COMMITTED, MANIFEST, METADATA, MSGPACK, STEPPED, V2, V3

if TYPE_CHECKING:
    from .write import OrbaxWriter

STEP = re.compile(r"(?:[^.]*[_-])?(\d{1,18})")
UNFINISHED = ".orbax-checkpoint-tmp"
PROBES = 8  # folders that are searched for arrays
MAX_ITEMS = 64
PROCESS = "ocdbt.process_"


def sniff(seen: Seen) -> int:
    if not seen.is_dir:
        named = seen.base == MANIFEST or (seen.base == METADATA and b"tree_metadata" in seen.head)
        return 4 if named and seen.size > 0 else 0
    unfinished = UNFINISHED in split(seen.url.rstrip("/"))[1]
    if (unfinished and any(n in ASIDE or n.startswith(PROCESS) for n in seen.files)) or find(seen.url):
        return 3
    return 2 if any(UNFINISHED in n for n in seen.files) else 0


def open(url: str, how: Reading) -> Checkpoint:
    """Open a checkpoint, a step with its items, or the newest step of a run; also by its manifest or `_METADATA`."""
    by_file = split(url)[1] in (MANIFEST, METADATA) and not is_dir(url)
    root = split(url)[0] if by_file else url
    _refuse_incomplete(root)
    place = Place({"": root}) if by_file else find(root)
    if place is None:
        left = [n for n in names(root) if UNFINISHED in n]
        what = f"holds no finished step:\n{listing(left)}" if left else "holds no arrays of Orbax or zarr"
        raise CorruptCheckpoint(what, url=url)
    for folder in place.items.values():
        _refuse_incomplete(folder)
    from . import items  # only now: detection asks about every folder

    return items.read(place.items, how, place.notes)


def writer(url: str, max_shard_size: int | None = None) -> OrbaxWriter:
    from .write import OrbaxWriter

    return OrbaxWriter(url, max_shard_size)


class Place(NamedTuple):
    """The folders that hold arrays, by the names of items ('' for the only one), and what is told of them."""

    items: dict[str, str]
    notes: tuple[Note, ...] = ()


def find(url: str) -> Place | None:
    """The arrays in a folder: one checkpoint, a step, or the newest finished step; None if it has none."""
    there = names(url)
    if place := _place(url, there):
        if len(place.items) > 1 and STEPPED not in there and not STEP.fullmatch(split(url.rstrip("/"))[1]):
            loose = Note("assumed", "the folders are read as items of one checkpoint", tuple(place.items))
            return place._replace(notes=(loose, *place.notes))
        return place
    numbered = [(int(m[1]), n) for n in there if (m := STEP.fullmatch(n))]
    steps = [n for _, n in sorted(numbered, reverse=True)]
    for i, step in enumerate(steps[:PROBES]):
        at = within(url, step)
        inside = names(at)
        place = _place(at, inside)
        if place is None and inside:
            return None  # perhaps no step of Orbax
        # in an object store a step that lacks the file that is written at last, where the one before has it
        late = is_remote(url) and COMMITTED not in inside
        late = late and any(COMMITTED in names(join(url, n)) for n in steps[i + 1 : i + 2])
        if place and not late and not any(map(_incomplete, place.items.values())):
            notes: tuple[Note, ...] = (Note("assumed", f"the newest step, {printable(brief(step))}, is read"),)
            if i:
                what = "newer steps, which are not finished"
                notes += (Note("unread", what, tuple(steps[:i]), tensors=False),)
            return place._replace(notes=notes + place.notes)
    return None


def _place(url: str, there: Sequence[str]) -> Place | None:
    """A checkpoint, or the items of a step."""
    if _has_head(there) or (not {V2, V3} & {*there} and _in_folders(url, there)):
        return Place({"": url})
    folders = [n for n in there if n not in ASIDE and not n.startswith(".")]
    if len(folders) > MAX_ITEMS:
        return None
    likely = [n for n in folders if UNFINISHED not in n and not STEP.fullmatch(n)]
    held = [n for n in likely if _has_head(names(join(url, n)))]
    items = {n: within(url, n) for n in held}  # only now, so that links in other folders are not refused
    if not items:
        return None
    others = tuple(n for n in folders if n not in items)
    notes = (Note("unread", "items that hold no arrays", others, tensors=False),) if others else ()
    return Place({"": next(iter(items.values()))} if len(items) == 1 else items, notes)


def _has_head(there: Sequence[str]) -> bool:
    return MANIFEST in there or METADATA in there


def _in_folders(url: str, there: Sequence[str]) -> bool:
    """Whether the folders in a folder are arrays; the first few tell."""
    probed = [n for n in there if not n.startswith((".", "_")) and n not in (*ASIDE, MSGPACK)]
    return any({V2, V3} & set(names(join(url, n))) for n in probed[:PROBES])


def _incomplete(url: str) -> str:
    """Why a folder is not a whole checkpoint, or ''."""
    name, there = split(url.rstrip("/"))[1], names(url)
    if UNFINISHED in name:
        return f"{printable(name)} was not finished when it was saved"
    if name.startswith(PROCESS):
        return "is the database of one of the processes that saved a checkpoint; read the folder that it is in"
    if MANIFEST in there:
        return ""
    if any(n.startswith(PROCESS) for n in there):
        return f"was not finished, or lost its {MANIFEST}: its processes' databases have not been merged"
    if METADATA in there and MSGPACK not in there and not _in_folders(url, there):
        return (
            f"has a tree, but neither a {MANIFEST} nor folders with its arrays: it was not finished, or copied in part"
        )
    return ""


def _refuse_incomplete(url: str) -> None:
    """Raise CorruptCheckpoint for the output of an interrupted save, and for a part of a checkpoint."""
    if why := _incomplete(url):
        raise CorruptCheckpoint(why, url=url)
