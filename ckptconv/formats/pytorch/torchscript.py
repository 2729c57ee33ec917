"""TorchScript (torch.jit.save): the container of torch.save, whose objects are of classes from `code/`.

    R/data.pkl        GLOBAL "__torch__.Net" EMPTY_TUPLE NEWOBJ {"fc": {...}, "weight": T, "training": False} BUILD
    R/constants.pkl   a tuple; a frozen module has all its weights here, without names
    R/code/...        source text: classes with lists of their parameters and buffers (state_names.py), never run
    R/data/0  R/constants/0        the storages of the one and of the other

Attributes become dotted names; those of modules that are not in the state_dict() are left out with a note, unless it is
empty, as that of a container of tensors for C++. A constant is called `constants.3`, as CONSTANTS.c3 in the code.
Classes below `__torch__` are always placeholders, whatever they would do. Specification: torch/csrc/jit/serialization.
"""

from __future__ import annotations

from dataclasses import replace

from ...checkpoint import Checkpoint, Details, Note
from ...errors import NameCollision
from ...messages import listing
from ...storage.files import Reader, Seen
from ..reading import Reading
from .archive import claim, enter
from .flatten import checkpoint
from .known import TORCH
from .pickle import load
from .state_names import Classes, sort

SCRIPT = ("__torch__",)


def sniff(seen: Seen) -> int:
    return claim(seen, script=True)


def open(url: str, how: Reading) -> Checkpoint:
    foreign: bool | tuple[str, ...] = True if how.opaque else SCRIPT
    with Reader(url) as f:
        archive = enter(f, salvage=how.salvage)
        made, notes = [], list[Note]()
        for name, folder in (("data", "data"), ("constants", "constants")):
            if name + ".pkl" not in archive.members and name == "constants":
                continue
            raw, packed = archive.pickle(f, name + ".pkl"), archive.packed(name + ".pkl")
            find = archive.storage(folder)
            value = load(raw, allowed=TORCH, persistent_load=find, opaque=foreign, url=url, packed=packed)
            classes = Classes(archive, f, how.salvage)
            only = not sort(value, classes) and any(names for _, names in classes.found.values())
            value = value if name == "data" else {"constants": value}
            made.append(checkpoint(value, packed, how, url=url, format="torchscript", quiet=True))
            if only and len(made[-1]):
                text = "attributes of modules without any parameters or buffers, whose state_dict() is empty"
                notes.append(Note("assumed", text, tuple(made[-1])))
            if classes.damaged:
                text = "cannot be read, so attributes that are not in the state_dict() may be among the tensors"
                notes.append(Note("damaged", text, tuple(classes.damaged)))
    notes += archive.notes()
    if archive.cut and "constants.pkl" not in archive.members:
        notes.append(Note("damaged", "lost with the end of the file", ("constants.pkl",)))
    return _joined(made, notes)


def _joined(made: list[Checkpoint], notes: list[Note]) -> Checkpoint:
    """Attributes first, then constants."""
    tensors = {name: t for c in made for name, t in c.items()}
    clashes = [name for name in made[-1] if name in made[0]] if len(made) > 1 else []
    if clashes:
        raise NameCollision(f"attributes and constants of the same names:\n{listing(clashes)}", url=made[0].urls[0])
    if len(made) > 1 and len(made[1]):
        text = "unnamed constants of the code; in a frozen module these are the weights"
        notes = [*notes, Note("assumed", text, tuple(made[1]))]
    details = Details()
    for c in made:
        details |= c.details
    return replace(
        made[0],
        tensors=tensors,
        ties=tuple(group for c in made for group in c.ties),
        notes=(*notes, *(n for c in made for n in c.notes)),
        details=details,
    )
