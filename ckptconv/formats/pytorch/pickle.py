"""A pickle machine that runs nothing: protocols 2 to 5, with our own functions where pickle would call yours.

    80 02                      PROTO 2
    7d 28                      EMPTY_DICT MARK
    58 01000000 77             BINUNICODE 'w'
    63 torch._utils\\n _rebuild_tensor_v2\\n      GLOBAL: looked up in a table; nothing is ever imported
    ... 74 52                  TUPLE REDUCE: calls the table's own function, which only checks and records
    75 2e                      SETITEMS STOP

Specification: Lib/pickletools.py of CPython. A global is compared as two whole strings with an exact table. One that
is not there becomes an `Inert` placeholder and the scan goes on, so that the error at the end names them all; with
`opaque` there is no error and the placeholders are the result. Opcodes that no checkpoint needs are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint, listing
from .opcodes import MAX_STACK, OPS, REFUSED, Truncated
from .plain import PLAIN, SCALARS, Inert, Known, Ordered, shown

MAX_STEPS = 2**25  # opcodes; a million tensors need about 30 each
MAX_LISTED = 500  # unknown globals that an error names
MAX_NAME = 1000  # bytes of a global's module or name
MAX_KEY = 64  # scalars within one dictionary key: a tuple that shares itself hashes for ever
MAX_KEY_TEXT = 2**16  # characters of the text in such a tuple, which becomes part of a name
MAX_ARGUMENTS = 64
SIZED = frozenset({str, bytes, list, tuple, dict, Ordered, set, frozenset})
COPIES = 4  # times over that calls may copy what the pickle holds: an argument can be remembered and used again


Table = Mapping[tuple[str, str], Any]


def load(
    data: bytes,
    *,
    allowed: Table | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
    opaque: bool | tuple[str, ...] = False,
    url: str | None = None,
) -> Any:
    """Interpret one pickle, which must fill `data`; see `load_some` for the options."""
    value, end = load_some(data, allowed=allowed, persistent_load=persistent_load, opaque=opaque, url=url)
    if end != len(data):
        raise UnsafeCheckpoint(f"{len(data) - end} bytes follow the end of the pickle at {end}", url=url)
    return value


def load_some(
    data: bytes,
    start: int = 0,
    *,
    allowed: Table | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
    opaque: bool | tuple[str, ...] = False,
    url: str | None = None,
    partial: bool = False,
) -> tuple[Any, int]:
    """Interpret the pickle at `start`; return its value and where it ends.

    allowed: (module, name) -> `Known` or a constant; `PLAIN` if not given.
    persistent_load: what a persistent id stands for.
    opaque: True, every unknown global may stay an `Inert`; a tuple of names, only those of these packages.
    partial: `data` is only the beginning of something longer: raise `Truncated` where it does not suffice.
    Raises UnsafeCheckpoint with all globals that are not allowed, and CorruptCheckpoint.
    """
    machine = Machine(data, start, PLAIN if allowed is None else allowed, persistent_load, opaque, url)
    try:
        value = machine.run()
    except CkptError as e:
        if not (partial and isinstance(e, Truncated)):
            machine.complain()
        if isinstance(e, Truncated) and not partial:
            raise CorruptCheckpoint(e.message, url=url) from None
        e.url = e.url or url
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError, struct.error) as e:
        if partial and machine.at >= len(data):
            raise Truncated("the pickle goes on", url=url) from e
        machine.complain()
        why = shown(e.args[0]) if isinstance(e, KeyError) and e.args else e
        raise CorruptCheckpoint(f"the pickle is damaged before byte {machine.at}: {why}", url=url) from e
    machine.complain()
    return value, machine.at


class Machine:
    """The state of one interpretation: the bytes, the stack, the stacks below the open marks, the memo."""

    def __init__(
        self, data: bytes, start: int, allowed: Table, persistent: Callable[[Any], Any] | None,
        opaque: bool | tuple[str, ...], url: str | None,
    ) -> None:  # fmt: skip
        self.data, self.at, self.url = data, start, url
        self.allowed, self.persistent, self.opaque = allowed, persistent, opaque
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.unknown: dict[str, None] = {}
        self.room = COPIES * len(data) + 2**20

    def run(self) -> Any:
        data, ops = self.data, OPS
        for _ in range(MAX_STEPS):
            try:
                op = data[self.at]
            except IndexError:
                raise self.short(1) from None
            self.at += 1
            do = ops.get(op)
            if do is None:
                return self.special(op)
            do(self)
        raise UnsafeCheckpoint(f"the pickle has more than {MAX_STEPS} steps", url=self.url)

    def special(self, op: int) -> Any:
        """End with the value on STOP, refuse anything else."""
        if op == 0x2E:
            if len(self.stack) != 1 or self.below:
                raise CorruptCheckpoint(f"the pickle ends at byte {self.at} with an untidy stack", url=self.url)
            return self.stack[0]
        where = f"at byte {self.at - 1} of the pickle"
        if op in REFUSED:
            raise UnsafeCheckpoint(f"opcode {REFUSED[op]} {where}: no checkpoint needs it", url=self.url)
        raise CorruptCheckpoint(f"byte {op:#04x} {where} is no opcode", url=self.url)

    def complain(self) -> None:
        """Name every global that is not allowed, if there is one."""
        if self.unknown:
            raise UnsafeCheckpoint(
                f"it names {len(self.unknown)} classes or functions that a checkpoint of plain tensors does not need; "
                f"none was imported or run:\n{listing(self.unknown, MAX_LISTED)}\n"
                "--opaque reads the tensors and keeps these as inert placeholders",
                url=self.url,
            )

    def short(self, need: int) -> Truncated:
        return Truncated(f"the pickle ends early: {need} bytes are needed at {self.at}", url=self.url)

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.at + size
        if end > len(self.data):
            raise self.short(size)
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + MAX_NAME)
        if end < 0:
            if self.at + MAX_NAME > len(self.data):
                raise self.short(MAX_NAME)
            raise CorruptCheckpoint(f"a global at byte {self.at} has no end", url=self.url)
        piece = self.data[self.at : end]
        self.at = end + 1
        return piece.decode("utf-8")

    def marked(self) -> list[Any]:
        """What was pushed since the last MARK."""
        items = self.stack
        if not self.below:
            raise CorruptCheckpoint(f"no MARK is open at byte {self.at}", url=self.url)
        self.stack = self.below.pop()
        return items

    def find(self, module: object, name: object) -> Any:
        """The table's entry for a global, or a placeholder."""
        if type(module) is not str or type(name) is not str:
            raise CorruptCheckpoint(f"a global at byte {self.at} is not named by strings", url=self.url)
        if len(module) + len(name) > 2 * MAX_NAME:
            raise CorruptCheckpoint(f"a global at byte {self.at} has a name without end", url=self.url)
        found = self.allowed.get((module, name), self)
        if found is not self:
            return found
        path = f"{module}.{name}"
        if self.opaque is False or (self.opaque is not True and module.partition(".")[0] not in self.opaque):
            self.unknown[path] = None
        return Inert(path)

    def call(self, what: Any, args: Any, named: Any = None) -> Any:
        """REDUCE and NEWOBJ: run our function for an allowed global, record the arguments for an unknown one."""
        if type(args) is not tuple:
            raise CorruptCheckpoint(f"a call at byte {self.at} has no tuple of arguments", url=self.url)
        if type(what) is Known:
            if what.call is None or named:
                raise UnsafeCheckpoint(f"{what.path} is called at byte {self.at}; it is only a name here", url=self.url)
            self.charge(args)
            return what.call(*args)
        if type(what) is Inert:
            return Inert(what.path, (args, named) if named else args)
        raise UnsafeCheckpoint(f"a {type(what).__name__} is called at byte {self.at}", url=self.url)

    def charge(self, values: tuple[Any, ...]) -> None:
        """Count what a call may copy or walk through."""
        if len(values) > MAX_ARGUMENTS:
            raise UnsafeCheckpoint(f"a call at byte {self.at} has {len(values)} arguments", url=self.url)
        self.room -= sum([len(v) for v in values if type(v) in SIZED])
        if self.room < 0:
            raise UnsafeCheckpoint(f"the pickle uses the same values over and over (byte {self.at})", url=self.url)

    def key(self, value: Any) -> Any:
        """Let only small, acyclic keys into a dictionary or a set."""
        budget, text, todo = MAX_KEY, MAX_KEY_TEXT, [value]
        while todo:
            one, budget = todo.pop(), budget - 1
            text -= len(one) if type(one) is str or type(one) is bytes else 0
            if budget < 0 or text < 0:
                raise UnsafeCheckpoint(f"a key at byte {self.at} is nested beyond reason", url=self.url)
            if type(one) is tuple or type(one) is frozenset:
                todo.extend(list(one)[: MAX_KEY + 1])
            elif type(one) not in SCALARS and type(one) is not Inert and type(one) is not Known:
                kind = type(one).__name__
                raise CorruptCheckpoint(f"a {kind} cannot be a key (byte {self.at})", url=self.url)
        return value

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]
        if len(self.memo) > MAX_STACK:
            raise UnsafeCheckpoint(f"the pickle memorises more than {MAX_STACK} values", url=self.url)

    def assign(self, target: Any, pairs: list[Any]) -> None:
        if len(pairs) % 2:
            raise CorruptCheckpoint(f"a key without a value at byte {self.at}", url=self.url)
        if type(target) is Inert:
            target = target.pairs
        elif type(target) is not dict and type(target) is not Ordered:
            raise CorruptCheckpoint(f"items are set on a {type(target).__name__} at byte {self.at}", url=self.url)
        for i in range(0, len(pairs), 2):
            name = pairs[i]
            target[name if type(name) is str else self.key(name)] = pairs[i + 1]

    def extend(self, target: Any, items: list[Any]) -> None:
        if type(target) is Inert:
            target.items.extend(items)
        elif type(target) is list:
            target.extend(items)
        else:
            raise CorruptCheckpoint(f"items are appended to a {type(target).__name__} at byte {self.at}", url=self.url)

    def build(self, target: Any, state: Any) -> None:
        """BUILD: attributes of an OrderedDict, the state of a placeholder, or what our own stub makes of it."""
        if type(target) is Inert:
            target.state = state
        elif type(target) is Ordered:
            if type(state) is dict or type(state) is Ordered:
                self.charge((state,))
                target.state.update(state)
        elif hasattr(type(target), "build"):
            self.charge(state if type(state) is tuple else ())
            target.build(state)
        elif type(target) is not dict:
            raise CorruptCheckpoint(f"a {type(target).__name__} is given a state at byte {self.at}", url=self.url)


__all__ = ["PLAIN", "Inert", "Known", "Ordered", "Truncated", "load", "load_some"]
