"""A pickle and nothing else: dicts of NumPy arrays, as JAX users, Detectron's model zoo and PaddlePaddle write them.

    80 04 95 ...                       one pickle of protocol 2 to 5, to the end of the file
    (dp0\nS'conv1_w'\np1\n ...          of protocol 0, which Python 2 wrote by default; 7d 71 00 28 ... of protocol 1
    {"model": {"conv1_w": ndarray, ...}, "__author__": "..."}                .pkl
    {"linear_0.w_0": ndarray or (name, ndarray), "StructuredToParameterName@@": {...}}      .pdparams, .pdopt

What joblib wrote uncompressed is read as well. Paddle stores bfloat16 as uint16, which is not one of its
dtypes; it is read as bfloat16, with a note.
Specification: Lib/pickletools.py; paddle/framework/io.py.

joblib.dump: a pickle in whose middle the elements of arrays stand as they are.

    ... GLOBAL joblib.numpy_pickle NumpyArrayWrapper  NEWOBJ
    {"subclass": numpy.ndarray, "shape": (2, 3), "order": "C", "dtype": dtype, "numpy_array_alignment_bytes": 16}  BUILD
    n (one byte), n bytes of padding, the elements           no padding byte where the alignment is None or absent

Arrays of objects are pickles within the pickle and not read. Specification: joblib/numpy_pickle.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint, Note
from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint
from ...moves.part import checked_count
from ...storage.files import Reader, Seen
from ..table import Reading
from .flatten import checkpoint
from .legacy import MAGIC
from .pickle import load
from .tensors import TORCH
from .values import ArrayType, Known, Ordered, PickledArray, shown


class Wrapper:
    """The placeholder of an array until its state is known."""

    __slots__ = ()

    def inline(self, state: Any, take: Callable[[int], bytes]) -> PickledArray:
        """Read the array that follows the state."""
        fields = state if type(state) in (dict, Ordered) else {}
        kind, shape, order = fields.get("dtype"), fields.get("shape"), fields.get("order")
        subclass = fields.get("subclass")
        proper = type(subclass) is Known and subclass.path == "ndarray" and order in ("C", "F")
        if not proper or type(kind) is not ArrayType or type(shape) is not tuple:
            raise CorruptCheckpoint(f"joblib describes an array by {shown(list(fields.values()))}")
        if kind.spelling[:1] == "O":
            raise CorruptCheckpoint("joblib stores an array of objects, which is not read; dump it without such arrays")
        if fields.get("numpy_array_alignment_bytes") is not None:
            take(take(1)[0])
        array = PickledArray()
        array.fill(shape, kind, order == "F", take(checked_count(shape) * int(kind.numpy().itemsize)))
        return array


JOBLIB: dict[tuple[str, str], Any] = {
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): Known("NumpyArrayWrapper", Wrapper, "empty"),
}


MAX_PICKLE = 2**33  # the arrays lie within
PADDLE = (".pdparams", ".pdopt", ".pdiparams")
SUFFIXES = (".pkl", ".pickle", ".joblib", *PADDLE)
TABLE, SPLIT = "StructuredToParameterName@@", "UnpackBigParamInfor@@"  # Paddle's own keys


# How pickles begin: by their protocol; without one by a container, a class or text, of which a tuple can be made.
BEGINNING = re.compile(
    rb"""\x80[\2-\5] | \(*(?:
        (?:[}\]]|\([dl]) (?:q.|p\d+\n|\.)
      | (?:c|\(i) [A-Za-z_][\w.]*\n [A-Za-z_]\w*\n (?:q.|p\d+\n|[()}\]])
      | \( (?:[SV][^\n]*\n(?:p\d+\n)? | X.{3}\0 | U.) )""",
    re.DOTALL | re.VERBOSE,
)


def sniff(seen: Seen) -> int:
    if not BEGINNING.match(seen.head) or seen.tail[-1:] != b"." or MAGIC.match(seen.head):
        return 0
    return 3 if seen.base.endswith(SUFFIXES) else 2


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        if f.size > MAX_PICKLE:
            raise CorruptCheckpoint(f"has {f.size} bytes; pickles are read whole, up to {MAX_PICKLE}")
        raw = f.read(0, f.size)
    root = load(raw, allowed=TORCH | JOBLIB, opaque=how.opaque)
    paddle = url.endswith(PADDLE) or (isinstance(root, dict) and TABLE in root)
    if isinstance(root, dict):
        if SPLIT in root:
            raise CorruptCheckpoint("arrays of over 1 GiB that Paddle split are not joined; save with protocol 4")
        for name, value in root.items():
            if type(value) is tuple and len(value) == 2 and type(value[0]) is str and type(value[1]) is PickledArray:
                root[name] = value[1]  # Paddle's (name, array)
    found = checkpoint(root, len(raw), how, url=url, format="pickle")
    return _bfloat16(found) if paddle else found


def _bfloat16(found: Checkpoint) -> Checkpoint:
    """What Paddle wrote, with its uint16 taken for bfloat16 as paddle.load takes it."""
    kind, halves = DTYPES["bfloat16"], {n: t for n, t in found.items() if t.dtype.name == "uint16"}
    if not halves:
        return found
    taken = {n: replace(t, dtype=kind, parts=tuple(p._replace(dtype=kind) for p in t.parts)) for n, t in halves.items()}
    note = Note("assumed", "Paddle stores bfloat16 as uint16; read as bfloat16", tuple(taken))
    return found.with_tensors({**found.tensors, **taken}, note)
