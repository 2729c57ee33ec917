"""A pickle machine that runs no code of the file: protocols 0 to 5, with our own functions in the place of calls.

    80 02                      PROTO 2
    7d 28                      EMPTY_DICT MARK
    58 01000000 77             BINUNICODE 'w'
    63 torch._utils\n _rebuild_tensor_v2\n      GLOBAL: looked up in a table; nothing is ever imported
    ... 74 52                  TUPLE REDUCE: calls the table's own function, which only checks and records
    75 2e                      SETITEMS STOP

    28 64 70 30 0a 53 27 77 27 0a 49 31 0a 73 2e     MARK DICT PUT "0" STRING "'w'" INT "1" SETITEM STOP: protocol 0

`Machine` is the state: stack, memo, marks and the bounds that hold while it runs. Each opcode is a function on it.
Specification: Lib/pickletools.py of CPython. A global is compared as two whole strings with an exact table. One that
is not there becomes an `Inert` placeholder and the scan continues, so that the error at the end names them all; with
`opaque` there is no error and the placeholders are the result. Opcodes that no checkpoint needs are refused.
"""

from __future__ import annotations

import struct
from codecs import escape_decode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, listing, many, printable
from ..table import OPAQUE
from .values import HARMLESS, PARTS, PLAIN, SCALARS, Inert, Known, Ordered, shown

MAX_STACK = 2**22  # values on the stack or in the memo at once; pickle itself batches by 1000
MAX_LONG = 64  # bytes of an integer
MAX_DIGITS = 160  # of one as text


NESTED = "torch.storage._load_from_bytes"  # makes a tensor of a file of torch within the pickle
MAX_LISTED = 500  # unknown globals that an error names
MAX_NAME = 1000  # bytes of a global's module or name
MAX_KEY = 64  # scalars within one dictionary key: a tuple that shares itself hashes for ever
MAX_KEY_TEXT = 2**16  # characters of the text in such a tuple, which becomes part of a name
MAX_ARGUMENTS = 64
SIZED = frozenset({str, bytes, list, tuple, dict, Ordered, set, frozenset})
COPIES = 4  # times over that calls may copy what the pickle holds: an argument can be remembered and used again


Table = Mapping[tuple[str, str], Any]
Op = Callable[["Machine"], None]


class Machine:
    """The state of one interpretation: the bytes, the stack, the stacks below the open marks, the memo."""

    def __init__(
        self, data: bytes, allowed: Table, persistent: Callable[[Any], Any] | None,
        opaque: bool | tuple[str, ...], packed: int | None,
    ) -> None:  # fmt: skip
        self.data, self.at = data, 0
        self.allowed, self.persistent, self.opaque = allowed, persistent, opaque
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.unknown: dict[str, None] = {}
        self.room = COPIES * len(data) + 2**20
        size = len(data) if packed is None else packed
        self.containers = size // 8 + 2**16  # that may still be made; an empty one takes a byte here, and 216 in memory
        self.memos = min(MAX_STACK, size // 4 + 2**16)

    def complain(self) -> None:
        """Name every global that is not allowed, if there is one."""
        if self.unknown:
            what = many(len(self.unknown), "unknown class or function", "unknown classes or functions")
            way = f"(a whole module was saved?); nothing was imported or run; {OPAQUE}"
            if NESTED in self.unknown:
                way = "and torch.save was not used; load it where it was made, and give torch.save the state dict"
            raise UnsafeCheckpoint(f"the pickle names {what} {way}:\n{listing(self.unknown, MAX_LISTED)}")

    def short(self, need: int) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"the pickle ends early: {need} bytes are needed at {self.at}")

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.at + size
        if end > len(self.data):
            raise self.short(size)
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def line(self, most: int = MAX_DIGITS) -> bytes:
        """The bytes up to the next line feed, which are less than `most`."""
        end = self.data.find(b"\n", self.at, self.at + most)
        if end < 0:
            if self.at + most > len(self.data):
                raise self.short(most)
            raise CorruptCheckpoint(f"a line at byte {self.at} has no end")
        piece = self.data[self.at : end]
        self.at = end + 1
        return piece

    def named(self) -> Any:
        """What the next two lines name: a module and what is in it."""
        module = self.line(MAX_NAME).decode("utf-8")
        return self.find(module, self.line(MAX_NAME).decode("utf-8"))

    def marked(self) -> list[Any]:
        """The values pushed since the last MARK."""
        items = self.stack
        if not self.below:
            raise CorruptCheckpoint(f"no MARK is open at byte {self.at}")
        self.stack = self.below.pop()
        return items

    def push(self, value: Any) -> None:
        self.stack.append(value)
        if len(self.stack) > MAX_STACK:
            raise UnsafeCheckpoint(f"the pickle stacks more than {MAX_STACK} values")

    def container(self, value: Any) -> None:
        self.contain()
        self.push(value)

    def find(self, module: object, name: object) -> Any:
        """The table's entry for a global, or a placeholder."""
        if type(module) is not str or type(name) is not str:
            raise CorruptCheckpoint(f"a global at byte {self.at} is not named by strings")
        if len(module) + len(name) > 2 * MAX_NAME:
            raise CorruptCheckpoint(f"a global at byte {self.at} has a name without end")
        found = self.allowed.get((module, name), self)
        if found is not self:
            return found
        path = f"{module}.{name}"
        stays = self.opaque if type(self.opaque) is bool else module.partition(".")[0] in self.opaque
        if path == NESTED or not (stays or path in HARMLESS or PARTS.fullmatch(path)):  # the first is never read
            self.unknown[path] = None
        return Inert(path)

    def call(self, what: Any, args: Any, named: Any = None, *, new: bool = False) -> Any:
        """REDUCE and NEWOBJ: run our function for an allowed global, record the arguments for an unknown one."""
        if type(args) is not tuple:
            raise CorruptCheckpoint(f"a call at byte {self.at} has no tuple of arguments")
        self.contain()
        if type(what) is Known:
            if what.call is None or named or (new and not what.new):
                how = " by NEWOBJ" if new and what.call else ""
                raise UnsafeCheckpoint(f"{what.path} is called{how} at byte {self.at}; it is only a name here")
            if new and args and what.new == "empty":
                raise UnsafeCheckpoint("a container is made by NEWOBJ with arguments, which Python ignores")
            self.charge(args)
            return what.call(*args)
        if type(what) is Inert:
            args = args if what.args is None else (what, *args)
            return Inert(what.path, (args, named) if named else args)
        raise UnsafeCheckpoint(f"a {type(what).__name__} is called at byte {self.at}")

    def charge(self, values: tuple[Any, ...]) -> None:
        """Count the elements that a call may copy or visit."""
        if len(values) > MAX_ARGUMENTS:
            raise UnsafeCheckpoint(f"a call at byte {self.at} has {len(values)} arguments")
        self.room -= sum([len(v) for v in values if type(v) in SIZED])
        if self.room < 0:
            raise UnsafeCheckpoint(f"the pickle uses the same values over and over (byte {self.at})")

    def key(self, value: Any) -> Any:
        """Refuse keys of dictionaries and sets unless they are small and acyclic."""
        budget, text, todo = MAX_KEY, MAX_KEY_TEXT, [value]
        while todo:
            one, budget = todo.pop(), budget - 1
            text -= len(one) if type(one) is str or type(one) is bytes else 0
            if budget < 0 or text < 0:
                raise UnsafeCheckpoint(f"a key at byte {self.at} is nested too deeply")
            if type(one) is tuple or type(one) is frozenset:
                todo.extend(list(one)[: MAX_KEY + 1])
            elif type(one) not in SCALARS and type(one) is not Inert and type(one) is not Known:
                kind = type(one).__name__
                raise CorruptCheckpoint(f"a {kind} cannot be a key (byte {self.at})")
        return value

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]
        if len(self.memo) > self.memos:
            raise UnsafeCheckpoint(f"the pickle memorises more than {self.memos} values")

    def contain(self) -> None:
        """Count a container, or an object; the number that a pickle may have is bounded by its size."""
        self.containers -= 1
        if self.containers < 0:
            raise UnsafeCheckpoint("the pickle makes containers and objects without end, with nothing in them")

    def assign(self, pairs: list[Any]) -> None:
        """SETITEM and SETITEMS, on what is on top of the stack."""
        target = self.stack[-1]
        if len(pairs) % 2:
            raise CorruptCheckpoint(f"a key without a value at byte {self.at}")
        if type(target) is Inert:
            target = target.pairs
        elif type(target) is not dict and type(target) is not Ordered:
            raise CorruptCheckpoint(f"items are set on a {type(target).__name__} at byte {self.at}")
        for i in range(0, len(pairs), 2):
            name = pairs[i]
            target[name if type(name) is str else self.key(name)] = pairs[i + 1]

    def extend(self, items: list[Any], kind: type) -> None:
        """APPEND, APPENDS and ADDITEMS: to a list, or a set of checked keys."""
        target = self.stack[-1]
        if type(target) is Inert:
            target.items.extend(items)
        elif type(target) is list is kind:
            target.extend(items)
        elif type(target) is set is kind:
            target.update(map(self.key, items))
        else:
            raise CorruptCheckpoint(f"members are added to a {type(target).__name__} at byte {self.at}")

    def build(self, target: Any, state: Any) -> Any:
        """BUILD: attributes of an OrderedDict, the state of a placeholder, or what our own stub makes of it."""
        if hasattr(type(target), "inline"):
            return target.inline(state, self.take)
        if type(target) is Inert:
            if target.state is not None:
                raise UnsafeCheckpoint(f"{printable(brief(target.path))} is given a second state at byte {self.at}")
            target.state = state
        elif type(target) is Ordered and type(state) in (dict, Ordered):
            self.charge((state,))
            target.state.update(state)
        elif hasattr(type(target), "build"):
            self.charge(state if type(state) is tuple else ())
            target.build(state)
        else:
            kinds = f"a {type(target).__name__} is given a {type(state).__name__} as its state"
            raise CorruptCheckpoint(f"{kinds} at byte {self.at}")
        return target


# --- opcodes ----------------------------------------------------------------------------------------------------------


def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.push(m.find(module, name))


def _call(m: Machine, *, new: bool = False, named: bool = False) -> None:
    keywords, args = m.stack.pop() if named else None, m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args, keywords, new=new)


def _build(m: Machine) -> None:
    state = m.stack.pop()
    m.stack[-1] = m.build(m.stack[-1], state)


def _persistent(m: Machine) -> None:
    if m.persistent is None:
        what = "which nothing here resolves: the pickle was unpacked from a file of PyTorch, or is in a torch.package"
        raise CorruptCheckpoint(f"a persistent id at byte {m.at}, {what}")
    m.stack[-1] = m.persistent(m.stack[-1])


def _proto(m: Machine) -> None:
    (version,) = m.take(1)
    if not 2 <= version <= 5:
        raise CorruptCheckpoint(f"pickle protocol {version}; 2 to 5 can be read")


def _frame(m: Machine) -> None:
    size = int.from_bytes(m.take(8), "little")  # a frame only groups what follows, but pickle reads it whole
    if size > len(m.data) - m.at:
        raise m.short(size)


def _mark(m: Machine) -> None:
    m.contain()
    m.below.append(m.stack)
    m.stack = []
    if len(m.below) > MAX_STACK:
        raise UnsafeCheckpoint(f"the pickle nests more than {MAX_STACK} marks")


def _tuple_of(size: int) -> Op:
    def op(m: Machine) -> None:
        if len(m.stack) < size:
            raise CorruptCheckpoint(f"the stack is empty at byte {m.at}")
        m.stack[-size:] = [tuple(m.stack[-size:])]

    return op


def _number(code: str) -> Op:
    unpack, size = struct.Struct(code).unpack_from, struct.calcsize(code)

    def op(m: Machine) -> None:
        if m.at + size > len(m.data):
            raise m.short(size)
        m.stack.append(unpack(m.data, m.at)[0])
        m.at += size

    return op


def _sized(width: int, make: Callable[[bytes], Any] = bytes, most: int = 2**64) -> Op:
    """A length of `width` bytes, and as many bytes, of which `make` makes a value."""

    def op(m: Machine) -> None:
        start = m.at + width
        end = start + int.from_bytes(m.data[m.at : start], "little")
        if end - start > most:
            raise UnsafeCheckpoint(f"an integer of {end - start} bytes at byte {start}")
        if end > len(m.data):
            raise m.short(end - m.at)
        m.at = end
        m.stack.append(make(m.data[start:end]))

    return op


def _long(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _byte_string(raw: bytes) -> str | bytes:
    """Python 2's str: text if it is ASCII; else its bytes, which are text in a name and elements in an array."""
    return raw.decode("ascii") if raw.isascii() else raw


def _integer(m: Machine) -> None:
    """INT and LONG: a number as text; 00 and 01 are False and True."""
    line = m.line()
    m.push(line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L"), 0))


def _quoted(m: Machine) -> None:
    """STRING: Python 2's str as Python spells it."""
    line = m.line(len(m.data))
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in b"'\"":
        raise CorruptCheckpoint(f"a string before byte {m.at} has no quotes")
    m.push(_byte_string(escape_decode(line[1:-1])[0]))


def _dict(m: Machine) -> None:
    items = m.marked()
    m.container({})
    m.assign(items)


def _obj(m: Machine) -> None:
    what, *args = m.marked()
    m.push(m.call(what, tuple(args)))


def _get(m: Machine) -> None:
    m.stack.append(m.memo[m.data[m.at]])
    m.at += 1


def _put(m: Machine) -> None:
    m.memo[m.data[m.at]] = m.stack[-1]
    m.at += 1


def _long_put(m: Machine) -> None:
    start, m.at = m.at, m.at + 4
    if m.at > len(m.data):
        raise m.short(4)
    m.put(int.from_bytes(m.data[start : m.at], "little"))


OPS: dict[int, Op] = {
    0x80: _proto, 0x95: _frame,
    ord("("): _mark, ord("t"): lambda m: m.push(tuple(m.marked())),
    0x85: _tuple_of(1), 0x86: _tuple_of(2), 0x87: _tuple_of(3),
    ord(")"): lambda m: m.push(()), ord("]"): lambda m: m.container([]), ord("}"): lambda m: m.container({}),
    0x8F: lambda m: m.container(set()), 0x91: lambda m: m.push(frozenset(map(m.key, m.marked()))),
    ord("N"): lambda m: m.push(None), 0x88: lambda m: m.push(True), 0x89: lambda m: m.push(False),
    ord("J"): _number("<i"), ord("K"): _number("<B"), ord("M"): _number("<H"), ord("G"): _number(">d"),
    0x8A: _sized(1, _long, MAX_LONG), 0x8B: _sized(4, _long, MAX_LONG),
    0x8C: _sized(1, _text), ord("X"): _sized(4, _text), 0x8D: _sized(8, _text),
    ord("U"): _sized(1, _byte_string), ord("T"): _sized(4, _byte_string),
    ord("C"): _sized(1), ord("B"): _sized(4), 0x8E: _sized(8), 0x96: _sized(8),
    ord("I"): _integer, ord("L"): _integer, ord("F"): lambda m: m.push(float(m.line())), ord("S"): _quoted,
    ord("V"): lambda m: m.push(m.line(len(m.data)).decode("raw-unicode-escape")),
    ord("d"): _dict, ord("l"): lambda m: m.container(m.marked()), ord("o"): _obj,
    ord("i"): lambda m: m.push(m.call(m.named(), tuple(m.marked()))),
    ord("g"): lambda m: m.push(m.memo[int(m.line())]), ord("p"): lambda m: m.put(int(m.line())),
    ord("c"): lambda m: m.push(m.named()), 0x93: _stack_global, ord("Q"): _persistent,
    ord("R"): _call, 0x81: partial(_call, new=True), 0x92: partial(_call, new=True, named=True), ord("b"): _build,
    ord("h"): _get, ord("j"): lambda m: m.push(m.memo[int.from_bytes(m.take(4), "little")]), ord("q"): _put,
    ord("r"): _long_put, 0x94: lambda m: m.put(len(m.memo)),
    ord("a"): lambda m: m.extend([m.stack.pop()], list), ord("e"): lambda m: m.extend(m.marked(), list),
    ord("s"): lambda m: m.assign([m.stack.pop(-2), m.stack.pop()]), ord("u"): lambda m: m.assign(m.marked()),
    0x90: lambda m: m.extend(m.marked(), set),
}  # fmt: skip

MAX_STEPS = 2**25  # opcodes; a million tensors need about 30 each


def load(data: bytes, **options: Any) -> Any:
    """Interpret one pickle, which must fill `data`; see `load_some` for the options."""
    value, end = load_some(data, **options)
    if end != len(data):
        raise UnsafeCheckpoint(f"{len(data) - end} bytes follow the end of the pickle at {end}")
    return value


def load_some(
    data: bytes,
    *,
    allowed: Table = PLAIN,
    persistent_load: Callable[[Any], Any] | None = None,
    opaque: bool | tuple[str, ...] = False,
    packed: int | None = None,
) -> tuple[Any, int]:
    """Interpret the pickle at the beginning of `data`; return its value and where it ends.

    allowed: (module, name) -> `Known` or a constant.
    persistent_load: what a persistent id stands for.
    opaque: True, every unknown global may stay an `Inert`; a tuple of names, only those of these packages.
    packed: how many bytes of a file these are, if they were compressed: what is made is in proportion to that.
    Raises UnsafeCheckpoint with all globals that are not allowed, and CorruptCheckpoint.
    """
    machine = Machine(data, allowed, persistent_load, opaque, packed)
    try:
        value = _run(machine)
    except CkptError:
        machine.complain()
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError, struct.error) as e:
        machine.complain()
        why = shown(e.args[0]) if isinstance(e, KeyError) and e.args else e
        raise CorruptCheckpoint(f"the pickle is damaged before byte {machine.at}: {why}") from e
    machine.complain()
    return value, machine.at


def _run(m: Machine) -> Any:
    data, ops = m.data, OPS
    for _ in range(MAX_STEPS):
        try:
            op = data[m.at]
        except IndexError:
            raise m.short(1) from None
        m.at += 1
        do = ops.get(op)
        if do is None:
            return _end(m, op)
        do(m)
    raise UnsafeCheckpoint(f"the pickle has more than {MAX_STEPS} steps")


def _end(m: Machine, op: int) -> Any:
    """Return the value on STOP, refuse anything else."""
    if op == 0x2E:
        if len(m.stack) != 1 or m.below:
            raise CorruptCheckpoint(f"the pickle ends at byte {m.at} with an untidy stack")
        return m.stack[0]
    where = f"at byte {m.at - 1} of the pickle"
    from pickletools import opcodes  # which takes 5 ms to import

    if name := next((known.name for known in opcodes if ord(known.code) == op), ""):
        raise UnsafeCheckpoint(f"opcode {name} {where}: no checkpoint needs it")
    raise CorruptCheckpoint(f"byte {op:#04x} {where} is not an opcode")
