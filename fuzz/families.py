"""What the fuzzer's bytes become: for each family a few ways to lay them out as files, and seeds from the fixtures.

    u8                            which way, modulo their number
    rest                          the file itself; or, of a way that packs several files or members:
    { u32le, a, u32le, b } ...    records; lengths that reach past the end are cut

Ways that put records under valid checksums (a table's blocks, a zip's members) are there because mutation alone does
not get past those.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONVERTERS = Path(__file__).parents[1] / "converters"
LARGEST = 1 << 16  # bytes of a seed

Record = tuple[bytes, bytes]


class Way(NamedTuple):
    """Write files from the bytes into a folder; returns (path to open, format or None: whatever is detected)."""

    lay: Callable[[bytes, Path], tuple[Path, str | None]]
    seeds: Callable[[], Iterator[bytes]]


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


def packed(pairs: Sequence[Record]) -> bytes:
    return b"".join(struct.pack("<I", len(a)) + a + struct.pack("<I", len(b)) + b for a, b in pairs)


def zipped(members: Sequence[Record]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, data in members[:64]:
            info = zipfile.ZipInfo(name.decode("utf-8", "replace") or "x")
            z.writestr(info, data)
    return out.getvalue()


def members(path: Path) -> bytes:
    with zipfile.ZipFile(path) as z:
        return packed([(i.filename.encode(), z.read(i)) for i in z.infolist()])


# --- ways -------------------------------------------------------------------------------------------------------


def raw(name: str, format: str | None, *seeds: str) -> Way:
    """The bytes are the file."""

    def lay(data: bytes, folder: Path) -> tuple[Path, str | None]:
        (folder / name).write_bytes(data)
        return folder / name, format

    return Way(lay, lambda: (p.read_bytes() for s in seeds for p in sorted(FIXTURES.glob(s)) if p.is_file()))


def several(names: Sequence[str], open: str, format: str | None, *seeds: Sequence[str]) -> Way:
    """The first record's b is the first file, and so on; their a is not used."""

    def lay(data: bytes, folder: Path) -> tuple[Path, str | None]:
        for name, (_, body) in zip(names, records(data), strict=False):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        return folder / open, format

    return Way(lay, lambda: (packed([(b"", (FIXTURES / f).read_bytes()) for f in s]) for s in seeds))


def archive(name: str, format: str | None, *seeds: str) -> Way:
    """Records are the members of a sound zip."""

    def lay(data: bytes, folder: Path) -> tuple[Path, str | None]:
        (folder / name).write_bytes(zipped(records(data)))
        return folder / name, format

    return Way(lay, lambda: (members(p) for s in seeds for p in sorted(FIXTURES.glob(s))))


def table(kind: str) -> Way:
    """Records are the entries of a sound table; of a bundle the first is the shard."""

    def lay(data: bytes, folder: Path) -> tuple[Path, str | None]:
        from ckptconv.formats.tensorflow.table import build

        pairs = records(data)
        if kind == "tf" and pairs:
            (folder / "x.data-00000-of-00001").write_bytes(pairs.pop(0)[1])
        (folder / "x.index").write_bytes(build(sorted(dict(pairs).items())))
        return folder / "x.index", kind

    def seeds() -> Iterator[bytes]:
        from ckptconv.formats.tensorflow.table import Table
        from ckptconv.store import Reader

        for path in sorted((FIXTURES / "tf").glob("*.index" if kind == "tf" else "v1*")):
            shard = path.with_suffix(".data-00000-of-00001")
            if path.suffix == ".npz" or (kind == "tf" and not shard.exists()):
                continue
            with Reader(str(path)) as f:
                pairs = list(Table(f))
            yield packed([(b"", shard.read_bytes()), *pairs] if kind == "tf" else pairs)

    return Way(lay, seeds)


def torch_pickle(data: bytes, folder: Path) -> tuple[Path, str | None]:
    """The bytes are the pickle of a sound archive with ten storages of 256 bytes."""
    parts = [(b"x/data.pkl", data), (b"x/version", b"3\n"), (b"x/byteorder", b"little")]
    parts += [(b"x/data/%d" % i, bytes(256)) for i in range(10)]
    (folder / "x.pt").write_bytes(zipped(parts))
    return folder / "x.pt", "torch"


def pickles() -> Iterator[bytes]:
    for path in sorted([*(FIXTURES / "torch").glob("*.pt"), *(FIXTURES / "hostile/pytorch").glob("*.pt")]):
        try:
            with zipfile.ZipFile(path) as z:
                yield from (z.read(n) for n in z.namelist() if n.endswith("data.pkl"))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError):
            continue


def safetensors_header(data: bytes, folder: Path) -> tuple[Path, str | None]:
    """a is the header's JSON, b the payload."""
    head, body = (records(data) or [(b"", b"")])[0]
    (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
    return folder / "x.safetensors", "safetensors"


def safetensors_headers() -> Iterator[bytes]:
    for path in sorted((FIXTURES / "hostile/safetensors").glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        if size < min(len(data), 1 << 16):
            yield packed([(data[8 : 8 + size], data[8 + size :])])


def npy_header(data: bytes, folder: Path) -> tuple[Path, str | None]:
    head, body = (records(data) or [(b"", b"")])[0]
    head = head[:65535]
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body)
    return folder / "x.npy", "npy"


def npy_headers() -> Iterator[bytes]:
    for kind, shape in (("<f4", "(3, 2)"), (">i8", "()"), ("|b1", "(4,)"), ("|O", "(1,)"), ("|S3", "(2,)")):
        head = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
        yield packed([(head.ljust(117) + b"\n", bytes(64))])


def index(data: bytes, folder: Path) -> tuple[Path, str | None]:
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


TF = (
    several(["x.index", "x.data-00000-of-00001"], "x", "tf",
            *[(f"tf/{n}.index", f"tf/{n}.data-00000-of-00001") for n in ("dtypes", "keras3", "objects-1", "sliced",
                                                                         "strings")]),
    table("tf"),
    raw("x", "tf-v1", "tf/v1", "tf/v1s-*"),
    table("tf-v1"),
    raw("x.pb", "tf-graph", "tf/*.pb"),
    raw("x.pbtxt", "tf-graph", "tf/*.pbtxt"),
    raw("x.meta", "tf-graph", "tf/tf1/*.meta"),
)  # fmt: skip
PYTORCH = (
    raw("x.pt", None, "torch/*.pt", "hostile/pytorch/*.pt"),
    Way(torch_pickle, pickles),
    archive("x.pt", "torch", "torch/[dmntv]*.pt"),
    raw("x.pt", "torch-legacy", "torch/stream.pt", "hostile/pytorch/stream*.pt", "hostile/pytorch/tar*.pt"),
    raw("x.pkl", "pickle", "torch/stream.pt"),
    archive("x.pt", "torchscript", "torch/script.pt", "torch/frozen.pt"),
)
HDF5 = (
    raw("x.h5", "hdf5", "keras/*.h5", "hostile/hdf5/*.h5"),
    raw("x.h5", "keras", "keras/*.h5", "hostile/hdf5/keras*.h5"),
    raw("x.weights.h5", "keras3", "keras/*weights.h5"),
    raw("x.keras", "keras3", "keras/deflated.keras", "hostile/hdf5/*.keras"),
    archive("x.keras", "keras3", "keras/deflated.keras"),
)
JSON = (
    raw("x.safetensors", None, "hostile/safetensors/*.safetensors"),
    Way(safetensors_header, safetensors_headers),
    Way(index, indexes),
)
NUMPY = (
    raw("x.npy", "npy", "hostile/numpy/*.npy"),
    raw("x.npz", None, "hostile/numpy/*.npz", "tf/*.npz", "flax/*.npz"),
    archive("x.npz", "npz", "tf/*.npz", "flax/*.npz"),
    Way(npy_header, npy_headers),
)
FLAX = (raw("x.msgpack", "flax", "flax/*.msgpack", "hostile/flax/*.msgpack"),)


def converters() -> Iterator[bytes]:
    for path in sorted(CONVERTERS.glob("*.toml")):
        yield path.read_bytes()


FAMILIES: dict[str, Sequence[Way]] = {
    "tf": TF, "pytorch": PYTORCH, "hdf5": HDF5, "json": JSON, "numpy": NUMPY, "flax": FLAX,
}  # fmt: skip


def seeds(family: str) -> Iterator[bytes]:
    """Inputs to begin with."""
    if family == "rules":
        yield from (s for s in converters() if len(s) <= LARGEST)
        return
    for i, way in enumerate(FAMILIES[family]):
        yield from (bytes([i]) + s for s in way.seeds() if len(s) <= LARGEST)
