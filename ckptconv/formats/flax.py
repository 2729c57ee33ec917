"""Flax's msgpack: nested maps whose leaves are arrays, each an extension that contains a small msgpack.

    82                                    map of 2
      a6 "params" 81 a1 "k"               map of 1, key
        c7 13 01                          extension of 0x13 bytes, type 1: array (3: NumPy scalar; 2: complex)
          93 92 01 02  a8 "bfloat16"      [shape, dtype name,
          c4 04 80 3f 80 3f                elements in C order]
      a4 "step" ...

Names are joined by '/'. Elements are located but not read.
    00-7f, e0-ff  small integer      a0-bf, d9-db  text         c4-c6          bytes
    80-8f, de-df  map                90-9f, dc-dd  list         c7-c9, d4-d8   extension: length, type, bytes
    cc-cf, d0-d3  integer            ca, cb        float        c0, c2, c3     nil, false, true

Lengths and numbers are big-endian. Flax's extensions: 1 array, 2 complex number, 3 NumPy scalar (like an array).
Flax writes an array of more than 2^30 bytes as {CHUNKED: true, "shape": {"0": n, ...}, "chunks": {"0": array, ...}}.
This is read; what is written is one array, as Flax reads it, too.
Specification: flax/serialization.py; https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..checkpoint import Checkpoint, Note, Tensor, contiguous, training
from ..dtypes import DTYPES, DType
from ..errors import CorruptCheckpoint, NameCollision, Unrepresentable, UnsafeCheckpoint
from ..messages import brief, listing
from ..moves.part import Held, Part, Span, checked_count
from ..output.destination import OutputFile
from ..storage.files import Reader, Seen, split
from ..storage.ranges import FileObject
from . import own_metadata
from .placement import Patch, Placement, Slot, is_text, refuse_shards, refuse_unheld
from .table import Reading

SUFFIX = ".msgpack"
MAX_DEPTH, MAX_VALUES, MAX_TEXT = 100, 10_000_000, 65536
MAX_NUMBERS = 100_000  # each is a tensor of its own, which takes a kilobyte; a vocabulary or a history fits
MAX_GROUPS = MAX_DEPTH - 4  # in one name
NAME_RATIO = 64  # characters of names per byte of the file
VALUE = 8  # bytes of the file per value: an array takes twenty for three, and a leaf 300 of memory
ARRAY, COMPLEX, SCALAR = 1, 2, 3
CHUNKED = "__msgpack_chunked_array__"
MAX_ARRAY = 2**32 - 2**10  # bytes; the format counts those of a value with 32 bits
WINDOW = 65536
ROWS = {row.numpy_name: row for row in DTYPES.values() if row.kind not in "sx"}
FOREIGN = re.compile(  # dtypes of NumPy and ml_dtypes that are not in the table
    r"object|(str|bytes|void)\d*|(datetime|timedelta)64(\[\w+\])?|float(96|128)|complex(192|256)|u?int[124]|float[468]_e\dm\d\w*"
)
_KEY = re.compile(rb"([\x80-\x8f]|\xde..|\xdf....)([\xa0-\xbf]|\xd9|\xda|\xdb)", re.DOTALL)
_ARRAY = re.compile(rb"(\xc7.|\xc8..|\xc9....|[\xd4-\xd8])[\1\3]\x93([\x90-\x9f]|\xdc)", re.DOTALL)
# First byte: the kind of value, and the struct format of its length or of the value itself.
_FORMS = {
    first + i: (kind, ">" + form)
    for kind, first, forms in (
        ("bin", 0xC4, "BHI"), ("ext", 0xC7, "BHI"), ("value", 0xCA, "fdBHIQbhiq"), ("str", 0xD9, "BHI"),
        ("array", 0xDC, "HI"), ("map", 0xDE, "HI"),
    )
    for i, form in enumerate(forms)
}  # fmt: skip
_FIXED = {0xC0: None, 0xC2: False, 0xC3: True}


class Array(NamedTuple):
    """An array in the file: its elements are `size` bytes at `start`."""

    kind: DType
    shape: tuple[int, ...]
    start: int
    size: int


class Other(NamedTuple):
    """A leaf that is not a tensor, described for a note."""

    what: str


def sniff(seen: Seen) -> int:
    named = seen.base.endswith(SUFFIX) and not seen.is_dir
    if not _KEY.match(seen.head):
        return int(named)
    return 3 if _ARRAY.search(seen.head) else 2 * named


def open(url: str, how: Reading) -> Checkpoint:
    tensors: dict[str, Tensor] = {}
    numbers, skipped, collisions = [], [], []
    for path, leaf in contents(url):
        name = "/".join(path)
        if isinstance(leaf, Other):
            skipped.append(f"{name}: {leaf.what}")
            continue
        if name in tensors:
            collisions.append(name)
        if not isinstance(leaf, (Array, dict)):
            numbers.append(name)
        tensors[name] = tensor(name, leaf, url)
    if collisions:
        raise NameCollision(f"names are equal because a key contains '/':\n{listing(collisions)}")
    notes = (
        Note("assumed", "Python's numbers, read as tensors without axes", tuple(numbers)),
        Note("skipped", "values that are not tensors", tuple(skipped), tensors=False),
    )
    tensors |= {n: replace(tensors[n], role=role) for n, role in training.of_names(tensors).items()}
    return Checkpoint(tensors, format="flax", urls=(url,), notes=tuple(n for n in notes if n.names))


def contents(url: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of the maps in a file, with the keys that lead to each: arrays, numbers, or `Other`."""
    with Reader(url) as f:
        walker = Walker(f)
        root = walker.value(0)
        if walker.at != f.size:
            raise CorruptCheckpoint(f"{f.size - walker.at} bytes follow the end at byte {walker.at}")
    room, numbers = NAME_RATIO * f.size + 2**20, MAX_NUMBERS + f.size // 1000
    for path, leaf in _leaves((), root):
        numbers -= not isinstance(leaf, (Array, Other, dict))
        if numbers < 0:
            raise UnsafeCheckpoint(f"holds more than {MAX_NUMBERS} numbers outside of arrays")
        room -= sum(map(len, path)) + len(path) - 1
        if room < 0:  # the keys of outer maps prefix all names inside them
            raise UnsafeCheckpoint("the names of its maps are repeated without bound")
        yield path, leaf


def _leaves(path: tuple[str, ...], node: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, list):
        node = {str(i): item for i, item in enumerate(node)}
    if not isinstance(node, dict) or CHUNKED in node:
        yield path, node
    elif not node:
        yield path, Other("an empty container")
    else:
        for key, item in node.items():
            yield from _leaves((*path, key), item)


def tensor(name: str, leaf: Any, url: str) -> Tensor:
    """The tensor of a leaf: an array, one in chunks, or a number."""
    if isinstance(leaf, Array):
        return contiguous(name, leaf.kind, leaf.shape, Span(url, leaf.start, leaf.size))
    if isinstance(leaf, dict):
        return _joined(name, leaf, url)
    import numpy as np

    array = np.array(leaf, "i8" if type(leaf) is int and leaf < 2**63 else None)
    return contiguous(name, DTYPES[array.dtype.name], (), Held(array))


def _joined(name: str, node: Mapping[str, Any], url: str) -> Tensor:
    """Join a chunked array: its chunks, flattened and in order, are the parts of the tensor."""
    try:
        shape = tuple(node["shape"][str(i)] for i in range(len(node["shape"])))
        chunks = [node["chunks"][str(i)] for i in range(len(node["chunks"]))]
    except (KeyError, TypeError):
        raise CorruptCheckpoint("its chunks or shape are not numbered 0, 1, ...", tensor=name) from None
    if not chunks or not all(type(n) is int for n in shape) or not all(type(c) is Array for c in chunks):
        raise CorruptCheckpoint("its chunks are not arrays, or its shape is not numbers", tensor=name)
    kind, at, parts = chunks[0].kind, 0, []
    for c in chunks:
        count = checked_count(c.shape)
        parts.append(Part(Span(url, c.start, c.size), kind, (count,), 0, (1,), at, (1,)))
        at += count
    if at != checked_count(shape, tensor=name) or any(c.kind != kind for c in chunks):
        raise CorruptCheckpoint(f"its chunks do not make up the shape {list(shape)}", tensor=name)
    return Tensor(name, kind, shape, tuple(parts))


class Walker:
    """Read msgpack value by value through a small window; long byte strings are skipped."""

    def __init__(self, f: Reader) -> None:
        self.size, self.file = f.size, io.BufferedReader(FileObject(f), WINDOW)
        self.at = self.count = 0
        self.most = min(MAX_VALUES, f.size // VALUE + 2**17)

    def take(self, size: int) -> bytes:
        """The next few bytes."""
        self.check(size)
        self.at += size
        return self.file.read(size)

    def skip(self, size: int) -> int:
        """Pass over bytes; return where they begin."""
        self.check(size)
        self.at += size
        self.file.seek(self.at)
        return self.at - size

    def check(self, size: int) -> None:
        if size > self.size - self.at:
            raise self.corrupt(f"needs {size} bytes, {self.size - self.at} remain (truncated?)")

    def corrupt(self, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"the msgpack at byte {self.at} {what}")

    def head(self) -> tuple[str, Any]:
        """Kind of the next value, and its length or the value itself."""
        b = self.take(1)[0]
        if b < 0x80 or b >= 0xE0:
            return "value", b if b < 0x80 else b - 256
        if b < 0xC0:
            return ("map", b & 15) if b < 0x90 else ("array", b & 15) if b < 0xA0 else ("str", b & 31)
        if b in _FORMS:
            kind, form = _FORMS[b]
            return kind, struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if 0xD4 <= b <= 0xD8:
            return "ext", 1 << (b - 0xD4)
        if b not in _FIXED:
            raise self.corrupt("begins with c1, which is never used")
        return "value", _FIXED[b]

    def value(self, depth: int) -> Any:
        """The next value: dict, list, Array, a number, or Other."""
        self.count += 1
        if depth > MAX_DEPTH or self.count > self.most:
            raise self.corrupt(f"is nested deeper than {MAX_DEPTH} or has more than {self.most} values")
        kind, n = self.head()
        if kind == "value":
            return Other("None") if n is None else n
        if kind in ("str", "bin"):
            self.skip(n)
            return Other(f"{'text' if kind == 'str' else 'bytes'} of {n} bytes")
        self.check(n)  # every element takes at least one byte
        if kind == "array":
            return [self.value(depth + 1) for _ in range(n)]
        if kind == "map":
            return self.map(n, depth)
        return self.extension(n, depth)

    def map(self, n: int, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for _ in range(n):
            key = self.text()
            if key in out:
                raise self.corrupt(f"has the key {key!r} twice")
            out[key] = self.value(depth + 1)
        return out

    def text(self) -> str:
        """A key or a dtype's name: text, bytes (in older versions) or a whole number."""
        kind, n = self.head()
        if kind == "value" and type(n) is int:
            return str(n)
        if kind not in {"str", "bin"} or n > MAX_TEXT:
            raise self.corrupt(f"has a {kind} where text of at most {MAX_TEXT} bytes is expected")
        try:
            return self.take(n).decode()
        except UnicodeDecodeError:
            raise self.corrupt("has a text that is not UTF-8") from None

    def extension(self, n: int, depth: int) -> Any:
        """An array, or a number, in `n` bytes."""
        code = struct.unpack("b", self.take(1))[0]
        self.check(n)
        end = self.at + n
        if code in {ARRAY, SCALAR}:
            out: Any = self.array(depth)
        elif code == COMPLEX:
            pair = self.value(depth + 1)
            if not isinstance(pair, list) or [type(p) in {int, float} for p in pair] != [True, True]:
                raise self.corrupt("has a complex number that is not a pair")
            out = complex(*pair)
        else:
            self.skip(n)
            out = Other(f"an extension of type {code}")
        if self.at != end:
            raise self.corrupt(f"should end its extension at byte {end}")
        return out

    def array(self, depth: int) -> Array | Other:
        """The content of an array: [shape, dtype name, elements]."""
        if self.head() != ("array", 3):
            raise self.corrupt("has an array that is not [shape, dtype, elements]")
        shape = self.value(depth + 1)
        if not isinstance(shape, list) or not all(type(n) is int for n in shape):
            raise self.corrupt("has an array whose shape is not a list of whole numbers")
        name = self.text()
        kind, size = self.head()
        if kind not in {"bin", "str"}:
            raise self.corrupt("has an array whose elements are not bytes")
        start = self.skip(size)
        row = ROWS.get(name)
        if row is None:
            if not FOREIGN.fullmatch(name):
                raise self.corrupt(f"has an array of {brief(name)!r}, a dtype that neither NumPy nor ml_dtypes has")
            return Other(f"an array of {name}")
        if checked_count(shape) * row.itemsize != size:
            raise self.corrupt(f"has an array of {name}{shape} in {size} bytes")
        return Array(row, tuple(shape), start, size)


# --- writing ----------------------------------------------------------------------------------------------------


class FlaxWriter(NamedTuple):
    """One msgpack of maps nested by '/', groups in the order of their first tensor."""

    url: str
    max_shard_size: int | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        if tensor.dtype.name not in ROWS:
            return f"Flax has no dtype {tensor.dtype}"
        if tensor.nbytes > MAX_ARRAY:
            return "msgpack holds at most 4 GiB in one value; write Orbax instead, as to='orbax' does"
        if CHUNKED in tensor.name.split("/"):
            return f"Flax reserves the key {CHUNKED} for arrays in chunks"
        if not is_text(tensor.name):
            return "the name is not valid Unicode"
        if tensor.name.count("/") > MAX_GROUPS:
            return f"its name has more than {MAX_GROUPS} groups"
        return "the name is too long" if len(tensor.name.encode()) > MAX_TEXT else ""

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "Flax")
        refuse_shards(checkpoint, self.max_shard_size, "msgpack")
        out = Packed()
        out.map(nested((t.name.split("/"), t) for t in checkpoint.values()))
        out.flush()
        file = split(self.url)[1]
        slots = {name: Slot(file, out.starts[name], t.nbytes) for name, t in checkpoint.items()}
        patches = [Patch(file, start, raw) for start, raw in out.patches]
        notes = own_metadata.lost_metadata(checkpoint.metadata, "Flax")
        return Placement([OutputFile(file, out.at)], slots, patches, notes=notes)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return ()


writer = FlaxWriter


def nested(leaves: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Maps of maps of leaves, each given with its keys; Unrepresentable if one would be a map as well."""
    root: dict[str, Any] = {}
    bad = []
    for keys, leaf in leaves:
        *groups, last = keys
        node: Any = root
        for group in groups:
            node = node.setdefault(group, {}) if isinstance(node, dict) else node
        if not isinstance(node, dict) or last in node:
            bad.append("/".join(keys))
        else:
            node[last] = leaf
    if bad:
        raise Unrepresentable(
            "a name cannot be both a tensor and a group; leave some out or change names, as a conversion does "
            f"with weights_only=True (slots are below their weights), exclude= and rename=:\n{listing(bad)}"
        )
    return root


class Packed:
    """msgpack of maps, arrays and texts as patches, with a slot for the elements of each array."""

    def __init__(self) -> None:
        self.at = 0
        self.run: list[bytes] = []
        self.patches: list[tuple[int, bytes]] = []
        self.starts: dict[str, int] = {}  # where the elements of each tensor begin

    def map(self, node: Mapping[str, Any]) -> None:
        self.run.append(_head(0x80, 15, (0, 0xDE, 0xDF), len(node)))
        for key, item in node.items():
            self.run.append(_text(key))
            if isinstance(item, Tensor):
                self.array(item)
            elif isinstance(item, str):
                self.run.append(_text(item))
            else:
                self.map(item)

    def array(self, t: Tensor) -> None:
        inner = b"\x93" + _head(0x90, 15, (0, 0xDC, 0xDD), len(t.shape)) + b"".join(map(_number, t.shape))
        inner += _text(t.dtype.numpy_name) + _head(0, -1, (0xC4, 0xC5, 0xC6), t.nbytes)
        size = len(inner) + t.nbytes
        fixed = {1: b"\xd4", 2: b"\xd5", 4: b"\xd6", 8: b"\xd7", 16: b"\xd8"}.get(size)
        self.run += [fixed or _head(0, -1, (0xC7, 0xC8, 0xC9), size), bytes([ARRAY]), inner]
        self.flush()
        self.starts[t.name] = self.at
        self.at += t.nbytes

    def flush(self) -> None:
        if raw := b"".join(self.run):
            self.patches.append((self.at, raw))
        self.at += len(raw)
        self.run = []


def _head(fix: int, most: int, codes: tuple[int, int, int], n: int) -> bytes:
    """The shortest encoding of a length: in the first byte, or a code and 8, 16 or 32 bits."""
    if n <= most:
        return bytes([fix | n])
    if n < 2**8 and codes[0]:
        return struct.pack(">BB", codes[0], n)
    return struct.pack(">BH", codes[1], n) if n < 2**16 else struct.pack(">BI", codes[2], n)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _head(0xA0, 31, (0xD9, 0xDA, 0xDB), len(raw)) + raw


def _number(n: int) -> bytes:
    return _head(0, 127, (0xCC, 0xCD, 0xCE), n) if n < 2**32 else struct.pack(">BQ", 0xCF, n)
