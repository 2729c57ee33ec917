"""blosc: what tensorstore wrote is read bit for bit; whatever else is refused, and gives no more than fits."""

from __future__ import annotations

import struct

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import FIXTURES, refused
from orbax_golden import assert_equal, expected

import ckptconv
from ckptconv.checkpoint import Checkpoint
from ckptconv.errors import CkptError
from ckptconv.formats.orbax import codecs
from ckptconv.storage.ranges import InMemory

GOLDEN = FIXTURES / "orbax" / "zarr" / "blosc"  # made by fixtures/make/by_tensorstore.py
OWN = "v2/blosclz1"


def test_tensorstore() -> None:
    found, want = ckptconv.open(GOLDEN), expected(GOLDEN.with_suffix(".npz"))
    want.pop(OWN)
    assert_equal(Checkpoint({n: t for n, t in found.items() if n != OWN}), want)
    assert np.array_equal(found["v3/lz4"][12:14, 3::50], want["v3/lz4"][1][12:14, 3::50])
    with refused("packed with blosclz, which is not read; save the array with lz4"):
        found[OWN].numpy()


def chunk(
    *streams: bytes, flags: int = 1 << 5, element: int = 1, size: int = 200, block: int = 200, **more: int
) -> bytes:
    """One block of blosc with these streams, each after its size."""
    body = b"".join(struct.pack("<i", more.get("length", len(s))) + s for s in streams)
    begins = struct.pack("<i", more.get("begin", 20))
    packed = more.get("packed", 16 + len(begins) + len(body))
    return struct.pack("<4B3I", more.get("version", 2), 1, flags, element, size, block, packed) + begins + body


PLAIN = bytes(range(200))
LZ4, SHORT, BOMB = (bytes(cramjam.lz4.compress_block(d, store_size=False)) for d in (PLAIN, PLAIN[:50], bytes(10**6)))


def read(raw: bytes, most: int = 200) -> bytes:
    return b"".join(codecs.blosc_pieces(InMemory("u", raw), 0, len(raw), most))


READ = {
    "packed": chunk(LZ4),
    "a stream as it is": chunk(PLAIN),
    "stored": struct.pack("<4B3I", 2, 1, 2, 1, 200, 200, 216) + PLAIN,
    "streams": chunk(PLAIN[:128], PLAIN[128:] + bytes(56), element=2, size=256, block=256, flags=32),
}


@pytest.mark.parametrize("case", READ)
def test_layouts(case: str) -> None:
    got = read(READ[case], 256)
    assert got[:200] == PLAIN


REFUSED = {
    "nothing": (b"", "0 bytes at byte 0 are too few for blosc"),
    "a version": (chunk(LZ4, version=3), "unknown version 3"),
    "shuffled by bytes and by bits": (chunk(LZ4, flags=37), "unknown version 2 or flags 37"),
    "another end": (chunk(LZ4, packed=1000), "does not end where it says"),
    "blocks of a gigabyte": (chunk(LZ4, block=2**30), "blocks of no or of too many bytes"),
    "blocks without end": (chunk(LZ4, block=1), "is too short for its blocks"),
    "more than fits": (chunk(LZ4, size=201), "announces 201 bytes, where at most 200 fit"),
    "before the chunk": (chunk(LZ4, begin=-4), "a stream that lies outside"),
    "behind the chunk": (chunk(LZ4, begin=10**6), "a stream that lies outside"),
    "of less than nothing": (chunk(LZ4, length=-1), "a stream that lies outside"),
    "of another size": (chunk(SHORT), "50 bytes, where 200"),
    "a bomb": (
        chunk(BOMB),
        "does not unpack to 200 bytes",
    ),
    "damaged": (chunk(b"\xff" * 30), "does not unpack to 200 bytes"),
    "stored, too short": (struct.pack("<4B3I", 2, 1, 2, 1, 200, 200, 116) + PLAIN[:100], "does not end where it says"),
    "another compressor": (chunk(LZ4, flags=7 << 5), "its compressor number 7, which is not read"),
    "streams that do not fill it": (
        chunk(*[bytes(133)] * 3, element=3, size=400, block=400),
        "do not fill",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    raw, words = REFUSED[case]
    with refused(words):
        read(raw, 400 if "fill it" in case else 200)


@given(st.data())
def test_whatever_is_changed_gives_no_more_than_fits(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(sorted(READ.values()))))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    total = 0
    try:
        for piece in codecs.blosc_pieces(InMemory("u", bytes(raw)), 0, len(raw), 256):
            total += len(piece)
    except CkptError:
        pass
    assert total <= 256


@pytest.mark.parametrize("element", [1, 2, 3, 16])
@pytest.mark.parametrize("count", [8, 24, 800])
def test_bits_are_put_back_in_their_order(count: int, element: int) -> None:
    """Bit k of byte j of all elements stands together, the first element's in the lowest bit."""
    data = np.random.default_rng(count).integers(0, 256, (count, element), dtype="u1")
    bits = np.unpackbits(data[:, :, None], axis=2, bitorder="little").transpose(1, 2, 0)
    shuffled = np.packbits(bits, axis=2, bitorder="little").tobytes()
    stored = chunk(shuffled, element=element, size=len(shuffled), block=len(shuffled), flags=4 | 16 | 32)
    assert read(stored, len(shuffled)) == data.tobytes()


def test_a_checksum_around_it() -> None:
    raw = chunk(LZ4)
    summed = raw + struct.pack("<I", codecs.crc("crc32c", raw))
    assert b"".join(codecs.unpack(["blosc", "crc32c"], InMemory("u", summed), 0, len(summed), 200)) == PLAIN
