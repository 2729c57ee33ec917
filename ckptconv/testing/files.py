"""Write, read and compare in one format: what the contract does, and third parties may do as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import api
from ..checkpoint import Checkpoint
from ..errors import CkptError
from ..formats import detect, table

BIG = 2**24  # bytes: what a hostile file may only claim to hold is not read


def write(checkpoint: Checkpoint, path: Path, name: str, **options: Any) -> None:
    """Write in a format, without the check of the result that tests do themselves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    api.write(checkpoint, path, api.Target(format=name, verify="none", sync=False, force=True, **options))


def read(path: Path, name: str) -> dict[str, Any]:
    """Everything a file gives, read: raises what a user would see."""
    found = detect.open_checkpoint(str(path), format=name)
    return {n: t.numpy() for n, t in found.items() if t.nbytes <= BIG}


def holdable(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """What the format says it can hold of a checkpoint."""
    writer = table.get(name).load().writer(str(path))
    return checkpoint.with_tensors({n: t for n, t in checkpoint.items() if not writer.cannot_hold(t)})


def assert_same(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """The file holds exactly these tensors, bit for bit; returns what was opened."""
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
    """All files at or beside a destination."""
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in sorted(path.parent.rglob("*")) if p.is_file()}


def survives(path: Path, name: str) -> None:
    """Reading gives tensors or a CkptError, with the format named and with it guessed."""
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
