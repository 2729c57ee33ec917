"""What a stranger can put into the tree, the manifest, the output folder or the ledger of a zoo."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv import zoo
from ckptconv.bulk import planning, run
from ckptconv.bulk.discover import discover
from ckptconv.bulk.ledger import NAME, read
from ckptconv.bulk.planning import read_ledger
from ckptconv.bulk.run import WorkerConfig, work, zoo_plan
from ckptconv.bulk.summary import Summary, zoo_status
from ckptconv.errors import CkptError, CorruptCheckpoint, StorageError, UsageError
from ckptconv.output.own import LONGEST
from ckptconv.output.staging import Output

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


def save(path: Path, value: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ckptconv.save({"w": np.full(4, value)}, path, force=True)
    return path


def manifest(folder: Path, *rows: dict[str, str]) -> str:
    path = folder / "m.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


# --- trees ------------------------------------------------------------------------------------------------------------


def loops(folder: Path) -> None:
    """Two links to their own folder: 2^40 paths, before the system refuses them."""
    for name in ("x", "y"):
        (folder / name).symlink_to(".")


def deep(folder: Path) -> None:
    save(folder / "/".join("a" * 300) / "m.npz")


def both_ways(folder: Path) -> None:
    for a, b in (("p", "q"), ("q", "p")):
        (folder / a).mkdir()
        for i in range(8):
            (folder / a / f"l{i}").symlink_to(f"../{b}")


@pytest.mark.parametrize("lay", [loops, deep, both_ways])
@pytest.mark.parametrize("pattern", ["**/*.npz", "**/**/**/**/**/**/**/*.npz", "**/a/**/a/**/a/**/*.npz", "**"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_glob_takes_each_folder_once(lay: Callable[[Path], None], pattern: str, follow: bool, tmp_path: Path) -> None:
    save(tmp_path / "t" / "a" / "m.npz")
    lay(tmp_path / "t")
    if "a/**/a" in pattern and lay is not deep:
        with pytest.raises(StorageError, match="no checkpoint matches"):
            discover([str(tmp_path / "t" / pattern)], follow=follow)
        return
    found = discover([str(tmp_path / "t" / pattern)], follow=follow)
    assert all(f.problem is None for f in found)
    assert len({os.path.realpath(f.source) for f in found}) == len(found) >= 1


# --- output folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_an_output_does_not_leave_its_folder_by_a_link(taken: bool, force: bool, tmp_path: Path) -> None:
    """The output folder came with the checkpoints, and holds a link to a folder of the user."""
    save(tmp_path / "in" / "a" / "m.npz")
    home = tmp_path / "home"
    home.mkdir()
    if taken:
        (home / "m.safetensors").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(home)
    done = zoo([str(tmp_path / "in")], str(tmp_path / "out"), force=force)
    assert "a link in the output folder leads out of it" in str(done)
    assert {p.name: p.read_text() for p in home.iterdir()} == ({"m.safetensors": "mine"} if taken else {})


# --- what may be replaced ---------------------------------------------------------------------------------------------


def again(tmp_path: Path, **options: Any) -> Summary:
    return zoo([str(tmp_path / "in")], str(tmp_path / "out"), resume=True, **options)


def folder_of(at: Path) -> dict[str, bytes]:
    return {str(p.relative_to(at)): p.read_bytes() for p in at.rglob("*") if p.is_file() and p.name != NAME}


@pytest.mark.parametrize("to", ["safetensors", "npy", "tf"])
@pytest.mark.parametrize("whose", ["ours", "users", "same size", "beside"])
def test_only_what_a_zoo_wrote_is_replaced(to: str, whose: str, tmp_path: Path) -> None:
    """The source has changed; the output is what was written, or another file of the same name by now."""
    save(tmp_path / "in" / "m.npz")
    save(tmp_path / "in" / "other.npz")
    assert again(tmp_path, to=to).done == 2
    made = max((tmp_path / "out").glob("m*/*w*" if to == "npy" else "m/*.data*" if to == "tf" else "m.*"))
    if whose == "users":
        made.write_bytes(b"mine")
    elif whose == "same size":
        made.write_bytes(bytes(made.stat().st_size))
    elif whose == "beside":  # of a name that belongs to an older checkpoint of this name
        made = made.with_name({"npy": "x.npy", "tf": "model.ckpt.data-00000-of-00009"}.get(to, "n"))
        made.write_bytes(b"mine")
    kept = made.read_bytes()
    save(tmp_path / "in" / "m.npz", 2.0)
    for _ in range(2):
        done = again(tmp_path, to=to)
        if whose == "ours" or (whose, to) == ("beside", "safetensors"):
            assert not done.failed
            continue
        assert [e.error for e in done.failed] == ["StorageError"]
        assert made.read_bytes() == kept
    if whose in ("users", "same size"):
        assert again(tmp_path, to=to, force=True).done == 1
        assert made.read_bytes() != kept


def test_what_comes_between_plan_and_publication_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once where nothing was, and once in the place of the output of an earlier run."""
    made, real = tmp_path / "out" / "m.safetensors", Output.fsync

    def late(out: Output) -> None:
        real(out)
        made.write_text("mine")

    for value, says in ((1.0, "already exists"), (2.0, "is not what was written here before")):
        save(tmp_path / "in" / "m.npz", value)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        if value == 2:
            assert again(tmp_path).done == 1
            save(tmp_path / "in" / "m.npz", 3.0)
        (item,) = zoo_plan([str(tmp_path / "in")], str(tmp_path / "out"), resume=True)
        with monkeypatch.context() as patch:
            patch.setattr(Output, "fsync", late)
            with pytest.raises(StorageError, match=says):
                work(WorkerConfig(str(tmp_path / "out"), 2**25, 1, False, True), item)
        assert folder_of(tmp_path / "out") == {"m.safetensors": b"mine"}


@pytest.mark.parametrize("to", ["safetensors", "npy", "tf"])
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_what_a_killed_run_did_not_record_is_known_by_its_bytes(
    to: str, changed: bool, replaced: bool, tmp_path: Path
) -> None:
    """Killed between the publication and its line, of a new output or of one that replaced an older one."""
    ledger = tmp_path / "out" / NAME
    for value in (1.0, 2.0)[: 1 + replaced]:
        save(tmp_path / "in" / "m.npz", value)
        assert again(tmp_path, to=to).done == 1
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    kept = folder_of(tmp_path / "out")
    if changed:
        (tmp_path / "out" / next(name for name in sorted(kept) if not name.endswith("checkpoint"))).write_bytes(b"mine")
        kept = folder_of(tmp_path / "out")
    done = again(tmp_path, to=to)
    assert (done.done, len(done.failed)) == ((0, 1) if changed else (1, 0))
    assert folder_of(tmp_path / "out") == kept
    assert not list((tmp_path / "out").rglob(".*.part"))


@pytest.mark.parametrize("swap", ["other", "gone", "later", "twin", "twin elsewhere", "rewritten"])
def test_a_source_that_is_not_the_planned_one_is_a_failure(
    swap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin has the same size and time."""
    source, twin, real = save(tmp_path / "in" / "m.npz"), save(tmp_path / "twin.npz", 2.0), run._make_folders
    os.utime(twin, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))

    def swapped(*given: Any) -> Any:
        was = source.stat()
        if swap == "later":
            os.utime(source, ns=(0, 0))
        elif swap != "rewritten":
            source.unlink()
        if swap == "other":
            ckptconv.save({"x": np.zeros(99)}, source)
        elif swap == "twin elsewhere":
            source.symlink_to(twin)
        elif swap in ("twin", "rewritten"):
            source.write_bytes(twin.read_bytes())
            os.utime(source, ns=(was.st_atime_ns, was.st_mtime_ns))
        return real(*given)

    monkeypatch.setattr(run, "_make_folders", swapped)
    done = again(tmp_path)
    assert "is not the file that was planned" in str(done)
    assert folder_of(tmp_path / "out") == {}
    monkeypatch.setattr(run, "_make_folders", real)
    if swap != "gone":
        assert again(tmp_path).done == (swap != "twin elsewhere")


def test_a_source_that_changes_after_its_conversion_is_not_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content is hashed later than it is converted."""
    source, real = save(tmp_path / "in" / "m.npz"), run.content_hash

    def changed(urls: Any) -> str:
        save(source, 2.0)
        return real(urls)

    monkeypatch.setattr(run, "content_hash", changed)
    for made in (1, 1, 0):
        done = zoo([str(tmp_path / "in")], str(tmp_path / "out"), resume=True, by_content=True)
        assert done.done == made
        monkeypatch.setattr(run, "content_hash", real)
    assert float(ckptconv.open(tmp_path / "out" / "m.safetensors")["w"].numpy()[0]) == 2


@pytest.mark.parametrize(
    ("source", "out"),
    [(".", "."), ("in", "in"), ("in", "link"), ("in", "in/out"), (".", "out")],
)
def test_no_output_lies_in_a_source(source: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run would find the outputs of the one before."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "in/sub/o.npz")
    (tmp_path / "link").symlink_to("in")
    for call in (zoo, zoo_plan):
        with pytest.raises(UsageError, match="the output folder lies in the source"):
            call([source], out)
    assert zoo(["in/sub/o.npz"], "in").done == 1  # a file that is named is not searched for
    for _ in range(2):  # nor what a glob wrote
        assert {e.destination for e in zoo_plan(["**/*.npz"], "found", to="npz")} == {"in/sub/o.npz"}
        zoo(["**/*.npz"], "found", to="npz", force=True)


@pytest.mark.parametrize(
    ("pattern", "at"),
    [("*", "in/sub/m.npz"), ("*.npz", "n.npz"), (".//in//**/*.npz", "sub/m.npz")],
)
def test_outputs_of_a_glob_begin_at_its_first_wildcard(
    pattern: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "in" / "sub" / "m.npz")
    save(tmp_path / "n.npz")
    for absolute in ("", f"{tmp_path}/", f"{tmp_path}//"):
        found = zoo_plan(
            [absolute + pattern.removeprefix("." * bool(absolute))],
            "out",
            to="npz",
        )
        assert at in [i.destination for i in found]


def test_a_sweep_removes_what_is_proved_to_be_ours(tmp_path: Path) -> None:
    save(tmp_path / "in" / "m.npz")
    again(tmp_path)
    ledger = tmp_path / "out" / NAME
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])  # planned
    theirs = tmp_path / "out" / ".m.safetensors-mine.deadbeef.part"
    theirs.mkdir()
    (theirs / "thesis").write_text("mine")
    again(tmp_path)
    assert (theirs / "thesis").read_text() == "mine"


# --- manifests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"destination": "x/o.npz"}, {"source": "b.npz", "destination": "x/./o.npz"}], "these outputs would meet"),
        ([{"destination": "o.npz"}, {"destination": "o.npz", "dtype": "float16"}], "these outputs would meet"),
        ([{"destination": NAME}], "is a name of temporary files or ledgers"),
        ([{"destination": "a/.m.npz.DEADBEEF.part"}], "is a name of temporary files or ledgers"),
        ([{"destination": ".x.resume.journal"}], "is a name of temporary files or ledgers"),
        ([{"destination": "x" * 300 + "/o.npz"}], "name too long"),
        ([{"source": "t"}], "a row is one checkpoint, and 2 checkpoints are there"),
        ([{"source": "m.jsonl"}], "is a text that begins with"),
        ([{"to": "nosuch"}], "unknown format 'nosuch'"),
        ([{"to": "pt2"}], "can be read but not written"),
        ([{"converter": "large.toml"}], "at most 1048576"),
        ([{"converter": "text.toml"}], "codec can't decode"),
        ([{"converter": "up.toml"}], "must be the bare name"),
        ([{"converter": "x" * 5000}], "no converter is called"),
        ([{"converter": "\0.toml"}], "embedded null byte"),
    ],
)
def test_a_row_that_cannot_be_is_a_failure(
    rows: list[dict[str, str]], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the options of a row name is first looked at when all are planned; what is not a rule file is not read."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.npz", "b.npz", "t/c.npz", "t/d.npz", "sound.npz"):
        save(tmp_path / name)
    (tmp_path / "large.toml").write_bytes(bytes(2**21))
    (tmp_path / "up.toml").write_text('include = ["../x"]')
    (tmp_path / "text.toml").write_bytes(b"\xff")
    given = manifest(tmp_path, *({"source": "a.npz", "to": "npz", **row} for row in rows), {"source": "sound.npz"})
    for force in (False, True):
        done = zoo([given], f"out{force}", force=force)
        assert says in str(done)
        assert (done.done, len(done.failed)) == (1, len(rows))
        assert set(read_ledger(f"out{force}")) >= {"sound.safetensors"}


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        (("m", "hf"), ("m/config.json", "npz"), True),
        (("m", "hf"), ("m-00001-of-00002.safetensors", "safetensors"), False),
        (("a", "npy"), ("a/b.npz", "npz"), True),
        (("a", "npy"), ("ab", "npy"), False),
        (("h\u00e9.npz", "npz"), ("he\u0301.npz", "npz"), True), (("M.npz", "npz"), ("m.npz", "npz"), True),
    ],
)  # fmt: skip
def test_outputs_that_would_meet_are_failures(
    one: tuple[str, str], other: tuple[str, str], meets: bool, tmp_path: Path
) -> None:
    rows = [{"source": save(tmp_path / f"{n}.npz").name, "destination": at, "to": to}
            for n, (at, to) in enumerate((one, other, ("sound.npz", "npz")))]  # fmt: skip
    items = zoo_plan([manifest(tmp_path, *rows)], str(tmp_path / "out"))
    assert [i.state == "problem" for i in items] == [meets, meets, False]


def test_of_outputs_that_meet_the_second_fails(tmp_path: Path) -> None:
    """In a way that their names do not tell: one is a file of the other."""
    rows = [{"source": save(tmp_path / f"{at}.npz").name, "destination": at, "to": to}
            for at, to in (("m.ckpt", "tf"), ("m.ckpt.index", "npz"))]  # fmt: skip
    done = zoo([manifest(tmp_path, *rows)], str(tmp_path / "out"))
    assert (done.done, [e.error for e in done.failed]) == (1, ["StorageError"])
    assert [*ckptconv.open(tmp_path / "out" / "m.ckpt")] == ["w"]


# --- ledgers and journals ---------------------------------------------------------------------------------------------


def head(number: int) -> bytes:
    return b'{"at":"","file":%d}\n' % number


ENTRY = {"at": "a.safetensors", "state": "done", "source": "x", "files": [], "options": ""}


@pytest.mark.parametrize(
    "changed",
    [
        {"at": {}}, {"source": None}, {"options": 7}, {"message": {}},
        {"files": [["a", float("inf"), 0]]},
        {"files": [["a", "1" * 5000, 0]]}, {"state": "finished"}, {"ours": 1},
        {"written": [["/etc/passwd", 1, 2]]}, {"written": [["../x", 1, 2]]}, {"written": [["a\0", 1, 2]]},
        {"at": "../a"}, {"at": "/a"}, {"at": ""},
        {"remarks": [["damaged", "a"]]},
        {"remarks": 3}, {"remarks": [["danger", "a", "b"]]},
    ],
)  # fmt: skip
def test_a_forged_ledger_is_damaged(changed: dict[str, object], tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz")
    (path := tmp_path / NAME).touch()
    path.write_bytes(head(path.stat().st_ino) + json.dumps({**ENTRY, **changed}).encode() + b"\n")
    with pytest.raises(CorruptCheckpoint, match="line 2 of the ledger is damaged"):
        zoo([str(source)], str(tmp_path), resume=True)


@pytest.mark.parametrize("first", ["kept", "none", "another", "alone"])
def test_a_ledger_from_elsewhere_is_not_believed(first: str, tmp_path: Path) -> None:
    """Sources, outputs and a ledger that calls these up to date come together, with all times and hashes right."""
    theirs, here = tmp_path / "theirs", tmp_path / "here"
    save(theirs / "in" / "m.npz", 1.0)
    ckptconv.zoo(theirs / "in", theirs / "out", verify=True)
    ckptconv.save({"w": np.full(4, 666.0)}, made := theirs / "out" / "m.safetensors", force=True)
    entry = read_ledger(str(theirs / "out"))["m.safetensors"]
    entry = entry._replace(
        source=str(here / "in" / "m.npz"), proof=planning.content_hash([str(theirs / "out" / "m.safetensors")]),
        written=(("m.safetensors", made.stat().st_size, made.stat().st_mtime_ns),),
    )  # fmt: skip
    path = theirs / "out" / NAME
    begin = head(path.stat().st_ino if first == "kept" else 1) if first != "none" else b""
    path.write_bytes(begin + (entry.line() if first != "alone" else b""))
    shutil.copytree(theirs, here)
    laid = path.read_bytes()
    if first == "kept":  # where it was written it is true
        assert read(str(path))[1]
    again = partial(ckptconv.zoo, here / "in", here / "out", verify=True)
    for verb in (again, partial(zoo_plan, here / "in", here / "out")):
        with pytest.raises(StorageError, match=r"not written here.*force=True converts everything again"):
            list(verb(resume=True))
    assert (here / "out" / NAME).read_bytes() == laid
    assert [i.state for i in zoo_plan(here / "in", here / "out", force=True)] == ["convert"]
    assert again(force=True, resume=True).done == 1
    assert ckptconv.open(here / "out" / "m.safetensors")["w"].numpy().tolist() == [1.0] * 4
    assert again(resume=True).skipped == 1


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("given", [False, True])
def test_every_verb_opens_a_ledger_as_ours(kind: str, given: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    source = save(tmp_path / "a.npz")
    path = out / ("mine.jsonl" if given else NAME)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / "other").write_bytes(json.dumps(ENTRY, separators=(",", ":")).encode() + b"\n")
        path.symlink_to(tmp_path / "other")
    where, ledger = (str(path), str(path)) if given else (str(out), "")
    verbs: list[Callable[[], object]] = [
        lambda: ckptconv.zoo(source, out, ledger=ledger), lambda: ckptconv.zoo(source, out, ledger=ledger, resume=True),
        lambda: ckptconv.zoo(source, out, ledger=ledger, force=True),
        lambda: len(zoo_plan(source, out, ledger=ledger, resume=True)),
        lambda: zoo_status(where),
    ]  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    for verb in verbs:
        with pytest.raises(StorageError):
            verb()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("begin", [b"", b'{"at":"a'])
def test_a_ledger_of_a_terabyte_is_not_read(begin: bytes, tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz")
    with open(tmp_path / NAME, "wb") as f:
        f.write(begin)
        f.truncate(2**40)
    with pytest.raises(StorageError, match="holds the results of an earlier run"):
        zoo([str(source)], str(tmp_path))
    with pytest.raises(CkptError, match=f"a line of more than {LONGEST} bytes"):
        zoo([str(source)], str(tmp_path), resume=True)
