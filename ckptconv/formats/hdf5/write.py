"""Lay out an HDF5 file without its data, and the writer of plain HDF5.

h5py writes all but the elements of the datasets to a temporary file, in which they are holes. Datasets are contiguous,
allocated early and never filled, so `get_offset` returns the beginning of each slot. No times are stored; the same
items give the same bytes.

In plain HDF5 a tensor's name is its path, metadata are attributes of the root, ties are hard links. From a Keras file
the suffix `.h5` produces a Keras file again (formats.table.target); `to="hdf5"` produces plain HDF5.
"""

from __future__ import annotations

import io
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...checkpoint import Checkpoint, Note, Tensor
from ...errors import Unrepresentable
from ...messages import listing
from ...output.destination import OutputFile
from ...storage.files import split
from ..own_metadata import hashes_of
from ..placement import Patch, Placement, Slot, Writer, is_text, refuse_shards, refuse_unheld
from ..table import KERAS_LISTS
from . import sandbox

MAX_GROUPS = 60  # nested groups; worker.py reads 64, of which Keras' files need a few
MAX_ATTRIBUTE = 64_512  # bytes of an attribute in an object header; Keras splits its lists at this size
MODEL = {"model_config", "training_config"}  # attributes of the root that make a file a model for Keras
MODELS = {"keras", "hdf5"}  # formats whose files Keras loads as models by these

# the dtypes of HDF5; all others are opaque bytes with an attribute that names the dtype, as in Keras 3
NAMED = {
    "float64", "float32", "float16", "bool", "complex64", "complex128",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}  # fmt: skip

Attributes = Mapping[str, Any]


class Skeleton:
    """A file without its data.

    paths: a dataset to create, and the tensor in it; further paths of a tensor are hard links to its first.
    groups: attributes by path, of groups (created even if empty) and of datasets. ordered: groups keep their order.
    """

    def __init__(
        self, file: str, tensors: Mapping[str, Tensor], paths: Mapping[str, str], groups: Mapping[str, Attributes],
        *, ordered: bool = False,
    ) -> None:  # fmt: skip
        sandbox.prepare()  # it imports h5py as well, meanwhile
        import h5py

        p, self.file, self.canvas = h5py.h5p, file, tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self.canvas.close)
        self.slots: dict[str, Slot] = {}  # by tensor
        plan, self._group_plan = p.create(p.FILE_CREATE), p.create(p.GROUP_CREATE)
        for one in (plan, self._group_plan):
            one.set_obj_track_times(False)
            if ordered:
                one.set_link_creation_order(p.CRT_ORDER_TRACKED | p.CRT_ORDER_INDEXED)
        self._link_plan = p.create(p.LINK_CREATE)
        self._link_plan.set_char_encoding(h5py.h5t.CSET_UTF8)
        access = p.create(p.FILE_ACCESS)
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, self.canvas)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        with h5py.File(h5py.h5f.create(b"canvas", h5py.h5f.ACC_TRUNC, fcpl=plan, fapl=access)) as f:
            self._groups = {"": f.id}
            for path in (p for p in groups if p not in paths):
                self._group(path)
            first: dict[str, bytes] = {}
            for path, name in paths.items():
                parent, _, base = path.rpartition("/")
                if name in first:
                    self._group(parent).links.create_hard(encode(base), f.id, first[name])
                else:
                    first[name] = encode(path)
                    self.slots[name] = self._dataset(self._group(parent), encode(base), tensors[name])
            for path, attrs in groups.items():
                write_attributes(f[encode(path)] if path else f, attrs)

    def _group(self, path: str) -> Any:
        """The group at a path; it and its parents are created if need be."""
        import h5py

        if path not in self._groups:
            parent, _, base = path.rpartition("/")
            above = self._group(parent)
            self._groups[path] = h5py.h5g.create(above, encode(base), lcpl=self._link_plan, gcpl=self._group_plan)
        return self._groups[path]

    def _dataset(self, parent: Any, name: bytes, tensor: Tensor) -> Slot:
        """Create a dataset."""
        import h5py
        import numpy as np

        kind = tensor.dtype
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.CONTIGUOUS)
        plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plan.set_obj_track_times(False)
        plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        own = kind.dtype.newbyteorder("<") if kind.name in NAMED else np.dtype(f"V{kind.itemsize}")
        stored = h5py.h5t.py_create(own, logical=True)
        space = h5py.h5s.create_simple(tensor.shape)
        created = h5py.h5d.create(parent, name, stored, space, dcpl=plan, lcpl=self._link_plan)
        size = created.get_storage_size()
        if kind.name not in NAMED:
            write_attributes(h5py.Dataset(created), {"dtype": kind.name})
        return Slot(self.file, created.get_offset() if size else 0, size)

    def patches(self) -> list[Patch]:
        """All that is not in a slot."""
        out, end, length = [], 0, self.canvas.seek(0, io.SEEK_END)
        for start, stop in sorted({(s.start, s.start + s.size) for s in self.slots.values() if s.size} | {(length, 0)}):
            if start > end:
                self.canvas.seek(end)
                out.append(Patch(self.file, end, self.canvas.read(start - end)))
            end = stop
        return out

    def resealed(self, metadata: Mapping[str, str]) -> Sequence[Patch]:
        """The patches after attributes of the root got other values of the same width."""
        if hashes := hashes_of(metadata):
            import h5py

            with h5py.File(self.canvas, "r+") as f:
                for key, value in hashes.items():
                    f.attrs.modify(key, fixed_text(value))
        return self.patches() if metadata else ()


def encode(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def fixed_text(value: str) -> Any:
    """Text of a fixed width, which can be overwritten in place."""
    import numpy as np

    return np.bytes_(value.encode())


def write_attributes(thing: Any, attrs: Attributes) -> None:
    """Write attributes: text, and lists of names, which are split if they are too long."""
    import numpy as np

    for key, value in attrs.items():
        if isinstance(value, list):
            for name, part in split_list(key, value):
                thing.attrs.create(name, np.array(part) if part else np.zeros(0))
        else:
            thing.attrs[_storable(key)] = fixed_text(value) if hashes_of({key: value}) else _storable(value)


def _storable(text: str) -> Any:
    """The text; if it is not valid Unicode, the bytes that it was."""
    import numpy as np

    if is_text(text):
        return text
    try:
        return np.bytes_(encode(text))
    except UnicodeEncodeError:
        return np.bytes_(text.encode(errors="surrogatepass"))


def split_list(key: str, names: list[bytes]) -> list[tuple[str, list[bytes]]]:
    """Split a list into key0, key1, ... if it does not fit in one attribute, as Keras does."""
    each = max(1, MAX_ATTRIBUTE // max(map(len, (*names, b"x"))))
    if len(names) <= each:
        return [(key, names)]
    return [(f"{key}{i}", names[at : at + each]) for i, at in enumerate(range(0, len(names), each))]


# --- names ------------------------------------------------------------------------------------------------------------


def clashes(paths: Iterable[str]) -> list[str]:
    """Names that are both a dataset and a group: 'a' beside 'a/b'."""
    taken = set(paths)
    return sorted(f"{path} is inside {p}" for path in taken for p in parents(path) if p in taken)


def parents(path: str) -> Iterator[str]:
    """The paths of the groups around a path, the outermost first."""
    words = path.split("/")
    return ("/".join(words[:n]) for n in range(1, len(words)))


# --- writers ----------------------------------------------------------------------------------------------------------


@dataclass
class FileWriter(Writer):
    """What the writers of plain HDF5 and of Keras' files have in common: one file, whose slots are its datasets."""

    url: str
    max_shard_size: int | None = None
    title: ClassVar[str] = ""
    skeleton: Skeleton | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        """The reason why HDF5 cannot hold a tensor for its name, or ''."""
        name = tensor.name
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

    def held(self, checkpoint: Checkpoint) -> tuple[Checkpoint, tuple[Note, ...]]:
        """What is written of the checkpoint, and notes on what is not; refuse what cannot be."""
        refuse_unheld(self, checkpoint, self.title)
        refuse_shards(checkpoint, self.max_shard_size, self.title)
        return plain(checkpoint)

    def laid_out(
        self, checkpoint: Checkpoint, paths: Mapping[str, str], groups: Mapping[str, Attributes], **options: Any
    ) -> Placement:
        """Make the file (see Skeleton); refuse names that clash, and text that HDF5 would cut."""
        if bad := clashes(paths):
            raise Unrepresentable(
                f"{self.title} cannot hold a tensor and a group of the same name; leave some out or change names, as a "
                "conversion does with weights_only=True (slots are below their weights), exclude= and rename=:\n"
                f"{listing(bad)}"
            )
        bad = [
            f"metadata {k!r}: HDF5 text cannot hold a NUL"
            for k, v in checkpoint.metadata.items()
            if "\0" in k + v or not k
        ]
        if bad:
            raise Unrepresentable(f"{self.title} cannot hold these names:\n{listing(bad)}")
        file = split(self.url)[1]
        self.skeleton = made = Skeleton(file, checkpoint, paths, groups, **options)
        return Placement([OutputFile(file, made.canvas.seek(0, io.SEEK_END))], made.slots, made.patches())

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return self.skeleton.resealed(metadata) if self.skeleton else ()


# --- plain HDF5 -------------------------------------------------------------------------------------------------------


def plain(checkpoint: Checkpoint) -> tuple[Checkpoint, tuple[Note, ...]]:
    """Leave out metadata that would make the file another than it is; return also notes on it.

    Keras builds what a model's description describes, and may run code in it: what a file of mere weights says must not
    become that, so it stays only where the checkpoint's own file could be a model for Keras. Lists of layers and
    weights never stay: by them detection and Keras take a file for a legacy one, whose writer makes its own.
    """
    own = checkpoint.format in MODELS and len(checkpoint.urls) <= 1  # of several files, any may have brought it
    model = set() if own else MODEL & checkpoint.metadata.keys()
    lists = {*filter(KERAS_LISTS.fullmatch, checkpoint.metadata)}
    gone = model | lists
    kept = {k: v for k, v in checkpoint.metadata.items() if k not in gone}
    load = "the description of a model, which load_model would build, and may run code in it; only weights are written"
    detect = "metadata by which the file would be taken for a legacy Keras file, and misread"
    notes = [Note("dropped", text, tuple(sorted(names))) for text, names in ((load, model), (detect, lists)) if names]
    return replace(checkpoint, metadata=kept), tuple(notes)


class Hdf5Writer(FileWriter):
    title = "HDF5"

    def cannot_hold(self, tensor: Tensor) -> str:
        if tensor.dtype.kind == "x":
            return f"HDF5 has no dtype {tensor.dtype}, and would return it as plain bytes"
        if tensor.dtype.kind == "s":
            return "text is not written to HDF5"
        return super().cannot_hold(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        checkpoint, notes = self.held(checkpoint)
        paths = dict(sorted(checkpoint.owners().items(), key=lambda one: one[0] != one[1]))  # links after all datasets
        made = self.laid_out(checkpoint, paths, {"": checkpoint.metadata}, ordered=True)
        return made._replace(slots={name: made.slots[paths[name]] for name in checkpoint}, notes=notes)
