"""Write files in a temporary folder next to their destination, with positioned writes; publish all of them or none.

    m-00001-of-00002.safetensors   m.safetensors.index.json        the destination
    .m.safetensors.index.json.part/                                the temporary folder, with the same names in it

So the format's own reader can open the output before it is published. A single file is published by one rename. If
there are several, old ones are set aside first, beginning with the index, and the new index comes last: a kill in
between leaves no index, which is an error for every reader, and never a mix of old and new. A failure without a kill is
undone. An output that is a folder is made and renamed as one.

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

LONGEST = 200  # bytes of a title; a file name has at most 255
OPEN = 64  # an output of more files does not keep them open
TEMPORARY = r"\..+\.(part|resume\..*)"  # names of temporary folders and journals
LEADS_OUT = "is a link out of its folder: name the folder that it leads to, or list that in CKPTCONV_LINKS"


def is_file(path: str) -> bool:
    """Tell whether it is a regular file, not a link."""
    try:
        return S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


class OutputNames:
    """The paths of an output in a local folder: the final path of each file, and the temporary one.

    An output that is a folder is renamed as one if it does not exist yet, or has no index (`unit`). stale: a pattern
    for the names of an older checkpoint with this name. keep: a later run finds the temporary folder.
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
        """Return the path of the file `name` until it is published."""
        below = os.path.relpath(os.path.join(self.folder, name), self._home or ".")
        return os.path.normpath(os.path.join(self.stage, below))

    def older(self) -> list[str]:
        """List files, relative to the folder, whose names match `stale` and that are not written now."""
        begins = beginnings(self.own, unit=False) if self._stale else {}
        there = [f"{a}{n}" for a, begin in begins.items() for n in names_in(os.path.join(self.folder, a), begin)]
        there = [old for old in there if old not in self.final and re.fullmatch(self._stale, old)]
        return [old for old in there if is_file(os.path.join(self.folder, old))]

    def replaced(self) -> list[str]:
        """List the paths of this output that exist."""
        return [self.final[n] for n in self.own if os.path.lexists(self.final[n])]

    def check(self, *, force: bool, renaming: bool = False) -> None:
        """Raise StorageError if a path cannot be a destination, or has a file that may not be replaced.

        renaming: a killed run has renamed some of the files.
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
                raise StorageError("is not a folder; move it away first", url=above)
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

    cleared: names of leftovers of killed runs, which this run removed. removed: names of files that were published here
    earlier, and are removed because no new file replaces them.

    keep: the files stay if the run fails, to be resumed (journal.py). kept: an earlier run filled some of them;
    renaming: it filled all and began to rename them. mode: the most permissions that the files may have besides the
    owner's; the files that they replace limit them, too. room: the disk space of files with holes, in bytes.
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
        self._ready: list[str] = []  # files to write and rename
        self._few = len(files) <= OPEN
        self._new_folders: list[str] = []
        self._to.check(force=force, renaming=renaming)
        self._mode = mode & own.permissions(self._to.replaced())
        self.unpublished = self._to.temporary
        try:
            self._claim(keep, 0 if renaming else sum((room or {}).get(f.name, f.size) for f in files))
            for f in files:
                self.create(f)
        except BaseException:  # an interrupt, too, must not leave a temporary folder
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
                os.makedirs(above, self._mode | 0o700 | (self._mode & 0o044) >> 2)  # who may read may enter
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
        """Open a file, or use its open descriptor; an output of very many files keeps none."""
        if name in self._fds:
            yield self._fds[name]
        else:
            with open(self._to.temporary(name), "r+b", buffering=0) as file:
                yield file.fileno()

    def start_writeback(self, name: str, start: int, size: int) -> None:
        """Start writing a finished range to the disk, so that `publish` waits less.

        POSIX_FADV_DONTNEED starts the write-back at once; it drops only clean pages, so the new ones stay in memory.
        """
        if name in self._fds and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fds[name], start, size, os.POSIX_FADV_DONTNEED)

    def paths(self) -> dict[str, str]:
        """Return the temporary path of each file."""
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
        """Make all files durable, then rename all or none to their final names."""
        if sync:
            self.fsync()
        self._to.check(force=self._force, renaming=self._renaming)  # files may have appeared meanwhile
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
        """Set old files aside, then rename the new ones; undo both if a step fails."""
        aside = os.path.join(self._to.stage, ".old")
        there = [path for path in (*reversed([new for _, new in moves]), *older) if os.path.lexists(path)]
        steps = [(path, os.path.join(aside, str(n))) for n, path in enumerate(there)] + list(moves)
        done: list[tuple[str, str]] = []
        try:
            os.makedirs(aside, exist_ok=True)
            for old, new in steps:
                done.append((old, new))
                os.replace(old, new)
        except BaseException:  # an interrupt, too, must bring the old files back
            stays, self._stays = self._stays, True  # a file that cannot be put back stays in the stage
            for old, new in reversed(done):
                if os.path.lexists(new) and not os.path.lexists(old):
                    os.replace(new, old)
            self._stays = stays
            raise

    def abandon(self) -> None:
        """Keep nothing for a later run, because the written data is wrong."""
        self._stays = False

    def close(self) -> None:
        """Remove unpublished files unless a later run resumes them; the destination is unchanged."""
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
    """Write one small file, as private as the files that it is made from, and not over one of them."""
    own.refuse_source(path, read)
    folder, name = split(path)
    with closing(Output(folder, [OutputFile(name, len(data))], force=force, mode=own.permissions(read))) as out:
        out.write(name, 0, data)
        out.publish()
