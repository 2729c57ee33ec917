"""NumPy's .npy: a magic, a Python literal, an array's bytes. One file is one tensor; a folder of them is a checkpoint.

    93 "NUMPY" major minor                  versions 1.0, 2.0, 3.0
    u16le (1.0) or u32le (2.0, 3.0)         length of the literal, spaces and newline that follow
    {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
    the elements, in C or Fortran order

An array of objects ('|O') is a pickle, read by the machine that runs nothing; arrays in its dicts are the tensors.
In a folder, `a%2Fb.npy` holds the tensor `a/b`. NumPy forgets what ml_dtypes' types are called: '<V2' is taken for
bfloat16, '<f1' for float8_e5m2, and '<V1', which may be several, stays uint8; each with a note.
Specification: numpy.lib.format, NEP 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...checkpoint import Checkpoint, Note, Tensor, plain, view
from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint, NameCollision, Unrepresentable, UnsafeCheckpoint
from ...messages import listing
from ...moves.part import Coded, Data, Span, elements, is_vast
from ...output.destination import OutputFile
from ...storage.files import Reader, Seen, is_dir, join, names, sibling, split
from ..placement import Patch, Placement, Slot, refuse_unheld
from ..reading import Reading
from .text import check_text

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
MAX_HEAD = 2**16  # NumPy writes at most 64 KiB as version 1.0; no plain array needs more
MAX_PICKLE = 2**31
MAX_EMPTY = 2**16
MAX_PREFIX = 300  # characters of an array's name that stands before those of the tensors within
OBJECTS = "|O"
SPELLING = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64",
    "c16": "complex128",
}  # fmt: skip
ASSUMED = {"V2": "bfloat16", "f1": "float8_e5m2", "V1": "uint8"}
DESCR = {name: ("|" if DTYPES[name].itemsize == 1 else "<") + code for code, name in SPELLING.items()}
_PAIR = re.compile(
    r"""\s*(['"])(descr|fortran_order|shape)\1\s*:\s*
        (True|False | '[^']*' | "[^"]*" | \([\d\s,L]*\) | \[.*\](?=\s*,\s*['"]fortran))\s*(?:,|(?=\}))\s*""",
    re.VERBOSE,
)


class Head(NamedTuple):
    """What an .npy file says before its elements: they begin at byte `size` and take `nbytes`."""

    descr: str
    fortran: bool
    shape: tuple[int, ...]
    size: int
    nbytes: int
    kind: DType | None  # None: no dtype fits, `nbytes` is then 0

    @property
    def swapped(self) -> bool:
        return self.descr[0] == ">" and self.descr[1] != "V" and self.kind is not None and self.kind.word > 1


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 2 if any(n.endswith(SUFFIX) for n in seen.files) else 0
    return 3 if seen.head.startswith(MAGIC) else int(seen.base.endswith(SUFFIX))


def open(url: str, how: Reading) -> Checkpoint:
    if not is_dir(url):
        head, data = _file(url, how.opaque)
        name = "" if isinstance(data, Checkpoint) else split(url)[1].removesuffix(SUFFIX)
        return collect([(name, head, data)], (url,), "npy")
    files = [n for n in names(url) if n.endswith(SUFFIX)]
    others = tuple(n for n in names(url) if not n.endswith(SUFFIX))
    urls = tuple(sibling(join(url, "."), n) for n in files)
    found = [(_name(n), *_file(path, how.opaque)) for n, path in zip(files, urls, strict=True)]
    return collect(found, urls, "npy", Note("unread", "files that are no .npy", others))


def _file(url: str, opaque: bool) -> tuple[Head, Data | Checkpoint]:
    with Reader(url) as f:
        head = parse_head(f.read(0, min(f.size, MAX_HEAD + 12)), url)
        if head.descr == OBJECTS:
            check_pickle(f.size, url)
            return head, unpickled(f.read(head.size, f.size - head.size), url, opaque)
        if head.kind is None:
            return head, Span(url, head.size, 0)
        if head.size + head.nbytes != f.size:
            raise CorruptCheckpoint(
                f"{head.descr} of shape {head.shape} needs {head.nbytes} bytes after byte {head.size}, "
                f"the file has {f.size} (truncated?)", url=url,
            )  # fmt: skip
    if head.kind.kind == "s":
        return head, Coded(__name__, url, "", head.nbytes)
    return head, Span(url, head.size, head.nbytes)


def check_pickle(size: int, url: str) -> None:
    if size > MAX_PICKLE:
        raise CorruptCheckpoint(f"an array of objects in {size} bytes; at most {MAX_PICKLE} are unpickled", url=url)


def unpickled(raw: bytes, url: str, opaque: bool, packed: int | None = None) -> Checkpoint:
    """The arrays within an array of objects, under the names of the dictionaries and lists that hold them."""
    from ..pytorch import flatten, pickle
    from ..pytorch.arrays import NUMPY, PickledArray
    from ..pytorch.plain import PLAIN

    value = pickle.load(raw, allowed={**PLAIN, **NUMPY}, opaque=opaque, url=url, packed=packed)
    if not isinstance(value, PickledArray) or not isinstance(value.items, list):
        raise CorruptCheckpoint("says it holds objects, but its pickle is no array of objects", url=url)
    root = value.items[0] if value.shape == () else dict(enumerate(value.items))
    return flatten.checkpoint(root, len(raw) if packed is None else packed, url=url, format="npy")


def decode(coded: Coded) -> Iterator[bytes]:
    """Strings, which alone need decoding here."""
    with Reader(coded.url) as f:
        head = parse_head(f.read(0, min(f.size, MAX_HEAD + 12)), coded.url)
        yield from strings(head, f.read(head.size, head.nbytes))


def collect(
    found: Sequence[tuple[str, Head, Data | Checkpoint]], urls: tuple[str, ...], format: str, *notes: Note
) -> Checkpoint:
    """Make the checkpoint of all arrays found; what is no tensor, or only perhaps of its dtype, is noted."""
    tensors: dict[str, Tensor] = {}
    kept, left, twice = list(notes), list[str](), list[str]()
    values: dict[str, object] = {}
    for name, head, data in found:
        here: list[Tensor] = []
        if isinstance(data, Checkpoint):
            if len(name) > MAX_PREFIX and data:
                raise UnsafeCheckpoint("an array of objects has a name of many characters", url=urls[0], tensor=name)
            here = [t.renamed(f"{name}.{n}" if name else n) for n, t in data.items()]
            kept += data.notes
            values |= {f"{name}.{n}" if name else n: v for n, v in data.details.get("values", {}).items()}
        elif head.kind:
            here = [as_tensor(name, head, data)]
        else:
            left.append(f"{name}: {head.descr}")
        twice += [t.name for t in here if t.name in tensors]
        tensors |= {t.name: t for t in here}
    if twice:
        raise NameCollision(f"names within arrays of objects are those of other arrays:\n{listing(twice)}", url=urls[0])
    kept.append(Note("skipped", "arrays whose dtype no checkpoint holds", tuple(left)))
    for code, kind in ASSUMED.items():
        those = tuple(name for name, head, _ in found if head.descr[1:] == code)
        kept.append(Note("assumed", f"NumPy lost the dtype ({code}); taken for {kind}", those))
    said = tuple(n for n in kept if n.names or n.kind == "hint")
    return Checkpoint(tensors, format=format, urls=urls, notes=said, details={"values": values} if values else {})


def as_tensor(name: str, head: Head, data: Data) -> Tensor:
    """The tensor that a head describes; Fortran order is a view with the strides the other way round."""
    kind = head.kind or DTYPES["uint8"]
    ops = ("swap",) if head.swapped else ()
    if not head.fortran or len(head.shape) < 2 or kind.kind == "s":
        return plain(name, kind, head.shape, data, ops=ops)
    strides = [1]
    for n in head.shape[:-1]:
        strides.append(strides[-1] * n)
    return view(name, kind, head.shape, data, offset=0, strides=strides, ops=ops)


def parse_head(raw: bytes, url: str, tensor: str | None = None) -> Head:
    """Parse the head of an .npy from its first bytes; no Python is evaluated."""
    wide = raw[6:7] in {b"\2", b"\3"}
    start = 12 if wide else 10
    if not raw.startswith(MAGIC) or raw[6:8] not in {b"\1\0", b"\2\0", b"\3\0"} or len(raw) < start:
        raise CorruptCheckpoint("does not begin like an .npy of version 1, 2 or 3", url=url, tensor=tensor)
    size = start + int.from_bytes(raw[8:start], "little")
    if size > len(raw):
        raise CorruptCheckpoint(f"says its head has {size} bytes, of which {len(raw)} are there (at most "
                                f"{MAX_HEAD} are read)", url=url, tensor=tensor)  # fmt: skip
    descr, fortran, shape = _literal(raw[start:size].decode("latin-1"), url, tensor)
    kind, width = _dtype(descr)
    if kind and not width and prod(shape) > MAX_EMPTY:  # no byte of them is stored
        raise CorruptCheckpoint(f"holds {prod(shape)} texts of no characters", url=url, tensor=tensor)
    return Head(descr, fortran, shape, size, elements(shape, url=url, tensor=tensor) * width, kind)


def _literal(text: str, url: str, tensor: str | None) -> tuple[str, bool, tuple[int, ...]]:
    """Take the three values out of the dictionary, in whatever order they stand."""
    text = text.strip()
    values: dict[str, str] = {}
    at = 1
    while (pair := _PAIR.match(text, at)) and pair[2] not in values:
        values[pair[2]], at = pair[3], pair.end()
    if text[:1] != "{" or text[at:] != "}" or len(values) != 3:
        raise CorruptCheckpoint(f"the head {text[:80]!r} is no dictionary of descr, fortran_order and shape", url=url,
                                tensor=tensor)  # fmt: skip
    descr, fortran, shape = values["descr"], values["fortran_order"], values["shape"]
    sizes = [n.strip().removesuffix("L") for n in shape.strip("()").split(",")]  # Python 2 wrote 3L
    if sizes[-1] == "":
        sizes.pop()
    whole = shape[0] == "(" and all(n.isdecimal() and len(n) < 20 for n in sizes)
    whole = whole and len(sizes) <= 64 and not (len(sizes) == 1 and "," not in shape)
    if not whole or fortran not in {"True", "False"} or descr[0] not in "'\"[":
        raise CorruptCheckpoint(f"the head {text[:80]!r} has values of the wrong kind", url=url, tensor=tensor)
    return descr.strip("'\"") or " ", fortran == "True", tuple(map(int, sizes))


def _dtype(descr: str) -> tuple[DType | None, int]:
    """The dtype that a descr spells and its width in bytes; (None, 0) for what is no tensor."""
    order, code = descr[0], descr[1:]
    if name := SPELLING.get(code) or ASSUMED.get(code):
        row = DTYPES[name]
        return (row, row.itemsize) if order in "<>" or (order == "|" and (row.word == 1 or code == "V2")) else (None, 0)
    if text := re.fullmatch(r"[|<]S(\d{1,9})|[<>]U(\d{1,9})", descr):
        return DTYPES["string"], int(text[1]) if text[1] else 4 * int(text[2])
    return None, 0


def strings(head: Head, raw: bytes) -> Iterator[bytes]:
    """The elements of an array of fixed-width strings in C order, as bytes (UTF-8 of what is Unicode)."""
    import numpy as np

    if not head.nbytes:
        yield from [b""] * elements(head.shape)
        return
    check_text(raw, np.dtype(head.descr))
    array = np.frombuffer(raw, head.descr).reshape(head.shape, order="F" if head.fortran else "C")
    for item in array.ravel():
        yield item.encode("utf-8", "surrogatepass") if isinstance(item, str) else bytes(item)


# --- writing ----------------------------------------------------------------------------------------------------


def head_bytes(t: Tensor) -> bytes:
    """The head as NumPy writes it: version 1.0, its end aligned to 64 bytes."""
    shape = f"({t.shape[0]},)" if len(t.shape) == 1 else f"({', '.join(map(str, t.shape))})"
    text = f"{{'descr': '{DESCR[t.dtype.name]}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text


def unheld(t: Tensor) -> str:
    """Why an .npy cannot hold the tensor, or ''."""
    if t.dtype.name not in DESCR:
        return f"NumPy's files have no dtype {t.dtype}"
    if is_vast(t.shape) and not t.count:
        return "NumPy has no array of this shape, though it is empty"
    return "NumPy's arrays have at most 64 axes" if len(t.shape) > 64 else ""


def writer(url: str, max_shard_size: int | None = None) -> NpyWriter:
    return NpyWriter(url)


@dataclass(frozen=True)
class NpyWriter:
    """One file if the destination ends in .npy, else a folder with a file per tensor."""

    url: str

    def cannot_hold(self, tensor: Tensor) -> str:
        try:
            long = len(quote(tensor.name, safe=_SAFE)) > 250
        except UnicodeEncodeError:
            return "the name is not valid Unicode"
        return "the name is too long for a file's" if long else unheld(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "a folder of .npy")
        _, base = split(self.url.rstrip("/"))
        single = base.endswith(SUFFIX)
        if not checkpoint:
            raise Unrepresentable("a folder of .npy with no tensor would be no folder")
        if single and len(checkpoint) != 1:
            raise Unrepresentable(f"one .npy holds one tensor, not {len(checkpoint)}; name a folder or an .npz")
        files, slots, patches = [], {}, []
        for name, t in checkpoint.tensors.items():
            file = base if single else f"{base}/{_file_name(name)}"
            head = head_bytes(t)
            files.append(OutputFile(file, len(head) + t.nbytes))
            patches.append(Patch(file, 0, head))
            slots[name] = Slot(file, len(head), t.nbytes)
        stale = "" if single else rf"{re.escape(base)}/[^/]*\.npy"
        again = {next(iter(checkpoint)): base.removesuffix(SUFFIX)} if single else {}
        return Placement(files, slots, patches, stale=stale, unit=not single, renamed=again)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return ()


_SAFE = " !#$&'()+,;=@[]^`{}~"  # kept as they are beside letters, digits and _.-


def _file_name(name: str) -> str:
    """A plain file name for any tensor name: whatever could be a path, a hidden file or a control is escaped."""
    text = quote(name, safe=_SAFE)
    return (f"%2E{text[1:]}" if text.startswith(".") else text) + SUFFIX


def _name(file: str) -> str:
    """The tensor's name; a file that we would not have named so is taken by its own."""
    stem = file.removesuffix(SUFFIX)
    name = unquote(stem, errors="replace")
    return name if _file_name(name) == file else stem
