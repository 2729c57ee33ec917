"""NumPy's .npz: a zip of .npy files, one per array, stored or deflated.

    "PK" header "w.npy"   93 "NUMPY" 1 0 {'descr': '<f4', ...}   elements
    "PK" header "b.npy"   ...
    directory

A stored array is read in place. The zip's checksum covers head and elements; that of the elements alone follows from
it, because CRCs combine. A deflated array is inflated as a stream. Output is stored, with aligned elements. Metadata of
our own, such as the order of a Keras model's layers (own_metadata.py), is in extra fields that NumPy ignores.
Specification: numpy.savez; npy.py for the arrays, zip.py for the archive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..checkpoint import Checkpoint, Note, Tensor
from ..errors import CorruptCheckpoint, Unrepresentable, UnsafeCheckpoint
from ..messages import listing, shortened
from ..moves.part import Coded, Data, Span
from ..storage.checksum import combine, crc
from ..storage.files import Reader, Seen, split
from . import Located, own_metadata
from .npy import MAX_HEAD, OBJECTS, SUFFIX, Head, collect, head_bytes, head_text, parse_head, unheld, unpickled
from .placement import Patch, Placement, refuse_shards, refuse_unheld
from .table import Reading
from .zip import (
    STORED,
    Content,
    Member,
    StoredZip,
    contents,
    fields,
    known,
    members,
)

OURS = 0x4B43  # "CK": the extra field of the first member, and of the next where it is long
LONGEST = 65_000
NEAR = 256  # bytes that are there already over a network, with the head unless its dtype or shape is long


def sniff(seen: Seen) -> int:
    if any(name.endswith(SUFFIX) for name in seen.members):
        return 2 + seen.base.endswith(".npz")
    return int(seen.base.endswith(".npz") and not seen.is_dir)


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        files = members(f, files=False)
        if twins := [name for name in files if name + SUFFIX in files]:  # NumPy reads either, depending on the key
            raise UnsafeCheckpoint(f"members that are taken for one another:\n{listing(twins)} (and {SUFFIX})")
        arrays = [
            (name.removesuffix(SUFFIX), *_array(f, m, how.opaque)) for name, m in files.items() if name.endswith(SUFFIX)
        ]
        ours = b"".join(text for m in files.values() for text in fields(m.extra, OURS))
    others = tuple(name for name in files if not name.endswith(SUFFIX))
    if others and not arrays:
        raise CorruptCheckpoint(f"is a zip without any {SUFFIX} member; it holds {shortened(others)}")
    found = collect(arrays, (url,), "npz", Note("unread", "members other than .npy", others, tensors=False))
    return replace(found, metadata=own_metadata.unpack(ours)) if ours else found


def _array(f: Reader, m: Member, opaque: bool) -> tuple[Head, Data | Checkpoint]:
    """Parse one array's head; its elements are a span if stored, otherwise `Coded`."""
    start = _head(f, m)
    with Located(f.url, m.name):
        head = parse_head(start)
    coded = Coded(__name__, f.url, m.name, m.size - head.size)
    if head.descr == OBJECTS:
        if m.size > 8 * m.packed + 2**20:
            raise UnsafeCheckpoint(f"{m.packed} bytes expand to a pickle of {m.size}", tensor=m.name)
        return head, unpickled(coded.size, lambda: b"".join(decode(coded)), f.url, opaque, m.packed)
    if head.kind is None:
        for _ in contents(f, m, strict=True):  # a flipped bit can make the dtype unknown
            pass
        return head, Span(f.url, m.start + head.size, 0)
    if head.size + head.nbytes != m.size:
        raise CorruptCheckpoint(
            f"{head.descr} of shape {head.shape} needs {head.nbytes} bytes after byte {head.size}, there are {m.size}",
            tensor=m.name,
        )  # fmt: skip
    if m.method != STORED:
        return head, coded
    # crc(head + elements) = combine(crc(head), crc(elements)), and combining is an exclusive or
    check = combine("crc32", crc("crc32", start[: head.size]), 0, head.nbytes) ^ m.crc
    if not head.nbytes and check:
        raise CorruptCheckpoint("is damaged: its CRC-32 is wrong", tensor=m.name)
    return head, Span(f.url, m.start + head.size, head.nbytes, f"crc32:{check:08x}")


def _head(f: Reader, m: Member) -> bytes:
    """The first bytes of a member, with all of its array's head."""
    pieces = contents(f, m, NEAR)
    start = _taken(pieces, min(NEAR, m.size))
    return start + _taken(pieces, min(head_text(start)[1], MAX_HEAD, m.size) - len(start))


def _taken(pieces: Iterator[bytes], size: int) -> bytes:
    """At least the next `size` bytes; the end is not reached, where the checksum is compared."""
    taken = b""
    while len(taken) < size:
        taken += next(pieces)
    return taken


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of one array as stored; the checksum is verified at the end."""
    with Reader(coded.url) as f:
        m = known(coded.url, f.stamp, False)[coded.key]
        pieces = contents(f, m, strict=True)
        start = _taken(pieces, min(MAX_HEAD, m.size))
        yield start[parse_head(start).size :]
        yield from pieces


# --- writing ----------------------------------------------------------------------------------------------------


class NpzWriter:
    """A stored zip in the order of the checkpoint, the elements of every array aligned to 64 bytes."""

    def __init__(self, url: str, max_shard_size: int | None = None) -> None:
        self.file = split(url)[1]
        self.limit = max_shard_size

    def cannot_hold(self, tensor: Tensor) -> str:
        if "\0" in tensor.name:
            return "zip readers truncate names at a NUL"
        return unheld(tensor) or "the name is too long" * (len(tensor.name.encode()) > 65000)

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "npz")
        refuse_shards(checkpoint, self.limit, "an .npz")
        twins = [name for name in checkpoint if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in checkpoint]
        if twins:
            raise Unrepresentable(f"NumPy reads {twins[0]!r} under the name without {SUFFIX}, which is also a tensor")
        ours = own_metadata.pack(checkpoint.metadata)
        pieces = [ours[at : at + LONGEST] for at in range(0, len(ours), LONGEST)]
        fits = len(pieces) <= len(checkpoint)
        extras = [struct.pack("<2H", OURS, len(piece)) + piece for piece in (pieces if fits else ())]
        extras += [b""] * (len(checkpoint) - len(extras))
        inside = {
            name + SUFFIX: Content(head_bytes(t), name, t.nbytes, extra)
            for (name, t), extra in zip(checkpoint.items(), extras, strict=True)
        }
        self.zip = StoredZip(self.file, inside)
        return self.zip.placement()._replace(notes=own_metadata.lost_metadata(checkpoint.metadata, "npz", ours=fits))

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return self.zip.headers(checks)


writer = NpzWriter
