"""Our own files: opened without following what somebody else may have put in their place, and locked while we run.

A checkpoint's folder may come from an attacker, and the names of our temporary files are predictable: a link, a pipe or
a forged file may be where ours should be. Whoever only supplies files knows neither the inode number that a file gets
here nor the time of its creation: by these a note (publish.py) and a temporary folder prove that they are ours.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from stat import S_IMODE, S_ISDIR, S_ISGID, S_ISREG

from ..errors import StorageError, UsageError
from ..storage.paths import is_remote, local
from . import acl

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
MARKER = ".ckptconv"
PATIENCE = 60.0  # seconds; a publication takes milliseconds
Identity = list[int]  # device, number, and for a file the time of its last change in ns


def open_file(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file of ours; OSError for a link, pipe, device, another user's file, or one with a second name."""
    fd = os.open(path, flags & ~os.O_TRUNC | NOFOLLOW, mode)
    try:
        found = os.fstat(fd)
        if not S_ISREG(found.st_mode):
            raise _not_ours(path, "is not a regular file")
        if found.st_nlink > 1:
            raise _not_ours(path, "has a second name (a hard link)")
        if not _owned(found, path):
            raise _not_ours(path, "belongs to another user")
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def share_of_open_files() -> int:
    """How many files of one output may be open: a part of the limit, as sources are, and what is read back."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // 8


def _not_ours(path: str, why: str) -> OSError:
    return OSError(errno.EPERM, f"{why}: a file of ckptconv belongs here; move it away", path)


def _owned(found: os.stat_result, path: str) -> bool:
    """Whether it belongs to this user; some file systems give every file to one user, whoever makes it."""
    if not hasattr(os, "geteuid") or found.st_uid == os.geteuid():
        return True
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(path) or ".") as probe:
            return os.fstat(probe.fileno()).st_uid == found.st_uid
    except OSError:
        return False


def is_folder(path: str) -> bool:
    """Whether it is a real folder of this user, neither a link nor a mount."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return S_ISDIR(found.st_mode) and _owned(found, path) and not os.path.ismount(path)


def is_file(path: str) -> bool:
    """Whether it is a regular file, not a link."""
    try:
        return S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def group(folders: Iterable[str]) -> int:
    """The group of new files in these folders, which may have to be made yet; -1 if it is not one."""
    found = set[int]()
    for folder in folders if hasattr(os, "getegid") else ():
        while folder and not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        there = os.stat(folder or ".")
        found.add(there.st_gid if there.st_mode & S_ISGID or sys.platform == "darwin" else os.getegid())
    return found.pop() if len(found) == 1 else -1


def audience(found: os.stat_result, gid: int, listed: bytes = b"") -> int:
    """All permissions, in a file of this group, of those who may read what was found, its owner always.

    Of another group neither are the members known to be those of this one, nor the others: both may read, or neither.
    listed: its access control list.
    """
    readers = acl.readers(found.st_mode, listed)
    if found.st_gid != gid and readers != 0o044:
        readers = 0
    return 0o700 | (0o070 if readers & 0o040 else 0) | (0o007 if readers & 0o004 else 0)


def of_folder(mode: int) -> int:
    """The permissions of a folder of files that have these: who may read them may enter it, and its owner always."""
    return 0o700 | mode | (mode & 0o044) >> 2


def restrict(fd: int, mode: int, *, new: bool = False) -> None:
    """Take from an open file or folder of ours what goes beyond these permissions.

    A stranger may have laid it open, or the folder in which it was made gives each file a list of users, or a mode. To
    a `new` one some file systems give permissions to execute that they do not take back, and which open nothing.
    """
    if not mode & 0o004 and acl.drop(fd):
        mode, new = mode & 0o755, False  # the group had the mask of the list, which has no umask
    found = S_IMODE(os.fstat(fd).st_mode)
    if found & ~mode & (0o066 if new else 0o777):
        os.chmod(fd, found & (mode | 0o7000))


def shared(urls: Iterable[str], *folders: str) -> int:
    """The permissions that those who may read all local files of these may have in local folders."""
    mode, gid = 0o777, group({local(folder) for folder in folders})
    for url in urls:
        try:
            mode &= 0o777 if is_remote(url) else audience(os.stat(local(url)), gid, acl.of(local(url)))
        except OSError:
            continue  # it is gone: reading it will say so
    return mode


def refuse_source(path: str, urls: Iterable[str]) -> None:
    """UsageError if `path`, where a page or a proposal is to be written, is one of the files that it is made from."""
    if not is_remote(path) and os.path.realpath(local(path)) in {
        os.path.realpath(local(url)) for url in urls if not is_remote(url)
    }:
        raise UsageError(f"{path!r} is read here, and would be replaced by what is said of it; give another name")


def make_folder(path: str) -> None:
    """Make a folder of ours that may be there already; OSError for a link or another user's folder in its place."""
    os.makedirs(path, exist_ok=True)
    if not is_folder(path):
        raise _not_ours(path, "is a link or belongs to another user")


def mark(folder: str) -> None:
    """Put a file into a new temporary folder, by which a later run recognises it as ours."""
    found = os.lstat(folder)
    with os.fdopen(open_file(os.path.join(folder, MARKER), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
        f.write(b"%d %d\n" % (found.st_dev, found.st_ino))


def unmark(folder: str) -> None:
    """Remove that file: the folder becomes the output."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, MARKER))


def is_marked(folder: str) -> bool:
    """Whether it is a temporary folder that we made and not a stranger, or an empty one."""
    if not is_folder(folder):
        return False
    try:
        if not os.listdir(folder):
            return True
        with os.fdopen(open_file(os.path.join(folder, MARKER), os.O_RDONLY), "rb") as f:
            found = os.lstat(folder)
            return f.read(100) == b"%d %d\n" % (found.st_dev, found.st_ino)
    except OSError:
        return False


def identity(path: str) -> Identity:
    """What nobody can predict of a file: its inode number and, unless it is a folder, the time of its last change."""
    found = os.lstat(path)
    return [found.st_dev, found.st_ino, *([] if S_ISDIR(found.st_mode) else [found.st_ctime_ns])]


# --- locks ------------------------------------------------------------------------------------------------------


def lock(fd: int) -> bool:
    """Mark an open file as in use until it is closed or the process ends; False if another process has it.

    OSError where the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # no locks on this system: what killed runs leave is left
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def alone(folder: str) -> Iterator[None]:
    """Wait until no other run publishes in this folder; StorageError if it is still locked after `PATIENCE` seconds.

    Whoever may list the folder can lock it.
    """
    if os.name == "nt":  # it opens no folders
        yield
        return
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            end = time.monotonic() + PATIENCE
            while not lock(fd):
                if time.monotonic() > end:
                    raise StorageError(f"another process has kept it locked for {PATIENCE:.0f} seconds", url=folder)
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def lock_folder(folder: str) -> int:
    """Open and lock a temporary folder, where there are locks; -1 if a run that clears litter was faster.

    OSError for a link or another user's folder in its place.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _owned(os.fstat(fd), folder):
            raise _not_ours(folder, "belongs to another user")
        try:
            locked = lock(fd)
        except OSError:  # some network file systems have no locks
            return fd
        if locked and os.path.samestat(os.stat(folder), os.fstat(fd)):
            return fd
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1


def remove_tree(folder: str) -> None:
    """Remove a folder of ours with all that is in it; of a pipe in its place `rmtree` would wait for a writer."""
    if is_folder(folder):
        shutil.rmtree(folder, ignore_errors=True)


def remove(path: str) -> bool:
    """Remove a temporary folder or file, locked meanwhile; False if a living run has it, or if it is not ours."""
    try:
        fd = os.open(path, os.O_RDONLY | NOFOLLOW)
    except OSError:
        return False
    try:
        if not (is_folder(path) or is_file(path)) or not _owned(os.fstat(fd), path) or not lock(fd):
            return False
        if is_folder(path):
            remove_tree(path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)
        return True
    except OSError:  # no locks here: nobody knows whether its run lives
        return False
    finally:
        os.close(fd)
