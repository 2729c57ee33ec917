"""Hand-made index tables with valid checksums: TensorFlow and we read the same values, or we refuse.

CKPTCONV_CASES sets how many (150 by default).
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from tf_tables import Block, Entry, encoded, table

import ckptconv
from ckptconv.errors import CkptError
from ckptconv.formats.tensorflow import messages_pb2 as pb
from ckptconv.formats.tensorflow.table import varint
from ckptconv.storage.checksum import mask

CASES = int(os.environ.get("CKPTCONV_CASES", "150"))
DATA = np.arange(64, dtype="<f4")
HEADER = pb.BundleHeaderProto(num_shards=1, version={"producer": 1}).SerializeToString()


def value(at: int, extra: bytes = b"") -> bytes:
    """The entry of float32 [2] at this element, with bytes in a field that no reader knows."""
    shape = {"dim": [{"size": 2}]}
    crc = mask(crc32c(DATA[at : at + 2].tobytes()))
    made = pb.BundleEntryProto(dtype=1, shape=shape, offset=4 * at, size=8, crc32c=crc).SerializeToString()
    return made + (varint(15 << 3 | 2) + varint(len(extra)) + extra if extra else b"")


def case(choose: random.Random) -> tuple[bytes, bool]:
    """A table, and whether anything is wrong with it."""
    keys = sorted(
        {b"".join(choose.choice((b"a", b"b", b"ab", b"c/")) for _ in range(choose.randint(1, 4))) for _ in range(9)}
    )
    entries: list[Entry] = [(b"", HEADER)]
    for i, key in enumerate(keys):
        hidden = encoded(choose.choice(keys), value(50 + i % 10)) if choose.random() < 0.3 else b""
        entries.append((key, value(2 * i, hidden)))
    cuts = sorted(choose.sample(range(1, len(entries)), min(choose.randint(0, 2), len(entries) - 1)))
    parts = [entries[a:b] for a, b in zip([0, *cuts], [*cuts, len(entries)], strict=True)]
    blocks = [(part[-1][0], Block(part, choose.choice((1, 2, 3, 16)))) for part in parts]
    wrong = choose.random() < 0.8
    for _ in range(choose.randint(1, 2) if wrong else 0):
        spoil(choose, blocks, keys)
    return table([(s, block.bytes()) for s, block in blocks]), wrong


def spoil(choose: random.Random, blocks: list[tuple[bytes, Block]], keys: list[bytes]) -> None:
    """Restart points or separators that are not what they should be."""
    n = choose.randrange(len(blocks))
    separator, block = blocks[n]
    points = block.restarts
    match choose.randrange(7):
        case 0 if points:
            points[choose.randrange(len(points))] = choose.randrange(len(block.data) + 2)
        case 1 if points:
            points[choose.randrange(len(points))] = choose.choice(block.starts)
        case 2:
            points.append(choose.choice([*block.starts, len(block.data), 0]))
        case 3 if points:
            points.pop(choose.randrange(len(points)))
        case 4:
            choose.shuffle(points)
        case 5:
            blocks[n] = (choose.choice([*keys, b"", b"\xff", separator + b"a", separator[:-1]]), block)
        case _:  # into a value, where another entry may be hidden
            found = [i for i in range(len(block.data)) if block.data[i : i + 2] == b"\0\1"]
            points.append(choose.choice(found or [1]))
            points.sort()


def ours(prefix: Path) -> dict[str, Any] | None:
    try:
        return {n: t.numpy().tolist() for n, t in ckptconv.open(f"{prefix}.index", from_="tf").items()}
    except CkptError:
        return None


def theirs(tf: Any, prefix: Path, names: list[str]) -> dict[str, Any]:
    """What TensorFlow's two ways of reading give, or the error."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            one = tf.train.load_checkpoint(str(prefix)).get_tensor(name).tolist()
            other = tf.raw_ops.RestoreV2(prefix=str(prefix), tensor_names=[name], shape_and_slices=[""], dtypes=[1])
            found[name] = one if one == other[0].numpy().tolist() else "two values"
        except Exception as e:  # whatever it says
            found[name] = type(e).__name__
    return found


def test_tensorflow_reads_what_we_read(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    prefix, read = tmp_path / "m", 0
    (tmp_path / "m.data-00000-of-00001").write_bytes(DATA.tobytes())
    for seed in range(CASES):
        index, wrong = case(random.Random(seed))
        (tmp_path / "m.index").write_bytes(index)
        got = ours(prefix)
        assert got is not None or wrong, f"seed {seed}: a sound table was refused"
        if got is not None:
            assert theirs(tf, prefix, list(got)) == got, f"seed {seed}"
            read += 1
    assert read > CASES // 5


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
