"""The web as it is: servers that redirect, drip, refuse; urls with secrets; names that would be more than names."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.bulk import run
from ckptconv.errors import CkptError, StorageError, UnsafeCheckpoint
from ckptconv.messages import redacted, scrubbed
from ckptconv.storage import files, paths, web

aiohttp = pytest.importorskip("aiohttp", reason="the extra http is not installed")
Handler = type[http.server.BaseHTTPRequestHandler]
Serve = Callable[[Handler], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(handler: Handler) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Quiet(http.server.BaseHTTPRequestHandler):
    seen: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.do_GET()


def holding(files: dict[str, bytes]) -> type[Quiet]:
    """A server of some files, by path, that writes down what it is asked for."""

    class Holding(Quiet):
        seen: ClassVar[list[str]] = []

        def do_GET(self) -> None:
            self.seen.append(self.path)
            raw = files.get(unquote(self.path.split("?")[0]))
            if raw is None:
                self.answer(404)
            elif wanted := self.headers.get("Range"):
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                part = raw[first : last + 1]
                self.answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(raw)}")
            else:
                self.answer(200, raw)

    return Holding


def redirecting(target: str) -> type[Quiet]:
    class Redirecting(Quiet):
        def do_GET(self) -> None:
            self.answer(302, Location=target + self.path)

    return Redirecting


@pytest.fixture
def npz(tmp_path: Path) -> bytes:
    ckptconv.save({"w": np.arange(3.0)}, tmp_path / "src.npz")
    return (tmp_path / "src.npz").read_bytes()


def test_a_redirect_stays_with_the_host_that_was_named(
    serve: Serve, npz: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = holding({"/m.npz": npz})
    at = serve(kept)
    elsewhere = at.replace("127.0.0.1", "localhost")
    assert list(ckptconv.open(f"http://{serve(redirecting(f'http://{at}'))}/m.npz")) == ["w"]
    kept.seen.clear()
    with pytest.raises(StorageError, match="redirects to http://localhost, another host"):
        ckptconv.open(f"http://{serve(redirecting(f'http://{elsewhere}'))}/m.npz")
    assert kept.seen == []
    monkeypatch.setenv("CKPTCONV_REDIRECTS", "example.org, localhost")
    assert list(ckptconv.open(f"http://{serve(redirecting(f'http://{elsewhere}'))}/m.npz")) == ["w"]


@pytest.mark.parametrize(
    ("source", "target", "follows"),
    [
        ("a.org", "a.org", True), ("a.org", "b.org", False), ("a.org", "x.a.org", False),
        ("huggingface.co", "cas-bridge.xethub.hf.co", True), ("huggingface.co", "evil-hf.co", False),
        ("github.com", "release-assets.githubusercontent.com", True),
    ],
)  # fmt: skip
def test_where_redirects_may_lead(source: str, target: str, follows: bool) -> None:
    assert web.may_lead(source, target, True) is follows
    assert not web.may_lead(source, target, False)


class Dripping(Quiet):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        try:
            while self.command != "HEAD":
                self.wfile.write(b"x")
                time.sleep(0.2)
        except OSError:
            pass


class Silent(Quiet):
    def do_GET(self) -> None:
        time.sleep(30)


@pytest.mark.slow
@pytest.mark.parametrize("handler", [Dripping, Silent])
def test_a_server_that_drips_or_is_silent_ends(handler: Handler, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    monkeypatch.setattr(web, "RATE", 10**9)
    with pytest.raises(StorageError, match="timed out"):
        ckptconv.open(f"http://{serve(handler)}/m.npz")


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "wants a login"), (403, "forbidden"), (404, "no such file"), (429, "too many"), (500, "status 500")],
)
def test_what_a_server_says_is_said(status: int, says: str, serve: Serve) -> None:
    class Saying(Quiet):
        def do_GET(self) -> None:
            self.answer(status)

    with pytest.raises(CkptError, match=says):
        ckptconv.open(f"http://{serve(Saying)}/m.npz")


def test_no_server_and_no_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(StorageError, match="refuses the connection"):
        ckptconv.open(f"http://127.0.0.1:{port}/m.npz")
    with pytest.raises(StorageError, match="the host is unknown"):
        ckptconv.open("http://no-such-host.invalid/m.npz")


@pytest.mark.parametrize(
    "url",
    [
        "reference://x", "reference://", "ftp://127.0.0.1:1/m.npz", "zip://m.npz::missing.zip", "nonsense://x",
        "zip://::", "http://", "http://[", "github://a", "file::reference://x",
    ],
)  # fmt: skip
def test_no_url_gives_a_traceback(url: str) -> None:
    with pytest.raises(CkptError):
        ckptconv.open(url)


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x?a=1", "x#y", "..%2fsecret", "%2e%2e%2fsecret", "x%00", "secret?", "secret#"])
def test_a_name_in_an_index_is_a_name(name: str, serve: Serve) -> None:
    """It reaches the file that is called so, and nothing else that the server has."""
    index = json.dumps({"metadata": {}, "weight_map": {"w": name}}).encode()
    server = holding({"/d/model.safetensors.index.json": index, "/secret": b"hush", "/d/secret": b"hush"})
    with pytest.raises(CkptError):
        ckptconv.open(f"http://{serve(server)}/d/model.safetensors.index.json")
    asked = {path for path in server.seen if "index" not in path}
    assert all(unquote(path) == f"/d/{name}" for path in asked), asked
    for folder in ("s3://b/d", "memory://d", "zip://d::http://h/a.zip"):
        if "?" in name or "#" in name:
            with pytest.raises(UnsafeCheckpoint):
                paths.sibling(f"{folder}/index.json", name)
    with pytest.raises(UnsafeCheckpoint):
        paths.sibling("memory://d/index.json", "x::http:")


@pytest.mark.parametrize(
    ("url", "folder", "base", "beside"),
    [
        ("memory://m.npz", "memory://", "m.npz", "memory://n"),
        ("s3://b/k/m.npz", "s3://b/k", "m.npz", "s3://b/k/n"),
        ("https://h/d/i.json?sig=a/b", "https://h/d", "i.json?sig=a/b", "https://h/d/n"),
        ("zip://d/m::http://h/a.zip", "zip://d::http://h/a.zip", "m", "zip://d/n::http://h/a.zip"),
        ("zip://m::http://h/a.zip", "zip://::http://h/a.zip", "m", "zip://n::http://h/a.zip"),
    ],
)
def test_what_lies_beside_a_url(url: str, folder: str, base: str, beside: str) -> None:
    """Of a chain it is another member of the archive, not another file of the host."""
    assert files.split(url) == (folder, base)
    assert files.join(folder, base) == url
    assert files.sibling(url, "n") == beside


# --- secrets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:hush@h:80/a/b?sig=hush", "http://h:80/a/b?..."),
        ("HTTPS://u:hu/sh@h/x", "HTTPS://h/x"),
        ("https://u:hu?sh@h/x", "https://h/x"),
        ("https://h/x#token=hush", "https://h/x"),
        ("zip://w.npy::http://u:hush@h/x.zip?s=hush", "zip://w.npy::http://h/x.zip?..."),
        ("simplecache::s3://k:hush@b/a?b", "simplecache::s3://b/a?b"),
        ("abfs://acc/x?sv=1&sig=hush", "abfs://acc/x?..."),
        ("a/b::c?d", "a/b::c?d"),
        ("https://h/p@q/x", "https://h/p@q/x"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert redacted(url) == redacted(redacted(url)) == shown
    assert "hush" not in str(StorageError(f"refused {url} just now", url=url))
    assert scrubbed(f"GET '{url}' failed") == f"GET '{shown}' failed" or "://" not in url


@pytest.mark.slow
def test_secrets_reach_no_output(serve: Serve, npz: bytes, tmp_path: Path, cli: Run) -> None:
    host = serve(holding({"/d/m.npz": npz}))
    url = f"http://me:hush@{host}/d/m.npz?X-Sig=hush"
    out = tmp_path / "work"
    out.mkdir()
    chained = f"zip://w.npy::{url}"
    said = [
        cli("inspect", url, "--json"),
        cli("inspect", url),
        cli("inspect", chained, "--json"),
        cli("inspect", f"zip://absent.npy::{url}"),
        cli("report", url, "-o", out / "r.html"),
        cli("convert", url, "-o", out / "m.safetensors", "--json"),
        cli("diff", url, out / "m.safetensors", "--json"),
        cli("zoo", url, "-o", out / "zoo", "--json"),
        cli("zoo", url, "-o", out / "zoo2", "--dry-run", "--json"),
    ]
    for done in said:
        assert "hush" not in done.stdout + done.stderr, done.args
    for path in out.rglob("*"):
        assert "hush" not in path.name
        assert not path.is_file() or b"hush" not in path.read_bytes(), path
    assert (out / "zoo" / "m.safetensors").exists()
    assert all("hush" not in e.line().decode() for e in run.read_ledger(str(out / "zoo")).values())
