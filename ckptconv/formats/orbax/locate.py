"""Find the folders that hold arrays: one checkpoint, an item of a step, or the newest step of a training run.

    run/1000/state/_METADATA            run: CheckpointManager's folder; run/1000: a step; run/1000/state: an item
    run/1000/metrics/metrics            an item without arrays
    run/2000.orbax-checkpoint-tmp-17/   a step that was not finished
    checkpoint_1000/target.encoder.w/.zarray    T5X: arrays, and `checkpoint` beside them

Specification: orbax/checkpoint/_src/path/step.py, atomicity.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import CorruptCheckpoint
from ...messages import printable
from ...storage.files import exists, join, names, sibling, split

MANIFEST = "manifest.ocdbt"  # of a database
METADATA, MSGPACK = "_METADATA", "checkpoint"  # the tree, and what older versions have instead
V2, V3 = ".zarray", "zarr.json"  # of an array
STEP = re.compile(r"(?:[^.]*[_-])?(\d{1,18})")
UNFINISHED = ".orbax-checkpoint-tmp"
PROBES = 8  # folders that are searched for arrays
MAX_ITEMS = 64
COMMITTED = "commit_success.txt"
ASIDE = ("_sharding", "_CHECKPOINT_METADATA", COMMITTED, "array_metadatas", "_strings.json", METADATA)


class Place(NamedTuple):
    """The folders that hold arrays, by the names of items ('' for the only one); the step; items without arrays."""

    items: dict[str, str]
    step: str
    others: tuple[str, ...]


def find(url: str) -> Place | None:
    """The arrays in a folder; None if it has none of Orbax or zarr."""
    there = names(url)
    if _holds_arrays(url, there):
        return Place({"": url}, "", ())
    if place := _step(url, there):
        return place
    steps = sorted((int(m[1]), n) for n in there if (m := STEP.fullmatch(n)))
    if not steps:
        return None
    step = steps[-1][1]
    at = sibling(join(url, "."), step)
    inside = names(at)
    place = Place({"": at}, "", ()) if _holds_arrays(at, inside) else _step(at, inside)
    return place and place._replace(step=step)


def _step(url: str, there: Sequence[str]) -> Place | None:
    """The items of a step's folder."""
    folders = [n for n in there if n not in ASIDE and not n.startswith(".")]
    if len(folders) > MAX_ITEMS:
        return None
    likely = [n for n in folders if UNFINISHED not in n and not STEP.fullmatch(n)]
    held = [n for n in likely if _holds_arrays(at := join(url, n), names(at), deep=False)]
    items = {n: sibling(join(url, "."), n) for n in held}  # only now, so that links in other folders are not refused
    if not items:
        return None
    return Place({"": next(iter(items.values()))} if len(items) == 1 else items, "",
                 tuple(n for n in folders if n not in items))  # fmt: skip


def _holds_arrays(url: str, there: Sequence[str], *, deep: bool = True) -> bool:
    if MANIFEST in there or METADATA in there:
        return True
    if V2 in there or V3 in there:
        return False  # one array, without a name
    probed = [n for n in there if not n.startswith((".", "_")) and n != MSGPACK]
    return deep and any({V2, V3} & set(names(join(url, n))) for n in probed[:PROBES])


def is_unfinished(url: str, there: Sequence[str]) -> bool:
    """Whether a folder is the incomplete output of an interrupted save, by its name or the names in it."""
    return UNFINISHED in split(url.rstrip("/"))[1] and any(n in ASIDE or n.startswith("ocdbt.process_") for n in there)


def refuse_unfinished(url: str) -> None:
    """Raise CorruptCheckpoint for the incomplete output of an interrupted save."""
    name = split(url.rstrip("/"))[1]
    if UNFINISHED in name:
        raise CorruptCheckpoint(f"{printable(name)} was not finished when it was saved", url=url)
    if not exists(join(url, MANIFEST)) and any(n.startswith("ocdbt.process_") for n in names(url)):
        raise CorruptCheckpoint("was not finished: its processes' databases have not been merged", url=url)
