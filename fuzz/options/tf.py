"""TensorFlow: V2 and V1 checkpoints over dtypes, slices, shards and names; tables laid out anew."""

from __future__ import annotations

import os
import random
import re
import struct
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from ckptconv.formats.table import TF_TABLE
from ckptconv.formats.tensorflow.table import Table, varint
from ckptconv.storage.checksum import crc, mask
from ckptconv.storage.files import Reader

from .common import Case, Values, array, native, some_name, some_shape, texts

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float4_e2m1fn", "int4", "uint4", "int2", "uint2", "string",
)  # fmt: skip
OLD = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "float16", "float32", "float64", "complex64",
       "complex128", "string")  # fmt: skip
QUANTISED = {tf.qint8: "int8", tf.quint8: "uint8", tf.qint16: "int16", tf.quint16: "uint16", tf.qint32: "int32"}
PREFIXES = ("m", "model.ckpt-100", "a b", "é", "m.index", "x.data-00000-of-00001", "0")

REFUSED = {
    "slices that were never saved": "a partitioned variable of which slices are missing",
    "lists more slices than are stored": "the same slices again and again",
    "overlaps another": "slices that overlap",
}
LENIENT: dict[str, str] = {}


def oracle() -> str:
    return f"tensorflow {tf.__version__}"


# --- what is saved ----------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A tensor, or a slice of one, as SaveV2 takes it."""

    name: str
    spec: str
    array: np.ndarray
    quantised: Any = None

    @property
    def tensor(self) -> Any:
        if self.array.dtype == object:
            return (
                tf.constant(self.array, tf.string, self.array.shape)
                if self.array.size
                else tf.zeros(self.array.shape, tf.string)
            )
        made = tf.constant(self.array)
        return tf.bitcast(made, self.quantised) if self.quantised else made


def pieces(choose: random.Random, dtypes: tuple[str, ...]) -> tuple[list[Piece], Values]:
    """What is saved, and the same whole, where nothing is missing."""
    out: dict[str, list[Piece]] = {}
    whole: Values = {}
    for i in range(choose.randint(40, 200) if choose.random() < 0.02 else choose.randint(1, 7)):
        odd = ("w\0", "/w", "w/", "a//b", "w:0", "global_step", "a/b/.ATTRIBUTES/VARIABLE_VALUE", "n" * 300)
        name = (
            choose.choice(odd)
            if choose.random() < 0.06
            else some_name(choose) + (str(i) if choose.random() < 0.7 else "")
        )
        kind, shape = choose.choice(dtypes), some_shape(choose)
        made = texts(choose, shape) if kind == "string" else array(choose, kind, shape)
        quantised = next((q for q, plain in QUANTISED.items() if plain == kind and choose.random() < 0.04), None)
        out[name] = [Piece(name, "", made, quantised)]
        if made.ndim and made.size and choose.random() < 0.25:
            out[name] = sliced(choose, out[name][0])
        whole[name] = made
        if sum(p.array.size for p in out[name]) < made.size:
            whole.pop(name)
    return [p for ps in out.values() for p in ps], whole


def sliced(choose: random.Random, whole: Piece) -> list[Piece]:
    """Slices along some axes, mostly all of them."""
    boxes: list[list[tuple[int, int]]] = [[]]
    shape = whole.array.shape
    for n in shape:
        ends = [0, n]
        if n > 1 and choose.random() < 0.5:
            ends = sorted({0, n, *choose.sample(range(1, n), choose.randint(1, min(2, n - 1)))})
        boxes = [[*box, (a, b - a)] for box in boxes for a, b in pairwise(ends)]
    if choose.random() < 0.05 and len(boxes) > 1:
        boxes.pop(choose.randrange(len(boxes)))
    out = []
    for box in choose.sample(boxes, len(boxes)):
        dims = zip(box, shape, strict=True)
        spans = ["-" if size == n and choose.random() < 0.7 else f"{at},{size}" for (at, size), n in dims]
        spec = f"{' '.join(map(str, shape))} {':'.join(spans)}"
        out.append(whole._replace(spec=spec, array=whole.array[tuple(slice(a, a + s) for a, s in box)]))
    return out


def save(prefix: str, given: list[Piece]) -> None:
    names, specs = [p.name for p in given], [p.spec for p in given]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=specs, tensors=[p.tensor for p in given])


def second(choose: random.Random, folder: Path) -> tuple[Path, Values]:
    """V2: at once, or in shards that are merged."""
    (given, whole), prefix = pieces(choose, DTYPES), folder / choose.choice(PREFIXES)
    if choose.random() < 0.6:
        save(str(prefix), given)
        return prefix, whole
    shards: list[list[Piece]] = [[] for _ in range(choose.randint(1, 4))]
    for p in given:
        choose.choice(shards).append(p)
    parts = [str(folder / "_temp" / f"part-{i}") for i, shard in enumerate(shards) if shard]
    for part, shard in zip(parts, filter(None, shards), strict=True):
        save(part, shard)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(prefix), delete_old_dirs=True)
    return prefix, whole


def first(choose: random.Random, folder: Path) -> tuple[Path, Values]:
    """V1: one table, or several; a slice may lie in any of them."""
    (given, whole), path = pieces(choose, OLD), folder / "m.ckpt"
    shards: list[list[Piece]] = [[] for _ in range(choose.choice((1, 1, 2, 3)))]
    for p in given:
        choose.choice(shards).append(p._replace(quantised=None) if p.quantised in (tf.qint16, tf.quint16) else p)
    shards = [s for s in shards if s]
    for i, shard in enumerate(shards):
        file = path if len(shards) == 1 else folder / f"m.ckpt-{i:05d}-of-{len(shards):05d}"
        names, specs = [p.name for p in shard], [p.spec for p in shard]
        tf.raw_ops.SaveSlices(
            filename=str(file), tensor_names=names, shapes_and_slices=specs, data=[p.tensor for p in shard]
        )
    return path, whole


def objects(choose: random.Random, folder: Path) -> tuple[Path, Values]:
    """tf.train.Checkpoint: variables in objects, lists and dictionaries; under their paths."""
    values: Values = {}
    root = tf.train.Checkpoint()
    holders: list[tuple[Any, str]] = [(root, "")]
    for i in range(choose.randint(1, 5)):
        at, path = choose.choice(holders)
        word = choose.choice(("w", "dense", "a.b", "x/y", "é", "_p", "0")) + str(i)
        kind = choose.choice(("float32", "float16", "bfloat16", "int64", "bool", "complex64", "uint8"))
        made = lambda: tf.Variable(tf.constant(array(choose, kind, some_shape(choose, 3))))  # noqa: B023, E731
        if choose.random() < 0.3:
            child = tf.train.Checkpoint()
            setattr(at, word, child)
            holders.append((child, path + word + "/"))
            child.inner = made()
            values[f"{path}{word}/inner"] = child.inner.numpy()
        elif choose.random() < 0.3:
            items = [made(), made()] if choose.random() < 0.5 else {"k": made(), "l.m": made()}
            setattr(at, word, items)
            for key, v in items.items() if isinstance(items, dict) else enumerate(items):
                values[f"{path}{word}/{key}"] = v.numpy()
        else:
            setattr(at, word, made())
            values[path + word] = getattr(at, word).numpy()
    prefix = folder / "m"
    if choose.random() < 0.5:
        root.write(str(prefix))
        return prefix, values
    values["save_counter"] = np.array(1)
    return Path(root.save(str(prefix))), values


# --- laid out anew ----------------------------------------------------------------------------------------------


def again(choose: random.Random, prefix: Path) -> None:
    """The same entries in a table with other blocks, restart points, separators and compression."""
    index = Path(f"{prefix}.index")
    with Reader(str(index)) as f:
        entries = [(bytes(k), bytes(v)) for k, v in Table(f)]
    size, packed = choose.choice((1, 2, 5, 1000)), choose.random() < 0.4
    blocks = [entries[i : i + size] for i in range(0, len(entries), size)]
    out, handles = bytearray(), []
    for n, group in enumerate(blocks):
        handle = appended(out, block(group, choose.choice((1, 2, 3, 16))), packed)
        last, following = group[-1][0], blocks[n + 1][0][0] if n + 1 < len(blocks) else None
        between = last + b"\0" if following is None or last + b"\0" < following else last
        handles.append((choose.choice((last, between)), handle))
    meta = appended(out, block([], 1), False)
    footer = meta + appended(out, block(handles, choose.choice((1, 2))), packed)
    index.write_bytes(bytes(out) + footer.ljust(40, b"\0") + TF_TABLE)


def block(entries: list[tuple[bytes, bytes]], interval: int) -> bytes:
    data, restarts, last = bytearray(), [], b""
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % interval == 0:
            restarts.append(len(data))
        else:
            same = (n for n, (a, b) in enumerate(zip(last, key, strict=False)) if a != b)
            shared = next(same, min(len(last), len(key)))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(data) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def appended(out: bytearray, raw: bytes, packed: bool) -> bytes:
    """Append a block; return its handle."""
    if packed:
        import cramjam

        raw = bytes(cramjam.snappy.compress_raw(raw))
    handle = varint(len(out)) + varint(len(raw))
    body = raw + (b"\1" if packed else b"\0")
    out += body + struct.pack("<I", mask(crc("crc32c", body)))
    return handle


# --- reading ----------------------------------------------------------------------------------------------------


def read(path: Path, whole: Values | None = None) -> Values:
    """Every tensor that TensorFlow gives. `whole`: what was saved, for dtypes that its readers do not join or know."""
    old = not path.with_name(path.name + ".index").exists()
    reader = tf.train.load_checkpoint(str(path) if not old or path.exists() else f"{path}-?????-of-?????")
    out: Values = {}
    for name in reader.get_variable_to_shape_map():
        try:
            out[name] = native(reader.get_tensor(name))
        except Exception as e:
            if whole is None or not re.search("sufficient slices|not supported", str(e)):
                raise
            if name in whole:  # else a part of it was not saved
                out[name] = whole[name]
    return out


def make(choose: random.Random, folder: Path) -> Case:
    how = choose.random()
    write = {"max_shard_size": choose.choice((None, 1, 50, 1000))}
    back = folder / "back" / "m"
    if how < 0.05:
        prefix, values = objects(choose, folder)
        return Case(prefix, "tf", lambda p: values if p == prefix else graph_less(read(p)), back, write=write)
    if how < 0.2:
        path, whole = first(choose, folder)
        return Case(path, "tf-v1", lambda p: read(p, whole), back, write={**write, "to": "tf"})
    prefix, whole = second(choose, folder)
    if choose.random() < 0.4:
        again(choose, prefix)
    return Case(prefix, "tf", lambda p: read(p, whole), back, write=write)


def graph_less(values: Values) -> Values:
    """Without the object graph; its names as paths."""
    kept: Values = {}
    for name, a in values.items():
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH":
            words = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
            kept[words.replace(".S", "\0").replace("..", ".").replace("\0", "/")] = a
    return kept


with suppress(RuntimeError):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
