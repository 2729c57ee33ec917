"""The file system of a url: fsspec's, of the kinds that are known to be safe with a server of strangers, or an archive.

CKPTCONV_SCHEMES      more schemes of fsspec that may be opened, separated by commas

fsspec knows many kinds of file systems. Some wait for a server without end, follow it to other hosts and send the
logins in .netrc there; some lead to other files, local ones among them. Only those that were examined are opened.
"""

from __future__ import annotations

import os
from typing import Any

from ..errors import StorageError, UsageError
from ..messages import brief, did_you_mean, links, printable
from . import web
from .archives import Archive
from .paths import is_http, is_remote, local

ARCHIVE = "zip"
SHOWN = ("s3", "gs", "hf", "http", "https")
KINDS = (*SHOWN, "s3a", "gcs", "memory", "file", ARCHIVE)
NEVER = ("reference", "local")  # a stranger's list of urls; local paths without the checks that they have here


class Connections:
    """What was opened so far in a run. emptied: file systems that keep listings, whose own were thrown away."""

    def __init__(self) -> None:
        self.archives: dict[str, Archive] = {}
        self.emptied: set[Any] = set()

    def clear(self) -> None:
        self.archives.clear()
        self.emptied.clear()


def connected(url: str, run: Connections | None = None) -> tuple[Any, Any]:
    """The file system of a remote url and the path within it; UsageError if it is of a kind that is not opened."""
    first, *rest = links(url)
    scheme, _, member = first.partition("://")
    _refuse_unknown(scheme, url)
    if scheme == ARCHIVE:
        if not rest:
            raise UsageError("zip:// needs an archive: zip://MEMBER::PATH or zip://MEMBER::https://...", url=url)
        return _archive("::".join(rest), run), member.strip("/")
    if not is_http(url):
        for link in url.split("::")[1:]:  # as fsspec sees them
            _refuse_unknown(link.partition("://")[0] if "://" in link else "file", url)
            if not rest or link.startswith(ARCHIVE):
                raise UsageError("is not a chain that can be read; zip://MEMBER::URL is", url=url)
    return _opened(url, run)


def _refuse_unknown(scheme: str, url: str) -> None:
    if scheme in NEVER:
        raise UsageError(f"{scheme}:// can lead to files that nobody named, and is not opened", url=url)
    if scheme in KINDS or scheme in map(str.strip, os.environ.get("CKPTCONV_SCHEMES", "").split(",")):
        return
    name = printable(brief(scheme, 30))
    raise UsageError(
        f"{name}:// is not opened, only {', '.join(f'{s}://' for s in SHOWN)} and zip://MEMBER::URL are"
        f"{did_you_mean(scheme, KINDS)}; copy the file to this machine, or allow it, if you trust what it leads to: "
        f"CKPTCONV_SCHEMES={name}",
        url=url,
    )


def _archive(url: str, run: Connections | None) -> Archive:
    """The archive at a path or url, whose directory is read once in a run."""
    if run and (found := run.archives.get(url)):
        return found
    found = Archive(url, *(connected(url, run) if is_remote(url) else _local(url)))
    if run:
        run.archives[url] = found
    return found


def _local(path: str) -> tuple[Any, str]:
    import fsspec

    return fsspec.filesystem("file"), os.path.abspath(local(path))


def _opened(url: str, run: Connections | None) -> tuple[Any, Any]:
    """What fsspec has for a url whose schemes were allowed; it caches no listings, since files may change."""
    import fsspec

    schemes = {link.partition("://")[0] for link in links(url)}
    if schemes & {"gs", "gcs"}:  # otherwise gcsfs asks for the kind of the bucket, which public ones tell nobody
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    options = {scheme: dict(web.client()) for scheme in schemes & {"http", "https"} if web.client()}
    try:
        if is_http(url):  # in whose `::` fsspec would see a chain
            (scheme,) = schemes
            return fsspec.filesystem(scheme, use_listings_cache=False, **options.get(scheme, {})), url
        found: tuple[Any, Any] = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except ValueError as e:
        raise StorageError(f"cannot be opened: {e}", url=url) from e
    if "hf" in schemes and not (run and found[0] in run.emptied):
        found[0].invalidate_cache()  # the Hub's file system keeps listings whatever it is told
        if run:
            run.emptied.add(found[0])
    return found


__all__ = ["Connections", "connected"]
