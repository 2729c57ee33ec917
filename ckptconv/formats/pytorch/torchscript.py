"""TorchScript (torch.jit.save): the container of torch.save, whose objects are of classes from `code/`.

    R/data.pkl        GLOBAL "__torch__.Net" EMPTY_TUPLE NEWOBJ {"fc": {...}, "weight": T, "training": False} BUILD
    R/constants.pkl   a tuple; a frozen module has all its weights here, without names
    R/code/...        source text: classes with lists of their parameters and buffers, never run
    R/data/0  R/constants/0        the storages of the one and of the other

Attributes become dotted names; those of modules that are not in the state_dict() are left out with a note, unless it is
empty, as that of a container of tensors for C++. A constant is called `constants.3`, as CONSTANTS.c3 in the code.
Classes below `__torch__` are always placeholders, whatever they would do. Specification: torch/csrc/jit/serialization.

Which attributes of TorchScript modules their `state_dict()` holds, as the classes in `code/` list them.

    class LSTM(Module):                                          code/__torch__/torch/nn/modules/rnn.py
      __parameters__ = ["weight_ih_l0", "weight_hh_l0", ]
      __buffers__ = []                                           also those that are not persistent, as torch has it
      _flat_weights : List[Tensor]                               a plain attribute: not in the state_dict()

The text is searched for these lines and never run. A class that lacks one of the two lists (those of PyTorch before
1.6) is not known: all its attributes are taken for weights.
Specification: torch/csrc/jit/serialization/python_print.cpp, import_source.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Note
from ...errors import CorruptCheckpoint
from ...storage.files import Reader, Seen
from ..table import Reading
from ..zip import contents
from .archive import PICKLE, Archive, claim, enter
from .flatten import checkpoint
from .values import SCALARS, Inert, Ordered
from .walk import GROUPS

MAX_CODE = 2**23  # bytes of all classes that are looked at; those of a large traced model have some MB
_CLASS = re.compile(r"^class (\w+)\(Module\):\n  __parameters__ = (\[.*\])\n  __buffers__ = (\[.*\])$", re.MULTILINE)
_OTHER = re.compile(r"^class (\w+)(?!\w|\(Module\))", re.MULTILINE)


class Names(NamedTuple):
    """What a module's state_dict() holds of its attributes."""

    parameters: frozenset[str]
    buffers: frozenset[str]


class Classes:
    """The classes of an archive, of which each file is read once, when one of its classes occurs."""

    def __init__(self, archive: Archive, salvage: bool) -> None:
        self.archive, self.salvage = archive, salvage
        self.damaged: list[str] = []
        self.left = MAX_CODE
        self.files: dict[str, dict[str, Names | None]] = {}
        self.modules = False  # whether one of the classes that were asked for is a module

    def get(self, path: str) -> tuple[bool, Names | None]:
        """Whether a class is known; and the names of its parameters and buffers, or None if it is not a module."""
        module, _, name = path.rpartition(".")
        if module not in self.files:
            self.files[module] = listed(self._text(f"code/{module.replace('.', '/')}.py"))
        names = self.files[module].get(name)
        self.modules = self.modules or names is not None
        return name in self.files[module], names

    def _text(self, file: str) -> str:
        m = self.archive.members.get(file)
        if m is None or m.size > self.left:
            return ""
        self.left -= m.size
        try:
            return b"".join(contents(self.archive.f, m)).decode("utf-8", "replace")
        except CorruptCheckpoint:
            if not self.salvage:
                raise
            self.damaged.append(file)
            return ""


def listed(text: str) -> dict[str, Names | None]:
    """The classes in a source text: the lists of modules, None for others. Modules without both lists are not known."""
    found: dict[str, Names | None] = {m[1]: None for m in _OTHER.finditer(text)}
    for name, *lists in _CLASS.findall(text):
        found[name] = Names(*(frozenset(re.findall('"(.*?)"', items)) for items in lists))
    return found


def sort(root: Any, classes: Classes) -> bool:
    """Give the modules that are known the groups that modules of Python have; do nothing if none holds a tensor.

    Returns whether it did. A module whose state is not one dictionary of its own, or has such groups, stays as it is.
    """
    made: list[tuple[Inert, dict[Any, Any]]] = []
    seen, some = set[int](), False
    for thing in _recorded(root):
        state, names = thing.state, classes.get(thing.path)[1]
        if type(state) is not dict or names is None or any(g in state for g in GROUPS) or id(state) in seen:
            continue
        seen.add(id(state))  # torch writes one for each object; to copy it for each that names it has no bound
        groups: dict[Any, Any] = {group: {} for group in GROUPS}
        for key, value in state.items():
            if key in names.parameters or key in names.buffers:
                groups["_parameters" if key in names.parameters else "_buffers"][key] = value
                some = some or type(value) not in SCALARS
            elif _is_module(value, classes):
                groups["_modules"][key] = value
            else:
                groups[key] = value
        made.append((thing, groups))
    for thing, state in made if some else ():
        thing.state = state
    return some


def _is_module(value: Any, classes: Classes) -> bool:
    """Whether an attribute may be a module: an object of a class that is one, or is not known."""
    if type(value) is not Inert or value.args is None:
        return False
    known, names = classes.get(value.path)
    return not known or names is not None


def _recorded(root: Any) -> Iterator[Inert]:
    """All recorded objects within containers and recorded objects, once each."""
    seen, left = set[int](), [root]
    while left:
        one = left.pop()
        if type(one) not in (dict, Ordered, list, tuple, Inert) or id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is Inert:
            yield one
            left += (one.state, one.args, one.items, one.pairs)
        else:
            left += one.values() if type(one) in (dict, Ordered) else one


SCRIPT = ("__torch__",)
CONSTANTS = "constants.pkl"


def sniff(seen: Seen) -> int:
    return claim(seen, script=True)


def open(url: str, how: Reading) -> Checkpoint:
    foreign: bool | tuple[str, ...] = True if how.opaque else SCRIPT
    with Reader(url) as f:
        archive = enter(f, salvage=how.salvage)
        classes = Classes(archive, how.salvage)
        root = archive.load(PICKLE, opaque=foreign)
        only = not sort(root, classes) and classes.modules
        size, constants = archive.members[PICKLE].packed, None
        if CONSTANTS in archive.members:
            constants = archive.load(CONSTANTS, "constants", foreign)
            sort(constants, classes)
            size += archive.members[CONSTANTS].packed
    notes = archive.notes()
    if archive.cut and constants is None:
        notes.append(Note("damaged", "lost with the end of the file", (CONSTANTS,)))
    if classes.damaged:
        text = "cannot be read, so attributes that are not in the state_dict() may be among the tensors"
        notes.append(Note("damaged", text, tuple(classes.damaged)))
    made = checkpoint(root, size, how, url=url, format="torchscript", notes=notes, quiet=True, constants=constants)
    unnamed = tuple(name for name in made if constants is not None and name.startswith("constants."))
    plain = tuple(name for name in made if name not in unnamed) if only else ()
    more = (
        Note("assumed", "attributes of modules without any parameters or buffers, whose state_dict() is empty", plain),
        Note("assumed", "unnamed constants of the code; in a frozen module these are the weights", unnamed),
    )
    return replace(made, notes=(*(note for note in more if note.names), *made.notes))
