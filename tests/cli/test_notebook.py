"""The notebooks of examples/ are executed: each cell must show what is stored below it.

CKPTCONV_UPDATE=1 writes what is shown into the notebook, for review.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT

BOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
NEEDED = {"tensorflow-to-pytorch": ("scipy", "torch")}
TIMES = re.compile(
    r"\d+\.\d+ s\b|about [\d.]+ .B|\(\d+ per second\)|(?<=html': )[\d.]+ .B|(?<=html: )[\d.]+ .B"
)  # which differ from run to run
LARGE = 20_000  # characters of a page that is shown but not stored


def lines(text: str) -> list[str]:
    """Text as notebooks store it."""
    return text.splitlines(keepends=True)


def run(source: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell, as Jupyter stores them: what was printed, then the value of its last expression."""
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "cell", "exec"), space)
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
    out: list[dict[str, Any]] = []
    if printed.getvalue():
        out.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            page = value._repr_html_()
            data |= {"text/html": lines(page)} if len(page) < LARGE else {}
        out.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return out


def steady(outputs: list[dict[str, Any]]) -> str:
    """Outputs without times and numbers of cells, to compare."""
    kept = [{k: v for k, v in o.items() if k != "execution_count"} for o in outputs]
    return TIMES.sub("...", json.dumps(kept, indent=1, sort_keys=True))


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_each_cell_shows_what_is_stored(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := [name for name in NEEDED.get(path.stem, ()) if not find_spec(name)]:
        pytest.skip(f"needs {missing}")
    if "torch" in NEEDED.get(path.stem, ()):
        importlib.import_module("torch").set_num_threads(1)  # on a busy machine, threads wait for each other
    (tmp_path / "examples").mkdir()
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path / "examples")
    book, space, wrong = json.loads(path.read_text("utf-8")), dict[str, Any](), []
    cells = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert len(cells) >= 5
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        if "import torch" in source and not find_spec("torch"):
            continue  # the last ones
        shown = run(source, space)
        if steady(shown) != steady(cell["outputs"]):
            wrong.append(f"cell {number}\n{source}\nshows\n{steady(shown)}")
        cell["execution_count"] = number
        cell["outputs"] = [o | ({"execution_count": number} if "data" in o else {}) for o in shown]
    if os.environ.get("CKPTCONV_UPDATE"):
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert not wrong, "\n".join(wrong)
