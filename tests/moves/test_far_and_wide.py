"""Views that are read in runs, data that is decoded on the way, handles that are closed; what the kernel refuses."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kit import refused, same

import ckptconv
from ckptconv.checkpoint import Tensor, contiguous, held, view
from ckptconv.dtypes import DTYPES, dtype, of_numpy
from ckptconv.errors import ConversionError, CorruptCheckpoint, MissingExtra, UsageError
from ckptconv.moves.part import Coded, Part, Span, c_strides
from ckptconv.moves.read import each, hash_check, hash_tensor, read_array
from ckptconv.moves.sources import Pool, Sources, stream
from ckptconv.storage import checksum
from ckptconv.storage.files import Reader

FLOAT = DTYPES["float32"]


@pytest.fixture
def far(tmp_path: Path) -> tuple[Span, np.ndarray[Any, Any]]:
    """A file of a million floats."""
    array = np.arange(2**20, dtype="<f4")
    (tmp_path / "data").write_bytes(b"head" + array.tobytes())
    return Span(str(tmp_path / "data"), 4, array.nbytes), array


VIEWS = [
    ((4, 3), (200_000, 1)),
    ((2, 3, 4), (500_000, 70_000, 1)),
    ((2, 3, 4), (500_000, 70_000, 7000)),
    ((4, 2, 3), (7, 500_000, 70_000)),
    ((5,), (200_000,)),
    ((2, 2**14), (2**19, 1)),
]


@pytest.mark.parametrize(("shape", "strides"), VIEWS)
@pytest.mark.parametrize("offset", [0, 5])
def test_views_of_a_large_file(far: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
    data, array = far
    t = view("v", FLOAT, shape, data, offset=offset, strides=strides)
    want = np.lib.stride_tricks.as_strided(array[offset:], shape, [4 * s for s in strides])
    assert same(t.numpy(), np.ascontiguousarray(want))
    assert same(t[1:].numpy() if isinstance(t[1:], Tensor) else np.asarray(t[1:]), np.ascontiguousarray(want[1:]))


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "inside"),
    [
        (0, (2**20,), (1,), True),
        (1, (2**20,), (1,), False),
        (0, (2, 2), (2**20 - 2, 1), True),
        (1, (2, 2), (2**20 - 2, 1), False),
    ],
)
def test_views_past_their_storage(far: Any, offset: int, shape: Any, strides: Any, inside: bool) -> None:
    steps = c_strides(shape)
    t = Tensor("v", FLOAT, shape, (Part(far[0], FLOAT, shape, offset, strides, 0, steps),))
    if inside:
        assert t.numpy().shape == shape
        return
    with refused("a view reaches past its storage"):
        t.numpy()


@pytest.mark.parametrize("kind", ["crc32c", "xxh3"])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_span_is_verified_once_for_all_its_views(
    kind: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the file changes; and all views of a damaged one are damaged."""
    (path := tmp_path / "a").write_bytes(raw := bytes(range(256)) * 2**15)  # 8 MiB
    byte = DTYPES["uint8"]
    want = held("a", np.frombuffer(raw, "u1"))
    with Sources() as s:
        check = (
            hash_check(want, hash_tensor(want, s)) if kind == "xxh3" else f"crc32c:{checksum.crc('crc32c', raw):08x}"
        )
    span = Span(str(path), 0, len(raw), check)
    views = [Tensor(f"v{i}", byte, (9,), (Part(span, byte, (9,), i, (1,), 0, (1,)),)) for i in range(20)]
    read, sizes = Reader.read, list[int]()
    monkeypatch.setattr(Reader, "read", lambda *a: sizes.append(a[2]) or read(*a))

    def said(t: Tensor, s: Sources | None) -> str:
        try:
            return read_array(t, s).tobytes().hex()
        except CorruptCheckpoint as e:
            return f"damaged {kind in e.message}"

    for _ in range(2):  # in one go, and one by one
        assert each(views, said, workers) == [raw[i : i + 9].hex() for i in range(20)]
        assert [said(t, None) for t in views] == [raw[i : i + 9].hex() for i in range(20)]
        assert sum(sizes) == len(raw)
    with Sources() as s:
        assert said(views[0], s) == raw[:9].hex()
        with path.open("r+b") as f:
            f.seek(2**22)
            f.write(b"\xff")
        os.utime(path, ns=(1, 1))
        assert {said(t, s) for t in views} == {"damaged True"}  # opened before
    for _ in range(2):
        assert {*each(views, said, workers), *(said(t, None) for t in views)} == {"damaged True"}


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that decodes the key of what it is given, two bytes at a time."""
    module = ModuleType("tests_decoder")

    def decode(coded: Coded) -> Iterator[bytes]:
        for at in range(0, len(coded.key), 2):
            yield coded.key[at : at + 2].encode()

    module.decode = decode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.mark.parametrize("spool", [0, 5, 6, 100])
def test_decoded_data(decoder: str, spool: int) -> None:
    coded = Coded(decoder, "x", "abcdef", 6)
    with Sources(spool=spool) as s:
        pool = Pool(s)
        found = pool.hold(coded)
        assert pool.hold(coded) is found
        raw = s.reader(found.url).read(found.start, 6) if isinstance(found, Span) else bytes(found.array)
        assert isinstance(found, Span) is (spool < 6)
        pool.release(coded)
        pool.release(coded)
        assert isinstance(pool.hold(coded), Span) is (spool < 6)  # there is room again
        pool.close()
    assert raw == b"abcdef"
    assert contiguous("t", DTYPES["uint8"], (6,), coded).numpy().tobytes() == b"abcdef"


@pytest.mark.parametrize(("size", "words"), [(5, "abcdef decodes to more than 5"), (7, "abcdef decodes to fewer than")])
def test_decoded_data_of_another_size(decoder: str, size: int, words: str) -> None:
    with refused(words):
        list(stream(Coded(decoder, "x", "abcdef", size)))


def test_a_decoder_that_is_not_installed() -> None:
    with pytest.raises(MissingExtra, match=r"no\.such, which decodes it, cannot be imported here"):
        list(stream(Coded("no.such", "x", "k", 1)))


# --- dtypes -------------------------------------------------------------------------------------------------------


def test_dtypes_that_no_checkpoint_has() -> None:
    for kind in ("U3", "O", "M8[s]", "V7", "f16"):
        with pytest.raises(UsageError, match="cannot be stored in a checkpoint"):
            of_numpy(np.dtype(kind))
    assert of_numpy(np.dtype(">i2")).name == "int16"
    with pytest.raises(UsageError, match="float3"):
        dtype("float3")


def test_scalars_have_no_length() -> None:
    with pytest.raises(TypeError, match="a scalar tensor has no length"):
        len(held("t", np.ones(())))
    assert len(held("t", np.ones((3, 0)))) == 3
    assert held("t", np.arange(3.0))[1] == 1


def test_errors_travel_between_processes() -> None:
    error = CorruptCheckpoint("is damaged", url="x", tensor="w")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.url, copy.tensor) == (CorruptCheckpoint, str(error), "x", "w")
    copy = pickle.loads(pickle.dumps(ConversionError("no")))
    assert (copy.message, copy.url, copy.tensor) == ("no", None, None)
    assert ckptconv.CkptError in type(copy).__mro__
