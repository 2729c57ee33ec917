"""Serve reports to the browsers of this machine, and to nobody else.

    GET /TOKEN/                             the list, or the only checkpoint
    GET /TOKEN/3/                           the report of one; values are read only if they are few
    GET /TOKEN/3/all                        the report of one with all values
    GET /TOKEN/pair?a=3&b=5                 how one differs from another
    GET /TOKEN/series?a=3&b=5               how the layers moved from one to the other, through those listed between
    GET /TOKEN/3/tensor/17                  JSON: statistics and histogram of the tensor in row 17
    GET /TOKEN/3/region/17?at=0,64,0,64     JSON: a rectangle of it

It listens on 127.0.0.1 only. The token is random, so that neither another user of the machine nor another page in the
browser can guess an address; a request by another host name (DNS rebinding) is refused. There is nothing but GET:
nothing can be changed. Requests hold numbers, never paths.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from ..api.options import Options
from ..api.reading import prepare
from ..checkpoint import Checkpoint, Tensor
from ..errors import CkptError, StorageError, UsageError
from ..messages import in_bytes, many, natural, printable, redacted, version
from ..moves.sources import Sources
from ..storage import files
from . import html, survey
from .pictures import matrix, region

FEW = 64 * 2**20  # bytes of a checkpoint whose values are read at once
MOST = 256 * 2**20  # bytes of a tensor that is read without being asked for
KEPT = 4  # open checkpoints
LONGEST = 100  # checkpoints of a series, which are open together
READERS = 2  # requests that read values at a time

Look = Callable[[Tensor, Sources], dict[str, Any]]
Watch = Callable[[], None]  # raises an exception when nobody waits for the answer any more


class Offered(NamedTuple):
    """A checkpoint that can be opened. problem: why it cannot. files: its files, as they were when it was listed."""

    source: str
    name: str
    size: int
    problem: str = ""
    files: tuple[tuple[str, files.Stat], ...] = ()

    @property
    def changed(self) -> bool:
        """Whether a local file is no longer the one that was listed; it may have become a link to any other."""
        return any(files.stat(url) != status for url, status in self.files if not files.is_remote(url))


class Watched(Sources):
    """Open files; before each read it is asked whether somebody still waits."""

    def __init__(self, stamps: dict[str, files.Stamp], watch: Watch) -> None:
        super().__init__(stamps=stamps)
        self.watch = watch

    def reader(self, url: str) -> files.Reader:
        self.watch()
        return super().reader(url)


class Shelf:
    """Checkpoints by their numbers, which stay; the list is made anew whenever it is shown, 2 before 10.

    find: gives what there is. how: what is read of each, and threads. spell: how notes name options.
    """

    def __init__(self, find: Callable[[], Sequence[Offered]], how: Options, spell: html.Spell = str) -> None:
        self.find, self.how, self.spell = find, how, spell
        self._offered: dict[int, Offered] = {}
        self._numbers: dict[str, int] = {}
        self._open: dict[int, tuple[Checkpoint, dict[str, files.Stamp]]] = {}
        self._lock, self._reading = threading.Lock(), threading.Semaphore(READERS)  # what is in memory is bounded
        self.refresh()

    def refresh(self) -> dict[int, Offered]:
        """List what there is now."""
        found = sorted(self.find(), key=lambda o: natural(o.name))
        with self._lock:
            self._offered = {self._numbers.setdefault(o.source, len(self._numbers)): o for o in found}
            return self._offered

    def only(self) -> int | None:
        """The number of the only checkpoint; None if there are several, or none, or if it cannot be opened."""
        found = self.refresh()
        return next((n for n, o in found.items() if len(found) == 1 and not o.problem), None)

    def source(self, number: int) -> str:
        """StorageError if there is no checkpoint with this number, or no longer, or if it cannot be opened.

        One that has changed since it was listed is looked for anew: it may be a link now that leads out of its folder.
        """
        found = self._offered.get(number)
        if found and found.changed:
            found = self.refresh().get(number)
        if not found:
            raise StorageError("there is no such checkpoint here, or no longer")
        if found.problem or found.changed:
            raise StorageError(found.problem or "changes at the moment; try again later", url=found.source)
        return found.source

    def opened(self, number: int, *, anew: bool = False) -> tuple[Checkpoint, dict[str, files.Stamp]]:
        """A checkpoint, and the stamps of its files when its headers were read; the last few stay open."""
        with self._lock:
            kept = self._open.pop(number, None)
        if kept is None or anew:
            with files.record_stamps() as stamps:
                kept = prepare([self.source(number)], self.how), stamps
        with self._lock:
            self._open[number] = kept
            while len(self._open) > KEPT:
                del self._open[next(iter(self._open))]
        return kept

    # --- pages ---

    def listing(self) -> str:
        """The page that lists the checkpoints."""
        offered = self.refresh()
        rows = "".join(_row(number, o) for number, o in offered.items())
        style = html.file("page.css")
        policy = f"default-src 'none'; style-src {html.digest(style)}; form-action 'self'; base-uri 'none'"
        words = {"policy": policy, "count": many(len(offered), "checkpoint"), "version": version()}
        return html.fill_slots("list.html", {k: escape(v) for k, v in words.items()} | {"style": style, "rows": rows})

    def page(self, number: int, watch: Watch, *, whole: bool = False) -> str:
        """The report of one checkpoint."""
        c, _ = self.opened(number, anew=True)
        size = sum(t.nbytes for t in c.values())
        values = whole or size <= FEW
        with self._reading if values else nullcontext():
            data = survey.survey(c, replace(self.how, progress=lambda *_: watch()), values=values)
        links = [] if len(self._offered) == 1 else [["All checkpoints", "../"]]
        links += [] if values else [[f"Read all values: {in_bytes(size)}", "all"]]
        data |= {"url": redacted(self.source(number)), "live": {"most": MOST, "links": links}}
        return html.render(data, self.spell)

    def series(self, a: int, b: int, watch: Watch, *, pair: bool = False) -> str:
        """How the layers moved from one checkpoint to another, through those listed between; pair: of the two."""
        offered, urls = self._offered, [self.source(a), self.source(b)]
        if not pair:
            readable = [n for n, o in offered.items() if n in (a, b) or not o.problem]
            first, last = sorted(map(readable.index, (a, b)))
            between = readable[first : last + 1]
            if not 3 <= len(between) <= LONGEST:
                what = f"from the first to the last of these there are {len(between)}"
                raise StorageError(f"a series has 3 to {LONGEST} checkpoints; {what}")
            urls = [self.source(n) for n in (between if between[0] == a else between[::-1])]
        with self._reading:
            how = replace(self.how, progress=lambda *_: watch())
            return html.render(html.collect_data(urls, how, values=True), self.spell)

    # --- values ---

    def seen(self, number: str, row: str, watch: Watch, look: Look) -> dict[str, Any]:
        """What `look` sees in one tensor."""
        (c, stamps), place = self.opened(_number(number)), _number(row)
        if place >= len(c):
            raise StorageError("there is no such tensor here, or no longer: reload the page")
        with self._reading, Watched(stamps, watch) as sources:
            return look(list(c.values())[place], sources)


def _rectangle(text: str, t: Tensor, sources: Sources) -> dict[str, Any]:
    """A rectangle of a tensor, of which only that is read."""
    cells, texts = region(t, [_number(word) for word in text.split(",")], sources)
    return {"matrix": matrix(t.shape), "cells": survey.shade_cells(cells), "texts": texts}


def _row(number: int, o: Offered) -> str:
    name = escape(printable(redacted(o.name)))
    if o.problem:
        why = f'{name}<br><span class="soft">{escape(printable(o.problem))}</span>'
        return f"<tr><td></td><td></td><td>{why}</td><td></td></tr>\n"
    return (
        f'<tr><td><input type="radio" name="a" value="{number}" aria-label="A: {name}"></td>'
        f'<td><input type="radio" name="b" value="{number}" aria-label="B: {name}"></td>'
        f'<td><a href="{number}/">{name}</a></td><td class="num">{in_bytes(o.size) if o.size else ""}</td></tr>\n'
    )


# --- the server -----------------------------------------------------------------------------------------------

HOST = "127.0.0.1"
NAMES = {"127.0.0.1", "localhost"}  # of this machine; the port may be another one, through a tunnel
ALWAYS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}


def _number(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    raise UsageError("a number is needed; choose two checkpoints, A and B")


def answer(shelf: Shelf, path: str, query: str, watch: Watch) -> str | dict[str, Any] | None:
    """The page or the JSON values at a path below the token; None if there is nothing."""
    words = {k: v[0] for k, v in parse_qs(query).items()}
    match path.split("/"):
        case ["pair" | "series" as what]:
            return shelf.series(_number(words.get("a", "")), _number(words.get("b", "")), watch, pair=what == "pair")
        case [number, "" | "all" as what]:
            return shelf.page(_number(number), watch, whole=what == "all")
        case [number, "tensor", row]:
            return shelf.seen(number, row, watch, survey.single_tensor)
        case [number, "region", row]:
            return shelf.seen(number, row, watch, partial(_rectangle, words.get("at", "")))
    return None


class Server(ThreadingHTTPServer):
    """Use it as a context manager. url: the address, with its token."""

    daemon_threads = True  # what still reads ends with the program

    def __init__(self, shelf: Shelf, port: int = 0) -> None:
        super().__init__((HOST, port), Handler)
        self.shelf, self.token = shelf, secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, *_: object) -> None:
        """A browser that has gone away is not an error to print."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    timeout = 30  # seconds for a part of a request to arrive, or of an answer to be taken
    server_version, sys_version = "ckptconv", ""
    default_request_version = "HTTP/1.0"  # not 0.9, which has no headers

    def do_GET(self) -> None:
        """Answer with a page or with JSON."""
        path, _, query = self.path.partition("?")
        _, token, rest = path.split("/", 2) if path.count("/") > 1 else ("", "", "")
        try:
            if re.sub(r":[0-9]+$", "", self.headers.get("Host", "")) not in NAMES:
                self._send(403, "this server answers to localhost only")
            elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
                self._send(404, "not found")
            elif rest:
                found = answer(self.server.shelf, rest, query, self._watch)
                self._send(*((404, "not found") if found is None else (200, found)))
            elif (only := self.server.shelf.only()) is not None:
                self._send(303, "", f"/{self.server.token}/{only}/")
            else:
                self._send(200, self.server.shelf.listing())
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except CkptError as e:
            self._send(422, str(e))
        except Exception as e:  # a defect of ours: the server goes on
            self._send(500, f"internal error: {type(e).__name__}")

    def _watch(self) -> None:
        """Raise ConnectionAbortedError when the browser has closed the connection."""
        with selectors.DefaultSelector() as watched:  # not select(): that ends at 1,024 open files
            watched.register(self.connection, selectors.EVENT_READ)
            if watched.select(0) and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError

    def _send(self, status: int, what: str | dict[str, Any], location: str = "") -> None:
        if isinstance(what, dict) or self.headers.get("Accept", "") == "application/json":
            kind, text = "application/json", json.dumps(what if isinstance(what, dict) else {"error": what})
        elif status >= 400:
            kind, text = "text/html", f"<!doctype html><title>{status}</title><p>{escape(printable(what))}"
        else:
            kind, text = "text/html", what
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """Every answer has these headers, also one that refuses what could not be parsed."""
        for key, value in ALWAYS.items():
            self.send_header(key, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing: addresses hold the token."""
