"""Tiny tensors of every dtype and many unusual shapes and names, which a format must keep or refuse by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..api.options import Options
from ..api.writing import write as write_as_it_is
from ..checkpoint import Checkpoint, contiguous, held, view
from ..dtypes import DTYPES, DType
from ..errors import CkptError
from ..formats import detect, table
from ..moves.part import Held

SEED = 20


def bits(kind: DType, shape: tuple[int, ...], seed: int = SEED) -> np.ndarray[Any, Any]:
    """An array of random bit patterns valid for `kind`, with NaN payloads, infinities and -0.0; the same for a seed."""
    rng = np.random.default_rng(seed)
    if kind.kind == "s":
        texts = [bytes(rng.integers(0, 256, n, dtype="u1")) for n in rng.integers(0, 9, int(np.prod(shape)))]
        out = np.empty(len(texts), object)
        out[:] = texts
        return out.reshape(shape)
    raw: np.ndarray[Any, Any] = rng.integers(0, 256, (*shape, kind.itemsize), dtype="u1")
    if kind.kind == "b":
        raw &= 1
    if small := re.fullmatch(r"(int|uint|float)([24])(_e2m1fn)?", kind.name):
        width = 8 - int(small[2])
        raw = (raw << width).view("i1" if small[1] == "int" else "u1") >> width
    return np.ascontiguousarray(raw).reshape(-1).view(kind.dtype).reshape(shape)


def edges(kind: DType) -> np.ndarray[Any, Any]:
    """Zeros and the smallest subnormals of both signs, NaNs with payloads, and infinities."""
    word = kind.itemsize * 8
    top, ones = 1 << (word - 1), (1 << word) - 1
    odd = np.array([0, top, 1, top | 1, ones, ones >> 1, ones - 2], f"u{kind.itemsize}").view(kind.dtype)
    return np.concatenate([odd, np.array([np.inf, -np.inf], kind.dtype)])


def zoo() -> Checkpoint:
    """Tiny tensors of every dtype and of unusual shapes (scalar, empty, many axes), under ordinary names."""
    tensors = [contiguous(f"dtype/{row.name}", row, (2, 3), Held(bits(row, (2, 3)))) for row in DTYPES.values()]
    for row in DTYPES.values():
        if row.kind == "f" and row.itemsize > 1:
            tensors.append(held(f"edges/{row.name}", edges(row)))
    for i, shape in enumerate([(), (1,), (0,), (0, 3), (3, 0, 2), (1, 1, 1), (2, 1, 3, 1, 2), (7, 5)]):
        tensors.append(held(f"shape/s{i}", bits(DTYPES["float32"], shape, i)))
        tensors.append(held(f"shape/b{i}", bits(DTYPES["bool"], shape, i)))
    base = Held(bits(DTYPES["float32"], (24,)))
    f4 = DTYPES["float32"]
    tensors.append(view("view/transposed", f4, (4, 3, 2), base, offset=0, strides=(1, 4, 12)))
    tensors.append(view("view/sliced", f4, (3, 2), base, offset=5, strides=(6, 3)))
    tensors.append(view("view/expanded", f4, (4, 3), base, offset=2, strides=(0, 1)))
    return Checkpoint({t.name: t for t in tensors})


NAMES = (
    "plain", "dots.and.more", "group/inside", "layer_1/kernel", "layer_10/kernel", "layer_2/kernel", "with space",
    "Upper", "upper", "trailing:0", "é/ü", "日本語", "😀", "e\u0301", 'quote"s', "back\\slash", "per%2Fcent",
    "tab\tline\nbreak", "bell\x07", "nul\0byte", "/absolute", "../outside", "a//b", ".", "dir/", ".hidden",
    "__metadata__", "file.npy", "long" * 100, "*?<>|", "half\ud800", "'); --", "-o", "_CHECKPOINTABLE_OBJECT_GRAPH",
)  # fmt: skip
MORE_NAMES = ("", "..", "file")  # with nested groups, these are groups above others; with file suffixes, they clash


def odd_names(names: Sequence[str] = NAMES) -> Checkpoint:
    """One small tensor under each of `names`, by default many that are difficult for some format."""
    return Checkpoint({n: held(n, np.array([i, -i], "i4")) for i, n in enumerate(names)})


# --- Write, read and compare checkpoints in one format, for the contract and for the tests of third parti ---


BIG = 2**24  # bytes; larger tensors, whose size a hostile file may only claim, are not read


def write(checkpoint: Checkpoint, path: Path, name: str, **options: Any) -> None:
    """Write `checkpoint` to `path` in the format `name`, without reading it back; raises what `ckptconv.save` raises.

    options: further options of the output, such as `max_shard_size` in bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_as_it_is(checkpoint, path, Options(to=name, verify=False, sync=False, force=True, **options))


def read(path: Path, name: str) -> dict[str, Any]:
    """Open `path` in the format `name` and read all tensors into arrays, by name; CkptError if that fails."""
    found = detect.open_checkpoint(str(path), format=name)
    return {n: t.numpy() for n, t in found.items() if t.nbytes <= BIG}


def holdable(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """The part of a checkpoint that the writer of the format `name` can hold, by `cannot_hold`."""
    writer = table.get(name).load().writer(str(path))
    return checkpoint.with_tensors({n: t for n, t in checkpoint.items() if not writer.cannot_hold(t)})


def assert_same(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """Assert that the file holds exactly these tensors, bit for bit; return the opened checkpoint."""
    found = detect.open_checkpoint(str(path), format=name)
    assert set(checkpoint) == set(found)
    for n, t in checkpoint.items():
        back = found[n]
        assert (back.dtype, back.shape) == (t.dtype, t.shape), n
        got, want = back.numpy(), t.numpy()
        assert got.shape == want.shape, n
        same = list(got.flat) == list(want.flat) if t.dtype.kind == "s" else got.tobytes() == want.tobytes()
        assert same, f"{n}: {got} is not {want}"
    return found


def files_of(path: Path) -> dict[str, bytes]:
    """The contents of all files at or beside a destination, by path."""
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in sorted(path.parent.rglob("*")) if p.is_file()}


def survives(path: Path, name: str) -> None:
    """Assert that reading gives tensors or a CkptError, both with the given format and with the detected one."""
    for forced in (name, None):
        try:
            found = detect.open_checkpoint(str(path), format=forced)
        except CkptError:
            continue
        for t in found.values():
            if t.nbytes <= BIG:
                try:
                    assert t.numpy().shape == t.shape
                except CkptError:
                    pass
