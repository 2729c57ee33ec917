"""Which tests reach a line, by what coverage.py recorded: `pytest --cov --cov-branch --cov-context=test`.

Read with sqlite3 from the tables that coverage.py documents (coverage.readthedocs.io, "Coverage.py database schema").
Processes that a test starts leave no contexts there, so a line that only they run is reached by no test.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path


class Covered:
    """The tests that reached each line; how specific a test is, is how little else it runs."""

    def __init__(self, data: Path) -> None:
        self._base = sqlite3.connect(f"file:{data}?mode=ro", uri=True)
        self._said = dict(self._base.execute("select id, context from context where context like '%|%'"))
        self._runs = dict(self._base.execute("select context_id, count(*) from arc group by context_id"))

    def of(self, path: str, line: int) -> list[str]:
        """Tests that reach a line, or the nearest line above it that any reaches; the most specific first."""
        files = [row[0] for row in self._base.execute("select id from file where path like ?", (f"%/{path}",))]
        reached: dict[int, set[int]] = {}
        for file in files:
            query = "select distinct tono, context_id from arc where file_id = ? and tono between 1 and ?"
            for at, key in self._base.execute(query, (file, line)):
                if key in self._said:
                    reached.setdefault(at, set()).add(key)
        tests = sorted(
            (self._runs[key], self._said[key].rpartition("|")[0]) for key in reached.get(max(reached, default=0), ())
        )
        return list(dict.fromkeys(test for _, test in tests))
