"""Find the folders that hold arrays: one checkpoint, an item of a step, or the newest step of a training run.

    run/1000/state/_METADATA            run: CheckpointManager's folder; run/1000: a step; run/1000/state: an item
    run/1000/metrics/metrics            an item without arrays
    run/2000.orbax-checkpoint-tmp-17/   a step that was not finished
    checkpoint_1000/target.encoder.w/.zarray    T5X: arrays, and `checkpoint` beside them

Specification: orbax/checkpoint/_src/path/step.py, atomicity.py.

The values of a folder are the files in it, by their paths, or what an OCDBT database in it says (ocdbt.py).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, listing, printable
from ...storage.files import Reader, is_remote, join, names, sibling, split, walk

MANIFEST = "manifest.ocdbt"  # of a database
METADATA, MSGPACK = "_METADATA", "checkpoint"  # the tree, and what older versions have instead
V2, V3 = ".zarray", "zarr.json"  # of an array
STEP = re.compile(r"(?:[^.]*[_-])?(\d{1,18})")
UNFINISHED = ".orbax-checkpoint-tmp"
PROBES = 8  # folders that are searched for arrays
MAX_ITEMS = 64
COMMITTED = "commit_success.txt"
STEPPED = "_CHECKPOINT_METADATA"  # in the folder of a step
PROCESS = "ocdbt.process_"
ASIDE = ("_sharding", STEPPED, COMMITTED, "orbax.checkpoint", "array_metadatas", "_strings.json", METADATA)


class Place(NamedTuple):
    """The folders that hold arrays, by the names of items ('' for the only one), and what is told of them.

    step: which was chosen. others: items without arrays. passed: newer steps that are not finished. loose: nothing says
    that the items belong together.
    """

    items: dict[str, str]
    step: str = ""
    others: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    loose: bool = False


def find(url: str) -> Place | None:
    """The arrays in a folder; None if it has none of Orbax or zarr."""
    there = names(url)
    if place := _place(url, there):
        told = STEPPED in there or STEP.fullmatch(split(url.rstrip("/"))[1])
        return place._replace(loose=len(place.items) > 1 and not told)
    steps = sorted((int(m[1]), n) for n in there if (m := STEP.fullmatch(n)))
    return _newest(url, [n for _, n in reversed(steps)])


def _place(url: str, there: Sequence[str]) -> Place | None:
    """A checkpoint, or a step."""
    return Place({"": url}) if _holds_arrays(url, there) else _step(url, there)


def _newest(url: str, steps: Sequence[str]) -> Place | None:
    """The newest finished step; None if the newest that is not empty has no arrays, and is perhaps no step of Orbax."""
    for i, step in enumerate(steps[:PROBES]):
        at = sibling(join(url, "."), step)
        inside = names(at)
        place = _place(at, inside)
        if place is None and inside:
            return None
        if place and not _is_behind(url, inside, steps[i + 1 :]) and not any(map(incomplete, place.items.values())):
            return place._replace(step=step, passed=tuple(steps[:i]))
    return None


def _is_behind(url: str, inside: Sequence[str], older: Sequence[str]) -> bool:
    """Whether a step in an object store lacks the file that is written at last, and the one before has it."""
    return is_remote(url) and COMMITTED not in inside and any(COMMITTED in names(join(url, n)) for n in older[:1])


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
    others = tuple(n for n in folders if n not in items)
    return Place({"": next(iter(items.values()))} if len(items) == 1 else items, others=others)


def _holds_arrays(url: str, there: Sequence[str], *, deep: bool = True) -> bool:
    if MANIFEST in there or METADATA in there:
        return True
    if V2 in there or V3 in there:
        return False  # one array, without a name
    return deep and _in_folders(url, there)


def _in_folders(url: str, there: Sequence[str]) -> bool:
    """Whether the folders in a folder are arrays; the first few tell."""
    probed = [n for n in there if not n.startswith((".", "_")) and n not in (*ASIDE, MSGPACK)]
    return any({V2, V3} & set(names(join(url, n))) for n in probed[:PROBES])


def is_unfinished(url: str, there: Sequence[str]) -> bool:
    """Whether a folder is the incomplete output of an interrupted save, by its name or the names in it."""
    return UNFINISHED in split(url.rstrip("/"))[1] and any(n in ASIDE or n.startswith(PROCESS) for n in there)


def incomplete(url: str) -> str:
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


def refuse_incomplete(url: str) -> None:
    """Raise CorruptCheckpoint for the output of an interrupted save, and for a part of a checkpoint."""
    if why := incomplete(url):
        raise CorruptCheckpoint(why, url=url)


# --- values -----------------------------------------------------------------------------------------------------

MAX_PARTS = 64  # folders in a path
RATIO, SLACK = 64, 45 * 2**20  # bytes of memory per stored byte, and for any checkpoint
WIDE = 4  # bytes that every letter of a text takes if one of them is of a distant script


class Value(NamedTuple):
    """Bytes [start, start+size) of a file, or `data` stored inline in a node of a database."""

    url: str
    start: int
    size: int
    data: bytes | None = None

    def read(self, limit: int) -> bytes:
        """Read a small value completely; CorruptCheckpoint if it has more than `limit` bytes."""
        if self.size > limit:
            raise CorruptCheckpoint(f"has {self.size} bytes of metadata; at most {limit} are sensible", url=self.url)
        return self.part(0, self.size)

    def within(self, start: int, size: int) -> Value:
        """The value of some of its bytes."""
        if self.data is not None:
            return self._replace(size=size, data=self.data[start : start + size])
        return self._replace(start=self.start + start, size=size)

    def part(self, start: int, size: int) -> bytes:
        if self.data is not None:
            return self.data[start : start + size]
        with Reader(self.url) as f:
            return f.read(self.start + start, size)


class Room:
    """The memory that a checkpoint may take: what is stored allows it, and whatever is made of that is counted.

    A node of a database is packed, so that a few bytes of it could stand for any number of keys, arrays and chunks.
    """

    def __init__(self, url: str) -> None:
        self.url, self.left = url, SLACK
        self._given = set[Hashable]()

    def give(self, file: Hashable, size: int) -> None:
        """Count the bytes of a file, each file once."""
        if file not in self._given:
            self._given.add(file)
            self.left += RATIO * size

    def take(self, size: int, what: str) -> None:
        self.left -= size
        if self.left < 0:
            raise UnsafeCheckpoint(f"the {what} repeat without bound: few stored bytes stand for them", url=self.url)


def inside(root: str, path: str) -> str:
    """The URL of a file by its path in the checkpoint's folder; UnsafeCheckpoint if path or link lead out of it."""
    parts = path.split("/")
    if len(parts) > MAX_PARTS:
        raise UnsafeCheckpoint(f"names a file {len(parts)} folders deep", url=root)
    at = root
    for part in parts:
        at = sibling(join(at, "."), part)
    return at


def of_folder(root: str) -> dict[str, Value]:
    """All files below a folder, by their paths in it.

    Refused are names that `walk` passes over, links to folders or to nothing and pipes: chunks would seem to be absent.
    """
    out = {}
    for folder, under, folders, files in walk(root):
        if not is_remote(root) and (passed := sorted(set(names(folder)).difference(folders, files))):
            what = "holds links to folders or to nothing, pipes or devices, which are not read"
            raise UnsafeCheckpoint(f"{what}:\n{listing(passed)}", url=folder)
        for name, status in files.items():
            path = f"{under}/{name}" if under else name
            out[path] = Value(inside(root, path), 0, status.size)
    return out


def check_apart(values: Mapping[str, Value]) -> None:
    """Refuse values that share bytes, because one file could then be read once for each name."""
    places = sorted((v.url, v.start, v.size, key) for key, v in values.items() if v.data is None and v.size)
    for one, other in pairwise(places):
        if one[0] == other[0] and other[1] < one[1] + one[2]:
            both = " and ".join(printable(brief(p[3], 100)) for p in (one, other))
            raise CorruptCheckpoint(f"{both} share the byte {other[1]}", url=one[0])
