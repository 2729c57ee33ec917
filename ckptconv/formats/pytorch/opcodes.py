"""The opcodes of pickle protocols 2 to 5 that a checkpoint needs, as functions on the machine; and those refused.

Specification: Lib/pickletools.py of CPython. Each function takes its argument from the bytes and works on the stack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import CorruptCheckpoint, UnsafeCheckpoint

if TYPE_CHECKING:
    from .machine import Machine
from .machine import MAX_LONG, MAX_STACK
from .plain import Inert


def _global(m: Machine) -> None:
    module = m.line()
    m.stack.append(m.find(module, m.line()))


def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.stack.append(m.find(module, name))


def _reduce(m: Machine) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args)


def _newobj(m: Machine) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args, new=True)


def _newobj_ex(m: Machine) -> None:
    named, args = m.stack.pop(), m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args, named, new=True)


def _build(m: Machine) -> None:
    state = m.stack.pop()
    m.stack[-1] = m.build(m.stack[-1], state)


def _persistent(m: Machine) -> None:
    if m.persistent is None:
        raise CorruptCheckpoint(f"a persistent id at byte {m.at}, which nothing here can resolve", url=m.url)
    m.stack[-1] = m.persistent(m.stack[-1])


def _proto(m: Machine) -> None:
    (version,) = m.take(1)
    if not 2 <= version <= 5:
        raise CorruptCheckpoint(f"pickle protocol {version}; 2 to 5 can be read", url=m.url)


def _frame(m: Machine) -> None:
    size = int.from_bytes(m.take(8), "little")  # a frame only groups what follows, but pickle reads it whole
    if size > len(m.data) - m.at:
        raise m.short(size)


def _mark(m: Machine) -> None:
    m.contain()
    m.below.append(m.stack)
    m.stack = []
    if len(m.below) > MAX_STACK:
        raise UnsafeCheckpoint(f"the pickle nests more than {MAX_STACK} marks", url=m.url)


def _tuple(m: Machine) -> None:
    items = tuple(m.marked())
    m.stack.append(items)


def _tuple_of(size: int) -> Callable[[Machine], None]:
    def op(m: Machine) -> None:
        if len(m.stack) < size:
            raise CorruptCheckpoint(f"the stack is empty at byte {m.at}", url=m.url)
        m.stack[-size:] = [tuple(m.stack[-size:])]

    return op


def _push(make: Callable[[], Any]) -> Callable[[Machine], None]:
    def op(m: Machine) -> None:
        m.stack.append(make())
        if len(m.stack) > MAX_STACK:
            raise UnsafeCheckpoint(f"the pickle stacks more than {MAX_STACK} values", url=m.url)

    return op


def _container(make: Callable[[], Any]) -> Callable[[Machine], None]:
    push = _push(make)

    def op(m: Machine) -> None:
        m.contain()
        push(m)

    return op


def _number(code: str) -> Callable[[Machine], None]:
    unpack, size = struct.Struct(code).unpack_from, struct.calcsize(code)

    def op(m: Machine) -> None:
        if m.at + size > len(m.data):
            raise m.short(size)
        m.stack.append(unpack(m.data, m.at)[0])
        m.at += size

    return op


def _long(width: int) -> Callable[[Machine], None]:
    def op(m: Machine) -> None:
        size = int.from_bytes(m.take(width), "little")
        if size > MAX_LONG:
            raise UnsafeCheckpoint(f"an integer of {size} bytes at byte {m.at}", url=m.url)
        m.stack.append(int.from_bytes(m.take(size), "little", signed=True))

    return op


def _text(width: int) -> Callable[[Machine], None]:
    def op(m: Machine) -> None:
        at = m.at + width
        end = at + int.from_bytes(m.data[m.at : at], "little")
        if end > len(m.data):
            raise m.short(end - m.at)
        m.at = end
        m.stack.append(m.data[at:end].decode("utf-8", "surrogatepass"))

    return op


def _binary(width: int) -> Callable[[Machine], None]:
    def op(m: Machine) -> None:
        m.stack.append(m.take(int.from_bytes(m.take(width), "little")))

    return op


def _byte_string(width: int) -> Callable[[Machine], None]:
    """Python 2's str: text if it is ASCII; else its bytes, which are text in a name and elements in an array."""

    def op(m: Machine) -> None:
        piece = m.take(int.from_bytes(m.take(width), "little"))
        m.stack.append(piece.decode("ascii") if piece.isascii() else piece)

    return op


def _get(width: int) -> Callable[[Machine], None]:
    def op(m: Machine) -> None:
        index = m.data[m.at] if width == 1 else int.from_bytes(m.take(width), "little")
        m.at += width == 1
        m.stack.append(m.memo[index])

    return op


def _put(m: Machine) -> None:
    m.memo[m.data[m.at]] = m.stack[-1]
    m.at += 1


def _long_put(m: Machine) -> None:
    at = m.at
    m.at = at + 4
    if m.at > len(m.data):
        raise m.short(4)
    m.put(int.from_bytes(m.data[at : m.at], "little"))


def _append(m: Machine) -> None:
    item = m.stack.pop()
    m.extend(m.stack[-1], [item])


def _appends(m: Machine) -> None:
    items = m.marked()
    m.extend(m.stack[-1], items)


def _setitem(m: Machine) -> None:
    pair = m.stack[-2:]
    del m.stack[-2:]
    m.assign(m.stack[-1], pair)


def _setitems(m: Machine) -> None:
    pairs = m.marked()
    m.assign(m.stack[-1], pairs)


def _additems(m: Machine) -> None:
    items, target = m.marked(), m.stack[-1]
    if type(target) is set:
        target.update(m.key(i) for i in items)
    elif type(target) is Inert:
        target.items.extend(items)
    else:
        raise CorruptCheckpoint(f"members are added to a {type(target).__name__} at byte {m.at}", url=m.url)


def _frozenset(m: Machine) -> None:
    items = frozenset(m.key(i) for i in m.marked())
    m.stack.append(items)


OPS: dict[int, Callable[[Machine], None]] = {
    0x80: _proto, 0x95: _frame,
    ord("("): _mark, ord("t"): _tuple, 0x85: _tuple_of(1), 0x86: _tuple_of(2), 0x87: _tuple_of(3),
    ord(")"): _push(tuple), ord("]"): _container(list), ord("}"): _container(dict), 0x8F: _container(set),
    ord("N"): _push(lambda: None), 0x88: _push(lambda: True), 0x89: _push(lambda: False),
    ord("J"): _number("<i"), ord("K"): _number("<B"), ord("M"): _number("<H"), ord("G"): _number(">d"),
    0x8A: _long(1), 0x8B: _long(4),
    0x8C: _text(1), ord("X"): _text(4), 0x8D: _text(8), ord("U"): _byte_string(1), ord("T"): _byte_string(4),
    ord("C"): _binary(1), ord("B"): _binary(4), 0x8E: _binary(8), 0x96: _binary(8),
    ord("c"): _global, 0x93: _stack_global, ord("R"): _reduce, 0x81: _newobj, 0x92: _newobj_ex, ord("b"): _build,
    ord("Q"): _persistent,
    ord("h"): _get(1), ord("j"): _get(4), ord("q"): _put, ord("r"): _long_put, 0x94: lambda m: m.put(len(m.memo)),
    ord("a"): _append, ord("e"): _appends, ord("s"): _setitem, ord("u"): _setitems, 0x90: _additems, 0x91: _frozenset,
}  # fmt: skip

REFUSED = {
    ord("i"): "INST", ord("o"): "OBJ", ord("P"): "PERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
    0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER", ord("0"): "POP", ord("1"): "POP_MARK", ord("2"): "DUP",
    ord("I"): "INT", ord("L"): "LONG", ord("F"): "FLOAT", ord("S"): "STRING", ord("V"): "UNICODE",
    ord("g"): "GET", ord("p"): "PUT", ord("d"): "DICT", ord("l"): "LIST",
}  # fmt: skip
