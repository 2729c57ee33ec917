"""Split and join local and remote paths, and keep names inside a checkpoint's folder."""

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
    """Tell whether it is a web address, where folders cannot be listed."""
    return url.startswith(("http://", "https://"))


def is_repository(url: str) -> bool:
    """Tell whether it is in a Hub repository, which has commits; a Hub bucket has none and is read like a store."""
    return url.startswith("hf://") and not url.startswith("hf://buckets/")


def local(url: str) -> str:
    """Return the file-system path of a local url: a path unchanged, or the PATH in file:///PATH (RFC 8089).

    UsageError for a file url with a host: fsspec makes a relative path of it, which nobody means. Escapes are not
    decoded, as in fsspec and in all our other urls; file:x, without slashes, is a name.
    """
    if not url.startswith("file://"):
        return url
    host, slash, path = url[7:].partition("/")
    if host.lower() in ("", "localhost") and slash:
        return slash + path
    shown = printable(redacted(url))
    raise UsageError(
        f"{shown} is not a file on this machine: write file:///PATH, from the root on, or a path from here "
        "without file://"
    )


def refuse_remote(path: str, what: str) -> None:
    """Raise UsageError for a url where only a local path is allowed, even if it lacks a slash.

    As a path it would be a folder called `s3:` in the working folder. A scheme has at least two letters: C: is a drive.
    """
    scheme = _SCHEME.match(path)
    if is_remote(path) or (scheme and not os.path.lexists(scheme[0])):
        raise UsageError(f"{what} is a file on this machine: give a path, not {printable(redacted(path))}")


_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:(?=/|$)")


def split(url: str) -> tuple[str, str]:
    """Split a path into folder and base name, the arguments of `join`; the folder of a bare name is '.'.

    The query of a web address stays with the base name.
    """
    if is_remote(url):
        end = min([i for c in "?#" if (i := url.find(c)) >= 0] or [len(url)]) if is_http(url) else len(url)
        head, _, base = url[:end].rpartition("/")
        return f"{head}/" if head.endswith(":/") else head, base + url[end:]
    head, base = os.path.split(local(url))
    return head or ".", base


def file_name(url: str) -> str:
    """Return a file's name without the query and fragment of a web address, such as a signature."""
    base = split(url)[1]
    return base.partition("?")[0].partition("#")[0] if is_http(url) else base


def spelled(url: str) -> str:
    """Return a file's name as an index spells it: without the escapes that `sibling` adds to a web address."""
    name = file_name(url)
    return unquote(name) if is_http(url) else name


def join(folder: str, *names: str) -> str:
    """Join a folder and names, local or remote."""
    if not is_remote(folder):
        return os.path.join(local(folder), *names)
    return (folder if folder.endswith("://") else f"{folder.rstrip('/')}/") + "/".join(names)


def beginning(names: Iterable[str]) -> str:
    """Return the common prefix of names."""
    first, last = min(names := list(names)), max(names)
    same = (i for i, c in enumerate(first) if c != last[i])
    return first[: next(same, len(first))]


def sibling(url: str, name: str) -> str:
    """Return the path of the file `name`, spelled as in a checkpoint's index, in the folder of `url`.

    UnsafeCheckpoint if the name leaves that folder, or if it is a link that does (see `beside`).
    """
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0"):
        raise UnsafeCheckpoint(f"names the file {printable(name)!r}, which is not a plain name beside it", url=url)
    return beside(url, join(split(url)[0], _quoted(name, url)))


def within(folder: str, name: str) -> str:
    """Return the path of the file `name` in a folder, with the checks of `sibling`."""
    return sibling(join(folder, "."), name)


def beside(url: str, path: str) -> str:
    """Return `path`, a file that belongs to `url`; UnsafeCheckpoint if it is a link out of its folder.

    A symlink may leave the folder only the way the Hugging Face cache does it: snapshots/REV/name -> ../../blobs/HASH,
    and snapshots/REV/unet/name one level further up, or into a folder that CKPTCONV_LINKS lists (separated as in PATH).
    A link at `url` itself is followed, since the user typed it; the files next to it get no more rights by that.
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
    """Tell whether a local path is in a folder when all links are resolved, or in one that CKPTCONV_LINKS lists.

    Users list folders of their own there, such as a DVC cache or a scratch disk.
    """
    target = os.path.realpath(local(path))
    allowed = [r for r in os.environ.get("CKPTCONV_LINKS", "").split(os.pathsep) if os.path.isabs(r)]
    roots = map(os.path.realpath, [local(folder), *allowed])
    return any(os.path.commonpath([root, target]) == root for root in roots)


def _quoted(name: str, url: str) -> str:
    """Escape a name for a remote url, so that no part of it reads as a query, a fragment, or an escape."""
    if is_http(url):
        return quote(name, safe=" !$&'()*+,;=@[]{}^~`|")
    if is_remote(url) and ("?" in name or "#" in name):
        raise UnsafeCheckpoint(f"names the file {printable(name)!r}, which reads as more than a name there", url=url)
    return name
