"""Which bytes are asked for, in which requests, what is logged of them, and the limits of shapes and boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import examples
from xxhash import xxh3_128_digest

from ckptconv.checkpoint import held
from ckptconv.dtypes import DTYPES
from ckptconv.errors import ConversionError, CorruptCheckpoint
from ckptconv.moves.cast import transform
from ckptconv.moves.log import CHUNK, Log, Loss, Record
from ckptconv.moves.part import Held, Part, Piece, Span, Stored, c_strides, checked_count, is_vast, sliced as box
from ckptconv.moves.read import check_reads, fill, hash_check, hash_tensor, read_strings
from ckptconv.moves.sources import Pool
from ckptconv.storage import checksum
from ckptconv.storage.remote import MAX_GAP, MAX_REQUEST, merged

F32, U8 = DTYPES["float32"], DTYPES["uint8"]
MB = 2**20


# --- shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((), 1),
        ((1,) * 64, 1),
        ((7, 7, 73, 127, 337, 92737, 649657), 2**63 - 1),
        ((0, 2**59 - 1), 0),
        ((1,) * 65, "its shape has 65 axes, more than 64"),
        ((-1,), r"shape \[-1\] has a negative dimension"),
        ((2**63,), r"shape \[9223372036854775808\] has more than 2\^63 elements"),
        ((2**63, 0), "has more than 2.63 elements"),
        ((0, 2**59), r"shape \[0, 576460752303423488\] is empty, yet exceeds 2\^63 bytes"),
    ],
)
def test_how_many_elements_a_shape_has(shape: Sequence[int], count: int | str) -> None:
    if isinstance(count, int):
        assert checked_count(shape) == count
        return
    with pytest.raises(CorruptCheckpoint, match=count) as e:
        checked_count(shape, url="file", tensor="w")
    assert (e.value.url, e.value.tensor) == ("file", "w")


def test_a_shape_that_numpy_cannot_have_may_be_asked_for_by_others() -> None:
    assert checked_count((0, 2**59), arrays=False) == 0
    assert [is_vast(s) for s in ((2**59 - 1,), (2**59,), (0, 2**59 - 1), (0, 2**59))] == [False, True, False, True]


# --- boxes --------------------------------------------------------------------------------------------------------


@st.composite
def tiled(draw: st.DrawFn) -> tuple[Stored, list[tuple[int, int]]]:
    """A tensor in tiles, whose axes may be in any order, and a box of it."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    axis, steps = draw(st.integers(0, len(shape) - 1)), c_strides(shape)
    cuts = sorted({0, shape[axis], draw(st.integers(0, shape[axis]))})
    parts, offset = [], 0
    for a, b in pairwise(cuts):
        tile = (*shape[:axis], b - a, *shape[axis + 1 :])
        order = draw(st.permutations(range(len(shape))))
        strides = c_strides(tile)
        data = Span("x", 4 * offset, 4 * int(np.prod(tile)), "crc32:0")
        odd = draw(st.sampled_from([0, 1, 7]))  # along an axis of one element a step leads nowhere
        parts.append(Part(data, F32, tuple(tile[i] for i in order), offset, tuple(strides[i] for i in order),
                          a * steps[axis], tuple(odd if tile[i] == 1 else steps[i] for i in order)))  # fmt: skip
        offset += int(np.prod(tile))
    ranges = [tuple(sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))) for n in shape]
    return Stored("t", F32, shape, tuple(parts)), ranges  # type: ignore[return-value]


def places(parts: Sequence[Part], count: int) -> list[int]:
    """For each element of a tensor the element of the data that fills it; -1 for none."""
    out = np.full(count, -1)
    for p in parts:
        for index in np.ndindex(*p.shape):
            at = p.start + sum(i * s for i, s in zip(index, p.steps, strict=True))
            assert out[at] == -1
            out[at] = p.offset + sum(i * s for i, s in zip(index, p.strides, strict=True))
    found: list[int] = out.tolist()
    return found


@examples(100)
@given(tiled())
def test_a_box_of_tiles_is_that_of_numpy(given: tuple[Stored, list[tuple[int, int]]]) -> None:
    t, ranges = given
    whole = np.array(places(t.parts, t.count)).reshape(t.shape)
    want = whole[tuple(slice(*r) for r in ranges)]
    found = box(t, ranges)
    assert places(found, want.size) == want.ravel().tolist()
    assert all(isinstance(p.data, Span) and not p.data.check for p in found)


FLAT = Part(Held(None), F32, (12,), 0, (1,), 0, (1,))


@pytest.mark.parametrize(
    "part",
    [
        FLAT,
        FLAT._replace(shape=(3,), steps=(4,)),  # a diagonal
        FLAT._replace(shape=(2, 3), strides=(3, 1), start=2, steps=(3, 1)),  # begins in the last column
        FLAT._replace(shape=(0,)),
    ],
)
def test_parts_across_axes(part: Part) -> None:
    whole = np.array(places([part], 12)).reshape(4, 3)
    for rows, columns in (((0, 2), (0, 3)), ((1, 4), (1, 2)), ((0, 2), (3, 3))):
        want = whole[slice(*rows), slice(*columns)]
        found = box(Stored("t", F32, (4, 3), (part,)), [rows, columns])
        assert places(found, want.size) == want.ravel().tolist()


# --- requests -----------------------------------------------------------------------------------------------------


class Recorded:
    """Sources with one file, that record what is read of it."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.calls, self.spool = raw, list[tuple[int, int]](), 0

    def reader(self, url: str) -> Recorded:
        return self

    def value(self, span: Span, make: Callable[[Recorded], str]) -> str:
        return make(self)

    def pool(self) -> Pool:
        return Pool(self)  # type: ignore[arg-type]

    def into(self, start: int, view: memoryview) -> None:
        self.calls.append((start, len(view)))
        view[:] = self.raw[start : start + len(view)]

    def read(self, start: int, size: int) -> bytes:
        self.calls.append((start, size))
        return self.raw[start : start + size]


RAW = bytes(range(256)) * 4096  # 1 MiB


PLAIN = Span("x", 16, MB - 16)


def plain(offset: int, count: int, start: int, span: Span = PLAIN) -> Part:
    return Part(span, U8, (count,), offset, (1,), start, (1,))


CHECKED = Span("x", 100, 50, "crc32:0")
FILLS = [
    # parts of a tensor of bytes, what is read, and what is logged
    ([plain(0, 9, 0)], [(16, 9)], []),
    ([plain(0, 9, 0), plain(9, 4, 9)], [(16, 13)], []),  # adjacent on both sides
    ([plain(0, 9, 0), plain(8, 4, 9), plain(12, 1, 13)], [(16, 9), (24, 5)], []),
    ([plain(0, 50, 0, CHECKED), plain(84 + 50, 9, 50)], [(100, 59)], [(0, 50)]),
    # strided: by its extent, or run by run
    ([Part(CHECKED, U8, (5, 10), 0, (1, 5), 0, (10, 1))], [(100, 50)], [(0, 50)]),
    ([Part(CHECKED, U8, (4, 10), 0, (1, 5), 0, (10, 1))], [(100, 49)], []),  # with holes: not a range to check
    ([Part(Span("x", 0, MB), U8, (3, 2), 5, (32768, 1), 0, (2, 1))], [(5, 2), (32773, 2), (65541, 2)], []),
    ([Part(Span("x", 0, MB), U8, (3, 2), 5, (32767, 1), 0, (2, 1))], [(5, 65536)], []),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(FILLS)))
def test_what_is_read_to_fill_a_buffer(case: int) -> None:
    parts, calls, logged = FILLS[case]
    count = max(p.start + sum((n - 1) * s for n, s in zip(p.shape, p.steps, strict=True)) + 1 for p in parts)
    piece = Piece("t", U8, 0, count, 7, tuple(parts))
    sources, log, target = Recorded(RAW), Log(), memoryview(bytearray(b"?" * (count + 7)))
    fill((piece,), sources, target, 0, 8 * MB, log)  # type: ignore[arg-type]
    want = bytearray(b"\0" * 7 + b"?" * count)
    for p in parts:
        assert isinstance(p.data, Span)
        for index in np.ndindex(*p.shape):
            at = p.data.start + p.offset + sum(i * s for i, s in zip(index, p.strides, strict=True))
            want[7 + p.start + sum(i * s for i, s in zip(index, p.steps, strict=True))] = RAW[at]
    assert bytes(target) == bytes(want)
    assert [(r.start, r.size) for r in log.read] == logged
    assert sources.calls == calls


@pytest.mark.parametrize(("offset", "stride"), [(0, 1), (1, 1), (0, 2)])
def test_texts_are_as_many_as_the_shape_says(offset: int, stride: int) -> None:
    """No view reaches past what is there; a view may leave out some at the end, as a rule that crops does."""
    string, there = DTYPES["string"], [b"a", b"b", b"c"][: offset + stride + 1]
    part = Part(Held(np.array(there, object)), string, (2,), offset, (stride,), 0, (1,))
    t = Stored("t", string, (2,), (part,))
    assert read_strings(t).tolist() == there[offset::stride]
    for short in range(len(there)):
        with pytest.raises(CorruptCheckpoint, match="t: holds fewer texts than its shape says"):
            read_strings(Stored("t", string, (2,), (part._replace(data=Held(np.array(there[:short], object))),)))


def test_texts_in_memory_may_be_text() -> None:
    assert held("t", np.array(["ä", b"\xff"], object)).numpy().tolist() == ["ä".encode(), b"\xff"]


@pytest.mark.parametrize(
    ("ranges", "want"),
    [
        ([], []),
        ([(5, 3), (0, 2)], [(0, 8)]),
        ([(0, 10), (2, 30)], [(0, 32)]),
        ([(0, 10), (10 + MAX_GAP, 5)], [(0, 15 + MAX_GAP)]),
        ([(0, 10), (11 + MAX_GAP, 5)], [(0, 10), (11 + MAX_GAP, 5)]),
        ([(0, MAX_REQUEST - 5), (MAX_REQUEST - 5, 5)], [(0, MAX_REQUEST)]),
        ([(0, MAX_REQUEST - 5), (MAX_REQUEST - 5, 6)], [(0, MAX_REQUEST - 5), (MAX_REQUEST - 5, 6)]),
    ],
)
def test_ranges_that_are_fetched_together(ranges: Any, want: Any) -> None:
    assert merged(ranges) == want


# --- the log ------------------------------------------------------------------------------------------------------


def digest(raw: bytes) -> bytes:
    return xxh3_128_digest(raw)


@pytest.mark.parametrize("cuts", [[], [MB], [CHUNK], [CHUNK - 1, CHUNK + 1], [3, CHUNK + 3, 2 * CHUNK], [1, 2, CHUNK]])
def test_digests_are_of_whole_chunks_however_they_arrive(cuts: list[int]) -> None:
    log, size = Log(digest=True), 2 * CHUNK + MB
    raw = RAW * (size // MB)
    span = Span("x", 0, size, "xxh3:0:uint8:[1]")
    for a, b in pairwise([0, *cuts, size]):
        log.wrote("t", a, memoryview(raw)[a:b])
        log.was_read(span, a, memoryview(raw)[a:b])
    want = tuple(digest(raw[i : i + CHUNK]) for i in range(0, size, CHUNK))
    assert log.written == [Record("t", 0, size, 0, want)]
    assert log.read == [Record(span, 0, size, 0, want)]


# --- checksums ----------------------------------------------------------------------------------------------------


def reads(span: Span, *ranges: tuple[int, int]) -> list[Record]:
    """What a log would hold if these ranges of the span were read."""
    out = []
    for start, size in ranges:
        log, view = Log(), memoryview(RAW)[span.start + start : span.start + start + size]
        log.was_read(span, start, view)
        out += log.read
    return out


@pytest.mark.parametrize(
    ("ranges", "again"),
    [
        ([(0, 1000)], False),
        ([(0, 400), (400, 600)], False),
        ([(400, 600), (0, 400), (0, 400)], False),
        ([(0, 400), (401, 599)], True),
        ([(0, 400), (399, 601)], True),
        ([(0, 999)], True),
        ([], True),
    ],
)
@pytest.mark.parametrize("kind", ["crc32", "crc32c", "xxh3"])
def test_checksums_of_ranges_are_combined(kind: str, ranges: list[tuple[int, int]], again: bool) -> None:
    """What was read once is not read again unless the ranges leave something out."""
    raw, t = RAW[300:1300], Stored("t", U8, (1000,), ())
    whole = Stored("t", U8, (1000,), (Part(Held(np.frombuffer(raw, "u1")), U8, (1000,), 0, (1,), 0, (1,)),))
    hashed = hash_tensor(whole, Recorded(b""))  # type: ignore[arg-type]
    check = hash_check(t, hashed) if kind == "xxh3" else f"{kind}:{checksum.crc(kind, raw):08x}"
    span = Span("x", 300, 1000, check)
    again = again or (kind == "xxh3" and len(set(ranges)) > 1)  # a digest is of a whole chunk
    for damage in (False, True):
        sources = Recorded(RAW if not damage else bytes(len(RAW)))
        spoiled = [r._replace(crc=r.crc ^ 1, digests=tuple(d[::-1] for d in r.digests)) for r in reads(span, *ranges)]
        found = spoiled if damage else reads(span, *ranges)
        if not damage:
            assert check_reads(found, sources, {span: "t"}) == 1000  # type: ignore[arg-type]
        else:
            words = rf"does not match the file's own .*\n.*bytes 300 to 1300: {kind} is .*, should be "
            with pytest.raises(CorruptCheckpoint, match=words):
                check_reads(found, sources, {span: "t"})  # type: ignore[arg-type]
        assert sources.calls == ([(300, 1000)] if again else [])


@pytest.mark.parametrize("urls", [("x", "x"), ("https://me:secret@h/\x1bx?sig=secret", "y\ntensor 'z'")])
def test_all_that_is_damaged_is_listed(urls: tuple[str, str]) -> None:
    """With the files where there are several, of whose names nothing controls a terminal or opens anything."""
    spans = [Span(url, 8 * i, 8, f"crc32:{i:08x}") for i, url in enumerate(urls)]
    sound = Span(urls[0], 16, 8, f"crc32:{checksum.crc('crc32', RAW[16:24]):08x}")
    with pytest.raises(CorruptCheckpoint) as caught:
        check_reads([], Recorded(RAW), dict(zip([*spans, sound], "abc", strict=True)))  # type: ignore[arg-type]
    first, *lines = caught.value.message.splitlines()
    assert first == "does not match the file's own checksums:"
    files = ["", ""] if urls[0] == urls[1] else [r"https://h/\x1bx?... ", r"y\ntensor 'z' "]
    assert [line.partition(": crc32 is ")[0].strip() for line in lines] == [
        f"{file}{name}: bytes {span.start} to {span.start + 8}"
        for name, file, span in zip("ab", files, spans, strict=True)
    ]


# --- elements -----------------------------------------------------------------------------------------------------


NAN, INF = float("nan"), float("inf")
ODD = [complex(1, NAN), complex(INF, NAN), complex(INF, 1), complex(1, -0.0), complex(-0.0, -0.0)]
OPERATIONS = [
    # op, dtype, elements, what becomes of them
    ("neg", "float32", [1.5, -0.0], [-1.5, 0.0]),
    ("conj", "complex64", [1 + 2j], [1 - 2j]),
    ("add:1.5", "float32", [1, -2], [2.5, -0.5]),
    ("mul:3", "float16", [1, -2], [3, -6]),
    ("fill:7", "int16", [1, -2], [7, 7]),
    ("swap", "uint8", [1, 2], [1, 2]),
    ("swap", "uint16", [1, 0xFF00], [0x100, 0xFF]),
    ("mul:2", "complex64", ODD, [complex(c.real * 2, c.imag * 2) for c in ODD]),
    ("add:1", "float16", [float("inf"), float("nan")], [float("inf"), float("nan")]),
    ("fill:0.1", "bfloat16", [1], [0.1]),
    ("fill:inf", "float32", [1], [float("inf")]),
    ("fill:1", "bool", [False], [True]),
]


@pytest.mark.parametrize(("op", "kind", "given", "want"), OPERATIONS)
def test_operations_by_name(op: str, kind: str, given: list[Any], want: list[Any]) -> None:
    dt = DTYPES[kind]
    out, loss = transform(np.array(given, dt.dtype).view(dt.carrier), dt, (op,), dt)
    assert out.tobytes() == np.array(want, dt.dtype).tobytes()
    assert loss == Loss()


BEYOND = [
    ("mul:2", "complex64", [complex(NAN, 3e38), 1], "mul:2.0 is not exact for 1 of 4 elements"),
    ("mul:3", "complex64", [complex(NAN, 3e38), 1], "1 of 4 elements are too large to be scaled by 3.0"),
    ("add:60000", "float16", [60000, 1, float("inf")], "1 of 3 elements are too large to be added to 60000.0"),
    ("mul:1e39", "float32", [0], r"float32 cannot hold the number 1e\+39"),
    ("add:1e-9", "float16", [0], "float16 cannot hold the number 1e-09"),
    ("fill:300", "uint8", [0], "uint8 cannot hold the number 300"),
    ("fill:7", "float4_e2m1fn", [0], "float4_e2m1fn cannot hold the number 7"),
    ("fill:2", "bool", [0], "bool cannot hold the number 2"),
]


@pytest.mark.parametrize(("op", "kind", "given", "words"), BEYOND)
def test_numbers_that_the_dtype_does_not_hold(op: str, kind: str, given: list[Any], words: str) -> None:
    dt = DTYPES[kind]
    with pytest.raises(ConversionError, match=words):
        transform(np.array(given, dt.dtype).view(dt.carrier), dt, (op,), dt)
