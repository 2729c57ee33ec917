"""What the child says of one group or dataset, checked: code of the file's author may run there and say anything.

    {"path": "a", "group": true, "attrs": {"epoch": 3, "names": ["x", "y"]}}
    {"path": "a/w", "dtype": "float32", "shape": [2, 3], "offset": 800, "swap": false, "attrs": {}}     -1: decode it
    {"path": "a/v", "same": "a/w", ...}    {"path": "a/x", "skip": "why"}    {..., "note": "what was assumed"}

A record that scan.py would not make is refused, so that what follows can rely on the rest.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint
from ...moves.part import checked_count
from .member import WEIGHTS
from .scan import RATIO, SLACK, least

MEMORY, MORE_MEMORY = 64, 128 << 20  # bytes that all records may take, per byte that is stored and in addition
MAX_AXES = 32  # of HDF5
PLAIN = (str, int, float, type(None))  # bool is an int


class Record(NamedTuple):
    """One link: a dataset if it has a dtype, a group, or what is left out, with the reason in `skip`."""

    path: str
    group: bool
    skip: str
    note: str
    same: str  # the path at which the same dataset occurred first
    attrs: dict[str, Any]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    swap: bool


def weight(body: bytes) -> int:
    """About the bytes of memory that a record takes."""
    return 4 * len(body) + sum(cost * body.count(sign) for sign, cost in WEIGHTS.items())


def parse(body: bytes, size: int, url: str) -> Record:
    """Read a record about a file of `size` bytes; CorruptCheckpoint if it is not one."""
    try:
        made = _record(_of(dict, json.loads(str(body, "utf-8"))))
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        raise CorruptCheckpoint("the HDF5 library sent an invalid record: the file is hostile", url=url) from None
    if made.group or made.skip:
        return made
    if made.dtype not in DTYPES:
        raise CorruptCheckpoint(f"has the dtype {made.dtype!r}", url=url, tensor=made.path)
    kind = DTYPES[made.dtype]
    count = checked_count(made.shape, url=url, tensor=made.path)
    if count * least(kind.itemsize, text=kind.kind == "s") > RATIO * size + SLACK:
        raise CorruptCheckpoint(f"declares {count} elements in a file of {size} bytes", url=url, tensor=made.path)
    if made.offset >= 0 and (kind.kind == "s" or made.offset + count * kind.itemsize > size):
        text = f"needs bytes {made.offset} to {made.offset + count * kind.itemsize}, but the file has {size}"
        raise CorruptCheckpoint(text, url=url, tensor=made.path)
    return made


def _record(said: dict[str, Any]) -> Record:
    """The fields of a record, each of its own type; any exception of Python's if one is not."""
    texts = {key: _of(str, said.get(key, "")) for key in ("skip", "note", "same")}
    path, group, attrs = _of(str, said["path"]), _of(bool, said.get("group", False)), _of(dict, said.get("attrs", {}))
    path.encode("utf-8", "surrogateescape")
    for value in attrs.values():
        _value(value, 0)
    if group or texts["skip"]:
        return Record(path, group, **texts, attrs=attrs, dtype="", shape=(), offset=-1, swap=False)
    shape = tuple(_of(int, n) for n in _of(list, said["shape"])[: MAX_AXES + 1])
    if len(shape) > MAX_AXES:
        raise ValueError("too many axes")
    dtype, offset, swap = _of(str, said["dtype"]), _of(int, said["offset"]), _of(bool, said["swap"])
    return Record(path, group, **texts, attrs=attrs, dtype=dtype, shape=shape, offset=max(offset, -1), swap=swap)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:  # a bool is not a number here
        raise TypeError(kind.__name__)
    return value


def _value(value: Any, depth: int) -> None:
    """Refuse what is not text, a number or a list of as many dimensions as HDF5 has."""
    if isinstance(value, list) and depth < MAX_AXES:
        for item in value:
            _value(item, depth + 1)
    elif not isinstance(value, PLAIN):
        raise TypeError("an attribute")
