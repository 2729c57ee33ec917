"""Members of archives by their paths, one packed file, and what an archive that is given whole says."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kit import refused

import ckptconv
from ckptconv.errors import CkptError, StorageError, UnknownFormat
from ckptconv.storage import archives

W = np.arange(6, dtype="f4").reshape(2, 3)
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """One file of each kind, under the names that NeMo, SageMaker and Stable-Baselines give them, and many others."""
    home = tmp_path_factory.mktemp("plain")
    named = {"./weights.ckpt": "w.pt", "parameters": "w.npz", "a b/w.h5": "w.h5", "w.safetensors": "w.safetensors"}
    for file in named.values():
        ckptconv.save({"w": W}, home / file)
    ckptconv.save({"w": W}, home / "model.ckpt", to="tf")
    parts = {p.name: p.read_bytes() for p in home.glob("model.ckpt*")}
    made = {name: (home / file).read_bytes() for name, file in named.items()}
    code = {f"code/{i}.py": b"import torch" for i in range(40)}
    return {"data": b'{"a": 1}', "parameters": made["parameters"], **code, **made, **parts}


def tar(mode: str) -> Callable[[Path, Files], None]:
    def make(path: Path, files: Files) -> None:
        with tarfile.open(path, f"w:{mode}") as t:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))

    return make


def packed(method: int) -> Callable[[Path, Files], None]:
    def make(path: Path, files: Files) -> None:
        with zipfile.ZipFile(path, "w", method) as z:
            for name, data in files.items():
                z.writestr(name, data)

    return make


ARCHIVES = {
    "agent.zip": packed(zipfile.ZIP_STORED), "deflated.zip": packed(zipfile.ZIP_DEFLATED), "model.nemo": tar(""),
    "model.tar.gz": tar("gz"), "m.tar.bz2": tar("bz2"), "m.txz": tar("xz"),
}  # fmt: skip


def test_an_archive_whose_only_member_is_a_file_of_torch(files: Files, tmp_path: Path) -> None:
    """The end of the archive shows the directory of its member, too."""
    packed(zipfile.ZIP_STORED)(tmp_path / "a.zip", {"run/w.ckpt": files["./weights.ckpt"]})
    tar("")(tmp_path / "a.tar", {"w.ckpt": files["./weights.ckpt"]})
    for path, words in {
        "a.zip": "is an archive",
        "a.tar": "is an archive",
        "a.zip/run": r"a folder in an archive.* file in it \(w.ckpt\)",
    }.items():
        with pytest.raises(UnknownFormat, match=words):
            ckptconv.open(tmp_path / path)
    np.testing.assert_array_equal(ckptconv.open(tmp_path / "a.zip/run/w.ckpt")["w"].numpy(), W)


@pytest.mark.parametrize("kind", ARCHIVES)
def test_each_member_that_is_a_checkpoint_is_read_by_the_path_that_is_printed(
    kind: str, files: Files, tmp_path: Path
) -> None:
    ARCHIVES[kind](tmp_path / kind, files)
    with pytest.raises(UnknownFormat, match="is an archive; give one of the checkpoints in it") as e:
        ckptconv.open(tmp_path / kind)
    paths = [line.strip() for line in e.value.message.splitlines()[1:]]
    plain = {name.removeprefix("./") for name in files} - {"data"}
    assert {p.removeprefix(f"{tmp_path / kind}/") for p in paths} == {
        n for n in plain if ".data-" not in n and ".py" not in n
    }
    for path in (*paths, str(tmp_path / kind / "model.ckpt"), f"{tmp_path / kind}/./weights.ckpt"):
        found = ckptconv.open(path)
        np.testing.assert_array_equal(found["w"].numpy(), W)
    ckptconv.convert(paths[0], tmp_path / "o.npz")
    assert ckptconv.diff(paths[-1], tmp_path / "o.npz").same
    with pytest.raises(StorageError, match=r"did you mean .*parameters"):
        ckptconv.open(tmp_path / kind / "parameter")


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_packed_file_is_read_as_what_it_holds(
    suffix: str, pack: Callable[[bytes], bytes], files: Files, tmp_path: Path
) -> None:
    half = len(raw := files["w.safetensors"]) // 2
    path = tmp_path / f"w.safetensors.{suffix}"
    path.write_bytes(pack(raw[:half]) + pack(raw[half:]) + bytes(512))  # in two streams, and padding
    np.testing.assert_array_equal(ckptconv.open(path)["w"].numpy(), W)
    path.write_bytes(pack(raw)[:-9])
    with refused("unpack it first"):
        ckptconv.open(path)
    with refused("the archive is damaged"):
        ckptconv.open(path / "w.safetensors")


def test_a_member_is_read_again_after_its_archive_changed(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "m.tar.gz"
    for value in (W, W + 1):
        ckptconv.save({"w": value}, tmp_path / "w.npz", force=True)
        tar("gz")(path, {"w.npz": (tmp_path / "w.npz").read_bytes()})
        np.testing.assert_array_equal(ckptconv.open(path / "w.npz")["w"].numpy(), value)


# --- hostile archives -------------------------------------------------------------------------------------------------


def header(name: bytes, size: int, kind: bytes = b"0", data: bytes = b"") -> bytes:
    """A member of a tar, with the size that it declares."""
    head = bytearray(name.ljust(100, b"\0") + bytes(24) + b"%011o\0" % size + bytes(20) + kind)
    head = bytearray(bytes(head).ljust(257, b"\0") + b"ustar\x0000").ljust(512, b"\0")
    head[148:156] = b"%06o\0 " % (sum(head) + 8 * 32)
    return bytes(head) + data + bytes(-len(data) % 512)


def entry(name: str, mode: int = 0, method: int = 0) -> bytes:
    out, info = io.BytesIO(), zipfile.ZipInfo(name)
    info.external_attr, info.compress_type = mode << 16, method
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(info, b"x")
    return out.getvalue()


def endless(form: str) -> bytes:
    """Some kilobytes of what unpacks to 2 MB of zeros."""
    return {"xz": lzma.compress, "bz2": bz2.compress, "gz": gzip.compress}[form](bytes(2**21))


LARGE = bytearray(lzma.compress(b"x"))
LARGE[16] = 36  # the size of the dictionary: 2**30, which an encoder would allocate
LARGE[20:24] = zlib.crc32(LARGE[12:20]).to_bytes(4, "little")
BEYOND = entry("w").replace(bytes(4) + b"w", b"\xff\0\0\0w")
RECORD = b"30 size=-99999999999999999999\n"
HOSTILE: dict[str, tuple[str, bytes, str, str]] = {
    "a path upwards in a tar": ("a.tar", header(b"../w", 0), "w", "leaves its folder"),
    "an absolute path in a tar": ("a.tar", header(b"/w", 0), "w", "leaves its folder"),
    "a path upwards in a zip": ("a.zip", entry("a/../../w"), "w", "leaves its folder"),
    "an absolute path in a zip": ("a.zip", entry("/w"), "w", "leaves its folder"),
    "a path upwards that is typed": ("a.zip", entry("w"), "../w", "leads out of a folder"),
    "two of one name": ("a.tar", header(b"w", 0) + header(b"./w", 0), "w", "holds ./w twice"),
    "a hard link": ("a.tar", header(b"w", 0, b"1"), "w", "is a link, a device"),
    "a link": ("a.tar", header(b"w", 0, b"2"), "w", "is a link, a device"),
    "a device": ("a.tar", header(b"w", 0, b"3"), "w", "is a link, a device"),
    "a sparse file": ("a.tar", header(b"w", 0, b"S"), "w", "is a link, a device"),
    "a link in a zip": ("a.zip", entry("w", 0o120777), "w", "is a link, a device"),
    "a zip packed with bzip2": ("a.zip", entry("w", 0, zipfile.ZIP_BZIP2), "w", "is a link, a device"),
    "a size beyond the end": ("a.tar", header(b"w", 2**30), "w", "unexpected end of data"),
    "no header": ("a.tar", header(b"v", 0) + b"x" * 512, "v", "archive is damaged"),
    "a size below 0": ("a.tar", header(b"x", len(RECORD), b"x", RECORD) + header(b"w", 0), "w", "archive is damaged"),
    "a record without length": ("a.tar", header(b"x", 5, b"x", b"0 a=b") + header(b"w", 0), "w", "archive is damaged"),
    "a long name of 64 kB": ("a.tar", header(b"x", 2**16, b"L", bytes(2**16)), "w", "larger than any archive needs"),
    "a member without a name": ("a.zip", entry(""), "w", "no such file"),
    "an end of a zip": ("a.zip", b"PK\3\4" + bytes(99), "w", "archive is damaged"),
    "a header of a zip beyond the end": ("a.zip", BEYOND, "w", "archive is damaged"),
    "a zip in a zip": ("a.zip", entry("b.zip"), "b.zip/w", "no such file"),
    "a bomb of gzip": ("a.tar.gz", endless("gz"), "w", "expands from"),
    "a bomb of bzip2": ("a.tar.bz2", endless("bz2"), "w", "expands from"),
    "a bomb of xz": ("a.tar.xz", endless("xz"), "w", "expands from"),
    "a dictionary of gigabytes": ("a.xz", bytes(LARGE), "a", "usage limit"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, raw, member, says = HOSTILE[case]
    monkeypatch.setattr(archives, "ROOM", 2**20)
    (tmp_path / file).write_bytes(raw)
    with pytest.raises(CkptError, match=says):
        ckptconv.open(f"{tmp_path / file}/{member}")
    with pytest.raises(CkptError):
        ckptconv.open(tmp_path / file)
    assert sorted(p.name for p in tmp_path.iterdir()) == [file]


def test_members_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    (tmp_path / "a.tar").write_bytes(b"".join(header(b"%d" % i, 0) for i in range(4)))
    with refused("has more than 3 members"):
        ckptconv.open(tmp_path / "a.tar" / "1")


def test_a_package_of_torch_is_named(tmp_path: Path) -> None:
    packed(0)(tmp_path / "p.pt", {"p/.data/extern_modules": b"torch", "p/model/model.pkl": b"\x80\2N."})
    with refused("torch.package.PackageImporter"):
        ckptconv.open(tmp_path / "p.pt")
