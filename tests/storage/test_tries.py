"""Servers that fail for a while, and those that fail for good: what is asked again, how often, and what is said."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
from webserver import Fault, Serve, Web

import ckptconv
from ckptconv.errors import StorageError, UsageError
from ckptconv.storage import remote, web
from ckptconv.storage.faults import failure

pytest.importorskip("urllib3", reason="the extra http is not installed")
ARRAYS = {f"w{i}": np.arange(30_000, dtype="f4") + i for i in range(6)}  # far more than head and tail
Opened = tuple[str, type[Web]]
Failing = Callable[..., Opened]


def status(code: int, **headers: str) -> Fault:
    return lambda server: server.answer(code, **headers)


def closed(server: Web) -> None:
    server.connection.close()


def reset(server: Web) -> None:
    server.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.connection.close()


def cut(server: Web) -> None:
    server.sound(missing=7)


@pytest.fixture
def failing(tmp_path: Path, serve: Serve) -> Failing:
    """Serve a checkpoint, with faults."""
    ckptconv.save(ARRAYS, tmp_path / "m.safetensors")

    def start(faults: Iterable[Fault | None], **attributes: object) -> Opened:
        host, server = serve(files=tmp_path, stamps={"ETag": '"1"'}, **attributes)
        server.faults = chain(faults, repeat(None))
        return f"http://{host}/m.safetensors", server

    return start


def asked(server: type[Web]) -> int:
    """Requests of the file itself."""
    return sum(path == "/m.safetensors" for path, _ in server.seen)


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
def test_what_passes_is_asked_again(name: str, when: int, failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once at the first look, and twice in a row among the ranges."""
    monkeypatch.setattr(web, "FIRST", 0.02)
    fault = PASSING[name]
    url, server = failing([None] * when + [fault] + [fault] * bool(when))
    found = ckptconv.open(url)
    assert {n: bytes(t.numpy()) for n, t in found.items()} == {n: bytes(a) for n, a in ARRAYS.items()}
    assert asked(server) > when + 2


@pytest.mark.slow
def test_silence_is_a_failure_that_may_pass(failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    monkeypatch.setattr(web, "RATE", 10**9)
    url, _ = failing([None, None, lambda server: time.sleep(3)])
    assert bytes(ckptconv.open(url)["w0"].numpy()) == bytes(ARRAYS["w0"])


def test_every_other_request_may_fail(failing: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FIRST", 0.02)
    faults = [None, status(503), None, closed, None, reset, None, cut, None, status(429)] * 9
    url, _ = failing(faults)
    ckptconv.convert(url, tmp_path / "out.safetensors", max_memory="64MB")
    assert {n: bytes(t.numpy()) for n, t in ckptconv.open(tmp_path / "out.safetensors").items()} == {
        n: bytes(a) for n, a in ARRAYS.items()
    }


@pytest.mark.parametrize(
    ("fault", "says", "times"),
    [
        (status(404), "no such file", 1),
        (status(410), "no such file", 1),
        (status(401), "the server wants a login", 1),
        (status(403), "access is forbidden", 1),
        (status(501), "status 501", 1),
        (status(429, Retry_After="9999"), "too many requests; try again later; it asks to be left alone for 9999 s", 1),
        (status(503, Retry_After="9999"), "status 503; it asks to be left alone for 9999 s", 1),
        (status(503), "the server answered with status 503", web.TRIES),
        (closed, "the connection broke", None),
    ],
)
def test_what_is_final_is_said(fault: Fault, says: str, times: int | None, failing: Failing) -> None:
    url, server = failing(repeat(fault))
    with pytest.raises(StorageError, match=says):
        ckptconv.open(url)
    assert times in (None, asked(server))


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


def test_a_whole_file_is_fetched_anew(failing: Failing) -> None:
    """From a server without ranges: what came before the connection broke is not kept."""
    remote._whole.cache_clear()
    url, _ = failing([None, None, cut, cut], ranged=False)
    assert bytes(ckptconv.open(url)["w5"].numpy()) == bytes(ARRAYS["w5"])
