"""Run the HDF5 library in a separate process, which can crash, hang or exhaust its memory without harm to ours.

The library has many memory errors on damaged files (CVE-2025-2153, -6269, -6816 and about forty others are open against
1.14.6), so it never reads an untrusted file in our process. The child does not have the file either: it requests ranges
over a pipe, and the parent answers from the one file that it opened, so no link can lead elsewhere. The child cannot
open or write files, its memory is limited, it loads no plugins, and on Linux a filter of system calls (jail.py) allows
only computing and the pipes. It is killed after `SILENCE` seconds without a message, after `CPU_STEP` seconds of its
own processor time between two frames, and after `CPU_TOTAL` seconds plus `CPU_PER_MB` for each megabyte of the file in
all. Code of an attacker may run in it: what it sends is bounded in size and time here as well, each frame must be one
that answers the request, and records.py checks what is said of the file. Starting the first child takes 0.1 s, about as
long as importing h5py; the others are forks of a process that has done only that. Idle children are reused for the next
dataset. Contiguous datasets, nearly all in practice, need the child only once: to learn the position of their bytes.

This mechanism differs from bulk/pool.py, which starts workers through multiprocessing: those run our code with all
rights of the parent. The server of multiprocessing exists once per process, is preloaded once, and gives every child
its own pipes, the parent's main module and its environment. The process that protects the user from a hostile file must
have two pipes and nothing else, in an isolated interpreter (-I) that has imported only h5py.

    parent -> child     JSON lines: {"size", "packed", "open"} first, then {"do": "scan"} or {"do": "read", "path": P}
    child  -> parent    frames: kind u8, length u64le, body
                        G  start, size as u64le: requests these bytes, which follow raw    R  a record, JSON
                        D  bytes of the dataset   S  strings, each u32le length + bytes    E  [kind, message], JSON
                        .  done
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from ...errors import CkptError, CorruptCheckpoint, MissingExtra, UnsafeCheckpoint
from ...messages import printable
from ...storage.ranges import Ranges
from . import jail
from .scan import RATIO, SLACK

SILENCE = 30.0  # seconds
CPU_STEP = 6  # seconds of processor time between two frames
CPU_TOTAL, CPU_PER_MB = 300, 1  # seconds of processor time for all requests together
WAITING = 4  # seconds that an answer takes for each second of the child's processor time, at most
FETCHING = 16  # seconds more for each megabyte of the file, which a server may send as slowly as that
FRAME = struct.Struct("<cQ")
COMMAND = struct.Struct("<cq")  # to the nursery, see inside.py
MAX_FRAME = 1 << 30
MAX_DATA = 8 << 20  # bytes of a frame with data; of one with strings, apart from the last string
MAX_ERROR = 1 << 16
BODIES = {  # the fewest and the most bytes of a body
    b"G": (16, 16), b"R": (1, MAX_FRAME), b"D": (1, MAX_DATA), b"S": (4, MAX_FRAME), b"E": (1, MAX_ERROR), b".": (0, 0),
}  # fmt: skip
ANSWERS = {"scan": b"RGE.", "read": b"DSGE."}  # the kinds of frames that may follow a request
RECORD_RATIO = 16  # bytes of records per byte of the file
PIECE = 1 << 20  # bytes read or sent at once
PIPE = 1 << 16  # bytes that a pipe holds
MEMORY = 4 << 30
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # variables that locate libraries
UNJAILED = "CKPTCONV_UNJAILED"  # set to 1 by who trusts the files, on a system that does not let its jail be entered
MAX_IDLE = 2  # children kept for the next request


class FileImage(NamedTuple):
    """The bytes of an HDF5 file, which the library reads: a complete file, or a member of an archive."""

    name: str  # identifies the content: url, member, and the file's stamp
    url: str
    size: int
    source: Callable[[], Ranges]
    packed: int  # bytes that it takes in the archive, or size


def _start(entry: str, **pipes: Any) -> subprocess.Popen[bytes]:
    """Start Python at a function of inside.py, with only the environment variables that locate libraries."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    path = [here, *jail.path()]
    code = f"import sys; sys.path[:] = {path!r}; from ckptconv.formats.hdf5.inside import {entry}; {entry}()"
    environ = {k: os.environ[k] for k in ENVIRONMENT if k in os.environ}
    environ |= {"HDF5_PLUGIN_PRELOAD": "::", "HDF5_USE_FILE_LOCKING": "FALSE", "OMP_NUM_THREADS": "1"}
    environ["OPENBLAS_NUM_THREADS"] = "1"
    command = [sys.executable, "-I", "-c", code]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environ, bufsize=0, **pipes)


class Nursery:
    """A process that has done all imports and forks a child for each image, in 3 ms instead of 100 ms."""

    def __init__(self) -> None:
        self._door, theirs = socket.socketpair()
        self._door.settimeout(SILENCE)
        self._process = _start("nursery", stdin=theirs, stdout=subprocess.DEVNULL)
        theirs.close()
        self._lock = threading.Lock()

    def fork(self) -> Forked:
        theirs_in, to_child = os.pipe()
        from_child, theirs_out = os.pipe()
        try:
            pid = self._command(b"F", 0, (theirs_in, theirs_out))
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return Forked(self, pid, os.fdopen(to_child, "wb", buffering=0), os.fdopen(from_child, "rb", buffering=0))

    def kill(self, pid: int) -> int:
        return self._command(b"K", pid)

    def _command(self, what: bytes, pid: int, pipes: tuple[int, ...] = ()) -> int:
        with self._lock:
            socket.send_fds(self._door, [COMMAND.pack(what, pid)], pipes)
            answer = self._door.recv(COMMAND.size)
        if len(answer) != COMMAND.size:
            raise BrokenPipeError("the process that starts children is gone")
        return int(COMMAND.unpack(answer)[1])

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self._door.close()
            self._process.kill()
            self._process.wait()


class Forked:
    """The parts of Popen's interface that are needed here, for a child of the nursery."""

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._nursery, self._pid, self._status = nursery, pid, 1

    def kill(self) -> None:
        """Kill and reap the child, once. If the nursery is gone, so are its children."""
        if self._pid:
            pid, self._pid = self._pid, 0
            try:
                self._status = self._nursery.kill(pid)
            except OSError:
                pass

    def wait(self) -> int:
        return self._status


_nurseries: dict[int, Nursery] = {}  # by process id: a fork of this process starts its own
_making = threading.Lock()


FORKS = hasattr(os, "fork") and hasattr(socket, "send_fds")


def prepare() -> None:
    """Start what the first child is forked from, and do not wait: what is written now will soon be read back."""
    if FORKS:
        _nursery()


def _spawn() -> subprocess.Popen[bytes] | Forked:
    if not FORKS:
        return _start("main", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        return _nursery().fork()
    except OSError:  # the nursery was killed (by a system short of memory?): start another, once
        _nurseries.pop(os.getpid(), None)
        return _nursery().fork()


def _nursery() -> Nursery:
    with _making:
        return _nurseries.get(os.getpid()) or _nurseries.setdefault(os.getpid(), Nursery())


class Child:
    """One process, serving one image, one request at a time."""

    def __init__(self, image: FileImage) -> None:
        self.image, self._source = image, image.source()
        self._process = _spawn()
        self._patience: float = WAITING * CPU_TOTAL + (WAITING * CPU_PER_MB + FETCHING) * (image.size >> 20)
        self._due, self._fed = time.monotonic() + self._patience, False
        if os.name != "nt" and self._process.stdin:
            os.set_blocking(self._process.stdin.fileno(), False)  # it may not read what it asked for
        self._received = bytearray()  # of frames to come: records are many and small
        first = {"size": image.size, "packed": image.packed, "open": os.environ.get(UNJAILED) == "1"}
        self._send(json.dumps(first).encode() + b"\n")

    def ask(self, **request: str) -> Iterator[tuple[bytes, bytes]]:
        """Send a request and yield the frames of the answer. All time counts but that of the caller, between frames."""
        self._due = time.monotonic() + self._patience
        self._send(json.dumps(request).encode() + b"\n")
        for kind, body in self._frames(request["do"]):
            if kind == b"E":
                raise _error(body, self.image.url, fed=self._fed)
            if kind == b"G":
                self._give(*struct.unpack("<QQ", body))
                continue
            self._patience = self._due - time.monotonic()
            if kind == b".":
                return
            yield kind, body
            self._due = time.monotonic() + self._patience

    def _frames(self, asked: str) -> Iterator[tuple[bytes, bytes]]:
        """The frames of an answer, each of a kind and size that can be in it."""
        ratio, more = (RECORD_RATIO, 1 << 20) if asked == "scan" else (RATIO, MAX_FRAME)
        room = ratio * self.image.size + more  # bytes of the answer; an endless one may consist of small frames
        largest = RATIO * self.image.size + SLACK + MAX_DATA  # the file declares no more
        while True:
            kind, size = FRAME.unpack(self._receive(FRAME.size))
            fewest, most = BODIES.get(kind, (1, 0))
            room -= FRAME.size + size if kind != b"G" else 0
            if room < 0 or not fewest <= size <= min(most, largest) or kind not in ANSWERS[asked]:
                raise self._lost("sent an invalid message")
            body = self._receive(size)
            if kind == b"." and self._received:
                raise self._lost("sent more than it was asked for")
            yield kind, body

    def _give(self, start: int, size: int) -> None:
        """Send a range of the file, in pieces: it may be all of it."""
        if not size or start + size > self.image.size:
            raise self._lost("asked for bytes that are not there")
        self._fed = True
        for at in range(start, start + size, PIECE):
            self._send(self._source.read(at, min(PIECE, start + size - at)))

    def _send(self, data: bytes) -> None:
        pipe, view = self._process.stdin, memoryview(data)
        try:
            while pipe is not None and view:
                sent = pipe.write(view)
                if sent is None:  # the pipe is full
                    self._wait(pipe, reading=False)
                view = view[sent or 0 :]
        except OSError:
            raise self._lost("") from None

    def _receive(self, size: int) -> bytes:
        """Read exactly `size` bytes; the child is killed when nothing comes for `SILENCE` seconds."""
        pipe, received = self._process.stdout, self._received
        watch = threading.Timer(SILENCE, self._process.kill) if os.name == "nt" else None
        if watch:
            watch.start()
        while pipe is not None and len(received) < size:
            if not watch:
                self._wait(pipe, reading=True)
            piece = pipe.read(max(PIPE, min(size - len(received), PIECE)))
            if not piece:
                raise self._lost("")
            received += piece
        if watch:
            watch.cancel()
        out = bytes(received[:size])
        del received[:size]
        return out

    def _wait(self, pipe: IO[bytes], *, reading: bool) -> None:
        """Wait until the pipe can be used; for `SILENCE` seconds, and until the time for the answer is over."""
        import select

        left = self._due - time.monotonic()
        poll = select.poll()
        poll.register(pipe.fileno(), select.POLLIN if reading else select.POLLOUT)
        ready = left > 0 and poll.poll(min(SILENCE, left) * 1000)
        if not ready:
            raise self._lost("took too long" if left < SILENCE else f"was silent for {SILENCE:.0f} seconds")

    def _lost(self, why: str) -> CkptError:
        self._process.kill()
        status = self._process.wait()
        if status == -getattr(signal, "SIGXCPU", 0):
            why = f"made no progress in {CPU_STEP} seconds"
        why = why or (f"died with signal {-status}" if status < 0 else f"ended with status {status}")
        return CorruptCheckpoint(f"the HDF5 library {why} on this file: it is damaged or hostile", url=self.image.url)

    def close(self) -> None:
        self._source.close()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


def _error(body: bytes, url: str, *, fed: bool) -> CkptError:
    """The error that the child reports; fed: it has seen bytes of the file, whose author may write the message."""
    try:
        kind, message = (printable(str(text)) for text in json.loads(body))
    except (ValueError, TypeError, RecursionError):
        return CorruptCheckpoint("the HDF5 library ended with an invalid message: the file is hostile", url=url)
    if kind == "missing" and not fed:
        text = "HDF5 needs the package h5py, which is not sought in the working folder"
        return MissingExtra(f"{text}: {message}", url=url)
    return (UnsafeCheckpoint if kind == "unsafe" else CorruptCheckpoint)(message, url=url)


_idle: dict[int, list[Child]] = {}  # by process id, so that a fork does not share a pipe


def ask(image: FileImage, **request: str) -> Iterator[tuple[bytes, bytes]]:
    """Send a request to an idle or new child that serves `image`; the child stays idle afterwards unless it fails."""
    idle = _idle.setdefault(os.getpid(), [])
    child = next((idle.pop(i) for i, c in enumerate(idle) if c.image.name == image.name), None) or Child(image)
    try:
        yield from child.ask(**request)
    except BaseException:  # including GeneratorExit: the rest of an answer that is not read to its end is in the pipe
        child.close()
        raise
    idle.append(child)
    while len(idle) > MAX_IDLE:
        idle.pop(0).close()
