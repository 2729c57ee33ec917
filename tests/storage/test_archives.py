"""zip://MEMBER::URL: what is stored in an archive is read in place; what is packed is not read."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.bulk import discover
from ckptconv.errors import CkptError, CorruptCheckpoint, StorageError, UsageError
from ckptconv.storage import files, lookups

ARRAY = np.arange(300_000.0)


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("inner") / "m.npz"
    ckptconv.save({"v": np.arange(3.0), "w": ARRAY}, path)
    return path.read_bytes()


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as z:
        for name, raw in members.items():
            z.writestr(name, raw)
    return out.getvalue()


def remembered(raw: bytes) -> str:
    fsspec.filesystem("memory").pipe("/zips/x.zip", raw)
    return "memory://zips/x.zip"


def test_what_is_stored_is_read(inner: bytes, tmp_path: Path) -> None:
    raw = zipped({"d/m.npz": inner, "d/e/other": b"x", "note": b""})
    (tmp_path / "x.zip").write_bytes(raw)
    (tmp_path / "y.zip").write_bytes(zipped({"in.zip": raw}))
    for archive in (tmp_path / "x.zip", f"file://{tmp_path}/x.zip", remembered(raw), f"zip://in.zip::{tmp_path}/y.zip"):
        url = f"zip://d/m.npz::{archive}"
        np.testing.assert_array_equal(ckptconv.open(url)["w"].numpy(), ARRAY)
        ckptconv.convert(url, tmp_path / "out.safetensors", force=True)
        np.testing.assert_array_equal(ckptconv.open(tmp_path / "out.safetensors")["w"].numpy(), ARRAY)


def test_folders_are_listed(inner: bytes, tmp_path: Path) -> None:
    ckptconv.save({f"w{i}": np.arange(1000.0) for i in range(4)}, tmp_path / "s" / "m.safetensors", max_shard_size=9000)
    members = {f"a/b/{p.name}": p.read_bytes() for p in (tmp_path / "s").iterdir()}
    archive = remembered(zipped({**members, "a/m.npz": inner, "a/empty/": b""}))
    assert len(members) > 2
    assert files.names(f"zip://a::{archive}") == ["b", "m.npz"]
    assert files.names(f"zip://absent::{archive}") == []
    assert files.is_dir(f"zip://::{archive}")
    assert not files.exists(f"zip://a/m::{archive}")
    assert len(ckptconv.open(f"zip://a/b::{archive}")) == 4
    with lookups.once():
        walked = {level.url: sorted(level.files) for level in files.walk(f"zip://::{archive}")}
    assert walked == {
        f"zip://::{archive}": [], f"zip://a::{archive}": ["m.npz"],
        f"zip://a/b::{archive}": sorted(name.rpartition("/")[2] for name in members),
    }  # fmt: skip
    assert len(list(discover.discover([f"zip://a::{archive}"]))) == 2


@pytest.mark.parametrize(
    ("how", "word"), [(zipfile.ZIP_DEFLATED, "deflate"), (zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma")]
)
def test_what_is_packed_is_not_read(how: int, word: str, inner: bytes) -> None:
    archive = remembered(zipped({"d/m.npz": inner}, how))
    assert files.names(f"zip://d::{archive}") == ["m.npz"]
    with pytest.raises(StorageError, match=rf"is packed \({word}\) in the archive; unpack the archive first"):
        ckptconv.open(f"zip://d/m.npz::{archive}")


@pytest.mark.slow
@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_a_bomb_stays_packed(how: int, tmp_path: Path) -> None:
    """A member of 128 MB, of which a kilobyte is stored: one of 512 MB took 2.1 GB, and for each range as much time."""
    head = json.dumps({"w": {"dtype": "U8", "shape": [2**27], "data_offsets": [0, 2**27]}}).encode()
    with (
        zipfile.ZipFile(tmp_path / "x.zip", "w", how) as z,
        z.open("m.safetensors", "w", force_zip64=True) as f,
    ):
        f.write(struct.pack("<Q", len(head)) + head)
        for _ in range(2**7):
            f.write(bytes(2**20))
    code = (
        "import resource, sys, ckptconv\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "try: ckptconv.open(sys.argv[1])\n"
        "except ckptconv.StorageError as e: print(e.message)"
    )
    args = [sys.executable, "-c", code, f"zip://m.safetensors::{tmp_path}/x.zip"]
    done = subprocess.run(args, capture_output=True, text=True, check=True, timeout=60)
    assert "unpack the archive first" in done.stdout


def directory(change: Callable[[bytearray, int], None]) -> bytes:
    """An archive of two stored members whose first entry in the directory is changed."""
    raw = bytearray(zipped({"m.npz": b"a" * 100, "n.npz": b"b" * 100}))
    change(raw, raw.index(b"PK\1\2"))
    return bytes(raw)


def put(at: int, form: str, value: object) -> bytes:
    return directory(lambda raw, entry: struct.pack_into(form, raw, entry + at, value))


def renamed(raw: bytes, first: bytes = b"n.npz") -> bytes:
    return raw[: raw.index(b"PK\1\2")] + raw[raw.index(b"PK\1\2") :].replace(b"m.npz", first, 1)


SOUND = zipped({"m.npz": b"a" * 100, "n.npz": b"b" * 100})
HOSTILE = {
    "nothing": (b"", "not a sound zip"),
    "no archive": (b"x" * 500, "not a sound zip"),
    "cut at the beginning": (SOUND[50:], "not a sound zip|disagree|too early"),
    "cut at the end": (SOUND[:-30], "not a sound zip"),
    "two of one name": (renamed(SOUND), "two members that are called n.npz"),
    "another name": (renamed(SOUND, b"o.npz"), "headers of the member o.npz disagree|no such file"),
    "encrypted": (put(8, "<H", 1), "is encrypted"),
    "two sizes": (put(20, "<I", 99), "two sizes"),
    "longer than the archive": (put(20, "<II".replace("II", "Q"), 10**6 << 32 | 10**6), "overlap"),
    "behind the end": (put(42, "<I", 10**6), "too early|disagree"),
    "at another member": (put(42, "<I", SOUND.index(b"PK\3\4", 4)), "disagree"),
    "an unknown method": (put(10, "<H", 77), r"packed \(method 77\)"),
    "very deep": (zipped({"a/" * 70 + "m": b"", "m.npz": b""}), "more than 64 folders"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(name: str) -> None:
    raw, says = HOSTILE[name]
    archive = remembered(raw)
    for member in ("m.npz", "o.npz"):
        with pytest.raises(CkptError):
            ckptconv.open(f"zip://{member}::{archive}")
    member = "o.npz" if name == "another name" else "m.npz"
    with pytest.raises((CorruptCheckpoint, StorageError), match=says):
        ckptconv.open(f"zip://{member}::{archive}")


def test_what_is_not_there(tmp_path: Path, inner: bytes) -> None:
    archive = remembered(zipped({"m.npz": inner}))
    for url, says in {
        f"zip://n.npz::{archive}": "no such file",
        f"zip://m.npz::{tmp_path}/absent.zip": "no such file",
        f"zip://m.npz::{tmp_path}": "an archive is needed",
        "zip://m.npz::/dev/null": "an archive is needed",
    }.items():
        with pytest.raises(StorageError, match=says):
            ckptconv.open(url)
    with pytest.raises(UsageError, match="needs an archive"):
        ckptconv.open("zip://m.npz")
    with pytest.raises(CkptError, match="cannot do that"):
        ckptconv.convert(f"zip://m.npz::{archive}", f"zip://n.safetensors::{archive}", to="safetensors")
    with pytest.raises(CkptError, match="patterns do not match members"):
        list(discover.discover([f"zip://*.npz::{archive}"]))


@pytest.mark.slow
def test_the_command_line_reads_them(cli: Run, inner: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zipped({"d/m.npz": inner}))
    assert "300000" in cli("inspect", f"zip://d/m.npz::{tmp_path}/x.zip").stdout
    done = cli("zoo", f"zip://d::{tmp_path}/x.zip", "-o", tmp_path / "zoo")
    assert (tmp_path / "zoo" / "m.safetensors").exists(), done.stderr
