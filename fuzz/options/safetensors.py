"""safetensors: files by its own writers, headers by hand in any JSON, and sharded folders with their index."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors import TensorSpec, deserialize, safe_open, serialize_file

from .common import Case, Ours, Outward, Values, array, dtype, some_bytes, some_name, some_shape

# spelling, dtype here, bits of an element
DTYPES = {
    "BOOL": ("bool", 8), "U8": ("uint8", 8), "I8": ("int8", 8), "I16": ("int16", 16), "U16": ("uint16", 16),
    "I32": ("int32", 32), "U32": ("uint32", 32), "I64": ("int64", 64), "U64": ("uint64", 64), "F16": ("float16", 16),
    "BF16": ("bfloat16", 16), "F32": ("float32", 32), "F64": ("float64", 64), "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8), "F8_E5M2": ("float8_e5m2", 8), "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8), "F4": ("uint8", 4),
    "F6_E2M3": ("uint8", 6), "F6_E3M2": ("uint8", 6),
}  # fmt: skip
NAMED = ("w", "a.b", "é", "日本", "x/y", "", "\n", '"', "\\", "\u2028", "😀", "name with spaces", "0", "data_offsets")

REFUSED = {
    "6-bit floats": "elements of 6 bits, or half a byte at the end of a row",
    "contains half a surrogate pair": "half a surrogate pair",
    "occurs twice": "a name twice, of which the reference takes the last",
    "reserves this name": "the reserved name",
    "shards? missing|not in the file that the index names": "an index that does not fit its shards",
}
LENIENT: dict[str, str] = {}


def oracle() -> str:
    return f"safetensors {safetensors.__version__}"


def by_writer(choose: random.Random, path: Path, names: list[str]) -> None:
    """By the package's own writer, of any dtype that it takes."""
    kept, specs = [], {}
    for name in names:
        spelling = choose.choice([s for s in DTYPES if s not in ("F4", "F6_E2M3", "F6_E3M2")])
        made = array(choose, DTYPES[spelling][0], some_shape(choose))
        kept.append(made)
        specs[name] = TensorSpec(
            dtype=made.dtype.name, shape=made.shape, data_ptr=made.ctypes.data, data_len=made.nbytes
        )
    metadata = choose.choice((None, {}, {"format": "pt"}, {"é": "日本\n", "": "", "a": "x" * 50}))
    serialize_file(specs, str(path), metadata=metadata)


def by_hand(choose: random.Random, path: Path, names: list[str]) -> None:
    """By hand: any order and gap of the data, any spelling of the JSON; two in three are wrong nowhere on purpose."""
    wrong = choose.random() < 0.35
    slip = lambda chance=0.12: wrong and choose.random() < chance  # noqa: E731
    entries, data = [], b""
    for name in choose.sample(names, len(names)):
        spelling, (_, bits) = choose.choice(list(DTYPES.items()))
        shape = list(some_shape(choose, 3))
        size = int(np.prod(shape, dtype=np.int64)) * bits // 8
        raw = (
            some_bytes(choose, size)
            if spelling != "BOOL" or slip(0.3)
            else bytes(b & 1 for b in choose.randbytes(size))
        )
        start = len(data) + (choose.choice((-1, 1)) if slip(0.05) else 0)
        data += raw
        info: dict[str, Any] = {"dtype": spelling, "shape": shape, "data_offsets": [start, len(data) + (slip(0.05))]}
        if slip():
            key, value = choose.choice((
                ("dtype", spelling.lower()), ("shape", [*shape, 1.0]), ("shape", [-1]), ("shape", None), ("more", 1),
                ("data_offsets", [start]), ("data_offsets", [start, len(data), 0]), ("shape", [*shape, True]),
                ("dtype", "F128"), ("shape", [0, 2**32, 2**32]), ("shape", [2**63]), ("data_offsets", ["0", "4"]),
            ))  # fmt: skip
            info[key] = value
        if slip(0.05):
            info.pop(choose.choice(list(info)))
        entries.append((name, dict(choose.sample(list(info.items()), len(info)))))
    if choose.random() < 0.4:
        odd = ({"a": 1}, {"a": None}, [], "x") if wrong else ()
        metadata = choose.choice(({}, {"a": "b"}, {"é": "\u0000"}, None, *odd))
        entries.insert(choose.randint(0, len(entries)), ("__metadata__", metadata))
    if slip(0.1) and entries:
        entries.append(entries[0])
    glue = choose.choice((",", ", ", " ,\n\t"))
    spell = lambda v: json.dumps(v, ensure_ascii=ascii_, separators=(glue, choose.choice((":", " : "))))  # noqa: E731
    ascii_ = choose.random() < 0.5
    text = "{" + glue.join(f"{spell(n)}:{spell(v)}" for n, v in entries) + (glue.strip() if slip(0.05) else "") + "}"
    raw = text.encode("utf-8", "surrogatepass")
    raw += choose.choice((b"", b" " * (-len(raw) % 8), b" " * 3, b"\n", b"\t" if not wrong else b"\0", b"\r\n"))
    raw = choose.choice((b" ", b"\xef\xbb\xbf", b"\n")) + raw if slip(0.1) else raw
    data += b"more" if slip(0.05) else b""
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def some_names(choose: random.Random) -> list[str]:
    names = {
        choose.choice(NAMED) + (some_name(choose, ".") if choose.random() < 0.6 else "")
        for _ in range(choose.randint(0, 6))
    }
    return sorted(names)


def sharded(choose: random.Random, folder: Path) -> None:
    names = some_names(choose) or ["w"]
    count = choose.randint(1, 3)
    shard = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    held = {f: [n for n in names if choose.random() < 0.6] for f in shard}
    weight_map = {n: choose.choice([f for f in shard if n in held[f]] or shard) for n in names}
    for f in shard:
        if choose.random() < 0.9:
            held[f] += [n for n in names if weight_map[n] == f and n not in held[f]]
        if choose.random() < 0.97:
            by_writer(choose, folder / f, held[f])
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    if choose.random() < 0.1:
        index.pop("metadata")
    text = json.dumps(index, ensure_ascii=choose.random() < 0.5, indent=choose.choice((None, 2)))
    (folder / "model.safetensors.index.json").write_text(text)


# --- reading ----------------------------------------------------------------------------------------------------


def tensors(path: Path) -> Values:
    """By the reference's parser; its bytes under our dtypes."""
    out: Values = {}
    for name, found in deserialize(path.read_bytes()):
        kind, shape = DTYPES[found["dtype"]][0], list(found["shape"])
        if found["dtype"] == "F4" and shape:
            shape[-1] //= 2
        raw = bytes(found["data"])
        fits = found["dtype"] not in ("F6_E2M3", "F6_E3M2") and len(raw) == int(np.prod(shape)) * dtype(kind).itemsize
        out[name] = np.frombuffer(raw, dtype(kind)).reshape(shape) if fits else np.frombuffer(raw, "u1")
    return out


def read(path: Path) -> Values:
    if not path.is_dir():
        return tensors(path)
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return tensors(path / "model.safetensors")
    places = json.loads(index.read_text())["weight_map"]
    shards = {f: tensors(path / f) for f in dict.fromkeys(places.values())}
    return {n: shards[f][n] for n, f in places.items()}


def also(case: Case, mine: Ours) -> str:
    """The metadata is the same."""
    if case.path.is_dir():
        return ""
    with safe_open(case.path, "np") as f:
        said = f.metadata() or {}
    return "" if said == dict(mine.checkpoint.metadata) else f"metadata {said} is {mine.checkpoint.metadata}"


def make(choose: random.Random, folder: Path) -> Case:
    how = choose.random()
    if how < 0.15:
        (folder / "m").mkdir()
        sharded(choose, folder / "m")
        return Case(
            folder / "m", "hf", read, folder / "back", write={"max_shard_size": choose.choice((10, 100, 10**9))}
        )
    path = folder / "m.safetensors"
    (by_writer if how < 0.5 else by_hand)(choose, path, some_names(choose))
    return Case(path, "safetensors", read, folder / "back.safetensors")


WHOLE = tuple(kind for spelling, (kind, _) in DTYPES.items() if spelling not in ("F4", "F6_E2M3", "F6_E3M2"))
OUTWARD = (Outward("w.safetensors", "safetensors", WHOLE, read), Outward("w", "hf", WHOLE, read))
