"""Servers that go away in the middle of a zoo: the rest fails without a try, and a resumed run takes it up."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit import Run
from line import Line

import ckptconv
from ckptconv import Resources
from ckptconv.bulk import breaker, planning, run
from ckptconv.bulk.conversions import Conversion
from ckptconv.bulk.found import FoundCheckpoint
from ckptconv.bulk.identity import asked, identity
from ckptconv.bulk.ledger import Ledger, LedgerEntry
from ckptconv.bulk.manifest import Settings
from ckptconv.bulk.summary import Summary
from ckptconv.errors import CorruptCheckpoint, StorageError
from ckptconv.storage import lookups
from ckptconv.storage.faults import Unreachable
from ckptconv.storage.paths import host

A, B = "https://a/", "https://b/"
NOT_TRIED = "not tried: a did not answer; when it does, resume=True converts what is missing"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/models/a", ""), ("file:///models/a", ""), ("C:/x", ""), ("https://me:secret@host:80/a?sig=1", "host:80"),
        ("http://host", "host"), ("s3://bucket/a/b", "s3://bucket"), ("hf://org/model@main/a", "hf://"),
        ("zip://a/b.npz::https://host/c.zip", "host"), ("simplecache::https://host/c", "host"),
    ],
)  # fmt: skip
def test_the_server_of_a_url(url: str, name: str) -> None:
    assert host(url) == name


def lost(url: str) -> Unreachable:
    return Unreachable("timed out", url=url + "x")


@pytest.mark.parametrize(
    ("results", "gone"),
    [
        ([lost(A)] * 5, True),
        ([lost(A)] * 4, False),  # two were under way when the first failed: two later ones are not enough
        ([lost(A)] * 4 + [None, lost(A)], False),
        ([lost(A)] * 4 + [lost(B)] * 4 + [lost(A)], True),  # of one server nothing follows for another
        ([lost(B)] * 9, False),
        ([lost(A)] * 4 + [StorageError("access is forbidden", url=A), lost(A)], False),  # which is an answer
        ([lost(A)] * 4 + [CorruptCheckpoint("nonsense", url=A), lost(A)], False),
        ([lost(A)] * 4 + [StorageError("the disk is full", url="/out"), lost(A)], True),
        ([StorageError("the server answered with status 500", url=A)] * 9, False),
        ([lost(A)] * 9 + [None], False),  # one that had been under way for long
    ],
)
def test_when_a_server_is_gone(results: list[Any], gone: bool) -> None:
    counts = breaker.Breaker(2)
    for result in results:
        counts.note(result, A, "/out")
    found = counts.refusal(A + "m", "/out")
    assert (found.message if found else "") == NOT_TRIED * gone
    assert counts.refusal("/in", "/out") is None


def item(at: str, source: str) -> Conversion:
    return Conversion(FoundCheckpoint(source + at, at, ".npz", ()), at, Settings())


def test_the_rest_of_a_server_is_not_tried() -> None:
    todo = [item(f"{n}", A if n % 2 else B) for n in range(40)]
    guard = breaker.Guard(todo, "/out", 1)
    tried = list[str]()

    def results() -> Iterator[tuple[Conversion, Any] | None]:
        for i in guard.pick():
            tried.append(i.at)
            yield i, lost(i.found.source) if i.found.source.startswith(A) else "done"
            yield None

    found = [r for r in guard.watch(results()) if r]
    assert sorted(i.at for i, _ in found) == sorted(i.at for i in todo)
    assert tried == [*map(str, range(9)), *(f"{n}" for n in range(10, 40, 2))]
    assert [r.message for i, r in found if int(i.at) > 8 and int(i.at) % 2] == [NOT_TRIED] * 16


def test_without_the_destination_nothing_is_tried() -> None:
    todo = [item(f"{n}", "/in/") for n in range(20)]
    guard = breaker.Guard(todo, "s3://bucket/out", 1)
    found = list(guard.watch((i, lost("s3://bucket/out/")) for i in guard.pick(lambda i: int(i.at) < 10)))
    assert [r.message.partition(";")[0] for _, r in filter(None, found)][4:] == [  # and the others were not asked for
        "not tried: s3://bucket did not answer"
    ] * 6


def test_each_server_is_a_cause() -> None:
    def entry(at: str, source: str) -> LedgerEntry:
        return LedgerEntry(at, "failed", source, (), "", error="Unreachable", message=f"not tried: {host(source)}")

    urls = ["http://10.0.0.1/a", "http://10.0.0.1/b", "http://10.0.0.2/a"]
    causes = Summary(0, 0, tuple(entry(u, u) for u in urls), 0, 1.0).causes
    assert [(m, len(s)) for _, m, s in causes] == [("not tried: 10.0.0.1", 2), ("not tried: 10.0.0.2", 1)]


# --- real servers -----------------------------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    etag = ""

    def log_message(self, *_: object) -> None:
        pass

    def end_headers(self) -> None:
        if self.etag:
            self.send_header("ETag", self.etag)
        super().end_headers()


Remote = tuple[Line, Callable[..., Path]]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    """A line to a web server, and a function that makes a manifest of so many checkpoints there."""
    pytest.importorskip("aiohttp", reason="the extra http is not installed")
    (tmp_path / "served").mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served"))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    line = Line(server.server_address[1])
    one = ckptconv.save({"w": [1.0]}, tmp_path / "one.npz") and (tmp_path / "one.npz").read_bytes()

    def manifest(count: int, *others: str) -> Path:
        for n in range(count):
            (tmp_path / "served" / f"m{n}.npz").write_bytes(one)
        urls = [*(f"http://127.0.0.1:{line.port}/m{n}.npz" for n in range(count)), *others]
        (tmp_path / "list.jsonl").write_text("\n".join(json.dumps({"source": u}) for u in urls))
        return tmp_path / "list.jsonl"

    yield line, manifest
    line.cut()
    server.shutdown()
    server.server_close()


def converted(line: Line, source: Path, out: Path, cut: int, mend: int = 0) -> Summary:
    """Convert with one worker, whose server goes away after the `cut`-th and comes back after the `mend`-th result."""
    ended = list[int]()

    def progress(done: int, _: int) -> None:
        ended.append(done)
        if len(ended) == cut:
            line.cut()
        if len(ended) == mend:
            line.mend()

    settings = Settings(target=ckptconv.Target(format="safetensors"))
    return run.convert([str(source)], str(out), settings, resources=Resources(jobs=1, progress=progress))


def test_a_server_that_is_killed_and_a_resumed_run(remote: Remote, tmp_path: Path, cli: Run) -> None:
    line, manifest = remote
    source, out = manifest(60), tmp_path / "out"
    first = converted(line, source, out, 20)
    assert 20 <= first.done <= 21
    assert len(first.failed) == 60 - first.done
    messages = [e.message for e in first.failed]
    assert sum(m.startswith("not tried") for m in messages) >= 60 - 20 - 6
    assert {e.state for e in Ledger.read(str(out / run.NAME)).values()} == {"done", "failed"}
    said = str(first).split("\n")
    assert sum(f"not tried: 127.0.0.1:{line.port} did not answer; when it does, resume=True" in s for s in said) == 1
    line.mend()
    again = cli("zoo", source, "-o", out, "--resume", "-j", "1")
    assert again.returncode == 0, again.stderr
    assert f"{60 - first.done} converted, {first.done} up to date, 0 failed" in again.stderr
    assert len(list(out.glob("*.safetensors"))) == 60


def test_a_server_that_comes_back_is_not_given_up(remote: Remote, tmp_path: Path) -> None:
    line, manifest = remote
    done = converted(line, manifest(60), tmp_path / "out", 20, 22)
    assert 1 <= len(done.failed) <= 3
    assert not [e for e in done.failed if e.message.startswith("not tried")]
    assert done.done == 60 - len(done.failed)


def test_rows_of_a_server_that_is_gone_are_not_looked_up(remote: Remote, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:  # nobody listens there once it is closed
        port = door.getsockname()[1]
    _, manifest = remote
    items = planning.plan(
        [str(manifest(9, *(f"http://127.0.0.1:{port}/{n}.npz" for n in range(200))))], str(tmp_path / "out")
    )
    told = [i.found.problem.message for i in items if i.found.problem]
    tried = [m for m in told if m == "the server refuses the connection"]
    assert len(told) == 200
    assert planning.ASKING <= len(tried) <= 2 * planning.ASKING + breaker.BEYOND
    assert sum(m.startswith("not tried") for m in told) == 200 - len(tried)
    assert len(items.in_state("convert")) == 9


def test_what_changed_on_the_web_is_converted_again(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes are the same: the server's ETag or time of change, or the question in the url, tells them apart."""
    line, manifest = remote
    source, out, served = manifest(1), tmp_path / "out", tmp_path / "served" / "m0.npz"

    def lay(tag: str, time: int, query: str) -> None:
        monkeypatch.setattr(Quiet, "etag", tag)
        os.utime(served, (10**9 + time,) * 2)
        source.write_text(json.dumps({"source": f"http://127.0.0.1:{line.port}/m0.npz{query}"}))

    def state() -> str:
        return run.plan([str(source)], str(out), known=run.read_ledger(str(out)))[0].state

    lay('"1"', 0, "?id=1&token=a")
    assert run.convert([str(source)], str(out), resources=Resources(jobs=1)).done == 1
    for tag, time, query, fresh in [
        ('"1"', 0, "?id=1&token=a", "done"),
        ('"1"', 5, "?id=1&X-Amz-Signature=b&Expires=2", "done"),  # from another mirror; signed anew
        ('"2"', 0, "?id=1", "changed"),
        ("", 0, "?id=1", "changed"),
        ('"1"', 0, "?id=2", "changed"),
        ('"1"', 0, "", "changed"),
    ]:
        lay(tag, time, query)
        assert state() == fresh, (tag, time, query)
    lay("", 0, "")
    assert run.convert([str(source)], str(out), resume=True, resources=Resources(jobs=1)).done == 1
    assert state() == "done"
    lay("", 5, "")
    assert state() == "changed"
    hub = (identity(FoundCheckpoint("", "", "", (("m", lookups.stat_of({"size": 1, "blob_id": b})),))) for b in "aab")
    assert len(set(hub)) == 2


def test_secrets_of_a_url_are_not_in_its_hash() -> None:
    """A short one could be guessed from it; what opens no door counts, wherever it stands."""
    plain = {asked(u) for u in ("/a/b", "https://h/x", "https://u:p@h/x", "https://h/x#f?id=1", "https://", "x://?")}
    signed = {asked(f"https://h/x?{s}") for s in ("sig=a&se=3", "X-Amz-Date=1", "Pwd=a", "%73ig=a", "access_key=1")}
    login = {asked(u) for u in ("https://u:p?w@h/x", "https://u:p/a?w@h/x")}
    assert plain | signed | login == {""}
    ways = ["h/x?id=1", "u:hush@h/x?id=1", "u:hu?sh@h/x?id=1", "h/x?id=1&sig=1", "h/x;id=1", "h/x%3Fid=1"]
    assert len({asked(f"https://{w}") for w in ways} | {asked(f"zip://m.npz::https://{w}") for w in ways}) == 1
    assert len({asked(f"https://h/x?{q}") for q in ("", "id=1", "id=2", "id=1&v=2", "design=1", "author=1")}) == 6
    assert asked("s3://b/k?versionId=1") != asked("s3://b/k?versionId=2")
