"""Lay an HDF5 file out without its data: every byte that is not payload becomes a patch.

    Canvas     an imaginary file under h5py (canvas.py): what the library does not write is a hole
    Item       one dataset to make: path, dtype, shape; strings bring their values, a link names another path

Datasets are contiguous, allocated at once and never filled, so the holes of the canvas are exactly the payload, and
`get_offset` says where each begins. No times are stored; the same items give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from ...checkpoint import Tensor
from ...dtypes import DType
from ...errors import Unrepresentable
from ...messages import listing
from ..hash_metadata import hashes_of
from ..placement import Patch, Slot
from .canvas import Canvas

DEEPEST = 60  # groups; scan.py reads 64, of which Keras' files need a few of their own
LIMIT = 64_512  # an attribute in an object header; what Keras splits its lists at

# the dtypes that HDF5 has; all others are opaque bytes, and an attribute tells the dtype, as in Keras 3
NAMED = {
    "float64", "float32", "float16", "bool", "complex64", "complex128", "string",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}  # fmt: skip

Attributes = Mapping[str, Any]


class Item(NamedTuple):
    path: str
    dtype: DType
    shape: tuple[int, ...]
    values: Any = None  # of strings: an object array of bytes
    link: str = ""  # the path of the item that this is another name of


class Plans(NamedTuple):
    """The property lists of HDF5, made once."""

    group: Any
    dataset: Any
    text: Any
    link: Any


def _plans(ordered: bool) -> Plans:
    import h5py

    p = h5py.h5p
    group, dataset, text, link = map(p.create, (p.GROUP_CREATE, p.DATASET_CREATE, p.DATASET_CREATE, p.LINK_CREATE))
    if ordered:
        group.set_link_creation_order(p.CRT_ORDER_TRACKED | p.CRT_ORDER_INDEXED)
    group.set_obj_track_times(False)
    for plan in (dataset, text):
        plan.set_layout(h5py.h5d.CONTIGUOUS)
        plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plan.set_obj_track_times(False)
    dataset.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # text must have a fill value: its elements are pointers
    link.set_char_encoding(h5py.h5t.CSET_UTF8)
    return Plans(group, dataset, text, link)


def _file(canvas: Canvas, ordered: bool) -> Any:
    import h5py

    plan, access = h5py.h5p.create(h5py.h5p.FILE_CREATE), h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    plan.set_obj_track_times(False)
    if ordered:
        plan.set_link_creation_order(h5py.h5p.CRT_ORDER_TRACKED | h5py.h5p.CRT_ORDER_INDEXED)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, canvas)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    return h5py.h5f.create(b"canvas", h5py.h5f.ACC_TRUNC, fcpl=plan, fapl=access)


class Skeleton(NamedTuple):
    """A file without its data."""

    file: str
    canvas: Canvas
    slots: dict[str, Slot]  # by path

    def patches(self) -> list[Patch]:
        return _patches(self.file, self.canvas, self.slots.values())

    def restate(self, metadata: Mapping[str, str]) -> None:
        """Give attributes of the root, of those of a fixed width, other values."""
        import h5py

        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, self.canvas)
        with h5py.File(h5py.h5f.open(b"canvas", h5py.h5f.ACC_RDWR, fapl=access)) as f:
            for key, value in hashes_of(metadata).items():
                f.attrs.modify(key, np_text(value))


def np_text(value: str) -> Any:
    """Text of a fixed width, which is written over in place."""
    import numpy as np

    return np.bytes_(value.encode())


def lay_out(file: str, items: Sequence[Item], groups: Mapping[str, Attributes], *, ordered: bool = False) -> Skeleton:
    """Make the skeleton of `file`.

    groups: attributes by path, of groups (made even if empty) and of datasets. ordered: groups keep their order.
    """
    import h5py

    canvas, plans = Canvas(), _plans(ordered)
    slots: dict[str, Slot] = {}
    datasets = {i.path for i in items}
    with h5py.File(_file(canvas, ordered)) as f:
        made = {"": f.id}
        for path in (p for p in groups if p not in datasets):
            _group(made, path, plans)
        for item in items:
            parent, _, base = item.path.rpartition("/")
            above = _group(made, parent, plans)
            if item.link:
                above.links.create_hard(encode(base), f.id, encode(item.link))
                slots[item.path] = slots[item.link]
            else:
                slots[item.path] = _dataset(above, encode(base), item, file, plans)
        for path, attrs in groups.items():
            _attributes(f[encode(path)] if path else f, attrs)
    return Skeleton(file, canvas, slots)


def encode(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _group(made: dict[str, Any], path: str, plans: Plans) -> Any:
    """Make a group and those above it, once; `made` holds those there are."""
    import h5py

    here = ""
    for word in () if path in made else path.split("/"):
        above, here = here, f"{here}/{word}" if here else word
        if here not in made:
            made[here] = h5py.h5g.create(made[above], encode(word), lcpl=plans.link, gcpl=plans.group)
    return made[path]


def _dataset(parent: Any, name: bytes, item: Item, file: str, plans: Plans) -> Slot:
    """Make one dataset; the slot of strings is empty, for the library writes them itself."""
    import h5py
    import numpy as np

    space = h5py.h5s.create_simple(item.shape) if item.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    plan = plans.text if item.dtype.kind == "s" else plans.dataset
    made = h5py.h5d.create(parent, name, _type(item.dtype), space, dcpl=plan, lcpl=plans.link)
    size = made.get_storage_size()
    if item.dtype.kind == "s":
        if size:
            h5py.Dataset(made)[...] = np.asarray(item.values, object).reshape(item.shape)
        return Slot(file, 0, 0, b"")
    if item.dtype.name not in NAMED:
        _attributes(h5py.Dataset(made), {"dtype": item.dtype.name})
    return Slot(file, made.get_offset() if size else 0, size)


@cache
def _type(kind: DType) -> Any:
    import h5py
    import numpy as np

    if kind.kind == "s":
        return h5py.h5t.py_create(h5py.string_dtype("utf-8"), logical=True)
    if kind.name not in NAMED:
        return h5py.h5t.py_create(np.dtype(f"V{kind.itemsize}"))
    return h5py.h5t.py_create(kind.np.newbyteorder("<"), logical=True)


def _attributes(thing: Any, attrs: Attributes) -> None:
    """Write attributes: text, numbers, lists of either; a list of bytes is split where it grows too long."""
    import numpy as np

    for key, value in attrs.items():
        if isinstance(value, list) and all(isinstance(v, bytes) for v in value):
            for name, part in split(key, value):
                thing.attrs.create(name, np.array(part) if part else np.zeros(0))
        elif isinstance(value, list):
            array = np.asarray(value)
            plain = array.dtype.kind in "fiub" and array.nbytes <= LIMIT
            thing.attrs[key] = array if plain else json.dumps(value)
        elif hashes_of({key: value}):
            thing.attrs[key] = np_text(value)
        elif value is not None:
            thing.attrs[key] = value if isinstance(value, str | int | float | bool) else json.dumps(value)


def split(key: str, names: list[bytes]) -> list[tuple[str, list[bytes]]]:
    """Cut a list into key0, key1, ... when it does not fit one attribute, as Keras does."""
    width = max(map(len, names), default=1) or 1
    each = max(1, LIMIT // width)
    if len(names) <= each:
        return [(key, names)]
    return [(f"{key}{i}", names[at : at + each]) for i, at in enumerate(range(0, len(names), each))]


def _patches(file: str, canvas: Canvas, slots: Iterable[Slot]) -> list[Patch]:
    """The written runs without what belongs to slots."""
    taken = sorted({(s.start, s.start + s.size) for s in slots if s.size})
    out: list[Patch] = []
    i = 0
    for start, end in canvas.runs():
        while i < len(taken) and taken[i][1] <= start:
            i += 1
        at, j = start, i
        while at < end:
            hole = taken[j] if j < len(taken) else (end, end)
            stop = min(end, max(at, hole[0]))
            if stop > at:
                out.append(Patch(file, at, canvas.bytes(at, stop - at)))
            at, j = max(stop, min(hole[1], end)), j + 1
    return out


# --- names -----------------------------------------------------------------------------------------------------


def bad_name(name: str) -> str:
    """Why a name cannot be a path in an HDF5 file, or ''."""
    if not name:
        return "the name is empty"
    if "\0" in name:
        return "HDF5 names hold no NUL"
    if any(part in ("", ".") for part in name.split("/")):
        return "HDF5 paths have no empty component and no '.'"
    if name.count("/") > DEEPEST:
        return f"the name is nested more than {DEEPEST} deep"
    try:
        encode(name)
    except UnicodeEncodeError:
        return "the name is not valid Unicode"
    return ""


def clashes(paths: Iterable[str]) -> list[str]:
    """Names that are a dataset and a group at once: 'a' beside 'a/b'."""
    taken = set(paths)
    out = []
    for path in taken:
        words = path.split("/")
        out += [f"{path} lies inside {p}" for n in range(1, len(words)) if (p := "/".join(words[:n])) in taken]
    return sorted(out)


def checked(paths: Sequence[str], metadata: Mapping[str, str], title: str) -> None:
    """Raise Unrepresentable for clashing names and for text that HDF5 would cut short."""
    if bad := clashes(paths):
        raise Unrepresentable(
            f"{title} cannot hold a tensor and a group of one name; leave some out with weights_only=True (slots lie "
            f"below their weights) or exclude=, or change names with rename=:\n{listing(bad)}"
        )
    bad = [f"metadata {k!r}: HDF5 text holds no NUL" for k, v in metadata.items() if "\0" in k + v or not k]
    if bad:
        raise Unrepresentable(f"{title} cannot hold these names:\n{listing(bad)}")


def item(tensor: Tensor, path: str, link: str = "") -> Item:
    """What to make for a tensor; strings are read now, for they are laid out by their length."""
    if tensor.dtype.kind != "s" or link:
        return Item(path, tensor.dtype, tensor.shape, None, link)
    values = tensor.numpy()
    if any(b"\0" in v for v in values.reshape(-1).tolist()):
        raise Unrepresentable("HDF5 text holds no NUL; leave it out with exclude=", tensor=tensor.name)
    return Item(path, tensor.dtype, tensor.shape, values)
