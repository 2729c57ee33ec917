"""The parts of a zoo without its processes: the pool's bookkeeping, batches, folders, the ledger, the summary."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptconv
from ckptconv import zoo
from ckptconv.api import Options
from ckptconv.bulk import planning, pool, run, summary, work
from ckptconv.bulk.discover import FoundCheckpoint, _matches, discover
from ckptconv.bulk.ledger import Ledger, LedgerEntry, read
from ckptconv.bulk.planning import Conversion, ZooOptions
from ckptconv.bulk.run import zoo_plan
from ckptconv.errors import CkptError, CorruptCheckpoint, StorageError, UsageError
from ckptconv.storage.lookups import Stat

# --- the pool, with workers that are no processes ---------------------------------------------------------------------


class Process:
    """A process that ends when it is told to, or not before it is killed."""

    def __init__(self, exitcode: int | None = None, stubborn: bool = False) -> None:
        self.exitcode, self.stubborn, self.said = exitcode, stubborn, list[str]()
        self.alive = exitcode is None

    def join(self, seconds: float | None = None) -> None:
        self.said.append(f"join {seconds}")

    def is_alive(self) -> bool:
        return self.alive

    def terminate(self) -> None:
        self.said.append("terminate")
        self.alive = self.stubborn

    def kill(self) -> None:
        self.said.append("kill")
        self.alive = False


class Pipe:
    """The parent's end of a pipe; `dead` names the calls that find the process gone."""

    def __init__(self, *dead: str) -> None:
        self.dead, self.closed, self.sent = dead, False, list[Any]()

    def send(self, task: Any) -> None:
        if "send" in self.dead:
            raise BrokenPipeError
        self.sent.append(task)

    def recv(self) -> Any:
        if "recv" in self.dead:
            raise EOFError
        return self.sent.pop()

    def close(self) -> None:
        self.closed = True


def worker(process: Process, pipe: Pipe) -> Any:
    made = object.__new__(pool._Worker)
    made.pipe, made._process = pipe, process  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("code", "said"),
    [(-9, "by signal SIGKILL"), (-15, "by signal SIGTERM"), (1, "with status 1"), (0, "with status 0")],
)
def test_how_a_worker_ended_is_said(code: int, said: str) -> None:
    process, pipe = Process(code), Pipe("recv")
    found = worker(process, pipe).result()
    assert type(found) is pool.WorkerDied
    assert found.message == f"the worker process ended {said} during this conversion (out of memory?)"
    assert process.said == ["join 5"]
    assert pipe.closed


def test_a_worker_that_is_gone_takes_no_task() -> None:
    process, pipe = Process(), Pipe("send")
    assert worker(process, pipe).give("task") is False
    assert pipe.closed
    assert process.said == ["terminate", "join 5"]
    assert worker(Process(), whole := Pipe()).give("task") is True
    assert whole.sent == ["task"]


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (Process(0), []),
        (Process(), ["terminate", "join 5"]),
        (Process(stubborn=True), ["terminate", "join 5", "kill", "join None"]),
    ],
)
def test_a_worker_is_asked_before_it_is_killed(process: Process, said: list[str]) -> None:
    pipe = Pipe()
    worker(process, pipe).kill()
    assert process.said == said
    assert pipe.closed


def test_a_script_is_hidden_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "script.py", raising=False)
    monkeypatch.setattr(main, "__spec__", "a spec", raising=False)
    with pool._main_hidden():
        assert not hasattr(main, "__file__")
        assert main.__spec__ is None
    assert (main.__file__, main.__spec__) == ("script.py", "a spec")


def test_what_a_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the environment of now, leaves interrupts to its parent, and goes on after an error of ours."""
    handlers: dict[int, Any] = {}
    started: list[bool | None] = []
    environment: dict[str, str] = {"OLD": "1"}

    class Thread:
        def __init__(self, target: Any, daemon: bool | None = None) -> None:
            assert target is pool._watch
            self.start = lambda: started.append(daemon)

    monkeypatch.setattr(pool.os, "environ", environment)
    monkeypatch.setattr(pool.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(pool.threading, "Thread", Thread)
    answers: list[Any] = []

    class Theirs:
        tasks: Iterator[Any] = iter([4, 0])

        def recv(self) -> Any:
            for task in self.tasks:
                return task
            raise EOFError

        send = answers.append

    def do(n: int) -> float:
        if not n:
            raise CkptError("none")
        return 1 / n

    pool._serve(Theirs(), do, {"NEW": "2"})  # type: ignore[arg-type]
    assert environment == {"NEW": "2"}
    assert answers[0] == 0.25
    assert str(answers[1]) == "none"
    assert len(answers) == 2
    assert started == [True]
    assert handlers.pop(signal.SIGTERM) is pool._leave
    assert handlers == {n: signal.SIG_IGN for s in ("SIGINT", "SIGHUP") if (n := getattr(signal, s, None))}
    with pytest.raises(SystemExit) as left:
        pool._leave(15, None)
    assert left.value.code == 1


def test_a_worker_without_a_parent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(BaseException):
        pass

    def leave(code: int) -> None:
        raise Gone(code)

    class Parent:
        sentinel = 7

    waited: list[Any] = []
    monkeypatch.setattr(pool.os, "_exit", leave)
    monkeypatch.setattr(pool, "wait", waited.append)
    pool._watch()  # the first process has no parent
    assert not waited
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: Parent)
    with pytest.raises(Gone) as gone:
        pool._watch()
    assert gone.value.args == (1,)
    assert waited == [[7]]


# --- what a run does with results -------------------------------------------------------------------------------------


def item(at: str, size: int = 0, **more: Any) -> Conversion:
    files = ((f"/in/{at}", Stat(size, 5)),) if size else ()
    found = FoundCheckpoint(f"/in/{at}", at, ".npz", files, more.pop("problem", None))
    return Conversion(found, at, Options(), **more)


def test_results_are_collected_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.4, 0.9, 1.0, 1.2, 5.0, 5.1, 5.2])
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock))
    shown: list[tuple[int, int]] = []
    many = [item(f"{n}", n) for n in range(1, 6)]
    lost = UsageError("no")
    results = (r for r in [(many[0], lost), None, (many[1], lost), None, (many[2], lost), (many[3], lost)])
    options = ZooOptions(resources=Options(progress=lambda *n: shown.append(n)))
    batches = run._batches(results, options, many)
    assert [[e.at for e in batch] for batch in batches] == [["1", "2"], ["3"], ["4"]]
    assert shown == [(1, 15), (3, 15), (6, 15), (10, 15)]


MIB = 2**20


@pytest.mark.parametrize(
    ("tasks", "workers", "memory", "wanted"),
    [
        (8, 4, 1024 * MIB, (4, 256 * MIB, 1)),
        (2, 8, 1024 * MIB, (2, 512 * MIB, 4)),  # idle workers lend their threads
        (3, 8, 1024 * MIB, (3, 1024 * MIB // 3, 2)),
        (8, 8, 48 * MIB, (3, 16 * MIB, 2)),  # memory for three
        (8, 8, MIB, (1, 16 * MIB, 8)),
        (1, 1, 64 * MIB, (1, 64 * MIB, 1)),
    ],
)
def test_workers_share_the_memory(
    tasks: int, workers: int, memory: int, wanted: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        run.pool, "run", lambda do, todo, count, patience: asked.append((do, todo, count, patience)) or []
    )
    todo = [item(str(n)) for n in range(tasks)]
    list(
        run._results(
            todo, "/out", ZooOptions(resources=Options(max_memory=memory, jobs=workers), by_content=True), "/l"
        )
    )
    ((do, given, count, patience),) = asked
    config = do.args[0]
    assert (count, config.memory, config.threads) == wanted
    assert ([*given], patience, config.folder, config.hashed) == (todo, 1.0, "/out", True)
    assert config.sync is not hasattr(os, "sync")


def test_large_ones_are_seen_to_beside_tasks_and_stop_with_them() -> None:
    started, stopped = threading.Event(), threading.Event()

    def convert(one: Conversion, progress: Any) -> str:
        if one.destination == "slow":
            started.set()
            try:
                while True:
                    progress(0, 1)
            except CkptError:
                stopped.set()
        return f"large {one.destination}"

    small, large = [item("a", 9), item("b", 1)], [item("l", 10), item("slow", 11)]
    results = work._beside(iter([(i, "small") for i in small]), convert, iter(large))
    found = [next(results) for _ in range(3)]
    assert sorted((i.destination, what) for i, what in found) == [("a", "small"), ("b", "small"), ("l", "large l")]
    assert started.wait(30)
    results.close()
    assert stopped.is_set()


def test_a_failure_on_a_worker_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error, which would repeat the other checkpoints of its pack."""

    def convert(_: object, i: Conversion, *beside: object) -> str:
        if i.destination == "b":
            raise StorageError("no such file", url="b")
        return f"{i.destination} done"

    monkeypatch.setattr(work, "work", convert)
    config = work.WorkerConfig("/out", 0, 1, False, True)
    assert [str(work._one(config, item(at))) for at in "abc"] == ["a done", "b: no such file", "c done"]


def test_a_large_one_has_all_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []

    def convert(*_: Any, jobs: int, **__: Any) -> Any:
        seen.append(jobs)
        raise UsageError("no")

    monkeypatch.setattr(work.api, "convert", convert)
    for size in (work.LARGE - 1, work.LARGE):
        monkeypatch.setattr(work.files, "stat", dict(item("a", size).found.files).get)
        with pytest.raises(UsageError):
            work.work(work.WorkerConfig(str(tmp_path), 2**24, 1, False, True, 7), item("a", size))
    assert seen == [1, 7]


@pytest.mark.parametrize(("state", "settled"), [("done", 1), ("failed", 0)])
def test_the_ledger_follows_the_outputs(
    state: Any, settled: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(run.os, "sync", lambda: order.append("sync"), raising=False)
    with Ledger(str(tmp_path / "l"), resume=False) as book:
        append = book.append
        monkeypatch.setattr(book, "append", lambda e: order.append("append") or append(e))
        entries = [LedgerEntry(a, state, "", (), "") for a in "xy"]
        run._record(book, entries, str(tmp_path), lambda e: order.append(e.at))
        assert order == ["sync"] * settled + ["append", "x", "y"]
        order.clear()
        run._record(book, entries, "s3://bucket/out", None)  # what is there is durable
        assert order == ["append"]


@pytest.mark.parametrize("remote", ["s3://bucket/out", "gs://bucket/out"])
def test_a_remote_folder_needs_a_ledger_here(remote: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs ledger=FILE on this machine: object stores cannot append"):
        zoo([str(tmp_path)], remote)


# --- the ledger -------------------------------------------------------------------------------------------------------


def head(number: int) -> bytes:
    return b'{"at":"","file":%d}\n' % number


ENTRY = LedgerEntry(
    "a/m.npz", "done", "/in/a", (("a", 3, 4),), "5f", True, "h", "npz", 2, 9, 0.5, (("a/m.npz", 9, 0),), "p"
)


def test_a_line_of_the_ledger() -> None:
    assert LedgerEntry("a", "planned", "s", (), "o").line() == (
        b'{"at":"a","state":"planned","source":"s","files":[],"options":"o"}\n'
    )
    assert LedgerEntry("\u00e9\n", "planned", "", (), "").line().isascii()


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 40])
def test_a_torn_line_is_dropped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.touch()
    first = head(path.stat().st_ino)
    path.write_bytes(first + ENTRY.line() + ENTRY._replace(at="b").line()[:cut])
    with Ledger(str(path), resume=True) as book:
        assert book.entries == {ENTRY.at: ENTRY}
        book.append([])
        book.append(iter([ENTRY._replace(at="c"), ENTRY._replace(state="failed")]))
        assert {k: e.state for k, e in book.entries.items()} == {ENTRY.at: "failed", "c": "done"}
    assert path.read_bytes().count(b"\n") == 4
    assert read(str(path))[0] == {ENTRY.at: ENTRY._replace(state="failed"), "c": ENTRY._replace(at="c")}
    for torn in (first[:cut], first + ENTRY.line()[:cut]):
        path.write_bytes(torn)
        with Ledger(str(path), resume=bool(torn)) as book:
            book.append([ENTRY])
        assert path.read_bytes() == first + ENTRY.line()
        assert read(str(path))[1]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (ENTRY.line() + b"stranger", "the last line of the ledger is damaged"),
        (ENTRY.line() + b'{"at":x', "the last line of the ledger is damaged"),
        (ENTRY.line() + b"{}\n", "line 2 of the ledger is damaged"),
        (b"[]\n" + ENTRY.line(), "line 1 of the ledger is damaged"),
        (b'{"at":3}\n' + ENTRY.line(), "line 1 of the ledger is damaged"),
        (b"[" * 10**5 + b"\n", "line 1 of the ledger is damaged"),
    ],
)
def test_a_damaged_ledger_is_refused_and_let_go(raw: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(raw)
    with pytest.raises(CorruptCheckpoint, match=words):
        Ledger(str(path), resume=True)
    assert path.read_bytes() == raw
    path.write_bytes(b"")
    Ledger(str(path), resume=False).close()  # nobody holds the lock


@pytest.mark.parametrize(
    ("was", "is_"),
    [
        (b"files", b"fuels"),
        (b'["a",3,4]', b'["a",3]'),
        (b'"done"', b"3"),
        (b'"}', b""),
        (b'"done",', b'"done","at":"b",'),
    ],
)
def test_a_damaged_line_is_refused_where_it_counts(was: bytes, is_: bytes, tmp_path: Path) -> None:
    """Of each output only the last line counts."""
    path = tmp_path / "ledger"
    path.write_bytes(ENTRY._replace(at="c").line() * 5000 + ENTRY.line().replace(was, is_))
    with pytest.raises(CorruptCheckpoint, match="line 5001 of the ledger is damaged"):
        read(str(path))
    path.write_bytes(path.read_bytes() + ENTRY.line() + ENTRY._replace(at="b").line())
    assert set(read(str(path))[0].values()) == {ENTRY._replace(at=at) for at in ("a/m.npz", "b", "c")}


@pytest.mark.parametrize("at", ["a", "\u00e9/\udcff", 'quo"te', "back\\slash", "line\nbreak", "x" * 10**5])
def test_every_name_has_its_line(at: str, tmp_path: Path) -> None:
    entry = ENTRY._replace(at=at, source=at * 3)
    with Ledger(str(tmp_path / "ledger"), resume=False) as book:
        book.append([ENTRY, entry, ENTRY._replace(state="failed")])
        assert book.entries[at] == entry
        assert "none" not in book.entries
    assert read(str(tmp_path / "ledger"))[0] == {at: entry, ENTRY.at: ENTRY._replace(state="failed")}


# --- plans and summaries ----------------------------------------------------------------------------------------------


def test_no_source() -> None:
    with pytest.raises(UsageError, match="no source was given"):
        zoo_plan([], "/out")


def test_a_hash_depends_on_bytes_and_sizes(tmp_path: Path) -> None:
    def hashed(*contents: bytes) -> str:
        for k, raw in enumerate(contents):
            (tmp_path / str(k)).write_bytes(raw)
        return planning.hash_of(str(tmp_path), map(str, range(len(contents))))

    big = os.urandom(2**22) * 2 + b"end"
    different = [
        hashed(),
        hashed(b""),
        hashed(b"ab"),
        hashed(b"a", b"b"),
        hashed(b"", b"ab"),
        hashed(big),
        hashed(big[:-1]),
    ]
    different += [hashed(big[:-1] + b"x"), hashed(b"x" + big[1:])]
    assert len(set(different)) == len(different)
    assert all(len(h) == 32 for h in different)
    assert hashed(b"a", b"b") == different[3]


@pytest.mark.parametrize(("causes", "more"), [(20, None), (21, "failed: 1 more causes"), (25, "failed: 5 more causes")])
def test_the_summary_shows_twenty_causes(causes: int, more: str | None) -> None:
    letters = ["".join(p) for p in itertools.islice(itertools.product("abcde", repeat=3), causes)]
    failed = tuple(LedgerEntry("", "failed", t, (), "", message=t) for t in letters)
    text = str(summary.Summary(4, 2, failed, 3000, 2.0))
    assert text.count("failed: 1 checkpoint: ") == 20
    assert ("more causes" in text) is bool(more)
    assert (more or "") in text
    assert "warning" not in text
    assert text.endswith(f"4 converted, 2 up to date, {causes} failed; 3.0 kB in 2.0 s (2 per second)")


@pytest.mark.parametrize(("done", "skipped", "warned"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_nothing_found_is_a_warning(done: int, skipped: int, warned: bool) -> None:
    text = str(summary.Summary(done, skipped, (), 0, 0.0))
    assert ("warning: no checkpoint was found" in text) is warned
    assert summary.Summary(done, skipped, (), 5, 1.23456).to_json() == {
        "done": done, "up_to_date": skipped, "failed": 0, "bytes": 5, "seconds": 1.235, "causes": [], "damaged": 0,
        "remarks": [],
    }  # fmt: skip


@pytest.mark.parametrize(("verify", "hashed"), [("full", False), ("none", True)])
def test_what_a_worker_reports(verify: Any, hashed: bool, tmp_path: Path) -> None:
    ckptconv.save({"a": [1.0, 2.0]}, tmp_path / "m.npz")
    raw = (tmp_path / "m.npz").read_bytes()
    os.utime(tmp_path / "m.npz", ns=(1, 1))
    found = FoundCheckpoint(str(tmp_path / "m.npz"), "m", ".npz", ((str(tmp_path / "m.npz"), Stat(len(raw), 1)),), None)
    (tmp_path / "out" / "sub").mkdir(parents=True)
    for at, names in (("sub/m.safetensors", "sub/m.safetensors"), ("n.safetensors", "n.safetensors")):
        todo = Conversion(found, at, Options(verify=verify))
        done = work.work(work.WorkerConfig(f"{tmp_path}/out/", 2**24, 1, hashed, True), todo)
        made = (tmp_path / "out" / at).stat()
        assert done.written == ((names, made.st_size, made.st_mtime_ns),)
        assert (done.format, done.tensors) == ("npz", 1)
        assert done.hash == (planning.content_hash(found) if hashed else "")
        assert done.proof == (planning.hash_of(f"{tmp_path}/out", [at]) if verify == "full" else "")
        assert 0 <= done.seconds < 60


@pytest.mark.parametrize(
    ("pattern", "want"),
    [
        ("a/x.pt", ["a/x.pt"]), ("a//x.pt", ["a/x.pt"]), ("a/", ["a"]), ("no", []), ("a/no", []), ("x.pt/y", []),
        ("*", ["a", "b", "x.pt"]), (".*", [".h"]), ("*.pt", ["x.pt"]), ("a/*", ["a/c", "a/x.pt", "a/z"]),
        ("*/*.pt", ["a/x.pt"]), ("[ab]/?.pt", ["a/x.pt"]), ("a/.h/*", ["a/.h/i.pt"]),
        ("**/x.pt", ["a/c/x.pt", "a/x.pt", "x.pt"]), ("**/**/x.pt", ["a/c/x.pt", "a/x.pt", "x.pt"]),
        ("a/**/x.pt", ["a/c/x.pt", "a/x.pt"]), ("a/**", ["a/c", "a/x.pt"]),
        ("**", ["a", "b", "x.pt"]), ("**/c/*", ["a/c/x.pt"]),
    ],
)  # fmt: skip
def test_globs_are_those_of_a_shell(
    pattern: str, want: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x.pt", ".h", "a/x.pt", "a/c/x.pt", "a/.h/i.pt", "b/.j"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "a" / "z").symlink_to(tmp_path / "b", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    assert _matches(pattern, False) == want
    absolute = _matches(f"{tmp_path}/{pattern}", False)
    assert [p.removeprefix(f"{tmp_path}/") for p in absolute if p != str(tmp_path)] == want


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["."], ["y"]), ([".."], ["one/x", "sub/y"]), ([".", "../one"], ["one/x", "y"]), (["../one"], ["x"]),
        (["../one/", "../sub//"], ["one/x", "sub/y"]), (["..", "../one/x.npz"], ["sub/y", "x"]),
            (["../one", "y.npz"], ["one/x", "y"]),
    ],
)  # fmt: skip
def test_folders_that_are_named_by_dots_have_no_name(
    sources: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several folders each has its own name before its checkpoints; `.` and `..` name none."""
    for name in ("one/x.npz", "sub/y.npz"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"PK")
    monkeypatch.chdir(tmp_path / "sub")
    assert [f.name for f in discover(sources)] == names


def test_links_to_folders_are_followed_when_asked_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.pt").write_text("")
    (tmp_path / "b").symlink_to("a", target_is_directory=True)
    (tmp_path / "a" / "up").symlink_to("..", target_is_directory=True)
    outside = tmp_path / "a" / "far"
    outside.mkdir()
    (outside / "y.pt").write_text("")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "far").symlink_to(outside, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    assert _matches("**/*.pt", True) == ["a/far/y.pt", "a/x.pt"]
    assert _matches("c/**/*.pt", True) == ["c/far/y.pt"]
    assert _matches("c/**/*.pt", False) == []
    assert _matches("b/*.pt", False) == ["b/x.pt"]
