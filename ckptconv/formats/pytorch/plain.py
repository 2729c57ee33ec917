"""What a pickle's values become, and the globals of plain Python that are allowed.

A pickle's own containers and scalars become Python's. A global is `Known` (our function) or `Inert` (a placeholder).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import UnsafeCheckpoint

SCALARS = frozenset({str, bytes, int, float, bool, complex, type(None)})


class Known(NamedTuple):
    """An allowed global: REDUCE runs `call`, NEWOBJ runs `new`; each is our own function, None where it is refused.

    The two differ: `list(x)` is x's items, but `list.__new__(list, x)` is empty.
    """

    path: str
    call: Callable[..., Any] | None = None
    new: Callable[..., Any] | None = None


class Inert:
    """What an unknown class or function became: never run, only recorded."""

    __slots__ = ("args", "items", "pairs", "path", "state")

    def __init__(self, path: str, args: object = None) -> None:
        self.path = path
        self.args = args  # None: the global itself; else what it would have been called with
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<{self.path}>"


def shown(value: Any, depth: int = 3) -> str:
    """A short spelling for messages. `repr` of lists that hold each other many times would never end."""
    if isinstance(value, (str, bytes)):
        return repr(value[:100])
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if type(value) in (tuple, list):
        if not depth:
            return "..."
        inside = ", ".join([shown(v, depth - 1) for v in value[:4]] + (["..."] if len(value) > 4 else []))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if value is None or isinstance(value, (bool, int, float, Inert)):
        return repr(value)
    return f"a {type(value).__name__}"


class Ordered(dict[Any, Any]):
    """A collections.OrderedDict; `state` holds its attributes, such as the `_metadata` of a state dict."""

    __slots__ = ("state",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.state: dict[Any, Any] = {}


def _mapping(*args: Any) -> Ordered:
    """OrderedDict(), OrderedDict({...}) or OrderedDict([[key, value], ...]) as Python 2 pickled it."""
    if len(args) > 1:
        raise TypeError(f"a dictionary is made of {len(args)} arguments")
    out = Ordered()
    pairs = args[0] if args else ()
    if type(pairs) in (dict, Ordered):
        out.update(pairs)
        return out
    if type(pairs) not in (list, tuple):
        raise TypeError(f"a dictionary is made of {shown(pairs)}")
    for pair in pairs:
        if type(pair) not in (list, tuple):
            raise TypeError(f"a dictionary is made of pairs such as {shown(pair)}")
        name, value = pair
        out[_plain_key(name)] = value
    return out


def _counter(*args: Any) -> Ordered:
    """Counter() or Counter({...}); of anything else it would count the items."""
    if args and type(args[0]) not in (dict, Ordered):
        raise TypeError(f"a Counter of {shown(args[0])}")
    return _mapping(*args)


def _plain_key(value: Any) -> Any:
    if type(value) not in SCALARS and type(value) not in (Inert, Known):
        raise TypeError(f"a {type(value).__name__} cannot be a key")
    return value


def _default(factory: Any = None, *items: Any) -> Ordered:
    """defaultdict(factory), to which items are then added, or defaultdict(factory, items)."""
    return _mapping(*items)


def _empty(make: Callable[[], Any]) -> Callable[..., Any]:
    """What NEWOBJ makes of a container that is filled by __init__: nothing yet, whatever its arguments."""

    def new(*args: Any) -> Any:
        if args:
            raise UnsafeCheckpoint("a container is made by NEWOBJ with arguments, which Python ignores")
        return make()

    return new


def _members(*args: Any) -> list[Any]:
    """The argument of list(), tuple(), set(): a container that is already there."""
    if args and type(args[0]) not in (list, tuple, set, frozenset):
        raise TypeError(f"a {type(args[0]).__name__} instead of a list")
    return list(args[0]) if args else []


def _encode(text: str = "", encoding: str = "latin1") -> bytes:
    """_codecs.encode(text, 'latin1'): how protocol 2 spells bytes."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise UnsafeCheckpoint(f"_codecs.encode to {shown(encoding)}; only latin1 is how bytes are pickled")
    return text.encode("latin1")


def _bytes(value: Any = b"", encoding: str = "latin1") -> bytes:
    """bytes() and bytearray(): of bytes or text, never of a size."""
    return value if type(value) is bytes else _encode(value, encoding)


def _complex(real: float = 0.0, imag: float = 0.0) -> complex:
    if not isinstance(real, (int, float)) or not isinstance(imag, (int, float)):
        raise TypeError("complex() of something that is not a number")
    return complex(real, imag)


def _set(*args: Any) -> set[Any]:
    return {_plain_key(i) for i in _members(*args)}


def _both(path: str, call: Callable[..., Any]) -> Known:
    """An immutable type, which is made in __new__: REDUCE and NEWOBJ do the same."""
    return Known(path, call, call)


_BUILTINS = (
    Known("set", _set, _empty(set)),
    _both("frozenset", lambda *a: frozenset(_set(*a))),
    Known("list", _members, _empty(list)),
    _both("tuple", lambda *a: tuple(_members(*a))),
    Known("dict", _mapping, _empty(Ordered)),
    _both("bytes", _bytes),
    Known("bytearray", _bytes),
    _both("complex", _complex),
    _both("slice", lambda *a: a),
)
_NAMES = ("long", "unicode", "int", "float", "bool", "str", "object", "NoneType")

PLAIN: dict[tuple[str, str], Any] = {
    **{(m, known.path): known for m in ("builtins", "__builtin__") for known in _BUILTINS},
    **{(m, n): Known(n) for m in ("builtins", "__builtin__") for n in _NAMES},
    ("collections", "OrderedDict"): Known("OrderedDict", _mapping, _empty(Ordered)),
    ("collections", "Counter"): Known("Counter", _counter, _empty(Ordered)),
    ("collections", "defaultdict"): Known("defaultdict", _default, _empty(Ordered)),
    ("_codecs", "encode"): Known("encode", _encode),
}
