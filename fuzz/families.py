"""What the fuzzer's bytes become: for each family a few ways to lay them out as files, and seeds from the fixtures.

    u8                            which way, modulo their number; divided by it, which options of `open`
    rest                          the file itself; or, of a way that packs several files or members:
    { u32le, a, u32le, b } ...    records; lengths that reach past the end are cut

Ways that put records under valid checksums (a table's blocks, a zip's members) are there because mutation alone does
not get past those; `built` has the HDF5 library write what the records say.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ckptconv.rules.apply import apply
from ckptconv.rules.assign import takes

ROOT = Path(__file__).parents[1]
FIXTURES, CONVERTERS = ROOT / "fixtures", ROOT / "converters"
LARGEST = 1 << 17  # bytes of an input
READ = 1 << 20  # bytes of a tensor that is read
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"opaque": True}, {"salvage": True}, {"densify": True})

Record = tuple[bytes, bytes]
Laid = tuple[Path, "str | None"]


class Way(NamedTuple):
    """Write files from the bytes into a folder; returns (path to open, format or None: whatever is detected)."""

    lay: Callable[[bytes, Path], Laid]
    seeds: Callable[[], Iterator[bytes]]
    packed: bool = False  # the bytes are records
    within: bool = False  # the HDF5 library wrote it: it is read without a child process, so that coverage is seen


def records(data: bytes) -> list[Record]:
    out, at = list[Record](), 0
    while at + 4 <= len(data):
        (n,) = struct.unpack_from("<I", data, at)
        a, at = data[at + 4 : at + 4 + n], at + 4 + n
        if at + 4 > len(data):
            n = 0
        else:
            (n,) = struct.unpack_from("<I", data, at)
        out.append((a, data[at + 4 : at + 4 + n]))
        at += 4 + n
    return out


def packed(pairs: Iterable[Record]) -> bytes:
    return b"".join(struct.pack("<I", len(a)) + a + struct.pack("<I", len(b)) + b for a, b in pairs)


def zipped(members: Sequence[Record]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, data in members[:64]:
            info = zipfile.ZipInfo(name.decode("utf-8", "replace") or "x")
            z.writestr(info, data)
    return out.getvalue()


def members(path: Path) -> Iterator[bytes]:
    """The members of a zip as records, if Python's reader takes it."""
    refused = (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, UnicodeError, EOFError)
    with suppress(*refused), zipfile.ZipFile(path) as z:
        if sum(i.file_size for i in z.infolist()) <= LARGEST:
            yield packed([(i.filename.encode(), z.read(i)) for i in z.infolist()])


def globbed(patterns: Iterable[str]) -> Iterator[Path]:
    return (p for s in patterns for p in sorted(FIXTURES.glob(s)) if p.is_file())


def in_folder(home: Path) -> bytes:
    """All files of a folder as records: their names and contents."""
    files = sorted(p for p in home.rglob("*") if p.is_file() and not p.is_symlink())
    return packed([(p.relative_to(home).as_posix().encode(), p.read_bytes()) for p in files])


# --- ways -------------------------------------------------------------------------------------------------------


def raw(name: str, format: str | None, *seeds: str) -> Way:
    """The bytes are the file."""

    def lay(data: bytes, folder: Path) -> Laid:
        (folder / name).write_bytes(data)
        return folder / name, format

    return Way(lay, lambda: (p.read_bytes() for p in globbed(seeds)))


def several(names: Sequence[str], open: str, format: str | None, seeds: Callable[[], Iterable[Sequence[bytes]]]) -> Way:
    """The first record's b is the first file, and so on; their a is not used."""

    def lay(data: bytes, folder: Path) -> Laid:
        for name, (_, body) in zip(names, records(data), strict=False):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        return folder / open, format

    return Way(lay, lambda: (packed([(b"", body) for body in s]) for s in seeds()), packed=True)


def beside(patterns: Sequence[str], *suffixes: str) -> Callable[[], Iterable[Sequence[bytes]]]:
    """Contents of the files that a pattern finds, and of those of the same stem with each suffix."""

    def found() -> Iterator[Sequence[bytes]]:
        for path in globbed(patterns):
            others = [path.with_suffix(s) for s in suffixes]
            yield [path.read_bytes(), *(o.read_bytes() if o.exists() else b"" for o in others)]

    return found


def folder(format: str | None, *seeds: str, any_name: bool = False) -> Way:
    """Records are the files of a folder: names, without anything that leaves it, and contents."""
    odd = re.compile(rb"[/\0]" if any_name else rb"[^\w.%/-]")

    def lay(data: bytes, home: Path) -> Laid:
        home = home / "x"
        home.mkdir()
        for name, body in records(data)[:64]:
            parts = [odd.sub(b"_", p)[:200].decode("utf-8", "surrogateescape") for p in name.split(b"/")[:3]]
            path = home.joinpath(*(p for p in parts if p not in ("", ".", "..")))
            with suppress(OSError):  # a file where a folder is, or the other way round
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
        return home, format

    return Way(lay, lambda: (in_folder(p) for s in seeds for p in sorted(FIXTURES.glob(s)) if p.is_dir()), packed=True)


def archive(name: str, format: str | None, *seeds: str) -> Way:
    """Records are the members of a sound zip."""

    def lay(data: bytes, folder: Path) -> Laid:
        (folder / name).write_bytes(zipped(records(data)))
        return folder / name, format

    return Way(lay, lambda: (m for p in globbed(seeds) for m in members(p)), packed=True)


# --- TensorFlow --------------------------------------------------------------------------------------------------


def table(kind: str) -> Way:
    """Records are the entries of a sound table; of a bundle the first is the shard."""

    def lay(data: bytes, folder: Path) -> Laid:
        from ckptconv.formats.tensorflow.table import build

        pairs = records(data)
        if kind == "tf" and pairs:
            (folder / "x.data-00000-of-00001").write_bytes(pairs.pop(0)[1])
        (folder / "x.index").write_bytes(build(sorted(dict(pairs).items())))
        return folder / "x.index", kind

    def seeds() -> Iterator[bytes]:
        from ckptconv.errors import CkptError
        from ckptconv.formats.tensorflow.table import Table
        from ckptconv.storage.files import Reader

        where = ("tf/*.index", "tf/tf1/*.index", "hostile/tf/*.index", "originals/bert/*.index")
        for path in globbed(where if kind == "tf" else ("tf/v1", "tf/v1s-*")):
            shard = path.with_suffix(".data-00000-of-00001")
            data = shard.read_bytes() if shard.exists() else b""
            with suppress(CkptError), Reader(str(path)) as f:
                pairs = list(Table(f))
                yield packed([(b"", data), *pairs] if kind == "tf" else pairs)
                if kind == "tf" and path.stem in ("dtypes", "strings", "sliced"):  # big-endian, as its header has it
                    yield packed([(b"", data), (b"", pairs[0][1] + b"\x10\x01"), *pairs[1:]])

    return Way(lay, seeds, packed=True)


def bundle(graph: bytes, named: Sequence[Record], path: Path) -> None:
    """Write a sound bundle of float32 vectors and an object graph."""
    from ckptconv.formats.tensorflow import messages_pb2 as pb
    from ckptconv.formats.tensorflow import strings
    from ckptconv.formats.tensorflow.bundle import OBJECT_GRAPH
    from ckptconv.formats.tensorflow.table import build
    from ckptconv.storage.checksum import crc, mask

    entries, data = {b"": b"\x08\x01\x1a\x02\x08\x01"}, b""
    for name, body in named[:64]:
        body = body[: len(body) // 4 * 4]
        entry = pb.BundleEntryProto(dtype=1, offset=len(data), size=len(body), crc32c=mask(crc("crc32c", body)))
        entry.shape.dim.add(size=len(body) // 4)
        entries[name or b"x"], data = entry.SerializeToString(), data + body
    words, check = strings.pack([graph])
    entry = pb.BundleEntryProto(dtype=7, offset=len(data), size=len(words), crc32c=mask(check))
    entry.shape.SetInParent()
    entries[OBJECT_GRAPH.encode()] = entry.SerializeToString()
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".data-00000-of-00001").write_bytes(data + words)
    path.with_suffix(".index").write_bytes(build(sorted(entries.items())))


def taken_apart(index: Path) -> Iterator[Record]:
    """The object graph of a bundle, and its tensors' keys and bytes."""
    from ckptconv.formats.tensorflow.bundle import read

    found = read(str(index))
    yield b"", found.graph
    yield from ((k.encode("utf-8", "surrogateescape"), t.numpy().tobytes()) for k, t in found.tensors.items()
                if t.dtype.kind != "s")  # fmt: skip


def object_graph(data: bytes, folder: Path) -> Laid:
    """The first record's b is the object graph; the others are variables."""
    pairs = records(data) or [(b"", b"")]
    bundle(pairs[0][1], pairs[1:], folder / "x.index")
    return folder / "x", "tf"


def object_graphs() -> Iterator[bytes]:
    return (packed(taken_apart(p)) for p in globbed(["tf/objects-1.index", "tf/keras3.index"]))


def saved_model(data: bytes, folder: Path) -> Laid:
    """The model, the object graph of its variables, the variables."""
    pairs = [*records(data), (b"", b""), (b"", b"")]
    (folder / "saved_model.pb").write_bytes(pairs[0][1])
    bundle(pairs[1][1], pairs[2:-2], folder / "variables" / "variables.index")
    return folder, "tf-graph"


def saved_models() -> Iterator[bytes]:
    home = FIXTURES / "tf" / "saved"
    model = (b"", (home / "saved_model.pb").read_bytes())
    yield packed([model, *taken_apart(home / "variables" / "variables.index")])


# --- PyTorch -----------------------------------------------------------------------------------------------------


def torch_pickle(data: bytes, folder: Path) -> Laid:
    """The bytes are the pickle of a sound archive, whose storages are as large as the pickle says."""
    from ckptconv.formats.pytorch.pickle import load
    from ckptconv.formats.pytorch.rebuild import TORCH, Storage

    sizes: dict[str, int] = {}

    def find(pid: Any) -> Storage:
        _, kind, key, _, count = pid
        size = -(-count * kind.bits // 8)
        if 0 <= size <= 1 << 16 and str(key).isalnum() and len(sizes) < 32:
            sizes[str(key)] = size
        return Storage(kind, str(key), None, size)

    with suppress(Exception):  # only a rehearsal
        load(data, allowed=TORCH, persistent_load=find, opaque=True, url="")
    parts = [(b"x/data.pkl", data), (b"x/version", b"3\n"), (b"x/byteorder", b"little")]
    parts += [(b"x/data/" + key.encode(), bytes(n)) for key, n in sizes.items()]
    (folder / "x.pt").write_bytes(zipped(parts))
    return folder / "x.pt", "torch"


def pickles() -> Iterator[bytes]:
    for path in globbed(["torch/*.pt", "torch/pieces/*.pt", "hostile/pytorch/*.pt"]):
        for data in members(path):
            yield from (body for name, body in records(data) if name.endswith(b"data.pkl"))


def plain_pickles() -> Iterator[bytes]:
    """Dicts of NumPy arrays, as the protocols spell them."""
    import numpy as np

    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": {"c": np.zeros((2, 2), ">i4").T, "d": (np.float32(1), [b"x"])}}
    return (pickle.dumps(arrays | {"e": np.array(["x", None], object), 3: "x"}, protocol=n) for n in (2, 3, 4, 5))


def plain_pickle(data: bytes, folder: Path) -> Laid:
    (folder / "x.pkl").write_bytes(data)
    return folder / "x.pkl", "pickle"


def tarred(data: bytes, folder: Path) -> Laid:
    """Records are the members of a sound tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as t, suppress(ValueError):
        for name, body in records(data)[:64]:
            info = tarfile.TarInfo(name.decode("latin-1")[:100])
            info.size = len(body)
            t.addfile(info, io.BytesIO(body))
    (folder / "x.pt").write_bytes(out.getvalue())
    return folder / "x.pt", "torch-legacy"


def tars() -> Iterator[bytes]:
    for path in globbed(["hostile/pytorch/tar*.pt"]):
        with tarfile.open(path) as t:
            yield packed([(m.name.encode(), t.extractfile(m).read()) for m in t if m.isfile()])  # type: ignore[union-attr]


def torch_shards() -> Iterator[Sequence[bytes]]:
    """Two archives and an index of what they hold."""
    from ckptconv.formats.detect import open_checkpoint

    for pair in (("training", "nested"), ("stream", "training"), ("views", "dtypes")):
        paths = [FIXTURES / "torch" / f"{name}.pt" for name in pair]
        places: dict[str, str] = {}
        for file, path in zip(("a.bin", "b.bin"), paths, strict=True):
            places |= dict.fromkeys(open_checkpoint(str(path)).tensors, file)
        yield [json.dumps({"weight_map": places}).encode(), *(p.read_bytes() for p in paths)]


# --- JSON and NumPy ----------------------------------------------------------------------------------------------


def safetensors_header(data: bytes, folder: Path) -> Laid:
    """a is the header's JSON, b the payload."""
    head, body = (records(data) or [(b"", b"")])[0]
    (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
    return folder / "x.safetensors", "safetensors"


def safetensors_headers() -> Iterator[bytes]:
    for path in globbed(["hostile/safetensors/*.safetensors", "t5x/*.safetensors", "originals/bert/*.safetensors"]):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        if size < min(len(data), 1 << 16):
            yield packed([(data[8 : 8 + size], data[8 + size :])])


def npy_header(data: bytes, folder: Path) -> Laid:
    head, body = (records(data) or [(b"", b"")])[0]
    head = head[:65535]
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body)
    return folder / "x.npy", "npy"


def npy_headers() -> Iterator[bytes]:
    for kind, shape, size in (
        ("<f4", "(3, 2)", 24), (">i8", "()", 8), ("|b1", "(4,)", 4), ("|S3", "(2,)", 6), ("<U2", "(2, 2)", 32),
        (">c16", "(2,)", 32), ("|V2", "(2, 0)", 0),
    ):  # fmt: skip
        for order in (False, True):
            head = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
            yield packed([(head.ljust(117) + b"\n", bytes(size))])


def npy_pickle(data: bytes, folder: Path) -> Laid:
    """The bytes are the pickle of an array of objects."""
    head = b"{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n"
    return npy_header(packed([(head, data)]), folder)


def npy_pickles() -> Iterator[bytes]:
    import numpy as np

    for held in ({"a": np.arange(6.0).reshape(2, 3), "b": [np.zeros(2, ">i4"), "x"]}, [np.ones(2), None]):
        array = np.empty((), object)
        array[()] = held
        yield from (pickle.dumps(array, protocol=n) for n in (2, 3, 5))
    for path in globbed(["hostile/numpy/pickle*.npy"]):
        yield path.read_bytes().partition(b"\n")[2]


def index(data: bytes, folder: Path) -> Laid:
    """a is an index, b the one shard beside it."""
    head, body = (records(data) or [(b"", b"")])[0]
    (folder / "model.safetensors.index.json").write_bytes(head)
    (folder / "a.safetensors").write_bytes(body)
    return folder / "model.safetensors.index.json", "hf"


def indexes() -> Iterator[bytes]:
    for home in sorted((FIXTURES / "hostile/sharded").iterdir()):
        if home.is_dir():
            for path in home.glob("*.index.json"):
                shard = next(iter(sorted(home.glob("*.safetensors"))), None)
                yield packed([(path.read_bytes(), shard.read_bytes() if shard else b"")])
    good = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    yield packed(
        [(json.dumps({"weight_map": {"w": "a.safetensors"}}).encode(), struct.pack("<Q", len(good)) + good + bytes(8))]
    )


# --- HDF5 --------------------------------------------------------------------------------------------------------

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

    return Way(lay, made, packed=True, within=True)


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
    shard = (FIXTURES / "keras" / "pair_tf_keras.h5").read_bytes()
    from ckptconv.formats.hdf5.file import look

    names = look(str(FIXTURES / "keras" / "pair_tf_keras.h5")).datasets
    yield [json.dumps({"weight_map": dict.fromkeys(names, "a.h5")}).encode(), shard]


@contextmanager
def without_child() -> Iterator[None]:
    """Run the library and what reads with it in this process, where a surprise of scan.py is no 'damaged file'."""
    import h5py

    from ckptconv.formats.hdf5 import child, inside, scan

    def ask(window: Any, **request: str) -> Iterator[tuple[bytes, bytes]]:
        source = window.source()
        try:
            with h5py.File(io.BytesIO(source.read(0, window.size)), "r") as f:
                yield from inside.serve(f, request, window.size)
        except scan.Refused as e:
            raise child._error(list(e.args), window.url) from None
        finally:
            source.close()

    was, child.ask = child.ask, ask
    try:
        yield
    finally:
        child.ask = was


# --- manifests of many checkpoints -------------------------------------------------------------------------------

CSV = b"""source,destination,to,converter,dtype,include,options
a/model.ckpt,b.safetensors,,hf-bert,float16,"[""*""]","{""exclude"": [""*/adam_*""], ""max_shard_size"": 5}"
"""
LINES = b"""{"source": "s3://zoo/bert/model.ckpt", "to": "npz", "converter": "hf-bert", "options": {"opaque": true}}
{"source": "x.pt", "weights_only": "true", "rename": ["a=b"], "params": {"heads": 2}}
"""


def text(name: str, format: str, seed: bytes) -> Way:
    def lay(data: bytes, folder: Path) -> Laid:
        (folder / name).write_bytes(data)
        return folder / name, format

    return Way(lay, lambda: iter([seed]))


# --- rule files --------------------------------------------------------------------------------------------------


@lru_cache
def sample() -> Any:
    """A checkpoint with names of a few families, small."""
    import numpy as np

    from ckptconv.checkpoint import Checkpoint, held

    names = {
        "bert/embeddings/word_embeddings": (5, 4), "bert/encoder/layer_0/attention/self/query/kernel": (4, 4),
        "bert/encoder/layer_0/attention/self/query/bias": (4,), "bert/encoder/layer_1/output/LayerNorm/gamma": (4,),
        "model.layers.0.mlp.weight": (4, 2), "conv/kernel": (3, 3, 2, 4), "a" * 500: (1,),
    }  # fmt: skip
    return Checkpoint({n: held(n, np.zeros(s, "f4")) for n, s in names.items()})


def rules(text: str) -> int:
    """Parse rules, lint them, apply them both ways."""
    from ckptconv.errors import CkptError
    from ckptconv.rules.lint import lint
    from ckptconv.rules.toml import parse

    made = parse(text, "fuzzed")
    takes(made, sample())
    lint(made)
    for one in (lambda: made, lambda: made.inverse):
        with suppress(CkptError):
            apply(one(), sample())
    return len(made.rules)


# --- families ----------------------------------------------------------------------------------------------------

TF = (
    several(["x.index", "x.data-00000-of-00001", "x.meta"], "x", "tf",
            beside(["tf/[dkos]*.index", "tf/tf1/*.index", "hostile/tf/*.index"], ".data-00000-of-00001", ".meta")),
    table("tf"),
    raw("x", "tf-v1", "tf/v1", "tf/v1s-*"),
    table("tf-v1"),
    raw("x.pb", "tf-graph", "tf/*.pb", "hostile/tf/*.pb", "tf/saved/*.pb"),
    raw("x.pbtxt", "tf-graph", "tf/*.pbtxt"),
    raw("x.meta", "tf-graph", "tf/tf1/*.meta"),
    Way(object_graph, object_graphs, packed=True),
    Way(saved_model, saved_models, packed=True),
    folder("tf", "tf/tf1", "originals/bert", "tf/saved/variables", "hostile/tf/*"),
    folder(None, "tf/saved", "tf/tf1", "hostile/tf/*"),
    several(["x.index", "x.data-00000-of-00002", "x.data-00001-of-00002"], "x", "tf",
            beside(["tf/sharded.index"], ".data-00000-of-00002", ".data-00001-of-00002")),
)  # fmt: skip
PYTORCH = (
    raw("x.pt", None, "torch/*.pt", "hostile/pytorch/*.pt", "hostile/strangers/*"),
    Way(torch_pickle, pickles),
    archive("x.pt", "torch", "torch/[dmntv]*.pt", "torch/pieces/*.pt", "hostile/pytorch/*.pt"),
    raw("x.pt", "torch-legacy", "torch/stream.pt", "hostile/pytorch/stream*.pt", "hostile/pytorch/tar*.pt"),
    Way(plain_pickle, plain_pickles),
    archive("x.pt", "torchscript", "torch/script.pt", "torch/frozen.pt", "hostile/pytorch/script*.pt"),
    folder("dcp", "torch/dcp", "hostile/dcp/*"),
    several(["x.bin.index.json", "a.bin", "b.bin"], "x.bin.index.json", "hf", torch_shards),
    Way(tarred, tars, packed=True),
)  # fmt: skip
HDF5 = (
    raw("x.h5", "hdf5", "keras/*.h5", "hostile/hdf5/*.h5"),
    raw("x.h5", "keras", "keras/*.h5", "hostile/hdf5/keras*.h5"),
    raw("x.weights.h5", "keras3", "keras/*weights.h5"),
    raw("x.keras", "keras3", "keras/*.keras", "hostile/hdf5/*.keras"),
    archive("x.keras", "keras3", "keras/*.keras", "hostile/hdf5/*.keras"),
    built("x.h5", "hdf5", "keras/*.h5"),
    built("x.h5", "keras", "keras/*keras.h5", "keras/legacy3.h5"),
    built("x.weights.h5", "keras3", "keras/*weights.h5"),
    Way(keras_folder, keras_folders, packed=True, within=True),
    several(["shards.weights.json", *SHARDS], "shards.weights.json", "keras3", keras_shards),
    several(["tf_model.h5.index.json", "a.h5"], "tf_model.h5.index.json", "keras", keras_indexes),
)  # fmt: skip
JSON = (
    raw("x.safetensors", None, "hostile/safetensors/*.safetensors", "t5x/*.safetensors"),
    Way(safetensors_header, safetensors_headers, packed=True),
    Way(index, indexes, packed=True),
    folder("hf", "hostile/sharded/*"),
)
NUMPY = (
    raw("x.npy", "npy", "hostile/numpy/*.npy"),
    raw("x.npz", None, "hostile/numpy/*.npz", "tf/*.npz", "flax/*.npz", "torch/*.npz", "keras/*.npz"),
    archive("x.npz", "npz", "tf/*.npz", "flax/*.npz", "hostile/numpy/*.npz"),
    Way(npy_header, npy_headers, packed=True),
    folder("gpt", "originals/openai-gpt--release"),
    folder("npy", "originals/openai-gpt--release", "hostile/numpy"),
    Way(npy_pickle, npy_pickles),
)
FLAX = (raw("x.msgpack", "flax", "flax/*.msgpack", "hostile/flax/*.msgpack", "t5x/*.msgpack"),)
ZOO = (
    folder("zoo", "tf/tf1", "tf/saved", "torch/dcp", "flax", "hostile/sharded/good", "originals/openai-gpt--release",
           any_name=True),
    text("x.csv", "manifest", CSV),
    text("x.jsonl", "manifest", LINES),
)  # fmt: skip
FAMILIES: dict[str, Sequence[Way]] = {
    "tf": TF, "pytorch": PYTORCH, "hdf5": HDF5, "json": JSON, "numpy": NUMPY, "flax": FLAX, "zoo": ZOO,
}  # fmt: skip


def seeds(family: str) -> Iterator[bytes]:
    """Inputs to begin with: all files as they are, then again with each option that `open` may take."""
    if family == "rules":
        files = [*sorted(CONVERTERS.glob("*.toml")), *globbed(["hostile/rules/*.toml"])]
        yield from (s for p in files if len(s := p.read_bytes()) <= LARGEST)
        return
    ways = FAMILIES[family]
    for option in range(len(OPTIONS) if family != "zoo" else 1):
        for i, way in enumerate(ways):
            yield from (bytes([i + option * len(ways)]) + s for s in way.seeds() if len(s) < LARGEST)


def attempt(family: str, data: bytes, home: Path) -> int:
    """Lay one input out in an empty folder and read it; returns how many tensors (rows, rules) there are."""
    if family == "rules":
        return rules(data.decode("utf-8", "replace"))
    ways = FAMILIES[family]
    more, which = divmod(data[0], len(ways))
    path, format = ways[which].lay(data[1:], home)
    if format == "manifest":
        from ckptconv.bulk import manifest

        return len(manifest.read(str(path), manifest.Settings()))
    if format == "zoo":
        return zoo(path)
    if ways[which].within:
        with without_child():
            return read(path, format, OPTIONS[more % len(OPTIONS)])
    return read(path, format, OPTIONS[more % len(OPTIONS)])


def read(path: Path, format: str | None, options: dict[str, Any]) -> int:
    """Open, and read tensors of a reasonable size."""
    from ckptconv.formats.detect import open_checkpoint
    from ckptconv.formats.reading import Reading

    found, left = open_checkpoint(str(path), Reading(**options), format=format), 4 * READ
    for tensor in found.values():
        if tensor.nbytes <= min(READ, left):
            left -= tensor.nbytes
            tensor.numpy()
    return len(found)


def zoo(path: Path) -> int:
    """Find the checkpoints in a folder, and open a few of what they say they are."""
    from ckptconv.bulk.discover import discover
    from ckptconv.errors import CkptError
    from ckptconv.formats.detect import open_checkpoint

    count = 0
    for found in discover([str(path)])[:4]:
        with suppress(CkptError):
            count += len(open_checkpoint(found.source))
    return count


# --- words that mean something to the readers --------------------------------------------------------------------

# Constants of the readers, and what is spelled in the middle of their code.
CONSTANTS = {
    "tf": (
        "tensorflow.table.MAGIC",
        "tensorflow.locate.STATE",
        "tensorflow.bundle.OBJECT_GRAPH",
        "tensorflow.graph.TEXT",
        "tensorflow.objects.VALUE",
        "tensorflow.objects.CONFIG",
        "tensorflow.objects.TRAINED",
        "tensorflow.objects.ROLES",
    ),
    "pytorch": (
        "pytorch.dcp.ALLOWED",
        "pytorch.arrays.NUMPY",
        "pytorch.dcp.METADATA",
        "pytorch.oldtar.MEMBERS",
    ),
    "hdf5": (
        "hdf5.file.SIGNATURE",
        "keras.legacy.LISTS",
        "keras.naming.TOP",
        "keras.naming.OPTIMIZER",
        "keras.v3.ABOUT",
        "keras.v3.WEIGHTS",
    ),
    "json": (
        "safetensors.ORDER",
        "safetensors.SUFFIX",
        "huggingface.MODELS",
    ),
    "numpy": (
        "numpy.npy.MAGIC",
        "numpy.npy.SPELLING",
        "numpy.npy.ASSUMED",
        "numpy.gpt.SHAPES",
        "numpy.gpt.NAMES",
        "pytorch.arrays.NUMPY",
    ),
    "flax": (
        "flax.CHUNKED",
        "containers.msgpack.ROWS",
    ),
    "zoo": ("huggingface.MODELS",),
    "rules": (),
}
_JSON = b'"weight_map" "metadata" "dtype" "shape" "data_offsets" "__metadata__" -1 0.5 9223372036854775808 null {} []'
_ZIP = rb" PK\x01\x02 PK\x03\x04 PK\x05\x06"
SPELLED = {
    "tf": rb"Const Identity VarHandleOp value tensor_content /.OPTIMIZER_SLOT/ \xff\xff\xff\xff\xff\x01 \x10\x01",
    "pytorch": rb"storage data.pkl byteorder cpu module sys_info }q\x00 (t X\x01\x00\x00\x00" + _ZIP,
    "hdf5": b"TREE SNOD HEAP GCOL OHDR OCHK FRHP FHDB FHIB BTHD BTIN BTLF FSHD FSSE SMTB SMLI FAHD EAHD layer_names0 "
    b'vars/0 layers/dense/vars/0 @name kernel:0 @model_config "class_name" "config" "layers" "name" ' + _JSON,
    "json": _JSON,
    "numpy": b"'descr' 'fortran_order' 'shape' True" + _ZIP,
    "flax": rb"chunks shape \xc7\x01 \xc9 \xdf\xff\xff \xdd \xdb",
    "zoo": b"source destination to from include exclude options dtype params ../ :// .index -00000-of-00002 " + _JSON,
    "rules": b"[[rule]] from to where layout sizes op [[tie]] names if [detect] all any none include [params] {i} "
    b"{x...} {e*} -> (h+d) + i rewrite let fill rank unless kind shared optional one_way separators",
}


def words(family: str) -> Iterator[bytes]:
    """Tokens for libFuzzer's dictionary."""
    yield from SPELLED[family].decode("unicode_escape").encode("latin-1").split(b" ")
    for path in CONSTANTS[family]:
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module("ckptconv.formats." + module), name)
        for one in [value] if isinstance(value, str | bytes) else value:
            if isinstance(one, tuple):  # a global of a pickle, in its two spellings
                yield "c{}\n{}\n".format(*one).encode()
                yield from (b"\x8c" + bytes([len(w)]) + w.encode() for w in one)
            else:
                yield one if isinstance(one, bytes) else str(one).encode()


def dictionary(family: str) -> str:
    """The words as libFuzzer reads them."""
    found = [w for w in dict.fromkeys(words(family)) if 0 < len(w) < 64]
    return "".join('"' + "".join(f"\\x{b:02x}" for b in w) + '"\n' for w in found)
