"""Our own files: opened without following links, locked while we run, and as private as their sources.

A checkpoint's folder may come from an attacker, and the names of our journals, ledgers and temporary folders are
predictable: a link or a pipe may be in their place. It is refused.

    claim(path)      make and lock a temporary folder, and remove what a killed run left in it
    AppendLog        a file of JSON lines, such as the journal of a conversion and the ledger of a zoo
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from stat import S_ISREG
from typing import IO

from ..errors import CorruptCheckpoint, StorageError, UsageError
from ..storage.faults import refused
from ..storage.paths import is_remote, local

LONGEST = 2**26  # bytes of a line
NOT_A_FOLDER = errno.ELOOP, errno.ENOTDIR


def open_file(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file of ours; OSError for a link, a pipe, a device, or a file with a second name."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    status = os.fstat(fd)
    if S_ISREG(status.st_mode) and status.st_nlink == 1:
        return fd
    os.close(fd)
    why = "has a second name (a hard link)" if S_ISREG(status.st_mode) else "is not a regular file"
    raise OSError(errno.EPERM, f"{why}: a file of ckptconv belongs here; move it away", path)


def lock(fd: int) -> bool:
    """Mark an open file as in use until it is closed or the process ends; False if another process has it.

    OSError where the file system has no locks.
    """
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def claim(path: str, *, kept: bool = False) -> tuple[int, bool]:
    """Make a temporary folder and lock it; return its descriptor, and whether a killed run had left one, now emptied.

    kept: keep its contents, for a run that resumes. StorageError if another run has it, or if it is not a folder.
    """
    try:
        os.mkdir(path, 0o700)
        is_new = True
    except FileExistsError:
        is_new = False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as e:
        if e.errno not in NOT_A_FOLDER:
            raise
        raise StorageError("a temporary folder of ckptconv belongs here; move this away", url=path) from e
    try:
        try:
            free = lock(fd) and os.path.samestat(os.stat(path), os.fstat(fd))
        except OSError as e:  # no locks, as on some network file systems
            if not (is_new or kept):
                raise StorageError("was left by another run; remove it if none is writing here", url=path) from e
            free = True
        if not free:
            raise StorageError("another run is writing this destination", url=path)
        if not is_new:
            os.fchmod(fd, 0o700)
        for name in () if is_new or kept else os.listdir(path):
            remove(os.path.join(path, name))
    except BaseException:
        os.close(fd)
        raise
    return fd, not is_new and not kept


def remove(path: str) -> None:
    """Remove a file, or a folder with its contents."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def sync(folder: str) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def permissions(urls: Iterable[str]) -> int:
    """Return the permissions that all these local files have, for a file that is made from them."""
    mode = 0o777
    for url in urls:
        with suppress(OSError):  # the file is gone, which reading it will report
            mode &= 0o777 if is_remote(url) else os.stat(local(url)).st_mode
    return mode


def refuse_source(path: str, urls: Iterable[str]) -> None:
    """Raise UsageError if `path`, where a report or a proposal goes, is one of the files that it is made from."""
    if not is_remote(path) and os.path.realpath(local(path)) in {
        os.path.realpath(local(url)) for url in urls if not is_remote(url)
    }:
        raise UsageError(f"{path!r} is read here, and the result would replace it; give another name")


# --- files of lines -------------------------------------------------------------------------------------------------


def lines(file: IO[bytes], path: str) -> Iterator[bytes]:
    """Yield lines of limited length; an untrusted file may be one sparse line of a terabyte."""
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise CorruptCheckpoint(f"has a line of more than {LONGEST} bytes, which ckptconv did not write", url=path)
        yield line


class AppendLog:
    """A file of JSON lines that one process appends to: locked, and durable line by line.

    A kill leaves at most one unfinished line. StorageError with the text `busy` if another run has it.
    """

    def __init__(self, path: str, busy: str) -> None:
        self.path = path
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            self._fd = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as e:
            raise refused(e, path) from e
        try:
            is_free = lock(self._fd)
        except OSError as e:
            self.close()
            why = f"this file system has no locks ({(e.strerror or str(e)).lower()}), so that two runs could meet here"
            raise StorageError(why, url=path) from e
        if not is_free:
            self.close()
            raise StorageError(busy, url=path)

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self._fd).st_size

    @property
    def number(self) -> int:
        """The inode number, which the sender of a file cannot predict; it does not change as the file grows."""
        return os.fstat(self._fd).st_ino

    def read(self) -> Iterator[bytes]:
        """Yield the lines of the file with their line ends; the last one may lack it."""
        with open(self._fd, "rb", closefd=False) as f:
            f.seek(0)
            yield from lines(f, self.path)

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes."""
        os.ftruncate(self._fd, size)

    def append(self, lines: bytes) -> None:
        """Write lines and make them durable; on StorageError none of them is written."""
        before = self.size
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as e:
            with suppress(OSError):
                os.ftruncate(self._fd, before)
            raise refused(e, self.path) from e

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
