"""The names of one output: where each file goes, where it is made until then, and what is there already.

    m-00001-of-00002.safetensors   m.safetensors.index.json        where they go
    .m.safetensors.index.json.3f9a01bc.part/                       where they are made, under the same names

So the format's own reader opens what was made before it is published. The mark tells the runs apart. A folder that is
an output by itself is made whole, and the temporary folder becomes it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..errors import StorageError
from ..messages import listing
from ..storage.faults import refused
from ..storage.files import local
from ..storage.paths import beginning, inside
from . import acl, listed, own, publish, replaceable
from .publish import Publication, part


class OutputFile(NamedTuple):
    """One file of an output.

    name: relative to the destination's folder. size: its final size in bytes. shared: whether the checkpoints of a
    folder have it in common; one that exists is then kept.
    """

    name: str
    size: int
    shared: bool = False


LEADS_OUT = "is a link out of its folder: name the folder that it leads to, or list that in CKPTCONV_LINKS"


class Destination(Protocol):
    """Where the files of one output are written, local or remote, until they are published whole or not at all.

    Any number of threads write; leaving the context removes what was not published. What is needless for a kind of
    destination does nothing there: an upload has no write-back to start and nothing that a later run continues from.
    """

    @property
    def cleared(self) -> Sequence[str]:
        """Names of what killed runs had left here and this one removed."""

    @property
    def removed(self) -> Sequence[str]:
        """Names of what was published here before, and is removed because it is not replaced."""

    def write(self, name: str, start: int, data: Any) -> None:
        """Write bytes at a position of a file."""

    def paths(self) -> dict[str, str]:
        """The local path of each file until it is published."""

    def start_writeback(self, name: str, start: int, size: int) -> None:
        """Start writing a finished range back to the disk."""

    def fsync(self) -> None:
        """Make everything written so far durable."""

    def unpublished(self, base: str) -> str:
        """The path by which a reader finds, before it is published, what will be `base` in the folder."""

    def publish(self, *, sync: bool = True) -> None:
        """Give all files their names, or none of them."""

    def abandon(self) -> None:
        """Leave nothing for a later run: what was written is wrong."""

    def close(self) -> None:
        """Close open files."""

    def __enter__(self) -> Destination: ...

    def __exit__(self, kind: object, /, *_: object) -> None: ...


def foreign(names: Sequence[str], folder: str) -> StorageError:
    """Refuse other files in a folder that is read as one checkpoint: they may belong to an older one."""
    return StorageError(
        f"{len(names)} files there would be read as part of the checkpoint and are not replaced by it; move them away, "
        f"or choose another folder:\n{listing(names)}",
        url=folder or ".",
    )


class OutputNames:
    """The files of an output in a local folder.

    A folder of its own is made whole if it is not there yet, or if it has no index (`unit`). `stale`: a pattern of
    names that belong to an older checkpoint of this name. A `mark` that is given is one that a later run knows as well.
    """

    def __init__(
        self, folder: str, files: Sequence[OutputFile], *, mark: str = "", stale: str = "", unit: bool = False
    ) -> None:
        self.folder = local(folder)
        self.final = {f.name: os.path.join(self.folder, f.name) for f in files}
        self._own = [f.name for f in files if not f.shared]
        self._stale = stale
        self._unit = unit
        self.mark = mark or os.urandom(4).hex()
        self._built = "" if mark else self._staged(unit)

    def _staged(self, unit: bool) -> str:
        """The folder that is made whole, or ''."""
        tops = {n.split("/")[0] if n.count("/") == 1 else "" for n in self.final}
        top = tops.pop() if len(tops) == 1 else ""
        path = os.path.join(self.folder, top)
        if not top:
            return ""
        return top if not os.path.lexists(path) or (unit and own.is_folder(path)) else ""

    @property
    def title(self) -> str:
        """What a note of this output is called by: its index, or its folder."""
        return self._own[-1].split("/")[0]

    @property
    def whole(self) -> bool:
        """Whether a folder of its own is made whole."""
        return bool(self._built)

    def temporary(self, name: str) -> str:
        """The path that file `name` has until it is published."""
        base = os.path.basename(name)
        if self._built:
            return os.path.join(self.folder, part(self._built, self.mark), base)
        return os.path.join(os.path.dirname(self.final[name]), self._part, base)

    @property
    def _part(self) -> str:
        return part(os.path.basename(self._own[-1]), self.mark)

    def beside(self, kind: str) -> str:
        """The path of a file of this run that is beside the temporary folder of its index, and called like that."""
        return os.path.join(os.path.dirname(self.final[self._own[-1]]), f"{self._part.removesuffix('part')}{kind}")

    @property
    def stages(self) -> list[str]:
        """The temporary folders."""
        return sorted({os.path.dirname(self.temporary(name)) for name in self.final})

    def marked(self) -> bool:
        """Whether those temporary folders that are there were made here, by runs of ours."""
        return all(own.is_marked(stage) for stage in self.stages if os.path.lexists(stage))

    def restore(self) -> None:
        """Bring back what a killed run had set aside before it renamed any of these files."""
        for name, path in self.final.items():
            kept = os.path.join(os.path.dirname(self.temporary(name)), ".old", os.path.basename(name))
            if own.is_file(kept) and not os.path.lexists(path):
                os.replace(kept, path)

    def unpublished(self, base: str) -> str:
        """The path by which a reader finds, before it is published, what will be `base` in the folder."""
        inside = [name for name in self.final if name.startswith(f"{base}/")]
        stage = os.path.dirname(self.temporary(inside[0] if inside else self._own[-1]))
        return stage if inside else os.path.join(stage, base)

    def owns(self, name: str) -> bool:
        """Whether a name, relative to the folder, belongs to this checkpoint or an older one of its name."""
        top = {n.split("/")[0] for n in self._own if "/" in n}
        return name in self.final or name in top or bool(self._stale and re.fullmatch(self._stale, name))

    def older(self) -> list[str]:
        """Files, relative to the folder, whose names match the pattern and that are not written now."""
        return [old for old in self._stale_names() if own.is_file(os.path.join(self.folder, old))]

    def _stale_names(self) -> list[str]:
        if not self._stale:
            return []
        here = [
            f"{above}{old}"
            for above, begin in sorted(beginnings(self._own, unit=self._unit).items())
            for old in listed.names(os.path.join(self.folder, above), begin)
        ]
        return [old for old in here if old not in self.final and re.fullmatch(self._stale, old)]

    def privacy(self) -> int:
        """The permissions that whoever may read all that is replaced may have."""
        mode, gid = 0o777, own.group({os.path.dirname(path) for path in self.final.values()} | {self.folder})
        for name in [*self._own, *self.older(), *([self._built] if self._built else [])]:
            try:
                path = os.path.join(self.folder, name)
                mode &= own.audience(os.stat(path), gid, acl.of(path))
            except OSError:
                continue  # nothing is there
        return mode

    def check_room(self, sizes: Mapping[str, int]) -> None:
        """Fail now rather than half-way when a disk is too small for all files together; sizes in bytes, by name."""
        needs: dict[int, tuple[str, int]] = {}
        for name, size in sizes.items():
            at = os.path.dirname(self.temporary(name))
            device = os.stat(at).st_dev
            needs[device] = at, needs.get(device, (at, 0))[1] + size
        for at, size in needs.values():
            space = os.statvfs(at) if hasattr(os, "statvfs") else None
            if space and space.f_bavail * space.f_frsize < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def check_possible(self) -> None:
        """Refuse what cannot be a destination, whatever exists there."""
        for name, path in self.final.items():
            words = name.split("/")
            if {"", ".", ".."} & set(words):
                raise StorageError("an output needs a name of its own", url=os.path.dirname(path) or ".")
            for at in (os.path.join(self.folder, *words[:n]) for n in range(1, len(words))):
                if os.path.islink(at) and not inside(at, os.path.dirname(at) or "."):
                    raise StorageError(LEADS_OUT, url=at)
            if not os.path.lexists(path) or own.is_file(path):
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                raise StorageError("is a folder, which no file replaces; name a file in it", url=path)
            what = "a link, which is not followed" if os.path.islink(path) else "a device, pipe or socket"
            raise StorageError(f"is {what}; only a regular file is replaced", url=path)
        if self._unit and (found := self._stale_names()):
            raise foreign(found, self.folder)
        for at in {os.path.dirname(path) for path in self.final.values()}:
            while at and not os.path.lexists(at):
                at = os.path.dirname(at)
            if at and not os.path.isdir(at):
                raise StorageError("is not a folder; what is there must be moved away first", url=at)

    def check_free(self, *, renaming: bool = False) -> None:
        """Refuse a destination that is taken. renaming: an earlier run found it free, and what it renamed is ours."""
        taken = [
            path for n in self._own
            if os.path.lexists(path := self.final[n]) and not (renaming and not os.path.lexists(self.temporary(n)))
        ]  # fmt: skip
        if taken:
            raise replaceable.taken("already exists; force=True replaces it", taken[0])
        if older := () if renaming else self.older():
            where = os.path.join(self.folder, older[0])
            raise replaceable.taken("belongs to a checkpoint of the same name; force=True replaces it", where)

    def check_replaceable(self) -> None:
        """Refuse to replace or remove what is not a zoo's own, where one writes."""
        replaceable.check(os.path.join(self.folder, name) for name in (*self._own, *self.older()))

    def clear(self, *, certain: bool) -> list[str]:
        """Finish or remove what killed runs left here; returns names of what it was.

        certain: only what is proved to be of a run of ours. The rest may be a stranger's, who gave it such a name.
        """
        if not self._own or not os.path.isdir(self.folder or "."):
            return []
        try:
            with own.alone(self.folder):
                left = publish.finish(self.folder, self._titles(""), self.owns)
            needed = publish.marks(self.folder)
            for at in sorted({os.path.dirname(name) for name in self._own} | {""}):
                left += publish.clear(os.path.join(self.folder, at), self._titles(at), needed, certain=certain)
        except OSError as e:
            raise refused(e, self.folder) from e
        return left

    def _titles(self, at: str) -> Callable[[str], bool]:
        """Whether temporary files of that title, in that folder, are of this checkpoint or an older one of its name."""
        short = {publish.short(os.path.basename(n)) for n in self._own if os.path.dirname(n) == at}
        return lambda title: title in short or self.owns(os.path.join(at, title))

    def publication(self, ready: Collection[str], *, force: bool) -> Publication:
        """Where files are replaced under their own names, the old index goes first; older files go last."""
        if self._built:
            return Publication((), ((part(self._built, self.mark), self._built),), ())
        ready = [n for n in ready if n in self._own or not os.path.lexists(self.final[n])]
        before = [n for n in self._own if n not in ready]  # a killed run renamed them; their folders are still needed
        moves = tuple((os.path.relpath(self.temporary(n), self.folder or "."), n) for n in (*before, *ready))
        index = self._own[-1] if self._own else ""
        replaced = any(n != index and os.path.lexists(self.final[n]) for n in ready if n in self._own)
        first = (index,) if replaced and index in ready and os.path.lexists(self.final[index]) else ()
        return Publication(first, moves, tuple(self.older()) if force else ())


def beginnings(files: Sequence[str], *, unit: bool) -> dict[str, str]:
    """For each folder of an output, '' or with a slash at its end, how the names of older shards of it begin.

    unit: all that is in the folder may belong to it.
    """
    bases: dict[str, list[str]] = {}
    for name in files:
        above, slash, base = name.rpartition("/")
        bases.setdefault(above + slash, []).append(re.split(r"-\d{5}-of-|\.", base)[0])
    return {above: "" if unit else beginning(many) for above, many in bases.items()}


__all__ = ["Destination", "OutputFile", "OutputNames", "beginnings", "foreign"]
