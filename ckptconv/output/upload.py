"""Write to a remote folder: an object never appears in part, and the index comes last.

Object stores cannot write at positions, and a checkpoint's header is known last. If a store takes parts of an object in
any order, tensors are sent while they are written, and only the rest of a file is kept in the temporary folder
(TMPDIR). For other stores the files are built there. If one fails, those already sent are removed.

A repository of the Hub gets all files of an output in one commit. Its client sends the content of large files first,
and the commit names them; files that a failed run has sent are in no commit, so they are invisible.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..errors import CkptError, StorageError
from ..messages import many, redacted, version
from ..storage import lookups
from ..storage.faults import spooling, translate_errors
from ..storage.files import join, names
from ..storage.lookups import filesystem
from ..storage.paths import is_http, is_repository
from .destination import OutputFile, beginnings, check_replaced, refuse_foreign
from .staging import Output

if TYPE_CHECKING:
    from collections.abc import Buffer

RECENT = 1.0  # seconds for which a listing of the destination counts, since another one is a request


class Upload:
    """The files of one output in a remote folder until they are published, like `Output`.

    tensors: for each file that may be sent before it is complete, the ranges that hold only bytes of tensors.
    """

    cleared: Sequence[str] = ()

    def __init__(
        self, folder: str, files: Sequence[OutputFile], *, force: bool = False, stale: str = "", unit: bool = False,
        tensors: Mapping[str, Sequence[Range]] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.force = folder, force
        self._files, self._stale, self._unit = files, stale, unit
        self._look()
        self._parts = dict[str, Multipart]()
        for f in files:
            url = join(folder, f.name)
            if f.name not in self._kept and (parts := begin(url, f.size, (tensors or {}).get(f.name, ()))):
                self._parts[f.name] = parts
        import tempfile

        with spooling():
            self._stage = tempfile.mkdtemp(prefix="ckptconv-")
        try:
            self._out = Output(self._stage, files, room={name: parts.local for name, parts in self._parts.items()})
        except BaseException:  # an interrupt, too, must not leave a stage
            shutil.rmtree(self._stage, ignore_errors=True)
            raise
        self.paths, self.unpublished = self._out.paths, self._out.unpublished

    def _look(self) -> None:
        """List the destination, and refuse to replace or remove files that must stay."""
        names = [f.name for f in self._files]
        self._looked, self._there = time.monotonic(), _present(self.folder, names, self._unit)
        if is_http(self.folder):
            raise StorageError("nothing can be written to a web server", url=self.folder)
        self._kept = {f.name for f in self._files if f.shared and join(self.folder, f.name) in self._there}
        self._new = {join(self.folder, name): name for name in names if name not in self._kept}
        self.removed = _older(self._there, self.folder, names, self._stale)
        self._older = [join(self.folder, name) for name in self.removed]
        taken = [url for url in self._new if url in self._there]
        if self._unit and (self.force or not taken):
            refuse_foreign([redacted(url) for url in self._older], self.folder)
        check_replaced(taken, self._older, force=self.force)

    def write(self, name: str, start: int, data: Buffer) -> None:
        if name not in self._parts:
            self._out.write(name, start, data)
            return
        for at, rest in self._parts[name].write(start, data):
            self._out.write(name, at, rest)

    def __reduce__(self) -> tuple[object, ...]:
        return self._out.__reduce__()

    def start_writeback(self, name: str, start: int, size: int) -> None:
        """Do nothing: the local files are copies and need not be durable."""

    def fsync(self) -> None:
        """Do nothing, for the same reason."""

    def abandon(self) -> None:
        """Do nothing: no file stays for a later run."""

    def publish(self, *, sync: bool = True) -> None:
        """Send all files in order, then remove those of an older checkpoint that were not replaced."""
        self._out.publish(sync=False)
        if time.monotonic() - self._looked > RECENT:
            with lookups.session(lookups=None):
                self._look()
        sent = {url: os.path.join(self._stage, name) for url, name in self._new.items()}
        if is_repository(self.folder):
            _commit(sent, self._older)
            return
        try:
            for url, name in self._new.items():
                if parts := self._parts.get(name):
                    parts.finish(sent[url])
                else:
                    put_file(sent[url], url)
                os.unlink(sent[url])
        except BaseException:  # an interrupt, too, must not leave half a checkpoint
            for url, path in sent.items():
                if url not in self._there and not os.path.lexists(path):
                    with suppress(CkptError):
                        _remove(url)
            raise
        for url in self._older:
            _remove(url)

    def close(self) -> None:
        """Remove the local files, and the parts of objects that were not completed."""
        self._out.close()
        for parts in self._parts.values():
            parts.abort()
        shutil.rmtree(self._stage, ignore_errors=True)


Destination = Output | Upload


def _present(folder: str, files: Sequence[str], unit: bool) -> set[str]:
    """List the urls at the destination whose names begin like those of this output: its own, and older ones."""
    begins = {join(folder, above).rstrip("/"): begin for above, begin in beginnings(files, unit=unit).items()}
    with lookups.session(lookups=None):
        return {join(at, n) for at, begin in begins.items() for n in names(at, begin)}


def _older(there: Iterable[str], folder: str, files: Sequence[str], stale: str) -> list[str]:
    """Return the names of those urls that belong to an older output of this name and are not written now."""
    names = [url[len(folder.rstrip("/")) + 1 :] for url in sorted(there)] if stale else []
    return [name for name in names if name not in files and re.fullmatch(stale, name)]


def older(folder: str, files: Sequence[str], stale: str) -> list[str]:
    """List the files in a remote folder that an output of these files would remove."""
    return _older(_present(folder, files, False) if stale else (), folder, files, stale)


def put_file(path: str, url: str) -> None:
    """Send a file, a large one in parts (the file system's own multipart); it never appears incomplete."""
    fs, where = filesystem(url)
    lookups.forget()
    with translate_errors(url):
        fs.put_file(path, where)


def _remove(url: str) -> None:
    fs, where = filesystem(url)
    lookups.forget()
    with translate_errors(url):
        fs.rm_file(where)


def _commit(files: Mapping[str, str], older: Sequence[str]) -> None:
    """Add local files by their urls (url to path), and delete the `older` urls, in one commit of their repository.

    StorageError if there is no such repository or branch: none is created, since only its owner knows who may see it.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    first = next(iter(files))
    lookups.forget()
    fs, _ = filesystem(first)
    with translate_errors(first):
        try:
            places = {url: fs.resolve_path(url.removeprefix("hf://")) for url in (*files, *older)}
        except FileNotFoundError as e:
            raise StorageError("no such repository or branch; `hf repo create ORG/REPO` makes one", url=first) from e
        repo = places[first]
        HfApi(endpoint=fs.endpoint, token=fs.token).create_commit(
            repo.repo_id,
            [
                *(CommitOperationAdd(places[url].path_in_repo, path) for url, path in files.items()),
                *(CommitOperationDelete(places[url].path_in_repo) for url in older),
            ],
            commit_message=f"Upload {many(len(files), 'file')} with ckptconv {version()}",
            repo_type=repo.repo_type,
            revision=repo.revision,
        )


# --- objects that are sent in parts -----------------------------------------------------------------------------------
#
#   upload = begin(url, size, tensors)      None if the store takes no parts, or the object is small
#   rest = upload.write(start, data)        returns the bytes for the local file; full parts are sent
#   upload.finish(path)                     sends what the local file holds, then completes the object
#
# A part that holds only bytes of tensors is sent from memory as soon as it is full. All others (headers, directories,
# the end of the file) wait in a local file with holes, since they can change until the output is sealed.

PART = 5 * 2**20  # bytes, the minimum of S3; every writer and sender holds one or two in memory
MOST = 9_000  # parts of an object; S3 takes 10,000, and a file may grow when it is sealed
COMPOSED = 32  # objects that Google's store composes at a time
SENDERS = 3  # parts of the local file that are sent at once

Range = tuple[int, int]  # the first byte, and the one after the last


class S3:
    """A multipart upload to a store with S3's protocol, through s3fs, with its credentials and retries."""

    def __init__(self, url: str) -> None:
        fs, path = filesystem(url)
        bucket, key, _ = fs.split_path(path)
        self._url, self._call, self._at = url, fs.call_s3, {"Bucket": bucket, "Key": key}
        self._id = str(self._ask("create_multipart_upload")["UploadId"])

    def _ask(self, method: str, **given: Any) -> dict[str, Any]:
        with translate_errors(self._url):
            answer: dict[str, Any] = self._call(method, **self._at, **given)
            return answer

    def send(self, number: int, data: bytes | bytearray) -> str:
        """Send a part, counted from 1, and return its ETag."""
        return str(self._ask("upload_part", UploadId=self._id, PartNumber=number, Body=data)["ETag"])

    def complete(self, tags: Sequence[str]) -> None:
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
        self._ask("complete_multipart_upload", UploadId=self._id, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        self._ask("abort_multipart_upload", UploadId=self._id)


class GCS:
    """Objects that Google's store composes, 32 at a time, in a folder `.NAME.ckptconv-...`, which readers skip.

    A kill leaves them there.
    """

    def __init__(self, url: str) -> None:
        self._fs, self._path = filesystem(url)
        above, _, base = self._path.rpartition("/")
        self._url, self._home = url, f"{above}/.{base}.ckptconv-{uuid4().hex}"
        self._made: list[str] = []  # appended to by all threads

    def send(self, number: int, data: bytes | bytearray) -> str:
        where = f"{self._home}/{number:05}"
        self._made.append(where)
        with translate_errors(self._url):
            self._fs.pipe_file(where, bytes(data), consistency="md5")
        return where

    def complete(self, tags: Sequence[str]) -> None:
        level, names = [*tags], (f"{self._home}/some-{n:05}" for n in count())
        while len(level) > COMPOSED:
            groups = [level[k : k + COMPOSED] for k in range(0, len(level), COMPOSED)]
            level = [self._composed(next(names), group) for group in groups]
        self._composed(self._path, level)
        with suppress(CkptError):  # the object is there
            self.abort()

    def _composed(self, where: str, some: Sequence[str]) -> str:
        if where != self._path:
            self._made.append(where)
        with translate_errors(self._url):
            self._fs.merge(where, [*some])
        return where

    def abort(self) -> None:
        for where in self._made:
            with suppress(CkptError), translate_errors(self._url):
                self._fs.rm_file(where)


Sender = S3 | GCS
STORES: dict[str, Callable[[str], Sender]] = {"s3": S3, "s3a": S3, "gs": GCS, "gcs": GCS}


@dataclass
class _Part:
    """A part that is being filled: its bytes, and the ranges and number of bytes written so far."""

    data: bytearray
    ranges: list[Range] = field(default_factory=list)
    count: int = 0


class Multipart:
    """One object that is sent in parts. `size`: its bytes; `tensors`: the ranges that hold bytes of tensors only.

    Any number of threads write. The one that fills a part sends it, so that no more parts wait than threads write.
    """

    def __init__(self, url: str, size: int, tensors: Iterable[Range], store: Callable[[str], Sender]) -> None:
        self._url, self._store, self._size = url, store, size
        self._part = PART * -(-size // (PART * MOST))
        self._direct = frozenset(_inside(tensors, self._part, last=(size - 1) // self._part))
        self._open: dict[int, _Part] = {}
        self._tags: dict[int, str] = {}
        self._upload: Sender | None = None
        self._lock = threading.Lock()

    @property
    def local(self) -> int:
        """The bytes that the local file takes."""
        return self._size - len(self._direct) * self._part

    def write(self, start: int, data: Buffer) -> Iterator[tuple[int, memoryview]]:
        """Take bytes at a position; yield those that belong in the local file, with their position."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            number, inner = divmod(start + at, self._part)
            piece = view[at : at + self._part - inner]
            if number in self._direct:
                self._fill(number, inner, piece)
            else:
                yield start + at, piece
            at += len(piece)

    def _fill(self, number: int, inner: int, piece: memoryview) -> None:
        with self._lock:
            if number in self._tags:
                raise StorageError("bytes that are sent already would change", url=self._url)
            part = self._open.setdefault(number, _Part(bytearray(self._part)))
        part.data[inner : inner + len(piece)] = piece
        with self._lock:
            part.ranges.append((inner, inner + len(piece)))
            part.count += len(piece)
            if part.count < self._part:
                return
            if any(hi != lo for (_, hi), (lo, _) in pairwise(sorted(part.ranges))):  # so others are missing
                raise StorageError("some bytes were written twice", url=self._url)
            del self._open[number]
        self._send(number, part.data)

    def _send(self, number: int, data: bytes | bytearray) -> None:
        with self._lock:
            if self._upload is None:
                self._upload = self._store(self._url)
        tag = self._upload.send(number + 1, data)
        with self._lock:
            self._tags[number] = tag

    def finish(self, path: str) -> None:
        """Send the parts that only the local file has, then complete the object."""
        if self._open or len(self._tags) < len(self._direct):
            raise StorageError("not all of the tensors' bytes were written", url=self._url)
        size = os.stat(path).st_size
        rest = [n for n in range(-(-size // self._part)) if n not in self._tags]
        with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(SENDERS) as pool:
            fd = file.fileno()
            for _ in pool.map(lambda n: self._send(n, _read(fd, n * self._part, self._part)), rest):
                pass
        if self._upload is not None:
            lookups.forget()
            self._upload.complete([self._tags[n] for n in range(len(self._tags))])
            self._upload = None

    def abort(self) -> None:
        """Discard the sent parts, unless the object is complete."""
        if self._upload is not None:
            with suppress(CkptError):
                self._upload.abort()
            self._upload = None


def begin(url: str, size: int, tensors: Iterable[Range]) -> Multipart | None:
    """Begin a multipart upload if the store is known to have them and the object is large enough, else None."""
    store = STORES.get(url.partition("://")[0])
    return Multipart(url, size, tensors, store) if store and size > 2 * PART else None


def _inside(ranges: Iterable[Range], part: int, last: int) -> Iterator[int]:
    """Yield the numbers of the parts that ranges fill; never the last, since a file may still grow."""
    start = end = 0
    for lo, hi in (*sorted(ranges), (1 << 63, 1 << 63)):
        if lo > end:
            yield from range(-(-start // part), min(end // part, last))
            start = lo
        end = max(end, hi)


def _read(fd: int, start: int, size: int) -> bytes:
    """Read a range; it is shorter at the end of the file."""
    out = bytearray()
    while len(out) < size and (got := os.pread(fd, size - len(out), start + len(out))):
        out += got
    return bytes(out)
