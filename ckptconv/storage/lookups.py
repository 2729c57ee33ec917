"""What there is at a path, and below it, local or remote; what remote file systems say is asked once in a run.

    exists, is_dir, stat, names, walk      of any path
    with session(written=...) as now: ...  what one run knows, and what it may replace, changed in here
    current()                              the session of this thread

    with cached_lookups(): ...             inside, what a file system said is kept: of a file whether it exists, its
                                           size and its ETag, of a folder its names, and of a file that was opened its
                                           first and last bytes
    a session without lookups               nothing is kept: to see whether a file has changed

Formats and plug-ins open files at any depth, so that the session is not an argument of theirs but the one context
variable of the package. A thread that is to share what was looked up enters `cached_lookups(run)`.

Nothing is kept beyond the outermost `cached_lookups`, and nothing after something was written (`forget`). What a
listing says of a file is not asked again.
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

STORES = ("s3://", "s3a://", "gs://", "gcs://")  # listings of these can be asked for a prefix
EXACT = (*STORES, "memory://", "hf://")
# what is opened, and the extra that it needs: fsspec knows more, some of which wait without end, follow a server to
# other hosts and send logins there, or lead to local files
SCHEMES = {"s3": "s3", "gs": "gs", "hf": "hf", "http": "http", "https": "http", "memory": "", "s3a": "s3", "gcs": "gs"}
Info = dict[str, Any]
MAX_DEPTH = 32  # folders above an object; each takes memory, and a key of 1 kB could name 500
MAX_LOCAL_DEPTH = 400  # folders
_MORE = re.compile(r"\0|\?versionId=")  # in a url: a version of S3
_GENERATION = re.compile(r"#\d+$")  # a version of Google's store
Failed = Callable[[str, str, CkptError], None]


class Stat(NamedTuple):
    """The size and time of a file, which show whether it has changed; `mtime` in ns, or a checksum of the etag.

    etag: what a server says of its content, and an object store in listings and answers alike; '' for other files.
    mark: a checksum of the number and the time of change of a local file, which nobody sets back; 0 if not known.
    """

    size: int
    mtime: int
    etag: str = ""
    mark: int = 0


FOLDER = Stat(-1, 0)


@dataclass
class Lookups:
    """What was said so far; shared by threads, of which two may ask the same at the same time.

    infos: on files and folders, by url. folders: all names in a folder. ends: ranges (start, bytes) of files; whoever
    reads a file adds to its list. emptied: file systems that keep listings, whose own were thrown away.
    """

    infos: dict[str, Stat | None] = field(default_factory=dict)
    folders: dict[str, frozenset[str]] = field(default_factory=dict)
    ends: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    emptied: set[Any] = field(default_factory=set)

    def learn(self, folder: str, children: Mapping[str, Stat], *, whole: bool = True) -> None:
        """Note what a listing said; `whole`: it has all names in the folder."""
        self.infos |= {join(folder, name): found for name, found in children.items()}
        if whole:
            self.folders[folder.rstrip("/")] = frozenset(children)


@dataclass(frozen=True)
class Session:
    """Caches and policy of one run; None where nothing is kept.

    stamps: of each file, when it was first opened. lookups: what remote file systems said. listings: the names in long
    local folders, of a worker that writes thousands of outputs into them. written: the size and time of the files, by
    path, that a batch wrote before; these alone are replaced. spared: the sources, which are not replaced or removed.
    """

    stamps: dict[str, Stamp] | None = None
    lookups: Lookups | None = None
    listings: dict[str, list[str]] | None = None
    written: Mapping[str, tuple[int, int]] | None = None
    spared: Collection[str] = ()


_CURRENT: ContextVar[Session] = ContextVar("session", default=Session())  # noqa: B039 - it is frozen


def current() -> Session:
    """The session of this thread."""
    return _CURRENT.get()


@contextmanager
def session(**changes: Any) -> Iterator[Session]:
    """Change the current session, in here."""
    changed = replace(current(), **changes)
    token = _CURRENT.set(changed)
    try:
        yield changed
    finally:
        _CURRENT.reset(token)


@contextmanager
def cached_lookups(run: Lookups | None = None) -> Iterator[None]:
    """Ask nothing twice in here; also inside another, or in a thread that is given what is kept."""
    with session(lookups=run or current().lookups or Lookups()):
        yield


def current_lookups() -> Lookups:
    """What is kept in this run, for its threads, too; outside of one nothing is, beyond what is asked now."""
    return current().lookups or Lookups()


def forget() -> None:
    """Something remote was written or removed: ask anew."""
    run = current_lookups()
    for looked_up in (run.infos, run.folders, run.ends, run.emptied):
        looked_up.clear()


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
    with translate_errors(url):
        try:
            fs, path = _connected(url)
        except ImportError as e:
            extra = SCHEMES[scheme]
            raise MissingExtra(f"{scheme}:// needs another package: {e}. Try: pip install 'ckptconv[{extra}]'") from e
    if scheme == "hf" and fs not in (emptied := current_lookups().emptied):
        fs.invalidate_cache()  # the Hub's file system keeps listings whatever it is told
        emptied.add(fs)
    return fs, str(path)


def _connected(url: str) -> tuple[Any, Any]:
    import fsspec

    fs = fsspec.filesystem(url.partition("://")[0], use_listings_cache=False)
    return fs, fs._strip_protocol(url)


def info(url: str) -> Stat | None:
    """What a remote file is, `FOLDER` of a folder, or None if there is neither."""
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
    """Where a member of an archive is; None also if the archive is damaged, which whoever reads the member says."""
    with suppress(CkptError):
        return archives.place(url)
    return None


def is_dir(url: str) -> bool:
    """Whether it is a folder; never on the web, where asking would fetch the whole file to look for links."""
    if not is_remote(url):
        return os.path.isdir(local(url))
    return not is_http(url) and info(url) == FOLDER


def names(folder: str, prefix: str = "") -> list[str]:
    """Names of the files and folders in a folder, sorted; empty if the folder does not exist.

    With `prefix`, those that begin with it: of many objects in a store only these are listed.
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
    """What a listing says of each name; if a file and a folder have one name, of the file, as `info` does."""
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
    """Size and time of a file, or None if there is none."""
    if is_remote(url):
        return None if (found := info(url)) == FOLDER else found
    try:
        return status_of(os.stat(local(url)))
    except NotADirectoryError:
        return status_of(os.stat(member.path)) if (member := _member(url)) else None
    except OSError:
        return None


def status_of(status: os.stat_result) -> Stat:
    """What `stat` says of a local file."""
    known = os.name != "nt" and status.st_ino
    mark = crc32(b"%d %d" % (status.st_ino, status.st_ctime_ns)) if known else 0
    return Stat(status.st_size, status.st_mtime_ns, mark=mark)


def stat_of(found: Info) -> Stat:
    """What an answer or a listing says of a file or folder; only if there is no tag, a time tells the version."""
    if found.get("type") == "directory":
        return FOLDER
    tag = str(found.get("ETag") or found.get("etag") or found.get("blob_id") or "")  # the last: the Hub's hash
    when = found.get("mtime") or found.get("created") or ""
    version = tag or str(when.timestamp() if hasattr(when, "timestamp") else when)
    return Stat(int(found.get("size") or 0), crc32(version.encode()), tag)


def expect(files: Mapping[str, Stat]) -> None:
    """Take what an earlier listing said of objects with an ETag as said: whether it is still true shows at the end."""
    current_lookups().infos |= {url: status for url, status in files.items() if status.etag and url.startswith(STORES)}


def refuse_unlisted(url: str) -> None:
    """StorageError for a place on the web, where nothing can be searched."""
    if is_http(url):
        raise StorageError("a web server does not list its files; name each, in a manifest for instance", url=url)


# --- what there is below a folder -----------------------------------------------------------------------------------


class Level(NamedTuple):
    """One folder. path: below the one where the walk began, '' for that one; folders: names; files: by their names."""

    url: str
    path: str
    folders: list[str]
    files: dict[str, Stat]


def walk(folder: str, failed: Failed | None = None) -> Iterator[Level]:
    """Yield this folder and each below it; sorted, outer ones first.

    Removing a name from the list of folders leaves that folder out. Links to folders are not followed. What vanishes
    meanwhile is left out. `failed` is given the url and the path of what cannot be looked at, instead of an error.
    """
    if not is_remote(folder):
        return _local(folder, failed)
    refuse_unlisted(folder)
    return _remote(folder, failed)


def _local(folder: str, failed: Failed | None) -> Iterator[Level]:
    top = local(folder)

    def refuse(e: OSError) -> None:
        """Report what cannot be looked at; what vanished, or is a link to itself, is not there."""
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
    """One recursive listing, which an object store answers in pages whatever the number of folders."""
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
    """The paths below a remote folder, and what its file system says of each.

    Left out are the empty objects that stand for folders, and what stands for the folder itself, whatever is in it.
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
    """UnsafeCheckpoint for what a store may call an object, while no path is called so, or another one is.

    Path and url of such an object would be those of another: `a//b` is read as `a/b`, and `..` as the folder above.
    """
    parts = path.split("/")
    versioned = folder.startswith(("gs://", "gcs://")) and _GENERATION.search(path)
    if versioned or any(p in ("", ".", "..") or _MORE.search(p) for p in parts):
        what = f"holds an object called {printable(brief(path))!r}, which reads as more than a path"
        raise UnsafeCheckpoint(f"{what}; it is not read", url=folder)
    if len(parts) > MAX_DEPTH:
        raise UnsafeCheckpoint(f"holds an object {len(parts) - 1} folders deep; {MAX_DEPTH - 1} are read", url=folder)
