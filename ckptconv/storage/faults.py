"""What a file system or a server refuses, as one of our errors."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import CkptError, StorageError


def refused(e: OSError, url: str) -> CkptError:
    """Say in one sentence what the file system refused."""
    if isinstance(e, FileNotFoundError):
        return StorageError("no such file or folder", url=url)
    if e.errno == errno.ENOSPC:
        return StorageError("the disk is full; nothing was changed", url=url)
    if e.errno == errno.EDQUOT:
        return StorageError("the disk quota is used up; nothing was changed", url=url)
    return StorageError((e.strerror or str(e) or type(e).__name__).lower(), url=url)


@contextmanager
def asking(url: str) -> Iterator[None]:
    """Make one kind of error of what a file system raises; those of cloud libraries are of no common family."""
    try:
        yield
    except CkptError:
        raise
    except OSError as e:
        raise refused(e, url) from e
    except NotImplementedError as e:
        raise StorageError("this kind of storage cannot do that (read-only?)", url=url) from e
    except Exception as e:  # the one place where a file system's surprise becomes our error
        text = str(e).split("\n")[0].split("?")[0][:300]  # a signed url ends with its signature
        raise StorageError(f"the storage answered with {type(e).__name__}: {text}", url=url) from e


@contextmanager
def spooling() -> Iterator[None]:
    """Name the temporary folder where that is what is full or missing."""
    try:
        yield
    except OSError as e:
        raise refused(e, tempfile.tempdir or os.environ.get("TMPDIR") or "the temporary folder") from e


__all__ = ["asking", "refused", "spooling"]
