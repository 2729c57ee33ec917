"""docs/first-steps.ipynb is executed: each cell must show what is stored below it.

CKPTCONV_UPDATE=1 writes what is shown into the notebook, for review.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT

PAGE = ROOT / "docs" / "first-steps.ipynb"
TIMES = re.compile(r"\d+\.\d+ s\b|about [\d.]+ .B")  # which differ from run to run


def lines(text: str) -> list[str]:
    """Text as notebooks store it."""
    return text.splitlines(keepends=True)


def run(source: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell, as Jupyter stores them: what was printed, then the value of its last expression."""
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, PAGE.name, "exec"), space)
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), PAGE.name, "eval"), space)
    out: list[dict[str, Any]] = []
    if printed.getvalue():
        out.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = lines(value._repr_html_())
        out.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return out


def steady(outputs: list[dict[str, Any]]) -> str:
    """Outputs without times and numbers of cells, to compare."""
    kept = [{k: v for k, v in o.items() if k != "execution_count"} for o in outputs]
    return TIMES.sub("...", json.dumps(kept, indent=1, sort_keys=True))


def test_each_cell_shows_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path / "docs")
    book, space, wrong = json.loads(PAGE.read_text("utf-8")), dict[str, Any](), []
    cells = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert len(cells) >= 10
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
        PAGE.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert not wrong, "\n".join(wrong)
