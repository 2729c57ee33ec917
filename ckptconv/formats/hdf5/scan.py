"""The contents of an HDF5 file, read with h5py and checked before they are used; runs only in the child process.

    tree(file, size)          -> records: one per group and dataset, in the order of the file's links
    pieces(file, path, size)  -> the little-endian bytes of one dataset, C order, in bounded slabs; lists of strings

Refused: links other than hard links, groups that are reached twice, external or virtual storage, filters outside
`FILTERS`, and files that declare more than `RATIO` times the bytes they store. Nothing else in the file is followed.
Specification: HDF5 File Format 3.0, docs.hdfgroup.org/hdf5/develop/_f_m_t3.html
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import itemgetter
from typing import Any

from .elements import element

# deflate, shuffle, fletcher32, szip, nbit, scaleoffset and h5py's own lzf: the filters that need no plugin
FILTERS = {1, 2, 3, 4, 5, 6, 32000}
UNSTABLE = {4, 6}  # szip expects chunks of equal size; after scaleoffset they vary, and their ends are undefined
RATIO = 1100  # deflate reaches 1032:1
SLACK = 64 << 20  # bytes that can be declared beyond that: datasets that were never written consist of their fill value
SLAB = 8 << 20
POINTER = 16  # bytes that a string counts for at least, as one of variable length does in the file
TEXT_SIZE = 8 << 10  # the assumed size of a string, whose length is unknown until it is read
MAX_CHUNKS, MAX_WIDE = 4096, 16384  # chunks in a slab, and in a row of chunks
MAX_CHUNK_ROW = 256 << 20  # if one row of chunks is larger, its chunks are decoded more than once
MAX_DEPTH = 64
MAX_OBJECTS = 1_000_000
MAX_ATTRIBUTE = 64 << 20
VALUE, COPIES = 128, 16  # bytes of memory, here and in the parent, for a value of an attribute and a byte of its text
ATTRIBUTES, MORE_ATTRIBUTES = 48, 32 << 20  # bytes of memory for all of them, per byte of the file and in addition
NO_DATA = "without data"  # how the reason ends for which something is left out that no tensor could be made of

Record = dict[str, Any]


class Refused(Exception):
    """(kind, message): kind is 'unsafe' or 'corrupt'."""


class Room:
    """The memory that is left for the attributes of a file of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._left = ATTRIBUTES * size + MORE_ATTRIBUTES

    def take(self, values: int, text: int) -> None:
        """Refuse `values` values, each with `text` bytes of text, if there is no room for them."""
        self._left -= values * (VALUE + COPIES * text)
        if self._left < 0:
            raise Refused("unsafe", "its attributes would take much more memory than the file has bytes")


def tree(file: Any, size: int) -> Iterator[Record]:
    """Walk all hard links of an open h5py file of `size` bytes, depth first."""
    import h5py

    root, room = h5py.h5g.open(file.id, b"/"), Room(size)
    yield {"path": "", "group": True, "attrs": attributes(root, room)}
    first: dict[int, str] = {int(h5py.h5o.get_info(root).addr): ""}
    todo = [(root, "", iter(_links(root)))]
    linked: dict[int, Record] = {}  # datasets that have several names
    declared = stored = 0
    while todo:
        group, path, links = todo[-1]
        link = next(links, None)
        if link is None:
            todo.pop()
            continue
        name, kind, at = link
        text = name.decode("utf-8", "surrogateescape")
        here = f"{path}/{text}" if path else text
        _hard(kind, here)
        if b"/" in name or name in (b"", b"."):  # the library would take it for a path, and open something else
            raise Refused("corrupt", f"the group /{path} has a link named {text!r}, which is not a name")
        thing = h5py.h5o.open(group, name)
        if isinstance(thing, h5py.h5g.GroupID):
            if at in first:
                raise Refused("unsafe", f"the group {here} is the group /{first[at]} again: links go in circles")
            if len(todo) >= MAX_DEPTH:
                raise Refused("unsafe", f"groups are nested more than {MAX_DEPTH} deep")
            yield {"path": here, "group": True, "attrs": attributes(thing, room)}
            todo.append((thing, here, iter(_links(thing))))
        elif isinstance(thing, h5py.h5d.DatasetID):
            record = linked[at] | {"path": here} if at in linked else dataset(thing, here, size, room)
            if at in first:
                record["same"] = first[at]
                record.pop("attrs", None)  # sent once: many links would repeat them
                linked[at] = record
            else:
                declared, stored = declared + record["bytes"], stored + record["stored"]
            if declared > RATIO * size + SLACK:
                raise Refused("unsafe", f"{declared} bytes are declared in a file of {size}")
            if stored > size:
                raise Refused("corrupt", f"datasets store {stored} bytes in a file of {size}: they overlap at {here}")
            yield record
        else:
            yield {"path": here, "skip": f"a named datatype {NO_DATA}"}
        first.setdefault(at, here)
        if len(first) > MAX_OBJECTS:
            raise Refused("unsafe", f"more than {MAX_OBJECTS} objects")


def _links(group: Any) -> list[tuple[bytes, int, int]]:
    """The name, kind and address of each link of a group, in the order of creation if the file tracks it.

    One call for a group: to ask for each link, and for the group's properties, takes longer than to open the object.
    """
    found: list[tuple[int, bytes, int, int]] = []

    def add(name: bytes, info: Any) -> None:
        order = int(info.corder) if info.corder_valid else 0
        found.append((order, name, int(info.type), int(info.u)))

    group.links.iterate(add, info=True)
    return [(name, kind, at) for _, name, kind, at in sorted(found, key=itemgetter(0))]


def _hard(kind: int, here: str) -> None:
    import h5py

    if kind != h5py.h5l.TYPE_HARD:
        what = {h5py.h5l.TYPE_SOFT: "a soft", h5py.h5l.TYPE_EXTERNAL: "an external"}.get(kind, "a user-defined")
        raise Refused("unsafe", f"{here} is {what} link; only data in the file itself is read")


def dataset(thing: Any, here: str, size: int, room: Room) -> Record:
    """Describe one dataset: dtype, shape and the offset of its bytes (-1: they must be decoded)."""
    import h5py

    plan = thing.get_create_plist()
    layout = plan.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        raise Refused("unsafe", f"{here} is a virtual dataset: its bytes come from other files")
    if layout not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED, h5py.h5d.COMPACT):
        raise Refused("corrupt", f"{here} has the unknown storage layout {layout}")
    if plan.get_external_count():
        raise Refused("unsafe", f"{here} keeps its bytes in an external file")
    filters = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}
    if unknown := filters - FILTERS:
        raise Refused("unsafe", f"{here} needs the filter plugin {min(unknown)}, which is not trusted")
    if filters >= UNSTABLE:
        raise Refused("corrupt", f"{here} is scaled, then packed by szip: the library reads other values each time")
    attrs = attributes(thing, room)
    space = thing.get_space()
    if space.get_simple_extent_type() == h5py.h5s.NULL:
        return {"path": here, "skip": f"an empty dataspace {NO_DATA}", "bytes": 0, "stored": 0, "attrs": attrs}
    shape = [int(n) for n in space.shape]
    stored_type = thing.get_type()
    kind, swap, note = element(stored_type, attrs)
    stored = int(thing.get_storage_size())
    record: Record = {"path": here, "shape": shape, "dtype": kind, "swap": swap, "attrs": attrs, "stored": stored}
    record["bytes"] = prod(shape) * least(int(stored_type.get_size()), text=kind == "string")
    record["offset"] = -1
    if note:
        record["skip" if not kind else "note"] = note
    if record["bytes"] > RATIO * stored + SLACK:
        raise Refused("unsafe", f"{here} declares {record['bytes']} bytes and stores {stored}")
    if stored > size:
        raise Refused("corrupt", f"{here} stores {stored} bytes in a file of {size} (truncated?)")
    if layout == h5py.h5d.CONTIGUOUS and kind != "string":
        _place(thing, record, size)
    return record


def least(size: int, *, text: bool) -> int:
    """The bytes that an element of `size` bytes counts for, where declared bytes are compared with stored ones."""
    return max(size, POINTER if text else 1)


def _place(thing: Any, record: Record, size: int) -> None:
    """Add the file offset of a contiguous dataset, unless nothing was ever written to it."""
    offset = thing.get_offset()
    if offset is None or record["bytes"] == 0 or record["stored"] == 0:  # the library gives the fill value
        return
    if record["stored"] != record["bytes"] or offset + record["bytes"] > size:
        where = f"{record['path']}: bytes {offset} to {offset + record['bytes']} are needed"
        raise Refused("corrupt", f"{where} but the file has {size} (truncated?)")
    record["offset"] = int(offset)


def attributes(thing: Any, room: Room) -> dict[str, Any]:
    """All attributes of an object as JSON values; others (references) are replaced by an entry '?name'."""
    import h5py

    names: list[bytes] = []
    out: dict[str, Any] = {}
    if not h5py.h5a.get_num_attrs(thing):
        return out
    h5py.h5a.iterate(thing, names.append)
    for name in sorted(names):
        text = name.decode("utf-8", "surrogateescape")
        one = h5py.h5a.open(thing, name)
        space = one.get_space()
        count = 0 if space.get_simple_extent_type() == h5py.h5s.NULL else prod(space.shape)
        if count * one.get_type().get_size() > MAX_ATTRIBUTE:
            raise Refused("unsafe", f"the attribute {text} is larger than {MAX_ATTRIBUTE} bytes")
        kind = one.get_type().get_class()
        if kind in (h5py.h5t.REFERENCE, h5py.h5t.COMPOUND, h5py.h5t.VLEN, h5py.h5t.ARRAY):
            out["?" + text] = "neither a number nor text"
        else:
            room.take(count, one.get_type().get_size() if kind == h5py.h5t.STRING else 0)
            out[text] = _value(thing, name)
    return out


def _value(thing: Any, name: bytes) -> Any:
    import h5py

    value = h5py.AttributeManager(_Holder(thing))[name]
    return _plain(value)


class _Holder:
    """The part of an object that h5py's attribute reader needs: its id."""

    def __init__(self, id: Any) -> None:
        self.id = id


def _plain(value: Any) -> Any:
    import h5py
    import numpy as np

    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, np.void):
        return value.tobytes().hex()
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, np.complexfloating | complex):
        return [float(value.real), float(value.imag)]
    if isinstance(value, np.generic):
        return value.item() if not isinstance(value, np.bytes_) else _plain(bytes(value))
    return str(value) if isinstance(value, str) else value


def pieces(file: Any, path: str, size: int) -> Iterator[bytes | list[bytes]]:
    """The bytes of a dataset in C order, little-endian; a list of byte strings per slab if it holds strings."""
    import h5py
    import numpy as np

    stored = h5py.Dataset(h5py.h5d.open(file.id, path.encode("utf-8", "surrogateescape")))
    kind = stored.id.get_type()
    text = kind.get_class() == h5py.h5t.STRING
    small = kind.get_class() == h5py.h5t.FLOAT and element(kind, {})[0].startswith(("bfloat16", "float8"))
    total = 0
    for slab in slabs(stored.shape, stored.chunks, max(int(kind.get_size()), TEXT_SIZE if text else 0)):
        array = _bits(stored, slab, kind) if small else np.asarray(stored[slab])
        if text:
            items = [_item(v) for v in array.reshape(-1).tolist()]
            total += sum(map(len, items))
            if total > size + SLACK and kind.is_variable_str():  # many elements can point to one long string
                raise Refused("unsafe", f"{path} unfolds to more than {total} bytes in a file of {size}")
            yield items
        else:
            yield array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _bits(stored: Any, slab: Any, kind: Any) -> Any:
    """Read the bits of floats that NumPy does not have; the library would widen them."""
    import h5py
    import numpy as np

    space = stored.id.get_space()
    cut = [s if isinstance(s, slice) else slice(s, s + 1) for s in (slab if isinstance(slab, tuple) else (slab,))]
    shape = (*(s.stop - s.start for s in cut), *stored.shape[len(cut) :])
    out = np.empty(shape, f"{'>' if kind.get_order() == 1 else '<'}u{kind.get_size()}")
    if shape:
        space.select_hyperslab((*(s.start for s in cut), *(0,) * (len(shape) - len(cut))), shape)
    stored.id.read(h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR), space, out, mtype=kind)
    return out


def _item(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def slabs(shape: tuple[int, ...], chunks: tuple[int, ...] | None, itemsize: int) -> Iterator[Any]:
    """Cut a shape along axis 0 into slabs of about `SLAB` bytes, in complete rows of chunks where possible.

    A row of very many chunks is cut along the next axis: the library takes some 6 kB for each chunk that it reads from.
    """
    if not shape:
        yield ()
        return
    if not prod(shape):
        return
    row = prod(shape[1:]) * itemsize
    rows = max(1, SLAB // row)
    if chunks:
        wide = prod(-(-n // c) for n, c in zip(shape[1:], chunks[1:], strict=True))
        if wide > MAX_WIDE:
            inner = [s if isinstance(s, tuple) else (s,) for s in slabs(shape[1:], chunks[1:], itemsize)]
            yield from ((i, *s) for i in range(shape[0]) for s in inner)
            return
        rows = max(min(rows // chunks[0], MAX_CHUNKS // wide), 1) * chunks[0]
        rows = min(rows, max(1, MAX_CHUNK_ROW // row))
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))
