"""Serve the pages of a shelf to the browsers of this machine, and to nobody else.

    GET /TOKEN/                     the list, or the only checkpoint
    GET /TOKEN/3/  /TOKEN/3/all     a report
    GET /TOKEN/pair?a=3&b=5         a comparison
    GET /TOKEN/series?a=3&b=5       a series: all that are listed from one to the other
    GET /TOKEN/3/tensor/17          JSON
    GET /TOKEN/3/region/17?at=0,64,0,64

It listens on 127.0.0.1 only. The token is random, so that neither another user of the machine nor another page in the
browser can guess an address; a request by another host name (DNS rebinding) or from another origin is refused. There
is nothing but GET: nothing can be changed. Requests hold numbers, never paths.

Every program of the machine can connect, and may be slow or silent: a request has to arrive soon and to be short, and
of too many that have not arrived the oldest gives way.
"""

from __future__ import annotations

import errno
import hmac
import io
import json
import re
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from ..errors import CkptError
from ..messages import printable
from ..storage.faults import SCARCE
from .shelf import Shelf, Watch

HOST = "127.0.0.1"
NAMES = {"127.0.0.1", "localhost"}  # of this machine; the port may be another one, through a tunnel
PATIENCE = 30  # seconds for an answer to be taken
ARRIVAL = 10.0  # seconds for a request to arrive, however it drips
LARGEST = 32 * 2**10  # bytes of a request: browsers send cookies of all servers of this host; of header lines, 100
CONNECTIONS = 64  # at a time
END = re.compile(rb"\r?\n\r?\n")  # of the head of a request
PAUSE = 0.2  # seconds without a new connection when there are no more file descriptors
NO_ROOM = {*SCARCE, errno.ENOBUFS, errno.ENOMEM}
PollSelector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # needs no file descriptor of its own
ALWAYS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}
ROUTES: list[tuple[str, Callable[[Shelf, list[int], dict[str, str], Watch], str | dict[str, Any]]]] = [
    (r"(\d+)/", lambda shelf, n, _, watch: shelf.page(n[0], watch)),
    (r"(\d+)/all", lambda shelf, n, _, watch: shelf.page(n[0], watch, whole=True)),
    (r"(\d+)/tensor/(\d+)", lambda shelf, n, _, watch: shelf.tensor(n[0], n[1], watch)),
    (r"(\d+)/region/(\d+)", lambda shelf, n, q, watch: shelf.region(n[0], n[1], _four(q.get("at", "")), watch)),
    (r"pair", lambda shelf, _, q, watch: shelf.pair(_number(q.get("a", "")), _number(q.get("b", "")), watch)),
    (r"series", lambda shelf, _, q, watch: shelf.series(_number(q.get("a", "")), _number(q.get("b", "")), watch)),
]


class Wrong(Exception):
    """A request that is not answered. Arguments: the status, and the reason."""


class Gone(Exception):
    """Nobody waits for the answer any more."""


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Wrong(400, "choose two checkpoints, one before and one after")
    return int(text)


def _four(text: str) -> list[int]:
    words = text.split(",")
    if len(words) != 4:
        raise Wrong(400, "a rectangle has four numbers")
    return [_number(word) for word in words]


class Server(ThreadingHTTPServer):
    """Use it as a context manager. url: the address, with its token."""

    daemon_threads = True  # what still reads ends with the program
    block_on_close = False

    def __init__(self, shelf: Shelf, port: int = 0) -> None:
        super().__init__((HOST, port), Handler)
        self.shelf, self.token = shelf, secrets.token_urlsafe(24)
        self._lock, self._served = threading.Lock(), 0
        self._waiting: dict[socket.socket, None] = {}  # whose request has not arrived, the oldest first

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Without a file descriptor for it the loop would ask again and again without a pause."""
        try:
            return super().get_request()
        except OSError as e:
            if e.errno in NO_ROOM:
                time.sleep(PAUSE)
            raise

    def verify_request(self, request: Any, _: Any) -> bool:
        """Whether there is room for a connection: of too many, the oldest whose request has not arrived gives way."""
        with self._lock:
            if self._served >= CONNECTIONS:
                if not self._waiting:
                    return False
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with suppress(OSError):  # its thread ends now
                    oldest.shutdown(socket.SHUT_RDWR)
            self._served += 1
            self._waiting[request] = None
        return True

    def arrived(self, request: socket.socket) -> None:
        """The request of a connection has been read."""
        with self._lock:
            self._waiting.pop(request, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def _ended(self, request: socket.socket) -> None:
        with self._lock:
            self._served -= 1
            self._waiting.pop(request, None)

    def handle_error(self, *_: object) -> None:
        """A browser that has gone away is not an error to print."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    timeout = PATIENCE
    server_version, sys_version = "ckptconv", ""
    default_request_version = "HTTP/1.0"  # not 0.9, which has no headers
    command = requestline = request_version = ""  # of what is refused before it is parsed

    def setup(self) -> None:
        """Read the request before it is parsed, with one limit for all of it: not one for each byte."""
        super().setup()
        self.rfile = io.BytesIO(self._arriving())
        self.server.arrived(self.connection)
        self.connection.settimeout(PATIENCE)

    def _arriving(self) -> bytes:
        """The head of a request; b'' if it does not arrive, and what exceeds it is not read."""
        head, some, end = b"", b"", time.monotonic() + ARRIVAL
        try:
            while not END.search(head, max(0, len(head) - len(some) - 3)):
                self.connection.settimeout(max(0.001, end - time.monotonic()))
                some = self.connection.recv(LARGEST + 1 - len(head))
                head += some
                if not some or time.monotonic() > end:
                    return b""
                if len(head) > LARGEST:
                    self._send(431, "the request is too large")
                    return b""
        except OSError:
            return b""
        return head

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is not understood, as everything else is refused: without what was sent, and with all headers."""
        self._send(code, self.responses.get(code, ("refused",))[0])

    def do_GET(self) -> None:
        """Answer with a page or with JSON."""
        try:
            self._answer()
        except Wrong as e:
            self._send(e.args[0], e.args[1])
        except (Gone, ConnectionError, TimeoutError):
            self.close_connection = True
        except CkptError as e:
            self._send(422, str(e))
        except Exception as e:  # a defect of ours: the server goes on
            self._send(500, f"internal error: {type(e).__name__}")

    def _answer(self) -> None:
        self._refuse_strangers()
        path, _, query = self.path.partition("?")
        _, token, rest = path.split("/", 2) if path.count("/") > 1 else ("", "", "")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise Wrong(404, "not found")
        shelf = self.server.shelf
        if rest == "" and (only := shelf.only()) is not None:
            self._send(303, "", {"Location": f"/{self.server.token}/{only}/"})
        elif rest == "":
            self._send(200, shelf.listing())
        else:
            for pattern, answer in ROUTES:
                if m := re.fullmatch(pattern, rest, re.ASCII):
                    words = {k: v[0] for k, v in parse_qs(query).items()}
                    self._send(200, answer(shelf, [_number(n) for n in m.groups()], words, self._watch))
                    return
            raise Wrong(404, "not found")

    def _refuse_strangers(self) -> None:
        """Refuse requests to another host name, and from pages of other origins."""
        host = self.headers.get("Host", "")
        if re.sub(r":[0-9]+$", "", host) not in NAMES:
            raise Wrong(403, "this server answers to localhost only")
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            raise Wrong(403, "this server answers to its own pages only")
        moved = self.headers.get("Sec-Fetch-Mode") == "navigate"
        if not moved and self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Wrong(403, "this server answers to its own pages only")

    def _watch(self) -> None:
        """Raise Gone when the browser has closed the connection."""
        with PollSelector() as watched:  # not select(): that ends at 1,024 open files
            watched.register(self.connection, selectors.EVENT_READ)
            ready = watched.select(0)
        if ready and not self.connection.recv(1, socket.MSG_PEEK):
            raise Gone

    def _send(self, status: int, what: str | dict[str, Any], more: dict[str, str] | None = None) -> None:
        headers = getattr(self, "headers", {})  # what cannot be parsed has none
        if isinstance(what, dict) or headers.get("Accept", "") == "application/json":
            kind, text = "application/json", json.dumps(what if isinstance(what, dict) else {"error": what})
        elif status >= 400:
            kind, text = "text/html", f"<!doctype html><title>{status}</title><p>{escape(printable(what))}"
        else:
            kind, text = "text/html", what
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        for key, value in {**ALWAYS, "Content-Type": f"{kind}; charset=utf-8", **(more or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing: addresses hold the token."""


__all__ = ["HOST", "Server"]
