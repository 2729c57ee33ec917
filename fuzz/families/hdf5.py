"""HDF5 and both Keras formats; `built` has the HDF5 library write what the records say."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .common import FIXTURES, JSON, Laid, Record, Way, archive, globbed, of_ways, packed, raw, records, several

KINDS = ("f4", "f2", "f8", ">f4", "i1", ">i8", "i4", "u2", "bool", "c8", "S5", "O", "V2", "V1", "V3", "bfloat16")


def build(data: bytes, path: Path) -> None:
    """Have the library write what records say: a path, and what lies there; what it refuses is left out.

    "a/b"       u8 0, u8                        group, named datatype, or a dataset without a space
    "a/b"       u8 1..5, dtype, rank, sizes     dataset: contiguous, chunked, deflated, compact, never written
    "a/b@name"  u8 0..3                         attribute: text, list of texts, bytes, number
    "a/b"       u8 6 or 7, path                 hard or soft link
    """
    import h5py
    import numpy as np

    with h5py.File(path, "w", track_order=len(data) % 2 == 0) as f:
        for name, spec in records(data)[:128]:
            where, at, attribute = name.decode("utf-8", "replace").partition("@")
            code, rest = spec[0] if spec else 0, spec[1:]
            with suppress(ValueError, TypeError, KeyError, OSError, RuntimeError, AttributeError):
                if at:
                    f[where or "/"].attrs[attribute] = _attribute(code % 4, rest)
                elif code % 8 == 0 and rest[:1] in (b"\1", b"\2"):
                    f[where] = np.dtype("f4") if rest[0] == 1 else h5py.Empty("f4")
                elif code % 8 == 0:
                    f.require_group(where)
                elif code % 8 < 6:
                    _dataset(f, where, code % 8, rest)
                elif code % 8 == 6:
                    f[where] = f[rest.decode()]
                else:
                    f[where] = h5py.SoftLink(rest.decode())


def _attribute(code: int, rest: bytes) -> Any:
    import numpy as np

    if code == 0:
        return rest.decode("utf-8", "replace").replace("\0", "")
    if code == 1:
        return [t.decode("utf-8", "replace") for t in rest.split(b"\0")] if rest else []
    return np.bytes_(rest) if code == 2 else np.frombuffer(rest.ljust(8, b"\0")[:8], "f4")[: 1 + (rest[:1] < b"\x80")]


def _dataset(f: Any, where: str, code: int, rest: bytes) -> None:
    import h5py
    import ml_dtypes
    import numpy as np

    rest = rest.ljust(5, b"\0")
    shape = tuple(n % 9 for n in rest[2 : 2 + rest[1] % 4])
    name = KINDS[rest[0] % len(KINDS)]
    count = int(np.prod(shape, dtype=int))
    body = (rest[5:] or b"\0") * (count * 8 // max(1, len(rest) - 5) + 1)
    if name == "O":
        kind: Any = h5py.string_dtype()
        array: Any = np.array([body[i : i + 3].hex() for i in range(count)], object).reshape(shape)
    else:
        kind = np.dtype(getattr(ml_dtypes, name, name))
        array = np.frombuffer(body[: count * kind.itemsize], "u1").view(kind if count else "u1")
        array = (array % 2).astype(bool).reshape(shape) if name == "bool" else array.astype(kind).reshape(shape)
    more: dict[str, Any] = {}
    if code in (2, 3) and shape and count:
        more = {"chunks": tuple(max(1, n // 2) for n in shape), "compression": "gzip" if code == 3 else None}
    if code == 4 and name != "O":
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
        stored = _narrow() if name == "bfloat16" else h5py.h5t.py_create(kind, logical=True)
        made = h5py.h5d.create(f.id, where.encode(), stored, space, plan)
        if name != "bfloat16":
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))
    else:
        f.create_dataset(where, shape=shape, dtype=kind, data=None if code == 5 else array, **more)


def _narrow() -> Any:
    """bfloat16 as a float of the library's own, big-endian."""
    import h5py

    kind = h5py.h5t.IEEE_F32BE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def unbuilt(path: Path) -> Iterator[Record]:
    """The records that build a fixture again, nearly."""
    import h5py
    import numpy as np

    def attributes(where: str, thing: Any) -> Iterator[Record]:
        for key, value in thing.attrs.items():
            spelled = f"{where}@{key}".encode()
            if isinstance(value, np.ndarray):
                words = [v if isinstance(v, bytes) else str(v).encode() for v in value.ravel().tolist()]
                yield spelled, b"\1" + b"\0".join(words)
            else:
                yield spelled, b"\0" + (value if isinstance(value, bytes) else str(value).encode())

    found: list[Record] = []

    def visit(where: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            kind = thing.dtype.str.lstrip("<|") if thing.dtype.str.lstrip("<|") in KINDS else "f4"
            code = 3 if thing.compression else 2 if thing.chunks else 1
            sizes = bytes(n % 9 for n in thing.shape[:3]).ljust(3, b"\0")
            found.append((where.encode(), bytes([code, KINDS.index(kind), min(3, thing.ndim)]) + sizes))
        else:
            found.append((where.encode(), b"\0"))
        found.extend(attributes(where, thing))

    with h5py.File(path) as f:
        found += attributes("", f)
        f.visititems(visit)
    yield from found


def built(name: str, format: str, *seeds: str) -> Way:
    """Records are what the library writes into the file."""

    def lay(data: bytes, folder: Path) -> Laid:
        build(data, folder / name)
        return folder / name, format

    def made() -> Iterator[bytes]:
        yield from (packed(unbuilt(p)) for p in globbed(seeds))
        if format == "hdf5":  # one of each kind and way to store it
            pairs = [(code, n) for code in range(1, 6) for n in range(len(KINDS))]
            every = [(b"g%d/%d" % pair, bytes([*pair, 2, 3, 2])) for pair in pairs]
            odd = [(b"t", b"\0\1"), (b"none", b"\0\2"), (b"again", b"\6g1/0"), (b"a", b"\0"), (b"a@x", b"\3abcd")]
            yield packed([*every, *odd])

    return Way(lay, made, packed=True, around=without_child)


def keras_folder(data: bytes, home: Path) -> Laid:
    """The first two records are config.json and metadata.json, the others what the weights hold."""
    home = home / "x.keras"
    home.mkdir()
    pairs = [*records(data), (b"", b""), (b"", b"")]
    (home / "config.json").write_bytes(pairs[0][1])
    (home / "metadata.json").write_bytes(pairs[1][1])
    build(packed(pairs[2:-2]), home / "model.weights.h5")
    return home, "keras3"


def keras_folders() -> Iterator[bytes]:
    for path in globbed(["keras/net.keras", "keras/deflated.keras"]):
        with zipfile.ZipFile(path) as z:
            said = [(b"", z.read(n)) for n in ("config.json", "metadata.json")]
            scratch = io.BytesIO(z.read("model.weights.h5"))
        yield packed([*said, *unbuilt(scratch)])  # type: ignore[arg-type]  # h5py takes both


SHARDS = [f"shards_0000{i}.weights.h5" for i in range(5)]


def keras_shards() -> Iterator[Sequence[bytes]]:
    home = FIXTURES / "keras"
    yield [(home / n).read_bytes() for n in ("shards.weights.json", *SHARDS)]


def keras_indexes() -> Iterator[Sequence[bytes]]:
    import ckptconv

    path = FIXTURES / "keras" / "pair_tf_keras.h5"
    names = [f"model/{name}:0" for name in ckptconv.open(path)]
    yield [json.dumps({"weight_map": dict.fromkeys(names, "a.h5")}).encode(), path.read_bytes()]


@contextmanager
def without_child() -> Iterator[None]:
    """Run the library and what reads with it in this process, where a surprise of worker.py is no 'damaged file'."""
    import h5py

    from ckptconv.errors import CorruptCheckpoint, UnsafeCheckpoint
    from ckptconv.formats.hdf5 import sandbox, worker

    def ask(image: Any, path: str | None = None) -> Iterator[bytes]:
        source = image.source()
        try:
            with h5py.File(io.BytesIO(source.read(0, image.size)), "r") as f:
                yield from worker.listing(f) if path is None else worker.elements(f, path)
        except worker.Refused as e:
            kind, message = e.args
            raise (UnsafeCheckpoint if kind == b"U" else CorruptCheckpoint)(message, url=image.url) from None
        finally:
            source.close()

    was, sandbox.ask = sandbox.ask, ask
    try:
        yield
    finally:
        sandbox.ask = was


WAYS = (
    raw("x.h5", "hdf5", "keras/*.h5", "hostile/hdf5/*.h5"),
    raw("x.h5", "keras", "keras/*.h5", "hostile/hdf5/keras*.h5"),
    raw("x.weights.h5", "keras3", "keras/*weights.h5"),
    raw("x.keras", "keras3", "keras/*.keras", "hostile/hdf5/*.keras"),
    archive("x.keras", "keras3", "keras/*.keras", "hostile/hdf5/*.keras"),
    built("x.h5", "hdf5", "keras/*.h5"),
    built("x.h5", "keras", "keras/*keras.h5", "keras/legacy3.h5"),
    built("x.weights.h5", "keras3", "keras/*weights.h5"),
    Way(keras_folder, keras_folders, packed=True, around=without_child),
    several(["shards.weights.json", *SHARDS], "shards.weights.json", "keras3", keras_shards),
    several(["tf_model.h5.index.json", "a.h5"], "tf_model.h5.index.json", "hf", keras_indexes),
)  # fmt: skip
CONSTANTS = (
    "table.HDF5",
    "keras.naming.TOP",
    "keras.naming.OPTIMIZER",
    "keras.v3.ABOUT",
    "table.KERAS_WEIGHTS",
)
SPELLED = (
    b"TREE SNOD HEAP GCOL OHDR OCHK FRHP FHDB FHIB BTHD BTIN BTLF FSHD FSSE SMTB SMLI FAHD EAHD "
    b"layer_names layer_names0 weight_names "
    b'vars/0 layers/dense/vars/0 @name kernel:0 @model_config "class_name" "config" "layers" "name" ' + JSON
)
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS)
