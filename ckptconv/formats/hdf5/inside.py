"""The child's side of child.py: first limits, then h5py over a file at the other end of the pipe.

After `seal` the process can only compute and use its pipes: see jail.py, and SECURITY.md for the limits by system.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from ...storage.ranges import FileObject
from . import jail
from .child import COMMAND, CPU_PER_MB, CPU_STEP, CPU_TOTAL, FRAME, MAX_DATA, MEMORY, RECORD_RATIO
from .scan import RATIO, Refused, pieces, tree

BLOCK = 1 << 16  # bytes; the library reads metadata in small parts, which are fetched in blocks
MAX_BLOCKS = 256
MAX_MESSAGE = 2000  # characters
FRUGAL, MORE_FRUGAL = 48, 128 << 20  # bytes of memory to read all but numbers, per byte that is stored and in addition
MIN_MEMORY = 1 << 30  # bytes of address space, most of which the libraries' own pages take


class Piped:
    """The file whose bytes the parent sends; small reads are served from cached blocks."""

    url = ""

    def __init__(self, ask: BinaryIO, answer: BinaryIO, size: int) -> None:
        self._out, self._in, self.size = ask, answer, size
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def read(self, start: int, size: int) -> bytes:
        return self._fetch(start, size) if size > BLOCK else self._cached(start, size)

    def _cached(self, at: int, want: int) -> bytes:
        out = bytearray()
        while len(out) < want:
            number, skip = divmod(at + len(out), BLOCK)
            if number not in self._blocks:
                self._blocks[number] = self._fetch(number * BLOCK, min(BLOCK, self.size - number * BLOCK))
                if len(self._blocks) > MAX_BLOCKS:
                    self._blocks.popitem(last=False)
            out += self._blocks[number][skip : skip + want - len(out)]
        return bytes(out)

    def _fetch(self, start: int, size: int) -> bytes:
        if not size:
            return b""
        send(self._out, b"G", struct.pack("<QQ", start, size))
        data = self._in.read(size)
        if len(data) != size:
            raise SystemExit(1)  # the parent is gone
        return data

    def close(self) -> None:
        """The pipes end with the process."""


def send(out: BinaryIO, kind: bytes, body: bytes = b"") -> None:
    out.write(FRAME.pack(kind, len(body)) + body)
    if kind != b"R":  # records are many and small
        out.flush()
        headway()


def headway() -> None:
    """Allow some more seconds of processor time, up to the total: damaged files can make the library loop."""
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        soon = int(time.process_time()) + CPU_STEP + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soon if most == resource.RLIM_INFINITY else min(soon, most), most))
    except (ImportError, ValueError, OSError):
        pass


def taken() -> int:
    """The bytes of address space in use, 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def allow(memory: int) -> None:
    """Bound the address space for a while; 0: only as `seal` did. The library unfolds texts that are shared."""
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        memory = memory or most
        resource.setrlimit(resource.RLIMIT_AS, (memory if most == resource.RLIM_INFINITY else min(memory, most), most))
    except (ImportError, ValueError, OSError):
        pass


def limit() -> None:
    """Limit memory and forbid writing files, where the system has resource limits."""
    lower(AS=MEMORY, CORE=0, FSIZE=0)


def lower(**bounds: int) -> None:
    """Lower limits of this process for good, each by itself: systems differ in those that can be set."""
    try:
        import resource
    except ImportError:
        return
    for name, bound in bounds.items():
        what = getattr(resource, f"RLIMIT_{name}")
        soft, hard = (bound if n == resource.RLIM_INFINITY else min(n, bound) for n in resource.getrlimit(what))
        try:
            resource.setrlimit(what, (soft, hard))
        except (ValueError, OSError):
            pass


def rehearse() -> None:
    """Read a small file of our own once, so that all imports happen before `seal`."""
    import h5py
    import numpy as np

    with h5py.File(io.BytesIO(), "w") as f:
        f.create_dataset("a/b", data=np.zeros((4, 4), ">f4"), chunks=(2, 2), compression="gzip")
        f["s"] = np.array([b"x", b"y"], object)
        f["t"] = "x"
        f.attrs["n"], f.attrs["l"], f.attrs["s"] = 1.0, ["x"], b"x"
        for record in list(tree(f, 1 << 20)):
            for _ in () if "group" in record else pieces(f, str(record["path"]), 1 << 20):
                pass


def seal(size: int, *, may_stay_open: bool = False) -> None:
    """Forbid opening files, after all imports, and bound memory by the size of the file; then enter the jail.

    Refused where a system that has the jail does not let this process enter it, unless the user said that it may be so.
    """
    most = min(MEMORY, MIN_MEMORY + 3 * RATIO * size)  # one chunk of nothing but zeros, packed, plain and copied
    lower(AS=most, NOFILE=0, CPU=int(time.process_time()) + CPU_TOTAL + CPU_PER_MB * (size >> 20))
    try:
        jail.enter()
    except OSError as e:
        text = f"is not read: this system does not let the process of the HDF5 library give up its rights ({e})"
        if not may_stay_open:
            raise Refused("unsafe", f"{text}; CKPTCONV_UNJAILED=1 reads files that you trust") from None


def main() -> None:
    """Serve one file over the standard pipes, on systems that cannot fork."""
    answer, ask = os.dup(0), os.dup(1)
    quiet()
    attend(answer, ask, prepare())


def nursery() -> None:
    """Import everything once, then fork a child for each file; this process itself never reads a byte of any file.

    parent -> here    'F', 8 unused bytes, and two descriptors: fork a child for these pipes; the answer is its id
                      'K', a child's id: kill it; the answer is its exit status
    """
    door = socket.socket(fileno=os.dup(0))
    quiet()
    missing = prepare()
    children: set[int] = set()
    while True:
        message, pipes, _, _ = socket.recv_fds(door, COMMAND.size, 2)
        if len(message) != COMMAND.size:
            break
        what, pid = COMMAND.unpack(message)
        if what == b"F":
            pid = os.fork()
            if not pid:
                door.close()
                attend(pipes[0], pipes[1], missing)
            for fd in pipes:
                os.close(fd)
            children.add(pid)
            door.sendall(COMMAND.pack(b"F", pid))
        elif pid in children:
            os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            children.remove(pid)
            door.sendall(COMMAND.pack(b"K", status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def quiet() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def prepare() -> str:
    """Set limits and import h5py; return the message of a failed import, or ''."""
    limit()
    try:
        import h5py
    except ImportError as e:
        return str(e)
    h5py._errors.silence_errors()
    rehearse()
    return ""


def attend(fd_in: int, fd_out: int, missing: str) -> NoReturn:
    """Serve one file until the parent closes the pipe, then exit."""
    answer = os.fdopen(fd_in, "rb")
    ask = os.fdopen(fd_out, "wb", buffering=1 << 16)
    first = json.loads(answer.readline() or b"{}")
    if missing or "size" not in first:
        send(ask, b"E", json.dumps(["missing", missing]).encode())
        os._exit(0)
    size, file = first["size"], None
    before = taken()
    try:
        seal(size, may_stay_open=first.get("open", False))
    except Refused as e:
        send(ask, b"E", failure(e))
        os._exit(0)
    import h5py

    headway()
    for line in answer:
        request = json.loads(line)
        plain = request["do"] == "read" and "text" not in request
        allow(0 if plain or not before else before + FRUGAL * first["packed"] + MORE_FRUGAL)
        try:
            file = file or h5py.File(FileObject(Piped(ask, answer, size)), "r", rdcc_nbytes=32 << 20)
            for kind, body in serve(file, request, size):
                send(ask, kind, body)
            send(ask, b".")
        except Exception as e:  # a damaged file can raise anything in the library
            send(ask, b"E", failure(e))
    os._exit(0)


def failure(e: Exception) -> bytes:
    """The body of an error's frame."""
    said = e.args if isinstance(e, Refused) else ("corrupt", f"is not valid HDF5: {type(e).__name__}: {e}")
    return json.dumps([text[:MAX_MESSAGE] for text in said]).encode()


def serve(file: Any, request: dict[str, str], size: int) -> Iterator[tuple[bytes, bytes]]:
    """Answer one request in frames."""
    if request["do"] == "scan":
        room = RECORD_RATIO * size + 2**20
        for record in tree(file, size):
            body = json.dumps(record).encode()
            room -= FRAME.size + len(body)
            if room < 0:  # many names with one long path, or attributes that share texts
                raise Refused("unsafe", f"its names and attributes unfold without bound in a file of {size} bytes")
            yield b"R", body
        return
    for piece in pieces(file, request["path"], size):
        if isinstance(piece, bytes):
            for at in range(0, len(piece), MAX_DATA):
                yield b"D", piece[at : at + MAX_DATA]
        else:
            yield from _texts(piece)


def _texts(items: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Strings in frames of which each is full with its last one."""
    body = bytearray()
    for item in items:
        body += struct.pack("<I", len(item)) + item
        if len(body) >= MAX_DATA:
            yield b"S", bytes(body)
            body.clear()
    if body:
        yield b"S", bytes(body)
