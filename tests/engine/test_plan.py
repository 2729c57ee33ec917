"""A plan's jobs tile its tensors: nothing twice, nothing left out, in bounded memory, whatever the sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import examples

import ckptconv
from ckptconv import UsageError
from ckptconv.checkpoint import Checkpoint, Tensor, contiguous, view
from ckptconv.dtypes import DTYPES, castable
from ckptconv.engine.plan import Budget, compile_plan
from ckptconv.formats import safetensors
from ckptconv.moves.log import CHUNK
from ckptconv.moves.part import Coded, Span, c_strides


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """Tensors of zero to ten million elements, some of them transposed views."""
    tensors: dict[str, Tensor] = {}
    for i in range(draw(st.integers(1, 12))):
        kind = DTYPES[draw(st.sampled_from(["float32", "int8", "float64"]))]
        shape = (draw(st.integers(0, 3000)), draw(st.sampled_from([1, 7, 3000])))
        span = Span("x", 0, shape[0] * shape[1] * kind.itemsize)
        if draw(st.booleans()):
            strides = tuple(reversed(c_strides(tuple(reversed(shape)))))
            tensors[f"t{i}"] = view(f"t{i}", kind, shape, span, offset=0, strides=strides)
        else:
            tensors[f"t{i}"] = contiguous(f"t{i}", kind, shape, span)
    return Checkpoint(tensors)


@examples(100)
@given(checkpoints(), st.integers(16, 600), st.integers(1, 16))
def test_jobs_tile_the_tensors(checkpoint: Checkpoint, megabytes: int, workers: int) -> None:
    memory = Budget.of(megabytes * 2**20, workers)
    placement = safetensors.writer("o.safetensors").place(checkpoint)
    plan = compile_plan(checkpoint, placement, ".", memory)
    assert memory.workers * (memory.window + memory.whole) <= memory.limit
    end = 0
    got: dict[str, list[tuple[int, int]]] = {}
    for job in sorted(plan.jobs, key=lambda j: j.start):
        assert job.start >= end
        end = job.start + job.size
        at = 0
        for piece in job.pieces:
            slot = placement.slots[piece.tensor]
            assert at <= piece.at
            assert job.start + piece.at == slot.start + piece.lo * piece.to.itemsize
            assert piece.lo * piece.to.itemsize % CHUNK == 0  # digests are of whole chunks
            at = piece.at + piece.size
            got.setdefault(piece.tensor, []).append((piece.lo, piece.hi))
        assert at == job.size <= max(memory.window, memory.whole)
    for name, t in checkpoint.items():
        cuts = sorted(got.get(name, []))
        assert [a for a, _ in cuts] == [0, *(b for _, b in cuts[:-1])] if cuts else t.count == 0
        assert not cuts or cuts[-1][1] == t.count
    assert json.loads(json.dumps(plan.to_json()))["tensors"] == len(checkpoint)


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="16MB"):
        Budget.of(8 * 2**20, 2)


COPY = "import sys, ckptconv; ckptconv.convert(*sys.argv[1:], rename=['w=v']); print('numpy' in sys.modules)"


@pytest.mark.parametrize("suffix", ["npz", "pt", "ckpt"])
def test_a_copy_imports_no_numpy(tmp_path: Path, suffix: str) -> None:
    """One to safetensors does: the reference, which opens what was written, imports it."""
    source = tmp_path / "a.safetensors"
    ckptconv.save({"w": np.arange(6, dtype="f4"), "n": np.arange(3)}, source)
    command = [sys.executable, "-c", COPY, str(source), str(tmp_path / f"b.{suffix}")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert np.array_equal(ckptconv.open(tmp_path / f"b.{suffix}")["n"].numpy(), np.arange(3))


def test_local_files_are_inspected_without_what_remote_ones_need(tmp_path: Path) -> None:
    ckptconv.save({"w": np.arange(6, dtype="f4")}, tmp_path / "a.safetensors")
    code = f"import sys; from ckptconv.cli import main\ntry: main(['inspect', {str(tmp_path / 'a.safetensors')!r}])\n" \
           "except SystemExit: pass\nprint({'asyncio', 'fsspec', 'concurrent.futures'} & {*sys.modules})"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stdout


def test_all_casts_that_cannot_be_are_listed(tmp_path: Path) -> None:
    kinds = {"a": ("float32", "int8"), "b": ("int8", "bool"), "c": ("float32", "bool"), "d": ("int8", "int16")}
    tensors = {}
    for name, (kind, to) in kinds.items():
        span = Span("x", 0, DTYPES[kind].itemsize)
        tensors[name] = replace(contiguous(name, DTYPES[kind], (1,), span), dtype=DTYPES[to])
    bad = [f"{n} ({kind} to {to})" for n, (kind, to) in kinds.items() if not castable(DTYPES[kind], DTYPES[to])]
    assert bad == ["b (int8 to bool)", "c (float32 to bool)"]
    placement = safetensors.writer("o.safetensors").place(Checkpoint(tensors))
    with pytest.raises(ckptconv.ConversionError) as e:
        compile_plan(Checkpoint(tensors), placement, ".", Budget.of(2**25, 1))
    assert str(e.value) == "2 tensors cannot be cast:\n  " + "\n  ".join(bad)


def test_what_is_decoded_whole_is_one_job_and_what_is_copied_many(tmp_path: Path) -> None:
    size = 100 * 2**20
    copied = contiguous("copied", DTYPES["uint8"], (size,), Span("in.bin", 0, size))
    coded = contiguous("coded", DTYPES["uint8"], (size,), Coded("x", "in.bin", "", size))
    writer = safetensors.writer(str(tmp_path / "out.safetensors"))
    found, memory = Checkpoint({t.name: t for t in (copied, coded)}), Budget.of(2**30, 1)
    jobs = compile_plan(found, writer.place(found), str(tmp_path), memory).jobs
    sizes = {name: [job.size for job in jobs if job.pieces[0].tensor == name] for name in found}
    assert sizes == {"coded": [size], "copied": [memory.window] * (size // memory.window) + [size % memory.window]}
