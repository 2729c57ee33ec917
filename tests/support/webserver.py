"""A web server that does as a test says."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

Fault = Callable[["Web"], object]


class Quietly(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Whoever asked is gone."""


class Web(BaseHTTPRequestHandler):
    """Sends files whole or, if `ranged`, in parts; `stamps` go with each answer.

    faults: for each request None, or what is done instead. seen: the paths and ranges that were asked for.
    """

    protocol_version = "HTTP/1.1"
    files: Mapping[str, bytes] | Path = MappingProxyType({})
    ranged = True
    stamps: Mapping[str, str] = MappingProxyType({})
    faults: Iterator[Fault | None] = repeat(None)
    seen: list[tuple[str, str]]

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Range", "")))
        fault = next(self.faults, None)
        if fault:
            self.close_connection = True
            fault(self)
        else:
            self.sound()

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    @property
    def raw(self) -> bytes | None:
        """The file that is asked for."""
        path = unquote(self.path.partition("?")[0])
        if not isinstance(self.files, Path):
            return self.files.get(path)
        there = self.files / path.lstrip("/")
        return there.read_bytes() if there.is_file() else None

    @property
    def span(self) -> tuple[int, int] | None:
        """The range that is asked for."""
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        return (int(m[1]), int(m[2]) + 1) if m else None

    def sound(self, *, missing: int = 0, total: int = 0) -> None:
        """Send what is asked for, without the last bytes; of a range `total` is said to be the size of the file."""
        raw, span = self.raw, self.span if self.ranged else None
        if raw is None:
            self.answer(404)
            return
        start, end = span or (0, len(raw))
        part = raw[start:end]
        about = {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{total or len(raw)}"} if span else {}
        self.answer(206 if span else 200, part[: len(part) - missing],
                    **{"Content-Length": str(len(part)), **about, **self.stamps})  # fmt: skip


Serve = Callable[..., tuple[str, type[Web]]]


@contextmanager
def served(fault: Fault | None = None, after: int = 0, **attributes: Any) -> Iterator[tuple[str, type[Web]]]:
    """Run a server with these attributes; `fault`: what it does with all requests but the first. Its host and class."""
    kind = type("Served", (Web,), {"seen": [], "faults": chain(repeat(None, after), repeat(fault)), **attributes})
    with Quietly(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", kind
        server.shutdown()
