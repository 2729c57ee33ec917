"""Which tests reach a line, by what coverage.py recorded: `pytest --cov --cov-branch --cov-context=test`.

Read with sqlite3 from the tables that coverage.py documents (coverage.readthedocs.io, "Coverage.py database schema").
Processes that a test starts leave no contexts there, so a line that only they run is reached by no test.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path


class Covered:
    """The tests that reached each line; how specific a test is, is how little else it runs."""

    def __init__(self, data: Path) -> None:
        self._base = sqlite3.connect(f"file:{data}?mode=ro", uri=True)
        self._runs = dict(self._base.execute("select context_id, count(*) from arc group by context_id"))

    def of(self, path: str, line: int, most: int) -> list[str]:
        """Tests that reach a line, or the nearest line above it that any reaches; the most specific first."""
        reached = """from arc join file on file.id = file_id join context on context.id = context_id
            where file.path like ? and context like '%|%' and tono"""
        ((near,),) = self._base.execute(f"select max(tono) {reached} between 1 and ?", (f"%/{path}", line))
        rows = self._base.execute(f"select distinct context_id, context {reached} = ?", (f"%/{path}", near))
        tests = sorted((self._runs[key], said.rpartition("|")[0]) for key, said in rows)
        return list(dict.fromkeys(test for _, test in tests))[:most]


def timed(output: str) -> dict[str, float]:
    """The seconds of each test that did not fail, as `pytest -rfE -vv --durations=0` prints them."""
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE))
    out: dict[str, float] = {}
    for seconds, test in re.findall(r"^ *([\d.]+)s (?:setup|call|teardown) +(.+?)$", output, re.MULTILINE):
        if not test.startswith(failed):
            out[test] = out.get(test, 0.0) + float(seconds)
    return out
