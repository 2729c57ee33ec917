"""Read complete tensors: arrays, windows in bounded memory, content hashes; and verify checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from ..dtypes import DType
from ..errors import CorruptCheckpoint, UsageError
from ..messages import listing, many, printable, redacted
from ..storage import checksum
from ..storage.files import Reader, Stamp, is_remote
from .gather import read_pieces, read_strings
from .log import CHUNK, HASH, Log, Record, chunk_digests
from .part import Coded, Data, Part, Piece, Span, Stored, is_vast
from .sources import Decoded, Sources

if TYPE_CHECKING:
    from typing import TypeGuard

    from .copy import Array

S = TypeVar("S")
T = TypeVar("T")


def spans_of(tensors: Mapping[str, Stored]) -> Iterator[Span]:
    """Every span with a checksum that the tensors use."""
    for t in tensors.values():
        for part in t.parts:
            if isinstance(part.data, Span) and part.data.check:
                yield part.data


# --- the content hash -------------------------------------------------------------------------------------------


def content_hash(t: Stored, digests: Iterable[bytes]) -> str:
    """The hash of dtype, shape and logical bytes: the same for equal tensors in any format.

    XXH3 of 128 bits, of: 'ckptconv.tensor.1', NUL, the dtype's name, NUL, the shape as JSON without spaces, NUL, then
    the 16-byte XXH3 of each 4 MiB of the tensor's bytes (C order, little-endian).
    """
    return _hashed(t.dtype.name, _in_json(t.shape), digests)


def _in_json(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _hashed(kind: str, shape: str, digests: Iterable[bytes]) -> str:
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(f"ckptconv.tensor.1\0{kind}\0{shape}\0".encode() + b"".join(digests))


def hash_check(t: Stored, digits: str) -> str:
    """The `check` of a span that holds the complete tensor in C order; `digits` is its content hash."""
    return f"{HASH}:{digits}:{t.dtype.name}:{_in_json(t.shape)}"


def hash_tensor(t: Stored, sources: Sources) -> str:
    """Read a tensor in bounded memory and hash it."""
    if t.dtype.kind == "s":
        return hash_array(t, read_strings(t))
    return content_hash(t, (d for window in windows(t, sources) for d in chunk_digests(memoryview(window))))


def hash_array(t: Stored, array: Array) -> str:
    """Hash a tensor that was read; a string tensor hashes each element's length and bytes."""
    if t.dtype.kind != "s":
        return content_hash(t, chunk_digests(memoryview(array.reshape(-1).view("u1"))))
    packed = bytearray()  # joined at once, each would be an object of its own first
    for s in array.reshape(-1):
        packed += len(s).to_bytes(8, "little") + s
    return content_hash(t, chunk_digests(memoryview(packed)))


def windows(t: Stored, sources: Sources, size: int = 2 * CHUNK) -> Iterator[Array]:
    """The tensor's bytes in order, `size` at a time, in one buffer that is reused; checksums are verified."""
    step, reads = size // max(1, t.dtype.itemsize), list[Record]()
    yield from stretches(t, ([(lo, min(t.count, lo + step))] for lo in range(0, t.count, step)), sources, reads)
    check_reads(reads, sources, spans_of({t.name: t}))


def stretches(
    t: Stored, groups: Iterable[Sequence[tuple[int, int]]], sources: Sources, reads: list[Record] | None = None
) -> Iterator[Array]:
    """The bytes of some elements only: for each group of ranges [lo, hi), which ascend, one array that is reused.

    Checksums and hashes, which are of all bytes, are not verified; `reads` is given what that needs.
    """
    import numpy as np

    buffer = np.empty(0, "u1")
    with Decoded(t.parts, sources) as decoded:
        for group in groups:
            parts, pieces, size = decoded.between(group[0][0], group[-1][1]), list[Piece](), 0
            for lo, hi in group:
                pieces.append(Piece(t.name, t.dtype, lo, hi, size, parts))
                size += pieces[-1].size
            if size > len(buffer):
                buffer = np.empty(size, "u1")
            got = read_pieces(pieces, memoryview(buffer[:size]), sources)
            if reads is not None:
                reads += got
            yield buffer[:size]


def read_array(t: Stored, sources: Sources | None = None) -> Array:
    """Read one tensor whole, checksums verified; strings as an object array of bytes."""
    if t.dtype.kind == "s":
        return read_strings(t)
    if sources is None:
        with Sources() as own:
            return read_array(t, own)
    import numpy as np

    target = np.empty(t.nbytes, "u1")
    fill_array(t, target, sources)
    if not t.count and is_vast(t.shape):
        raise UsageError(f"NumPy cannot represent the shape {list(t.shape)}, although it is empty", tensor=t.name)
    return target.view(t.dtype.np).reshape(t.shape)


def fill_array(t: Stored, target: Array, sources: Sources) -> None:
    """Read one tensor into bytes that are there, `t.nbytes` of them, checksums verified; damaged bytes stay there."""
    reads = read_pieces((Piece(t.name, t.dtype, 0, t.count, 0, t.parts),), memoryview(target), sources)
    check_reads(reads, sources, spans_of({t.name: t}))


# --- checks -----------------------------------------------------------------------------------------------------


def check_reads(reads: Iterable[Record], sources: Sources, spans: Iterable[Span]) -> int:
    """Verify every checked span and return the number of bytes; CorruptCheckpoint lists all damaged spans."""
    verified, bad = 0, dict[Span, str]()
    pieces: dict[Span, list[Record]] = {span: [] for span in spans}
    for r in reads:
        pieces.setdefault(r.of, []).append(r)
    for span, got in pieces.items():
        kind, want = span.check.split(":")[:2]
        value = _value(span, _tiling(got, span.size)) or sources.value(span, partial(_read_again, span))
        verified += span.size
        if value != want:
            bad[span] = f"bytes {span.start} to {span.start + span.size}: {kind} is {value}, should be {want}"
    if bad:
        raise CorruptCheckpoint(_damage(bad), url=next(iter(bad)).url)
    return verified


def _damage(bad: Mapping[Span, str]) -> str:
    urls = {span.url for span in bad}
    where = [what if len(urls) == 1 else f"{printable(redacted(span.url))} {what}" for span, what in bad.items()]
    count = many(len(bad), "damaged tensor")
    hashes = any(span.check.startswith(HASH) for span in bad)
    hint = "; or a program changed them and kept the old hashes, which verify=False accepts" if hashes else ""
    return f"{count}, by the file's own {'hashes' if hashes else 'checksums'}{hint}:\n{listing(where)}"


def _tiling(records: list[Record], size: int) -> list[Record]:
    """The records in order, each once, if they are all of a span of this size; otherwise []."""
    tiles, at = sorted(set(records), key=attrgetter("start", "size")), 0
    for r in tiles:
        if r.start != at:
            return []
        at += r.size
    return tiles if at == size else []


def _value(span: Span, tiles: list[Record]) -> str:
    """The hash or the CRC of all of a span, of what was recorded of its parts; '' if that is not enough."""
    kind, _, *described = span.check.split(":")
    if kind != HASH:
        crc = checksum.combine_all(kind, ((r.crc, r.size) for r in tiles))
        return f"{crc:08x}" if tiles else ""
    if not tiles or any(r.start % CHUNK or len(r.digests) != -(-r.size // CHUNK) for r in tiles):
        return ""
    return _hashed(described[0], described[1], (d for r in tiles for d in r.digests))


def _read_again(span: Span, reader: Reader) -> str:
    log = Log()
    for at in range(0, span.size, CHUNK):
        log.was_read(span, at, memoryview(reader.read(span.start + at, min(CHUNK, span.size - at))))
    return _value(span, log.read or [Record(span, 0, 0, 0)])


# --- files that were opened before --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """What a file said when it was opened.

    stamps: how those of all files begin that were looked at. hash, of: the content hash that the file carries of the
    tensor of this dtype, this shape and these parts, if its only span does not have it as its check.
    """

    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    hash: str = ""
    of: tuple[DType, tuple[int, ...], tuple[Part, ...]] | None = None

    def __reduce__(self) -> tuple[type[Opened], tuple[object, ...]]:
        """Without stamps: on another machine the same file has others."""
        return Opened, ({}, self.hash, self.of)

    def hash_of(self, t: Stored) -> str:
        """The hash that a tensor must have; '' if there is none, or if it was made of the one that was opened."""
        kind, shape, parts = self.of or (None, None, None)
        return self.hash if (t.dtype, t.shape) == (kind, shape) and t.parts is parts else ""

    def read(self, t: Stored) -> Array:
        """Read a tensor whole; CorruptCheckpoint if its file was changed since, or if it does not match its hash."""
        with Sources(stamps=self.stamps) as sources:
            array = read_array(t, sources)
        refuse_changed([t], self.stamps)
        if (known := self.hash_of(t)) and hash_array(t, array) != known:
            raise CorruptCheckpoint("its content does not match its hash", tensor=t.name)
        return array


def refuse_changed(tensors: Iterable[Stored], stamps: Mapping[str, Stamp]) -> None:
    """CorruptCheckpoint if a file that tensors are in is no longer the one that was opened."""
    for url in {d.url for d in (p.data for t in tensors for p in t.parts) if _unseen(d)} & stamps.keys():
        with Reader(url) as now:
            if now.stamp[: len(stamps[url])] != stamps[url]:
                raise CorruptCheckpoint("changed since it was opened", url=url)


def _unseen(data: Data) -> TypeGuard[Span | Coded]:
    """Whether reading alone does not tell that a file was changed: a store names its version with each answer."""
    return isinstance(data, Coded) or (isinstance(data, Span) and not is_remote(data.url))


def stamps_of(opened: Iterable[Opened]) -> Mapping[str, Stamp]:
    """The stamps of all files; CorruptCheckpoint if one was opened before and after it was changed."""
    known: dict[str, Stamp] = {}
    for stamps in {id(o.stamps): o.stamps for o in opened}.values():
        for url, stamp in stamps.items():
            if known.setdefault(url, stamp) != stamp:
                raise CorruptCheckpoint("changed since it was opened by one of these tensors", url=url)
    return known


# --- many tensors -----------------------------------------------------------------------------------------------


def each(items: Iterable[S], do: Callable[[S, Sources], T], workers: int = 1) -> list[T]:
    """Apply `do` to all items in `workers` threads; return the results in order."""
    with Sources() as sources:
        if workers < 2:
            return [do(item, sources) for item in items]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers, thread_name_prefix="ckptconv") as pool:
            return list(pool.map(lambda item: do(item, sources), items))
