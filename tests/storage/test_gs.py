"""Google's object store, by its real client and without credentials, against an emulator of the store."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from remotes import WRITABLE, there_and_back

import ckptconv
from ckptconv import StorageError
from ckptconv.output import upload


@pytest.fixture(scope="module", autouse=True)
def _store() -> Iterator[None]:
    pytest.importorskip("gcsfs", reason="the extra gs is not installed")
    server = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    store = server.create_server("127.0.0.1", port, in_memory=True, default_bucket="zoo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        store.start()
        yield
        store.stop()
        fsspec.get_filesystem_class("gs").clear_instance_cache()


@pytest.mark.parametrize("name", WRITABLE)
def test_every_format_there_and_back(name: str) -> None:
    there_and_back(f"gs://zoo/formats/{WRITABLE[name]}", name)


def test_a_folder_of_orbax(fixtures: Path) -> None:
    name = "mesh_chunks"
    store = fsspec.filesystem("gs")
    for path in (fixtures / "orbax" / name).rglob("*"):
        if path.is_file():
            store.pipe_file(f"zoo/orbax/{path.relative_to(fixtures / 'orbax')}", path.read_bytes())
    here, there = ckptconv.open(fixtures / "orbax" / name), ckptconv.open(f"gs://zoo/orbax/{name}")
    assert {n: t.numpy().tobytes() for n, t in there.items()} == {n: t.numpy().tobytes() for n, t in here.items()}
    assert len(there) > 1


@pytest.mark.parametrize("at_a_time", [2, 32])
@pytest.mark.parametrize("name", ["m.safetensors", "m.npz", "tf/m.ckpt"])
def test_a_large_output_is_composed(name: str, at_a_time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PART", 4096)
    monkeypatch.setattr(upload, "COMPOSED", at_a_time)
    values = {f"t{i}": np.random.default_rng(i).standard_normal((40, 50)).astype("f4") for i in range(7)}
    url = f"gs://zoo/composed-{at_a_time}-{name.replace('/', '-')}/{name}"
    ckptconv.save(values, tmp_path / name)
    ckptconv.convert(tmp_path / name, url)
    ckptconv.convert(tmp_path / name, tmp_path / "again" / name)
    store = fsspec.filesystem("gs")
    found = {path.rpartition("/")[2]: store.cat_file(path) for path in store.find(url.rpartition("/")[0])}
    assert found == {p.name: p.read_bytes() for p in (tmp_path / "again" / name).parent.iterdir()}


def test_parts_of_an_output_that_fails_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PART", 4096)
    ckptconv.save({"t": np.ones((100, 100), "f4")}, tmp_path / "m.npz")
    real, sent = upload.GCS.send, list[int]()

    def failing(self: upload.GCS, number: int, data: bytes) -> str:
        sent.append(len(sent))
        if len(sent) == 4:
            raise StorageError("the part is refused")
        return real(self, number, data)

    monkeypatch.setattr(upload.GCS, "send", failing)
    with pytest.raises(StorageError, match="the part is refused"):
        ckptconv.convert(tmp_path / "m.npz", "gs://zoo/refused/m.safetensors")
    assert len(sent) >= 4
    assert fsspec.filesystem("gs").find("zoo/refused") == []
    monkeypatch.setattr(upload.GCS, "send", real)
    monkeypatch.setattr(fsspec.get_filesystem_class("gs"), "merge", failing)
    sent[:] = [1, 2, 3]
    with pytest.raises(StorageError, match="the part is refused"):
        ckptconv.convert(tmp_path / "m.npz", "gs://zoo/refused/m.safetensors")
    assert fsspec.filesystem("gs").find("zoo/refused") == []
