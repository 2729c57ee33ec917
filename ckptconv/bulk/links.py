"""Links in a tree that is searched for checkpoints; they may lead out of it only if `follow` is given."""

from __future__ import annotations

import errno
import os

from ..errors import CkptError, StorageError, UnsafeCheckpoint
from ..storage.faults import refused
from ..storage.files import is_remote, join, local, sibling
from ..storage.paths import inside

TEXT = "is a link that leads out of the given folder; follow_links=True follows it"
DEAD = "is a link to a file that does not exist"


def bad(folder: str, root: str, follow: bool) -> dict[str, CkptError]:
    """Links in a folder that lead nowhere, and out of the tree except those to the blobs of a Hugging Face cache."""
    found: dict[str, CkptError] = {}
    if is_remote(folder):
        return found
    try:
        with os.scandir(local(folder)) as entries:
            links = [e.name for e in entries if e.is_symlink()]
    except OSError as e:
        raise refused(e, folder) from e
    for name in links:
        url = join(folder, name)
        try:
            os.stat(local(url))
        except OSError as e:
            gone = isinstance(e, FileNotFoundError) or e.errno == errno.ELOOP
            found[name] = StorageError(DEAD, url=url) if gone else refused(e, url)
            continue
        if not follow and not inside(url, root):
            try:
                sibling(join(folder, "."), name)
            except CkptError:
                found[name] = UnsafeCheckpoint(TEXT, url=url)
    return found
