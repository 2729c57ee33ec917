"""Run the HDF5 library in a process of its own, which can crash, hang or exhaust its memory without harm to ours.

The library has some forty open memory errors on damaged files (CVE-2025-2153, -6269, -6816 ...). Its process, whose
messages worker.py draws, asks for ranges of the file over a pipe, and we answer from the one file that we opened, so no
link can lead elsewhere. Code of an attacker may run in it: its rights, memory and time are limited, its answers bounded
here and checked by file.py.

A process serves one file. It takes 0.1 s to start, so the last ones are kept for the next dataset, and where several
files are read, one is started ahead. Contiguous datasets, nearly all in practice, are not read through it.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import CorruptCheckpoint, MissingExtra, UnsafeCheckpoint
from ...messages import printable
from ...storage.files import Reader
from ...storage.ranges import Slice
from . import FRAME, MAX_FRAME, PIECE

SECONDS, SECONDS_PER_MB = 600, 20  # for an answer: a server may send the file, and a disk take the output, so slowly
LOCATING = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # variables that locate libraries
SETTINGS = {"HDF5_PLUGIN_PRELOAD": "::", "HDF5_USE_FILE_LOCKING": "FALSE"}
SETTINGS |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
UNJAILED = "CKPTCONV_UNJAILED"  # set to 1 by who trusts the files, on a system that does not let its jail be entered
MAX_IDLE = 3  # processes kept for the next request about their files


class FileImage(NamedTuple):
    """The bytes of an HDF5 file, which the library reads: a complete file, or a member of an archive."""

    name: str  # identifies the content: url, member, and the file's stamp
    url: str
    start: int  # where it begins in the file at `url`
    size: int

    def source(self) -> Slice:
        return Slice(Reader(self.url), self.start, self.size)


class Worker:
    """One process; the first request binds it to a file."""

    def __init__(self) -> None:
        self.name = ""  # of the file that it serves
        self.spent = False
        self._source: Slice | None = None
        self.process = _start()

    def ask(self, image: FileImage, path: str | None) -> Iterator[bytes]:
        """Send a request and yield the bodies of the frames R or D of the answer."""
        watch = threading.Timer(SECONDS + SECONDS_PER_MB * (image.size >> 20), self.process.kill)
        watch.daemon = True
        watch.start()
        fed = bool(self.name)
        request = json.dumps(path).encode() + b"\n"
        if self._source is None:
            self.name, self._source = image.name, image.source()
            about = {"size": image.size, "open": os.environ.get(UNJAILED) == "1"}
            request = json.dumps(about).encode() + b"\n" + request
        try:
            self._send(request)
            while True:
                kind, size = FRAME.unpack(self._receive(FRAME.size))
                allowed = (b"RGUC." if path is None else b"DGUC.") if size else b"."
                if size > MAX_FRAME or kind not in allowed:
                    raise ValueError("sent an invalid message")
                body = self._receive(size)
                if kind == b"G":
                    start, wanted = struct.unpack("<QQ", body)
                    if not 0 < wanted <= PIECE or start + wanted > image.size:
                        raise ValueError("asked for bytes that are not there")
                    fed = True
                    self._send(self._source.read(start, wanted))
                elif kind in b"UC":
                    error = UnsafeCheckpoint if kind == b"U" else CorruptCheckpoint
                    raise error(printable(body[:4096].decode(errors="replace")), url=image.url)
                elif kind == b".":
                    self.spent = bool(body)
                    return
                else:
                    yield body
        except (OSError, EOFError, ValueError, struct.error) as e:
            self.process.kill()
            status = self.process.wait()
            if status == 1 and not fed:  # it has seen nothing of the file, whose author could speak otherwise
                what = "HDF5 needs the package h5py, which is not sought in the working folder"
                raise MissingExtra(what, url=image.url) from None
            did = e if isinstance(e, ValueError) else f"crashed, or took too much memory or time (status {status}),"
            what = f"the HDF5 library {did} on this file: it is damaged or hostile"
            raise CorruptCheckpoint(what, url=image.url) from None
        finally:
            watch.cancel()

    def _send(self, data: bytes) -> None:
        self.process.stdin.write(data)  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    def _receive(self, size: int) -> bytes:
        data = self.process.stdout.read(size)  # type: ignore[union-attr]
        if len(data) != size:
            raise EOFError
        return data

    def close(self) -> None:
        if self._source:
            self._source.close()
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was not sent cannot be
                pipe.close()  # type: ignore[union-attr]

    def __del__(self) -> None:
        if hasattr(self, "process"):
            self.close()


def _start() -> subprocess.Popen[bytes]:
    """Start worker.py, with only the environment variables that locate libraries."""
    here = str(Path(__file__).resolve().parents[3])
    code = f"import sys; sys.path[:] = {[here, *search_path()]!r}; from {__package__}.worker import main; main()"
    environ = {k: os.environ[k] for k in LOCATING if k in os.environ} | SETTINGS
    command, pipe = [sys.executable, "-I", "-S", "-c", code], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environ)


def search_path() -> list[str]:
    """`sys.path` without the working folder, which `python -m` adds, unless packages are installed there."""
    try:
        here = {os.path.realpath(os.getcwd())}
    except OSError:  # it is gone
        here = set()
    here -= {os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    return [p for p in sys.path if isinstance(p, str) and p and os.path.realpath(p) not in here]


_idle: dict[int, list[Worker]] = {}  # by process id, so that a fork does not share a pipe
_lock = threading.Lock()


def prepare() -> None:
    """Start a process for the next file if none is ready, and do not wait for it."""
    with _lock:
        idle = _idle.setdefault(os.getpid(), [])
        if all(w.name for w in idle):
            idle.append(Worker())


def ask(image: FileImage, path: str | None = None) -> Iterator[bytes]:
    """List a file (records) or read the dataset at `path` (elements), by a process that has the file or a new one."""
    with _lock:
        idle = _idle.setdefault(os.getpid(), [])
        idle[:] = [w for w in idle if w.process.poll() is None]
        ready = [w for name in (image.name, "") for w in idle if w.name == name]
        if ready:
            idle.remove(ready[0])
    worker = ready[0] if ready else Worker()
    try:
        yield from worker.ask(image, path)
    except BaseException:  # including GeneratorExit: the rest of an answer that is not read to its end is in the pipe
        worker.close()
        raise
    if worker.spent:
        worker.close()
        return
    with _lock:
        idle.append(worker)
        if len(idle) > MAX_IDLE:
            idle.pop(0).close()
    if len(idle) == MAX_IDLE:  # several files were read: there will be more
        prepare()
