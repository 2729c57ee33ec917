"""HDF5: any dataset is a tensor, any attribute metadata; the HDF5 library runs in a child process only (child.py).

    0, 512, 1024, ...   89 'HDF' 0d 0a 1a 0a      superblock, after an arbitrary user block
    offset              a contiguous dataset's bytes: a Span, read without the library
    chunks, compact     decoded by the library: Coded, key = path, or "member//path" inside a zip

Names are paths, "layers/dense/kernel". Attributes of the root are metadata; those of groups and datasets are
`details["attributes"]`. Links other than hard links, external and virtual storage, unknown filters, and files that
declare far more than they store are refused (scan.py). Specification: HDF5 File Format 3.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ...checkpoint import Checkpoint, Details, Note, NoteKind, Role, Tensor, contiguous
from ...dtypes import DTYPES
from ...errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import Coded, Span, checked_count
from ...storage.files import Reader, Seen
from ..reading import Reading
from ..signatures import is_hdf5
from . import child, records
from . import member as archive
from .child import FileImage
from .records import Record
from .scan import NO_DATA

if TYPE_CHECKING:
    from .write import Hdf5Writer

ODD_ATTRIBUTES = "attributes that are neither numbers nor text"


class Stored(NamedTuple):
    """One dataset: `offset` is the position of its bytes in the file, or -1 if the library must decode them."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    swap: bool
    attrs: dict[str, Any]
    same: str  # the path at which the same dataset occurred first


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
    details: Details = {"attributes": attributes} if attributes else {}
    return Checkpoint(tensors, metadata, tuple(map(tuple, ties.values())), "hdf5", (url,), tree.notes, details)


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tensor(tree: Tree, stored: Stored, name: str, *, role: Role = "") -> Tensor:
    """The tensor of a dataset."""
    kind = DTYPES[stored.dtype]
    size = checked_count(stored.shape, url=tree.url, tensor=name) * kind.itemsize
    if stored.offset < 0:
        path = stored.same or stored.path  # tied names have one key
        key = f"{tree.member}//{path}" if tree.member else "/" + path
        return contiguous(name, kind, stored.shape, Coded(__name__, tree.url, key, size), role=role)
    ops = ("swap",) if stored.swap else ()
    return contiguous(name, kind, stored.shape, Span(tree.url, stored.offset, size), ops=ops, role=role)


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of a dataset: little-endian slabs, or single strings, as many as its shape says."""
    member, _, path = ("", "", coded.key[1:]) if coded.key.startswith("/") else coded.key.partition("//")
    strings = coded.size == 0  # it is not known
    left = prod(look(coded.url, member).datasets[path].shape) if strings else 0
    for kind, body in child.ask(image(coded.url, member), do="read", path=path, **({"text": "yes"} if strings else {})):
        if (kind == b"S") is not strings:
            raise CorruptCheckpoint("the HDF5 library sent another kind of values: the file is hostile", url=coded.url)
        if kind == b"D":
            yield body
            continue
        texts = list(_strings(body, coded.url))
        left -= len(texts)
        if left < 0:
            break
        yield from texts
    if left:
        raise CorruptCheckpoint("the HDF5 library sent another number of texts: the file is hostile", url=coded.url)


def _strings(body: bytes, url: str) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "little")
        if end > len(body):
            raise CorruptCheckpoint("the HDF5 library sent half a text: the file is hostile", url=url)
        yield body[at + 4 : end]
        at = end


def look(url: str, member: str = "") -> Tree:
    """Read the directory of an HDF5 file, or of a member of a zip; the last few are cached while unchanged."""
    result = _look(image(url, member).name, url, member)
    if isinstance(result, CkptError):
        raise type(result)(result.message, url=result.url, tensor=result.tensor)
    return result


@lru_cache(maxsize=4)
def _look(name: str, url: str, member: str) -> Tree | CkptError:
    """Detection needs the directory several times, so errors are cached as well."""
    try:
        return _tree(image(url, member), url, member)
    except CkptError as e:
        return e


def _tree(seen: FileImage, url: str, member: str) -> Tree:
    base = archive.place(url, member) if member else 0
    datasets: dict[str, Stored] = {}
    groups: dict[str, dict[str, Any]] = {}
    notes: dict[tuple[NoteKind, str], list[str]] = {}
    room = records.MEMORY * seen.packed + records.MORE_MEMORY
    for _, body in child.ask(seen, do="scan"):
        room -= records.weight(body)
        if room < 0:
            raise UnsafeCheckpoint("its groups and attributes would take much more memory than it has bytes", url=url)
        record = records.parse(body, seen.size, url)
        path = record.path
        first = datasets.get(record.same)
        attrs = first.attrs if first else record.attrs
        for key in [k for k in attrs if k.startswith("?")]:
            skipped = notes.setdefault(("skipped", ODD_ATTRIBUTES), [])
            skipped.append(f"{path}@{key[1:]}")
            del attrs[key]
        if path in datasets or path in groups:
            raise CorruptCheckpoint("two links of a group have one name", url=url, tensor=path)
        if record.group:
            groups[path] = attrs
        elif record.skip:
            notes.setdefault(("skipped", record.skip), []).append(path)
        else:
            datasets[path] = _stored(record, attrs, first, base, url)
            if record.note:
                notes.setdefault(("assumed", record.note), []).append(path)
    if "" not in groups:
        raise CorruptCheckpoint("the HDF5 library sent no root group: the file is hostile", url=url)
    beside = (ODD_ATTRIBUTES, *(what for _, what in notes if what.endswith(NO_DATA)))
    listed = tuple(Note(k, what, tuple(names), tensors=what not in beside) for (k, what), names in notes.items())
    return Tree(url, member, datasets, groups, listed)


def _stored(record: Record, attrs: dict[str, Any], first: Stored | None, base: int, url: str) -> Stored:
    """The dataset of a record. base: the offset of the HDF5 file in the file at `url`, -1 if it is packed."""
    offset = record.offset + base if record.offset >= 0 and base >= 0 else -1
    out = Stored(record.path, record.dtype, record.shape, offset, record.swap, attrs, record.same)
    if record.same and (first is None or out[1:5] != first[1:5]):
        raise CorruptCheckpoint(f"is not the dataset {record.same!r}, whose name it is", url=url, tensor=record.path)
    return out


def image(url: str, member: str = "") -> FileImage:
    """The bytes that the library can read."""
    if member:
        return archive.image(url, member)
    with Reader(url) as file:
        return FileImage(f"{url} {file.stamp}", url, file.size, lambda: Reader(url), file.size)


def try_look(url: str, member: str = "") -> Tree | None:
    """Like `look`, for detection: None instead of an error, which opening reports."""
    try:
        return look(url, member)
    except CkptError:
        return None


def writer(url: str, max_shard_size: int | None = None) -> Hdf5Writer:
    """Write one file; HDF5 has no shards."""
    from .write import Hdf5Writer

    return Hdf5Writer(url, max_shard_size)
