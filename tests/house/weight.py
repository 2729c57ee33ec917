"""What the package weighs: tokens of code in each room, without comments, docstrings and blank lines.

    python tests/house/weight.py      prints the table; `make lint` does, and fails if a room is over

`AT_MOST` is what a room may weigh now; `AIM` is what it shall weigh. Only an issue that says by how much raises a
number. Whoever makes a room lighter lowers its number.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
AIM = {  # thousand tokens
    "formats": 92.0, "matching": 36.0, "rules": 30.0, "reporting": 18.0, "moves": 16.5, "bulk": 14.0, "cli": 10.5,
    "storage": 10.0, "engine": 9.5, "api": 8.5, "verification": 8.0, "output": 8.0, "checkpoint": 5.5,
    "testing.py": 3.5, "messages.py": 2.0, "torch.py": 2.0, "dtypes.py": 1.2, "errors.py": 0.5, "__init__.py": 0.5,
    "plugin.py": 0.2, "__main__.py": 0.1, "tests": 330.0, "benchmarks": 45.0, "fixtures": 45.0, "fuzz": 25.0,
    "tools": 8.0,
}  # fmt: skip
AT_MOST = {
    "tests": 329.7,
    "formats": 103.5,
    "benchmarks": 45,
    "fixtures": 42.8,
    "matching": 38.6,
    "rules": 34.3,
    "fuzz": 23.9,
    "reporting": 16.4,
    "moves": 17.6,
    "bulk": 13.8,
    "storage": 13.5,
    "cli": 9.9,
    "api": 11.6,
    "engine": 9.6,
    "verification": 9.0,
    "output": 7.9,
    "checkpoint": 6.3,
    "tools": 6.0,
    "testing.py": 3.6,
    "messages.py": 2.0,
    "torch.py": 1.4,
    "dtypes.py": 1.2,
    "__init__.py": 0.6,
    "errors.py": 0.4,
    "plugin.py": 0.2,
    "__main__.py": 0.1,
}
MODULES, MODULES_AIM = 169, 170
BESIDE = ("tests", "benchmarks", "fixtures", "fuzz", "tools")
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
DOCUMENTED = (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)


def tokens(source: str) -> int:
    """The tokens of a module's code."""
    docstrings = sum(1 for n in ast.walk(ast.parse(source)) if isinstance(n, DOCUMENTED) and ast.get_docstring(n))
    count, inside = 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        inside += (name == "FSTRING_START") - (name == "FSTRING_END")  # from Python 3.12 on; before, it is one token
        count += not inside and token.type not in SILENT and name != "ENDMARKER"
    return count - docstrings


def sources(folder: str) -> list[Path]:
    """The modules in a folder of the repository; generated ones do not count."""
    return [p for p in (ROOT / folder).rglob("*.py") if "_pb2" not in p.name]


def weights() -> tuple[Counter[str], int]:
    """Tokens by room of the package, and by folder beside it; the number of the package's modules."""
    found, modules = Counter[str](), sources("ckptconv")
    for path in modules:
        found[path.relative_to(ROOT / "ckptconv").parts[0]] += tokens(path.read_text("utf-8"))
    for folder in BESIDE:
        for path in sources(folder):
            found[folder] += tokens(path.read_text("utf-8"))
    return found, len(modules)


def main() -> None:
    found, modules = weights()
    over = [name for name, count in found.items() if count > 1000 * AT_MOST[name]]
    for name, count in found.most_common():
        marked = "   over" * (name in over)
        print(f"{name:14}{count / 1000:7.1f} k tokens, at most {AT_MOST[name]:g}, to become {AIM[name]:g}{marked}")
    whole = sum(n for name, n in found.items() if name not in BESIDE)
    print(f"the package: {whole / 1000:.0f} k tokens in {modules} modules, at most {MODULES}, to become {MODULES_AIM}")
    if over or modules > MODULES:
        sys.exit("take something away, or let an issue say by how much to raise a number")


if __name__ == "__main__":
    main()
