"""How TensorFlow stores elements: dtypes, strings of a bundle, tensors inside messages, slices of variables.

Strings of a bundle:

    varint length ...   u32 masked CRC-32C of the lengths, each as u32   bytes ...

The entry's CRC continues the CRC of the lengths: over the four bytes of that checksum, then over the strings. The
fixed-width integers have the file's endianness. Specification: WriteStringTensor in tensor_bundle.cc.

TensorProto (graph constants, V1 slices):

    tensor_content              raw little-endian elements, as many as the shape requires; takes precedence if not empty
    float_val, int_val ...      k values: all elements, or the last value repeated up to the end, or (k = 0) all zero

HALF and BFLOAT16 are bit patterns in half_val, complex numbers are pairs, 8-bit floats are bytes in float8_val, and all
integers of up to 32 bits (including quantised ones) are in int_val. Source: tensorflow/core/framework/tensor.proto.

The table key of a slice, in OrderedCode:

    key      = unsigned(0) string(name) unsigned(rank) { signed(start) signed(length) } per dimension
    unsigned = one byte n, then n bytes big-endian
    string   = bytes with 00 -> 00 ff and ff -> ff 00, then 00 01
    signed   = L bytes: L one-bits, a zero-bit (of a negative number: inverted), then the value in two's complement

A whole dimension has no length in the message and -1 in the key; a dimension spelled 0,4 of 4 is another key. Keys are
therefore built from the message as it stands. Specification: tensorflow/core/lib/strings/ordered_code.cc,
tensorflow/core/util/saved_tensor_slice_util.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from math import prod
from typing import TYPE_CHECKING, Literal, TypeVar

from ...checkpoint import Note, Tensor, contiguous
from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint
from ...messages import listing, many
from ...moves.part import Coded, Data
from ...storage.checksum import crc, mask, unmask
from ...storage.files import Reader
from ...storage.ranges import Ranges
from .. import Located
from ..tiling import Tile, joined
from .table import read_varint, read_varints, varint

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from . import messages_pb2 as pb

    M = TypeVar("M", bound=Message)

Order = Literal["little", "big"]
# a tensor: its name, the number of its dtype, its shape, and what gives its data or tiles
Row = tuple[str, int, tuple[int, ...], Callable[[DType], Data | list[tuple[Tile, Data]]]]


def parse(kind: type[M], raw: bytes, what: str) -> M:
    """Parse a message; `what` begins the sentence of the CorruptCheckpoint."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(raw)
    except DecodeError as e:
        raise CorruptCheckpoint(f"{what} is not a valid message ({e})") from e


def text(raw: bytes) -> str:
    """A name, whose bytes need not be UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


def check_version(version: pb.VersionDef) -> None:
    """Refuse a file that needs a newer reader."""
    if version.min_consumer > 1 or 1 in version.bad_consumers:
        raise CorruptCheckpoint(f"needs a reader of version {version.min_consumer}; version 1 is supported")


# --- dtypes -----------------------------------------------------------------------------------------------------

OPAQUE = {20, 21}  # resources and variants
QUANTISED = {11: "int8", 12: "uint8", 13: "int32", 15: "int16", 16: "uint16"}
BY_CODE: dict[int, DType] = {d.tf: d for d in DTYPES.values() if d.tf} | {c: DTYPES[n] for c, n in QUANTISED.items()}
REFERENCE = 100  # added to the number of a dtype where it is that of a variable's handle
SCALED = "quantised integers are read as plain integers; their scale is elsewhere"


def numbered(code: int) -> tuple[int, DType | None]:
    """The number of a dtype, that of its elements for a reference, and the dtype if it is one of tensors."""
    code -= REFERENCE if code > REFERENCE else 0
    return code, BY_CODE.get(code)


# --- strings of a bundle ----------------------------------------------------------------------------------------


def decode(piece: Coded) -> Iterator[bytes]:
    """Yield the strings; CorruptCheckpoint if a length or checksum is wrong.

    piece: its key says where they begin, how many they are, the entry's CRC, unmasked, and the order of bytes.
    """
    start, count, check, order = piece.key
    with Reader(piece.url) as f:
        data = f.read(start, piece.size)
    return iter(unpack(data, count, check, order))


def unpack(data: bytes, count: int, check: int, order: Order = "little") -> list[bytes]:
    if not count and not data:
        return []
    if count > len(data):
        raise CorruptCheckpoint(f"{count} strings do not fit in {len(data)} bytes")
    try:
        lengths, body = read_varints(data, count)
    except IndexError:
        raise CorruptCheckpoint(f"the lengths of {count} strings exceed their data") from None
    if (end := body + 4 + sum(lengths)) != len(data):
        raise CorruptCheckpoint(f"{count} strings take {end} bytes, {len(data)} are stored")
    running = _crc_of(lengths, order)
    if running != unmask(int.from_bytes(data[body : body + 4], order)):
        raise CorruptCheckpoint("the checksum of the strings' lengths is wrong: the file is damaged")
    if crc("crc32c", memoryview(data)[body:], running) != check:
        raise CorruptCheckpoint("the checksum of the strings is wrong: the file is damaged")
    starts = accumulate(lengths, initial=body + 4)
    return [data[start : start + n] for start, n in zip(starts, lengths, strict=False)]


def pack(items: Sequence[bytes]) -> tuple[bytes, int]:
    """Encode strings, little-endian; return the bytes and the entry's CRC, unmasked."""
    lengths = [len(i) for i in items]
    running = _crc_of(lengths, "little")
    tail = mask(running).to_bytes(4, "little") + b"".join(items)
    return b"".join(varint(n) for n in lengths) + tail, crc("crc32c", tail, running)


def _crc_of(lengths: Sequence[int], order: Order) -> int:
    """CRC of the lengths as integers of four bytes."""
    import numpy as np

    if max(lengths, default=0) >= 1 << 32:
        raise CorruptCheckpoint("a string of 4 GiB or more")
    return crc("crc32c", np.array(lengths, "<u4" if order == "little" else ">u4").tobytes())


# --- tensors inside messages ------------------------------------------------------------------------------------

BITS = {"float32": "float_val", "float64": "double_val", "complex64": "scomplex_val", "complex128": "dcomplex_val"}
NUMBERS = {
    "float16": "half_val", "bfloat16": "half_val", "bool": "bool_val",
    "int64": "int64_val", "uint32": "uint32_val", "uint64": "uint64_val",
}  # fmt: skip


def stored(proto: pb.TensorProto, kind: DType, count: int, where: str) -> bytes:
    """The stored elements, little-endian: `count` of them, or fewer, of which the last one is to be repeated."""
    content, size = proto.tensor_content, count * kind.itemsize
    if content:
        if len(content) != size:
            raise CorruptCheckpoint(f"{where} has {len(content)} bytes, not {size}")
        return content
    if kind.name.startswith(("float8", "float4")):
        return proto.float8_val[:size]
    if kind.name in BITS:
        raw = _packed(proto, BITS[kind.name])
        if len(raw) % kind.itemsize:
            raise CorruptCheckpoint(f"{where} ends within a {kind}")
        return raw[:size]
    import numpy as np

    values = islice(getattr(proto, NUMBERS.get(kind.name, "int_val")), count)
    numbers = np.fromiter(values, "u8" if kind.kind == "u" and kind.itemsize == 8 else "i8")
    return numbers.astype(kind.carrier).tobytes()


def _packed(proto: pb.TensorProto, field: str) -> bytes:
    """The bytes of one repeated scalar field, packed, whether or not they are packed in the file.

    Python floats would turn signalling NaNs into quiet ones.
    """
    if not getattr(proto, field):
        return b""
    alone = type(proto)()
    alone.CopyFrom(proto)
    for other, _ in alone.ListFields():
        if other.name != field:
            alone.ClearField(other.name)
    alone.DiscardUnknownFields()
    raw = alone.SerializeToString()
    return raw[read_varints(raw, 2)[1] :]


# --- slices -----------------------------------------------------------------------------------------------------


def unsigned(value: int) -> bytes:
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(body)]) + body


def signed(value: int) -> bytes:
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    header = ((1 << size) - 1) << (8 * size - size)
    return ((value & ((1 << 8 * size) - 1)) ^ header).to_bytes(size, "big")


def slice_key(name: bytes, piece: pb.TensorSliceProto) -> bytes:
    """The table key of one slice of a tensor."""
    escaped = b"\0\xff".join(part.replace(b"\xff", b"\xff\0") for part in name.split(b"\0"))
    out = unsigned(0) + escaped + b"\0\1" + unsigned(len(piece.extent))
    for extent in piece.extent:
        out += signed(extent.start) + signed(extent.length if extent.HasField("length") else -1)
    return out


def tile_of(piece: pb.TensorSliceProto, shape: Sequence[int]) -> Tile:
    """The tile that a slice covers; CorruptCheckpoint if it does not lie within `shape`."""
    pairs = [(e.start, e.length) if e.HasField("length") else (0, n) for e, n in zip(piece.extent, shape, strict=False)]
    if len(piece.extent) != len(shape) or any(
        start < 0 or size < 0 or start + size > n for (start, size), n in zip(pairs, shape, strict=True)
    ):
        raise CorruptCheckpoint(f"a slice is outside {list(shape)}")
    return Tile(tuple(start for start, _ in pairs), tuple(size for _, size in pairs))


def assembled(rows: Iterable[Row], *, swap: bool = False) -> tuple[dict[str, Tensor], tuple[Note, ...]]:
    """The tensors of a checkpoint, and notes on those that are left out or mean something else.

    swap: whether the bytes of the elements are swapped. CorruptCheckpoint if a dtype is not known.
    """
    tensors: dict[str, Tensor] = {}
    opaque, quantised, unknown, partial = (list[str]() for _ in range(4))
    for name, code, shape, data in rows:
        kind = BY_CODE.get(code)
        if kind is None:
            (opaque if code in OPAQUE else unknown).append(name)
            continue
        if code in QUANTISED:
            quantised.append(name)
        with Located(tensor=name):
            ops, stored = ("swap",) if swap and kind.word > 1 else (), data(kind)
            if not isinstance(stored, list):
                tensors[name] = contiguous(name, kind, shape, stored, ops=ops)
            elif tensor := _joined(name, kind, shape, stored, ops):
                tensors[name] = tensor
            else:
                partial.append(name)
    if unknown:
        what = f"{many(len(unknown), 'tensor')} with an unknown dtype:\n{listing(unknown)}"
        raise CorruptCheckpoint(what)
    running = "variants (iterators, lists) are objects of a running program, not tensors"
    notes = (
        Note("skipped", running, tuple(opaque), tensors=False),
        Note("assumed", SCALED, tuple(quantised)),
        Note("skipped", "partitioned variables with slices that were never saved", tuple(partial)),
    )
    return tensors, tuple(note for note in notes if note.names)


def _joined(
    name: str, kind: DType, shape: tuple[int, ...], slices: Sequence[tuple[Tile, Data]], ops: tuple[str, ...]
) -> Tensor | None:
    """The tensor of some slices; None if they do not cover it; CorruptCheckpoint if two different ones overlap."""
    unique = dict.fromkeys(slices)
    if not unique or sum(prod(tile.shape) for tile, _ in unique) < prod(shape):
        return None
    return joined(
        name, shape, [(contiguous(name, kind, tile.shape, data, ops=ops), tile.start) for tile, data in unique], ""
    )


# --- walk a message in a file without reading its contents: a graph of gigabytes takes one read per node ------------
#
# message = { varint (number << 3 | wire), value }      wire 0: varint, 1: 8 bytes, 2: varint size and bytes, 5: 4 bytes

WINDOW = 65536
_FIXED = {1: 8, 5: 4}


def fields(f: Ranges, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of the message at [start, end), in order; CorruptCheckpoint if it is not a message.

    Each is its number and where its bytes begin and end; the number is 0 if it holds a number of its own.
    """
    at, window, base = start, b"", start
    while at < end:
        if at + 20 > base + len(window) and base + len(window) < end:
            window, base = f.read(at, min(WINDOW, end - at)), at
        try:
            tag, i = read_varint(window, at - base)
            wire = tag & 7
            size = _FIXED.get(wire, 0)
            if wire in (0, 2):
                size, i = read_varint(window, i)
        except IndexError:
            raise _broken(at) from None
        begin = base + i
        after = begin + (size if wire else 0)
        if wire not in (0, 1, 2, 5) or not tag >> 3 or after > end:
            raise _broken(at)
        yield tag >> 3 if wire == 2 else 0, begin, after
        at = after


def messages(f: Ranges, start: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """The ranges (start, end) of all messages, strings or bytes with one field number."""
    yield from ((a, b) for found, a, b in fields(f, start, end) if found == number)


def _broken(at: int) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"is not a protobuf message (at byte {at}; truncated?)")
