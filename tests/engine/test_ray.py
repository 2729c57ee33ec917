"""The same plan on a real Ray cluster of several processes: same bytes, a lost worker costs nothing, clear refusals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from webserver import served

import ckptconv
from ckptconv import zoo
from ckptconv.bulk import run
from ckptconv.engine import ray as ray_engine

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
CLUSTER = {"engine": "ray", "max_memory": 32 * 2**20}


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(ckptconv.__file__).parents[1]))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        settings = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 * 2**20}
        ray.init(address="local", num_cpus=2, **settings)  # one of our own, whatever else runs on this machine
        yield
        ray.shutdown()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    r = np.random.default_rng(0)
    values = {f"w{i}": r.standard_normal((1200 + i, 1000)).astype("f4") for i in range(16)}
    values |= {"wide": np.asfortranarray(r.standard_normal((3000, 2000))), "step": np.int64(3)}
    ckptconv.save(values, tmp_path / "in" / "m.ckpt", to="tf")
    return tmp_path / "in" / "m.ckpt"


@pytest.mark.parametrize("target", ["m.npz", "m.ckpt"])
def test_the_bytes_are_those_of_the_local_engine(source: Path, tmp_path: Path, target: str) -> None:
    change = {"dtype": "float16"}
    seen: list[tuple[int, int]] = []
    resources = {"engine": "ray", "max_memory": 32 * 2**20, "progress": lambda *p: seen.append(p)}
    there = ckptconv.convert(source, tmp_path / "ray" / target, **change, **resources)
    here = ckptconv.convert(source, tmp_path / "here" / target, **change)
    got, want = ({p.name: p.read_bytes() for p in (tmp_path / d).iterdir()} for d in ("ray", "here"))
    assert got == want
    assert there.verified_bytes == here.verified_bytes > 0
    assert seen[-1][0] == seen[-1][1]
    assert len(seen) > 4


def test_relative_paths_mean_the_callers_folder(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ckptconv.convert("in/m.ckpt", "out/m.npz", **CLUSTER)
    assert len(ckptconv.open(tmp_path / "out" / "m.npz")) == 18


def test_a_killed_worker_loses_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "killed"

    def deadly(do: Any, jobs: Any) -> Any:
        if jobs[0].start and not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return real(do, jobs)

    real = ray_engine._run
    monkeypatch.setattr(ray_engine, "_run", deadly)
    ckptconv.convert(source, tmp_path / "ray.npz", **CLUSTER)
    monkeypatch.undo()
    ckptconv.convert(source, tmp_path / "here.npz")
    assert mark.exists()
    assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "here.npz").read_bytes()


def test_small_arrays_travel_large_ones_are_refused(tmp_path: Path) -> None:
    ckptconv.save({"a": np.arange(10)}, tmp_path / "m.npz", **CLUSTER)
    assert ckptconv.open(tmp_path / "m.npz")["a"].numpy().tolist() == list(range(10))
    with pytest.raises(ckptconv.UsageError, match="in memory would travel"):
        ckptconv.save({"a": np.zeros(10_000_000)}, tmp_path / "l.npz", **CLUSTER)


def test_a_run_that_is_stopped_goes_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptconv.engine.journal.COMMIT", 0.0)
    out = tmp_path / "out" / "m.npz"

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    resources = {"engine": "ray", "max_memory": 32 * 2**20, "progress": stop}
    with pytest.raises(KeyboardInterrupt):
        ckptconv.convert(source, out, resume=True, **resources)
    seen: list[int] = []
    resources = {"engine": "ray", "max_memory": 32 * 2**20, "progress": lambda done, _: seen.append(done)}
    report = ckptconv.convert(source, out, resume=True, **resources)
    assert seen[0] > report.bytes // 2
    ckptconv.convert(source, tmp_path / "here.npz")
    assert out.read_bytes() == (tmp_path / "here.npz").read_bytes()


def test_a_zoo_on_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(40):  # several in a task
        path = tmp_path / "in" / f"m{n}.npz"
        path.parent.mkdir(exist_ok=True)
        ckptconv.save({"w": np.full(5, n)}, path)
    (tmp_path / "in" / "bad.npz").write_bytes(b"PK" + bytes(100))
    monkeypatch.chdir(tmp_path)
    done = zoo("in", "out", engine="ray", max_memory=32 * 2**20)
    assert (done.done, len(done.failed)) == (40, 1)
    assert [int(ckptconv.open(f"out/m{n}.safetensors")["w"].numpy()[0]) for n in range(40)] == list(range(40))
    assert zoo("in", "out", resume=True).skipped == 40  # by another engine


def test_of_a_zoo_a_large_checkpoint_is_many_tasks(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LARGE", 10**6)
    cut: list[int] = []
    real = ray_engine.batches

    def batches(jobs: Any, workers: int) -> Any:
        found = list(real(jobs, workers))
        cut.append(len(found))
        return found

    monkeypatch.setattr(ray_engine, "batches", batches)
    ckptconv.save({"w": np.arange(3)}, source.parent / "small.npz")
    (source.parent / "bad.npz").write_bytes(b"PK" + bytes(2 * 10**6))
    done = zoo(source.parent, tmp_path / "out", engine="ray", max_memory=32 * 2**20)
    assert (done.done, [e.at for e in done.failed]) == (2, ["bad.safetensors"])
    assert len(cut) == 1
    assert cut[0] > 4
    ckptconv.convert(source, tmp_path / "here.safetensors")
    assert (tmp_path / "out" / "m.ckpt.safetensors").read_bytes() == (tmp_path / "here.safetensors").read_bytes()


def test_a_remote_tensor_that_is_transposed_is_fetched_once(tmp_path: Path) -> None:
    pytest.importorskip("urllib3", reason="the extra http is not installed")
    value = np.asfortranarray(np.random.default_rng(0).standard_normal((2048, 2048), dtype="f4"))  # 16 MiB
    np.save(tmp_path / "w.npy", value)
    with served(files=tmp_path) as (host, server):
        ckptconv.convert(f"http://{host}/w.npy", tmp_path / "out.npz", engine="ray", max_memory=16 * 2**20)
    spans = [map(int, span.removeprefix("bytes=").split("-")) for _, span in server.seen]
    assert sum(last + 1 - first for first, last in spans) < 1.2 * value.nbytes
    (array,) = np.load(tmp_path / "out.npz").values()
    assert np.array_equal(array, value)
