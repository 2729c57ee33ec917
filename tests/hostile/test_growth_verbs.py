"""What a verb takes grows with what it is given: N and 4N tensors, files or characters; `growth` has the bounds."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import growth
import numpy as np
import pytest
from kit import safetensors

from ckptconv.cli.main import VERBS

pytestmark = pytest.mark.slow
COUNT = 300  # tensors of the smallest case


def file(path: Path, names: list[str], axis: int = 1) -> Path:
    """A safetensors of tensors of one element each."""
    head = {n: {"dtype": "F32", "shape": [axis], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(names)}
    return safetensors(path, head, bytes(4 * len(names)))


def flat(folder: Path, n: int, count: int = COUNT) -> Path:
    return file(folder / "m.safetensors", [f"layer_{i}/part_{i % 7}/w{i}" for i in range(count * n)])


def named(name: str, count: int = COUNT) -> growth.Make:
    """Names of one pattern."""
    return lambda folder, n: file(folder / "m.safetensors", [name.format(i) for i in range(count * n)])


def other(folder: Path, n: int, count: int) -> Path:
    return file(folder / "o.safetensors", [f"block.{i}.{'abcdefg'[i % 7]}.weight" for i in range(count * n)])


def deep(folder: Path, n: int) -> Path:
    """One path of many parts, and a tensor at each of its levels."""
    return file(folder / "m.safetensors", ["/".join(["d"] * k) for k in range(1, 60)] + ["e/" * (500 * n) + "w"])


def both(folder: Path, n: int, count: int = COUNT) -> Path:
    """A checkpoint, and one of other names beside it."""
    other(folder, n, count)
    return flat(folder, n, count)


def few(folder: Path, n: int) -> Path:
    return both(folder, n, 150)


def tree(home: Path, n: int) -> Path:
    (folder := home / "zoo").mkdir()
    for i in range(30 * n):
        (folder / f"d{i % 10}").mkdir(exist_ok=True)
        file(folder / f"d{i % 10}" / f"m{i}.safetensors", ["w"])
    return folder


def packed_tar(folder: Path, n: int) -> Path:
    """Empty files, each with a record in a header of its own, and a checkpoint."""
    np.save(one := io.BytesIO(), np.zeros(3, "f4"))
    with tarfile.open(folder / "x.tar.xz", "w:xz", format=tarfile.PAX_FORMAT, preset=1) as t:
        for name, data in (*((f"{i}", b"") for i in range(1_000 * n)), ("w.npy", one.getvalue())):
            info = tarfile.TarInfo(name)
            info.pax_headers, info.size = {f"key{name}": "x" * 1_000}, len(data)
            t.addfile(info, io.BytesIO(data))
    return folder / "x.tar.xz"


def rows(folder: Path, n: int) -> Path:
    """A manifest of prefixes that share a folder."""
    (folder / "t").mkdir()
    for i in range(400 * n):
        (folder / "t" / f"m{i}.index").write_bytes(b"x")
    lines = [json.dumps({"source": f"t/m{i}"}) for i in range(400 * n)]
    (folder / "m.jsonl").write_text("\n".join(lines))
    return folder / "m.jsonl"


def tied(folder: Path, n: int) -> Path:
    """Many names of one tensor, as PyTorch has them."""
    torch = pytest.importorskip("torch")
    one = torch.zeros(3)
    torch.save({f"layer.{i}.weight": one for i in range(COUNT * n)}, folder / "m.pt")
    return folder / "m.pt"


def views(folder: Path, n: int) -> Path:
    """Small views of one storage."""
    torch = pytest.importorskip("torch")
    whole = torch.zeros(2_500_000 * n)
    torch.save({f"w{i}": whole[10_000 * i :][:2] for i in range(250 * n)}, folder / "m.pt")
    return folder / "m.pt"


def deflated_views(folder: Path, n: int) -> Path:
    """Small views of three storages, one after the other, that inflate to much more than they have bytes."""
    torch = pytest.importorskip("torch")
    wholes = [torch.zeros(1_000_000 * n) for _ in range(3)]
    torch.save({f"w{i:05d}": wholes[i * 3 // (100 * n)][i : i + 1] for i in range(100 * n)}, stored := io.BytesIO())
    with zipfile.ZipFile(stored) as a, zipfile.ZipFile(folder / "m.pt", "w", zipfile.ZIP_DEFLATED) as b:
        for name in a.namelist():
            b.writestr(name, a.read(name))
    return folder / "m.pt"


def cut(folder: Path, n: int) -> Path:
    """A PyTorch file that lacks its end."""
    torch = pytest.importorskip("torch")
    torch.save({f"w{i}": torch.zeros(1) for i in range(COUNT * n)}, folder / "m.pt")
    data = (folder / "m.pt").read_bytes()
    (folder / "m.pt").write_bytes(data[: len(data) // 2])
    return folder / "m.pt"


def rules_of(entry: Callable[[int], str], count: int) -> growth.Make:
    def make(folder: Path, n: int) -> Path:
        (folder / "r.toml").write_text("".join(entry(i) for i in range(count * n)))
        return folder / "r.toml"

    return make


def conditional(i: int) -> str:
    """A rule that takes the same names as all others, and depends on what else is there."""
    return f'[[rule]]\nfrom = "{{x}}/{{y}}"\nto = "{{x}}/{{y}}/q{i}"\nwhere = {{ x = ["a", "b"] }}\nif = ["g{i % 7}"]\n'


CASES: dict[str, tuple[growth.Make, growth.Work]] = {
    "inspect": (flat, ("inspect", "{p}")),
    "inspect --tree, deep": (deep, ("inspect", "{p}", "--tree")),
    "inspect --stats": (flat, ("inspect", "{p}", "--stats")),
    "inspect --keep-going": (cut, ("inspect", "{p}", "--keep-going")),
    "inspect, a packed tar": (packed_tar, ("inspect", "{p}")),
    "diff, the same": (flat, ("diff", "{p}", "{p}")),
    "verify": (flat, ("verify", "{p}")),
    "match by names": (few, ("match", "{p}", "{d}/o.safetensors", "--no-values")),
    "match by values": (few, ("match", "{p}", "{d}/o.safetensors")),
    "convert --dry-run": (flat, ("convert", "{p}", "-o", "{o}.npz", "--dry-run")),
    "convert -c auto": (named("layer_{}/dense/bias"), ("convert", "{p}", "-o", "{o}.npz", "-c", "auto")),
    "convert, two checkpoints": (both, ("convert", "{p}", "{d}/o.safetensors", "-o", "{o}.npz")),
    "convert, small shards": (flat, ("convert", "{p}", "-o", "{o}", "--to", "hf", "--max-shard-size", "40B")),
    "convert, slices of three tables": (growth.v1_slices, ("convert", "{p}", "-o", "{o}.npz")),
    "verify, views": (views, ("verify", "{p}")),
    "convert, deflated views": (deflated_views, ("convert", "{p}", "-o", "{o}.safetensors", "--max-memory", "16MB")),
    "convert --to dcp": (flat, ("convert", "{p}", "-o", "{o}", "--to", "dcp")),
    "convert --to ranks": (named("rank_{}.w"), ("convert", "{p}", "-o", "{o}", "--to", "ranks")),
    "convert, ties": (tied, ("convert", "{p}", "-o", "{o}.pt")),
    "converters lint, rules for the same names": (rules_of(conditional, 250), ("converters", "lint", "{p}")),
    "report": (flat, ("report", "{p}", "-o", "{o}.html")),
    "serve": (flat, ("serve",)),
    "zoo": (tree, ("zoo", "{p}", "-o", "{o}", "--to", "npz")),
    "zoo --dry-run, a manifest": (rows, ("zoo", "{p}", "-o", "{o}", "--dry-run")),
}  # fmt: skip


@pytest.mark.skipif(not growth.NEEDS, reason=growth.WHY)
@pytest.mark.parametrize("name", CASES)
def test_a_verb_takes_linear_time(name: str, tmp_path: Path) -> None:
    make, work = CASES[name]
    assert not growth.fault(make, tmp_path, work)


def test_every_verb_has_a_case() -> None:
    """But `formats`, which reads nothing."""
    assert {work[0] for _, work in CASES.values()} == VERBS - {"formats"}
