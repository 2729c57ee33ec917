"""NumPy's .npy: a magic number, a Python literal, an array's bytes. A file is one tensor; a folder is a checkpoint.

    93 "NUMPY" major minor                  versions 1.0, 2.0, 3.0
    u16le (1.0) or u32le (2.0, 3.0)         length of the literal, spaces and newline that follow
    {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
    the elements, in C or Fortran order

An array of objects ('|O') is a pickle, read by the pickle machine, which runs nothing; arrays in its dicts are tensors.
In a folder, `a%2Fb.npy` holds the tensor `a/b`. NumPy loses the names of ml_dtypes' types: '<V2' is read as bfloat16,
'<f1' as float8_e5m2, and '<V1', which is ambiguous, as uint8; each with a note.
Specification: numpy.lib.format, NEP 1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from ..checkpoint import Checkpoint, Note, Tensor, contiguous, view
from ..dtypes import DTYPES, DType
from ..errors import CorruptCheckpoint, NameCollision, Unrepresentable, UnsafeCheckpoint
from ..messages import brief, listing
from ..moves.part import Data, Span, c_strides, checked_count, is_vast
from ..output.destination import OutputFile
from ..storage.files import Reader, Seen, is_dir, names, read_all, split, within
from . import Located, own_metadata
from .placement import Patch, Placement, Slot, is_text, refuse_unheld
from .table import NPY, Reading

SUFFIX = ".npy"
OURS = "ckptconv.json"  # metadata of ours in a folder (own_metadata.py)
MAX_OURS = 64 << 20
MAX_HEAD = 12 + 2**16  # bytes; NumPy writes at most 64 KiB as version 1.0, and no plain array needs more
MAX_LITERAL = 10_000  # characters, as in NumPy, of what is parsed like Python
MAX_AXES = 64
MAX_DESCR = 200  # characters that are kept of a dtype that is not read
SPELLING = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64",
    "c16": "complex128",
}  # fmt: skip
ASSUMED = {"V2": "bfloat16", "f1": "float8_e5m2", "V1": "uint8"}
DESCR = {name: ("|" if DTYPES[name].itemsize == 1 else "<") + code for code, name in SPELLING.items()}


class Head(NamedTuple):
    """The header of an .npy file; the elements begin at byte `size` and take `nbytes` bytes."""

    descr: str
    fortran: bool
    shape: tuple[int, ...]
    size: int
    nbytes: int
    kind: DType | None  # None: no dtype fits, and `nbytes` is 0

    @property
    def swapped(self) -> bool:
        return self.descr[0] == ">" and self.descr[1] != "V" and self.kind is not None and self.kind.word > 1


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 2 if any(n.endswith(SUFFIX) for n in seen.files) else 0
    return 3 if seen.head.startswith(NPY) else int(seen.base.endswith(SUFFIX))


def open(url: str, how: Reading) -> Checkpoint:
    if not is_dir(url):
        head, data = located(url, how.opaque)
        name = "" if isinstance(data, Checkpoint) else split(url)[1].removesuffix(SUFFIX)
        return collect([(name, head, data)], (url,), "npy", Note("unread", ""))
    files = [n for n in names(url) if n.endswith(SUFFIX)]
    others = tuple(n for n in names(url) if not n.endswith(SUFFIX) and n != OURS)
    urls = tuple(within(url, n) for n in files)
    arrays = [(_name(n), *located(path, how.opaque)) for n, path in zip(files, urls, strict=True)]
    found = collect(arrays, urls, "npy", Note("unread", "files other than .npy", others, tensors=False))
    if OURS not in names(url):
        return found
    return replace(found, metadata=own_metadata.unpack(read_all(within(url, OURS), MAX_OURS)))


def located(url: str, opaque: bool = False) -> tuple[Head, Data | Checkpoint]:
    """The header of a file, and where its elements are; an array of objects is read."""
    with Reader(url) as f, Located(url):
        head = parse_head(f.read(0, min(f.size, MAX_HEAD)))
        size = f.size - head.size
        if head.descr == OBJECTS:
            return head, unpickled(size, lambda: f.read(head.size, size), url, opaque)
    if head.kind is None:
        return head, Span(url, head.size, 0)
    if head.nbytes != size:
        raise CorruptCheckpoint(
            f"{head.descr} of shape {head.shape} needs {head.nbytes} bytes after byte {head.size}, "
            f"the file has {f.size} (truncated?)", url=url,
        )  # fmt: skip
    return head, Span(url, head.size, size)


Array = tuple[str, Head, Data | Checkpoint]  # name, header and elements; a Checkpoint for an array of objects


def collect(arrays: Sequence[Array], urls: tuple[str, ...], format: str, unread: Note) -> Checkpoint:
    """Make a checkpoint of arrays, with notes on arrays that are not tensors and on dtypes that are assumed."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, object] = {}
    collisions: list[str] = []
    notes: dict[Note, list[str]] = {unread._replace(names=()): list(unread.names)}  # names by what is said of them
    for name, head, data in arrays:
        own: list[Tensor] = []
        if isinstance(data, Checkpoint):
            if len(name) > MAX_PREFIX:
                raise UnsafeCheckpoint("an array of objects has a name of many characters", tensor=name)
            prefix = f"{name}." if name else ""
            own = [t.renamed(prefix + n) for n, t in data.items()]
            for note in data.notes:
                notes.setdefault(note._replace(names=()), []).extend(prefix + n for n in note.names)
            values |= {prefix + n: v for n, v in data.details.get("values", {}).items()}
        elif head.kind:
            own = [as_tensor(name, head, data)]
            if kind := ASSUMED.get(head.descr[1:]):
                text = f"NumPy lost the dtype ({head.descr[1:]}); assumed to be {kind}"
                notes.setdefault(Note("assumed", text), []).append(name)
        else:
            text = f"arrays whose dtype no checkpoint holds: {head.descr}"
            notes.setdefault(Note("skipped", text), []).append(name)
        collisions += [t.name for t in own if t.name in tensors]
        tensors |= {t.name: t for t in own}
    if collisions:
        raise NameCollision(f"names in arrays of objects are also names of other arrays:\n{listing(collisions)}")
    every = tuple(n._replace(names=tuple(names)) for n, names in notes.items() if names or n.kind == "hint")
    return Checkpoint(tensors, format=format, urls=urls, notes=every, details={"values": values} if values else {})


def as_tensor(name: str, head: Head, data: Data) -> Tensor:
    """The tensor that a header describes; Fortran order is a view with reversed strides."""
    kind = head.kind or DTYPES["uint8"]
    ops = ("swap",) if head.swapped else ()
    if not head.fortran or len(head.shape) < 2:
        return contiguous(name, kind, head.shape, data, ops=ops)
    strides = c_strides(head.shape[::-1])[::-1]
    return view(name, kind, head.shape, data, offset=0, strides=strides, ops=ops)


@lru_cache(maxsize=256)  # models have many arrays of one shape
def literal(text: str) -> tuple[str, bool, tuple[int, ...]] | None:
    """The descr, fortran_order and shape of a header; None if it is not a dictionary of these, of the right kinds."""
    try:
        values = ast.literal_eval(re.sub(r"(?<=\d)L(?=[,)])", "", text))  # Python 2 wrote 3L
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(values, dict) or set(values) != {"descr", "fortran_order", "shape"}:
        return None
    descr, fortran, shape = values["descr"], values["fortran_order"], values["shape"]
    if not isinstance(descr, str | list) or not isinstance(fortran, bool) or not isinstance(shape, tuple):
        return None
    if not all(type(n) is int for n in shape):
        return None
    return str(descr) or " ", fortran, shape


def head_text(raw: bytes) -> tuple[int, int]:
    """Where the text of an .npy's header begins and ends, by the first bytes of the file."""
    start = 12 if raw[6:7] in {b"\2", b"\3"} else 10
    return start, start + int.from_bytes(raw[8:start], "little")


def parse_head(raw: bytes) -> Head:
    """Parse the header of an .npy from its first bytes."""
    start, size = head_text(raw)
    if not raw.startswith(NPY) or raw[6:8] not in {b"\1\0", b"\2\0", b"\3\0"} or len(raw) < start:
        raise CorruptCheckpoint("does not begin like an .npy of version 1, 2 or 3")
    if size > min(len(raw), MAX_HEAD):
        what = f"claims a header of {size} bytes, of which {len(raw)} are there (at most {MAX_HEAD} are read)"
        raise CorruptCheckpoint(what)
    text = raw[start:size].decode("latin-1").strip()
    if len(text) > MAX_LITERAL or "\\" in text or not (values := literal(text)):
        what = "is not a dictionary of descr, fortran_order and shape, or of values of the wrong kind"
        raise CorruptCheckpoint(f"the header {text[:80]!r} {what}")
    descr, fortran, shape = values
    order, code = descr[0], descr[1:]
    kind = DTYPES.get(SPELLING.get(code) or ASSUMED.get(code, ""))
    if kind and order not in "<>" and (order != "|" or (kind.word > 1 and code != "V2")):
        kind = None  # not a tensor's
    descr = descr if kind else brief(descr, MAX_DESCR)  # of what is not read, deflated 64 KiB would be kept
    return Head(descr, fortran, shape, size, checked_count(shape) * (kind.itemsize if kind else 0), kind)


OBJECTS = "|O"
MAX_PICKLE = 2**31  # bytes
MAX_PREFIX = 300  # characters of the name of an array of objects, which prefixes the names of the tensors in it


def unpickled(size: int, read: Callable[[], bytes], url: str, opaque: bool, packed: int | None = None) -> Checkpoint:
    """The arrays in an array of objects, under the names of the dictionaries and lists that hold them.

    size: bytes of the pickle that `read` returns. packed: how many of the file it takes, if it is compressed.
    """
    from .pytorch import flatten, pickle
    from .pytorch.values import NUMPY, PLAIN, PickledArray

    if size > MAX_PICKLE:
        raise CorruptCheckpoint(f"an array of objects in {size} bytes; at most {MAX_PICKLE} are unpickled", url=url)
    value = pickle.load(read(), allowed={**PLAIN, **NUMPY}, opaque=opaque, packed=packed)
    if not isinstance(value, PickledArray) or not isinstance(value.items, list):
        raise CorruptCheckpoint("claims to hold objects, but its pickle is not an array of objects", url=url)
    root = value.items[0] if value.shape == () else dict(enumerate(value.items))
    return flatten.checkpoint(root, size if packed is None else packed, url=url, format="npy")


# --- writing ----------------------------------------------------------------------------------------------------


def head_bytes(t: Tensor) -> bytes:
    """The header as NumPy writes it: version 1.0, its end aligned to 64 bytes."""
    shape = f"({t.shape[0]},)" if len(t.shape) == 1 else f"({', '.join(map(str, t.shape))})"
    text = f"{{'descr': '{DESCR[t.dtype.name]}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return NPY + b"\1\0" + len(text).to_bytes(2, "little") + text


def unheld(t: Tensor) -> str:
    """The reason why an .npy cannot hold the tensor, or ''."""
    if t.dtype.name not in DESCR:
        return f"NumPy's files have no dtype {t.dtype}"
    if is_vast(t.shape) and not t.count:
        return "NumPy has no array of this shape, though it is empty"
    if not is_text(t.name):
        return "the name is not valid Unicode"
    return "NumPy's arrays have at most 64 axes" if len(t.shape) > MAX_AXES else ""


def writer(url: str, max_shard_size: int | None = None) -> NpyWriter:
    return NpyWriter(url)


@dataclass(frozen=True)
class NpyWriter:
    """One file if the destination ends in .npy, else a folder with a file per tensor."""

    url: str

    def cannot_hold(self, tensor: Tensor) -> str:
        why = unheld(tensor)
        return why or "the name is too long for a file name" * (len(quote(tensor.name, safe=_SAFE)) > 250)

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "a folder of .npy")
        _, base = split(self.url.rstrip("/"))
        single = base.endswith(SUFFIX)
        if not checkpoint:
            raise Unrepresentable("a folder of .npy files needs at least one tensor")
        if single and len(checkpoint) != 1:
            raise Unrepresentable(f"an .npy file holds one tensor, not {len(checkpoint)}; give a folder or an .npz")
        files, slots, patches = [], {}, []
        for name, t in checkpoint.tensors.items():
            file = base if single else f"{base}/{_file_name(name)}"
            head = head_bytes(t)
            files.append(OutputFile(file, len(head) + t.nbytes))
            patches.append(Patch(file, 0, head))
            slots[name] = Slot(file, len(head), t.nbytes)
        notes = own_metadata.lost_metadata(checkpoint.metadata, "one .npy" if single else ".npy", ours=not single)
        ours = b"" if single else own_metadata.pack(checkpoint.metadata)
        if ours:
            files.append(OutputFile(f"{base}/{OURS}", len(ours)))
            patches.append(Patch(f"{base}/{OURS}", 0, ours))
        stale = "" if single else rf"{re.escape(base)}/([^/]*\.npy|{re.escape(OURS)})"
        again = {next(iter(checkpoint)): base.removesuffix(SUFFIX)} if single else {}
        return Placement(files, slots, patches, stale=stale, unit=not single, renamed=again, notes=notes)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return ()


_SAFE = " !#$&'()+,;=@[]^`{}~"  # not escaped, like letters, digits and _.-


def _file_name(name: str) -> str:
    """A plain file name for any tensor name: path separators, leading dots and control characters are escaped."""
    text = quote(name, safe=_SAFE)
    return (f"%2E{text[1:]}" if text.startswith(".") else text) + SUFFIX


def _name(file: str) -> str:
    """The tensor's name; a file that is not named as `_file_name` names it keeps its own name."""
    stem = file.removesuffix(SUFFIX)
    name = unquote(stem, errors="replace")
    return name if _file_name(name) == file else stem
