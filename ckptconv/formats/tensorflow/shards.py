"""The data files of a bundle: P.data-SSSSS-of-NNNNN, each raw elements without any header."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...errors import CkptError, CorruptCheckpoint, StorageError
from ...messages import fold, listing, many
from ...storage.files import Reader, exists, names, sibling, split
from ...storage.paths import spelled
from . import locate

if TYPE_CHECKING:
    from . import messages_pb2 as pb


MAX_PROBLEMS = 100  # shards listed in an error


class BundleEntry(NamedTuple):
    """The fields of a BundleEntryProto; the message itself would take four times the memory."""

    dtype: int
    shape: bytes  # TensorShapeProto; most entries share a few
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[pb.TensorSliceProto, ...]


class Shards:
    """The data files of a bundle: their names and the sizes that the entries require."""

    def __init__(self, index: str, count: int) -> None:
        self.index, self.count = index, count
        self.base = spelled(index).removesuffix(".index")
        self.reach: dict[int, int] = {}
        self.urls: dict[int, str] = {}
        self.beside: set[str] | None = None  # numbers of shards by the names in the folder, once a shard is missing

    def url(self, shard: int, end: int, name: str) -> str:
        """The URL of a shard; records that its bytes up to `end` are needed."""
        reach = self.reach.get(shard)
        if reach is None:
            if not 0 <= shard < self.count:
                text = f"is in shard {shard}, but the number of shards is {self.count}"
                raise CorruptCheckpoint(text, url=self.index, tensor=name)
            self.urls[shard] = self._find(shard)
            reach = 0
        if end >= reach:
            self.reach[shard] = end
        return self.urls[shard]

    def used(self) -> tuple[str, ...]:
        return tuple(self.urls[s] for s in sorted(self.urls))

    def _find(self, shard: int) -> str:
        """The file of a shard. A merge with an empty part writes a header that counts too many shards."""
        url = sibling(self.index, f"{self.base}.data-{shard:05d}-of-{self.count:05d}")
        if exists(url):
            return url
        if self.beside is None:
            matches = map(locate.DATA.fullmatch, names(split(self.index)[0]))
            self.beside = {m[3] for m in matches if m and m[1] == self.base}
        if len(self.beside) != 1 or int(min(self.beside)) == self.count:
            return url
        return sibling(self.index, f"{self.base}.data-{shard:05d}-of-{min(self.beside)}")

    def check(self, items: dict[bytes, BundleEntry]) -> None:
        """Compare the sizes of the files with those that the entries need; one error lists all problems."""
        problems: list[str] = []
        kind: type[CkptError] = StorageError
        for shard, url in sorted(self.urls.items()):
            text = self._problem(shard, url, items) if len(problems) < MAX_PROBLEMS else ""
            if text:
                problems.append(text)
                kind = kind if "is missing" in text else CorruptCheckpoint
        if problems:
            raise kind("\n  ".join(problems), url=self.index)

    def _problem(self, shard: int, url: str, items: dict[bytes, BundleEntry]) -> str:
        file, entries = split(url)[1], ((k, e) for k, e in items.items() if e.shard_id == shard and not e.slices)
        if not exists(url):
            held = [_text(k) for k, _ in entries]
            what = f"it holds {many(len(held), 'tensor')}:\n{listing(map(str, fold(held)))}"
            return f"the shard {file} is missing; {what}"
        with Reader(url) as f:
            size = f.size
            head = f.read(0, min(64, size))
        if head.startswith(b"version https://git-lfs"):
            return f"the shard {file} is a git-lfs pointer; run `git lfs pull` in its repository"
        if size >= self.reach[shard]:
            return ""
        cut = [_text(k) for k, e in entries if e.offset + e.size > size]
        return (
            f"the shard {file} has {size} bytes, {self.reach[shard]} are needed (truncated?); "
            f"this affects {many(len(cut), 'tensor')}:\n{listing(cut)}"
        )


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
