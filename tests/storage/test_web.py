"""The web as it is: servers that redirect, drip, refuse; urls with secrets; names that would be more than names."""

from __future__ import annotations

import gzip
import http.server
import json
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.api import Options
from ckptconv.bulk import discover
from ckptconv.bulk.planning import read_ledger
from ckptconv.errors import CkptError, CorruptCheckpoint, StorageError, UnsafeCheckpoint
from ckptconv.messages import redacted, scrubbed
from ckptconv.reporting.serve import Offered, Shelf
from ckptconv.storage import faults, files, lookups, paths, remote, web

pytest.importorskip("urllib3", reason="the extra http is not installed")
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


@pytest.mark.parametrize("name", ["my%20model", "my model", "50%25", "a%2Bb+c", "%c3%a9t%C3%A9", "\u00e9t\u00e9"])
def test_the_files_of_a_bundle_are_asked_for_by_one_name(name: str, serve: Serve, tmp_path: Path) -> None:
    """A url may have escapes, which the names of its data files must not get a second time."""
    ckptconv.save({"w": np.arange(3.0)}, tmp_path / "m.ckpt")
    files = {f"/{unquote(name)}{p.name.removeprefix('m')}": p.read_bytes() for p in tmp_path.glob("m.ckpt.*")}
    host = serve(holding(files))
    for typed in (f"{name}.ckpt.index", f"{name}.ckpt"):
        assert ckptconv.open(f"http://{host}/{typed}")["w"].numpy().tolist() == [0, 1, 2]


def test_a_redirect_stays_with_the_host_that_was_named(
    serve: Serve, npz: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with its port: another service of this machine answers only to this machine."""
    kept = holding({"/m.npz": npz})
    at = serve(kept)
    elsewhere = at.replace("127.0.0.1", "localhost")
    for target, where in ((at, at), (elsewhere, "localhost")):
        with pytest.raises(StorageError, match=f"redirects to http://{where}, another host"):
            ckptconv.open(f"http://{serve(redirecting(f'http://{target}'))}/m.npz")
    assert kept.seen == []
    monkeypatch.setenv("CKPTCONV_REDIRECTS", "example.org, localhost")
    assert list(ckptconv.open(f"http://{serve(redirecting(f'http://{elsewhere}'))}/m.npz")) == ["w"]


def test_a_redirect_on_the_same_server_is_followed(serve: Serve, npz: bytes) -> None:
    there = holding({"/new/m.npz": npz})

    class Moved(Quiet):
        seen: ClassVar[list[str]] = []

        def do_GET(self) -> None:
            if self.path.startswith("/new/"):
                there.do_GET(self)  # type: ignore[arg-type]
            else:
                self.answer(302, Location="/new" + self.path)

    assert list(ckptconv.open(f"http://{serve(Moved)}/m.npz")) == ["w"]


@pytest.mark.parametrize("login", ["me:hush", "me", ":hush"])
def test_a_redirect_brings_no_login(login: str, serve: Serve) -> None:
    """On the same server, too: the request would be sent as somebody whom a stranger chose."""

    class Redirecting(Quiet):
        seen: ClassVar[list[str]] = []

        def do_GET(self) -> None:
            self.seen.append(self.path)
            self.answer(302, Location=f"http://{login}@{self.headers['Host']}/x")

    with pytest.raises(StorageError, match="redirects to an address with a login that you did not give") as refused:
        ckptconv.open(f"http://{serve(Redirecting)}/m.npz")
    assert "/x" not in Redirecting.seen
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd", "ftp://{}/x", "ws://{}/x", "data:,x", "javascript:1", "http://[", "http://{}9999/x",
        "//localhost:{port}/x", "http://169.254.169.254/x", "http://[::1]:{port}/x", "http://127.1:{port}/x",
        "http://2130706433:{port}/x", "http://0x7f.1:{port}/x", "http://127.0.0.1.:{port}/x", "http://me:hush@{}/x",
        "HTTP://LOCALHOST:{port}/x", "http://{}@localhost:{port}/x", "http://localhost:{port}#@{}/x",
    ],
)  # fmt: skip
def test_no_redirect_leads_elsewhere(target: str, serve: Serve, npz: bytes) -> None:
    kept = holding({"/x": npz})
    at = serve(kept)

    class Redirecting(Quiet):
        def do_GET(self) -> None:
            self.answer(302, Location=target.format(at, port=at.partition(":")[2]))

    with pytest.raises(StorageError, match="the server redirects to") as refused:
        ckptconv.open(f"http://{serve(Redirecting)}/m.npz")
    assert kept.seen == []
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "target", "follows"),
    [
        ("https://a.org", "https://a.org", True), ("https://a.org", "https://b.org", False),
        ("https://a.org", "https://x.a.org", False), ("https://a.org", "http://a.org", False),
        ("http://a.org", "https://a.org:443", True), ("http://a.org", "http://a.org:8080", False),
        ("http://a.org:80", "http://a.org", True), ("https://a.org", "https://a.org:80", False),
        ("http://a.org", "ftp://a.org", False), ("https://a.org:8443", "https://a.org:8443", True),
        ("https://huggingface.co", "https://cas-bridge.xethub.hf.co", True),
        ("https://huggingface.co", "https://cas-bridge.xethub.hf.co:8443", False),
        ("https://huggingface.co", "https://evil-hf.co", False),
        ("https://github.com", "https://release-assets.githubusercontent.com", True),
    ],
)  # fmt: skip
def test_where_redirects_may_lead(source: str, target: str, follows: bool) -> None:
    assert web.may_lead(f"{source}/x", f"{target}/y") is follows


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


class DrippingRanges(Quiet):
    """Knows ranges, unlike the one before, and sends them to the end, which is late."""

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        if self.command == "HEAD" or not wanted:
            self.answer(200, bytes(100_000), Accept_Ranges="bytes")
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/100000")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        try:
            for _ in range(30):
                self.wfile.write(b"x")
                time.sleep(0.2)
        except OSError:
            pass


class Silent(Quiet):
    def do_GET(self) -> None:
        time.sleep(30)


class Continuing(Quiet):
    def do_GET(self) -> None:
        try:
            while True:
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
        except OSError:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("handler", [Dripping, DrippingRanges, Silent, Continuing])
def test_a_server_that_drips_or_is_silent_ends(handler: Handler, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    monkeypatch.setattr(web, "RATE", 10**9)
    with pytest.raises(StorageError, match="timed out"):
        ckptconv.open(f"http://{serve(handler)}/m.npz")


class Claiming(Quiet):
    """Without ranges; it says a size that would take hours, sends a little and then nothing, or a byte at a time."""

    claimed, drips = 10**9, False

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(self.claimed))
        self.end_headers()
        try:
            while self.command != "HEAD":
                self.wfile.write(b"x" * (1 if self.drips else 1000))
                time.sleep(0.2 if self.drips else 30)
        except OSError:
            pass


class ClaimingAndDripping(Claiming):
    drips = True


@pytest.mark.parametrize("handler", [Claiming, ClaimingAndDripping])
def test_a_size_that_a_server_claims_gives_it_no_time(
    handler: Handler, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    monkeypatch.setattr(web, "TRIES", 1)
    began = time.monotonic()
    with pytest.raises(StorageError, match="timed out"):
        ckptconv.open(f"http://{serve(handler)}/m.safetensors")
    assert time.monotonic() - began < 30


class Versions(Quiet):
    """Tells the version of its file only in answers that have its bytes; with ranges or without."""

    ranged, head = False, ""
    version, files = 0, list[bytes]()

    def do_GET(self) -> None:
        raw = self.files[self.version]
        if self.command == "HEAD":
            self.answer(200, raw, **({"ETag": self.head} if self.head else {}))
            return
        wanted = self.headers.get("Range") if self.ranged else None
        if not wanted:
            with suppress(BrokenPipeError):  # who asked for the version only
                self.answer(200, raw, ETag=f"v{self.version}")
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        part = raw[first : last + 1]
        self.answer(
            206, part, ETag=f"v{self.version}", Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(raw)}"
        )


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("head", ["", "v0"])
def test_a_version_that_only_answers_tell(
    ranged: bool, head: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of one file was read, and the values of the one that had come in its place."""
    made = []
    for k in range(2):
        ckptconv.save({"w": np.full(200_000, k, "f4")}, tmp_path / f"{k}.safetensors", hash=False)
        made.append((tmp_path / f"{k}.safetensors").read_bytes())
    monkeypatch.setattr(Versions, "files", made)
    monkeypatch.setattr(Versions, "version", 0)
    monkeypatch.setattr(Versions, "ranged", ranged)
    monkeypatch.setattr(Versions, "head", head)
    opened = ckptconv.open(f"http://{serve(Versions)}/m.safetensors")
    np.testing.assert_array_equal(opened["w"].numpy(), np.zeros(200_000, "f4"))
    Versions.version = 1
    remote._whole.cache_clear()  # of what was copied whole, the copy is read again
    with pytest.raises(CorruptCheckpoint, match="changed"):
        opened["w"].numpy()
    with pytest.raises(CorruptCheckpoint, match="changed"):
        ckptconv.save(opened, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


class Asked(Quiet):
    """Tells no version with the size, and refuses to tell of a single byte, `refusals` times."""

    status, refusals, asked, raw = 403, 0, list[str](), b""
    told: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        wanted = self.headers.get("Range") or ""
        if self.command == "HEAD" or not wanted:
            self.answer(200, self.raw)
            return
        self.asked.append(wanted)
        if wanted == "bytes=0-0" and self.asked.count(wanted) <= self.refusals:
            self.answer(self.status)
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        part = self.raw[first : last + 1]
        self.answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(self.raw)}", **self.told)


@pytest.mark.parametrize("told", [{}, {"ETag": '"1"'}], ids=["never", "with ranges"])
@pytest.mark.parametrize(("status", "refusals"), [(403, 99), (416, 99), (503, 1), (503, 99)])
def test_a_server_may_refuse_to_tell_a_version(
    status: int,
    refusals: int,
    told: dict[str, str],
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Always, and is not asked again; or once, while it is busy. No answer makes it another file than was opened."""
    ckptconv.save({"w": np.arange(6.0)}, tmp_path / "m.npz")
    monkeypatch.setattr(Asked, "raw", (tmp_path / "m.npz").read_bytes())
    monkeypatch.setattr(web, "TRIES", 2)
    for name, value in {"status": status, "refusals": refusals, "told": told, "asked": []}.items():
        monkeypatch.setattr(Asked, name, value)
    opened = ckptconv.open(url := f"http://{serve(Asked)}/m.npz")
    for _ in range(2):
        np.testing.assert_array_equal(opened["w"].numpy(), np.arange(6.0))
    ckptconv.convert(url, tmp_path / "o.safetensors")
    ckptconv.save(opened, tmp_path / "p.safetensors")
    assert ckptconv.diff(tmp_path / "o.safetensors", tmp_path / "p.safetensors").same


PIECE, ENDLESS = 2**16, 2**28  # the latter stands for an answer without end


class Lying(Quiet):
    """It says one size and sends without end; what a test asks it for are ranges, or the whole small file."""

    protocol_version = "HTTP/1.1"
    status, size, headers_sent = 206, 10**6, ("Content-Range: bytes {}-/*", "Transfer-Encoding: chunked")
    sent, most = 0, ENDLESS  # bytes of all answers

    def do_GET(self) -> None:
        if self.command == "HEAD":
            self.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {self.size}\r\n\r\n".encode())
            return
        start = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0]
        self.wfile.write(f"HTTP/1.1 {self.status} OK\r\n".encode())
        self.wfile.write(
            "".join(f"{h}\r\n" for h in self.headers_sent).format(start).encode() + b"Connection: close\r\n\r\n"
        )
        self.close_connection = True
        try:
            while self.sent < self.most:
                self.wfile.write(self.piece())
                type(self).sent += PIECE
        except OSError:
            pass

    def piece(self) -> bytes:
        return b"%x\r\n%b\r\n" % (PIECE, bytes(PIECE))


def lying(**changed: object) -> type[Lying]:
    return type("Liar", (Lying,), {"sent": 0, **changed})


PACKED = gzip.compress(bytes(2**24))
LIARS = {
    "a range without end": (lying(), "more came"),
    "a whole file without end": (lying(status=200, size=100), "longer than the server said"),
    "a whole file that no range is sent of": (lying(status=200), "longer than the server said"),
    "a range without a name": (lying(headers_sent=("Transfer-Encoding: chunked",)), "longer than the server said"),
    "another range": (lying(headers_sent=("Content-Range: bytes 7-/*", "Transfer-Encoding: chunked")), "from 7 came"),
    "a bomb": (lying(headers_sent=(
        "Content-Range: bytes {}-/*", "Content-Encoding: gzip", f"Content-Length: {len(PACKED)}"
    ), piece=lambda _: PACKED, most=1), "packed, although that was not requested"),
    "a short range": (lying(headers_sent=("Content-Range: bytes {}-/*", "Content-Length: 0"), most=0), "0 came"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIARS)
def test_a_server_that_lies_is_not_read_to_its_end(name: str, serve: Serve) -> None:
    liar, says = LIARS[name]
    liar.sent = 0
    with pytest.raises(CkptError, match=says):
        ckptconv.open(f"http://{serve(liar)}/m.npz")
    assert liar.sent < ENDLESS / 4  # what the buffers of the system hold


@pytest.mark.parametrize("version", ["ETag", "Last-Modified", "both", "length", ""])
@pytest.mark.parametrize("head", [True, False])
def test_a_file_that_changes_is_an_error(version: str, head: bool, serve: Serve, tmp_path: Path) -> None:
    """Also if only the answers with ranges name a version; of a server that names none it cannot be seen."""
    ckptconv.save({"w": np.zeros(2**20, np.uint8)}, tmp_path / "m.safetensors", hash=False)
    old = (tmp_path / "m.safetensors").read_bytes()
    count = [0]

    class Changing(Quiet):
        def do_GET(self) -> None:
            count[0] += 1
            later = count[0] > 4
            raw = old + b"x" * (later and version == "length")
            stamps = {"ETag": f'"{int(later)}"'} if version in ("ETag", "both") else {}
            if version in ("Last-Modified", "both"):  # of two machines that serve one file, ETags are the same
                stamps["Last-Modified"] = (
                    f"Tue, 24 Nov 2026 08:0{count[0] % 7 if version == 'both' else int(later)}:00 GMT"
                )
            if wanted := self.headers.get("Range"):
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                part = raw[first : last + 1]
                self.answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(raw)}", **stamps)
            else:
                self.answer(200, raw, **(stamps if head else {}))

    url = f"http://{serve(Changing)}/m.safetensors"
    with lookups.once(), files.Reader(url) as f:
        f.read(2**18, 9)
        count[0] = 9
        if not version:
            f.read(2**19, 9)
            return
        with pytest.raises(CorruptCheckpoint, match="changed while it was read"):
            f.read(2**19, 9)


def test_a_page_of_links_is_not_a_folder(serve: Serve) -> None:
    server = holding({"/": b"<a href=/m.npz>"})
    with pytest.raises(StorageError, match="a web server does not list its files"):
        discover.discover([f"http://{serve(server)}/*.npz"])
    assert "/" not in server.seen


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


def test_what_is_no_web_server_is_not_a_missing_file(serve: Serve) -> None:
    for url, says in (
        (f"https://{serve(Quiet)}/m.npz", "no secure connection to the server, which may know http only, not https$"),
        ("http://127.0.0.1:99999/m.npz", "the address is not valid"),
        ("http:///m.npz", "the address is not valid"),
    ):
        with pytest.raises(StorageError, match=says):
            ckptconv.open(url)


@pytest.mark.parametrize(
    "url",
    [
        "reference://x", "local:///etc/passwd", "ftp://127.0.0.1:1/m.npz", "zip://m.npz::missing.zip", "nonsense://x",
        "zip://::", "http://", "http://[", "github://a", "file::reference://x", "simplecache::memory://x", "sftp://h/x",
        "hdfs://h/x", "http://[::1]:1/m.npz?a=b::c",
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
    for folder in ("s3://b/d", "memory://d"):
        if "?" in name or "#" in name:
            with pytest.raises(UnsafeCheckpoint):
                paths.sibling(f"{folder}/index.json", name)


@pytest.mark.parametrize(
    ("url", "folder", "base", "beside"),
    [
        ("memory://m.npz", "memory://", "m.npz", "memory://n"),
        ("s3://b/k/m.npz", "s3://b/k", "m.npz", "s3://b/k/n"),
        ("https://h/d/i.json?sig=a/b", "https://h/d", "i.json?sig=a/b", "https://h/d/n"),
    ],
)
def test_what_lies_beside_a_url(url: str, folder: str, base: str, beside: str) -> None:
    assert files.split(url) == (folder, base)
    assert files.join(folder, base) == url
    assert files.sibling(url, "n") == beside


# --- secrets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:hush@h:80/a/b?sig=hush", "http://h:80/a/b?..."),
        ("HTTPS://u:hu/sh@h/x", "HTTPS://h/x"),
        ("https://u:hu?sh@h/x", "https://..."),
        ("https://h/x#token=hush", "https://h/x"),
        ("abfs://acc/x?sv=1&sig=hush", "abfs://acc/x?..."),
        ("a/b::c?d", "a/b::c?d"),
        ("https://h/p@q/x", "https://h/p@q/x"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert redacted(url) == redacted(redacted(url)) == shown
    assert "hush" not in str(StorageError(f"refused {url} just now", url=url))
    assert scrubbed(f"GET '{url}' failed") == f"GET '{shown}' failed" or "://" not in url


def test_no_traceback_shows_secrets(serve: Serve) -> None:
    """The cause of an error is kept, as a built-in one, its text without secrets."""

    class Refusing(Quiet):
        def do_GET(self) -> None:
            self.answer(403)

    with socket.create_server(("127.0.0.1", 0)) as door:
        closed = f"127.0.0.1:{door.getsockname()[1]}"
    for host, kind in (
        (closed, "NewConnectionError"), ("no-such-host.invalid", "NameResolution"), ("h:99999", "StorageError"),
        (serve(Refusing), "Answered"), (serve(holding({})), "StorageError"),
    ):  # fmt: skip
        with pytest.raises(CkptError) as refused:
            ckptconv.open(f"http://me:hu'sh-hush@{host}/m.npz?sig=hush and hush")
        e = refused.value
        shown = "".join(traceback.format_exception(type(e), e, e.__traceback__))
        raised = [line for line in shown.split("\n") if not line.startswith(" ")]
        assert "hush" not in "".join(raised)
        assert kind in "".join(raised)


@pytest.mark.parametrize("said", ["got 'me:hush'", "no user hush", "of hf://me:hush@org/x"])
def test_no_message_of_a_library_shows_a_part_of_a_login(said: str) -> None:
    """The client of the Hub names what it takes for a repository."""
    with pytest.raises(StorageError) as refused, faults.asking("hf://me:hush@org/x"):
        raise RuntimeError(said)
    e = refused.value
    assert "hush" not in "".join(traceback.format_exception_only(type(e), e)) + str(e.__cause__)


def test_a_cause_keeps_its_kind() -> None:
    url = "http://u:hush@h/x y?a=hush b"
    for e in (
        FileNotFoundError(url), PermissionError(13, f"no {url}"), KeyError(url), ValueError(url),
        UnicodeDecodeError("utf-8", b"x", 0, 1, url), ckptconv.StorageError(url, url=url),
    ):  # fmt: skip
        out = faults.told(e, url)
        assert type(out) in (FileNotFoundError, OSError, RuntimeError)
        assert "hush" not in repr(out) + str(out)
        assert "http://h/x y?..." in str(out)


@pytest.mark.slow
def test_secrets_reach_no_output(
    serve: Serve, npz: bytes, tmp_path: Path, cli: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ckptconv")
    damaged = npz[:200] + bytes([npz[200] ^ 1]) + npz[201:]  # among the elements
    host = serve(holding({f"/d/{name}.npz": npz for name in "mn"} | {"/d/bad.npz": damaged}))
    url = f"http://me:hush@{host}/d/m.npz?X-Sig=hush"
    out = tmp_path / "work"
    out.mkdir()
    said = [
        cli("inspect", url, "--json"),
        cli("inspect", url),
        cli("report", url, "-o", out / "r.html"),
        cli("report", url, url.replace("m.npz", "n.npz"), "-o", out / "two.html"),
        cli("match", url, url.replace("m.npz", "n.npz"), "-o", out / "rules.toml"),
        cli("convert", url, "-o", out / "n.safetensors", "--dry-run", "--json"),
        cli("convert", url, "-o", url.replace("m.npz", "there.npz"), "--json"),
        cli("verify", url, url.replace("m.npz", "bad.npz"), "--json"),
        cli("convert", url, "-o", out / "m.safetensors", "--json"),
        cli("diff", url, out / "m.safetensors", "--json"),
        cli("zoo", url, "-o", out / "zoo", "--json"),
        cli("zoo", url, "-o", out / "zoo2", "--dry-run", "--json"),
    ]
    for done in said:
        assert "hush" not in done.stdout + done.stderr, done.args
    both = Shelf(lambda: [Offered(u, u, 1, "") for u in (url, url.replace("m.npz", "n.npz"))], Options())
    pages = [both.listing(), both.page(0, lambda: None), both.page(1, lambda: None, whole=True)]
    assert "hush" not in "".join([*pages, both.series(0, 1, lambda: None, pair=True)])
    sent = ckptconv.convert(url, "memory://me:hush@there/m.npz")
    assert "hush" not in f"{sent} {sent!r} {sent.to_json()} {caplog.text}"
    for path in out.rglob("*"):
        assert "hush" not in path.name
        assert not path.is_file() or b"hush" not in path.read_bytes(), path
    assert (out / "zoo" / "m.safetensors").exists()
    assert all("hush" not in e.line().decode() for e in read_ledger(str(out / "zoo")).values())
