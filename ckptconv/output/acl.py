"""Access control lists of Linux, which stand beside the permissions of a file or in their place.

    version, then a tag, permissions and a number for each entry             linux/posix_acl_xattr.h

Where there is one, the bits of the group in a file's mode are a mask for all entries but the owner's and the others'.
"""

from __future__ import annotations

import os
import struct

NAME = "system.posix_acl_access"
ENTRY = struct.Struct("<HHI")
USER, OWNING_GROUP, GROUP, MASK = 0x02, 0x04, 0x08, 0x10  # tags; USER and GROUP name one by its number
READ = 4


def of(path: str) -> bytes:
    """The list of a file or folder; b'' if it has none, or if this system has no such lists."""
    try:
        return os.getxattr(path, NAME) if hasattr(os, "getxattr") else b""
    except OSError:
        return b""


def readers(mode: int, acl: bytes) -> int:
    """Those of the bits 0o044 whose bearers may all read a file with this mode and this list.

    Where a single user or group is shut out, nobody but the owner counts: a mode cannot say it.
    """
    found = mode & 0o044
    if len(acl) < 4 or (len(acl) - 4) % ENTRY.size:
        return found
    entries = list(ENTRY.iter_unpack(acl[4:]))
    mask = next((permissions for tag, permissions, _ in entries if tag == MASK), 7)
    for tag, permissions, _ in entries:
        if not permissions & mask & READ:
            if tag in (USER, GROUP):
                return 0
            if tag == OWNING_GROUP:
                found &= ~0o040
    return found


def drop(fd: int) -> bool:
    """Take the list from an open file or folder, which has it from the folder in which it was made; whether it had."""
    try:
        if hasattr(os, "removexattr"):
            os.removexattr(fd, NAME)
            return True
    except OSError:  # it has none
        pass
    return False


__all__ = ["drop", "of", "readers"]
