"""Outputs that are sent in parts while they are written: the same bytes as on a disk, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pytest

import ckptconv
from ckptconv.errors import StorageError
from ckptconv.output import upload

PART = 4096


class Store:
    """A store that puts objects of fsspec's memory together from parts, as S3 does."""

    begun: int = 0
    open: ClassVar[set[int]] = set()
    refuse: int | None = None  # the part that is not taken
    sizes: ClassVar[dict[str, list[int]]] = {}  # of the parts of each object

    def __init__(self, url: str) -> None:
        Store.begun += 1
        self._url, self._parts, self._id = url, dict[int, bytes](), Store.begun
        Store.open.add(self._id)

    def send(self, number: int, data: bytes | bytearray) -> str:
        if number == Store.refuse:
            raise StorageError("the part is refused", url=self._url)
        assert number not in self._parts
        self._parts[number] = bytes(data)
        return f"tag {number}"

    def complete(self, tags: Sequence[str]) -> None:
        assert tags == [f"tag {n}" for n in sorted(self._parts)]
        parts = [self._parts[n] for n in sorted(self._parts)]
        Store.sizes[self._url.rpartition("/")[2]] = [len(part) for part in parts]
        fsspec.filesystem("memory").pipe_file(self._url.removeprefix("memory:/"), b"".join(parts))
        Store.open.remove(self._id)

    def abort(self) -> None:
        Store.open.remove(self._id)


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setattr(upload, "STORES", {"memory": Store})
    monkeypatch.setattr(upload, "PART", PART)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    Store.begun, Store.open, Store.refuse, Store.sizes = 0, set(), None, {}
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield "memory://parts"
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    assert os.listdir(tmp_path / "temporary") == []
    assert Store.open == set()


def arrays() -> dict[str, np.ndarray]:
    """Tensors of many sizes around those of parts, and one that is transposed on the way."""
    rng = np.random.default_rng(0)
    sizes = [1, 3, PART // 4 - 1, PART // 4, 5 * PART // 4 + 3, 0, 7, 3 * PART // 2]
    found = {f"layer_{i}/kernel": rng.standard_normal(n).astype("f4") for i, n in enumerate(sizes)}
    return found | {
        "matrix": rng.standard_normal((70, 90)).astype("f4").T,
        "texts": np.array([b"a", b"bc"], dtype=object),
    }


TARGETS = {
    "m.safetensors": {"exclude": "texts"},
    "hf": {"to": "hf", "max_shard_size": 20_000, "exclude": "texts"},
    "m.npz": {"exclude": "texts"},
    "m.pt": {"exclude": "texts"},
    "m.ckpt": {"to": "tf"},
    "m.msgpack": {"to": "flax", "exclude": "texts"},
    "m.h5": {"to": "hdf5", "exclude": "texts"},
}


@pytest.mark.parametrize("name", TARGETS)
def test_the_same_bytes_as_on_a_disk(bucket: str, tmp_path: Path, name: str) -> None:
    ckptconv.save(arrays(), tmp_path / "source.ckpt", to="tf")
    given = TARGETS[name] | {"jobs": 3}
    ckptconv.convert(tmp_path / "source.ckpt", tmp_path / "local" / name, **given)
    ckptconv.convert(tmp_path / "source.ckpt", f"{bucket}/{name}", **given)
    expected = {str(p.relative_to(tmp_path / "local")): p.read_bytes() for p in files_below(tmp_path / "local")}
    fs = fsspec.filesystem("memory")
    assert {p.removeprefix("/parts/"): fs.cat_file(p) for p in fs.find("/parts")} == expected
    large = {os.path.basename(n) for n, data in expected.items() if len(data) > 2 * PART}
    assert large <= set(Store.sizes)
    for sizes in Store.sizes.values():  # a store takes no smaller part than the least but the last
        assert set(sizes[:-1]) <= {PART}
        assert 0 < sizes[-1] <= PART


def files_below(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_tensors_are_sent_before_all_is_written_and_need_no_disk(bucket: str, tmp_path: Path) -> None:
    held = list[int]()

    def progress(done: int, _: int) -> None:
        stage = tmp_path / "temporary"
        held.append(sum(p.stat().st_blocks * 512 for p in files_below(stage)))

    ckptconv.save({"w": np.arange(100 * PART, dtype="f4")}, f"{bucket}/m.safetensors", progress=progress)
    assert max(held) <= 4 * PART
    assert Store.sizes["m.safetensors"] == [PART] * 400 + [Store.sizes["m.safetensors"][-1]]


@pytest.mark.parametrize("refused", [1, 2, 5])
def test_a_part_that_is_refused_leaves_what_was_there(bucket: str, refused: int) -> None:
    ckptconv.save(arrays_of_one(0), f"{bucket}/m.safetensors")
    Store.refuse = refused
    with pytest.raises(StorageError, match="the part is refused"):
        ckptconv.save(arrays_of_one(1), f"{bucket}/m.safetensors", force=True)
    assert ckptconv.open(f"{bucket}/m.safetensors")["w"].numpy()[0] == 0


def arrays_of_one(first: int) -> dict[str, np.ndarray]:
    return {"w": np.arange(first, first + 8 * PART, dtype="f4")}


def test_a_shard_that_is_refused_takes_those_before_it_along(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Store):
        def complete(self, tags: Sequence[str]) -> None:
            if len(Store.sizes) == 2:
                raise StorageError("the bucket is full", url=self._url)
            super().complete(tags)

    monkeypatch.setattr(upload, "STORES", {"memory": Full})
    values = {f"w{i}": np.full(4 * PART, i, "f4") for i in range(4)}
    with pytest.raises(StorageError, match="the bucket is full"):
        ckptconv.save(values, f"{bucket}/m.safetensors", max_shard_size=16 * PART + 100)
    assert len(Store.sizes) == 2
    assert fsspec.filesystem("memory").find("/parts") == []


def test_an_interrupt_leaves_nothing_in_the_store(bucket: str) -> None:
    def progress(done: int, _: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ckptconv.save({"w": np.zeros(3_000_000, "f4")}, f"{bucket}/m.safetensors", progress=progress, jobs=1)
    assert Store.begun == 1
    assert fsspec.filesystem("memory").find("/parts") == []


def test_with_a_full_check_nothing_is_sent_before_it_was_read_back(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptconv.api import writing

    seen = list[tuple[bool, int]]()
    real = writing.confirm

    def confirm(*args: object, full: bool, at: str = "") -> None:
        seen.append((bool(at), Store.begun))
        real(*args, full=full, at=at)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "confirm", confirm)
    ckptconv.save(arrays_of_one(0), f"{bucket}/m.safetensors", verify=True)
    assert seen == [(True, 0), (False, 1)]


def test_bytes_that_are_written_twice_do_not_stand_for_others() -> None:
    parts = upload.begin("memory://parts/x", 3 * PART, [(0, 3 * PART)])
    assert parts is not None
    assert not list(parts.write(0, bytes(PART // 2)))
    with pytest.raises(StorageError, match="some bytes were written twice"):
        list(parts.write(0, bytes(PART // 2)))
    with pytest.raises(StorageError, match="not all of the tensors' bytes were written"):
        parts.finish("")


def test_a_small_object_and_a_store_without_parts_are_sent_as_a_whole() -> None:
    assert upload.begin("memory://b/m", 2 * PART, ()) is None
    assert upload.begin("gs://b/m", 100 * PART, ()) is None
    assert upload.begin("memory://b/m", 2 * PART + 1, ()) is not None
