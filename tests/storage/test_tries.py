"""Servers that fail for a while, and those that fail for good: what is asked again, how often, and what is said."""

from __future__ import annotations

import http.server
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.errors import CorruptCheckpoint, StorageError, UsageError
from ckptconv.storage import remote, web
from ckptconv.storage.faults import failure

pytest.importorskip("urllib3", reason="the extra http is not installed")
ARRAYS = {f"w{i}": np.arange(30_000, dtype="f4") + i for i in range(6)}  # far more than head and tail
Fault = Callable[["Server"], None]


class Server(http.server.BaseHTTPRequestHandler):
    """Sends ranges of one file; `faults` has for each request that follows None, or what it does instead."""

    protocol_version = "HTTP/1.1"
    raw = b""
    etag = '"1"'
    faults: Iterator[Fault | None]
    asked = 0  # requests of that file

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        type(self).asked += self.path == "/m.safetensors"
        fault = next(self.faults, None)
        if fault:
            self.close_connection = True
            fault(self)
        else:
            self.sound()

    def sound(self, *, missing: int = 0, total: str = "") -> None:
        start, end = 0, len(self.raw)
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, end = int(first), int(last) + 1
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", self.etag)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{total or len(self.raw)}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.raw[start : end - missing])


def status(code: int, **headers: str) -> Fault:
    def fault(server: Server) -> None:
        server.send_response(code)
        for name, value in {"Content-Length": "0", **headers}.items():
            server.send_header(name.replace("_", "-"), value)
        server.end_headers()

    return fault


def closed(server: Server) -> None:
    server.connection.close()


def reset(server: Server) -> None:
    server.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.connection.close()


def cut(server: Server) -> None:
    server.sound(missing=7)


def silent(_: Server) -> None:
    time.sleep(3)


def other(server: Server) -> None:
    server.etag = '"2"'
    server.sound()


def longer(server: Server) -> None:
    server.sound(total="999999")


Serve = Callable[..., tuple[str, type[Server]]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve a checkpoint, with faults."""
    ckptconv.save(ARRAYS, tmp_path / "m.safetensors")
    servers = []

    def start(faults: Iterator[Fault | None]) -> tuple[str, type[Server]]:
        raw = (tmp_path / "m.safetensors").read_bytes()
        kind = type("Failing", (Server,), {"raw": raw, "faults": faults})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/m.safetensors", kind

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


PASSING = {
    "busy": status(503),
    "too many requests": status(429),
    "too many requests, come back at once": status(429, Retry_After="0"),
    "too many requests, come back in a second": status(429, Retry_After="1"),
    "a nonsense of a time": status(503, Retry_After="soon \u00b2"),
    "internal error": status(500),
    "bad gateway": status(502),
    "gateway timed out": status(504),
    "request timed out": status(408),
    "too early": status(425),
    "closed without an answer": closed,
    "reset": reset,
    "cut in the middle": cut,
}


@pytest.mark.parametrize("when", [0, 3])
@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_asked_again(name: str, when: int, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once at the first look, and twice in a row among the ranges."""
    monkeypatch.setattr(web, "FIRST", 0.02)
    fault = PASSING[name]
    url, server = serve(iter([None] * when + [fault] + [fault] * bool(when)))
    found = ckptconv.open(url)
    assert {n: bytes(t.numpy()) for n, t in found.items()} == {n: bytes(a) for n, a in ARRAYS.items()}
    assert server.asked > when + 2


@pytest.mark.slow
def test_silence_is_a_failure_that_may_pass(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    monkeypatch.setattr(web, "RATE", 10**9)
    url, _ = serve(iter([None, None, silent]))
    assert bytes(ckptconv.open(url)["w0"].numpy()) == bytes(ARRAYS["w0"])


def test_every_other_request_may_fail(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FIRST", 0.02)
    faults = [None, status(503), None, closed, None, reset, None, cut, None, status(429)] * 9
    url, _ = serve(iter(faults))
    ckptconv.convert(url, tmp_path / "out.safetensors", max_memory="64MB")
    assert {n: bytes(t.numpy()) for n, t in ckptconv.open(tmp_path / "out.safetensors").items()} == {
        n: bytes(a) for n, a in ARRAYS.items()
    }


@pytest.mark.parametrize(
    ("fault", "says", "asked"),
    [
        (status(404), "no such file", 1),
        (status(410), "no such file", 1),
        (status(401), "the server wants a login", 2),  # HEAD, then GET
        (status(403), "access is forbidden", 2),
        (status(501), "status 501", 2),
        (status(429, Retry_After="9999"), "too many requests; try again later; it asks to be left alone for 9999 s", 2),
        (status(503, Retry_After="9999"), "status 503; it asks to be left alone for 9999 s", 2),
        (status(503), "the server answered with status 503", 2 * web.TRIES),
        (closed, "the connection broke", None),
    ],
)
def test_what_is_final_is_said(fault: Fault, says: str, asked: int | None, serve: Serve) -> None:
    url, server = serve(repeat(fault))
    with pytest.raises(StorageError, match=says):
        ckptconv.open(url)
    assert asked in (None, server.asked)


@pytest.mark.parametrize("fault", [other, longer])
def test_a_file_that_changes_in_the_middle_is_an_error(fault: Fault, serve: Serve) -> None:
    url, server = serve(iter([None] * 4 + [fault]))  # open: HEAD and two ranges; read: HEAD and one
    found = ckptconv.open(url)
    with pytest.raises(CorruptCheckpoint, match="changed while it was read: the server has another version"):
        found["w3"].numpy()
    assert server.asked == 5  # it is not asked again


@pytest.mark.parametrize("given", ["inf", "1e400", "nan", "-1", "0", "1e300", "soon", ""])
def test_a_time_that_is_none_is_named(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked: endless ones were refused by the client, as if there were no such file."""
    monkeypatch.setenv("CKPTCONV_TIMEOUT", given)
    with pytest.raises(
        UsageError, match=f"CKPTCONV_TIMEOUT is a number of seconds above 0 and below .*, not '{given}'"
    ):
        ckptconv.open("http://127.0.0.1:9/x.safetensors")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7), ("0", 0), ("-3", 0), ("1e3", 0), ("\u00b2", 0), ("9" * 400, 0), (None, 0),
        ("Thu, 01 Jan 2970 00:00:00 GMT", 0),
    ],
)  # fmt: skip
def test_how_long_a_server_asks_to_wait(said: str | None, seconds: float) -> None:
    error = OSError()
    error.status, error.headers = 429, {"Retry-After": said}  # type: ignore[attr-defined]
    assert failure(error).wait == seconds
    error.status = 404  # type: ignore[attr-defined]
    assert failure(error).wait == 0


def test_a_whole_file_is_fetched_anew(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a server without ranges: what came before the connection broke is not kept."""
    remote._whole.cache_clear()
    url, server = serve(iter([]))
    plain = server.sound

    def without_ranges(self: Server, **options: int) -> None:
        if "Range" in self.headers:
            del self.headers["Range"]
        plain(self, **options)

    monkeypatch.setattr(server, "sound", without_ranges)
    server.faults = iter([None, None, cut, cut])
    assert bytes(ckptconv.open(url)["w5"].numpy()) == bytes(ARRAYS["w5"])
