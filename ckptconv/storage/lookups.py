"""Look up local and remote paths; a run asks a remote file system for each fact once.

    exists, is_dir, stat, names, walk      take any path
    with session(written=...) as now: ...  change what the run knows and may replace, within this block
    current()                              the session of this thread

    with cached_lookups(): ...             cache answers of file systems within this block: whether a file exists, its
                                           size and ETag, the names in a folder, and the first and last bytes of files
                                           that were opened
    a session without lookups               caches nothing, to see whether a file has changed

Formats and plug-ins open files at any depth; so the session is not passed to them, but is the only context variable of
the package. A thread that shares the cache of another enters `cached_lookups(run)`.

The cache ends with the outermost `cached_lookups`, and is emptied when something is written (`forget`). A file that is
in a listing is not looked up again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from operator import itemgetter
from stat import S_ISREG
from typing import Any, NamedTuple
from urllib.parse import quote
from zlib import crc32

from ..errors import CkptError, MissingExtra, StorageError, UnsafeCheckpoint, UsageError
from ..messages import brief, did_you_mean, printable
from . import archives, web
from .faults import MissingFile, refused, translate_errors
from .paths import is_http, is_remote, join, local
from .ranges import Stamp

STORES = ("s3://", "s3a://", "gs://", "gcs://")  # these list by prefix
EXACT = (*STORES, "memory://", "hf://")
# schemes, and the extra that each needs. fsspec has more, but some of them wait forever, follow a server to other hosts
# and send logins there, or lead to local files
SCHEMES = {"s3": "s3", "gs": "gs", "hf": "hf", "http": "http", "https": "http", "memory": "", "s3a": "s3", "gcs": "gs"}
Info = dict[str, Any]
MAX_DEPTH = 32  # folders above an object; each takes memory, and a key of 1 kB can name 500
MAX_LOCAL_DEPTH = 400  # folders
_MORE = re.compile(r"\0|\?versionId=")  # the latter names a version of an S3 object
_GENERATION = re.compile(r"#\d+$")  # names a version of a Google Cloud Storage object
Failed = Callable[[str, str, CkptError], None]


class Stat(NamedTuple):
    """The size and time of a file, which show whether it has changed; `mtime` in ns, or a checksum of the etag.

    etag: version tag from a server, the same in listings and answers of an object store; '' for other files.
    mark: a checksum of a local file's inode number and ctime, which cannot be set back; 0 if not known.
    """

    size: int
    mtime: int
    etag: str = ""
    mark: int = 0


FOLDER = Stat(-1, 0)


@dataclass
class Lookups:
    """The cached answers, shared by threads; two of them may ask the same question at the same time.

    infos: about files and folders, by url. folders: all names in a folder. ends: ranges (start, bytes) of files; each
    reader of a file adds to its list. emptied: file systems whose own cache of listings was emptied.
    """

    infos: dict[str, Stat | None] = field(default_factory=dict)
    folders: dict[str, frozenset[str]] = field(default_factory=dict)
    ends: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    emptied: set[Any] = field(default_factory=set)

    def learn(self, folder: str, children: Mapping[str, Stat], *, whole: bool = True) -> None:
        """Cache a listing; `whole`: it has all names in the folder."""
        self.infos |= {join(folder, name): found for name, found in children.items()}
        if whole:
            self.folders[folder.rstrip("/")] = frozenset(children)


@dataclass(frozen=True)
class Session:
    """Caches and policy of one run; None for a cache that is off.

    stamps: of each file, when it was first opened. lookups: answers of remote file systems. listings: the names in long
    local folders, for a worker that writes thousands of outputs into them. written: size and time by path of the files
    that a batch wrote before; only these are replaced. spared: the sources, which are not replaced or removed.
    """

    stamps: dict[str, Stamp] | None = None
    lookups: Lookups | None = None
    listings: dict[str, list[str]] | None = None
    written: Mapping[str, tuple[int, int]] | None = None
    spared: Collection[str] = ()


_CURRENT: ContextVar[Session] = ContextVar("session", default=Session())  # noqa: B039 - it is frozen


def current() -> Session:
    """Return the session of this thread."""
    return _CURRENT.get()


@contextmanager
def session(**changes: Any) -> Iterator[Session]:
    """Change the current session within this context."""
    changed = replace(current(), **changes)
    token = _CURRENT.set(changed)
    try:
        yield changed
    finally:
        _CURRENT.reset(token)


@contextmanager
def cached_lookups(run: Lookups | None = None) -> Iterator[None]:
    """Cache lookups within this context: in the given cache, else the enclosing one, else a new one."""
    with session(lookups=run or current().lookups or Lookups()):
        yield


def current_lookups() -> Lookups:
    """Return the cache of this run, or an empty one outside of a run."""
    return current().lookups or Lookups()


def forget() -> None:
    """Empty the cache, because something remote was written or removed."""
    run = current_lookups()
    for looked_up in (run.infos, run.folders, run.ends, run.emptied):
        looked_up.clear()


# --- asking -----------------------------------------------------------------------------------------------------


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a remote url, without its cache of listings, and the path within it."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        name, shown = printable(brief(scheme, 30)), ", ".join(f"{s}://" for s in SCHEMES if s != "memory")
        hint = did_you_mean(scheme, SCHEMES)
        raise UsageError(f"{name}:// is not read, only {shown} are{hint}; mount it, or copy the file here", url=url)
    if is_http(url):
        raise StorageError("a web server is read, and nothing else", url=url)
    if SCHEMES[scheme] == "gs":  # otherwise gcsfs asks for the kind of bucket, which public buckets do not tell
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    with translate_errors(url):
        try:
            fs, path = _connected(url)
        except ImportError as e:
            extra = SCHEMES[scheme]
            raise MissingExtra(f"{scheme}:// needs another package: {e}. Try: pip install 'ckptconv[{extra}]'") from e
    if scheme == "hf" and fs not in (emptied := current_lookups().emptied):
        fs.invalidate_cache()  # the Hub's file system caches listings even if told not to
        emptied.add(fs)
    return fs, str(path)


def _connected(url: str) -> tuple[Any, Any]:
    import fsspec

    fs = fsspec.filesystem(url.partition("://")[0], use_listings_cache=False)
    return fs, fs._strip_protocol(url)


def info(url: str) -> Stat | None:
    """Look up a remote path: the `Stat` of a file, `FOLDER` for a folder, None if there is neither."""
    run, key = current_lookups(), url.rstrip("/")
    if key not in run.infos:
        above, _, base = key.rpartition("/")
        is_listed = base in run.folders.get(above, (base,))
        run.infos[key] = _info(url) if is_listed else None
    return run.infos[key]


def _info(url: str) -> Stat | None:
    with suppress(MissingFile), translate_errors(url):
        if is_http(url):
            return stat_of(web.info(url))
        fs, path = filesystem(url)
        return stat_of(fs.info(path))
    return None


def exists(url: str) -> bool:
    if is_remote(url):
        return info(url) is not None
    return os.path.lexists(local(url)) or _member(url) is not None


def _member(url: str) -> archives.Place | None:
    """Locate a member of an archive; None also if the archive is damaged, which reading the member reports."""
    with suppress(CkptError):
        return archives.place(url)
    return None


def is_dir(url: str) -> bool:
    """Tell whether it is a folder; never on the web, where fsspec would fetch the file to look for links."""
    if not is_remote(url):
        return os.path.isdir(local(url))
    return not is_http(url) and info(url) == FOLDER


def names(folder: str, prefix: str = "") -> list[str]:
    """List the files and folders in a folder, sorted; empty if the folder does not exist.

    prefix: only names that begin with it; an object store lists no others.
    """
    names: Collection[str] = ()
    try:
        names = _names(folder, prefix) if is_remote(folder) else os.listdir(local(folder))
    except (FileNotFoundError, NotADirectoryError):
        with suppress(CkptError):
            names = archives.names(folder)
    except OSError as e:
        if e.errno != errno.ELOOP:  # a link to itself leads nowhere, like one to a file that is gone
            raise refused(e, folder) from e
    return sorted(name for name in names if name.startswith(prefix))


def _names(folder: str, prefix: str) -> Collection[str]:
    run, key, part = current_lookups(), folder.rstrip("/"), bool(prefix) and folder.startswith(STORES)
    if is_http(folder) or (run.infos.get(key) or FOLDER) != FOLDER:
        return ()
    if key not in run.folders:
        listed = _listed(folder, prefix if part else "")
        run.learn(folder, listed, whole=not part)
        return listed
    return run.folders[key]


def _listed(folder: str, prefix: str) -> dict[str, Stat]:
    """List a folder; if a file and a folder have the same name, the file counts, as in `info`."""
    fs, path = filesystem(folder)
    try:
        with translate_errors(folder):
            if not prefix:
                found = sorted(fs.ls(path, detail=True), key=lambda i: i.get("type") != "directory")
                named = {str(i["name"]).rstrip("/").rpartition("/")[2]: i for i in found}
                return {name: stat_of(i) for name, i in named.items() if name}
            below = fs.find(path, prefix=prefix, detail=True)
    except StorageError as e:
        if isinstance(e.__cause__, (FileNotFoundError, NotADirectoryError)):
            return {}
        raise
    out, root = dict[str, Stat](), path.strip("/") + "/"
    for where, what in below.items():
        name, deeper, _ = str(where).strip("/").removeprefix(root).partition("/")
        if not deeper or name not in out:
            out[name] = FOLDER if deeper else stat_of(what)
    return out


def stat(url: str) -> Stat | None:
    """Return the size and time of a file, or None if there is none."""
    if is_remote(url):
        return None if (found := info(url)) == FOLDER else found
    try:
        return status_of(os.stat(local(url)))
    except NotADirectoryError:
        return status_of(os.stat(member.path)) if (member := _member(url)) else None
    except OSError:
        return None


def status_of(status: os.stat_result) -> Stat:
    """Convert the `os.stat` result of a local file."""
    known = os.name != "nt" and status.st_ino
    mark = crc32(b"%d %d" % (status.st_ino, status.st_ctime_ns)) if known else 0
    return Stat(status.st_size, status.st_mtime_ns, mark=mark)


def stat_of(found: Info) -> Stat:
    """Convert what fsspec says about a file or folder; the time stands for the version only if there is no tag."""
    if found.get("type") == "directory":
        return FOLDER
    tag = str(found.get("ETag") or found.get("etag") or found.get("blob_id") or "")  # the last: the Hub's hash
    when = found.get("mtime") or found.get("created") or ""
    version = tag or str(when.timestamp() if hasattr(when, "timestamp") else when)
    return Stat(int(found.get("size") or 0), crc32(version.encode()), tag)


def expect(files: Mapping[str, Stat]) -> None:
    """Cache an earlier listing of objects with an ETag; the run checks at its end whether it still holds."""
    current_lookups().infos |= {url: status for url, status in files.items() if status.etag and url.startswith(STORES)}


def refuse_unlisted(url: str) -> None:
    """Raise StorageError for a web address, since web servers do not list folders."""
    if is_http(url):
        raise StorageError("a web server does not list its files; name each, in a manifest for instance", url=url)


# --- what there is below a folder -----------------------------------------------------------------------------------


class Level(NamedTuple):
    """One folder. path: relative to where the walk began, '' for that folder; folders: names; files: by name."""

    url: str
    path: str
    folders: list[str]
    files: dict[str, Stat]


def walk(folder: str, failed: Failed | None = None) -> Iterator[Level]:
    """Yield this folder and each one below it, sorted, outer folders first.

    Removing a name from the list of folders skips that folder. Links to folders are not followed. Files that vanish
    meanwhile are skipped. failed: called with url, path and error for what cannot be looked at, instead of raising.
    """
    if not is_remote(folder):
        return _local(folder, failed)
    refuse_unlisted(folder)
    return _remote(folder, failed)


def _local(folder: str, failed: Failed | None) -> Iterator[Level]:
    top = local(folder)

    def refuse(e: OSError) -> None:
        """Report what cannot be looked at, but not a file that vanished or a link to itself."""
        url = str(e.filename)
        path = url[len(top) :].strip(os.sep)
        if path and e.errno in (errno.ENOENT, errno.ELOOP):
            return
        if failed is None or not path:
            raise refused(e, url) from e
        failed(url, path, refused(e, url))

    for url, folders, names in os.walk(top, onerror=refuse):
        path = url[len(top) :].strip(os.sep)
        folders[:] = sorted(n for n in folders if not os.path.islink(os.path.join(url, n)))
        if folders and path.count(os.sep) >= MAX_LOCAL_DEPTH:  # `os.walk` calls itself before Python 3.12
            folders.clear()
            refuse(OSError(errno.ENAMETOOLONG, f"has folders deeper than {MAX_LOCAL_DEPTH}", url))
        files = dict[str, Stat]()
        for name in sorted(names):
            try:
                status = os.stat(os.path.join(url, name))
            except OSError as e:
                refuse(e)
            else:
                if S_ISREG(status.st_mode):
                    files[name] = status_of(status)
        yield Level(url, path, folders, files)


def _remote(folder: str, failed: Failed | None) -> Iterator[Level]:
    """Walk by one recursive listing, which an object store answers in pages whatever the number of folders."""
    levels = {"": Level(folder, "", [], {})}

    def level(path: str) -> Level:
        if path not in levels:
            above, _, name = path.rpartition("/")
            level(above).folders.append(name)
            levels[path] = Level(join(folder, path), path, [], {})
        return levels[path]

    for path, what in sorted(_objects(folder, failed), key=itemgetter(0)):
        above, _, name = path.rpartition("/")
        level(above).files[name] = stat_of(what)
    todo, run = [""], current_lookups()
    while todo:
        at = levels.pop(todo.pop())
        at.folders.sort()
        run.learn(at.url, {**dict.fromkeys(at.folders, FOLDER), **at.files})
        yield at
        todo += [f"{at.path}/{name}".lstrip("/") for name in reversed(at.folders)]


def _objects(folder: str, failed: Failed | None) -> Iterator[tuple[str, Info]]:
    """Yield the paths of the objects below a remote folder, with what its file system says about each.

    Empty objects that stand for folders are skipped, and so is any object that stands for `folder` itself.
    """
    fs, root = filesystem(folder)
    with translate_errors(folder):
        listed = fs.find(root, detail=True)
    start = root.strip("/") + "/" if root.strip("/") else ""
    for where, what in listed.items():
        path = str(where).removeprefix("/").removeprefix(start)
        if not path or (path.endswith("/") and not what.get("size")):
            continue
        try:
            check_path(path, folder)
        except CkptError as e:
            if failed is None:
                raise
            failed(join(folder, path), quote(path, safe=" ").replace(".", "%2E").replace("/", "%2F"), e)
        else:
            yield path, what


def check_path(path: str, folder: str) -> None:
    """Raise UnsafeCheckpoint for an object name that is not valid as a path, or means another path.

    For example, `a//b` is read as `a/b`, and `..` as the folder above.
    """
    parts = path.split("/")
    versioned = folder.startswith(("gs://", "gcs://")) and _GENERATION.search(path)
    if versioned or any(p in ("", ".", "..") or _MORE.search(p) for p in parts):
        what = f"holds an object called {printable(brief(path))!r}, which reads as more than a path"
        raise UnsafeCheckpoint(f"{what}; it is not read", url=folder)
    if len(parts) > MAX_DEPTH:
        raise UnsafeCheckpoint(f"holds an object {len(parts) - 1} folders deep; {MAX_DEPTH - 1} are read", url=folder)
