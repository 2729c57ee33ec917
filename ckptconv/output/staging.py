"""Write files in a temporary folder beside their destination, with positioned writes; publish all of them or none.

Output(folder, files)     makes the files; any number of threads write ranges; publish() or discard() ends it
Paths                     the same files in another process, by their paths
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from ..errors import StorageError
from ..storage.faults import refused
from ..storage.paths import refuse_remote
from . import listed, own, publish
from .destination import OutputFile, OutputNames

if TYPE_CHECKING:
    from collections.abc import Buffer

TRIES = 200  # to make and lock a temporary folder
OPEN = 256  # files of an output whose descriptors are kept open, at most


class Output:
    """The files of one output until they are published (publish.py says how).

    With a `mark` their names can be found again: they stay when the run fails (journal.py continues from them). `kept`:
    an earlier run filled them, in part; `whole`: it filled them all and began to rename them. `mode`: the permissions
    that the files may have at most, beside the owner's; those of what they replace bound them as well, as with `cp`.
    `room`: the bytes that files with holes take on the disk.
    """

    def __init__(
        self, folder: str, files: Sequence[OutputFile], *, force: bool = False, mark: str = "", kept: bool = False,
        whole: bool = False, stale: str = "", unit: bool = False, mode: int = 0o777,
        room: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        refuse_remote(folder, "what is written here")
        self._to = OutputNames(folder, files, mark=mark, stale=stale, unit=unit)
        self._force, self._stays, self._kept, self._whole = force, bool(mark), kept, whole
        self.removed: Sequence[str] = ()
        self._fds: dict[str, int] = {}
        self._ready: list[str] = []  # files that are there to be written and renamed
        self._few = len(files) <= min(OPEN, own.share_of_open_files())
        self._made: list[str] = []
        self._locks: list[int] = []
        with listed.once():
            self._to.check_possible()
            self.cleared = self._to.clear(certain=True)
            self._free()
            self.cleared += self._to.clear(certain=False)
            self._mode = mode & self._to.privacy()
        try:
            self._stage()
            self._check_room({f.name: f.size for f in files} | dict(room or {}))
            for f in files:
                self.create(f)
        except BaseException:  # an interrupt, too, leaves no stage behind
            self.discard()
            raise

    def _free(self) -> None:
        """Refuse a destination that is taken, before any work."""
        if self._force:
            self._to.check_replaceable()
        else:
            self._to.check_free(renaming=self._whole)

    def _stage(self) -> None:
        """Make and lock the temporary folders."""
        for path in self._to.stages:
            try:
                for _ in range(TRIES):
                    if self._whole and not os.path.lexists(path):
                        break
                    self._folders(os.path.dirname(path))
                    self._make(path)
                    fd = own.lock_folder(path)
                    if fd >= 0:
                        self._locks.append(fd)
                        own.restrict(fd, own.of_folder(self._mode))  # by its descriptor, which is of no link
                        break
                    time.sleep(0.01)  # who clears litter is about to remove it
                else:
                    raise StorageError("another process has this temporary folder open", url=path)
            except OSError as e:
                raise refused(e, os.path.dirname(path) or ".") from e

    def _make(self, stage: str) -> None:
        """Make a temporary folder; where its name is one that a later run knows, one of ours may be there."""
        try:
            os.mkdir(stage, own.of_folder(self._mode))
            self._made.append(stage)
            own.mark(stage)
            if self._stays:
                publish.sync(os.path.join(stage, own.MARKER))
        except FileExistsError as e:
            if not self._stays:
                raise
            if not own.is_marked(stage):
                raise StorageError("is not known to be of a run of ckptconv; move it away", url=stage) from e

    def _check_room(self, sizes: Mapping[str, int]) -> None:
        """Check for room for all files before any work."""
        try:
            self._to.check_room({} if self._whole else sizes)
        except OSError as e:
            raise refused(e, self._to.folder) from e

    def create(self, f: OutputFile) -> None:
        path = self._to.temporary(f.name)
        if self._whole and not os.path.lexists(path):
            return  # renamed already
        try:
            how = 0 if self._kept else os.O_CREAT | (os.O_TRUNC if self._stays else os.O_EXCL)
            fd = own.open_file(path, os.O_RDWR | how, self._mode & 0o666)
            self._fds[f.name] = fd
            self._ready.append(f.name)
            own.restrict(fd, self._mode & 0o666, new=not self._stays)
            if f.size and not self._whole:
                os.ftruncate(fd, f.size)
            if not self._few:
                os.close(self._fds.pop(f.name))
        except OSError as e:
            raise refused(e, self._to.final[f.name]) from e

    def _folders(self, folder: str) -> None:
        missing = []
        while folder and not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            try:
                os.mkdir(path)
                self._made.append(path)
            except FileExistsError:  # another process was faster
                if not os.path.isdir(path):
                    raise

    def write(self, name: str, start: int, data: Buffer) -> None:
        fd = self._fds.get(name)  # without `_open`, which would cost a small tensor as much again
        if fd is not None:
            _write(fd, start, data, self._to.final[name])
            return
        with self._open(name) as fd:
            _write(fd, start, data, self._to.final[name])

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        """The descriptor of a file; of very many files none is kept open."""
        if name in self._fds:
            yield self._fds[name]
            return
        fd = _opened(self._to.temporary(name), os.O_RDWR, self._to.final[name])
        try:
            yield fd
        finally:
            os.close(fd)

    def start_writeback(self, name: str, start: int, size: int) -> None:
        """Start writing a finished range back to the disk, so that `publish` waits less.

        The advice starts the write-back at once and drops only clean pages: those just written stay in memory.
        """
        if name in self._fds and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fds[name], start, size, os.POSIX_FADV_DONTNEED)

    def paths(self) -> dict[str, str]:
        """Where each file is until it is published."""
        return {name: os.path.abspath(self._to.temporary(name)) for name in self._to.final}

    def unpublished(self, base: str) -> str:
        """The path by which a reader finds, before it is published, what will be `base` in the folder."""
        return self._to.unpublished(base)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as `Paths`: another process only writes."""
        return Paths, (self.paths(),)

    def fsync(self) -> None:
        """Make everything written so far durable."""
        try:
            for name in self._ready:
                with self._open(name) as fd:
                    os.fsync(fd)
            if self._stays:
                self._sync_stages()
        except OSError as e:
            raise refused(e, self._to.folder) from e

    def publish(self, *, sync: bool = True) -> None:
        """Make all files durable, then bring them under their names, all or none; after a kill the next run does it."""
        if sync:
            self.fsync()
        try:
            with own.alone(self._to.folder), listed.once():
                self._free()
                self._rename(sync)
        except OSError as e:
            named = [str(name) for name in (e.filename2, e.filename) if name and f".{self._to.mark}." not in str(name)]
            raise refused(e, named[0] if named else self._to.folder) from e
        self.close()
        self._made, self._stays = [], False

    def _rename(self, sync: bool) -> None:
        if os.name == "nt":
            self.close()  # it renames no open files
        to, todo = self._to, self._to.publication(self._ready, force=self._force)
        several = len(todo.first) + len(todo.moves) + len(todo.last) > 1
        steps: publish.Steps = []
        try:
            with ExitStack() as stack:
                if (several or to.whole) and not self._stays:
                    if sync:
                        self._sync_stages()
                    stack.enter_context(publish.noted(to.folder, to.title, to.mark, todo, steps))
                publish.perform(to.folder, todo, to.owns, steps)
                self._sync(sync)
        finally:
            self._stays = self._stays or bool(steps)  # neither done nor undone: the next run needs what is left
        self._ready, self.removed = [], todo.last

    def _sync_stages(self) -> None:
        for folder in self._to.stages:
            if os.path.lexists(folder):  # an earlier run may have renamed all and removed it
                publish.sync(folder)

    def _sync(self, sync: bool) -> None:
        if sync:
            for folder in {os.path.dirname(p) for p in self._to.final.values()} | {self._to.folder}:
                publish.sync(folder)

    def close(self) -> None:
        """Close what is open."""
        self._close_files()
        while self._locks:
            os.close(self._locks.pop())

    def _close_files(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def abandon(self) -> None:
        """Leave nothing for a later run: what was written is wrong."""
        self._stays = False

    def discard(self) -> None:
        """Remove every trace (but what a later run is to find); the destination stays as it was."""
        self._close_files()
        if not self._stays:
            for name in self._to.final:  # what rmtree does as well, but not where no more files can be opened
                with suppress(OSError):
                    os.unlink(self._to.temporary(name))
            for path in self._to.stages:
                with suppress(OSError):
                    os.rmdir(path)
                own.remove_tree(path)
                own.remove_tree(f"{path}.old")
        self.close()
        for path in reversed(self._made) if not self._stays else ():
            with suppress(OSError):
                os.rmdir(path)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.discard()


class Paths:
    """The files of an `Output` of another process, opened by their paths."""

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths, self._fds = paths, dict[str, int]()

    def paths(self) -> dict[str, str]:
        return self._paths

    def write(self, name: str, start: int, data: Buffer) -> None:
        path = self._paths[name]
        if name not in self._fds:
            self._fds[name] = _opened(path, os.O_WRONLY, path)
        _write(self._fds[name], start, data, path)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}


def _opened(path: str, how: int, shown: str) -> int:
    try:
        return os.open(path, how | getattr(os, "O_BINARY", 0))
    except OSError as e:
        raise refused(e, shown) from e


def _write(fd: int, start: int, data: Buffer, path: str) -> None:
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        try:
            at += os.pwrite(fd, view[at:], start + at)
        except OSError as e:
            raise refused(e, path) from e


__all__ = ["Output", "Paths"]
