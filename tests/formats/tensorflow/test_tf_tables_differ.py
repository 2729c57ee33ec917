"""Hand-made index tables with valid checksums, of which TensorFlow would read something else: they are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from tf_tables import Block, encoded, table

import ckptconv
from ckptconv.errors import CkptError
from ckptconv.formats.tensorflow import messages_pb2 as pb
from ckptconv.formats.tensorflow.table import varint
from ckptconv.storage.checksum import mask

DATA = np.arange(64, dtype="<f4")
HEADER = pb.BundleHeaderProto(num_shards=1, version={"producer": 1}).SerializeToString()


def value(at: int, extra: bytes = b"") -> bytes:
    """The entry of float32 [2] at this element, with bytes in a field that no reader knows."""
    shape = {"dim": [{"size": 2}]}
    crc = mask(crc32c(DATA[at : at + 2].tobytes()))
    made = pb.BundleEntryProto(dtype=1, shape=shape, offset=4 * at, size=8, crc32c=crc).SerializeToString()
    return made + (varint(15 << 3 | 2) + varint(len(extra)) + extra if extra else b"")


HIDDEN = encoded(b"w", value(50))


def with_restarts(*restarts: int) -> bytes:
    block = Block([(b"", HEADER), (b"a", value(0, HIDDEN)), (b"w", value(2))], 16)
    block.restarts = [block.data.index(HIDDEN) if r < 0 else r for r in restarts]
    return table([(b"zz", block.bytes())])


def with_separators(*separators: bytes) -> bytes:
    parts = [[(b"", HEADER), (b"a", value(0))], [(b"b", value(2)), (b"w", value(4))]]
    return table([(s, Block(part, 16).bytes()) for s, part in zip(separators, parts, strict=True)])


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (with_restarts(0, -1), "restart point"),  # TensorFlow reads the hidden entry of w
        (with_restarts(), "restart points do not increase from 0"),  # and here nothing at all
        (with_restarts(0, 0), "do not increase"),
        (with_restarts(1), "do not increase from 0"),
        (with_separators(b"a", b"v"), "beyond what the index says"),
        (with_separators(b"b", b"w"), "does not increase"),
        (with_separators(b"", b"w"), "beyond what the index says"),
    ],
)
def test_what_tensorflow_would_read_otherwise_is_refused(index: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.data-00000-of-00001").write_bytes(DATA.tobytes())
    (tmp_path / "m.index").write_bytes(index)
    with pytest.raises(CkptError, match=said):
        ckptconv.open(tmp_path / "m")


@pytest.mark.parametrize(
    "prefix", ["m.index", "m.data-00000-of-00001", "x.index.index", "m.meta", "a.data-00001-of-00002"]
)
def test_a_prefix_may_end_like_a_file(prefix: str, tmp_path: Path) -> None:
    index = table([(b"zz", Block([(b"", HEADER), (b"w", value(2))], 16).bytes())])
    (tmp_path / f"{prefix}.index").write_bytes(index)
    (tmp_path / f"{prefix}.data-00000-of-00001").write_bytes(DATA.tobytes())
    for name in (prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001"):
        assert ckptconv.open(tmp_path / name)["w"].numpy().tolist() == [2, 3]
    assert ckptconv.open(tmp_path)["w"].numpy().tolist() == [2, 3]
