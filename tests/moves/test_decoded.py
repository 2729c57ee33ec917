"""What must be decoded is decoded once or little more, and held in bounded memory, for any grid of chunks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.engine import plan as planning
from ckptconv.engine.plan import Budget
from ckptconv.formats import safetensors
from ckptconv.formats.tiling import joined
from ckptconv.moves.part import Coded, Held, Part, Span
from ckptconv.moves.read import read_array, windows
from ckptconv.moves.sources import Pool, Sources
from ckptconv.testing import write

SHAPE = (64, 4096)
WHOLE = np.arange(SHAPE[0] * SHAPE[1], dtype="f4").reshape(SHAPE)
calls: Counter[str] = Counter()


def decode(coded: Coded) -> Iterator[bytes]:
    calls[coded.key] += 1
    rows, columns = (slice(*map(int, part.split(":"))) for part in coded.key.split(","))
    yield WHOLE[rows, columns].tobytes()


def chunked(rows: int, columns: int) -> ckptconv.Tensor:
    tiles = []
    for i in range(0, SHAPE[0], rows):
        for j in range(0, SHAPE[1], columns):
            key = f"{i}:{i + rows},{j}:{j + columns}"
            data = Coded(__name__, "", key, rows * columns * 4)
            tiles.append((contiguous("w", DTYPES["float32"], (rows, columns), data), (i, j)))
    return joined("w", SHAPE, tiles, "")


GRIDS = [(64, 4096), (1, 4096), (64, 64), (8, 512), (32, 1024)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("spool", [0, 2**16, 2**26])
def test_every_way_of_reading_decodes_each_chunk_once(grid: tuple[int, int], spool: int) -> None:
    t = chunked(*grid)
    for read in (
        lambda sources: read_array(t, sources).tobytes(),
        lambda sources: b"".join(bytes(w) for w in windows(t, sources, 2**16)),
    ):
        calls.clear()
        with Sources(spool) as sources:
            assert read(sources) == WHOLE.tobytes()
        assert set(calls.values()) == {1}


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_conversion_decodes_little_more_than_once(grid: tuple[int, int], tmp_path: Path) -> None:
    calls.clear()
    write(Checkpoint({"w": chunked(*grid)}), tmp_path / "x.safetensors", "safetensors")
    assert ckptconv.open(tmp_path / "x.safetensors")["w"].numpy().tobytes() == WHOLE.tobytes()
    assert sum(calls.values()) <= len(calls) * 1.2


def test_small_chunks_are_decoded_by_several_jobs() -> None:
    t, memory = chunked(1, 4096), Budget.of(16_000_000, 1)
    big = ckptconv.Tensor("w", t.dtype, (4096, 4096), tuple(
        p._replace(start=p.start + i * WHOLE.size) for i in range(64) for p in t.parts))  # fmt: skip
    whole = Checkpoint({"w": big})
    placed = safetensors.writer("x.safetensors").place(whole)
    assert len(planning.compile_plan(whole, placed, "", memory).jobs) > 8


def test_memory_is_bounded_and_the_file_is_emptied() -> None:
    parts = chunked(16, 4096).parts  # four chunks of 256 kB
    with Sources(2**18) as sources:
        pool = Pool(sources)
        held = [pool.hold(p.data) for p in parts if isinstance(p.data, Coded)]
        assert [type(d) for d in held] == [Held, Span, Span, Span]
        spans = [d for d in held if isinstance(d, Span)]
        file = sources.reader(spans[0].url)
        assert file.size == 3 * 2**18
        again = pool.hold(parts[1].data)  # type: ignore[arg-type]
        assert again is held[1]
        for p in (*parts, parts[1]):
            pool.release(p.data)  # type: ignore[arg-type]
        other = chunked(32, 4096).parts[0].data
        assert pool.hold(other) == Span(spans[0].url, 0, 2**19)  # type: ignore[arg-type]
        assert file.size == 2**19
        pool.close()


def seen(part: Part, at: int, sources: Sources) -> bytes:
    """A few elements of a part, read as a tensor of their own."""
    few = part._replace(shape=(8,), strides=(1,), offset=at, start=0, steps=(1,))
    return bytes(read_array(Tensor("w", DTYPES["float32"], (8,), (few,)), sources))


@pytest.mark.parametrize("spool", [0, 2**18, 2**20])
def test_views_of_what_was_read_last_take_no_decoding(spool: int) -> None:
    parts = chunked(16, 4096).parts  # four chunks of 256 kB
    calls.clear()
    with Sources(spool) as sources:
        for i in range(40):
            at = i // 10 * 16 * 4096 + i
            assert seen(parts[i // 10], i, sources) == WHOLE.reshape(-1)[at : at + 8].tobytes()
    assert set(calls.values()) == {1}


@pytest.mark.parametrize(("spool", "times"), [(0, 10), (2**20, 1)])
def test_views_of_many_take_the_room_of_one_beyond_that_in_memory(spool: int, times: int) -> None:
    parts = chunked(16, 4096).parts
    calls.clear()
    with Sources(spool) as sources:
        for i in range(40):
            at = i % 4 * 16 * 4096 + i
            assert seen(parts[i % 4], i, sources) == WHOLE.reshape(-1)[at : at + 8].tobytes()
            assert [f.size for f in sources.nameless.values()] == ([] if spool else [2**18])
    assert set(calls.values()) == {times}


def test_a_pool_is_not_closed_while_its_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two interrupts a worker may live on: the number of the closed file could be another's by then."""
    began, go_on = threading.Event(), threading.Event()

    def slow(coded: Coded) -> Iterator[bytes]:
        yield bytes(2**17)
        began.set()
        assert go_on.wait(20)
        yield bytes(2**17)

    monkeypatch.setitem(globals(), "decode", slow)
    pool = Pool(sources := Sources(0))
    coded = Coded(__name__, "", "0:16,0:4096", 2**18)
    worker, closing = threading.Thread(target=pool.hold, args=(coded,)), threading.Thread(target=pool.close)
    worker.start()
    assert began.wait(20)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    for thread in (worker, closing):
        thread.join(20)
        assert not thread.is_alive()
    sources.close()
