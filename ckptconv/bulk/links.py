"""Links in a tree that is searched for checkpoints; they may lead out of it only if `follow` is given."""

from __future__ import annotations

import os

from ..errors import CkptError, StorageError, UnsafeCheckpoint
from ..storage.files import join, local, sibling
from ..storage.paths import inside

TEXT = "is a link that leads out of the given folder; follow_links=True follows it"


def bad(folder: str, root: str, follow: bool) -> dict[str, CkptError]:
    """Dead links in a folder, and links out of the tree except those to the blobs of a Hugging Face cache."""
    found: dict[str, CkptError] = {}
    with os.scandir(local(folder)) as entries:
        links = [e.name for e in entries if e.is_symlink()]
    for name in links:
        url = join(folder, name)
        if not os.path.exists(local(url)):
            found[name] = StorageError("is a link to a file that does not exist", url=url)
        elif not follow and not inside(url, root):
            try:
                sibling(join(folder, "."), name)
            except CkptError:
                found[name] = UnsafeCheckpoint(TEXT, url=url)
    return found
