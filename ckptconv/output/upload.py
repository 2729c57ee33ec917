"""Write to a remote folder: every object appears whole or not at all, the index last.

Object stores cannot write at positions, and a checkpoint's header is known last. Where a store takes parts of an object
in any order (multipart.py), tensors are sent while they are written, and only what else a file holds is kept in the
temporary folder (TMPDIR). For other stores the files are built there. If one fails, those already sent are removed.

A repository of the Hub gets all files of an output in one commit. Its client sends the content of large files first,
and the commit names them; what a run that failed has sent is in no commit, and nobody sees it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import CkptError, StorageError
from ..messages import many, redacted, version
from ..storage import lookups
from ..storage.faults import asking, spooling
from ..storage.files import join, names
from ..storage.lookups import filesystem
from ..storage.paths import is_http, is_repository
from .destination import OutputFile, beginnings, check_replaced, refuse_foreign
from .multipart import Multipart, Range, begin
from .staging import Output

if TYPE_CHECKING:
    from collections.abc import Buffer

RECENT = 1.0  # seconds for which what a listing said of the destination is believed: another is a request


class Upload:
    """What `Output` is for a local folder, for a remote one.

    tensors: of each file that may be sent before it is complete, the ranges that hold nothing but bytes of tensors.
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
        except BaseException:  # an interrupt, too, leaves no stage behind
            shutil.rmtree(self._stage, ignore_errors=True)
            raise
        self.paths, self.unpublished = self._out.paths, self._out.unpublished

    def _look(self) -> None:
        """Note what is there now, and refuse to replace or remove what may not be."""
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
        """The files here are copies that nobody needs to be durable."""

    def fsync(self) -> None:
        """Nor these."""

    def abandon(self) -> None:
        """Nothing stays in any case."""

    def publish(self, *, sync: bool = True) -> None:
        """Send all files in order, then remove those of an older checkpoint that are not replaced."""
        self._out.publish(sync=False)
        if time.monotonic() - self._looked > RECENT:
            with lookups.fresh():
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
        except BaseException:  # an interrupt, too, leaves no half of a checkpoint behind
            for url, path in sent.items():
                if url not in self._there and not os.path.lexists(path):
                    with suppress(CkptError):
                        _remove(url)
            raise
        for url in self._older:
            _remove(url)

    def close(self) -> None:
        """Remove what is here, and what was sent of objects that did not appear."""
        self._out.close()
        for parts in self._parts.values():
            parts.abort()
        shutil.rmtree(self._stage, ignore_errors=True)

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Destination = Output | Upload


def _present(folder: str, files: Sequence[str], unit: bool) -> set[str]:
    """What is there now of this output, or of an older one of its name: names that begin as those of its files do."""
    begins = {join(folder, above).rstrip("/"): begin for above, begin in beginnings(files, unit=unit).items()}
    with lookups.fresh():
        return {join(at, n) for at, begin in begins.items() for n in names(at, begin)}


def _older(there: Iterable[str], folder: str, files: Sequence[str], stale: str) -> list[str]:
    """The names of those urls that are of an older output of this name, and that are not written now."""
    names = [url[len(folder.rstrip("/")) + 1 :] for url in sorted(there)] if stale else []
    return [name for name in names if name not in files and re.fullmatch(stale, name)]


def older(folder: str, files: Sequence[str], stale: str) -> list[str]:
    """The names of the files in a remote folder that an output of these files would remove."""
    return _older(_present(folder, files, False) if stale else (), folder, files, stale)


def put_file(path: str, url: str) -> None:
    """Send a file; it appears whole or not at all, in parts if it is large (the file system's own multipart)."""
    fs, where = filesystem(url)
    lookups.forget()
    with asking(url):
        fs.put_file(path, where)


def _remove(url: str) -> None:
    fs, where = filesystem(url)
    lookups.forget()
    with asking(url):
        fs.rm_file(where)


def _commit(files: Mapping[str, str], older: Sequence[str]) -> None:
    """Add local files by their urls (url to path), and delete the `older` urls, in one commit of their repository.

    StorageError if there is no such repository or branch: none is created, since only its owner knows who may see it.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    first = next(iter(files))
    lookups.forget()
    fs, _ = filesystem(first)
    with asking(first):
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
