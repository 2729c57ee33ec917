"""The names of one output: where each file goes, what it is called until then, and what is there already.

    out.safetensors                              where it goes
    .out.safetensors.3f9a01bc.part               until it is published; the mark tells the runs apart
    out/a.npy   ->   .out.3f9a01bc.part/a.npy    a folder of its own that is built whole under a temporary name
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from zlib import crc32

from . import publish
from .errors import StorageError
from .publish import Publication
from .store import File, local, names, refused


class Destination:
    """The files of an output in a local folder.

    A folder of its own is built whole under a temporary name if it is not there yet, or if it has no index (`unit`).
    `stale`: a pattern of names that belong to an older checkpoint of this name. A `mark` that is given is one that a
    later run knows as well.
    """

    def __init__(
        self, folder: str, files: Sequence[File], *, mark: str = "", stale: str = "", unit: bool = False
    ) -> None:
        self.folder = local(folder)
        self.final = {f.name: os.path.join(self.folder, f.name) for f in files}
        self._own = [f.name for f in files if not f.shared]
        self._stale = re.compile(stale) if stale else None
        self.mark = mark or os.urandom(4).hex()
        self._built = "" if mark else self._staged(unit)

    def _staged(self, unit: bool) -> str:
        """The folder that is built under a temporary name, or ''."""
        tops = {n.split("/")[0] if n.count("/") == 1 else "" for n in self.final}
        top = tops.pop() if len(tops) == 1 else ""
        path = os.path.join(self.folder, top)
        if not top:
            return ""
        there = os.path.lexists(path)
        if there and (not unit or os.path.islink(path) or not os.path.isdir(path) or os.path.ismount(path)):
            return ""
        return top

    @property
    def title(self) -> str:
        """What a note of this output is called by: its index, or its folder."""
        return self._own[-1].split("/")[0]

    @property
    def whole(self) -> bool:
        """Whether a folder of its own is built under a temporary name."""
        return bool(self._built)

    def temporary(self, name: str) -> str:
        """The path that file `name` has until it is published."""
        if self._built:
            return os.path.join(self.folder, part_name(self._built, self.mark), os.path.basename(name))
        folder, base = os.path.split(self.final[name])
        return os.path.join(folder, part_name(base, self.mark))

    def ours(self, name: str) -> bool:
        """Whether a name, relative to the folder, belongs to this checkpoint or an older one of its name."""
        top = {n.split("/")[0] for n in self._own if "/" in n}
        return name in self.final or name in top or bool(self._stale and self._stale.fullmatch(name))

    def older(self) -> list[str]:
        """Names, relative to the folder, that match the pattern and are not written now."""
        if not self._stale:
            return []
        folders = sorted({os.path.dirname(name) for name in self.final})
        here = [os.path.join(f, old) for f in folders for old in names(os.path.join(self.folder, f))]
        return [old for old in here if self._stale.fullmatch(old) and old not in self.final]

    def free(self) -> None:
        """Refuse a destination that is taken."""
        taken = [p for n in self._own if os.path.lexists(p := self.final[n])]
        if taken:
            raise StorageError("already exists; --force replaces it", url=taken[0])
        if older := self.older():
            where = os.path.join(self.folder, older[0])
            raise StorageError("belongs to a checkpoint of the same name; --force replaces it", url=where)

    def clear(self) -> list[str]:
        """Finish or remove what killed runs left here; returns names of what it was."""
        if not self._own or not os.path.isdir(self.folder or "."):
            return []
        try:
            with publish.alone(self.folder):
                left = publish.finish(self.folder, self.title, self.ours)
            for at, bases in self._by_folder().items():
                left += publish.clear(at, bases, part_name)
        except OSError as e:
            raise refused(e, self.folder) from e
        return left

    def _by_folder(self) -> dict[str, list[str]]:
        """The base names in each folder of the output, and the folder's own in the one around it."""
        out: dict[str, list[str]] = {}
        for path in self.final.values():
            at, base = os.path.split(path)
            out.setdefault(at, []).append(base)
        for at in [a for a in out if a != self.folder]:
            above, base = os.path.split(at)
            out.setdefault(above, []).append(base)
        return out

    def publication(self, ready: Collection[str], *, force: bool) -> Publication:
        """Where files are replaced under their own names, the old index goes first; older files go last."""
        if self._built:
            return Publication((), ((part_name(self._built, self.mark), self._built),), ())
        moves = tuple((os.path.relpath(self.temporary(n), self.folder or "."), n) for n in ready)
        index = self._own[-1] if self._own else ""
        replaced = any(n != index and os.path.lexists(self.final[n]) for n in ready if n in self._own)
        first = (index,) if replaced and index in ready and os.path.lexists(self.final[index]) else ()
        return Publication(first, moves, tuple(self.older()) if force else ())


def part_name(base: str, mark: str) -> str:
    """The name of a temporary file; long names are cut and told apart by a checksum."""
    base = base if len(base) <= 200 else f"{base[:180]}-{crc32(base.encode('utf-8', 'surrogateescape')):08x}"
    return f".{base}.{mark}.part"


__all__ = ["Destination", "part_name"]
