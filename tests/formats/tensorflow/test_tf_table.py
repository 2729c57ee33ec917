"""The sorted string table, its keys and checksums, against the vectors of the specification; any bytes as an index."""

from __future__ import annotations

from pathlib import Path

import cramjam
import numpy as np
import pytest
import tf_tables
from google.protobuf import text_format
from kit import refused

import ckptconv
from ckptconv.errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint
from ckptconv.formats import tiling
from ckptconv.formats.tensorflow import elements, messages_pb2 as pb, table
from ckptconv.storage.files import Reader

# tensor `a` = float32 [1, 2], written by TensorFlow
DATA = bytes.fromhex("0000803f00000040")
INDEX = bytes.fromhex(
    "00000608011a020801" "00010f6108011204120208022808 35593ce535" "0000000001000000" "004419559e"
    "0000000001000000" "00c0f2a1b0"
    "00010262002400000000 01000000" "005a996b35"
    "2908360e" + "00" * 36 + "57fb808b247547db"
)  # fmt: skip


def entries(path: Path) -> list[tuple[bytes, bytes]]:
    with Reader(str(path)) as f:
        return list(table.Table(f))


def bundle(folder: Path, index: bytes, data: bytes = DATA) -> Path:
    (folder / "m.index").write_bytes(index)
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return folder / "m"


SIGNED = """
    0 80  -1 7f  63 bf  64 c040  -64 40  -65 3fbf  8191 dfff  8192 e02000  -8193 1fdfff  2147483647 f87fffffff
    36028797018963968 ff8080000000000000  4611686018427387904 ffc04000000000000000
    -9223372036854775808 003f8000000000000000
"""


def test_signed_numbers_in_keys():
    codes = SIGNED.split()
    for value, code in zip(codes[::2], codes[1::2], strict=True):
        assert elements.signed(int(value)).hex() == code


def test_slice_keys():
    for name, spans, code in (
        (b"w", "extent { length: 2 } extent { }", "0077000101028082807f"),
        (b"w", "extent { start: 70 length: 1 } extent { }", "007700010102c04681807f"),
        (b"net/w", "extent { start: 3 length: 2 } extent { length: 4 }", "006e65742f770001010283828084"),
        (b"scalar", "", "007363616c6172000100"),
    ):
        assert elements.slice_key(name, text_format.Parse(spans, pb.TensorSliceProto())).hex() == code


def test_the_smallest_bundle(tmp_path):
    t = ckptconv.open(bundle(tmp_path, INDEX))["a"]
    assert t.numpy().tolist() == [1.0, 2.0]
    pairs = entries(tmp_path / "m.index")
    assert [k for k, _ in pairs] == [b"", b"a"]
    assert table.build(pairs) == INDEX


FLIPS = [(at, bit) for at in range(len(INDEX)) for bit in (0, 7) if not 77 <= at < 113]  # the rest is padding
FLIPS.remove((76, 7))  # the last handle as an overlong varint: the same number


@pytest.mark.many
@pytest.mark.parametrize(("at", "bit"), FLIPS)
def test_every_flipped_bit_of_an_index_is_found(tmp_path, at, bit):
    flipped = INDEX[:at] + bytes([INDEX[at] ^ 1 << bit]) + INDEX[at + 1 :]
    with refused():
        ckptconv.open(bundle(tmp_path, flipped))["a"].numpy()


@pytest.mark.many
@pytest.mark.parametrize("size", range(len(INDEX)))
def test_every_truncation_of_an_index_is_found(tmp_path, size):
    with refused():
        ckptconv.open(bundle(tmp_path, INDEX[:size]))


def raw_table(block: bytes, kind: bytes = b"\0", key: bytes = b"zz") -> bytes:
    return tf_tables.table([(key, block)], kind)


BLOCK = INDEX[:36]


def test_a_snappy_block_is_decompressed(tmp_path):
    packed = bytes(cramjam.snappy.compress_raw(BLOCK))
    path = bundle(tmp_path, raw_table(packed, b"\1"))
    assert ckptconv.open(path)["a"].numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("block", "kind", "error"),
    [
        (b"\xff\xff\xff\xff\x0f" + bytes(40), b"\1", UnsafeCheckpoint),  # claims 4 GB
        (bytes(cramjam.snappy.compress_raw(BLOCK))[:-3], b"\1", CorruptCheckpoint),
        (b"\x05\x01\x00", b"\1", CorruptCheckpoint),  # copies from before the beginning
        (BLOCK, b"\2", CorruptCheckpoint),
        (BLOCK[:-4] + b"\xff\xff\xff\x7f", b"\0", CorruptCheckpoint),  # more restarts than bytes
        (b"\0\1\1" + b"b!" + b"\0\1\1" + b"a!" + BLOCK[-8:], b"\0", CorruptCheckpoint),  # falling keys
        (b"\0\1\1" + b"a!" + b"\0\1\1" + b"a!" + BLOCK[-8:], b"\0", CorruptCheckpoint),  # equal keys
        (b"\5\1\1" + b"a!" + BLOCK[-8:], b"\0", CorruptCheckpoint),  # shares what is not there
        (b"\0\x7f\1" + b"a!" + BLOCK[-8:], b"\0", CorruptCheckpoint),
        (b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + BLOCK[-8:], b"\0", CorruptCheckpoint),
    ],
)
def test_hostile_blocks(tmp_path, block, kind, error):
    with pytest.raises(error):
        ckptconv.open(bundle(tmp_path, raw_table(block, kind)))


def test_keys_that_would_fill_the_memory_are_refused(tmp_path):
    """Each entry of five bytes shares the prefix of a long key: 60 kB of file would be gigabytes of keys."""
    out, last = bytearray(), b""
    for i in range(8000):
        key = b"k" * 50_000 + i.to_bytes(2, "big")
        shared = 50_000 if last else 0
        out += table.varint(shared) + table.varint(len(key) - shared) + b"\0" + key[shared:]
        last = key
    with refused("unfold to more than the file can mean"):
        ckptconv.open(bundle(tmp_path, raw_table(bytes(out) + BLOCK[-8:], key=b"\xff")))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        (b"\0" * 200, "truncated"),
    ],
)
def test_what_lies_there_instead_of_an_index(tmp_path, content, said):
    with pytest.raises(CkptError, match=said):
        ckptconv.open(bundle(tmp_path, content))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40])
@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_what_is_built_is_read_back(tmp_path, count, size):
    rng = np.random.default_rng(count)
    pairs = sorted({f"k/{i:03}".encode() + b"\xff" * (i % 3): rng.bytes(size + i) for i in range(count)}.items())
    (tmp_path / "t").write_bytes(table.build(pairs))
    assert entries(tmp_path / "t") == pairs
    with Reader(str(tmp_path / "t")) as f:
        assert all(table.Table(f).get(k) == v for k, v in pairs)


def test_slices_that_take_too_long_to_compare_are_refused():
    """Slivers that are all side by side on the axis that is swept."""
    n = 800
    tiles = [tiling.Tile((i, i), (n - i, 1)) for i in range(n)] + [tiling.Tile((0, i), (i, 1)) for i in range(1, n)]
    with pytest.raises(UnsafeCheckpoint):
        tiling.overlap(tiles)
