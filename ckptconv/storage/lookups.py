"""What remote file systems say about paths, asked once in a run.

    with once(): ...      inside, what a file system said is kept: of a file whether it exists, its size and its ETag,
                          of a folder its names, and of a file that was opened its first and last bytes
    fresh()               inside, nothing is kept: to see whether a file has changed

Nothing is kept beyond the outermost `once`, and nothing after something was written (`forget`). What a listing says
of a file is not asked again where listings are known to say the same as the answer about that file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from zlib import crc32

from ..errors import MissingExtra, StorageError
from ..messages import links
from . import web
from .connections import Connections, connected
from .faults import STATUS, asking
from .paths import is_http, join

MANY = 2**26  # bytes that a listing of everything may take
MAX_ENDS = 128  # files whose first and last bytes are kept, 80 KiB of each
# Object stores, whose listings have the ETag of each object; and whose listings can be asked for a prefix.
STORES = ("s3://", "s3a://", "gs://", "gcs://")
EXACT = (*STORES, "memory://", "hf://")
Info = dict[str, Any]


class Stat(NamedTuple):
    """The size and time of a file, which show whether it has changed; `mtime` in ns, 0 if it is not known.

    etag: what a server says of its content, and an object store in listings and answers alike; '' for other files.
    mark: a checksum of the number and the time of change of a local file, which nobody sets back; 0 if not known.
    """

    size: int
    mtime: int
    etag: str = ""
    mark: int = 0


class Lookups:
    """What was said so far; safe to share between threads, of which two may ask the same at the same time."""

    def __init__(self) -> None:
        self.infos: dict[str, Info | None] = {}
        self.folders: dict[str, frozenset[str]] = {}
        self.connections = Connections()
        self._ends: OrderedDict[str, list[tuple[int, bytes]]] = OrderedDict()
        self._lock = threading.Lock()

    def forget(self) -> None:
        with self._lock:
            self.infos.clear()
            self.folders.clear()
            self.connections.clear()
            self._ends.clear()

    def learn(self, folder: str, children: Mapping[str, Info], *, whole: bool) -> None:
        """Note what a listing said; `whole`: it has all names in the folder."""
        if folder.startswith(EXACT) and "::" not in folder:
            for name, found in children.items():
                self.infos.setdefault(join(folder, name), found)
        if whole:
            self.folders[folder.rstrip("/")] = frozenset(children)

    def lacks(self, url: str) -> bool:
        """Whether a listing showed that there is nothing at this path: it lacks the path, or a folder above it."""
        while "/" in url and "::" not in url and not url.endswith(":/"):
            url, _, base = url.rpartition("/")
            if url in self.folders:
                return base not in self.folders[url]
        return False

    def ends(self, url: str) -> list[tuple[int, bytes]]:
        """The list of ranges (start, bytes) that are kept of a file; whoever reads it adds to it."""
        with self._lock:
            found = self._ends.setdefault(url, [])
            self._ends.move_to_end(url)
            if len(self._ends) > MAX_ENDS:
                self._ends.popitem(last=False)
            return found


_RUN: ContextVar[Lookups | None] = ContextVar("lookups", default=None)


@contextmanager
def once(run: Lookups | None = None) -> Iterator[None]:
    """Ask nothing twice in here; inside another `once`, or in a thread that is given what is kept, not twice in all."""
    token = _RUN.set(run or _RUN.get() or Lookups())
    try:
        yield
    finally:
        _RUN.reset(token)


@contextmanager
def fresh() -> Iterator[None]:
    """Ask anew in here."""
    token = _RUN.set(None)
    try:
        yield
    finally:
        _RUN.reset(token)


def kept() -> Lookups | None:
    """What is kept in this run, for its threads."""
    return _RUN.get()


def forget() -> None:
    """Something remote was written or removed: ask anew."""
    if run := _RUN.get():
        run.forget()


# --- asking -----------------------------------------------------------------------------------------------------


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a remote url and the path within it; it caches no listings, since files may change."""
    with asking(url):
        try:
            fs, path = _connected(url)
        except ImportError as e:
            scheme = links(url)[-1].split("://")[0]
            extra = {"https": "http", "gcs": "gs", "s3a": "s3"}.get(scheme, scheme)
            raise MissingExtra(f"{scheme}:// needs another package: {e}. Try: pip install 'ckptconv[{extra}]'") from e
    return fs, str(path)


def _connected(url: str) -> tuple[Any, Any]:
    run = _RUN.get()
    return connected(url, run.connections if run else None)


def info(url: str) -> Info | None:
    """The file system's information on a file or folder, or None if there is none."""
    run, key = _RUN.get(), url.rstrip("/")
    if run is None:
        return _info(url)
    if key not in run.infos:
        run.infos[key] = None if run.lacks(key) else _info(url)
    return run.infos[key]


def _info(url: str) -> Info | None:
    fs, path = filesystem(url)
    try:
        with asking(url):
            return dict(web.bounded(fs, "info", 0, path))
    except StorageError as e:
        if isinstance(e.__cause__, FileNotFoundError) and e.message == STATUS[404]:
            return None
        raise


def is_dir(url: str) -> bool:
    """Whether it is a folder; never on the web, where asking would fetch the whole file to look for links."""
    found = None if is_http(url) else info(url)
    return bool(found and found.get("type") == "directory")


def names(folder: str, prefix: str = "") -> list[str]:
    """Names in a folder that begin with `prefix`, which an object store finds without listing all others.

    FileNotFoundError or NotADirectoryError if there is no folder; [] for such a store if a prefix was given.
    """
    if is_http(folder):
        return []
    run, part = _RUN.get(), bool(prefix) and folder.startswith(STORES) and "::" not in folder
    known = run.folders.get(folder.rstrip("/")) if run is not None else None
    if run is not None and (run.infos.get(folder.rstrip("/")) or {}).get("type") == "file":
        raise NotADirectoryError(folder)
    if known is None:
        children = _beginning(folder, prefix) if part else _listed(folder)
        if run is not None:
            run.learn(folder, children, whole=not part)
        known = frozenset(children)
    return sorted(name for name in known if name.startswith(prefix))


def _listed(folder: str) -> dict[str, Info]:
    """What a listing says of each name; if a file and a folder have one name, of the file, as `info` does."""
    fs, path = filesystem(folder)
    try:
        with asking(folder):
            found = web.bounded(fs, "ls", 0, path, detail=True)
    except StorageError as e:
        raise e.__cause__ if isinstance(e.__cause__, (FileNotFoundError, NotADirectoryError)) else e from None
    ordered = sorted(found, key=lambda i: i.get("type") != "directory")
    named = {str(i["name"]).rstrip("/").rpartition("/")[2]: i for i in ordered}
    return {name: i for name, i in named.items() if name}


def _beginning(folder: str, prefix: str) -> dict[str, Info]:
    fs, path = filesystem(folder)
    with asking(folder):
        found = web.bounded(fs, "find", 0, path, prefix=prefix, detail=True)
    root, out = path.strip("/") + "/", dict[str, Info]()
    for where, what in sorted(found.items()):
        name, below, _ = str(where).strip("/").removeprefix(root).partition("/")
        if not below:
            out[name] = what
        else:
            out.setdefault(name, {"type": "directory"})
    return out


def stat(url: str) -> Stat | None:
    found = info(url)
    return None if found is None or found.get("type") == "directory" else stat_of(found)


def stat_of(found: Info) -> Stat:
    """What an answer or a listing says of a file."""
    when = found.get("LastModified") or found.get("mtime") or found.get("updated") or found.get("created") or 0
    if hasattr(when, "timestamp"):  # listings have fractions of a second that answers about a file lack
        when = int(when.timestamp()) if "LastModified" in found else when.timestamp()
    time = int(when * 1e9) if isinstance(when, (int, float)) else crc32(str(when).encode())
    # of the Hub the hash of the file; a web server that has no ETag may say when the file was changed
    tag = next((found[k] for k in ("ETag", "etag", "blob_id", "Last-Modified") if found.get(k)), "")
    return Stat(int(found.get("size") or 0), time, str(tag))


def expect(files: Mapping[str, Stat]) -> None:
    """Take what an earlier listing said of objects with an ETag as said: whether it is still true shows at the end."""
    run = _RUN.get()
    for url, status in files.items():
        if run is not None and status.etag and url.startswith(STORES):
            run.infos[url] = {"type": "file", "size": status.size, "ETag": status.etag}


def refuse_unlisted(url: str) -> None:
    """StorageError for a place on the web, where nothing can be searched."""
    if is_http(url):
        raise StorageError("a web server does not list its files; name each, in a manifest for instance", url=url)


__all__ = [
    "Lookups",
    "Stat",
    "expect",
    "filesystem",
    "forget",
    "fresh",
    "info",
    "is_dir",
    "kept",
    "names",
    "once",
    "refuse_unlisted",
    "stat",
    "stat_of",
]
