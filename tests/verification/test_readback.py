"""What was written is read back before it is published: if it is wrong, nothing is, and the old checkpoint stays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.engine import run
from ckptconv.errors import VerifyError
from ckptconv.output.staging import Output

# Destination, target options.
TARGETS: dict[str, tuple[str, dict[str, object]]] = {
    "single": ("out.safetensors", {}),
    "no suffix": ("out", {"to": "safetensors"}),
    "shards": ("out.safetensors", {"max_shard_size": 300_000}),
    "bundle": ("out.ckpt", {"to": "tf", "max_shard_size": 300_000}),
    "bundle by its index": ("out.ckpt.index", {"to": "tf"}),
    "npz": ("out.npz", {}),
    "npy": ("out", {"to": "npy"}),
    "folder of shards": ("out/", {"to": "hf", "max_shard_size": 300_000}),
    "torch": ("out.pt", {}),
    "torch shards": ("pytorch_model.bin", {"to": "torch", "max_shard_size": 300_000}),
    "flax": ("out.msgpack", {}),
    "hdf5": ("out.hdf5", {}),
    "keras": ("out.h5", {}),
    "keras 3": ("out.weights.h5", {}),
}


def values(seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {f"layers/w{i}/vars/0": r.standard_normal((100 + i, 500)).astype("f4") for i in range(4)}


def write(seed: int, folder: Path, kind: str, **more: object) -> None:
    name, options = TARGETS[kind]
    ckptconv.save(values(seed), f"{folder}/{name}", **options, **more)


def snapshot(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.md5(p.read_bytes()).hexdigest() if p.is_file() else ""
            for p in sorted(folder.rglob("*"))}  # fmt: skip


def flipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that gets one bit of a tensor wrong."""
    write = Output.write

    def wrong(self: Output, name: str, start: int, data: object) -> None:
        raw = bytearray(memoryview(data).cast("B"))  # type: ignore[arg-type]
        if len(raw) >= 100_000:
            raw[1234] ^= 1
        write(self, name, start, raw)

    monkeypatch.setattr(Output, "write", wrong)


def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer whose headers, indexes and directories never arrive."""
    write = Output.write

    def wrong(self: Output, name: str, start: int, data: object) -> None:
        raw = memoryview(data).cast("B")  # type: ignore[arg-type]
        write(self, name, start, raw if len(raw) >= 100_000 else bytes(len(raw)))

    monkeypatch.setattr(Output, "write", wrong)


def damaging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which a bit of each temporary file flips when all is written."""
    seal = run._seal

    def after(plan: Any, writer: Any, outcome: Any, sources: Any, out: Output, how: run.How) -> None:
        seal(plan, writer, outcome, sources, out, how)
        for path in out.paths().values():
            raw = bytearray(Path(path).read_bytes())
            raw[len(raw) // 2] ^= 1
            Path(path).write_bytes(raw)

    monkeypatch.setattr(run, "_seal", after)


@pytest.mark.many
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("spoil", "verify"), [(flipping, True), (damaging, True), (headless, None)])
def test_what_is_wrong_is_not_published(
    kind: str, force: bool, spoil: Callable[[pytest.MonkeyPatch], None], verify: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if force:
        write(0, tmp_path, kind)
    before = snapshot(tmp_path)
    spoil(monkeypatch)
    with pytest.raises(VerifyError, match="nothing is published") as caught:
        write(1, tmp_path, kind, force=force, verify=verify)
    assert "part" not in str(caught.value.url)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", ["single", "bundle", "npy", "folder of shards"])
def test_no_later_run_goes_on_with_what_is_wrong(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        flipping(m)
        with pytest.raises(VerifyError):
            write(1, tmp_path / "out", kind, resume=True, verify=True)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    write(1, tmp_path / "out", kind, resume=True, verify=True)
    write(1, tmp_path / "want", kind)
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "want")


def test_without_verification_nothing_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flipping(monkeypatch)
    write(1, tmp_path, "single", verify=False)
    assert os.listdir(tmp_path) == ["out.safetensors"]


def test_nothing_wrong_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    fsspec.filesystem("memory").store.clear()
    flipping(monkeypatch)
    with pytest.raises(VerifyError, match="nothing is published"):
        ckptconv.save(values(1), "memory://b/m.npz", verify=True)
    assert fsspec.filesystem("memory").find("/b") == []
