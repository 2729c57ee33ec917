"""HDF5: any dataset is a tensor, any attribute metadata; the HDF5 library runs in another process only (sandbox.py).

    0, 512, 1024, ...   89 'HDF' 0d 0a 1a 0a      superblock, after an arbitrary user block
    offset              a contiguous dataset's bytes: a Span, read without the library
    chunks, compact     read by the library: Coded, key = "//path", or "member//path" in a zip

    PK 03 04 ... name extra | bytes               a stored file in a zip (.keras)

The library's process sends one record for each group, dataset, and further name of a dataset:

    {"path": "a", "group": true, "attrs": {"epoch": 3, "names": ["x", "y"]}}
    {"path": "a/w", "dtype": "float32", "shape": [2, 3], "offset": 800, "swap": false, "itemsize": 4, "attrs": {}}
    {"path": "a/v", "same": "a/w"}    {"path": "a/x", "skip": "why"}

Each field is checked, and files that declare far more than they store are refused. Names are paths. Attributes of the
root are metadata; those of groups and datasets are `details["values"]`. Specification: HDF5 File Format 3.0.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Details, Note, NoteKind, Role, Tensor, contiguous
from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import Coded, Span, checked_count
from ...storage.files import Reader, Seen, is_remote
from .. import zip
from ..table import Reading, is_hdf5
from ..zip import Member
from . import NO_DATA, RATIO, sandbox
from .sandbox import FileImage
from .write import Hdf5Writer

writer = Hdf5Writer
GUESSES = {  # by size, for opaque elements of which the file says no dtype
    2: ("bfloat16", "2 opaque bytes per element: assumed to be bfloat16, as Keras writes it"),
    1: ("uint8", "1 opaque byte per element, perhaps a float8 that the file does not name; read as uint8"),
}
ODD_ATTRIBUTES = "attributes that are neither numbers nor text"
MEMORY, MORE_MEMORY = 64, 32 << 20  # bytes that all records may take, per byte that is stored and in addition
SLACK = 64 << 20  # bytes that can be declared beyond `RATIO`: datasets that were never written are their fill value
WEIGHTS = {b"{": 240, b"[": 90, b",": 40}  # bytes of memory that a parsed value takes, by the byte that begins it
RECORD: dict[str, Any] = {  # what a record says that does not say otherwise
    "path": "", "group": False, "same": "", "skip": "", "note": "", "attrs": {},
    "dtype": "", "shape": [], "offset": -1, "swap": False, "itemsize": 0, "chunk": 0,
}  # fmt: skip


class Stored(NamedTuple):
    """One dataset: `offset` is the position of its bytes in the file, or -1 if the library must read them.

    chunk: bytes of a filtered chunk, which the library holds in memory, or 0.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    swap: bool
    attrs: dict[str, Any]
    same: str  # the path at which the same dataset occurred first
    chunk: int


class Tree(NamedTuple):
    """The contents of a file in the order of its links; `member` names a file in a zip, '' for a plain file."""

    url: str
    member: str
    datasets: dict[str, Stored]
    groups: dict[str, dict[str, Any]]
    notes: tuple[Note, ...]


def sniff(seen: Seen) -> int:
    return 2 if is_hdf5(seen) else 0


def open(url: str, how: Reading) -> Checkpoint:
    """Open a file: every dataset is a tensor, and datasets with several names are ties."""
    tree = look(url)
    tensors = {s.path: tensor(tree, s, s.path) for s in tree.datasets.values()}
    ties: dict[str, list[str]] = {}
    for s in tree.datasets.values():
        if s.same:
            ties.setdefault(s.same, [s.same]).append(s.path)
    metadata = {k: text(v) for k, v in tree.groups[""].items()}
    attributes = {p: a for p, a in tree.groups.items() if p and a}
    attributes |= {s.path: s.attrs for s in tree.datasets.values() if s.attrs}
    details = Details()
    notes = tree.notes
    if attributes:
        details["values"] = attributes
        notes = (*notes, Note("skipped", "attributes of groups and datasets", tuple(attributes), tensors=False))
    if any("MATLAB_class" in s.attrs for s in tree.datasets.values()):
        notes = (*notes, Note("hint", "MATLAB wrote this file: the axes of all tensors are in reverse order"))
    return Checkpoint(tensors, metadata, tuple(map(tuple, ties.values())), "hdf5", (url,), notes, details)


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tensor(tree: Tree, stored: Stored, name: str, *, role: Role = "") -> Tensor:
    """The tensor of a dataset."""
    kind = DTYPES[stored.dtype]
    size = checked_count(stored.shape, url=tree.url, tensor=name) * kind.itemsize
    data: Span | Coded = Span(tree.url, stored.offset, size)
    if stored.offset < 0:
        path = stored.same or stored.path  # tied names have one key
        data = Coded(__name__, tree.url, f"{tree.member}//{path}", size, stored.chunk)
    return contiguous(name, kind, stored.shape, data, ops=("swap",) if stored.swap else (), role=role)


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of a dataset as they are stored, as many as its shape says."""
    member, _, path = coded.key.partition("//")
    left = coded.size
    for body in sandbox.ask(image(coded.url, member), path):
        left -= len(body)
        if left < 0:
            break
        yield body
    if left:
        raise CorruptCheckpoint("the HDF5 library sent other values than it said: the file is hostile", url=coded.url)


# --- the directory ----------------------------------------------------------------------------------------------------


def look(url: str, member: str = "") -> Tree:
    """Read the directory of an HDF5 file, or of a member of a zip; the last few are cached while unchanged."""
    return _look(image(url, member), member)


@lru_cache(maxsize=4)
def _look(file: FileImage, member: str) -> Tree:
    if member and not is_remote(file.url):
        with Reader(file.url) as archive:  # all of it, to compare the zip's CRC-32: HDF5 has no sum of its own
            deque(zip.contents(archive, zip.members(archive)[member]), maxlen=0)
    return _tree(file, file.url, member)


def _tree(file: FileImage, url: str, member: str) -> Tree:
    datasets: dict[str, Stored] = {}
    groups: dict[str, dict[str, Any]] = {}
    notes: dict[tuple[NoteKind, str], list[str]] = {}
    memory = MEMORY * file.size + MORE_MEMORY
    declared = placed = 0  # bytes of all datasets, and of the contiguous ones
    for body in sandbox.ask(file):
        memory -= weight(body)
        if memory < 0:
            raise UnsafeCheckpoint("its groups and attributes would take much more memory than it has bytes", url=url)
        record = _record(body, url)
        path, attrs = record["path"], record["attrs"]
        if path in datasets or path in groups:
            raise CorruptCheckpoint("two links of a group have one name", url=url, tensor=path)
        for key in [k for k in attrs if k.startswith("?")]:
            notes.setdefault(("skipped", ODD_ATTRIBUTES), []).append(f"{path}@{key[1:]}")
            del attrs[key]
        if first := datasets.get(record["same"]):
            datasets[path] = first._replace(path=path, same=first.path)
        elif record["group"]:
            groups[path] = attrs
        elif skip := record["skip"] or ("another name of what is skipped" if record["same"] else _opaque(record)):
            notes.setdefault(("skipped", skip), []).append(path)
        else:
            if record["note"]:
                notes.setdefault(("assumed", record["note"]), []).append(path)
            size, offset = _checked_size(record, file.size, url), record["offset"]
            declared, placed = declared + size, placed + (size if offset >= 0 else 0)
            if declared > RATIO * file.size + SLACK:
                text = f"declares {size} bytes, {declared} are declared so far, in a file of {file.size}"
                raise UnsafeCheckpoint(text, url=url, tensor=path)
            if placed > file.size:
                raise CorruptCheckpoint("overlaps another dataset", url=url, tensor=path)
            offset += file.start if offset >= 0 else 0
            shape = tuple(record["shape"])
            datasets[path] = Stored(path, record["dtype"], shape, offset, record["swap"], attrs, "", record["chunk"])
    if "" not in groups:
        raise CorruptCheckpoint("the HDF5 library sent no root group: the file is hostile", url=url)
    listed = [
        Note(kind, what, tuple(names), tensors=what != ODD_ATTRIBUTES and not what.endswith(NO_DATA))
        for (kind, what), names in notes.items()
    ]
    return Tree(url, member, datasets, groups, tuple(listed))


def weight(body: bytes) -> int:
    """About the bytes of memory that parsed JSON takes."""
    return 4 * len(body) + sum(cost * body.count(sign) for sign, cost in WEIGHTS.items())


def _record(body: bytes, url: str) -> dict[str, Any]:
    """Read a record, with all fields of `RECORD`, each of its type; CorruptCheckpoint if it is not one."""
    try:
        record: dict[str, Any] = RECORD | json.loads(body)
        record["path"].encode("utf-8", "surrogateescape")
        good = all(type(value) is type(RECORD[key]) for key, value in record.items())  # a bool is no number here
        good = good and all(type(n) is int for n in record["shape"])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        good = False
    if not good:
        raise CorruptCheckpoint("the HDF5 library sent an invalid record: the file is hostile", url=url)
    return record


def _opaque(record: dict[str, Any]) -> str:
    """Give opaque bytes a dtype, or return why they have none.

    Keras writes bfloat16 and float8 as opaque bytes; newer versions add an attribute with the dtype.
    """
    size, named = record["itemsize"], DTYPES.get(str(record["attrs"].get("dtype", "")))
    if record["dtype"] == "opaque" and named and named.itemsize == size and named.kind in "fiu":
        record["dtype"] = named.name
        del record["attrs"]["dtype"]
    elif record["dtype"] == "opaque":
        record["dtype"], record["note"] = GUESSES.get(size, ("", f"{size} opaque bytes per element"))
    return "" if record["dtype"] else record["note"]


def _checked_size(record: dict[str, Any], file_size: int, url: str) -> int:
    """The bytes that a dataset declares; CorruptCheckpoint if they cannot be in the file."""
    path, offset, kind = record["path"], record["offset"], DTYPES.get(record["dtype"])
    if kind is None or kind.kind == "s":
        raise CorruptCheckpoint(f"has the dtype {record['dtype']!r}", url=url, tensor=path)
    size = checked_count(record["shape"], url=url, tensor=path) * kind.itemsize
    if offset >= 0 and offset + size > file_size:
        why = f"needs bytes {offset} to {offset + size}, but the file has {file_size} (truncated?)"
        raise CorruptCheckpoint(why, url=url, tensor=path)
    return size


# --- files in a zip ---------------------------------------------------------------------------------------------------


def members(url: str) -> dict[str, Member]:
    """The directory of the zip at `url`, checked against the local headers."""
    with Reader(url) as file:
        return zip.members(file)


def image(url: str, member: str = "") -> FileImage:
    """The bytes that the library can read: of a file, or of a stored member of a zip."""
    with Reader(url) as file:
        label, size = f"{url} {file.stamp} {member}", file.size
    if not member:
        return FileImage(label, url, 0, size)
    found = members(url)[member]
    if found.method != zip.STORED:
        text = f"has a packed {member}, which Keras never writes; unzip it into a folder, which is read as well"
        raise CorruptCheckpoint(text, url=url)
    return FileImage(label, url, found.start, found.size)
