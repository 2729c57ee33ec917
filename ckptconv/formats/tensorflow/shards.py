"""The data files of a bundle: P.data-SSSSS-of-NNNNN, each raw elements without any header."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...errors import CkptError, CorruptCheckpoint, StorageError
from ...messages import listing
from ...storage.files import Reader, exists, names, sibling, split
from . import locate

if TYPE_CHECKING:
    from . import messages_pb2 as pb


MAX_PROBLEMS = 100  # shards of which an error tells


class Entry(NamedTuple):
    """A BundleEntryProto without the message around it, which would weigh four times as much."""

    dtype: int
    shape: bytes  # TensorShapeProto; most entries share a few
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[pb.TensorSliceProto, ...]


class Shards:
    """The data files: their names, and how far they must reach."""

    def __init__(self, index: str, count: int) -> None:
        self.index, self.count = index, count
        self.base = split(index)[1].removesuffix(".index")
        self.reach: dict[int, int] = {}
        self.urls: dict[int, str] = {}
        self.beside: list[str] | None = None  # names in the folder, once a shard is missing

    def url(self, shard: int, end: int, name: str) -> str:
        """The url of a shard of which the bytes up to `end` are needed."""
        reach = self.reach.get(shard)
        if reach is None:
            if not 0 <= shard < self.count:
                text = f"lies in shard {shard}, but there are {self.count}"
                raise CorruptCheckpoint(text, url=self.index, tensor=name)
            self.urls[shard] = self._find(shard)
            reach = 0
        if end >= reach:
            self.reach[shard] = end
        return self.urls[shard]

    def used(self) -> tuple[str, ...]:
        return tuple(self.urls[s] for s in sorted(self.urls))

    def _find(self, shard: int) -> str:
        """The file of a shard. A merge in which one part was empty leaves a header that counts too many shards."""
        url = sibling(self.index, f"{self.base}.data-{shard:05d}-of-{self.count:05d}")
        if exists(url):
            return url
        if self.beside is None:
            self.beside = [n for n in names(split(self.index)[0]) if n.startswith(self.base + ".data-")]
        found = map(locate.DATA.fullmatch, self.beside)
        counts = {m[3] for m in found if m and m[1] == self.base}
        if len(counts) != 1 or int(min(counts)) == self.count:
            return url
        return sibling(self.index, f"{self.base}.data-{shard:05d}-of-{min(counts)}")

    def check(self, items: dict[bytes, Entry]) -> None:
        """Compare the files' sizes with what the entries need; all problems in one error."""
        problems: list[str] = []
        kind: type[CkptError] = StorageError
        held: dict[int, list[tuple[bytes, Entry]]] = {}
        for key, entry in items.items():
            if not entry.slices:
                held.setdefault(entry.shard_id, []).append((key, entry))
        for shard, url in sorted(self.urls.items()):
            text = self._problem(shard, url, held.get(shard, [])) if len(problems) < MAX_PROBLEMS else ""
            if text:
                problems.append(text)
                kind = kind if "is missing" in text else CorruptCheckpoint
        if problems:
            raise kind("\n".join(problems), url=self.index)

    def _problem(self, shard: int, url: str, mine: list[tuple[bytes, Entry]]) -> str:
        file = split(url)[1]
        if not exists(url):
            held = listing(_text(k) for k, _ in mine)
            return f"the shard {file} is missing; it holds {len(mine)} tensors:\n{held}"
        with Reader(url) as f:
            size = f.size
            head = f.read(0, min(64, size))
        if head.startswith(b"version https://git-lfs"):
            return f"the shard {file} is a git-lfs pointer; run `git lfs pull` where it came from"
        if size >= self.reach[shard]:
            return ""
        cut = [_text(k) for k, e in mine if e.offset + e.size > size]
        return (
            f"the shard {file} has {size} bytes, {self.reach[shard]} are needed (truncated?); "
            f"{len(cut)} tensors are cut:\n{listing(cut)}"
        )


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
