"""Checksums and their combination."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, strategies as st

from ckptconv.storage import checksum


@pytest.mark.parametrize(
    ("data", "plain", "masked"),
    [
        (b"", 0x00000000, 0xA282EAD8),
        (b"123456789", 0xE3069283, 0xC78AB0E5),
        (bytes(32), 0x8A9136AA, 0x0FD7FFFA),
    ],
)
def test_crc32c_vectors(data: bytes, plain: int, masked: int) -> None:
    assert checksum.crc("crc32c", data) == plain
    assert checksum.mask(plain) == masked
    assert checksum.unmask(masked) == plain


@given(st.sampled_from(["crc32", "crc32c"]), st.lists(st.binary(max_size=300), max_size=5))
def test_combining_equals_the_whole(kind: str, pieces: list[bytes]) -> None:
    parts = [(checksum.crc(kind, p), len(p)) for p in pieces]
    assert checksum.combine_all(kind, parts) == checksum.crc(kind, b"".join(pieces))


@given(st.binary(), st.binary())
def test_extending_equals_the_whole(a: bytes, b: bytes) -> None:
    assert checksum.crc("crc32", b, checksum.crc("crc32", a)) == zlib.crc32(a + b)
    assert checksum.crc("crc32c", b, checksum.crc("crc32c", a)) == checksum.crc("crc32c", a + b)
