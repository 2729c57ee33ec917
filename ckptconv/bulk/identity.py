"""By what a later run of a zoo knows a source, and an output, as the one of the run before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from urllib.parse import unquote

from ..messages import links, redacted
from ..storage import files
from ..storage.paths import file_name
from .found import FoundCheckpoint

AND = re.compile("[?&;]|%3f|%26|%3b", re.IGNORECASE)
IS = re.compile("=|%3d", re.IGNORECASE)
# Names of what opens doors and does not say which file is meant: passwords, tokens, and signatures with what belongs to
# them, those of Azure (sig, se ...) among them. It differs each time that a url is signed. An @: a login with a slash.
SECRET = re.compile(
    r"passw|passphrase|token|secret|signa|signed|auth(?!or)|credential|expir|policy|session|access.?key|key.?pair"
    r"|x-(amz|goog|ms)-|googleaccessid|@|(\A|[-_.])(pass|pwd|sig|s[eprtv]|sip|spr|sdd|srt|ss|sk[etsv]|skoid|sktid)\Z",
    re.IGNORECASE,
)


def identity(found: FoundCheckpoint) -> tuple[tuple[str, int, int], ...]:
    """The name, the size and the time of each file; in the place of the time a hash of its ETag if it has one."""
    return tuple((file_name(url), s.size, _number(s.etag) if s.etag else s.mtime) for url, s in found.files)


def _number(text: str) -> int:
    return int.from_bytes(_digest(text, 7), "little")


def asked(source: str) -> str:
    """A hash of what a url asks its servers for and `redacted` cuts from it, or ''.

    Of `https://host/get?id=1&sig=...` it is `id=1`. Logins and signatures are left out: of a hash of a short secret
    the secret can be guessed, and a url that was signed anew means the same file.
    """
    words = list[str]()
    for link in links(source) if redacted(source) != source else ():
        shown = redacted(link).partition("://")[2].removesuffix("...")
        hidden = link.partition(shown)[2] if shown else ""
        told = (w for w in AND.split(hidden.partition("#")[0]) if w)
        words += (w for w in told if not SECRET.search(unquote(IS.split(w)[0])))
    return _digest(repr(words), 8).hex() if words else ""


def _digest(text: str, size: int) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def content(found: FoundCheckpoint) -> str:
    """A hash of all bytes of all files of a checkpoint."""
    return _hash(url for url, _ in found.files)


def written(folder: str, names: Iterable[str]) -> str:
    """A hash of all bytes of the files of an output."""
    return _hash(files.join(folder, name) for name in names)


def _hash(urls: Iterable[str]) -> str:
    h = blake2b(digest_size=16)
    for url in urls:
        with files.Reader(url) as f:
            h.update(f.size.to_bytes(8, "little"))  # the same bytes in files of other sizes: other content
            for at in range(0, f.size, 2**22):
                h.update(f.read(at, min(2**22, f.size - at)))
    return h.hexdigest()


__all__ = ["asked", "content", "identity", "written"]
