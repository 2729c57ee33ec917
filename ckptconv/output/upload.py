"""Write to a remote folder: every object appears whole or not at all, the index last.

Object stores cannot write at positions, and a checkpoint's header is known last. Where a store takes parts of an object
in any order (multipart.py), tensors are sent while they are written, and only what else a file holds is kept in the
temporary folder (TMPDIR). For other stores the files are built there. If one fails, those already sent are removed; a
repository of the Hub gets all of them in one commit (hub.py).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import CkptError, StorageError
from ..messages import redacted
from ..storage import lookups
from ..storage.faults import asking, spooling
from ..storage.files import join, names
from ..storage.lookups import filesystem
from ..storage.paths import is_http
from . import hub, multipart, replaceable
from .destination import OutputFile, beginnings, foreign
from .multipart import Range
from .staging import Output

if TYPE_CHECKING:
    from collections.abc import Buffer

RECENT = 1.0  # seconds for which what a listing said of the destination is believed: another is a request


def upload(path: str, url: str) -> None:
    """Send a file; it appears whole or not at all, in parts if it is large (the file system's own multipart)."""
    fs, where = filesystem(url)
    lookups.forget()
    with asking(url):
        fs.put_file(path, where)


def remove(url: str) -> None:
    fs, where = filesystem(url)
    lookups.forget()
    with asking(url):
        fs.rm_file(where)


class Upload:
    """A `Destination` in a remote folder.

    tensors: of each file that may be sent before it is complete, the ranges that hold nothing but bytes of tensors.
    """

    def __init__(
        self, folder: str, files: Sequence[OutputFile], *, force: bool = False, stale: str = "", unit: bool = False,
        tensors: Mapping[str, Sequence[Range]] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.force = folder, force
        self._files, self._stale, self._unit = files, stale, unit
        self._names = [f.name for f in files]
        self._kept = set[str]()
        self._look()
        begun = {f.name: multipart.begin(join(folder, f.name), f.size, (tensors or {}).get(f.name, ())) for f in files}
        self._parts = {name: parts for name, parts in begun.items() if parts and name not in self._kept}
        import tempfile

        with spooling():
            self._stage = tempfile.mkdtemp(prefix="ckptconv-")
        try:
            self._out = Output(self._stage, files, room={name: parts.local for name, parts in self._parts.items()})
        except BaseException:  # an interrupt, too, leaves no stage behind
            self.discard()
            raise

    def _look(self) -> None:
        """Note what is there now, and refuse to replace or remove what may not be."""
        folder, self._looked = self.folder, time.monotonic()
        self._there = _present(folder, self._names, self._unit)
        taken = [url for url in (join(folder, f.name) for f in self._files if not f.shared) if url in self._there]
        if is_http(folder):
            raise StorageError("nothing can be written to a web server", url=folder)
        self._kept |= {f.name for f in self._files if f.shared and join(folder, f.name) in self._there}
        if taken and not self.force:
            raise replaceable.taken("already exists; force=True replaces it", taken[0])
        self._older = _older(self._there, folder, self._names, self._stale)
        if self._older and self._unit:
            raise foreign([redacted(url) for url in self._older], folder)
        if self._older and not self.force:
            raise replaceable.taken("belongs to a checkpoint of the same name; force=True replaces it", self._older[0])
        replaceable.check([*taken, *self._older])

    def write(self, name: str, start: int, data: Buffer) -> None:
        if name not in self._parts:
            self._out.write(name, start, data)
            return
        for at, rest in self._parts[name].write(start, data):
            self._out.write(name, at, rest)

    def paths(self) -> dict[str, str]:
        return self._out.paths()

    def unpublished(self, base: str) -> str:
        return self._out.unpublished(base)

    def close(self) -> None:
        self._out.close()

    def __reduce__(self) -> tuple[object, ...]:
        return self._out.__reduce__()

    @property
    def cleared(self) -> Sequence[str]:
        return ()

    @property
    def removed(self) -> Sequence[str]:
        return [_name(url, self.folder) for url in self._older]

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
        if hub.takes(self.folder):
            new = {join(self.folder, n): os.path.join(self._stage, n) for n in self._names if n not in self._kept}
            hub.commit(new, self._older)
            return
        sent: list[str] = []
        try:
            for name in (n for n in self._names if n not in self._kept):
                url, path = join(self.folder, name), os.path.join(self._stage, name)
                if parts := self._parts.get(name):
                    parts.finish(path)
                else:
                    upload(path, url)
                sent.append(url)
                os.unlink(path)
        except BaseException:  # an interrupt, too, leaves no half of a checkpoint behind
            for url in sent:
                if url not in self._there:
                    _quietly(url)
            raise
        for url in self._older:
            remove(url)

    def discard(self) -> None:
        shutil.rmtree(self._stage, ignore_errors=True)

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_out"):
            self._out.discard()
        for parts in self._parts.values():
            parts.abort()
        self.discard()


def _present(folder: str, files: Sequence[str], unit: bool) -> set[str]:
    """What is there now of this output, or of an older one of its name: names that begin as those of its files do."""
    begins = {join(folder, above).rstrip("/"): begin for above, begin in beginnings(files, unit=unit).items()}
    with lookups.fresh():
        return {join(at, n) for at, begin in begins.items() for n in names(at, begin)}


def _older(there: Iterable[str], folder: str, files: Sequence[str], stale: str) -> list[str]:
    """Those urls that are of an older output of this name, and that are not written now."""
    names = {url: _name(url, folder) for url in sorted(there)} if stale else {}
    return [url for url, name in names.items() if name not in files and re.fullmatch(stale, name)]


def _name(url: str, folder: str) -> str:
    return url[len(folder.rstrip("/")) + 1 :]


def older(folder: str, files: Sequence[str], stale: str) -> list[str]:
    """The names of the files in a remote folder that an output of these files would remove."""
    there = _present(folder, files, False) if stale else ()
    return [_name(url, folder) for url in _older(there, folder, files, stale)]


def _quietly(url: str) -> None:
    try:
        remove(url)
    except CkptError:
        pass
