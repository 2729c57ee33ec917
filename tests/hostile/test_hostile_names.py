"""Names that attack: in every output they are shown harmlessly, stay in their folder, or are refused with the reason.

And what may take long: globs, rules and templates against long names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import CkptError, UnmatchedTensors, UsageError
from ckptconv.rules import library, passes
from ckptconv.rules.apply import apply
from ckptconv.rules.assign import Names

NAMES = {
    "escape": "\x1b[2J\x1b]0;owned\x07w",
    "c1": "\x9b31mw",
    "controls": "".join(map(chr, range(1, 32))),
    "bidi": "safe\u202etxt.exe\u2066",
    "line separators": "a\u2028b\u2029c\x85d",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "markup": "[red]not rich[/red]",
    "parent": "../../../outside",
    "absolute": "/tmp/ckptconv-owned",
    "windows": "C:\\windows\\..\\system32",
    "device": "CON",
    "dots": "..",
    "dot": ".",
    "hidden": ".bashrc",
    "empty parts": "a//b///c/",
    "long": "n" * 65_536,
    "long part": "d/" + "m" * 300 + "/w",
    "nul": "a\0b",
    "surrogate": "half\ud800",
    "option": "--force",
    "metadata": "__metadata__",
    "shell": "$(touch owned);`touch owned`|w",
    "format": "%s%n{0}{x!r}",
    "astral": "\U000e0041tag",
}
TARGETS: dict[str, dict[str, object]] = {
    "m.safetensors": {},
    "m.pt": {},
    "m.npz": {},
    "npy": {"to": "npy"},
    "m.ckpt": {"to": "tf"},
    "m.msgpack": {},
    "m.hdf5": {"to": "hdf5"},
    "m.h5": {"to": "keras"},
}

# What a target cannot hold, by words of its reason ("": a long name leaves no room for it); everything else is held.
UNICODE, PARTS, NUL = "not valid Unicode", "an empty component", "HDF5 names cannot hold a NUL"
REFUSED: dict[str, dict[str, str]] = {
    "m.safetensors": {"surrogate": UNICODE, "metadata": "reserves"},
    "m.pt": {},
    "m.npz": {"long": "", "nul": "truncate names at a NUL", "surrogate": UNICODE},
    "npy": {"long": "", "long part": "", "surrogate": UNICODE},
    "m.ckpt": {"surrogate": UNICODE},
    "m.msgpack": {"surrogate": UNICODE},
    "m.hdf5": {"absolute": PARTS, "dot": PARTS, "empty parts": PARTS, "nul": NUL, "surrogate": UNICODE},
    "m.h5": {"absolute": PARTS, "dot": PARTS, "empty parts": PARTS, "long": "", "nul": NUL, "surrogate": UNICODE},
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_name_stays_a_name(target: str, tmp_path: Path) -> None:
    """Each that is refused by itself; `..` is a folder of others' names."""
    value = np.arange(3, dtype="f4")
    sound = [what for what in NAMES if what not in REFUSED[target] and what != "dots"]
    for i, some in enumerate([sound, ["dots"], *([what] for what in REFUSED[target])]):
        home, said = tmp_path / str(i) / "a" / "b", ""
        home.mkdir(parents=True)
        try:
            ckptconv.save({NAMES[what]: value for what in some}, home / target, **TARGETS[target])
        except CkptError as e:
            said = str(e)
        assert bool(said) == (some[0] in REFUSED[target]), said
        assert REFUSED[target].get(some[0], "") in said
        assert "\x1b" not in said
        assert len(said) < 10_000 or some == ["long"]
        back = {} if said else ckptconv.open(home / target)
        assert [t.numpy().tobytes() for t in back.values()] == [value.tobytes()] * len(some) * (not said)
        top = {home / target, home / "m.ckpt.index", home / "m.ckpt.data-00000-of-00001", home / "checkpoint"}
        assert set(home.iterdir()) <= (set() if said else top)
        assert list(home.parent.parent.iterdir()) == [home.parent]
        assert list(home.parent.iterdir()) == [home]
    assert not Path("/tmp/ckptconv-owned").exists()


@pytest.fixture(scope="module")
def attacking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "m.pt"
    ckptconv.save({n: np.zeros(2, "f4") for k, n in NAMES.items() if k != "surrogate"}, path)
    return path


@pytest.mark.parametrize(
    "args",
    [
        ("inspect",), ("inspect", "--tree"), ("inspect", "--stats"), ("inspect", "--hash"), ("inspect", "--json"),
        ("verify",), ("-o", "x.npz"), ("-o", "x.safetensors"), ("-o", "x.npz", "--dry-run"), ("-o", "x.npz", "--json"),
        ("-o", "x.npz", "-c", "auto"), ("-o", "x.npz", "--include", "nothing*"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_terminal_sees_no_escape(args: tuple[str, ...], attacking: Path, cli: Run) -> None:
    words = [args[0], attacking, *args[1:]] if not args[0].startswith("-") else [attacking, *args]
    done = cli(*words)
    assert "Traceback" not in done.stderr
    said = done.stderr if "--json" in args else done.stdout + done.stderr
    odd = {c for c in said if not c.isprintable() and c not in "\n\t"}
    assert not odd
    if "--json" in args and done.stdout:
        assert not {c for c in done.stdout if ord(c) < 32 and c != "\n"}, "JSON escapes controls"


# --- time -------------------------------------------------------------------------------------------------------

PATTERNS = ["{a}{b}", "{a...}/{b...}/{c...}/{d...}", "a{x}a{y}a{z}a{w}a", "{x...}", "{i}_{j}_{k}_{l}", "x{a}x{a}x{a}x"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("text", ["a", "a/", "ab", "a_", "1_", "x"])
def test_rules_take_linear_time(pattern: str, text: str) -> None:
    """A quarter of a megabyte of name against patterns that make backtracking explode."""
    rule = f'[[rule]]\nfrom = "{pattern}"\nto = []\noptional = true\n'
    began = time.process_time()
    try:
        made = library.parse(rule, "slow")
    except CkptError:
        return
    names = {text * (size // len(text)): held("x", np.zeros(1, "f4")) for size in (1000, 20_000, 250_000)}
    try:
        apply(made, Checkpoint(names))
    except CkptError:
        pass
    assert time.process_time() - began < 5


@pytest.mark.parametrize("pattern", ["{a}x", "x{a}y", "/{a}x{b}y", "^{a}x{b}y"])
def test_rewrites_take_linear_time(pattern: str) -> None:
    made = library.parse(f"rewrite = [['{pattern}', 'z']]\n[[rule]]\nfrom = 'a'\nto = 'b'", "slow")
    names = [*("/x" + "a" * n for n in (490, 20_000, 1_000_000)), *("x" * 490 + str(n) for n in range(10)), "/" * 490]
    began = time.process_time()
    Names(made, Checkpoint({n: held("x", np.zeros(1, "f4")) for n in names}))
    assert time.process_time() - began < 2


def test_a_rewrite_that_makes_names_longer_and_longer_is_refused() -> None:
    made = library.parse("rewrite = [['a', 'aaaaaaaaaa']]\n[[rule]]\nfrom = 'a'\nto = 'b'", "grows")
    with pytest.raises(UsageError, match="rewrite 'a': makes a name of more than 500 characters"):
        Names(made, Checkpoint({"a": held("a", np.zeros(1, "f4"))}))


@pytest.mark.parametrize("glob", ["*" * 40 + "x", "*a*a*a*a*a*a*a*a*b", "[!a]*[!b]*", "?" * 5000])
def test_globs_take_linear_time(glob: str) -> None:
    """The user's own, but on a stranger's names."""
    names = [*("a" * n for n in (10, 1000, 20_000)), glob]
    found = Checkpoint({n: held("a", np.zeros(1, "f4")) for n in names})
    began = time.process_time()
    try:
        passes.select(found, [glob])
    except CkptError:
        pass
    assert time.process_time() - began < 5


def test_the_nearest_rule_of_a_long_name_is_found_in_its_beginning() -> None:
    """It was looked for in all of it, which took 13 s for each MB."""
    began = time.process_time()
    long = {"e" * 2**20: held("n", np.zeros(1))}
    with pytest.raises(UnmatchedTensors, match="takes 1 of 1"):
        apply(library.load("bert"), Checkpoint(long))
    assert time.process_time() - began < 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("included", [False, True])
def test_a_rule_file_that_is_a_pipe_is_not_waited_for(included: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "rules.toml").write_text('include = ["pipe"]\n')
    with pytest.raises(UsageError, match=r"is a pipe or a device|there is no pipe\.toml"):
        library.load(str(tmp_path / ("rules.toml" if included else "pipe.toml")))


@pytest.mark.parametrize("options", [(), ("--tree",), ("--stats",)])
def test_a_name_without_end_is_shown_in_short(options: tuple[str, ...], tmp_path: Path, cli: Run) -> None:
    ckptconv.save({"x" * 60_000: np.ones(2), "y" * 60_000: np.ones(2)}, tmp_path / "m.safetensors")
    done = cli("inspect", "m.safetensors", *options)
    assert done.returncode == 0
    assert len(done.stdout + done.stderr) < 3000
