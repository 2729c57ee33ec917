"""The state of the pickle machine: stack, memo, marks, and the bounds that hold while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, listing, many, printable
from .plain import SCALARS, Inert, Known, Ordered

MAX_STACK = 2**22  # values on the stack or in the memo at once; pickle itself batches by 1000
MAX_LONG = 64  # bytes of an integer


class Truncated(CorruptCheckpoint):
    """The pickle continues after the bytes that were given."""


MAX_LISTED = 500  # unknown globals that an error names
MAX_NAME = 1000  # bytes of a global's module or name
MAX_KEY = 64  # scalars within one dictionary key: a tuple that shares itself hashes for ever
MAX_KEY_TEXT = 2**16  # characters of the text in such a tuple, which becomes part of a name
MAX_ARGUMENTS = 64
SIZED = frozenset({str, bytes, list, tuple, dict, Ordered, set, frozenset})
COPIES = 4  # times over that calls may copy what the pickle holds: an argument can be remembered and used again


Table = Mapping[tuple[str, str], Any]


class Machine:
    """The state of one interpretation: the bytes, the stack, the stacks below the open marks, the memo."""

    def __init__(
        self, data: bytes, start: int, allowed: Table, persistent: Callable[[Any], Any] | None,
        opaque: bool | tuple[str, ...], url: str | None, packed: int | None = None,
    ) -> None:  # fmt: skip
        self.data, self.at, self.url = data, start, url
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
            what = many(len(self.unknown), "class or function", "classes or functions")
            raise UnsafeCheckpoint(
                f"it names {what} that a checkpoint of plain tensors does not need; "
                "none was imported or run; opaque=True reads the tensors and keeps these as inert placeholders:\n"
                f"{listing(self.unknown, MAX_LISTED)}",
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
        """The values pushed since the last MARK."""
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

    def call(self, what: Any, args: Any, named: Any = None, *, new: bool = False) -> Any:
        """REDUCE and NEWOBJ: run our function for an allowed global, record the arguments for an unknown one."""
        if type(args) is not tuple:
            raise CorruptCheckpoint(f"a call at byte {self.at} has no tuple of arguments", url=self.url)
        self.contain()
        if type(what) is Known:
            run = what.new if new else what.call
            if run is None or named:
                how = " by NEWOBJ" if new and what.call else ""
                raise UnsafeCheckpoint(
                    f"{what.path} is called{how} at byte {self.at}; it is only a name here", url=self.url
                )
            self.charge(args)
            return run(*args)
        if type(what) is Inert:
            args = args if what.args is None else (what, *args)
            return Inert(what.path, (args, named) if named else args)
        raise UnsafeCheckpoint(f"a {type(what).__name__} is called at byte {self.at}", url=self.url)

    def charge(self, values: tuple[Any, ...]) -> None:
        """Count the elements that a call may copy or visit."""
        if len(values) > MAX_ARGUMENTS:
            raise UnsafeCheckpoint(f"a call at byte {self.at} has {len(values)} arguments", url=self.url)
        self.room -= sum([len(v) for v in values if type(v) in SIZED])
        if self.room < 0:
            raise UnsafeCheckpoint(f"the pickle uses the same values over and over (byte {self.at})", url=self.url)

    def key(self, value: Any) -> Any:
        """Refuse keys of dictionaries and sets unless they are small and acyclic."""
        budget, text, todo = MAX_KEY, MAX_KEY_TEXT, [value]
        while todo:
            one, budget = todo.pop(), budget - 1
            text -= len(one) if type(one) is str or type(one) is bytes else 0
            if budget < 0 or text < 0:
                raise UnsafeCheckpoint(f"a key at byte {self.at} is nested too deeply", url=self.url)
            if type(one) is tuple or type(one) is frozenset:
                todo.extend(list(one)[: MAX_KEY + 1])
            elif type(one) not in SCALARS and type(one) is not Inert and type(one) is not Known:
                kind = type(one).__name__
                raise CorruptCheckpoint(f"a {kind} cannot be a key (byte {self.at})", url=self.url)
        return value

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]
        if len(self.memo) > self.memos:
            raise UnsafeCheckpoint(f"the pickle memorises more than {self.memos} values", url=self.url)

    def contain(self) -> None:
        """Count a container, or an object; the number that a pickle may have is bounded by its size."""
        self.containers -= 1
        if self.containers < 0:
            raise UnsafeCheckpoint(
                "the pickle makes containers and objects without end, with nothing in them", url=self.url
            )

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

    def build(self, target: Any, state: Any) -> Any:
        """BUILD: attributes of an OrderedDict, the state of a placeholder, or what our own stub makes of it."""
        if hasattr(type(target), "inline"):
            return target.inline(state, self.take)
        if type(target) is Inert:
            if target.state is not None:
                raise UnsafeCheckpoint(
                    f"{printable(brief(target.path))} is given a second state at byte {self.at}", url=self.url
                )
            target.state = state
        elif type(target) is Ordered and type(state) in (dict, Ordered):
            self.charge((state,))
            target.state.update(state)
        elif hasattr(type(target), "build"):
            self.charge(state if type(state) is tuple else ())
            target.build(state)
        else:
            kinds = f"a {type(target).__name__} is given a {type(state).__name__} as its state"
            raise CorruptCheckpoint(f"{kinds} at byte {self.at}", url=self.url)
        return target
