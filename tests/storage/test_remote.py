"""Remote sources and destinations: every format, few bytes, few requests, nothing half-sent, no secret shown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from kit import same
from line import Line
from remotes import WRITABLE, arrays, there_and_back
from webserver import Serve

import ckptconv
from ckptconv.bulk import run
from ckptconv.bulk.ledger import LedgerEntry
from ckptconv.errors import MissingExtra, StorageError, UsageError
from ckptconv.output import upload
from ckptconv.storage import files, lookups, remote

MB = 10**6


# --- an S3 server, and a counter on the line to it --------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[Line]:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    code = [sys.executable, str(Path(__file__).with_name("s3_server.py"))]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        line = Line(int(server.stdout.readline()))
        settings = {
            "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}", "AWS_MAX_ATTEMPTS": "1",
        }  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for key, value in settings.items():
                patch.setenv(key, value)
            fsspec.get_filesystem_class("s3").clear_instance_cache()
            yield line
            fsspec.get_filesystem_class("s3").clear_instance_cache()
        server.kill()


def test_one_tensor_of_them_costs_less_than_two(s3: Line, tmp_path: Path) -> None:
    s3.reset()
    ckptconv.convert("s3://zoo/big/model.safetensors.index.json", tmp_path / "one.npz", include=["layer77/w"])
    assert s3.received < 2 * MB
    assert ckptconv.open(tmp_path / "one.npz")["layer77/w"].shape == (512, 512)


@pytest.mark.parametrize("name", WRITABLE)
def test_every_format_there_and_back(s3: Line, name: str) -> None:
    there_and_back(f"s3://zoo/formats/{WRITABLE[name]}", name)


def test_small_tensors_in_another_order_are_few_requests(s3: Line, tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(400)]
    values = {n: np.full((50, 3), i, "f4") for i, n in enumerate(names)}
    ckptconv.save({n: values[n] for n in reversed(names)}, "s3://zoo/many/m.ckpt", to="tf")
    s3.reset()
    ckptconv.convert("s3://zoo/many/m.ckpt", tmp_path / "m.safetensors")
    assert s3.requests < 40
    got = ckptconv.open(tmp_path / "m.safetensors")
    assert all(same(got[n].numpy(), values[n]) for n in names)


def test_a_transposed_tensor_is_transferred_once(s3: Line, tmp_path: Path) -> None:
    value = np.asfortranarray(np.random.default_rng(0).standard_normal((1000, 2000)))
    np.save(tmp_path / "w.npy", value)
    upload.put_file(str(tmp_path / "w.npy"), "s3://zoo/w.npy")
    s3.reset()
    resources = {"max_memory": 24 * 2**20, "jobs": 2}
    ckptconv.convert("s3://zoo/w.npy", tmp_path / "w.safetensors", **resources)
    assert value.nbytes < s3.received < 1.1 * value.nbytes
    assert same(ckptconv.open(tmp_path / "w.safetensors")["w"].numpy(), np.ascontiguousarray(value))


def test_a_large_output_is_sent_in_parts(s3: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a real client of S3; what fails half way leaves neither an object nor parts that are paid for."""
    monkeypatch.setattr("ckptconv.output.upload.PART", 5 * 2**20)  # the least that S3 takes
    values = {f"w{i}": np.full(700_000, i, "f4") for i in range(5)}
    ckptconv.save(values, tmp_path / "m.safetensors")
    s3.reset()
    ckptconv.convert(tmp_path / "m.safetensors", "s3://zoo/parts/m.safetensors")
    assert s3.requests <= 13, "one for each of three parts, and what a small output takes"
    assert ckptconv.diff(tmp_path / "m.safetensors", "s3://zoo/parts/m.safetensors").same
    fs = fsspec.filesystem("s3")
    real = fs.call_s3

    def failing(method: str, **given: object) -> object:
        if method == "complete_multipart_upload":
            raise OSError("the line is cut")
        return real(method, **given)

    monkeypatch.setattr(fs, "call_s3", failing, raising=False)
    monkeypatch.setattr("ckptconv.storage.lookups._connected", lambda url: (fs, url.removeprefix("s3://")))
    with pytest.raises(StorageError, match="the line is cut"):
        ckptconv.save(values, "s3://zoo/parts/n.safetensors")
    assert not fs.exists("zoo/parts/n.safetensors")
    assert "Uploads" not in real("list_multipart_uploads", Bucket="zoo")


def test_checksums_of_a_remote_bundle_are_verified(s3: Line, tmp_path: Path) -> None:
    ckptconv.save(arrays(), tmp_path / "m.ckpt", to="tf")
    data = tmp_path / "m.ckpt.data-00000-of-00001"
    raw = bytearray(data.read_bytes())
    raw[100] ^= 1
    data.write_bytes(raw)
    for path in tmp_path.glob("m.ckpt*"):
        upload.put_file(str(path), f"s3://zoo/damaged/{path.name}")
    with pytest.raises(ckptconv.CorruptCheckpoint, match="damaged"):
        ckptconv.convert("s3://zoo/damaged/m.ckpt", tmp_path / "out.npz")


def test_a_zoo_from_bucket_to_bucket(s3: Line, tmp_path: Path) -> None:
    for n, name in enumerate(("a/m.npz", "a/m.ckpt", "b/w.safetensors")):
        ckptconv.save(arrays(n + 1), f"s3://zoo/in/{name}", to="tf" if "ckpt" in name else None)
    with pytest.raises(UsageError, match="ledger=FILE"):
        ckptconv.zoo(["s3://zoo/in"], "s3://zoo/out")
    ledger = str(tmp_path / "ledger.jsonl")
    done = ckptconv.zoo(["s3://zoo/in"], "s3://zoo/out", ledger=ledger)
    assert (done.done, done.failed) == (3, ())
    assert len(ckptconv.open("s3://zoo/out/a/m.ckpt.safetensors")) == 2
    assert ckptconv.zoo(["s3://zoo/in"], "s3://zoo/out", ledger=ledger, resume=True).skipped == 3
    assert "hush" not in Path(ledger).read_text()


def test_a_zoo_whose_server_is_killed_goes_on_where_it_was(
    s3: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was converted stays, the others are failures of the server, and the outputs are those of one whole run."""
    for n in range(3):
        ckptconv.save(arrays(n + 1), f"s3://zoo/cut/run{n}/m.npz")
    whole = ckptconv.zoo(["s3://zoo/cut"], str(tmp_path / "whole"))
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    seen: list[str] = []

    def each(entry: LedgerEntry) -> None:
        if not seen:
            s3.cut()
        seen.append(entry.state)

    monkeypatch.setattr(run, "COMMIT_INTERVAL", 0.0)
    first = ckptconv.zoo(["s3://zoo/cut"], str(tmp_path / "out"), each=each)
    s3.mend()
    monkeypatch.delenv("CKPTCONV_TIMEOUT")  # which a busy machine exceeds
    assert first.failed
    assert {e.error for e in first.failed} <= {"StorageError"}
    assert first.done + len(first.failed) == whole.done == 3
    rest = ckptconv.zoo(["s3://zoo/cut"], str(tmp_path / "out"), resume=True)
    assert (rest.done, rest.skipped, rest.failed) == (len(first.failed), first.done, ())
    outputs = [{p.relative_to(d): p.read_bytes() for p in d.rglob("*.safetensors")}
               for d in (tmp_path / "whole", tmp_path / "out")]  # fmt: skip
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 3


# --- destinations -----------------------------------------------------------------------------------------------


@pytest.fixture
def bucket() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield "memory://bucket"
    fs.store.clear()


def test_an_upload_that_fails_leaves_nothing(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sent = upload.put_file, list[str]()

    def failing(path: str, url: str) -> None:
        if len(sent) == 2:
            raise StorageError("the line is cut", url=url)
        sent.append(url)
        real(path, url)

    monkeypatch.setattr(upload, "put_file", failing)
    with pytest.raises(StorageError, match="the line is cut"):
        ckptconv.save(arrays(), f"{bucket}/m.safetensors", max_shard_size=1000)
    assert len(sent) == 2
    assert fsspec.filesystem("memory").find("/bucket") == []


def test_the_index_is_sent_last(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sent = upload.put_file, list[str]()
    monkeypatch.setattr(upload, "put_file", lambda path, url: (sent.append(url), real(path, url)))
    ckptconv.save(arrays(), f"{bucket}/m.safetensors", max_shard_size=1000)
    assert sent[-1].endswith(".index.json")
    assert len(sent) == 7


def test_an_existing_object_is_kept_without_force(bucket: str) -> None:
    ckptconv.save(arrays(3), f"{bucket}/m.safetensors")
    with pytest.raises(FileExistsError, match="already exists"):
        ckptconv.save(arrays(4), f"{bucket}/m.safetensors")
    assert len(ckptconv.open(f"{bucket}/m.safetensors")) == 3
    ckptconv.save(arrays(4), f"{bucket}/m.safetensors", force=True, max_shard_size=1000)
    assert files.names(bucket)[0] == "m-00001-of-00004.safetensors"
    assert "m.safetensors" not in files.names(bucket)  # the older one is gone


def test_no_temporary_file_stays(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ckptconv.save(arrays(), f"{bucket}/m.npz")
    with pytest.raises(StorageError):
        ckptconv.save(arrays(), f"{bucket}/m.npz")
    assert os.listdir(tmp_path) == []


def test_a_remote_source_that_changes_is_noticed(bucket: str, tmp_path: Path) -> None:
    ckptconv.save(arrays(), f"{bucket}/m.safetensors")

    def replacing(do: object, jobs: object) -> object:
        for job in jobs:
            yield do(job)
        ckptconv.save(arrays(), f"{bucket}/m.safetensors", force=True)

    with pytest.raises(ckptconv.CorruptCheckpoint, match="changed while it was read"):
        ckptconv.convert(f"{bucket}/m.safetensors", tmp_path / "m.npz", map=replacing)
    assert os.listdir(tmp_path) == []


# --- the web ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize("name", ["safetensors", "npz", "torch", "tf", "keras", "flax"])
def test_reading_from_the_web(serve: Serve, tmp_path: Path, name: str, ranged: bool) -> None:
    ckptconv.save(arrays(), tmp_path / WRITABLE[name], to=name)
    host, _ = serve(files=tmp_path, ranged=ranged)
    found = ckptconv.open(f"http://{host}/{WRITABLE[name]}" + (".index" if name == "tf" else ""))
    assert {n: t.numpy().tobytes() for n, t in found.items()} == {n: a.tobytes() for n, a in arrays().items()}


def test_only_ranges_are_fetched_from_the_web(serve: Serve, tmp_path: Path) -> None:
    ckptconv.save({"big": np.zeros((1000, 1000)), "small": np.ones(3)}, tmp_path / "m.safetensors")
    line = Line(int(serve(files=tmp_path)[0].rpartition(":")[2]))
    assert ckptconv.open(f"http://127.0.0.1:{line.port}/m.safetensors")["small"].numpy().sum() == 3
    assert line.received < 100_000


def test_the_web_says_no(serve: Serve) -> None:
    base = f"http://{serve()[0]}"
    with pytest.raises(StorageError, match="no such file"):
        ckptconv.open(f"{base}/absent.npz")
    with pytest.raises(StorageError, match="nothing can be written to a web server"):
        ckptconv.save(arrays(), f"{base}/m.npz")
    with pytest.raises(StorageError, match="does not list"):
        list(files.walk(base))


# --- parts ------------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gs", raising=False)  # another test may have used it
    with pytest.raises(MissingExtra, match=r"ckptconv\[gs\]"):
        ckptconv.open("gs://bucket/m.npz")


def test_an_unknown_scheme() -> None:
    with pytest.raises(UsageError, match=r"gopher:// is not read, only s3://.* are; mount it, or copy the file here"):
        ckptconv.open("gopher://bucket/m.npz")
    with pytest.raises(UsageError, match=r"HTTPS:// is not read.*did you mean https\?"):
        ckptconv.open("HTTPS://host/m.npz")


# --- requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "most"),
    [("safetensors", 2), ("npz", 2), ("torch", 2), ("flax", 2), ("hdf5", 2), ("keras", 2), ("tf", 5), ("npy", 9)],
)
def test_what_opening_costs(s3: Line, name: str, most: int) -> None:
    """One question about a file and one range of it, however many parts of the program look at it."""
    url = f"s3://zoo/costs/{WRITABLE[name]}"
    ckptconv.save(arrays(), url, to=name)
    s3.reset()
    assert len(ckptconv.open(url)) == 6
    assert 0 < s3.requests <= most


def test_a_small_checkpoint_of_a_zoo_costs_six_requests(s3: Line, tmp_path: Path) -> None:
    """Side files are not opened, and what the listing said is not asked again."""
    count, ledger = 4, str(tmp_path / "ledger.jsonl")
    (tmp_path / "config.json").write_text('{"model_type": "small"}')
    for n in range(count):
        ckptconv.save(arrays(), f"s3://zoo/sides/m{n}/model.safetensors")
        for side in ("config.json", "tokenizer.json", "README.md"):
            upload.put_file(str(tmp_path / "config.json"), f"s3://zoo/sides/m{n}/{side}")
    s3.reset()
    assert ckptconv.zoo(["s3://zoo/sides"], "s3://zoo/sides-out", ledger=ledger).done == count
    assert s3.requests <= 6 * count + 12  # of two threads both may ask what one could have known
    s3.reset()
    assert ckptconv.zoo(["s3://zoo/sides"], "s3://zoo/sides-out", ledger=ledger, resume=True).skipped == count
    assert s3.requests <= 10


@pytest.mark.parametrize("size", [900, 5000])
def test_every_range_is_what_is_there(bucket: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around what is kept, which is the beginning and the end, what is held for a job, and what is spooled."""
    monkeypatch.setattr(remote, "HEAD", 600)
    monkeypatch.setattr(remote, "TAIL", 300)
    raw = np.random.default_rng(0).bytes(size)
    fsspec.filesystem("memory").pipe("/bucket/x", raw)
    f = remote.RemoteFile(f"{bucket}/x")
    f.hold([(1200, 100)])
    f.spool(2000, 1000)
    if size == 5000:
        assert [bool(f._piece(*at)) for at in ((2000, 1000), (2999, 1), (1999, 9), (2500, 501), (3000, 1))] == [
            True, True, False, False, False,
        ]  # fmt: skip
    for edge in (0, 600, 1200, 1300, 2000, 3000, size - 300, size, size - 300):
        for start in range(max(0, edge - 3), min(size, edge + 3)):
            for length in range(6):
                if start + length <= size:
                    assert bytes(f.read(start, length)) == raw[start : start + length]


def test_nothing_is_kept_beyond_a_run(bucket: str) -> None:
    ckptconv.save(arrays(3), f"{bucket}/m.npz")
    with lookups.cached_lookups():
        assert (len(ckptconv.open(f"{bucket}/m.npz")), files.exists(f"{bucket}/n.npz")) == (3, False)
        fsspec.filesystem("memory").pipe("/bucket/m.npz", b"")
        assert files.stat(f"{bucket}/m.npz").size > 0
        with lookups.session(lookups=None):
            assert files.stat(f"{bucket}/m.npz").size == 0
        ckptconv.save(arrays(4), f"{bucket}/m.npz", force=True)
        assert len(ckptconv.open(f"{bucket}/m.npz")) == 4
    fsspec.filesystem("memory").pipe("/bucket/m.npz", b"")
    assert files.stat(f"{bucket}/m.npz").size == 0


@pytest.mark.parametrize(
    ("path", "is_there"),
    [("a", True), ("a/", True), ("a/m.npz", True), ("a/n.npz", False), ("b", False)],
)
def test_what_a_listing_lacks_is_not_asked(
    bucket: str, path: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckptconv.save(arrays(), f"{bucket}/a/m.npz")
    with lookups.cached_lookups():
        list(files.walk(bucket))
        monkeypatch.setattr(lookups, "_info", lambda url: pytest.fail(f"asked for {url}"))
        assert files.exists(f"{bucket}/{path}") is is_there
