"""What a verb takes grows with what it is given: N, 2N and 4N tensors, files or characters.

Processor time of this process is compared: four times as much may take ten times as long, where quadratic work would
take sixteen. Below `SHORTEST` nothing is concluded. What seems to grow faster is measured once more.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv import api
from ckptconv.bulk import zoo as bulk
from ckptconv.cli.main import main

pytestmark = pytest.mark.slow
LINEAR = 10.0  # times as long for four times as much
SHORTEST = 0.3  # seconds of processor time


def file(path: Path, names: list[str], axis: int = 1) -> Path:
    """A safetensors of tensors of one element each."""
    head = {n: {"dtype": "F32", "shape": [axis], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(names)}
    raw = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4 * len(names)))
    return path


def flat(folder: Path, n: int) -> Path:
    return file(folder / "m.safetensors", [f"layer_{i}/part_{i % 7}/w{i}" for i in range(1000 * n)])


def other(folder: Path, n: int) -> Path:
    return file(folder / "o.safetensors", [f"block.{i}.{'abcdefg'[i % 7]}.weight" for i in range(1000 * n)])


def deep(folder: Path, n: int) -> Path:
    """One path of many parts, and a tensor at each of its levels."""
    return file(folder / "m.safetensors", ["/".join(["d"] * k) for k in range(1, 60)] + ["e/" * (500 * n) + "w"])


def alike(folder: Path, n: int) -> Path:
    """Names that differ in one letter, the nearest of which messages look for."""
    return file(folder / "m.safetensors", [f"{'a' * 40}{i:06d}" for i in range(1000 * n)])


def tree(folder: Path, n: int) -> Path:
    for i in range(150 * n):
        (folder / f"d{i % 10}").mkdir(exist_ok=True)
        file(folder / f"d{i % 10}" / f"m{i}.safetensors", ["w"])
    return folder


def wholes(folder: Path, n: int) -> Path:
    """Folders that are checkpoints themselves."""
    for i in range(700 * n):
        (folder / f"m{i}").mkdir()
        np.save(folder / f"m{i}" / "w.npy", np.zeros(1))
    return folder


def rows(folder: Path, n: int) -> Path:
    """A manifest of prefixes that share a folder."""
    (folder / "t").mkdir()
    for i in range(400 * n):
        (folder / "t" / f"m{i}.index").write_bytes(b"x")
    lines = [json.dumps({"source": f"t/m{i}"}) for i in range(400 * n)]
    (folder / "m.jsonl").write_text("\n".join(lines))
    return folder / "m.jsonl"


def rules_of(entry: Callable[[int], str], count: int) -> Callable[[Path, int], Path]:
    def make(folder: Path, n: int) -> Path:
        (folder / "r.toml").write_text("".join(entry(i) for i in range(count * n)))
        return folder / "r.toml"

    return make


def conditional(i: int) -> str:
    """A rule that takes the same names as all others, and depends on what else is there."""
    return f'[[rule]]\nfrom = "{{x}}/{{y}}"\nto = "{{x}}/{{y}}/q{i}"\nwhere = {{ x = ["a", "b"] }}\nif = ["g{i % 7}"]\n'


def command(*args: str) -> None:
    out, ended = io.StringIO(), contextlib.suppress(SystemExit)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), ended:
        main(list(args))


Work = Callable[[Path], object]
CASES: dict[str, tuple[Callable[[Path, int], Path], Work]] = {
    "inspect": (flat, lambda p: command("inspect", str(p))),
    "inspect --tree, deep": (deep, lambda p: command("inspect", str(p), "--tree")),
    "inspect --json": (flat, lambda p: command("inspect", str(p), "--json")),
    "diff, nothing in common": (lambda f, n: (other(f, n), flat(f, n))[1],
                                lambda p: command("diff", str(p), str(p.with_name("o.safetensors")))),
    "verify": (flat, lambda p: command("verify", str(p))),
    "verify against another": (lambda f, n: (other(f, n), flat(f, n))[1],
                               lambda p: command("verify", str(p), str(p.with_name("o.safetensors")))),
    "hash": (flat, lambda p: ckptconv.open(p) and api.convert(p, p.with_name("hashed.safetensors"), force=True)),
    "dry run": (flat, lambda p: command(str(p), "-o", str(p.with_name("x.npz")), "--dry-run")),
    "dry run, deep": (deep, lambda p: command(str(p), "-o", str(p.with_name("x.npz")), "--dry-run")),
    "a glob that fits nothing": (alike, lambda p: command("inspect", str(p), "--include", "b" * 40)),
    "match by names": (lambda f, n: (other(f, n), flat(f, n))[1],
                       lambda p: command("match", str(p), str(p.with_name("o.safetensors")))),
    "lint, rules for the same names": (rules_of(conditional, 250), lambda p: command("converters", "lint", str(p))),
    "lint, names without captures": (rules_of(lambda i: f'[[rule]]\nfrom = "a{i}/w"\nto = "b{i}.w"\n', 2000),
                                     lambda p: command("converters", "lint", str(p))),
    "report": (flat, lambda p: command("report", str(p), "-o", str(p.with_name("r.html")), "--force")),
    "zoo planning": (tree, lambda p: bulk.zoo_plan(p, p.parent / "out")),
    "zoo planning, folders": (wholes, lambda p: bulk.zoo_plan(p, p.parent / "out")),
    "zoo planning, a manifest": (rows, lambda p: bulk.zoo_plan(p, p.parent / "out")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_verb_takes_linear_time(name: str, tmp_path: Path) -> None:
    make, work = CASES[name]
    sources = []
    for n in (1, 2, 4):
        folder = tmp_path / str(n)
        folder.mkdir()
        sources.append(make(folder, n))
    took = [seconds(work, s) for s in sources]
    if not linear(took):
        took = [min(t, seconds(work, s)) for t, s in zip(took, sources, strict=True)]
    assert linear(took), ", ".join(f"{t:.2f} s" for t in took)


def seconds(work: Work, source: Path) -> float:
    """The processor time that it takes."""
    began = time.process_time()
    work(source)
    return time.process_time() - began


def linear(took: list[float]) -> bool:
    return took[-1] <= SHORTEST or took[-1] <= LINEAR * max(took[0], SHORTEST / 4)
