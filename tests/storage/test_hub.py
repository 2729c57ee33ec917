"""Repositories of the Hugging Face Hub, by its real client against a stand-in of its API."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hub import Hub
from remotes import WRITABLE, arrays, there_and_back

import ckptconv
from ckptconv import CkptError, StorageError

TOKEN = "hf_hushhushhush"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with pytest.MonkeyPatch.context() as patch, Hub("me/model", TOKEN) as server:
        for name, value in {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}.items():
            patch.setenv(name, value)
        constants = pytest.importorskip("huggingface_hub.constants", reason="the extra hf is not installed")
        patch.setattr(constants, "ENDPOINT", server.url)
        fsspec.get_filesystem_class("hf").clear_instance_cache()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
        fsspec.get_filesystem_class("hf").clear_instance_cache()


@pytest.mark.parametrize("name", WRITABLE)
def test_every_format_there_and_back_in_one_commit(hub: Hub, name: str) -> None:
    before = len(hub.commits)
    there_and_back(f"hf://me/model/{name}/{WRITABLE[name]}", name)
    assert len(hub.commits) == before + 1
    assert all(path.startswith(f"+{name}/") for path in hub.commits[-1])


def test_shards_replace_older_ones_in_the_same_commit(hub: Hub) -> None:
    values = arrays(8)
    url = "hf://me/model/shards/model.safetensors"
    ckptconv.save(values, url, max_shard_size=2000)
    shards = len(hub.commits[-1]) - 1
    assert shards > 2
    with pytest.raises(StorageError, match="force=True replaces it"):
        ckptconv.save(values, url, max_shard_size=3000)
    ckptconv.save(values, url, max_shard_size=3000, force=True)
    assert sum(line.startswith("-shards/model-0") for line in hub.commits[-1]) == shards
    got = ckptconv.open(f"{url}.index.json")
    assert {n: t.numpy().tobytes() for n, t in got.items()} == {n: a.tobytes() for n, a in values.items()}


def test_only_the_ranges_that_are_wanted_are_read(hub: Hub, tmp_path: Path) -> None:
    ckptconv.save({f"w{i}": np.full((500, 500), i, "f4") for i in range(8)}, "hf://me/model/large/m.safetensors")
    hub.ranges.clear()
    ckptconv.convert("hf://me/model/large/m.safetensors", tmp_path / "one.npz", include=["w5"])
    ends = [tuple(map(int, r.removeprefix("bytes=").split("-"))) for r in hub.ranges]
    assert sum(last + 1 - first for first, last in ends) < 1.3 * 10**6
    assert ckptconv.open(tmp_path / "one.npz")["w5"].numpy().max() == 5


def test_a_revision_is_read_and_the_source_may_not_change_meanwhile(hub: Hub, tmp_path: Path) -> None:
    ckptconv.save(arrays(), "hf://me/model/rev/m.npz")
    assert len(ckptconv.open(f"hf://me/model@{hub.sha}/rev/m.npz")) == 6

    def change(done: int, total: int) -> None:
        hub.files["rev/m.npz"] = hub.files["rev/m.npz"][:-1] + b"!"

    with pytest.raises(CkptError, match="changed"):
        ckptconv.convert("hf://me/model/rev/m.npz", tmp_path / "m.npz", progress=change)


@pytest.mark.parametrize(
    "url", ["hf://me/model/none.npz", "hf://me/none/m.npz", "hf://nobody/model/m.npz", "hf://me/model@gone/m.npz"]
)
def test_what_is_not_there(hub: Hub, url: str) -> None:
    with pytest.raises(StorageError, match="no such file") as caught:
        ckptconv.open(url)
    assert TOKEN not in str(caught.value)


def test_no_repository_is_created(hub: Hub) -> None:
    with pytest.raises(StorageError, match="`hf repo create ORG/REPO` makes one"):
        ckptconv.save(arrays(), "hf://me/none/m.npz")


def test_a_commit_that_is_refused_leaves_nothing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(hub.files)
    monkeypatch.setattr(hub, "token", "another")
    with pytest.raises(StorageError, match="the server wants a login") as caught:
        ckptconv.save(arrays(), "hf://me/model/refused/m.npz")
    assert TOKEN not in str(caught.value)
    assert hub.files == before


def test_a_bucket_is_read_by_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files of repositories have an address on the web."""
    store = fsspec.filesystem("memory")
    monkeypatch.setattr("ckptconv.storage.lookups._connected", lambda url: (store, url.removeprefix("hf://")))
    values = arrays(8)
    ckptconv.save(values, "memory://buckets/me/b/m.npz")
    assert ckptconv.open("hf://buckets/me/b/m.npz")["t0"].numpy().tobytes() == values["t0"].tobytes()
