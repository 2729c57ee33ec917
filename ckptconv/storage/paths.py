"""Paths, local and remote: split them, join them, and keep names inside a checkpoint's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from shlex import quote as quoted
from urllib.parse import quote, unquote

from ..errors import UnsafeCheckpoint, UsageError
from ..messages import printable, redacted


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def is_http(url: str) -> bool:
    """Whether it is a web address, where folders cannot be listed."""
    return url.startswith(("http://", "https://"))


def is_repository(url: str) -> bool:
    """Whether it is in a repository of the Hub, which has commits; buckets there have none and are read as a store."""
    return url.startswith("hf://") and not url.startswith("hf://buckets/")


def local(url: str) -> str:
    """The file-system path of what is not remote: a path as it is, and what is in file:///PATH, as RFC 8089 has it.

    UsageError for one with a host: a path below the working folder, which fsspec makes of it, is not what anybody
    meant. Escapes stay as they are, as in fsspec and in all our other urls; without slashes, file:x is a name.
    """
    if not url.startswith("file://"):
        return url
    host, slash, path = url[7:].partition("/")
    if host.lower() in ("", "localhost") and slash:
        return slash + path
    shown = printable(redacted(url))
    raise UsageError(
        f"{shown} is no file on this machine: that is file:///PATH, from the root on; a path from here is written "
        "without file://"
    )


def refuse_remote(path: str, what: str) -> None:
    """UsageError for a url where only a path on this machine can be, also one that lacks a slash.

    As a path it would be a folder called `s3:` in the working folder. Two letters at least: C: is a drive.
    """
    scheme = _SCHEME.match(path)
    if is_remote(path) or (scheme and not os.path.lexists(scheme[0])):
        raise UsageError(f"{what} is a file on this machine: give a path, not {printable(redacted(path))}")


_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:(?=/|$)")


def split(url: str) -> tuple[str, str]:
    """Split a path into folder and base name, the arguments of `join`; the folder of a bare name is '.'.

    Of a web address what its query follows is split.
    """
    if is_remote(url):
        end = min([i for c in "?#" if (i := url.find(c)) >= 0] or [len(url)]) if is_http(url) else len(url)
        head, _, base = url[:end].rpartition("/")
        return f"{head}/" if head.endswith(":/") else head, base + url[end:]
    head, base = os.path.split(local(url))
    return head or ".", base


def file_name(url: str) -> str:
    """The name of a file without what a web address says beside it, a signature for instance."""
    base = split(url)[1]
    return base.partition("?")[0].partition("#")[0] if is_http(url) else base


def spelled(url: str) -> str:
    """The name of a file as an index spells it: of a web address without the escapes, which `sibling` adds."""
    name = file_name(url)
    return unquote(name) if is_http(url) else name


def join(folder: str, *names: str) -> str:
    """Join a folder and names, local or remote."""
    if not is_remote(folder):
        return os.path.join(local(folder), *names)
    return (folder if folder.endswith("://") else f"{folder.rstrip('/')}/") + "/".join(names)


def beginning(names: Iterable[str]) -> str:
    """What all names begin with."""
    first, last = min(names := list(names)), max(names)
    same = (i for i, c in enumerate(first) if c != last[i])
    return first[: next(same, len(first))]


def sibling(url: str, name: str) -> str:
    """The path of the file `name`, as a checkpoint's index spells it, in the folder of `url`.

    UnsafeCheckpoint if the name leaves that folder, or if it is a link that does (see `beside`).
    """
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0"):
        raise UnsafeCheckpoint(f"names the file {printable(name)!r}, which is not a plain name beside it", url=url)
    return beside(url, join(split(url)[0], _quoted(name, url)))


def within(folder: str, name: str) -> str:
    """The path of the file `name` in a folder, as `sibling` gives it."""
    return sibling(join(folder, "."), name)


def beside(url: str, path: str) -> str:
    """`path`, which is looked for because `url` was given; UnsafeCheckpoint if it is a link out of its folder.

    A symlink may leave the folder only the way the Hugging Face cache does it: snapshots/REV/name -> ../../blobs/HASH,
    and snapshots/REV/unet/name one level further up, or into a folder that CKPTCONV_LINKS lists (separated as PATH is).
    The url itself was typed, and is followed; that it is a link allows nothing of the files beside it.
    """
    folder, name = split(path)
    if is_remote(path) or not os.path.islink(join(folder, name)) or (folder, name) == split(url):
        return path
    home, target = os.path.realpath(folder), os.path.realpath(local(path))
    cache, _, below = home.rpartition(f"{os.sep}snapshots{os.sep}")
    blob = below != home and os.path.dirname(target) == join(cache, "blobs")
    if not (blob or inside(path, folder)):
        what = f"{printable(name)} is a symlink that leaves the checkpoint's folder"
        how = f"name what it leads to, or allow it: CKPTCONV_LINKS={quoted(printable(os.path.dirname(target)))}"
        raise UnsafeCheckpoint(f"{what}; if you made it, {how}", url=url.removesuffix(f"{os.sep}."))
    return path


def inside(path: str, folder: str) -> bool:
    """Whether a local path is in a folder when all links are resolved, or in one that CKPTCONV_LINKS lists.

    The latter are the user's own: a cache of DVC, a scratch disk.
    """
    target = os.path.realpath(local(path))
    allowed = [r for r in os.environ.get("CKPTCONV_LINKS", "").split(os.pathsep) if os.path.isabs(r)]
    roots = map(os.path.realpath, [local(folder), *allowed])
    return any(os.path.commonpath([root, target]) == root for root in roots)


def _quoted(name: str, url: str) -> str:
    """The name as it stands in a remote url: nothing in it is a query, a fragment, or an escape."""
    if is_http(url):
        return quote(name, safe=" !$&'()*+,;=@[]{}^~`|")
    if is_remote(url) and ("?" in name or "#" in name):
        raise UnsafeCheckpoint(f"names the file {printable(name)!r}, which reads as more than a name there", url=url)
    return name
