"""Flax: trees of arrays, NumPy's scalars and Python's values, whole and in chunks, in any spelling of msgpack.

Where Flax is not installed, `restore` does what flax.serialization.msgpack_restore does, by msgpack and NumPy.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np

from .common import Case, Outward, Values, array, dtype, some_shape

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e3m4", "float8_e8m0fnu", "int4", "uint4", "int2", "uint2", "float4_e2m1fn",
)  # fmt: skip
OTHERS = ("S3", "U2", "M8[s]", "V4", "float128", "float6_e2m3fn")
KEYS = ("params", "kernel", "0", "1", "é", "a b", "x.y", "", "日本", "batch_stats", "w" * 40)
PLAIN = (
    0, 1, -1, 127, 128, -33, 2**31, 2**40, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"), -0.0, True, False, None, 1j,
    complex(-0.0, float("inf")), "text", b"raw", "é" * 300,
)  # fmt: skip
CHUNKED = "__msgpack_chunked_array__"

REFUSED = {
    "values that are not tensors": "texts, bytes, None, and arrays of texts and times",
    "names are equal because a key contains": "keys with a slash that make two names equal",
    "follow the end at byte": "bytes after the end",
    "the key .* twice": "a key twice, or a number and its text",
    "where text of at most": "keys that are neither text nor numbers",
    "chunks are not arrays|chunks do not make up|not numbered 0, 1": "chunks that are not arrays",
    "both a tensor and a group": "a name that is a tensor and a group",
    "name is both": "a name that is a tensor and a group",
    "Flax has no dtype string": "texts",
}
LENIENT = {
    "; .*: values that are not tensors": "arrays of texts, times and records, which Flax writes and does not read",
    "data type '?(float|int|uint)[0-9]": "a dtype of ml_dtypes that NumPy does not know by name",
}


def oracle() -> str:
    try:
        import flax

        return f"flax {flax.__version__}"
    except ImportError:
        return f"msgpack {msgpack.version}, as Flax restores"


# --- what Flax makes of it --------------------------------------------------------------------------------------


def restore(raw: bytes) -> Any:
    try:
        from flax.serialization import msgpack_restore
    except ImportError:
        return unchunked(msgpack.unpackb(raw, ext_hook=extension, raw=False, strict_map_key=False))
    return msgpack_restore(raw)


def extension(code: int, data: bytes) -> Any:
    if code == 2:
        return complex(*msgpack.unpackb(data))
    if code not in (1, 3):
        return msgpack.ExtType(code, data)
    shape, name, elements = msgpack.unpackb(data, raw=True)
    found = np.frombuffer(elements, np.dtype(getattr(ml_dtypes, name.decode(), name.decode()))).reshape(shape)
    return found if code == 1 else found[()]


def unchunked(node: Any) -> Any:
    """Chunks joined, of dictionaries in dictionaries, as Flax does it."""
    if not isinstance(node, dict):
        return node
    if CHUNKED in node:
        ordered = lambda d: [d[str(i)] for i in range(len(d))]  # noqa: E731
        return np.concatenate(ordered(node["chunks"])).reshape(ordered(node["shape"]))
    return {k: unchunked(v) if isinstance(v, dict) else v for k, v in node.items()}


def flat(node: Any, path: tuple[str, ...], out: Values) -> None:
    """Arrays and numbers under our names."""
    if isinstance(node, (dict, list)):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            flat(inner, (*path, str(key)), out)
    elif isinstance(node, (np.ndarray, np.generic)):
        if node.dtype.kind in "SUMmVO" and node.dtype.name not in DTYPES:
            return
        if "/".join(path) in out:
            raise ValueError("two names are equal")
        out["/".join(path)] = np.asarray(node)
    elif isinstance(node, (bool, int, float, complex)):
        kind = {bool: "?", int: "i8", float: "f8", complex: "c16"}[type(node)]
        out["/".join(path)] = np.array(node, "u8" if kind == "i8" and node >= 2**63 else kind)


def read(path: Path) -> Values:
    out: Values = {}
    flat(restore(path.read_bytes()), (), out)
    return out


# --- files ------------------------------------------------------------------------------------------------------


def tree(choose: random.Random, depth: int, listed: bool = False) -> Any:
    """Nested dictionaries, lists and leaves. listed: in a list, where Flax does not look for chunks."""
    many = choose.randint(0 if choose.random() < 0.1 else 1, 4)
    if depth and choose.random() < 0.15:
        return [tree(choose, depth - 1, True) if choose.random() < 0.3 else leaf(choose, True) for _ in range(many)]
    keys = [choose.choice(KEYS) for _ in range(many)]
    keys = [k + "/x" if choose.random() < 0.01 else k for k in keys]
    out: dict[Any, Any] = {}
    for key in keys:
        whole = int(key) if key.isdigit() and choose.random() < 0.1 else key
        out[whole] = tree(choose, depth - 1, listed) if depth and choose.random() < 0.4 else leaf(choose, listed)
    return out


def leaf(choose: random.Random, listed: bool = False) -> Any:
    how = choose.random()
    if how < 0.12:
        return choose.choice(PLAIN)
    kind = choose.choice(DTYPES if how < 0.97 else OTHERS)
    made = array(
        choose, dtype(kind) if kind in DTYPES else np.dtype(getattr(ml_dtypes, kind, kind)), some_shape(choose)
    )
    if how < 0.25 and made.shape == () and kind in DTYPES:
        return made[()]
    if how > 0.85:
        return choose.choice((np.asfortranarray(made), made.T, made[::-1] if made.ndim else made))
    if 0.8 < how < 0.85 and made.size and kind in DTYPES and not listed:
        return chunks(choose, made)
    return made


def chunks(choose: random.Random, made: np.ndarray) -> dict[str, Any]:
    """As Flax divides arrays of more than 2^30 bytes."""
    step, line = choose.randint(1, made.size), made.reshape(-1)
    pieces = [line[i : i + step] for i in range(0, made.size, step)]
    numbered = lambda items: {str(i): x for i, x in enumerate(items)}  # noqa: E731
    return {CHUNKED: True, "shape": numbered(made.shape), "chunks": numbered(pieces)}


def packed(choose: random.Random, value: Any) -> bytes:
    """msgpack of any width of its lengths and numbers, as other writers may choose."""
    wide = choose.random() < 0.1
    if isinstance(value, dict):
        head = bytes([0x80 | len(value)]) if len(value) < 16 and not wide else struct.pack(">BI", 0xDF, len(value))
        return head + b"".join(packed(choose, k) + packed(choose, v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        head = bytes([0x90 | len(value)]) if len(value) < 16 and not wide else struct.pack(">BH", 0xDC, len(value))
        return head + b"".join(packed(choose, v) for v in value)
    if isinstance(value, str) and wide:
        raw = value.encode()
        return struct.pack(">BI", 0xDB, len(raw)) + raw
    if type(value) is int and wide and 0 <= value < 2**63:
        return struct.pack(">Bq", 0xD3, value)
    if type(value) is float and wide and value == value:
        return struct.pack(">Bf", 0xCA, value)
    if isinstance(value, (np.ndarray, np.generic)):
        items: Any = np.asarray(value)
        name: Any = items.dtype.name.encode() if choose.random() < 0.1 else items.dtype.name
        inner = msgpack.packb((items.shape, name, items.tobytes()), use_bin_type=choose.random() < 0.9)
        code = 1 if isinstance(value, np.ndarray) else 3
        return (
            struct.pack(">BIb", 0xC9, len(inner), code) + inner if wide else msgpack.packb(msgpack.ExtType(code, inner))
        )
    if isinstance(value, complex):
        return bytes(msgpack.packb(msgpack.ExtType(2, msgpack.packb((value.real, value.imag)))))
    return bytes(msgpack.packb(value))


def by_flax(value: Any) -> bytes:
    try:
        from flax.serialization import msgpack_serialize
    except ImportError:
        return packed(random.Random(0), value)
    return bytes(msgpack_serialize(value)) if sortable(value) else packed(random.Random(0), value)


def sortable(node: Any) -> bool:
    """Whether the keys of each dictionary are of one type; JAX refuses others, and loses a level of recursion on it."""
    if isinstance(node, dict):
        return len({*map(type, node)}) < 2 and all(map(sortable, node.values()))
    return all(map(sortable, node)) if isinstance(node, list) else True


def make(choose: random.Random, folder: Path) -> Case:
    path = folder / "m.msgpack"
    value = tree(choose, 3) if choose.random() < 0.97 else leaf(choose)
    if choose.random() < 0.6:
        raw = by_flax(value)
    else:
        raw = packed(choose, value)
        if choose.random() < 0.1:
            raw = choose.choice((raw + b"\0", raw[:-1], raw.replace(b"\x01", b"\x02", 1)))
    path.write_bytes(raw)
    return Case(path, "flax", read, folder / "back.msgpack")


OUTWARD = (Outward("w.msgpack", "flax", DTYPES, read),)
