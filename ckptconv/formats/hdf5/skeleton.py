"""Lay out an HDF5 file without its data: every byte that is not payload becomes a patch.

    Canvas     a sparse file in memory for h5py (canvas.py): bytes that the library does not write are holes
    Dataset       one dataset to create: path, dtype, shape; strings include their values, a link names another path

Datasets are contiguous, allocated early and never filled, so the holes of the canvas are exactly the payload, and
`get_offset` returns the beginning of each. No times are stored; the same items give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from ...checkpoint import Tensor
from ...dtypes import DType
from ...errors import Unrepresentable
from ...messages import listing
from ..hash_metadata import hashes_of
from ..placement import Patch, Slot
from . import child
from .canvas import Canvas

MAX_GROUPS = 60  # nested groups; scan.py reads 64, of which Keras' files need a few
MAX_ATTRIBUTE = 64_512  # bytes of an attribute in an object header; Keras splits its lists at this size

# the dtypes of HDF5; all others are opaque bytes with an attribute that names the dtype, as in Keras 3
NAMED = {
    "float64", "float32", "float16", "bool", "complex64", "complex128", "string",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}  # fmt: skip

Attributes = Mapping[str, Any]


class Dataset(NamedTuple):
    path: str
    dtype: DType
    shape: tuple[int, ...]
    values: Any = None  # of strings: an object array of bytes
    link: str = ""  # the path of another item, for which this is a second name


class Plans(NamedTuple):
    """The property lists of HDF5, created once."""

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
    dataset.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # text needs a fill value, because its elements are pointers
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
        """Replace the values of fixed-width attributes of the root."""
        import h5py

        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, self.canvas)
        with h5py.File(h5py.h5f.open(b"canvas", h5py.h5f.ACC_RDWR, fapl=access)) as f:
            for key, value in hashes_of(metadata).items():
                f.attrs.modify(key, np_text(value))


def np_text(value: str) -> Any:
    """Text of a fixed width, which can be overwritten in place."""
    import numpy as np

    return np.bytes_(value.encode())


def lay_out(
    file: str, items: Sequence[Dataset], groups: Mapping[str, Attributes], *, ordered: bool = False
) -> Skeleton:
    """Create the skeleton of `file`.

    groups: attributes by path, of groups (created even if empty) and of datasets. ordered: groups keep their order.
    """
    child.prepare()  # it imports h5py as well, meanwhile
    import h5py

    canvas, plans = Canvas(), _plans(ordered)
    slots: dict[str, Slot] = {}
    datasets = {i.path for i in items}
    with h5py.File(_file(canvas, ordered)) as f:
        created = {"": f.id}
        for path in (p for p in groups if p not in datasets):
            _group(created, path, plans)
        for item in items:
            parent, _, base = item.path.rpartition("/")
            above = _group(created, parent, plans)
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


def _group(created: dict[str, Any], path: str, plans: Plans) -> Any:
    """Create a group and its parents unless `created` has them; return the group."""
    import h5py

    here = ""
    for word in () if path in created else path.split("/"):
        above, here = here, f"{here}/{word}" if here else word
        if here not in created:
            created[here] = h5py.h5g.create(created[above], encode(word), lcpl=plans.link, gcpl=plans.group)
    return created[path]


def _dataset(parent: Any, name: bytes, item: Dataset, file: str, plans: Plans) -> Slot:
    """Create one dataset. The slot of a string dataset is empty, because the library writes the strings itself."""
    import h5py
    import numpy as np

    space = h5py.h5s.create_simple(item.shape) if item.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    plan = plans.text if item.dtype.kind == "s" else plans.dataset
    created = h5py.h5d.create(parent, name, _type(item.dtype), space, dcpl=plan, lcpl=plans.link)
    size = created.get_storage_size()
    if item.dtype.kind == "s":
        if size:
            h5py.Dataset(created)[...] = np.asarray(item.values, object).reshape(item.shape)
        return Slot(file, 0, 0, b"")
    if item.dtype.name not in NAMED:
        _attributes(h5py.Dataset(created), {"dtype": item.dtype.name})
    return Slot(file, created.get_offset() if size else 0, size)


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
    """Write attributes: text, numbers, lists of either; a list of bytes is split if it is too long."""
    import numpy as np

    for key, value in attrs.items():
        if isinstance(value, list) and all(isinstance(v, bytes) for v in value):
            for name, part in split(key, value):
                thing.attrs.create(name, np.array(part) if part else np.zeros(0))
        elif isinstance(value, list):
            array = np.asarray(value)
            numeric = array.dtype.kind in "fiub" and array.nbytes <= MAX_ATTRIBUTE
            thing.attrs[_as_it_was(key)] = array if numeric else json.dumps(value)
        elif hashes_of({key: value}):
            thing.attrs[_as_it_was(key)] = np_text(value)
        elif value is not None:
            text = _as_it_was(value) if isinstance(value, str) else value
            thing.attrs[_as_it_was(key)] = text if isinstance(text, str | bytes | int | float) else json.dumps(value)


def _as_it_was(text: str) -> str | bytes:
    """The text, or the bytes that it was if it is not valid Unicode."""
    import numpy as np

    for errors in ("strict", "surrogateescape", "surrogatepass"):
        with suppress(UnicodeEncodeError):
            raw = text.encode(errors=errors)
            return text if errors == "strict" else np.bytes_(raw)
    return text


def split(key: str, names: list[bytes]) -> list[tuple[str, list[bytes]]]:
    """Split a list into key0, key1, ... if it does not fit in one attribute, as Keras does."""
    width = max(map(len, names), default=1) or 1
    each = max(1, MAX_ATTRIBUTE // width)
    if len(names) <= each:
        return [(key, names)]
    return [(f"{key}{i}", names[at : at + each]) for i, at in enumerate(range(0, len(names), each))]


def _patches(file: str, canvas: Canvas, slots: Iterable[Slot]) -> list[Patch]:
    """The written ranges outside of slots."""
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


def unheld(tensor: Tensor) -> str:
    """The reason why HDF5 cannot hold a tensor for its name or, which are read, for its texts; or ''."""
    nul = tensor.dtype.kind == "s" and any(b"\0" in v for v in tensor.numpy().reshape(-1).tolist())
    return _bad_name(tensor.name) or "HDF5 text cannot hold a NUL" * nul


def _bad_name(name: str) -> str:
    if not name:
        return "the name is empty"
    if "\0" in name:
        return "HDF5 names cannot hold a NUL"
    if any(part in ("", ".") for part in name.split("/")):
        return "HDF5 paths cannot have an empty component or '.'"
    if name.count("/") > MAX_GROUPS:
        return f"the name is nested more than {MAX_GROUPS} deep"
    try:
        encode(name)
    except UnicodeEncodeError:
        return "the name is not valid Unicode"
    return ""


def clashes(paths: Iterable[str]) -> list[str]:
    """Names that are both a dataset and a group: 'a' beside 'a/b'."""
    taken = set(paths)
    out = []
    for path in taken:
        words = path.split("/")
        out += [f"{path} is inside {p}" for n in range(1, len(words)) if (p := "/".join(words[:n])) in taken]
    return sorted(out)


def checked(paths: Sequence[str], metadata: Mapping[str, str], title: str) -> None:
    """Raise Unrepresentable for clashing names and for text that HDF5 would truncate."""
    if bad := clashes(paths):
        raise Unrepresentable(
            f"{title} cannot hold a tensor and a group of the same name; leave some out or change names, as a "
            "conversion does with weights_only=True (slots are below their weights), exclude= and rename=:\n"
            f"{listing(bad)}"
        )
    bad = [f"metadata {k!r}: HDF5 text cannot hold a NUL" for k, v in metadata.items() if "\0" in k + v or not k]
    if bad:
        raise Unrepresentable(f"{title} cannot hold these names:\n{listing(bad)}")


def item(tensor: Tensor, path: str, link: str = "") -> Dataset:
    """The item for a tensor. Strings are read here, because the layout depends on their lengths."""
    if tensor.dtype.kind != "s" or link:
        return Dataset(path, tensor.dtype, tensor.shape, None, link)
    return Dataset(path, tensor.dtype, tensor.shape, tensor.numpy())
