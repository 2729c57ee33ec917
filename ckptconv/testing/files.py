"""Write, read and compare checkpoints in one format, for the contract and for the tests of third parties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import api
from ..checkpoint import Checkpoint
from ..errors import CkptError
from ..formats import detect, table

BIG = 2**24  # bytes; larger tensors, whose size a hostile file may only claim, are not read


def write(checkpoint: Checkpoint, path: Path, name: str, **options: Any) -> None:
    """Write `checkpoint` to `path` in the format `name`, without reading it back; raises what `ckptconv.save` raises.

    options: further options of the output, such as `max_shard_size` in bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    api.write(checkpoint, path, api.Target(format=name, verify="none", sync=False, force=True, **options))


def read(path: Path, name: str) -> dict[str, Any]:
    """Open `path` in the format `name` and read all tensors into arrays, by name; CkptError if that fails."""
    found = detect.open_checkpoint(str(path), format=name)
    return {n: t.numpy() for n, t in found.items() if t.nbytes <= BIG}


def holdable(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """The part of a checkpoint that the writer of the format `name` can hold, by `cannot_hold`."""
    writer = table.get(name).load().writer(str(path))
    return checkpoint.with_tensors({n: t for n, t in checkpoint.items() if not writer.cannot_hold(t)})


def assert_same(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """Assert that the file holds exactly these tensors, bit for bit; return the opened checkpoint."""
    found = detect.open_checkpoint(str(path), format=name)
    assert set(checkpoint) == set(found)
    for n, t in checkpoint.items():
        back = found[n]
        assert (back.dtype, back.shape) == (t.dtype, t.shape), n
        got, want = back.numpy(), t.numpy()
        assert got.shape == want.shape, n
        same = list(got.flat) == list(want.flat) if t.dtype.kind == "s" else got.tobytes() == want.tobytes()
        assert same, f"{n}: {got} is not {want}"
    return found


def files_of(path: Path) -> dict[str, bytes]:
    """The contents of all files at or beside a destination, by path."""
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in sorted(path.parent.rglob("*")) if p.is_file()}


def survives(path: Path, name: str) -> None:
    """Assert that reading gives tensors or a CkptError, both with the given format and with the detected one."""
    for forced in (name, None):
        try:
            found = detect.open_checkpoint(str(path), format=forced)
        except CkptError:
            continue
        for t in found.values():
            if t.nbytes <= BIG:
                try:
                    assert t.numpy().shape == t.shape
                except CkptError:
                    pass
