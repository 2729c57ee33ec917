"""Checksums that combine: the checksums of two pieces give that of the whole.

    crc(kind, data)                      kind 'crc32' (zip, IEEE 802.3) or 'crc32c' (TensorFlow, Castagnoli)
    combine(kind, a, b, len_b)           crc of A+B from crc(A), crc(B) and the length of B

Both CRCs are reflected. Appending n zero bytes to a message multiplies its CRC register by x^(8n) modulo the
polynomial; that power is computed by squaring and cached, since most jobs have the same length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Buffer

POLYNOMIAL = {"crc32": 0xEDB88320, "crc32c": 0x82F63B78}  # reflected: bit 31 is x^0
_ONE = 0x80000000
MASK_DELTA = 0xA282EAD8


def crc(kind: str, data: Buffer, value: int = 0) -> int:
    """Extend `value`, the CRC of the preceding bytes, by `data`."""
    return _function(kind)(data, value)


@cache
def _function(kind: str) -> Callable[[Buffer, int], int]:
    if kind == "crc32":
        from zlib_ng.zlib_ng import crc32  # more than three times as fast as zlib's

        return crc32
    return _castagnoli()


def _castagnoli() -> Callable[[Buffer, int], int]:
    """Load the extension module of crc32c by itself, since the package imports importlib.metadata for its version."""
    from importlib.machinery import ExtensionFileLoader, PathFinder
    from importlib.util import find_spec, module_from_spec

    package = find_spec("crc32c")
    found = PathFinder.find_spec("_crc32c", package.submodule_search_locations) if package else None
    if found is None or not isinstance(found.loader, ExtensionFileLoader):
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(found)
    found.loader.exec_module(module)
    function: Callable[[Buffer, int], int] = module.crc32c
    return function


def combine(kind: str, a: int, b: int, len_b: int) -> int:
    """Compute the CRC of A+B from the CRCs of A and B and the length of B in bytes."""
    if not a or not len_b:  # A is empty (a CRC of 0 stays 0 under zeros), or B is
        return a ^ b
    return _multiply(kind, _zeros(kind, len_b), a) ^ b


def combine_all(kind: str, pieces: Iterable[tuple[int, int]]) -> int:
    """Combine the CRCs of pieces, given in order as (crc, length)."""
    total = 0
    for value, length in pieces:
        total = combine(kind, total, value, length)
    return total


def mask(value: int) -> int:
    """Mask a CRC-32C as TensorFlow does: rotated and shifted, so that a CRC of data with CRCs in it stays sound."""
    return (((value >> 15) | (value << 17)) + MASK_DELTA) & 0xFFFFFFFF


def unmask(value: int) -> int:
    rotated = (value - MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _multiply(kind: str, a: int, b: int) -> int:
    """Product of two polynomials modulo the CRC's, all reflected."""
    poly, out = POLYNOMIAL[kind], 0
    while a:
        if a & _ONE:
            out ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (poly if b & 1 else 0)
    return out


@lru_cache(maxsize=4096)
def _zeros(kind: str, size: int) -> int:
    """x^(8·size) modulo the polynomial."""
    power, out = _ONE >> 8, _ONE
    while size:
        if size & 1:
            out = _multiply(kind, power, out)
        power = _multiply(kind, power, power)
        size >>= 1
    return out
