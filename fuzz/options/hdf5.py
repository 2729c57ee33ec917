"""HDF5 by h5py: layouts, filters, fill values, dtypes, links, versions of the format, user blocks and orders."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .common import Case, Values, array, dtype, native, some_name, some_shape, texts

PLAIN = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
ODD = (
    "S3", "S0", "vlen bytes", "vlen text", "fixed text", "enum", "compound", "pairs", "reference", "region", "ragged",
    "subarray", "f16", "c32", "V2", "V1", "V7", "bfloat16", "float8_e4m3fn", "float8_e5m2", "odd float",
    "odd integer", "odd complex", "empty",
)  # fmt: skip

REFUSED = {
    "is a soft link": "a soft or external link",
    "is a virtual dataset": "a virtual dataset",
    "keeps its bytes in an external file": "external storage",
    "links go in circles": "a group with two names",
    "that frameworks do not write": "compounds, references, odd numbers",
    "opaque bytes per element$": "opaque bytes of another width",
    "an empty dataspace": "an empty dataspace",
    "named datatype": "a named datatype",
    "HDF5 text cannot hold a NUL": "text with a NUL",
    "text is not written to HDF5": "text",
    "another name of what is skipped": "a second name of text and the like",
    "cannot hold a tensor and a group": "a name that is a tensor and a group",
    "datasets store .* they overlap": "overlapping datasets",
}
LENIENT = {"not implemented yet.*that frameworks do not write": "floats that the library does not convert"}


def oracle() -> str:
    return f"h5py {h5py.__version__} with HDF5 {h5py.version.hdf5_version}"


# --- dtypes and values ------------------------------------------------------------------------------------------


def low_type(choose: random.Random, kind: str) -> Any:
    """A type that h5py's high level does not make: an HDF5 type with changed fields."""
    if kind == "odd integer":
        made = h5py.h5t.STD_I32LE.copy() if choose.random() < 0.5 else h5py.h5t.STD_U16BE.copy()
        made.set_precision(choose.choice((5, 12, 16)))
        return made
    if kind == "odd float":
        made = h5py.h5t.IEEE_F32LE.copy()
        choose.choice((
            lambda: made.set_norm(h5py.h5t.NORM_NONE), lambda: made.set_ebias(126),
            lambda: made.set_norm(h5py.h5t.NORM_MSBSET),
            lambda: made.set_order(h5py.h5t.ORDER_VAX),
        ))()  # fmt: skip
        return made
    if kind == "bfloat16":
        made = choose.choice((h5py.h5t.IEEE_F32LE, h5py.h5t.IEEE_F32BE)).copy()
        made.set_fields(15, 7, 8, 0, 7)
        made.set_size(2)
        made.set_ebias(127)
        return made
    made = h5py.h5t.IEEE_F16LE.copy()
    exponent = 4 if kind == "float8_e4m3fn" else 5
    made.set_fields(7, 7 - exponent, exponent, 0, 7 - exponent)
    made.set_size(1)
    made.set_ebias(7 if exponent == 4 else 15)
    return made


def odd_dtype(choose: random.Random, kind: str) -> Any:
    order = choose.choice("<>")
    return {
        "vlen bytes": h5py.string_dtype("ascii"), "vlen text": h5py.string_dtype(),
        "fixed text": h5py.string_dtype("utf-8", 6),
        "enum": h5py.enum_dtype({"A": 0, "B": 1, "C": 5}, f"{order}{choose.choice(('i1', 'i2', 'u4'))}"),
        "compound": np.dtype([("x", order + "f4"), ("y", "i2")]),
        "pairs": np.dtype([("r", order + "f4"), ("i", order + choose.choice(("f4", "f8")))]),
        "reference": h5py.ref_dtype, "region": h5py.regionref_dtype, "ragged": h5py.vlen_dtype(np.dtype("f4")),
        "subarray": np.dtype([("x", order + "f4", (2,))]), "S0": np.dtype("S1"),
        "odd complex": np.dtype({
            "names": ["r", "i"], "formats": [order + "f4"] * 2, "offsets": choose.choice(([0, 8], [4, 0], [0, 4])),
            "itemsize": choose.choice((12, 16)),
        }),
    }.get(kind)  # fmt: skip


def some_values(choose: random.Random, kind: Any, shape: tuple[int, ...]) -> np.ndarray:
    if kind.metadata and "vlen" in kind.metadata:
        if kind.metadata["vlen"] in (bytes, str):
            clean = [t.replace(b"\0", b"") for t in texts(choose, shape).reshape(-1).tolist()]
            spelled = [t if kind.metadata["vlen"] is bytes else t.decode("utf-8", "ignore") for t in clean]
            out = np.empty(len(spelled), object)
            out[:] = spelled
            return out.reshape(shape)
        out = np.empty(shape, object)
        for i in np.ndindex(*shape):
            out[i] = np.arange(choose.randint(0, 3), dtype="f4")
        return out
    if kind.metadata and "ref" in kind.metadata:
        return np.full(shape, None, kind)
    if kind.kind == "S":
        flat = np.array([choose.choice((b"", b"ab", b"abcdef", b"a\0b")) for _ in range(int(np.prod(shape)))], kind)
        return flat.reshape(shape)
    if kind.metadata and "enum" in kind.metadata:
        return np.array(choose.choices((0, 1, 5), k=int(np.prod(shape))), kind).reshape(shape)
    return array(choose, kind, shape)


# --- files ------------------------------------------------------------------------------------------------------


def storage(choose: random.Random, kind: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Keywords of create_dataset: chunks, filters, growth, fill values."""
    given: dict[str, Any] = {
        "track_times": choose.choice((None, True, False)),
        "track_order": choose.choice((None, True, False)),
    }
    plain = kind.kind in "iufc?b" and not kind.metadata
    if plain and choose.random() < 0.3:
        given["fillvalue"] = array(choose, kind, ())[()]
    if not shape or not all(shape) or choose.random() < 0.35:
        if shape and choose.random() < 0.3:
            given["maxshape"] = tuple(None if choose.random() < 0.5 else max(1, n) + 2 for n in shape)
        return given
    given["chunks"] = choose.choice((True, tuple(choose.randint(1, n + (choose.random() < 0.3)) for n in shape)))
    if given["chunks"] is not True:
        given["maxshape"] = tuple(
            max(c, n) if choose.random() < 0.7 else None for c, n in zip(given["chunks"], shape, strict=True)
        )
    given["compression"], given["compression_opts"] = choose.choice((
        (None, None), (None, None), ("gzip", choose.randint(0, 9)), ("gzip", None), ("lzf", None),
    ))  # fmt: skip
    given["shuffle"] = choose.random() < 0.3 and not kind.hasobject
    given["fletcher32"] = choose.random() < 0.2 and not kind.hasobject
    return given


def dataset(choose: random.Random, group: Any, name: str, folder: Path) -> None:
    """One dataset of any kind."""
    shape, how = some_shape(choose), choose.random()
    name_of = choose.choice(ODD) if how < 0.25 else choose.choice(PLAIN)
    if name_of == "empty":
        group[name] = h5py.Empty("f4")
        return
    if name_of in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "odd float", "odd integer"):
        low(choose, group, name, low_type(choose, name_of), shape)
        return
    kind = odd_dtype(choose, name_of)
    kind = kind if kind is not None else np.dtype(name_of)
    kind = (
        kind.newbyteorder(choose.choice("<>"))
        if kind.kind in "iufc" and not kind.metadata and choose.random() < 0.4
        else kind
    )
    values = some_values(choose, kind, shape)
    if choose.random() < 0.015 and kind.kind in "iuf" and shape and all(shape):
        special(choose, group, name, values, folder)
        return
    if choose.random() < 0.06 and not kind.hasobject and kind.kind in "iufc":
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(choose.choice((h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS)))
        plan.set_alloc_time(choose.choice((h5py.h5d.ALLOC_TIME_EARLY, h5py.h5d.ALLOC_TIME_DEFAULT)))
        made = h5py.h5d.create(group.id, name.encode(), h5py.h5t.py_create(kind, logical=True), space(shape), dcpl=plan)
        if choose.random() < 0.9:
            h5py.Dataset(made)[...] = values
        return
    made = group.create_dataset(name, shape, kind, **storage(choose, kind, shape))
    filled(choose, made, values)


def space(shape: tuple[int, ...]) -> Any:
    return h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)


def filled(choose: random.Random, made: Any, values: np.ndarray) -> None:
    """Written whole, in part, not at all, or resized after it was written."""
    how = choose.random()
    if how < 0.12:
        return
    if how < 0.22 and made.ndim and made.shape[0] > 1 and values.size:
        made[: made.shape[0] // 2] = values[: made.shape[0] // 2]
    elif values.size or made.ndim == 0:
        made[...] = values
    if how > 0.9 and made.chunks and made.ndim:
        axis = choose.randrange(made.ndim)
        most = made.maxshape[axis]
        made.resize(choose.randint(0, made.shape[axis] + 3 if most is None else most), axis)


def special(choose: random.Random, group: Any, name: str, values: np.ndarray, folder: Path) -> None:
    """Bytes that are elsewhere: external storage and virtual datasets."""
    if choose.random() < 0.5:
        (folder / "raw.bin").write_bytes(values.tobytes())
        group.create_dataset(name, values.shape, values.dtype, external=[(str(folder / "raw.bin"), 0, values.nbytes)])
        return
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    group[name + "_source"] = values
    layout[...] = h5py.VirtualSource(group[name + "_source"])
    group.create_virtual_dataset(name, layout)


def low(choose: random.Random, group: Any, name: str, kind: Any, shape: tuple[int, ...]) -> None:
    """A dataset of a type that NumPy has not, of random bits."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if shape and all(shape) and choose.random() < 0.5:
        plan.set_chunk(tuple(choose.randint(1, n) for n in shape))
        if choose.random() < 0.5:
            plan.set_deflate(4)
        if choose.random() < 0.2:
            plan.set_shuffle()
    made = h5py.h5d.create(group.id, name.encode(), kind, space(shape), dcpl=plan)
    if int(np.prod(shape)):
        bits = array(choose, np.dtype(f"u{kind.get_size()}"), shape)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=kind)


def attributes(choose: random.Random, thing: Any) -> None:
    for i in range(choose.randint(1, 12 if choose.random() < 0.2 else 2)):
        value = choose.choice((
            1, 0.5, "text", b"raw", "日本", np.float32(2), [1, 2], ["a", "é"], np.array([b"x", b"yz"]),
            True, np.array([True]), np.zeros((2, 2)), 1j, h5py.Empty("f4"), np.int8(-1), "", np.zeros(0),
            np.array(3, ">i4"),
            np.array(["a"], object), np.float16(1), np.void(b"ab"), h5py.Reference(), "x" * 3000,
            np.zeros(2, "f4,i2"),
        ))  # fmt: skip
        name = choose.choice(("a", "é", "name", "x y", "dtype", "CLASS", "?")) + str(i)
        if isinstance(value, h5py.Reference):
            thing.attrs.create(name, thing.ref, dtype=h5py.ref_dtype)
        else:
            thing.attrs[name] = value


def grown(choose: random.Random, group: Any, depth: int, folder: Path) -> None:
    """Datasets, groups and links in a group."""
    for i in range(choose.randint(0 if choose.random() < 0.1 else 1, 4)):
        name = some_name(choose, "_") + str(i)
        how = choose.random()
        if depth and how < 0.25:
            inner = group.create_group(name, track_order=choose.choice((None, True, False)))
            grown(choose, inner, depth - 1, folder)
        elif how < 0.3 and len(group):
            link(choose, group, name)
        else:
            with suppress(
                ValueError, OSError, TypeError, AttributeError
            ):  # the library does not make every combination
                dataset(choose, group, name, folder)
        if choose.random() < 0.2 and isinstance(group.get(name, getlink=True), h5py.HardLink):
            attributes(choose, group[name])


def link(choose: random.Random, group: Any, name: str) -> None:
    first = choose.choice(list(group))
    how = choose.random()
    if how < 0.6:
        if not isinstance(group.get(first, getlink=True), h5py.HardLink) or (
            isinstance(group[first], h5py.Group) and how > 0.1
        ):
            return
        group[name] = group[first]
    elif how < 0.7:
        group[name] = np.dtype("f4")
    elif how < 0.9:
        group[name] = h5py.SoftLink(choose.choice((f"{group.name}/{first}", first, "/nowhere")))
    else:
        group[name] = h5py.ExternalLink("other.h5", "/x")


def make(choose: random.Random, folder: Path) -> Case:
    path = folder / "m.hdf5"
    versions = choose.choice((None, "earliest", "latest", ("earliest", "v108"), ("v110", "v110"), ("v112", "latest")))
    block = choose.choice((0, 0, 0, 512, 1024, 2048))
    paged: dict[str, Any] = {}
    if choose.random() < 0.1:
        paged, versions, block = {"fs_strategy": choose.choice(("page", "fsm", "none"))}, "latest", 0
    with h5py.File(
        path, "w", libver=versions, userblock_size=block, track_order=choose.choice((None, True)), **paged
    ) as f:
        grown(choose, f, 3, folder)
        if choose.random() < 0.3:
            attributes(choose, f)
        if choose.random() < 0.05 and len(f):
            del f[choose.choice(list(f))]
    if block and choose.random() < 0.7:
        with open(path, "r+b") as raw:
            raw.write(choose.choice((b"#!/bin/sh\n", b"\x89HDF", b"PK\3\4")))
    if choose.random() < 0.02:
        raw_bytes = path.read_bytes()
        path.write_bytes(choose.choice((raw_bytes + b"more", raw_bytes[: len(raw_bytes) - 8])))
    return Case(path, "hdf5", read, folder / "back.hdf5", write={"verify": choose.choice((False, False, None))})


# --- reading ----------------------------------------------------------------------------------------------------


def read(path: Path) -> Values:
    out: Values = {}
    with h5py.File(path) as f:
        walk(f, "", out)
    return out


def walk(group: Any, above: str, out: Values) -> None:
    """Everything that h5py reads, also through links; under the paths."""
    for name in group:
        here = f"{above}/{name}" if above else name
        thing = group[name]
        if isinstance(thing, h5py.Group):
            walk(thing, here, out)
        elif isinstance(thing, h5py.Dataset):
            out[here] = value(thing)


def value(thing: Any) -> np.ndarray:
    """A dataset in our dtypes: enumerations as numbers, opaque bytes as Keras and we name them."""
    kind = thing.id.get_type()
    small = (
        kind.get_class() == h5py.h5t.FLOAT
        and kind.get_size() < 3
        and not kind.equal(h5py.h5t.IEEE_F16LE)
        and not kind.equal(h5py.h5t.IEEE_F16BE)
    )
    if small:
        return bits(thing, kind)
    found = thing[()]
    if isinstance(found, h5py.Empty):
        return np.array([found.dtype])
    found = np.asarray(found)
    if thing.dtype.kind == "V" and thing.dtype.names is None and thing.dtype.subdtype is None:
        called = thing.attrs.get("dtype", "")
        if called or found.dtype.itemsize < 3:
            return found.view(dtype(called) if called else "u1" if found.dtype.itemsize == 1 else dtype("bfloat16"))
    return native(found.astype(found.dtype.newbyteorder("="))) if found.dtype.kind != "V" else found


def bits(thing: Any, kind: Any) -> np.ndarray:
    """The bits of a float that NumPy has not, through the library's own conversion to integers of none."""
    name = {(2, 8): "bfloat16", (1, 4): "float8_e4m3fn", (1, 5): "float8_e5m2"}[kind.get_size(), kind.get_fields()[2]]
    raw = np.zeros(thing.shape, f"{'>' if kind.get_order() == 1 else '<'}u{kind.get_size()}")
    thing.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=kind)
    return native(raw).view(dtype(name))


def around(choose: random.Random) -> AbstractContextManager[None]:
    """In most cases the library runs in this process: starting another takes longer than all the rest."""
    return without_child() if choose.random() < 0.85 else nullcontext()


@contextmanager
def without_child() -> Iterator[None]:
    """Run here what otherwise runs in the child; errors become what the child makes of them."""
    from ckptconv.errors import CorruptCheckpoint, UnsafeCheckpoint
    from ckptconv.formats.hdf5 import sandbox, worker

    def ask(image: Any, path: str | None = None) -> Iterator[bytes]:
        source = image.source()
        try:
            with h5py.File(io.BytesIO(source.read(0, image.size)), "r") as f:
                yield from worker.listing(f) if path is None else worker.elements(f, path)
        except Exception as e:
            unsafe = isinstance(e, worker.Refused) and e.args[0] == b"U"
            message = str(e.args[1] if isinstance(e, worker.Refused) else f"is not valid HDF5: {e}")
            error = UnsafeCheckpoint if unsafe else CorruptCheckpoint
            raise error(message, url=image.url) from None
        finally:
            source.close()

    was, sandbox.ask = sandbox.ask, ask
    try:
        yield
    finally:
        sandbox.ask = was


KINDS = ("bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "int4", "uint2", "float4_e2m1fn", "string")
