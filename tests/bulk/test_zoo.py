"""Many checkpoints: each found once, named predictably, converted whatever befalls others, resumed by a true ledger."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv import zoo
from ckptconv.bulk import pool, run
from ckptconv.bulk.discover import discover
from ckptconv.bulk.ledger import NAME, Ledger
from ckptconv.bulk.planning import read_ledger
from ckptconv.bulk.run import zoo_plan
from ckptconv.engine.ray import TaskLost
from ckptconv.errors import CkptError, StorageError, UsageError

KILLS = int(os.environ.get("CKPTCONV_KILLS", "2"))


def arrays(seed: int = 0, size: int = 30) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {"a/kernel": r.standard_normal((size, 7), dtype="f4"), "a/bias": r.standard_normal(7, dtype="f4")}


def names(folder: Path, *options: str) -> list[str]:
    found = discover([str(folder)], *options)
    return [os.path.relpath(f.source, folder) for f in found]


def save(path: Path, seed: int = 0, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ckptconv.save(arrays(seed), path, **options)
    return path


def converted(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name != NAME}


# --- discovery --------------------------------------------------------------------------------------------------


def test_each_checkpoint_is_found_once(tmp_path: Path) -> None:
    save(tmp_path / "tf" / "model.ckpt-9", to="tf")
    save(tmp_path / "hf" / "model.safetensors", max_shard_size=300)
    save(tmp_path / "arrays", to="npy")
    save(tmp_path / "deep" / "er" / "w.npz")
    for name in ("README.md", "config.json", "vocab.txt", ".hidden.npz"):
        (tmp_path / "hf" / name).write_text("{}")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    assert sorted(names(tmp_path)) == ["arrays", "deep/er/w.npz", "hf/model.safetensors.index.json", "tf/model.ckpt-9"]


def test_content_finds_what_no_suffix_tells(tmp_path: Path) -> None:
    save(tmp_path / "x.safetensors").rename(tmp_path / "weights")
    (tmp_path / "notes").write_text("a long enough text that is no checkpoint at all")
    assert names(tmp_path) == ["weights"]


def test_what_tensorflow_saves_beside_is_no_checkpoint(tmp_path: Path, fixtures: Path) -> None:
    for name in ("v1", *(f"v1s-{i:05d}-of-00003" for i in range(3))):
        shutil.copy(fixtures / "tf" / name, tmp_path / name)
    for name in ("v1.meta", "v1s.meta", "graph.pbtxt"):
        shutil.copy(fixtures / "tf" / "frozen.pb", tmp_path / name)
    assert names(tmp_path) == ["v1", "v1s-00000-of-00003"]
    (found,) = discover([str(tmp_path / "v1s-00001-of-00003")])
    assert (found.name, len(found.files)) == ("v1s", 4)


def test_a_folder_that_is_a_checkpoint_is_one_even_if_named(tmp_path: Path, fixtures: Path) -> None:
    assert [f.name for f in discover([str(fixtures / "torch" / "dcp")])] == ["dcp"]
    (found,) = discover([str(fixtures / "torch" / "ranks" / "hsdp")])
    assert (found.name, len(found.files)) == ("hsdp", 4)
    save(tmp_path / "arrays", to="npy")
    assert planned(tmp_path / "arrays") == ["arrays.safetensors"]


def test_steps_of_a_series(tmp_path: Path) -> None:
    for step in (9, 10, 200):
        save(tmp_path / f"run{step}" / f"model.ckpt-{step}", to="tf")
        for file in (tmp_path / f"run{step}").glob("model*"):
            file.rename(tmp_path / file.name)
    assert len(names(tmp_path)) == 3
    for name in ("epoch9.npz", "epoch10.npz", "vgg16.npz", "vgg19.npz", "r/epoch=1-step=9.npz", "r/epoch=2-step=3.npz"):
        save(tmp_path / name)
    save(tmp_path / "t" / "checkpoint-9" / "model.npz")
    save(tmp_path / "t" / "checkpoint-10" / "model.npz")
    assert [i.found.name for i in zoo_plan([str(tmp_path)], "out", latest=True)] == [
        "epoch10", "model.ckpt-200", "r/epoch=2-step=3", "t/checkpoint-10/model", "vgg16", "vgg19",
    ]  # fmt: skip


def test_a_cache_is_read_by_its_snapshots(tmp_path: Path) -> None:
    blob = save(tmp_path / "hub" / "blobs" / "abc.npz").rename(tmp_path / "hub" / "blobs" / "abc")
    link = tmp_path / "hub" / "snapshots" / "main" / "w.npz"
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    assert names(tmp_path) == ["hub/snapshots/main/w.npz"]


def test_globs_and_patterns(tmp_path: Path) -> None:
    for name in ("a/one.npz", "a/two.npz", "b/one.npz", "b/model.ckpt-1"):
        save(tmp_path / name, to="tf" if "ckpt" in name else None)
    assert names(tmp_path, "one*") == ["a/one.npz", "b/one.npz"]
    assert names(tmp_path, "a/*") == ["a/one.npz", "a/two.npz"]
    found = discover([f"{tmp_path}/*/one.npz", f"{tmp_path}/b/model*"])
    assert [f.name for f in found] == ["a/one", "b/one", "model.ckpt-1"]
    with pytest.raises(StorageError, match="no checkpoint matches"):
        discover([f"{tmp_path}/*.h5"])
    with pytest.raises(UsageError, match="none of 4 checkpoints matches pattern='two'"):
        names(tmp_path, "two")
    with pytest.raises(StorageError, match="no such file"):
        discover([f"{tmp_path}/absent"])


def test_a_prefix_is_one_source(tmp_path: Path) -> None:
    save(tmp_path / "m.ckpt", to="tf")
    for source in ("m.ckpt", "m.ckpt.index", "m.ckpt.data-00000-of-00001"):
        (found,) = discover([str(tmp_path / source)])
        assert found.name == "m.ckpt"
        assert len(found.files) == 2


# --- names ------------------------------------------------------------------------------------------------------


def planned(*sources: Path, **target: object) -> list[str]:
    return [i.destination for i in zoo_plan([str(s) for s in sources], "nowhere", **target)]


def test_outputs_mirror_the_tree(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a" / "model.npz")
    save(tmp_path / "in" / "model.ckpt-7", to="tf")
    assert planned(tmp_path / "in") == ["a/model.safetensors", "model.ckpt-7.safetensors"]
    assert planned(tmp_path / "in", to="tf") == ["a/model/model.ckpt", "model.ckpt-7/model.ckpt"]
    assert planned(tmp_path / "in", to="npy") == ["a/model", "model.ckpt-7"]


def test_outputs_that_would_meet_keep_their_suffix(tmp_path: Path) -> None:
    save(tmp_path / "m.npz")
    save(tmp_path / "m.safetensors")
    save(tmp_path / "other.npz")
    assert planned(tmp_path) == ["m.npz.safetensors", "m.safetensors.safetensors", "other.safetensors"]


# --- converting -------------------------------------------------------------------------------------------------


def make(folder: Path, count: int = 6) -> None:
    suffixes = [".npz", ".safetensors", ".msgpack", ".pt"]
    for n in range(count):
        save(folder / f"run{n % 2}" / f"m{n}{suffixes[n % 4]}", n)


@pytest.mark.usefixtures("in_processes")
def test_one_failure_does_not_stop_the_rest(tmp_path: Path, cli: Run) -> None:
    make(tmp_path / "in")
    for n in range(3):
        (tmp_path / "in" / f"bad{n}.npz").write_bytes(b"PK\x03\x04" + bytes(50 + n))
    (tmp_path / "in" / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    done = cli("zoo", "in", "-o", "out", "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["done"], said["failed"]) == (6, 4)
    assert sorted(len(c["sources"]) for c in said["causes"]) == [1, 3]
    entries = read_ledger(str(tmp_path / "out"))
    assert sum(e.state == "failed" for e in entries.values()) == 4
    for n in range(6):
        got = ckptconv.open(tmp_path / "out" / f"run{n % 2}" / f"m{n}.safetensors")
        assert all(np.array_equal(got[k].numpy(), v) for k, v in arrays(n).items())


def test_a_dead_worker_loses_only_its_task() -> None:
    code = (
        "from ckptconv.bulk import pool\n"
        "kill = '__import__(\\'os\\').kill(__import__(\\'os\\').getpid(), 9)'\n"
        "tasks = ['1 + 1', kill, *(f'{n} * 2' for n in range(10))]\n"
        "results = dict(r for r in pool.run(eval, tasks, 2) if r)\n"
        "print('SIGKILL' in str(results[tasks[1]]), [results[f'{n} * 2'] for n in range(10)])\n"
    )  # in a process of its own: whatever is killed, it is not this one
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == f"True {[2 * n for n in range(10)]}", done.stderr


@pytest.mark.slow
def test_resume_does_only_what_is_not_done(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    make(source)

    def again(**options: object) -> list[str]:
        said: list[str] = []
        zoo([str(source)], str(out), resume=True, each=lambda e: said.append(e.at), **options)
        return sorted(said)

    assert len(again()) == 6
    assert again() == []
    save(source / "new.npz")
    assert again() == ["new.safetensors"]
    changed = source / "run0" / "m0.npz"
    changed.unlink()
    save(changed, 77)
    assert again() == ["run0/m0.safetensors"]
    assert np.array_equal(ckptconv.open(out / "run0" / "m0.safetensors")["a/bias"].numpy(), arrays(77)["a/bias"])
    (out / "run1" / "m1.safetensors").unlink()
    assert again() == ["run1/m1.safetensors"]
    assert len(again(dtype="float16")) == 7
    assert again(dtype="float16") == []


def states(source: Path, out: Path, **more: Any) -> set[str]:
    return {i.state for i in zoo_plan([str(source)], str(out), resume=True, **more)}


def test_content_counts_if_asked_whatever_size_and_time_are(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    path = save(source / "m.npz")
    zoo([str(source)], str(out), by_content=True)
    before = path.stat()
    os.utime(path, (1, 1))
    assert (states(source, out), states(source, out, by_content=True)) == ({"changed"}, {"done"})
    path.write_bytes(bytes(b ^ 1 for b in path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (states(source, out), states(source, out, by_content=True)) == ({"done"}, {"changed"})


def test_an_output_that_was_changed_in_place_is_noticed_if_asked(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    make(source, 1)
    zoo([str(source)], str(out), verify=True)
    assert states(source, out) == {"done"}  # how it was verified does not change an output
    assert states(source, out, verify=True) == {"done"}
    (path,) = out.rglob("*.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    before = path.stat()
    path.write_bytes(raw)
    assert states(source, out) == {"done"}
    assert states(source, out, verify=True) == {"changed"}
    done = zoo([str(source)], str(out), verify=True, resume=True)
    assert "is not what was written here before" in str(done), "it may be the user's by now"
    assert path.read_bytes() == raw
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # what nobody wrote is damage
    zoo([str(source)], str(out), verify=True, resume=True)
    assert states(source, out, verify=True) == {"done"}


def test_what_a_converter_includes_and_our_own_version_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    make(source, 1)
    (tmp_path / "mine.toml").write_text('include = ["_more"]\n')
    more = tmp_path / "_more.toml"
    more.write_text("[[rule]]\nfrom = '{x...}'\nto = '{x...}'\n")
    options = {"converter": str(tmp_path / "mine.toml")}
    zoo([str(source)], str(out), **options)
    assert states(source, out, **options) == {"done"}
    more.write_text("[[rule]]\nfrom = '{x...}'\nto = 'new.{x...}'\n")
    assert states(source, out, **options) == {"changed"}
    zoo([str(source)], str(out), **options, resume=True)
    assert states(source, out, **options) == {"done"}
    monkeypatch.setattr(ckptconv, "__version__", "99.0")
    assert states(source, out, **options) == {"changed"}


def test_two_runs_cannot_share_a_ledger(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    make(tmp_path / "in", 1)
    with closing(Ledger(str(tmp_path / "out" / NAME), resume=False)), pytest.raises(StorageError, match="another run"):
        zoo([str(tmp_path / "in")], str(tmp_path / "out"), resume=True)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_killed_at_any_moment_it_ends_with_the_same_files(tmp_path: Path) -> None:
    make(tmp_path / "in", 10)
    command = [sys.executable, "-m", "ckptconv", "zoo", str(tmp_path / "in"), "--resume", "-q", "-j", "2", "-o"]
    began = time.monotonic()
    subprocess.run([*command, str(tmp_path / "want")], check=True)
    whole = time.monotonic() - began
    want = converted(tmp_path / "want")
    chance = random.Random(5)
    for _ in range(KILLS):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        child = subprocess.Popen([*command, str(tmp_path / "out")], stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, 1) * whole)
        child.send_signal(signal.SIGKILL)
        child.wait()
        for entry in read_ledger(str(tmp_path / "out")).values():  # what the ledger says is done is there, and right
            assert entry.state != "done" or (tmp_path / "out" / entry.at).read_bytes() == want[entry.at]
        time.sleep(0.1)  # the workers end by themselves
        subprocess.run([*command, str(tmp_path / "out")], check=True)
        assert converted(tmp_path / "out") == want
        assert {e.state for e in read_ledger(str(tmp_path / "out")).values()} == {"done"}


# --- what goes wrong with one -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_one_bad_thing_is_a_failure_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A link that leaves the tree, dead ones, one to itself, one whose name is too long."""
    tree, secret = tmp_path / "in", tmp_path / "home" / "secret.npz"
    save(tree / "good.npz")
    save(tree / "below" / "other.npz")
    save(secret)
    (tree / "inside.npz").symlink_to("below/other.npz")
    (tree / "leaves.npz").symlink_to(secret)
    (tree / "dead.npz").symlink_to("nowhere")
    (tree / "itself.npz").symlink_to("itself.npz")
    (tree / "README").symlink_to("nowhere")
    (tree / "long.npz").symlink_to("x" * 300)
    (tree / "LICENSE").symlink_to("x" * 300)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "long").symlink_to("x" * 300)
    done = zoo([str(tree)], str(tmp_path / "out"))
    assert done.done == 3
    assert {Path(e.source).name: e.error for e in done.failed} == {
        "leaves.npz": "UnsafeCheckpoint", "dead.npz": "MissingFile", "itself.npz": "StorageError",
        "long.npz": "StorageError",
    }  # fmt: skip
    assert "file name too long" in {e.message for e in done.failed}
    assert not (tmp_path / "out" / "leaves.safetensors").exists()
    again = zoo([str(tree)], str(tmp_path / "out"), resume=True, follow_links=True)
    assert (again.done, again.skipped, len(again.failed)) == (1, 3, 3)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("glob", ["*.npz", "*", "**/*", "**/*.npz", "*/*.npz", "a[w]ay", "away/*"])
@pytest.mark.parametrize("relative", [False, True])
def test_a_glob_does_not_leave_its_tree(
    glob: str, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "in" / "good.npz")
    save(tmp_path / "in" / "below" / "good.npz")
    save(tmp_path / "home" / "secret.npz")
    (tmp_path / "in" / "leaves.npz").symlink_to("../home/secret.npz")
    (tmp_path / "in" / "below" / "inside.npz").symlink_to("../good.npz")
    (tmp_path / "in" / "away").symlink_to("../home")
    monkeypatch.chdir(tmp_path / "in")
    pattern = glob if relative else str(tmp_path / "in" / glob)
    if glob == "away/*":  # the link is named by who asks
        assert [f.problem for f in discover([pattern])] == [None]
        return
    found = discover([pattern])
    sound = {os.path.realpath(f.source) for f in found if not f.problem}
    assert not any("home" in path for path in sound)
    problems = [f for f in found if f.problem]
    assert all("follow_links=True" in str(f.problem) for f in problems)
    assert problems, "what is left out is listed"
    followed = discover([pattern], follow=True)
    assert {f.problem for f in followed} == {None}
    assert any("home" in os.path.realpath(f.source) for f in followed)


class Listing:
    """What `os.scandir` returns: an iterator, and a context."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self.entries

    def __next__(self) -> Any:
        return next(self.entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Folders called locked cannot be read; what is called gone vanishes once listed."""
    real = os.scandir

    def listed(path: str) -> Listing:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        with real(path) as entries:
            found = list(entries)
        for e in found:
            if e.name.startswith("gone"):
                shutil.rmtree(e.path) if e.is_dir() else os.unlink(e.path)
        return Listing(found)

    monkeypatch.setattr(os, "scandir", listed)


@pytest.mark.parametrize(
    ("source", "sound", "failed"),
    [
        ("in", 2, {"in/below/locked", "in/arrays"}),
        ("in/*", 2, {"in/below/locked", "in/arrays"}),
        ("in/below/**/*.npz", 1, {"in/below/locked"}),
    ],
)
@pytest.mark.usefixtures("moody")
def test_an_unreadable_folder_is_a_failure(
    source: str, sound: int, failed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vanishes while it is listed is left out."""
    monkeypatch.chdir(tmp_path)
    for name in ("in/good.npz", "in/below/m.npz", "in/below/locked/m.npz"):
        save(Path(name))
    for name in ("in/gone.npz", "in/below/gone.npz", "out/gone/m.npz", "out/.m.npz.0123abcd.part/gone/m.npz"):
        save(Path(name))
    if source in ("in", "in/*"):
        save(Path("in/below/gone/m.npz"))
    for name in ("in/arrays/locked", "out/locked"):
        Path(name).mkdir(parents=True)
    np.save("in/arrays/w.npy", np.zeros(2))
    done = zoo([source], "out", jobs=1)
    assert {e.source: e.message for e in done.failed} == dict.fromkeys(failed, "permission denied")
    assert (done.done, done.skipped) == (sound, 0)


def test_a_full_disk_under_the_ledger(tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a write that fits in part nothing stays, and the next run does the rest."""
    for i in range(4):
        save(tmp_path / "in" / f"m{i}.npz")
    ledger, real, room = tmp_path / "out" / NAME, os.write, [0]

    def full(fd: int, data: bytes) -> int:
        if not os.path.samestat(os.fstat(fd), os.stat(ledger)):
            return real(fd, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size, room[0] = min(len(data), room[0]), max(0, room[0] - len(data))
        return real(fd, data[:size])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        done = cli("zoo", "in", "-o", "out")
        assert (done.returncode, ledger.read_bytes()) == (9, b"")
        assert "the disk is full" in done.stderr
        room[0] = 4 * 150 + 30
        done = cli("zoo", "in", "-o", "out")
    lines = ledger.read_bytes()
    assert done.returncode == 9, done.stderr
    assert "the disk is full" in done.stderr
    assert lines.count(b"planned") == lines.count(b"\n") - 1 == 4
    assert lines.endswith(b"\n")
    assert zoo([str(tmp_path / "in")], str(tmp_path / "out"), resume=True).done == 4


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """Workers do not run the script that called zoo again, as processes of `multiprocessing` do."""
    ckptconv.save({"w": np.zeros(3)}, tmp_path / "in" / "a.npz")
    ckptconv.save({"w": np.ones(3)}, tmp_path / "in" / "b.npz")
    script = tmp_path / "script.py"
    lines = ("import ckptconv", "print('begun')", "print(ckptconv.zoo('in', 'out', jobs=2).done)", "print(__file__)")
    script.write_text("\n".join(lines))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["begun", "2", str(script), ""]


@pytest.mark.parametrize("lost", [pool.WorkerDied, TaskLost])
@pytest.mark.parametrize("foreign", [False, True])
def test_an_output_of_a_worker_that_died_is_replaced_by_the_next_run(
    lost: type[CkptError], foreign: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between the publication and its report; a second failure does not forget whose the output is."""
    save(tmp_path / "in" / "m.npz")
    made = tmp_path / "out" / "m.safetensors"
    if foreign:
        made.parent.mkdir()
        made.write_bytes(b"foreign")
    ends: list[CkptError | None] = [lost("the worker process ended"), StorageError("is away"), None]

    def one(do: Any, todo: Any, *_: object) -> Any:
        for item in todo:
            end = ends.pop(0)
            done = None if isinstance(end, StorageError) or (foreign and end) else do(item)
            yield item, end or done

    monkeypatch.setattr(run.pool, "run", one)
    said = []
    for _ in range(2):
        zoo([str(tmp_path / "in")], str(tmp_path / "out"), resume=True, each=said.append)
    assert [(e.state, e.ours) for e in said] == [("failed", not foreign)] * 2
    if foreign:
        with pytest.raises(StorageError):
            zoo([str(tmp_path / "in")], str(tmp_path / "out"), resume=True)
        assert made.read_bytes() == b"foreign"
    else:
        assert zoo([str(tmp_path / "in")], str(tmp_path / "out"), resume=True).done == 1
        assert sorted(ckptconv.open(made)) == ["a/bias", "a/kernel"]
