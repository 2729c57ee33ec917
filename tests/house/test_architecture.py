"""The shape of the package: imports run one way, frameworks stay out, the public surface is what is announced."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import ckptconv

PACKAGE = Path(ckptconv.__file__).parent
# The floors of the house, the ground first: a room may import lower floors and itself, nothing beside or above it.
FLOORS = [
    {"messages"},
    {"errors"},
    {"storage", "dtypes"},
    {"moves", "output"},
    {"checkpoint"},
    {"formats", "rules"},
    {"engine"},
    {"verification"},
    {"api"},
    {"torch"},
    {"matching"},
    {"bulk", "reporting", "testing", "plugin"},
    {"cli"},
]
ABOVE = {  # public names of other rooms
    "Checked", "DType", "Diff", "Inspection", "Match", "Page", "Plan", "Report", "Summary", "Verified", "check",
    "convert", "diff", "dry_run", "inspect", "match", "open", "report", "save", "verify", "zoo",
}  # fmt: skip
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
# What the command line may know beside the public names: what it shows, and where errors and messages are made.
SHOWN = {
    "api.comparing", "api.memory", "api.options", "api.reading", "api.result", "api.writing", "bulk", "errors",
    "formats", "matching", "messages", "reporting", "rules.library", "torch", "dtypes",
}  # fmt: skip
FORBIDDEN = {"tensorflow", "tf_keras", "keras", "torch", "jax", "flax"}


def modules() -> list[Path]:
    return [p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_pb2.py")]


def dotted(path: Path) -> str:
    """The name of a module below the package: engine.run, formats (a package's __init__)."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {dotted(p): p for p in modules()}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those inside them: a tenth of what a walk through all expressions meets."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, part, []))
        for part in ("handlers", "cases"):
            for branch in getattr(node, part, []):
                yield from statements(branch.body)


@cache
def inside(module: str) -> list[ast.stmt]:
    return [*statements(ast.parse(MODULES[module].read_text()).body)]


@cache
def imports(module: str) -> frozenset[str]:
    """Absolute names of all that a module imports: at its top, in functions, and for typing."""
    package = ["ckptconv", *MODULES[module].relative_to(PACKAGE).parts[:-1]]
    found: set[str] = set()
    for node in inside(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{stem}.{alias.name}" for alias in node.names}
    return frozenset(found)


def targets(module: str) -> set[str]:
    """The modules of ours that a module imports."""
    out = set()
    for name in imports(module):
        if name.partition(".")[0] == "ckptconv":
            below = name.partition(".")[2]
            out.add(below if below in MODULES else below.rpartition(".")[0])
    return out


def room(module: str) -> str:
    return module.partition(".")[0]


def test_no_arrow_climbs() -> None:
    """Every import counts, lazy ones and those for typing as well."""
    arrows = [(m, t) for m in MODULES if room(m) not in ("", "__main__") for t in targets(m)]
    across = [(m, t) for m, t in arrows if room(t) not in ("", room(m))]
    assert [(m, t) for m, t in across if FLOOR[room(t)] >= FLOOR[room(m)]] == []


@pytest.mark.parametrize("name", sorted({room(m) for m in MODULES} - {"", "__main__"}))
def test_no_circle_in_a_room(name: str) -> None:
    graph = {m: targets(m) - {m} for m in MODULES if room(m) == name}
    TopologicalSorter({m: {t for t in to if t in graph} for m, to in graph.items()}).prepare()


def test_formats_know_little() -> None:
    """Of lower floors' rooms, all but `output`, of which they know what files are called."""
    arrows = [(m, t) for m in MODULES if room(m) == "formats" for t in targets(m)]
    assert [(m, t) for m, t in arrows if room(t) == "output" and t != "output.destination"] == []


def test_the_command_line_knows_the_public_surface() -> None:
    """Public names (`from .. import Checkpoint`), and of other rooms those in SHOWN."""
    arrows = [(m, t) for m in MODULES if room(m) == "cli" for t in targets(m) if room(t) not in ("", "cli")]
    assert [(m, t) for m, t in arrows if t not in SHOWN and room(t) not in SHOWN] == []


def test_the_house_can_be_seen() -> None:
    entries = [p for p in PACKAGE.iterdir() if p.name != "__pycache__"]
    assert len(entries) <= 22
    assert {room(m) for m in MODULES} - {"", "__main__"} == set(FLOOR)


def test_a_function_fits_on_a_screen_and_a_module_in_the_head() -> None:
    """At most 60 lines, and 600: limits against monsters. Cohesion decides; what changes together stands together."""
    long = list[str]()
    for name, path in MODULES.items():
        long += [name] * (path.read_text().count("\n") > 600)
        for node in inside(name):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60:
                long.append(f"{name}.{node.name}")
    assert long == []


def test_no_framework_is_imported() -> None:
    """But torch, where it is asked for: in modules of that name, and by methods of a checkpoint."""
    named = {m: {name.partition(".")[0] for name in imports(m)} & FORBIDDEN for m in MODULES}
    allowed = {m for m in MODULES if MODULES[m].name == "torch.py" or room(m) == "checkpoint"}
    assert {m: names for m, names in named.items() if names - ({"torch"} if m in allowed else set())} == {}


def test_converting_imports_no_framework(fixtures: Path, tmp_path: Path) -> None:
    code = (
        "import sys, ckptconv; ckptconv.convert(sys.argv[1], sys.argv[2]); "
        f"print(sorted(set(sys.modules) & {FORBIDDEN!r}))"
    )
    args = [sys.executable, "-c", code, str(fixtures / "g2p_en"), str(tmp_path / "out.safetensors")]
    assert subprocess.run(args, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_help_imports_neither_numpy_nor_rich() -> None:
    code = (
        "import sys; sys.argv = ['ckptconv', '--help']\n"
        "from ckptconv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'rich', 'h5py', 'google', 'fsspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_public_surface() -> None:
    """What is announced is what there is: every error, and the public names of checkpoint and of the verbs."""
    from ckptconv import errors

    raised = {n for n, v in vars(errors).items() if isinstance(v, type) and v.__module__ == "ckptconv.errors"}
    classes = {"Checkpoint", "Note", "Tensor"}
    assert {*dir(ckptconv)} == raised | classes | ABOVE | {"__version__"}
    assert all(getattr(ckptconv, name).__doc__ for name in dir(ckptconv))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ckptconv.nonsense


def test_the_tree_of_errors_says_what_their_docstrings_say() -> None:
    """help(ckptconv.LayoutError) begins with its line of the tree."""
    from ckptconv import errors

    lines = dict(re.findall(r"^[│├└─ ]*(\w+) {2,}(.+?) {2,}exit", errors.__doc__ or "", re.M))
    classes = {n for n, v in vars(errors).items() if isinstance(v, type) and v.__module__ == "ckptconv.errors"}
    assert lines.keys() == classes - {"CkptError", "FormatError", "ConversionError"}
    for name, line in lines.items():
        assert re.match(rf"{re.escape(line)}[.,;:]", getattr(errors, name).__doc__ or "", re.I)


def explained() -> Iterator[tuple[str, Any]]:
    """The functions and classes that others use, with the methods and properties of the classes."""
    modules = ["ckptconv", "ckptconv.plugin"] + ["ckptconv.torch"] * bool(find_spec("torch"))
    for module in map(import_module, modules):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
        for name in dir(module) if module is ckptconv else getattr(module, "__all__", own):
            value = getattr(module, name)
            if callable(value) and not name.startswith("_"):
                yield f"{module.__name__}.{name}", value
            members = vars(value) if isinstance(value, type) else {}
            yield from ((f"{name}.{n}", v) for n, v in members.items() if not n.startswith("_") and is_code(v))


def is_code(value: object) -> bool:
    return isinstance(value, (FunctionType, property, cached_property))


def test_help_describes_every_public_name_and_every_field() -> None:
    """A class without a docstring gets its signature for one, which explains nothing."""
    found = dict(explained())
    assert len(found) > 120
    assert [n for n, v in found.items() if not (v.__doc__ or "").strip() or v.__doc__.startswith(f"{n}(")] == []
    for name, value in found.items():
        fields = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", ())
        public = [f for f in fields if not f.startswith("_")]
        assert [f for f in public if not re.search(rf"\b{f}\b", value.__doc__)] == [], name


def test_every_error_has_its_exit_code() -> None:
    codes = {
        name: getattr(ckptconv, name).exit_code
        for name in dir(ckptconv)
        if isinstance(getattr(ckptconv, name), type) and issubclass(getattr(ckptconv, name), ckptconv.CkptError)
    }
    assert codes == {
        "CkptError": 1, "UsageError": 2, "FormatError": 3, "UnknownFormat": 3, "AmbiguousFormat": 3,
        "CorruptCheckpoint": 4, "UnsafeCheckpoint": 5, "ConversionError": 6, "UnmatchedTensors": 6,
        "NameCollision": 6, "LayoutError": 6, "Unrepresentable": 6, "VerifyError": 7, "MissingExtra": 8,
        "StorageError": 9,
    }  # fmt: skip


def test_the_page_names_files_that_exist() -> None:
    """docs/architecture.md: each path in backquotes, below the package or the repository; NAME stands for any name."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text("utf-8")
    paths = set(re.findall(r"`([\w./*-]+(?:\.(?:py|md|toml|css|html|js)|/))`", page))
    assert len(paths) > 10
    missing = [p for p in paths for s in [p.replace("NAME", "*")] if not {*PACKAGE.glob(s), *PACKAGE.parent.glob(s)}]
    assert missing == []
