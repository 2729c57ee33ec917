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
from dataclasses import replace

from ...checkpoint import Checkpoint, Note
from ...storage.files import Reader, Seen
from ..table import Reading
from ..zip import contents
from .archive import PICKLE, Archive, claim, enter
from .flatten import gather
from .walk import Classes, Names, Walk

MAX_CODE = 2**23  # bytes of all classes that are looked at; those of a large traced model have some MB
_CLASS = re.compile(r"^class (\w+)\(Module\):\n  __parameters__ = (\[.*\])\n  __buffers__ = (\[.*\])$", re.MULTILINE)


SCRIPT, CODE = ("__torch__",), "code/"
CONSTANTS, UNNAMED = "constants.pkl", "constants."


def sniff(seen: Seen) -> int:
    return claim(seen, script=True)


def open(url: str, how: Reading) -> Checkpoint:
    foreign: bool | tuple[str, ...] = True if how.opaque else SCRIPT
    with Reader(url) as f:
        archive = enter(f)
        classes = listed(archive)
        root = archive.load(PICKLE, opaque=foreign)
        size, constants = archive.members[PICKLE].packed, None
        if CONSTANTS in archive.members:
            constants = archive.load(CONSTANTS, "constants", foreign)
            size += archive.members[CONSTANTS].packed
    unread = archive.notes()

    def read(classes: Classes) -> Checkpoint:
        walked = Walk(size, classes)
        leaves = [*walked.leaves(root), *walked.leaves({"constants": constants} if constants is not None else {})]
        return gather(leaves, walked, how, (url,), "torchscript", unread, quiet=True, whole=True)

    made = read(classes)
    if empty := bool(classes) and all(name.startswith(UNNAMED) for name in made):
        made = read({})
    unnamed = tuple(name for name in made if name.startswith(UNNAMED))
    plain = tuple(name for name in made if empty and not name.startswith(UNNAMED))
    more = (
        Note("assumed", "attributes of modules without any parameters or buffers, whose state_dict() is empty", plain),
        Note("assumed", "unnamed constants of the code; in a frozen module these are the weights", unnamed),
    )
    return replace(made, notes=(*(note for note in more if note.names), *made.notes))


def listed(archive: Archive) -> Classes:
    """The modules of each source text, with their lists. A class without both lists is not known to be a module."""
    found: dict[str, dict[str, Names]] = {}
    left = MAX_CODE
    for name, m in archive.members.items():
        left -= m.size if name.startswith(CODE) else 0
        if name.startswith(CODE) and name.endswith(".py") and left >= 0:
            text = b"".join(contents(archive.f, m)).decode("utf-8", "replace")
            found[name[len(CODE) : -3].replace("/", ".")] = {
                own: {*re.findall('"(.*?)"', parameters + buffers)} for own, parameters, buffers in _CLASS.findall(text)
            }
    return found
