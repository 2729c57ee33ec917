"""Print which of the readers' lines the corpora of run.sh reach: `reached.py WORK [FAMILY...]`; -v lists the others.

Lines of functions count, up to the heading `# --- writing`; modules that only write are left out. What runs in the
HDF5 child is not seen here, but for files that the library made.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from families import FAMILIES, ROOT

FORMATS = ROOT / "ckptconv" / "formats"
WRITERS = {"writing.py", "write.py", "saver.py", "layout.py", "messages_pb2.py"}
Lines = dict[str, set[int]]


def trace(data: bytes, family: str, home: Path, seen: Lines) -> None:
    """Run one input and note the lines of the readers that it passes."""

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        lines = seen.get(frame.f_code.co_filename)
        if lines is None:
            return None

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            lines.add(frame.f_lineno)
            return step

        return step(frame, event, arg)

    sys.settrace(enter)  # anew each time: a RecursionError ends it
    with suppress(Exception):
        FAMILIES[family].attempt(data, home)
    sys.settrace(None)


def lines_of(path: Path) -> set[int]:
    """Lines of the functions of a module that read."""
    text = path.read_text()
    end = text.partition("# --- writing")[0].count("\n") + 1
    out: set[int] = set()

    def walk(code: CodeType, inside: bool) -> None:
        out.update(line for _, _, line in code.co_lines() if inside and line and line != code.co_firstlineno)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                walk(inner, inside or bool(inner.co_flags & 1))  # CO_OPTIMIZED: a function, no class

    walk(compile(text, str(path), "exec"), False)
    return {n for n in out if n <= end}


def main(work: Path, families: list[str]) -> None:
    paths = [p for p in sorted(FORMATS.rglob("*.py")) if p.name not in WRITERS]
    seen: Lines = {str(p): set() for p in paths}
    for family in families or FAMILIES:
        for path in sorted((work / "corpus" / family).iterdir()):
            data, home = path.read_bytes(), Path(tempfile.mkdtemp(prefix="reached-"))
            if data:
                trace(data, family, home, seen)
            shutil.rmtree(home, ignore_errors=True)
    reached = total = 0
    for path in paths:
        want = lines_of(path)
        have = want & seen[str(path)]
        reached, total = reached + len(have), total + len(want)
        rest = f" {sorted(want - have)}" if "-v" in sys.argv else ""
        print(f"{path.relative_to(FORMATS)!s:32} {len(have):4} of {len(want)}{rest}")
    print(f"{'all':32} {reached} of {total}: {100 * reached / total:.1f} %")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [a for a in sys.argv[2:] if a != "-v"])
