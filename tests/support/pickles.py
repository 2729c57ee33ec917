"""Pickles spelled piece by piece: any call, state or persistent id, without the class or function that it names."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple


class Global(str):
    """What GLOBAL names: `Global("torch._utils._rebuild_tensor_v2")`."""

    __slots__ = ()


class Raw(bytes):
    """Opcodes as they are."""

    __slots__ = ()


class Id(NamedTuple):
    """A persistent id, as torch spells storages."""

    value: Any


class Call(NamedTuple):
    """REDUCE, or NEWOBJ; then BUILD for each of the states."""

    what: Any
    args: Any = ()
    states: tuple[Any, ...] = ()
    new: bool = False


def pickled(value: Any) -> bytes:
    return b"\x80\x03" + _spelled(value) + b"."


def _spelled(value: Any) -> bytes:
    match value:
        case Raw():
            return bytes(value)
        case Global():
            module, _, name = value.rpartition(".")
            return f"c{module}\n{name}\n".encode()
        case Id():
            return _spelled(value.value) + b"Q"
        case Call():
            made = _spelled(value.what) + _spelled(value.args) + (b"\x81" if value.new else b"R")
            return made + b"".join(_spelled(state) + b"b" for state in value.states)
        case dict():
            return b"}(" + b"".join(_spelled(k) + _spelled(v) for k, v in value.items()) + b"u"
        case list():
            return b"](" + b"".join(map(_spelled, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(_spelled, value)) + b"t"
    return pickle.dumps(value, 3)[2:-1]


def archive(value: Any, storages: Mapping[str, bytes], root: str = "archive/", **more: bytes) -> bytes:
    """A torch.save archive of a value, whose storages are given by their keys."""
    members = {"data.pkl": pickled(value), **{f"data/{k}": raw for k, raw in storages.items()}, **more}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, raw in {"version": b"3\n", **members}.items():
            z.writestr(zipfile.ZipInfo(root + name), raw)
    return out.getvalue()
