"""Documents that are executed: every `$ command` in a console block must print what stands below it.

    ```console
    $ ckptconv diff a.ckpt b.ckpt
    the same: 3 tensors equal
    ```

Standard output and standard error come as a terminal shows them. `...` stands for anything within a line, and alone on
its line for any lines; `[1]` at the end is the exit code (0 if there is none); `> ` continues a command. Blocks of
`pycon` are Python sessions, checked by doctest. All blocks of a document run in one folder that holds the checkpoints
made below. A bug report can be added to tests/cli/ as it was sent.

CKPTCONV_UPDATE=1 writes what is printed into the documents, for review.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import ckptconv
from ckptconv.cli.main import main

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.M | re.S)
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("tests/cli/*.md")]
DOCUMENTS = [d for d in sorted(PAGES) if FENCE.search(d.read_text("utf-8"))]


# --- the checkpoints that documents speak of --------------------------------------------------------------------


def ramp(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Numbers that are the same everywhere: from -scale to scale."""
    count = int(np.prod(shape))
    return (scale * (np.arange(count) * 2 / max(1, count - 1) - 1)).astype("f4").reshape(shape)


def encoder(layers: int, step: int, *, slots: bool = True) -> dict[str, np.ndarray]:
    out = {"encoder/embeddings": ramp(50, 16)}
    for i in range(layers):
        out[f"encoder/layer_{i}/dense/kernel"] = ramp(16, 32, scale=i + 1)
        out[f"encoder/layer_{i}/dense/bias"] = np.zeros(32, "f4")
        out[f"encoder/layer_{i}/norm/gamma"] = np.ones(32, "f4")
    if slots:
        out |= {f"{n}/{s}": np.zeros_like(a) for n, a in list(out.items()) for s in ("Adam", "Adam_1")}
    return out | {"global_step": np.array(step, "i8")}


RULES = """\
[[rule]]
from = "encoder/layer_{i}/{x...}/kernel"
to = "encoder.layers.{i}.{x...}.weight"
layout = "i o -> o i"

[[rule]]
from = "encoder/layer_{i}/dense/bias"
to = "encoder.layers.{i}.dense.bias"

[[rule]]
from = "encoder/layer_{i}/norm/gamma"
to = "encoder.layers.{i}.norm.weight"

[[rule]]
from = "encoder/embeddings"
to = "encoder.embeddings.weight"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """model.ckpt (12 layers, Adam's slots), tuned.ckpt (some values differ), a series in train/, two parts of a GAN."""
    home = tmp_path / "home"
    home.mkdir()
    ckptconv.save(encoder(12, 1000), home / "model.ckpt")
    tuned = encoder(12, 1200)
    tuned["encoder/layer_3/dense/bias"] = ramp(32, scale=1e-3)
    del tuned["encoder/layer_11/norm/gamma/Adam_1"]
    ckptconv.save(tuned, home / "tuned.ckpt")
    (home / "train").mkdir()
    for step in (1000, 2000):
        ckptconv.save(encoder(1, step, slots=False), home / f"train/model.ckpt-{step}", format="tf")
    for part in ("generator", "discriminator"):
        ckptconv.save({"conv/kernel": ramp(3, 3, 4, 8), "conv/bias": np.zeros(8, "f4")}, home / f"{part}.ckpt")
    (home / "rules.toml").write_text(RULES)
    (home / "checkpoint").unlink()
    return home


# --- reading and running ----------------------------------------------------------------------------------------


class Step(NamedTuple):
    command: str
    expected: str


def steps(block: str) -> Iterator[Step]:
    """Commands of a console block, each with what should follow."""
    for piece in re.split(r"^\$ ", block, flags=re.M)[1:]:
        first, *rest = piece.splitlines()
        while rest and rest[0].startswith("> "):
            first += "\n" + rest.pop(0)[2:]
        yield Step(first, "".join(f"{line}\n" for line in rest))


def run(command: str, home: Path) -> str:
    """What a terminal would show, and the exit code if it is not 0; `home` is the current folder."""
    if command.startswith("ckptconv ") and not re.search(r"[|&;<>$`#\n]", command):
        code, shown = inside(shlex.split(command)[1:])
    else:
        code, shown = in_shell(command, home)
    lines = "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    return lines + (f"[{code}]\n" if code else "")


def inside(argv: list[str]) -> tuple[int, str]:
    """Most commands run in this process, which saves half a second each."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            main(argv)
        except SystemExit as e:
            return int(e.code or 0), shown.getvalue()
    return 0, shown.getvalue()


def in_shell(command: str, home: Path) -> tuple[int, str]:
    """Pipes and the like, with `ckptconv` on the PATH."""
    shim = home.parent / "bin"
    shim.mkdir(exist_ok=True)
    program = shim / "ckptconv"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ckptconv "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {
        "PATH": f"{shim}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(["sh", "-c", command], cwd=home, env=env, timeout=120, text=True, check=False, **streams)
    return done.returncode, done.stdout


def fits(expected: str, shown: str) -> bool:
    parts = []
    for line in expected.splitlines(keepends=True):
        parts.append(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*"))
    return re.fullmatch("".join(parts), shown) is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_document(document: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = document.read_text(encoding="utf-8")
    if "$ ckptconv report" in text:
        pytest.importorskip("jinja2", reason="it comes with the extra `report`")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    wrong, space = [], dict[str, object]()

    def check(m: re.Match[str]) -> str:
        if m[1] == "pycon":
            wrong.extend(session(m[2], document.name, space))
            return m[0]
        out = []
        for step in steps(m[2]):
            shown = run(step.command, folder)
            good = fits(step.expected, shown)
            if not good:
                wrong.append(f"$ {step.command}\nexpected:\n{step.expected}printed:\n{shown}")
            typed = "$ " + step.command.replace("\n", "\n> ")
            out.append(f"{typed}\n{step.expected if good else shown}")
        return f"```console\n{''.join(out)}```"

    updated = FENCE.sub(check, text)
    if os.environ.get("CKPTCONV_UPDATE"):
        document.write_text(updated, encoding="utf-8")
    assert not wrong, "\n".join(wrong)


def session(text: str, name: str, space: dict[str, object]) -> list[str]:
    """Failures of a Python session; names stay for the sessions after it."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    test = doctest.DocTestParser().get_doctest(text, space, name, name, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=flags).run(test, out=said.append, clear_globs=False)
    space.update(test.globs)
    return said


def test_the_format_that_is_shown_keeps_its_contract(tmp_path: Path) -> None:
    """Installed as a package would be: a module, and metadata with an entry point."""
    text = (ROOT / "docs/write-a-format.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        name = re.match(r'"""(\w+\.py)"""', block)
        assert name
        (tmp_path / name[1]).write_text(block, encoding="utf-8")
    (point,) = re.findall(r'^mine = "(.*)"$', text, re.M)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ckptconv.formats]\nmine = {point}\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    listed = subprocess.run(
        [sys.executable, "-m", "ckptconv", "formats"], env=env, capture_output=True, text=True, check=True
    )
    assert re.search(r"^mine +yes +yes +\.mine +an example$", listed.stdout, re.M)


# --- the executor itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "shown", "good"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("in ... s\n", "in 0.3 s\n", True),
        ("...\nend\n", "x\ny\nend\n", True),
        ("a\n...\n", "a\n", True),
        ("[1]\n", "", False),
        ("a.b\n", "axb\n", False),
    ],
)
def test_matching(expected: str, shown: str, good: bool) -> None:
    assert fits(expected, shown) == good


def test_commands_are_found_with_their_continuations() -> None:
    assert list(steps("$ one \\\n> two\nout\n$ three\n")) == [Step("one \\\ntwo", "out\n"), Step("three", "")]


def test_a_session_that_lies_is_found() -> None:
    assert session(">>> 1 + 1\n3\n", "x", {})
    assert not session(">>> 1 + 1\n2\n", "x", {})
