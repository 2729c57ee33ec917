"""The process that runs the HDF5 library: it limits itself, then lists a file and reads datasets (see sandbox.py).

    parent -> here    JSON lines: {"size", "open"} first, then a path to read, or null to list the file;
                      the bytes that a G asks for
    here -> parent    frames: kind u8, size u32le, body
                      G  start u64le, size u64le: asks for bytes of the file
                      R  one group or dataset, JSON: see file.py
                      D  elements of a dataset as they are stored, in C order
                      U, C  the message of an UnsafeCheckpoint or a CorruptCheckpoint
                      .  the end; with a body: this process has worked enough, start another

Refused: links other than hard links, groups that are reached twice, external or virtual storage, and filters outside
`FILTERS`. Only what this needs is imported.
Specification: HDF5 File Format 3.0, docs.hdfgroup.org/hdf5/develop/_f_m_t3.html
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from math import prod
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn

import h5py
import numpy as np

from ...messages import cut
from . import FRAME, MAX_DATA, NO_DATA, PIECE, RATIO

CPU, CPU_PER_MB = 30, 1  # seconds of processor time, and more for each megabyte of the file
MIN_MEMORY, MAX_MEMORY = 1 << 30, 4 << 30  # bytes of address space, most of which the libraries' own pages take
MAX_DEPTH = 64
MAX_BOX = 128 << 20  # bytes that are read at once where chunks are large
CHUNK = 6 << 10  # bytes of memory that the library takes for each chunk from which it reads
BLOCK, MAX_BLOCKS = 1 << 16, 256  # the library reads metadata in small parts, which are fetched in blocks

FILTERS = {1, 2, 3, 32000}  # deflate, shuffle, fletcher32 and h5py's own lzf, which need no plugin
ATTRIBUTES = {h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.STRING, h5py.h5t.BITFIELD, h5py.h5t.ENUM}
NUMBERS = "float32 float64 float16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64 complex128"


class Refused(Exception):
    """(kind, message): kind is b'U', unsafe, or b'C', corrupt."""


def main() -> NoReturn:
    """Serve one file over the standard pipes until the parent closes them; exit after an error."""
    answer, out = sys.stdin.buffer, sys.stdout.buffer
    rehearse()
    about = json.loads(answer.readline() or '{"size": 0, "open": true}')
    size = about["size"]
    try:
        seconds = seal(size, may_stay_open=about["open"])
        file: Any = None
        for line in answer:
            file = file or h5py.File(Piped(out, answer, size), "r", rdcc_nbytes=32 << 20)
            path = json.loads(line)
            kind, bodies = (b"R", listing(file)) if path is None else (b"D", elements(file, path))
            for body in bodies:
                send(out, kind, body)
            send(out, b".", b"x" * (time.process_time() > seconds / 2))
            out.flush()
    except Exception as e:  # a damaged file can raise anything in the library
        kind, message = e.args if isinstance(e, Refused) else (b"C", f"is not valid HDF5: {type(e).__name__}: {e}")
        send(out, kind, cut(message, 500).encode(errors="replace"))
        out.flush()
    os._exit(0)


def send(out: BinaryIO, kind: bytes, body: bytes) -> None:
    out.write(FRAME.pack(kind, len(body)))
    out.write(body)


def rehearse() -> None:
    """List and read a small file of our own, so that all imports happen before `seal`."""
    h5py._errors.silence_errors()
    with h5py.File(io.BytesIO(), "w") as f:
        f.attrs["texts"] = ["x"]
        f["number"], f.attrs["number"] = 1.0, 1.0
        list(listing(f))
        for path in f:
            list(elements(f, path))


def seal(size: int, *, may_stay_open: bool = False) -> int:
    """Limit memory and time by the size of the file, forbid opening files, and enter the jail; return the seconds.

    Refused where a system that has the jail does not let this process enter it, unless the user said that it may be so.
    """
    memory = min(MAX_MEMORY, MIN_MEMORY + 3 * RATIO * size)  # one chunk of nothing but zeros, packed, plain and copied
    seconds = CPU + CPU_PER_MB * (size >> 20)
    lower(AS=memory, CPU=seconds, CORE=0, FSIZE=0, NOFILE=0)
    try:
        enter_jail()
    except OSError as e:
        text = f"is not read: this system does not let the process of the HDF5 library give up its rights ({e})"
        if not may_stay_open:
            raise Refused(b"U", f"{text}; CKPTCONV_UNJAILED=1 reads files that you trust") from None
    return seconds


def lower(**limits: int) -> None:
    """Lower limits of this process for good, each by itself: systems differ in those that can be set."""
    with suppress(ImportError):
        import resource

        for name, most in limits.items():
            what = getattr(resource, f"RLIMIT_{name}")
            soft, hard = (most if n == resource.RLIM_INFINITY else min(n, most) for n in resource.getrlimit(what))
            with suppress(ValueError, OSError):
                resource.setrlimit(what, (soft, hard))


class Piped(io.RawIOBase):
    """The file whose bytes the parent sends; small reads are served from cached blocks."""

    def __init__(self, ask: BinaryIO, answer: BinaryIO, size: int) -> None:
        self._ask, self._answer, self.size = ask, answer, size
        self._position = 0
        self._block = lru_cache(MAX_BLOCKS)(lambda number: self._fetch(number * BLOCK, BLOCK))

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, with zeros after the end of the file."""
        view, done = memoryview(buffer).cast("B"), 0
        while (start := self._position) < self.size and done < len(view):
            wanted, (number, skip) = len(view) - done, divmod(start, BLOCK)
            large = wanted > BLOCK
            piece = self._fetch(start, min(wanted, PIECE)) if large else self._block(number)[skip : skip + wanted]
            view[done : done + len(piece)] = piece
            done, self._position = done + len(piece), start + len(piece)
        view[done:] = bytes(len(view) - done)
        return len(view)

    def _fetch(self, start: int, size: int) -> bytes:
        size = min(size, self.size - start)
        send(self._ask, b"G", struct.pack("<QQ", start, size))
        self._ask.flush()
        data = self._answer.read(size)
        if len(data) != size:
            os._exit(1)  # the parent is gone
        return data


# --- listing ----------------------------------------------------------------------------------------------------------


def listing(file: Any) -> Iterator[bytes]:
    """The records of an open file, as bodies of frames."""
    return (json.dumps(record, separators=(",", ":"), default=plain).encode() for record in records(file))


def records(file: Any) -> Iterator[dict[str, Any]]:
    """Walk all hard links depth first, each group in the order of its links; refuse all other ways to reach data."""
    root = h5py.h5g.open(file.id, b"/")
    yield {"path": "", "group": True, "attrs": attributes(root)}
    first = {int(h5py.h5o.get_info(root).addr): ""}  # the first path of an object, by its address
    todo = [(root, "", links(root))]
    while todo:
        group, above, left = todo[-1]
        if not left:
            todo.pop()
            continue
        _, name, kind, address = left.pop()
        path = f"{above}/" * bool(above) + name.decode("utf-8", "surrogateescape")
        if kind != h5py.h5l.TYPE_HARD:
            raise Refused(b"U", f"{path} is a soft link or an external link; only data in the file itself is read")
        if b"/" in name or name in (b"", b"."):  # the library would take it for a path, and open something else
            raise Refused(b"C", f"the group /{above} has a link named {name!r}, which is not a name")
        thing = h5py.h5o.open(group, name)
        if isinstance(thing, h5py.h5g.GroupID):
            if address in first:
                raise Refused(b"U", f"the group {path} is the group /{first[address]} again: links go in circles")
            if len(todo) >= MAX_DEPTH:
                raise Refused(b"U", f"groups are nested more than {MAX_DEPTH} deep")
            todo.append((thing, path, links(thing)))
            yield {"path": path, "group": True, "attrs": attributes(thing)}
        elif address in first:
            yield {"path": path, "same": first[address]}
        elif isinstance(thing, h5py.h5d.DatasetID):
            yield {"path": path, "attrs": attributes(thing)} | dataset(thing, path)
        else:
            yield {"path": path, "skip": f"a named datatype {NO_DATA}"}
        first.setdefault(address, path)


def links(group: Any) -> list[tuple[int, bytes, int, int]]:
    """The order, name, kind and address of each link of a group, the first one last.

    One call for a group: to ask for each link, and for the group's properties, takes longer than to open the object.
    """
    out: list[tuple[int, bytes, int, int]] = []
    group.links.iterate(lambda name, i: out.append((i.corder * i.corder_valid, name, i.type, i.u)), info=True)
    return sorted(out, key=itemgetter(0))[::-1]


def dataset(thing: Any, path: str) -> dict[str, Any]:
    """Describe a dataset: dtype, shape, and the offset of its bytes (-1: they are to be read by the library)."""
    plan, kind, space = thing.get_create_plist(), thing.get_type(), thing.get_space()
    layout = plan.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        raise Refused(b"U", f"{path} is a virtual dataset: its bytes come from other files")
    if plan.get_external_count():
        raise Refused(b"U", f"{path} keeps its bytes in an external file")
    filters = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}
    if unknown := filters - FILTERS:
        what = f"{path} needs the filter {min(unknown)}, which is not trusted"
        raise Refused(b"U", f"{what}; write it without compression, or with gzip or lzf")
    if space.get_simple_extent_type() == h5py.h5s.NULL:
        return {"skip": f"an empty dataspace {NO_DATA}"}
    dtype, swap = element(kind)
    if not dtype:
        if kind.get_class() == h5py.h5t.FLOAT and is_damaged(kind):
            raise Refused(b"C", f"{path} has floats whose sign, exponent and mantissa do not fit together: damaged")
        return {"skip": "its elements are of a type that frameworks do not write"}
    record = {"dtype": dtype, "swap": swap, "shape": space.shape, "itemsize": kind.get_size()}
    if layout == h5py.h5d.CHUNKED and filters:  # others are read in part
        record["chunk"] = prod(plan.get_chunk()) * kind.get_size()
    if layout == h5py.h5d.CONTIGUOUS and thing.get_storage_size() and 0 not in space.shape:
        record["offset"] = thing.get_offset()  # if something was ever written to it; else, it is the fill value
    return record


def is_damaged(kind: Any) -> bool:
    """Whether the fields of an unknown float of several bytes do not meet, or its bias is not IEEE's, as in all others.

    VAX has biases of its own, as have the floats of one byte.
    """
    sign, exponent, width, mantissa, bits = kind.get_fields()
    fields = mantissa + bits, exponent + width, mantissa, sign + 1 - mantissa, 2 ** (width - 1) - 1
    regular = exponent, sign, kind.get_offset(), kind.get_precision(), kind.get_ebias()
    return kind.get_size() > 1 and kind.get_order() != h5py.h5t.ORDER_VAX and fields != regular


def attributes(thing: Any) -> dict[str, Any]:
    """All attributes of an object; of those that are neither numbers nor text, an entry '?name' remains."""
    names: list[bytes] = []
    out: dict[str, Any] = {}
    if h5py.h5a.get_num_attrs(thing):
        h5py.h5a.iterate(thing, names.append)
    for name in sorted(names):
        text = name.decode("utf-8", "surrogateescape")
        if h5py.h5a.open(thing, name).get_type().get_class() in ATTRIBUTES:
            out[text] = h5py.AttributeManager(SimpleNamespace(id=thing))[name]
        else:
            out["?" + text] = None
    return out


def plain(value: Any) -> Any:
    """What JSON does not know of the value of an attribute, as values that it knows."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return None if isinstance(value, h5py.Empty) else value.tolist()


def element(kind: Any) -> tuple[str, bool]:
    """Map an HDF5 type to (dtype or '' if it is none, whether its bytes must be swapped)."""
    if kind.get_class() == h5py.h5t.OPAQUE:
        return "opaque", False
    return next(((name, swap) for known, name, swap in types() if known.equal(kind)), ("", False))


@cache
def types() -> list[tuple[Any, str, bool]]:
    """The HDF5 types that have a dtype: the type, the dtype, and whether its bytes must be swapped."""
    t = h5py.h5t
    out = [(t.STD_I8BE, "int8", False), (t.STD_U8BE, "uint8", False)]
    for big in (False, True):
        for name in NUMBERS.split():
            own = np.dtype(name).newbyteorder(">" if big else "<")
            out.append((t.py_create(own, logical=True), name, big))
    return out


# --- reading ----------------------------------------------------------------------------------------------------------


def elements(file: Any, path: str) -> Iterator[bytes]:
    """The elements of a dataset as they are stored, in C order and bounded pieces."""
    stored = h5py.Dataset(h5py.h5d.open(file.id, path.encode("utf-8", "surrogateescape")))
    kind, space = stored.id.get_type(), stored.id.get_space()
    itemsize = kind.get_size()
    chunk = CHUNK // prod(stored.chunks) if stored.chunks else 0
    for box in boxes(stored.shape, stored.chunks, itemsize + chunk):
        out = np.empty([stop - start for start, stop in box], f"V{itemsize}")
        if box:
            space.select_hyperslab(tuple(start for start, _ in box), out.shape)
        stored.id.read(h5py.h5s.create_simple(out.shape), space, out, mtype=kind)
        data = out.reshape(-1).view("u1")
        yield from (data[start : start + MAX_DATA].tobytes() for start in range(0, len(data), MAX_DATA))


def boxes(
    shape: tuple[int, ...], chunks: tuple[int, ...] | None, itemsize: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut a shape into boxes [(start, stop), ...] in C order, of about `MAX_DATA` bytes and complete rows of chunks.

    Rows of very large chunks are decoded more than once. A row that is very large itself is cut along the next axis.
    """
    if not shape or not prod(shape):
        yield from [()] if not shape else []
        return
    step, row = chunks[0] if chunks else 1, prod(shape[1:]) * itemsize
    if row > MAX_BOX and len(shape) > 1:
        for i in range(shape[0]):
            for inner in boxes(shape[1:], chunks and chunks[1:], itemsize):
                yield ((i, i + 1), *inner)
        return
    rows = min(max(MAX_DATA // (step * row), 1) * step, max(MAX_BOX // row, 1))
    for start in range(0, shape[0], rows):
        yield ((start, min(start + rows, shape[0])), *((0, n) for n in shape[1:]))


# --- the jail: a filter of system calls, for computing and the open pipes ---------------------------------------------
#
#     capset(no capabilities)             root could raise its limits again, and take pages from the machine (madvise)
#     prctl(PR_SET_NO_NEW_PRIVS)          without it only root may install a filter
#     prctl(PR_SET_SECCOMP, FILTER, p)    p: a BPF program over {nr u32, arch u32, ip u64, args u64[6]}
#
# Other calls fail with EPERM: files, sockets, forks, exec, signals, ptrace, limits, other processes' memory. Memory can
# be mapped but not made executable. Linux on x86-64 and AArch64. Specification: seccomp(2), linux/filter.h, capset(2).

NO_NEW_PRIVS, SET_SECCOMP, GET_SECCOMP, FILTER = 38, 22, 21, 2
NO_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0), bytes(24)  # version 3, this process; two sets of three words
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter: fail with errno 1, EPERM
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments are 8 bytes each
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
EXECUTABLE = 4  # PROT_EXEC

# Calls for computing, allocating, reading and writing open files, and exiting: name -> number on each machine.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # its column below, and what the kernel calls it
FREE = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233), "nanosleep": (35, 101), "getpid": (39, 172),
    "exit": (60, 93), "getrusage": (98, 165), "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "getrandom": (318, 278),
    "rseq": (334, 293),
}  # fmt: skip
MAPPING = {"mmap": (9, 222), "mprotect": (10, 226)}  # allowed only if the third argument does not say executable


def program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as (code, jump if true, jump if false, value); a jump is the number of instructions to skip."""
    column, architecture = MACHINES[machine]
    out = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, REFUSE), (LOAD, 0, 0, NUMBER)]
    for numbers in FREE.values():
        out += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, ALLOW)]
    for numbers in MAPPING.values():
        out += [(EQUAL, 0, 4, numbers[column]), (LOAD, 0, 0, ARGUMENT + 16), (ANY_BIT, 0, 1, EXECUTABLE)]
        out += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return [*out, (RETURN, 0, 0, REFUSE)]


class _Program(ctypes.Structure):
    """struct sock_fprog: the number of instructions and their address."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def enter_jail() -> bool:
    """Install the filter for the rest of this process's life; False if there is none for this system.

    OSError if it cannot be installed, or is not obeyed: an emulator may only say that it did.
    """
    machine = os.uname().machine if sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8 else ""
    if machine not in MACHINES:
        return False
    code = b"".join(struct.pack("=HBBI", *i) for i in program(machine))
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = libc.prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    filtering = ctypes.byref(_Program(len(code) // 8, code))
    calls = ((libc.capset, NO_CAPABILITIES), (prctl, (NO_NEW_PRIVS, 1, None, 0, 0)),
             (prctl, (SET_SECCOMP, FILTER, filtering, 0, 0)))  # fmt: skip
    if any(call(*arguments) for call, arguments in calls):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if prctl(GET_SECCOMP, 0, None, 0, 0) != -1:
        raise OSError(errno.ENOSYS, "the filter of system calls has no effect")
    return True
