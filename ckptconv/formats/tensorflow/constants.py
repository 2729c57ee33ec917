"""TensorProto: a tensor inside a message (graph constants, V1 slices).

    tensor_content              raw little-endian elements, as many as the shape requires; takes precedence if not empty
    float_val, int_val ...      k values: all elements, or the last value repeated up to the end, or (k = 0) all zero

HALF and BFLOAT16 are bit patterns in half_val, complex numbers are pairs, 8-bit floats are bytes in float8_val, and all
integers of up to 32 bits (including quantised ones) are in int_val. Source: tensorflow/core/framework/tensor.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...dtypes import DType
from ...errors import CorruptCheckpoint
from .table import read_varint

if TYPE_CHECKING:
    import numpy as np

    from . import messages_pb2 as pb

FIELDS = {
    "float32": "float_val", "float64": "double_val", "complex64": "scomplex_val", "complex128": "dcomplex_val",
    "float16": "half_val", "bfloat16": "half_val", "bool": "bool_val", "string": "string_val",
    "int64": "int64_val", "uint32": "uint32_val", "uint64": "uint64_val",
}  # fmt: skip
BLOCK = 2**20  # bytes
FIXED = {"float_val", "double_val", "scomplex_val", "dcomplex_val"}


def field_of(kind: DType) -> str:
    """The repeated field that holds elements of a dtype."""
    if kind.name.startswith(("float8", "float4")):
        return "float8_val"
    return FIELDS.get(kind.name, "int_val")


def stored(proto: pb.TensorProto, kind: DType, count: int, where: str) -> bytes:
    """The stored elements, little-endian: `count` of them, or fewer, of which the last one is to be repeated."""
    content = proto.tensor_content
    if content:
        if len(content) != count * kind.itemsize:
            raise CorruptCheckpoint(f"{where} has {len(content)} bytes, not {count * kind.itemsize}")
        return content
    field = field_of(kind)
    if field == "float8_val":
        raw = proto.float8_val
    elif field in FIXED:
        raw = _packed(proto, field)
    else:
        raw = b"".join(
            (values != 0 if kind.kind == "b" else values).astype(kind.carrier).tobytes()
            for values in _varints(_packed(proto, field), count)
        )
    if len(raw) % kind.itemsize:
        raise CorruptCheckpoint(f"{where} ends within a {kind}")
    return raw[: count * kind.itemsize]


def strings(proto: pb.TensorProto, count: int, where: str) -> list[bytes]:
    """The stored strings: `count` of them, or fewer, of which the last one is to be repeated."""
    data = proto.tensor_content
    if not data:
        return list(proto.string_val[:count])
    if count > len(data):
        raise CorruptCheckpoint(f"{where}: {count} strings do not fit in {len(data)} bytes")
    at, lengths, out = 0, [], []
    try:
        for _ in range(count):
            length, at = read_varint(data, at)
            lengths.append(length)
    except IndexError:
        raise CorruptCheckpoint(f"{where}: the lengths of {count} strings exceed their data") from None
    for length in lengths:
        out.append(data[at : at + length])
        at += length
    if at != len(data):
        raise CorruptCheckpoint(f"{where}: {count} strings take {at} bytes, {len(data)} are stored")
    return out


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
    _, at = read_varint(raw, 0)
    _, at = read_varint(raw, at)
    return raw[at:]


def _varints(raw: bytes, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint64]]]:
    """Decode the first `count` varints, many at once; protobuf wrote them, none is longer than ten bytes.

    A block at a time, because each byte takes eighty of memory while it is decoded.
    """
    import numpy as np

    data, at = np.frombuffer(raw, "u1"), 0
    while count > 0 and at < len(data):
        block = data[at : at + BLOCK]
        ends = np.flatnonzero(block < 128)[:count]
        starts = np.concatenate(([0], ends[:-1] + 1))
        lengths = ends - starts + 1
        values = np.zeros(len(ends), "u8")
        for i in range(int(lengths.max())):
            more = lengths > i
            values[more] |= (block[starts[more] + i] & np.uint8(127)).astype("u8") << np.uint64(7 * i)
        yield values
        count, at = count - len(ends), at + int(ends[-1]) + 1
