"""Write files in a temporary folder beside their destination, with positioned writes; publish all of them or none.

    m-00001-of-00002.safetensors   m.safetensors.index.json        where they go
    .m.safetensors.index.json.part/                                where they are made, under the same names

So the format's own reader opens what was made before it is published. One file is one rename. Of several, those that
are replaced are set aside first, the index before all others, and the new index comes last: after a kill in between
there is no index, which is an error for every reader, and never a mix of old and new. What fails without a kill is
undone. A folder that is an output by itself is made and renamed as a whole.

Output(folder, files)     makes the files; any number of threads write ranges; publish() or close() ends it
Paths                     the same files in another process, by their paths
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from stat import S_ISREG
from typing import TYPE_CHECKING
from zlib import crc32

from ..errors import StorageError
from ..storage.faults import refused
from ..storage.files import local, split
from ..storage.paths import inside, refuse_remote
from . import own
from .destination import OutputFile, beginnings, check_replaced, names_in, refuse_foreign

if TYPE_CHECKING:
    from collections.abc import Buffer

LONGEST = 200  # bytes of a title: the name of a file has at most 255
OPEN = 64  # files of an output whose descriptors are kept open, at most
TEMPORARY = r"\..+\.(part|resume\..*)"  # the names of temporary folders and of journals
LEADS_OUT = "is a link out of its folder: name the folder that it leads to, or list that in CKPTCONV_LINKS"


def is_file(path: str) -> bool:
    """Whether it is a regular file, not a link."""
    try:
        return S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


class OutputNames:
    """The paths of an output in a local folder: where each file goes, and where it is made until then.

    A folder of its own is made whole if it is not there yet, or if it has no index (`unit`). `stale`: a pattern of
    names that belong to an older checkpoint of this name. keep: a later run finds the temporary folder.
    """

    def __init__(
        self, folder: str, files: Sequence[OutputFile], *, keep: bool = False, stale: str = "", unit: bool = False
    ) -> None:
        self.folder = local(folder)
        self.final = {f.name: os.path.join(self.folder, f.name) for f in files}
        self.own = [f.name for f in files if not f.shared]
        self._stale, self._unit = stale, unit
        tops = {name.partition("/")[0] if "/" in name else "" for name in self.final}
        top = tops.pop() if len(tops) == 1 else ""
        path = os.path.join(self.folder, top)
        is_plain = unit and os.path.isdir(path) and not os.path.islink(path) and not os.path.ismount(path)
        self.whole = top if top and not keep and (is_plain or not os.path.lexists(path)) else ""
        self._home = self.folder if self.whole or not top else path
        title = self.whole or os.path.basename(self.own[-1])
        raw = os.fsencode(title)
        hidden = os.path.join(self._home, f".{title if len(raw) <= LONGEST else f'{crc32(raw):08x}'}.")
        self.stage = hidden + ("resume.part" if keep else "part")
        self.journal = f"{hidden}resume.journal"

    def temporary(self, name: str) -> str:
        """The path by which a reader finds, before it is published, what will be `name` in the folder."""
        below = os.path.relpath(os.path.join(self.folder, name), self._home or ".")
        return os.path.normpath(os.path.join(self.stage, below))

    def older(self) -> list[str]:
        """Files, relative to the folder, whose names match the pattern and that are not written now."""
        begins = beginnings(self.own, unit=False) if self._stale else {}
        there = [f"{a}{n}" for a, begin in begins.items() for n in names_in(os.path.join(self.folder, a), begin)]
        there = [old for old in there if old not in self.final and re.fullmatch(self._stale, old)]
        return [old for old in there if is_file(os.path.join(self.folder, old))]

    def replaced(self) -> list[str]:
        """The paths of this output at which something is."""
        return [self.final[n] for n in self.own if os.path.lexists(self.final[n])]

    def check(self, *, force: bool, renaming: bool = False) -> None:
        """StorageError for what cannot be a destination, or where something is that may not be replaced.

        renaming: a run that was killed has renamed some files.
        """
        for name, path in self.final.items():
            words = name.split("/")
            if {"", ".", ".."} & set(words):
                raise StorageError("an output needs a name of its own", url=os.path.dirname(path) or ".")
            for above in (os.path.join(self.folder, *words[:n]) for n in range(1, len(words))):
                if os.path.islink(above) and not inside(above, os.path.dirname(above) or "."):
                    raise StorageError(LEADS_OUT, url=above)
            if os.path.lexists(path) and not is_file(path):
                is_link, is_folder = os.path.islink(path), os.path.isdir(path)
                what = "a link" if is_link else "a folder" if is_folder else "a device, pipe or socket"
                raise StorageError(f"is {what}; only a regular file is replaced", url=path)
            above = os.path.dirname(path)
            while above and not os.path.lexists(above):
                above = os.path.dirname(above)
            if above and not os.path.isdir(above):
                raise StorageError("is not a folder; what is there must be moved away first", url=above)
        if self._unit:
            folder = os.path.join(self.folder, self.own[0].split("/")[0])
            own_names = {name.split("/")[1] for name in self.own}
            others = [name for name in names_in(folder, "") if name not in own_names]
            refuse_foreign([name for name in others if not re.fullmatch(TEMPORARY, name, re.DOTALL)], folder)
        there, older = self.replaced(), [os.path.join(self.folder, name) for name in self.older()]
        if renaming and not force:
            waiting = {self.final[n] for n in self.own if os.path.lexists(self.temporary(n))}
            there, older = [path for path in there if path in waiting], []
        check_replaced(there, older, force=force)


class Output:
    """The files of one output until they are published. Any number of threads write.

    cleared: names of what killed runs had left here, and this one removed. removed: of what was published here before,
    and is removed since nothing replaces it.

    keep: they stay when the run fails, for one that is resumed (journal.py). kept: an earlier run filled them, in part;
    renaming: it filled them all and began to rename them. mode: the permissions that the files may have at most, beside
    the owner's; those of what they replace bound them as well. room: the bytes that files with holes take on the disk.
    """

    def __init__(
        self, folder: str, files: Sequence[OutputFile], *, force: bool = False, keep: bool = False, kept: bool = False,
        renaming: bool = False, stale: str = "", unit: bool = False, mode: int = 0o777,
        room: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        refuse_remote(folder, "what is written here")
        self._to = OutputNames(folder, files, keep=keep, stale=stale, unit=unit)
        self._force, self._kept, self._renaming = force, kept or renaming, renaming
        self._stays, self._lock = False, -1
        self.cleared: Sequence[str] = ()
        self.removed: Sequence[str] = ()
        self._fds: dict[str, int] = {}
        self._ready: list[str] = []  # files that are there to be written and renamed
        self._few = len(files) <= OPEN
        self._new_folders: list[str] = []
        self._to.check(force=force, renaming=renaming)
        self._mode = mode & own.permissions(self._to.replaced())
        self.unpublished = self._to.temporary
        try:
            self._claim(keep, 0 if renaming else sum((room or {}).get(f.name, f.size) for f in files))
            for f in files:
                self.create(f)
        except BaseException:  # an interrupt, too, leaves no temporary folder behind
            self.close()
            raise

    def _claim(self, keep: bool, size: int) -> None:
        """Make and lock the temporary folder; fail now rather than half-way if the disk has less than `size` bytes."""
        folder = home = os.path.dirname(self._to.stage)
        while folder and not os.path.isdir(folder):
            self._new_folders.append(folder)
            folder = os.path.dirname(folder)
        try:
            os.makedirs(home or ".", exist_ok=True)
            self._lock, cleared = own.claim(self._to.stage, kept=self._kept)
            self._stays = keep
            self.cleared = [os.path.basename(self._to.stage)] if cleared else []
            space = os.statvfs(self._to.stage)
            if space.f_bavail * space.f_frsize < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as e:
            raise refused(e, home or ".") from e

    def create(self, f: OutputFile) -> None:
        """Make a file of its final size, or open the one that an earlier run made."""
        path = self._to.temporary(f.name)
        if self._renaming and not os.path.lexists(path):
            return  # renamed already
        try:
            above = os.path.dirname(path)
            if not os.path.isdir(above):
                os.makedirs(above, self._mode | 0o700 | (self._mode & 0o044) >> 2)  # who may read them may enter
            how = os.O_RDWR | (0 if self._kept else os.O_CREAT | os.O_EXCL)
            fd = own.open_file(path, how, self._mode & 0o666 | 0o600)
            self._fds[f.name] = fd
            self._ready.append(f.name)
            if f.size and not self._renaming:
                os.ftruncate(fd, f.size)
            if not self._few:
                os.close(self._fds.pop(f.name))
        except OSError as e:
            raise refused(e, self._to.final[f.name]) from e

    def write(self, name: str, start: int, data: Buffer) -> None:
        """Write bytes at a position of a file."""
        try:
            with self._open(name) as fd:
                _write(fd, start, data)
        except OSError as e:
            raise refused(e, self._to.final[name]) from e

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        """The descriptor of a file; of very many files none is kept open."""
        if name in self._fds:
            yield self._fds[name]
        else:
            with open(self._to.temporary(name), "r+b", buffering=0) as file:
                yield file.fileno()

    def start_writeback(self, name: str, start: int, size: int) -> None:
        """Start writing a finished range back to the disk, so that `publish` waits less.

        The advice starts the write-back at once and drops only clean pages: those just written stay in memory.
        """
        if name in self._fds and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fds[name], start, size, os.POSIX_FADV_DONTNEED)

    def paths(self) -> dict[str, str]:
        """Where each file is until it is published."""
        return {name: os.path.abspath(self._to.temporary(name)) for name in self._to.final}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as `Paths`: another process only writes."""
        return Paths, (self.paths(),)

    def fsync(self) -> None:
        """Make everything written so far durable."""
        try:
            for name in self._ready:
                with self._open(name) as fd:
                    os.fsync(fd)
            for folder in {os.path.dirname(self._to.temporary(name)) for name in self._ready}:
                own.sync(folder)
        except OSError as e:
            raise refused(e, self._to.folder) from e

    def publish(self, *, sync: bool = True) -> None:
        """Make all files durable, then bring them under their names, all or none."""
        if sync:
            self.fsync()
        self._to.check(force=self._force, renaming=self._renaming)  # what came there in the meantime
        try:
            self.removed = self._to.older() if self._force else ()
            final = self._to.final
            new = [name for name in self._ready if name in self._to.own or not os.path.lexists(final[name])]
            moves = [(self._to.temporary(name), final[name]) for name in new]
            if whole := self._to.whole:
                moves = [(os.path.join(self._to.stage, whole), os.path.join(self._to.folder, whole))]
            older = [os.path.join(self._to.folder, name) for name in self.removed]
            for _, path in moves:
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            if len(moves) == 1 and not older and not os.path.isdir(moves[0][1]):
                os.replace(*moves[0])
            else:
                self._rename(moves, older)
            for folder in {os.path.dirname(path) for path in final.values()} | {self._to.folder} if sync else ():
                own.sync(folder)
        except OSError as e:
            named = [str(name) for name in (e.filename2, e.filename) if name and self._to.stage not in str(name)]
            raise refused(e, named[0] if named else self._to.folder) from e
        self._ready, self._new_folders, self._stays = [], [], False
        self.close()

    def _rename(self, moves: Sequence[tuple[str, str]], older: Sequence[str]) -> None:
        """Set aside what is replaced, then rename; undo it if a step fails."""
        aside = os.path.join(self._to.stage, ".old")
        there = [path for path in (*reversed([new for _, new in moves]), *older) if os.path.lexists(path)]
        steps = [(path, os.path.join(aside, str(n))) for n, path in enumerate(there)] + list(moves)
        done: list[tuple[str, str]] = []
        try:
            os.makedirs(aside, exist_ok=True)
            for old, new in steps:
                done.append((old, new))
                os.replace(old, new)
        except BaseException:  # an interrupt, too, leaves what was there
            stays, self._stays = self._stays, True  # what cannot be put back is not lost
            for old, new in reversed(done):
                if os.path.lexists(new) and not os.path.lexists(old):
                    os.replace(new, old)
            self._stays = stays
            raise

    def abandon(self) -> None:
        """Leave nothing for a later run: what was written is wrong."""
        self._stays = False

    def close(self) -> None:
        """Remove what was not published, but what a later run is to find; the destination stays as it was."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        if self._lock >= 0 and not self._stays:
            shutil.rmtree(self._to.stage, ignore_errors=True)
        for folder in () if self._stays else self._new_folders:
            with suppress(OSError):
                os.rmdir(folder)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


class Paths:
    """The files of an `Output` of another process, opened by their paths."""

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths, self._fds = paths, dict[str, int]()

    def paths(self) -> dict[str, str]:
        return self._paths

    def write(self, name: str, start: int, data: Buffer) -> None:
        try:
            if name not in self._fds:
                self._fds[name] = os.open(self._paths[name], os.O_WRONLY)
            _write(self._fds[name], start, data)
        except OSError as e:
            raise refused(e, self._paths[name]) from e

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}


def _write(fd: int, start: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view, start)
        view, start = view[written:], start + written


def write_whole(path: str, data: bytes, read: Collection[str], *, force: bool) -> None:
    """Write one small file, over none of those that were read for it and as private as they are."""
    own.refuse_source(path, read)
    folder, name = split(path)
    with closing(Output(folder, [OutputFile(name, len(data))], force=force, mode=own.permissions(read))) as out:
        out.write(name, 0, data)
        out.publish()
