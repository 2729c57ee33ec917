"""The shape of the package: imports run one way, frameworks stay out, the public surface is what is announced."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ckptconv

PACKAGE = Path(ckptconv.__file__).parent
# Lower layers first; a module may import from its own layer's left and from any layer above it in this list.
LAYERS = [
    ["errors", "checksum"],
    ["remote", "publish"],
    ["lines", "tensor"],
    ["axes", "boxes", "layout", "moves", "elements", "names", "store"],
    ["destination"],
    ["output"],
    ["upload"],
    ["assign", "converter", "memory", "rewrite", "rulefile", "rules", "lint"],
    ["formats", "passes", "outline"],
    ["plan"],
    ["receipt", "sources"],
    ["job"],
    ["ahead", "journal"],
    ["run"],
    ["stats"],
    ["confirm", "hashes", "verify", "engines"],
    ["api"],
    ["zoo", "report", "match", "torch", "testing"],
    ["cli"],
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}
FORBIDDEN = {"tensorflow", "tf_keras", "keras", "torch", "jax", "flax"}


def modules() -> list[Path]:
    return [p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_pb2.py")]


def imports(path: Path) -> list[tuple[str, bool]]:
    """Absolute names of all imports in a file, and whether each runs when the module is imported."""
    package = ["ckptconv", *path.relative_to(PACKAGE).parts[:-1]]
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, eager: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, eager) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                stem = ".".join([*base, *([child.module] if child.module else [])])
                found.extend((f"{stem}.{alias.name}", eager) for alias in child.names)
            typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            visit(child, eager and not typing_only and not inner)

    visit(ast.parse(path.read_text()), True)
    return found


def home(name: str) -> str | None:
    """The layer name of one of our modules."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "ckptconv" and parts[1] in RANK else None


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own.startswith("__"):
        return
    assert own in RANK, f"{own} has no place in the layers"
    upward = {n for n, eager in imports(path) if eager and (at := home(n)) and at != own and RANK[at] > RANK[own]}
    assert not upward


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_framework_is_imported(path: Path) -> None:
    named = {name.split(".")[0] for name, _ in imports(path)}
    allowed = {"torch"} if path.name == "torch.py" else set()
    assert not named & FORBIDDEN - allowed


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
    assert all(getattr(ckptconv, name) is not None for name in ckptconv.__all__)
    assert set(dir(ckptconv)) == {*ckptconv.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ckptconv.nonsense


def test_every_error_has_its_exit_code() -> None:
    codes = {
        name: getattr(ckptconv, name).exit_code
        for name in ckptconv.__all__
        if isinstance(getattr(ckptconv, name), type) and issubclass(getattr(ckptconv, name), ckptconv.CkptError)
    }
    assert codes == {
        "CkptError": 1, "UsageError": 2, "FormatError": 3, "UnknownFormat": 3, "AmbiguousFormat": 3,
        "CorruptCheckpoint": 4, "UnsafeCheckpoint": 5, "ConversionError": 6, "UnmatchedTensors": 6,
        "NameCollision": 6, "LayoutError": 6, "Unrepresentable": 6, "VerifyError": 7, "MissingExtra": 8,
        "StorageError": 9,
    }  # fmt: skip
