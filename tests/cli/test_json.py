"""The output of every `--json` is what its schema in docs/schemas says, and no key is left out there."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from kit import FIXTURES, ROOT

import ckptconv
from ckptconv.cli.main import app, main

KINDS = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip
RULES = '[[rule]]\nfrom = "a/kernel"\nto = "w"\nlayout = "i o -> o i"\n[[rule]]\nfrom = "{x...}"\nto = "{x...}"\n'
# schema: command lines; each starts with the files of `folder` and what the earlier ones have written
COMMANDS = {
    "convert": (
        "a.npz -o half.safetensors -c rules.toml --dtype float16",
        "a.npz -o small.npz --include a/bias",
        "cut.ckpt -o kept.npz --keep-going",
    ),
    "dry-run": ("a.npz -o x.safetensors -c rules.toml -n", f"{FIXTURES}/torch/training.pt -o x.npz -n"),
    "inspect": (
        "inspect a.npz", "inspect a.npz --stats --hash", "inspect wide.npz --stats", "inspect a.npz --check",
        "inspect a.npz --graph",
        f"inspect {FIXTURES}/tf/saved --graph", f"inspect {FIXTURES}/torch/training.pt",
        f"inspect {FIXTURES}/keras/net.keras --graph",
    ),
    "diff": (
        "diff a.npz b.npz", "diff a.npz a.npz", "diff a.npz b.npz --by kind", "diff wide.npz far.npz",
        "diff wide.npz far.npz --by layer",
    ),
    "verify": ("verify a.npz half.safetensors -c rules.toml --dtype float16",),
    "verify-one": ("verify half.safetensors",),
    "match": ("match a.npz half.safetensors",),
    "report": ("report a.npz",),
    "zoo-dry-run": ("zoo many -o out -n",),
    "zoo": ("zoo many -o out -j 1",),
    "zoo-status": ("zoo status out",),
    "formats": ("formats",),
    "converters": ("converters",),
    "converters-show": ("converters show t5",),
    "converters-lint": ("converters lint rules.toml", "converters lint bad.toml"),
    "error": ("inspect missing.npz", "verify a.npz b.npz", "inspect a.npz --sort nothing", "a.npz -o a.npz"),
}  # fmt: skip


def problems(schema: dict[str, Any], value: Any, at: str = "$") -> Iterator[str]:
    """What a value has that the schema does not say, and the other way round: an object has no further keys."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, KINDS[k]) and (k == "boolean" or not isinstance(value, bool)) for k in kinds):
        yield f"{at} is {value!r}, not of {kinds}"
        return
    if value not in schema.get("enum", [value]):
        yield f"{at} is {value!r}, not one of {schema['enum']}"
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{at} is {value}"
    for i, inner in enumerate(value if isinstance(value, list) else ()):
        yield from problems(schema.get("items", {"type": list(KINDS)}), inner, f"{at}[{i}]")
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", False)
        yield from (f"{at} lacks {k}" for k in schema.get("required", []) if k not in value)
        for key, inner in value.items():
            if key in known or isinstance(rest, dict):
                yield from problems(known.get(key, rest), inner, f"{at}.{key}")
            elif not rest:
                yield f"{at}.{key} is not in the schema"


def printed(line: str) -> Any:
    """The JSON value that a command prints; NaN and Infinity are not JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        main([*line.split(), "--json"])
    return json.loads(out.getvalue(), parse_constant=lambda word: pytest.fail(f"{line} prints {word}"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = np.arange(12, dtype="f4").reshape(3, 4)
    kernel[0, 0] = np.nan
    arrays = {"a/kernel": kernel, "a/bias": np.array([1e9, 1e-30, 0, 2], "f4"), "b": np.array(3, "i8")}
    ckptconv.save(arrays, "a.npz")
    ckptconv.save(
        {"a/kernel": kernel + 1, "a/bias": arrays["a/bias"].astype("f8"), "b": np.zeros(2), "c": kernel}, "b.npz"
    )
    wide = np.full((8, 8), 1.7e308)  # of which differences, sums and squares are infinite
    ckptconv.save({"0/w": wide, "1/w": -wide}, "wide.npz")
    ckptconv.save({"0/w": -wide, "1/w": wide * np.inf}, "far.npz")
    ckptconv.save({f"{i}/w": np.arange(99.0) for i in range(3)}, "cut.ckpt")
    data = Path("cut.ckpt.data-00000-of-00001")
    data.write_bytes(b"\xff" * 9 + data.read_bytes()[9:])
    Path("rules.toml").write_text(RULES)
    Path("bad.toml").write_text('[[rule]]\nfrom = "{x}"\nto = "{y}"\n')
    Path("many").mkdir()
    ckptconv.save(arrays, "many/good.npz")
    Path("many/bad.npz").write_bytes(b"nonsense-nonsense")


def test_each_output_is_what_its_schema_says(folder: None) -> None:
    found, seen = list[str](), set[str]()
    for name, lines in COMMANDS.items():
        schema = json.loads((ROOT / "docs" / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
        for line in lines:
            value = printed(line)
            found += [f"{line}: {p}" for p in problems(schema, value, name)]
            seen |= {f"{name}.{key}" for key in (value if isinstance(value, dict) else value[0])}
        keys = schema.get("items", schema)["properties"]
        found += [f"{name}.{key} was never printed" for key in keys if f"{name}.{key}" not in seen]
    assert found == []


def test_the_pages_are_not_stale_and_each_verb_with_json_has_a_schema() -> None:
    pages = runpy.run_path(str(ROOT / "tools" / "make_schemas.py"))["pages"]()
    assert [p.name for p, text in pages.items() if p.read_text(encoding="utf-8") != text] == [], "run make docs"
    schemas = {p.stem for p in pages if p.suffix == ".json"}
    assert {p.stem for p in (ROOT / "docs" / "schemas").iterdir()} == schemas == set(COMMANDS)
    verbs = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    verbs |= {f"converters-{name}": c for name, c in verbs["converters"].commands.items()}
    assert {v for v, c in verbs.items() if any("--json" in p.opts for p in c.params)} <= schemas
    del verbs["serve"]  # prints an address, and stays
    assert all(any("--json" in p.opts for p in c.params) for c in verbs.values())
