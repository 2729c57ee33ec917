"""The only module that touches bytes: local files by positioned reads and writes, all else through remote.py.

Reading:  `peek(url)` looks once at what detection needs; `Reader` reads ranges, checked against the file's size.
Writing:  `Output` fills temporary files beside the destination and publishes them whole or not at all.

Payload is never mapped into memory: a file that shrinks under a mapping kills the process (SIGBUS).
"""

from __future__ import annotations

import errno
import io
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from . import publish, remote
from .errors import CorruptCheckpoint, StorageError, UnsafeCheckpoint, printable
from .publish import Publication
from .remote import Stat, filesystem, is_remote, refused

if TYPE_CHECKING:
    from collections.abc import Buffer

OPEN = 256  # files of an output whose descriptors are kept open
PEEK = 4096  # bytes of a file's head and tail that detection sees


# --- names -----------------------------------------------------------------------------------------------------


def local(url: str) -> str:
    """The file-system path of a local url."""
    return url.removeprefix("file://")


def split(url: str) -> tuple[str, str]:
    """Split into folder and base name; the folder of a bare name is '.'."""
    if is_remote(url):
        head, _, base = url.rpartition("/")
        return head, base
    head, base = os.path.split(local(url))
    return head or ".", base


def join(folder: str, *names: str) -> str:
    return "/".join([folder.rstrip("/"), *names]) if is_remote(folder) else os.path.join(local(folder), *names)


def sibling(url: str, name: str) -> str:
    """The file `name`, as a checkpoint's index spells it, in the folder of `url`; nothing outside that folder.

    A symlink may leave the folder only the way the Hugging Face cache does it: snapshots/REV/name -> ../../blobs/HASH.
    """
    folder, _ = split(url)
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0"):
        raise UnsafeCheckpoint(f"names the file {printable(name)!r}, which is not a plain name beside it", url=url)
    path = join(folder, name)
    if not is_remote(url) and os.path.islink(path):
        home, target = os.path.realpath(folder), os.path.realpath(path)
        inside = os.path.dirname(target) == home
        cache = os.path.dirname(os.path.dirname(home))
        cached = os.path.basename(os.path.dirname(home)) == "snapshots"
        blob = cached and os.path.dirname(target) == join(cache, "blobs")
        # what the user named may itself be a link; its neighbours are then those of the link's target as well
        beside = not os.path.isdir(url) and os.path.dirname(os.path.realpath(local(url))) == os.path.dirname(target)
        if not (inside or blob or beside):
            raise UnsafeCheckpoint(f"{printable(name)} is a symlink that leaves the checkpoint's folder", url=url)
    return path


# --- looking ----------------------------------------------------------------------------------------------------


def exists(url: str) -> bool:
    if is_remote(url):
        return remote.info(url) is not None
    return os.path.lexists(local(url))


def is_dir(url: str) -> bool:
    if is_remote(url):
        return remote.is_dir(url)
    return os.path.isdir(local(url))


def walk(folder: str) -> Iterator[tuple[str, list[str], dict[str, Stat]]]:
    """Each folder below (and with) this one: its url, its folders' names and its files; sorted, the outer one first.

    Removing a name from the list of folders leaves that folder out. Links to folders are not followed.
    """
    if is_remote(folder):
        yield from remote.walk(folder)
        return
    folders, files = [], {}
    try:
        with os.scandir(local(folder)) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file():
                    status = entry.stat()
                    files[entry.name] = Stat(status.st_size, status.st_mtime_ns)
    except OSError as e:
        raise refused(e, folder) from e
    yield folder, folders, files
    for name in folders:
        yield from walk(join(folder, name))


def stat(url: str) -> Stat | None:
    """Size and time of a file, or None if there is none."""
    if is_remote(url):
        return remote.stat(url)
    try:
        status = os.stat(local(url))
    except OSError:
        return None
    return Stat(status.st_size, status.st_mtime_ns)


def names(folder: str) -> list[str]:
    """Names of the files and folders in a folder, sorted; none where there is no such folder."""
    try:
        if is_remote(folder):
            return remote.names(folder)
        return sorted(os.listdir(local(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise refused(e, folder) from e


class Seen:
    """What a format may look at to recognise a checkpoint: read once, shared by all formats.

    head, tail: the first and last `PEEK` bytes of a file (empty for a folder or a prefix that is no file);
    files: names in the folder (the url is one) or beside it that begin with its base name; size: -1 if no file.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder, self.base = split(url.rstrip("/") if len(url) > 1 else url)
        self.is_dir = is_dir(url)
        self.size, self.head, self.tail = -1, b"", b""
        if not self.is_dir and exists(url):
            with Reader(url) as f:
                self.size = f.size
                self.head = f.read(0, min(PEEK, f.size))
                self.tail = f.read(max(0, f.size - PEEK), min(PEEK, f.size))

    @cached_property
    def files(self) -> list[str]:
        """Listed only when a format asks: a folder of a thousand checkpoints is then not listed a thousand times."""
        if self.is_dir:
            return names(self.url)
        return [n for n in names(self.folder) if n.startswith(self.base)]

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Names in the central directory if this is a zip, else ()."""
        if not (self.head.startswith(b"PK") or b"PK\x05\x06" in self.tail):
            return ()
        try:
            with fileobj(self.url) as f, zipfile.ZipFile(f) as z:
                return tuple(z.namelist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError):
            return ()


# --- reading ----------------------------------------------------------------------------------------------------


class Reader:
    """Positioned, checked reads of one file; safe to share between threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fd = -1
        self.far: remote.File | None = None
        self.stamp: tuple[int, ...]
        if is_remote(url):
            self.far = remote.File(url)
            self.size, self.stamp = self.far.size, self.far.stamp
            return
        try:
            self._fd = os.open(local(url), os.O_RDONLY | getattr(os, "O_BINARY", 0))
            status = os.fstat(self._fd)
            if os.path.isdir(local(url)):
                raise IsADirectoryError(errno.EISDIR, "is a folder, a file is needed", url)
            self.size = status.st_size
            self.stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        except OSError as e:
            self.close()
            raise refused(e, url) from e

    def read(self, start: int, size: int) -> bytes:
        """Read exactly `size` bytes at `start`; CorruptCheckpoint if the file does not hold them."""
        self._check(start, size)
        if self.far is not None:
            return self.far.read(start, size)
        return self._os(lambda at: os.pread(self._fd, size - at, start + at), size)

    def into(self, start: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `start`."""
        self._check(start, len(view))
        if self.far is not None:
            self.far.into(start, view)
            return
        at = 0
        while at < len(view):
            try:
                n = os.preadv(self._fd, [view[at:]], start + at)
            except OSError as e:
                raise refused(e, self.url) from e
            if n == 0:
                raise CorruptCheckpoint(f"ends at byte {start + at}, it shrank while it was read", url=self.url)
            at += n

    def _check(self, start: int, size: int) -> None:
        if start < 0 or size < 0 or start + size > self.size:
            raise CorruptCheckpoint(
                f"bytes {start} to {start + size} are needed but the file has {self.size} (truncated?)", url=self.url
            )

    def _os(self, read: Any, size: int) -> bytes:
        pieces, got = [], 0
        while got < size:
            try:
                piece = read(got)
            except OSError as e:
                raise refused(e, self.url) from e
            if not piece:
                raise CorruptCheckpoint("shrank while it was read", url=self.url)
            pieces.append(piece)
            got += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_all(url: str, limit: int) -> bytes:
    """Read a small file whole; CorruptCheckpoint if it is larger than `limit` bytes."""
    with Reader(url) as f:
        if f.size > limit:
            raise CorruptCheckpoint(f"has {f.size} bytes, at most {limit} are sensible here", url=url)
        return f.read(0, f.size)


@contextmanager
def fileobj(url: str) -> Iterator[IO[bytes]]:
    """Open for libraries that want a seekable file object (zipfile)."""
    if is_remote(url):
        with Reader(url) as reader:
            yield io.BufferedReader(_Raw(reader), 2**16)
        return
    try:
        handle = open(local(url), "rb")  # noqa: SIM115 - closed below
    except OSError as e:
        raise refused(e, url) from e
    try:
        yield handle
    finally:
        handle.close()


class _Raw(io.RawIOBase):
    """A reader as a file object."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._at = reader, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._reader.size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: max(0, min(len(view), self._reader.size - self._at))]
        self._reader.into(self._at, view)
        self._at += len(view)
        return len(view)


# --- writing ----------------------------------------------------------------------------------------------------


class File(NamedTuple):
    """One file of an output: its name relative to the destination's folder, and its final size in bytes.

    `shared`: the checkpoints of a folder have it in common; it is replaced without --force.
    """

    name: str
    size: int
    shared: bool = False


class Output:
    """Temporary files beside the destination, filled by positioned writes, published together (publish.py says how).

    A destination that is a folder of its own is built whole under a temporary name if it is not there yet, or if it
    has no index (`unit`). `stale`: a pattern of names that belong to an older checkpoint of this name.

    With a `mark` their names can be found again: they stay when the run fails (journal.py goes on from them). `kept`:
    an earlier run filled them, in part; `whole`: it filled them all and began to rename them.
    """

    def __init__(
        self, folder: str, files: Sequence[File], *, force: bool = False, mark: str = "", kept: bool = False,
        whole: bool = False, stale: str = "", unit: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.force = local(folder), force
        self._final = {f.name: os.path.join(self.folder, f.name) for f in files}
        self._own = [f.name for f in files if not f.shared]
        self._stale = re.compile(stale) if stale else None
        self._mark, self._stays, self._kept, self._whole = mark or os.urandom(4).hex(), bool(mark), kept, whole
        self._fds: dict[str, int] = {}
        self._ready: list[str] = []  # files that are there to be written and renamed
        self._few = len(files) <= OPEN
        self._made: list[str] = []
        self._lock = -1
        self.cleared = self._clear()
        self._free()
        self._stage = self._staged(unit)
        try:
            for f in files:
                self.create(f)
        except BaseException:
            self.discard()
            raise

    def _clear(self) -> list[str]:
        """Finish or remove what killed runs left at this destination; returns names of what it was."""
        if not self._own or not os.path.isdir(self.folder or "."):
            return []
        try:
            with publish.alone(self.folder):
                left = publish.finish(self.folder, self._title(), self._ours)
            for at, names in self._by_folder().items():
                left += publish.clear(at, names, self.part)
        except OSError as e:
            raise refused(e, self.folder) from e
        return left

    def _title(self) -> str:
        """What a note of this output is called by: its index, or its folder."""
        return self._own[-1].split("/")[0]

    def _by_folder(self) -> dict[str, list[str]]:
        """The base names in each folder of the output, and the folder's own in the one around it."""
        out: dict[str, list[str]] = {}
        for path in self._final.values():
            at, base = os.path.split(path)
            out.setdefault(at, []).append(base)
        for at in [a for a in out if a != self.folder]:
            above, base = os.path.split(at)
            out.setdefault(above, []).append(base)
        return out

    def _ours(self, name: str) -> bool:
        """Whether a name, relative to the folder, belongs to this checkpoint or an older one of its name."""
        top = {n.split("/")[0] for n in self._own if "/" in n}
        return name in self._final or name in top or bool(self._stale and self._stale.fullmatch(name))

    def _free(self) -> None:
        """Refuse, before any work, a destination that is taken."""
        if self.force or self._whole:
            return
        taken = [p for n in self._own if os.path.lexists(p := self._final[n])]
        if taken:
            raise StorageError("already exists; --force replaces it", url=taken[0])
        if older := self._older():
            where = os.path.join(self.folder, older[0])
            raise StorageError("belongs to a checkpoint of the same name; --force replaces it", url=where)

    def _staged(self, unit: bool) -> str:
        """The folder that is built under a temporary name, or ''."""
        tops = {n.split("/")[0] if n.count("/") == 1 else "" for n in self._final}
        top = tops.pop() if len(tops) == 1 else ""
        path = os.path.join(self.folder, top)
        if not top or self._mark == "" or self._stays:
            return ""
        there = os.path.lexists(path)
        if there and (not unit or os.path.islink(path) or not os.path.isdir(path) or os.path.ismount(path)):
            return ""
        return top

    def temporary(self, name: str) -> str:
        """The path that file `name` has until it is published."""
        if self._stage:
            return os.path.join(self.folder, self.part(self._stage, self._mark), os.path.basename(name))
        folder, base = os.path.split(self._final[name])
        return os.path.join(folder, self.part(base, self._mark))

    @staticmethod
    def part(base: str, mark: str) -> str:
        """The name of a temporary file; long names are cut and told apart by a checksum."""
        base = base if len(base) <= 200 else f"{base[:180]}-{crc32(base.encode('utf-8', 'surrogateescape')):08x}"
        return f".{base}.{mark}.part"

    def create(self, f: File) -> None:
        path = self.temporary(f.name)
        if self._whole and not os.path.lexists(path):
            return  # renamed already
        try:
            self._folders(os.path.dirname(path))
            how = 0 if self._kept else os.O_TRUNC if self._stays else os.O_EXCL
            how |= getattr(os, "O_NOFOLLOW", 0)  # a name that can be foretold may be a link somebody laid out
            fd = self._opened(path, os.O_RDWR | os.O_CREAT | how | getattr(os, "O_BINARY", 0))
            self._fds[f.name] = fd
            self._ready.append(f.name)
            if f.size and not self._whole:
                self._reserve(fd, f.size)
            if not self._few:
                if self._lock < 0:
                    self._lock = os.dup(fd)
                os.close(self._fds.pop(f.name))
        except OSError as e:
            raise refused(e, path) from e

    def _opened(self, path: str, how: int) -> int:
        """Open and lock; once more if a run that clears litter came between the two."""
        fd = os.open(path, how, 0o666)
        if not self._stays and not (publish.lock(fd) and os.fstat(fd).st_nlink):
            os.close(fd)
            _quietly(os.unlink, path)
            fd = os.open(path, how, 0o666)
            publish.lock(fd)
        return fd

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

    @staticmethod
    def _reserve(fd: int, size: int) -> None:
        """Fail now rather than half-way when the disk is too small."""
        space = os.fstatvfs(fd)
        if space.f_bavail * space.f_frsize < size - os.fstat(fd).st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, size)

    def write(self, name: str, start: int, data: Buffer) -> None:
        with self._open(name) as fd:
            _write(fd, start, data, self._final[name])

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        """The descriptor of a file; of very many files none is kept open."""
        if name in self._fds:
            yield self._fds[name]
            return
        fd = os.open(self.temporary(name), os.O_RDWR | getattr(os, "O_BINARY", 0))
        try:
            yield fd
        finally:
            os.close(fd)

    def hurry(self, name: str, start: int, size: int) -> None:
        """Begin to bring a finished range to the disk, so that `publish` has less to wait for.

        The advice starts the write-back at once and drops only clean pages: those just written stay in memory.
        """
        if name in self._fds and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fds[name], start, size, os.POSIX_FADV_DONTNEED)

    def paths(self) -> dict[str, str]:
        """Where each file is until it is published."""
        return {name: os.path.abspath(self.temporary(name)) for name in self._final}

    def __reduce__(self) -> tuple[object, ...]:
        """What arrives in another process only writes."""
        return Paths, (self.paths(),)

    def settle(self) -> None:
        """Make durable what was written so far."""
        try:
            for name in self._ready:
                with self._open(name) as fd:
                    os.fsync(fd)
        except OSError as e:
            raise refused(e, self.folder) from e

    def publish(self, *, sync: bool = True) -> None:
        """Make all files durable, then bring them under their names: all, or after a kill all by the next run."""
        if sync:
            self.settle()
        try:
            with publish.alone(self.folder):
                self._free()
                self._rename(sync)
        except OSError as e:
            raise refused(e, self.folder) from e
        self.close()
        self._made = []

    def _rename(self, sync: bool) -> None:
        if os.name == "nt":
            self.close()  # it renames no open files
        todo = self._todo()
        several = len(todo.first) + len(todo.moves) + len(todo.last) > 1
        if (several or self._stage) and not self._stays:
            with publish.noted(self.folder, self._title(), self._mark, todo):
                publish.perform(self.folder, todo, self._ours)
                self._sync(sync)
        else:
            publish.perform(self.folder, todo, self._ours)
            self._sync(sync)
        self._ready = []

    def _todo(self) -> Publication:
        """Where files are replaced under their own names, the old index goes first; older files go last."""
        older = tuple(self._older()) if self.force else ()
        if self._stage:
            return Publication((), ((self.part(self._stage, self._mark), self._stage),), ())
        moves = tuple((os.path.relpath(self.temporary(n), self.folder or "."), n) for n in self._ready)
        index = self._own[-1] if self._own else ""
        replaced = any(n != index and os.path.lexists(self._final[n]) for n in self._ready if n in self._own)
        first = (index,) if replaced and index in self._ready and os.path.lexists(self._final[index]) else ()
        return Publication(first, moves, older)

    def _sync(self, sync: bool) -> None:
        if sync:
            for folder in {os.path.dirname(p) for p in self._final.values()} | {self.folder}:
                publish.sync(folder)

    def _older(self) -> list[str]:
        """Names, relative to the destination's folder, that match the pattern and are not written now."""
        if not self._stale:
            return []
        folders = sorted({os.path.dirname(name) for name in self._final})
        here = [os.path.join(f, old) for f in folders for old in names(os.path.join(self.folder, f))]
        return [old for old in here if self._stale.fullmatch(old) and old not in self._final]

    def close(self) -> None:
        """Close what is open."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove every trace (but what a later run is to find); the destination stays as it was."""
        if not self._stays:
            for name in self._final:
                _quietly(os.unlink, self.temporary(name))
        self.close()
        for path in reversed(self._made) if not self._stays else ():
            _quietly(os.rmdir, path)

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
            try:
                self._fds[name] = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
            except OSError as e:
                raise refused(e, path) from e
        _write(self._fds[name], start, data, path)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}


def _write(fd: int, start: int, data: Buffer, path: str) -> None:
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        try:
            at += os.pwrite(fd, view[at:], start + at)
        except OSError as e:
            raise refused(e, path) from e


def _quietly(do: Any, path: str) -> None:
    try:
        do(path)
    except OSError:
        pass


__all__ = [
    "File", "Output", "Paths", "Reader", "Seen", "Stat", "exists", "fileobj", "filesystem", "is_dir", "is_remote",
    "join", "local", "names", "read_all", "refused", "sibling", "split", "stat", "walk",
]  # fmt: skip
