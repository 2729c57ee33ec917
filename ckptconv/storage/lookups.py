"""What there is at a path, local or remote; what remote file systems say is asked once in a run.

    exists, is_dir, stat, names            of any path

    with once(): ...      inside, what a file system said is kept: of a file whether it exists, its size and its ETag,
                          of a folder its names, and of a file that was opened its first and last bytes
    fresh()               inside, nothing is kept: to see whether a file has changed

Nothing is kept beyond the outermost `once`, and nothing after something was written (`forget`). What a listing says
of a file is not asked again where listings are known to say the same as the answer about that file.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from zlib import crc32

from ..errors import MissingExtra, StorageError, UsageError
from ..messages import brief, did_you_mean, printable
from . import web
from .faults import STATUS, asking, refused
from .paths import is_http, is_remote, join, local
from .session import current, session

MAX_ENDS = 128  # files whose first and last bytes are kept, 80 KiB of each
# Object stores, whose listings have the ETag of each object; and whose listings can be asked for a prefix.
STORES = ("s3://", "s3a://", "gs://", "gcs://")
EXACT = (*STORES, "memory://", "hf://")
# what is opened, and the extra that it needs: fsspec knows more, some of which wait without end, follow a server to
# other hosts and send logins there, or lead to local files
SCHEMES = {"s3": "s3", "gs": "gs", "hf": "hf", "http": "http", "https": "http", "memory": "", "s3a": "s3", "gcs": "gs"}
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
        self.emptied = set[Any]()  # file systems that keep listings, whose own were thrown away
        self._ends: OrderedDict[str, list[tuple[int, bytes]]] = OrderedDict()
        self._lock = threading.Lock()

    def forget(self) -> None:
        with self._lock:
            self.infos.clear()
            self.folders.clear()
            self.emptied.clear()
            self._ends.clear()

    def learn(self, folder: str, children: Mapping[str, Info], *, whole: bool) -> None:
        """Note what a listing said; `whole`: it has all names in the folder."""
        if folder.startswith(EXACT):
            for name, found in children.items():
                self.infos.setdefault(join(folder, name), found)
        if whole:
            self.folders[folder.rstrip("/")] = frozenset(children)

    def lacks(self, url: str) -> bool:
        """Whether a listing showed that there is nothing at this path: it lacks the path, or a folder above it."""
        while "/" in url and not url.endswith(":/"):
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


@contextmanager
def once(run: Lookups | None = None) -> Iterator[None]:
    """Ask nothing twice in here; inside another `once`, or in a thread that is given what is kept, not twice in all."""
    with session(lookups=run or current().lookups or Lookups()):
        yield


@contextmanager
def fresh() -> Iterator[None]:
    """Ask anew in here."""
    with session(lookups=None):
        yield


def kept() -> Lookups | None:
    """What is kept in this run, for its threads."""
    run: Lookups | None = current().lookups
    return run


def forget() -> None:
    """Something remote was written or removed: ask anew."""
    if run := kept():
        run.forget()


# --- asking -----------------------------------------------------------------------------------------------------


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a remote url and the path within it; it caches no listings, since files may change."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        name, shown = printable(brief(scheme, 30)), ", ".join(f"{s}://" for s in SCHEMES if s != "memory")
        hint = did_you_mean(scheme, SCHEMES)
        raise UsageError(f"{name}:// is not read, only {shown} are{hint}; mount it, or copy the file here", url=url)
    if is_http(url):
        raise StorageError("a web server is read, and nothing else", url=url)
    if SCHEMES[scheme] == "gs":  # otherwise gcsfs asks for the kind of the bucket, which public ones tell nobody
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    with asking(url):
        try:
            fs, path = _connected(url)
        except ImportError as e:
            extra = SCHEMES[scheme]
            raise MissingExtra(f"{scheme}:// needs another package: {e}. Try: pip install 'ckptconv[{extra}]'") from e
    run = kept()
    if scheme == "hf" and not (run and fs in run.emptied):
        fs.invalidate_cache()  # the Hub's file system keeps listings whatever it is told
        if run:
            run.emptied.add(fs)
    return fs, str(path)


def _connected(url: str) -> tuple[Any, Any]:
    import fsspec

    fs = fsspec.filesystem(url.partition("://")[0], use_listings_cache=False)
    return fs, fs._strip_protocol(url)


def info(url: str) -> Info | None:
    """The file system's information on a file or folder, or None if there is none."""
    run, key = kept(), url.rstrip("/")
    if run is None:
        return _info(url)
    if key not in run.infos:
        run.infos[key] = None if run.lacks(key) else _info(url)
    return run.infos[key]


def _info(url: str) -> Info | None:
    if is_http(url):
        with asking(url):
            return web.info(url)
    fs, path = filesystem(url)
    try:
        with asking(url):
            return dict(fs.info(path))
    except StorageError as e:
        if isinstance(e.__cause__, FileNotFoundError) and e.message == STATUS[404]:
            return None
        raise


def exists(url: str) -> bool:
    return info(url) is not None if is_remote(url) else os.path.lexists(local(url))


def is_dir(url: str) -> bool:
    """Whether it is a folder; never on the web, where asking would fetch the whole file to look for links."""
    if not is_remote(url):
        return os.path.isdir(local(url))
    found = None if is_http(url) else info(url)
    return bool(found and found.get("type") == "directory")


def names(folder: str, prefix: str = "") -> list[str]:
    """Names of the files and folders in a folder, sorted; empty if the folder does not exist.

    With `prefix`, those that begin with it: of many objects in a store only these are listed.
    """
    try:
        if is_remote(folder):
            return _names(folder, prefix)
        return sorted(name for name in os.listdir(local(folder)) if name.startswith(prefix))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        if e.errno == errno.ELOOP:  # a link to itself leads nowhere, like one to a file that is gone
            return []
        raise refused(e, folder) from e


def _names(folder: str, prefix: str) -> list[str]:
    """FileNotFoundError or NotADirectoryError if there is no folder; [] for a store if a prefix was given."""
    if is_http(folder):
        return []
    run, part = kept(), bool(prefix) and folder.startswith(STORES)
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
            found = fs.ls(path, detail=True)
    except StorageError as e:
        raise e.__cause__ if isinstance(e.__cause__, (FileNotFoundError, NotADirectoryError)) else e from None
    ordered = sorted(found, key=lambda i: i.get("type") != "directory")
    named = {str(i["name"]).rstrip("/").rpartition("/")[2]: i for i in ordered}
    return {name: i for name, i in named.items() if name}


def _beginning(folder: str, prefix: str) -> dict[str, Info]:
    fs, path = filesystem(folder)
    with asking(folder):
        found = fs.find(path, prefix=prefix, detail=True)
    root, out = path.strip("/") + "/", dict[str, Info]()
    for where, what in sorted(found.items()):
        name, below, _ = str(where).strip("/").removeprefix(root).partition("/")
        if not below:
            out[name] = what
        else:
            out.setdefault(name, {"type": "directory"})
    return out


def stat(url: str) -> Stat | None:
    """Size and time of a file, or None if there is none."""
    if is_remote(url):
        found = info(url)
        return None if found is None or found.get("type") == "directory" else stat_of(found)
    try:
        return status_of(os.stat(local(url)))
    except OSError:
        return None


def status_of(status: os.stat_result) -> Stat:
    """What `stat` says of a local file."""
    known = os.name != "nt" and status.st_ino
    mark = crc32(b"%d %d" % (status.st_ino, status.st_ctime_ns)) if known else 0
    return Stat(status.st_size, status.st_mtime_ns, mark=mark)


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
    run = kept()
    for url, status in files.items():
        if run is not None and status.etag and url.startswith(STORES):
            run.infos[url] = {"type": "file", "size": status.size, "ETag": status.etag}


def refuse_unlisted(url: str) -> None:
    """StorageError for a place on the web, where nothing can be searched."""
    if is_http(url):
        raise StorageError("a web server does not list its files; name each, in a manifest for instance", url=url)
