"""What strangers' names, paths and messages do to what is printed: nothing. One module prints, and it is bounded.

A name with a line break, or with what a terminal or an editor takes for one, begins no line of its own.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from html import unescape
from pathlib import Path
from zipfile import ZipFile

import h5py
import numpy as np
import pytest
from kit import Run, safetensors

import ckptconv
from ckptconv.errors import CorruptCheckpoint, UnsafeCheckpoint, UsageError
from ckptconv.messages import MAX_LINE, MAX_TEXT, listing, paragraph
from ckptconv.moves.part import Coded
from ckptconv.moves.sources import stream
from ckptconv.reporting.html import digest

FORGED = "error: FORGED"
BREAKS = (
    "\r", "\x85", "\u2028", "\u2029", "\v", "\f", "\x1c", "\x1e", "\x1b[1G\x1b[2K", "\x9b1G", "\b", "\u202e", "\u3164",
)  # fmt: skip
NAME = f"a\n{FORGED}\n  {FORGED}" + "".join(f"a{c}{FORGED}" for c in BREAKS)


# --- every verb, with every name --------------------------------------------------------------------------------------


def lay(folder: Path, name: str) -> None:
    """Checkpoints, rule files and folders that hold this name wherever there is room for one."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    ckptconv.save({name: np.zeros((2, 3), "f4"), "q": np.full(4, np.nan, "f4")}, folder / "m.pt")
    ckptconv.save({name: np.zeros((2, 4), "f4"), f"z{name}": np.zeros((2, 3), "f4")}, folder / "o.pt")
    safetensors(folder / "meta.safetensors", {name: entry, "__metadata__": {name: name}}, bytes(8))
    safetensors(folder / "dtype.safetensors", {name: {**entry, "dtype": name}}, bytes(8))
    safetensors(folder / "cut.safetensors", {name: {**entry, "data_offsets": [0, 800]}}, bytes(8))
    (folder / "hf").mkdir()
    index = {"metadata": {name: name}, "weight_map": {name: f"{name}.safetensors"}}
    (folder / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    with h5py.File(folder / "keras.h5", "w") as f:
        f.attrs["layer_names"] = np.array([name.encode()])
        f.create_group(name).attrs["weight_names"] = np.array([name.encode(), b"w"])
    values = {name: name, "w": np.ones(3, "f4"), "n": {name: {name: name}}}
    (folder / "values.pkl").write_bytes(pickle.dumps(values))
    word = b"\x8c" + bytes([len(name.encode())]) + name.encode()
    (folder / "global.pkl").write_bytes(b"\x80\x04" + word + word + b"\x93.")
    text = json.dumps(name)
    for i, rules in enumerate((
        f'include = [{text}]', f'[params]\n{text} = {text}', f'[[rule]]\nfrom = {text}\nto = [{text}, {text}]',
        f'title = {text}\nsource = {text}\ntarget = {text}\n[[rule]]\nfrom = "q"\nto = {text}\nnote = {text}',
        f'{text} = 3', f'[[rule]]\nfrom = "q"\nto = "w"\nlayout = {text}',
        f'[[rule]]\nfrom = "q"\nto = "w"\nop = {text}',
        f'[[rule]]\nfrom = "{{x...}}"\nto = "{{x...}}"\nrefuse = {text}', '[[rule]]\nfrom = "{x...}"\nto = "same"',
    )):  # fmt: skip
        (folder / f"{i}.toml").write_text(rules)
    (folder / name).mkdir()
    (folder / name / "x.pt").write_bytes((folder / "m.pt").read_bytes())


SOURCES = (
    "m.pt", "o.pt", "meta.safetensors", "dtype.safetensors", "cut.safetensors", "hf", "values.pkl", "global.pkl",
    "keras.h5", "{}/x.pt", "{}", "nothing/{}", "http://127.0.0.1:9/{}",
)  # fmt: skip
VERBS = (
    ("inspect", "@"), ("inspect", "@", "--json"), ("inspect", "@", "--check"), ("verify", "@"), ("verify", "m.pt", "@"),
    ("diff", "@", "o.pt"), ("match", "@", "o.pt"), ("@", "-o", "x.npz", "--force", "-v"),
    ("@", "-o", "x.safetensors", "--dry-run"),
)  # fmt: skip
WORDS = (
    ("{}",), ("{}", "{}"), ("inspect", "--{}"), ("--{}",), ("inspect", "m.pt", "--sort", "{}"),
    ("inspect", "m.pt", "--include", "{}x"), ("inspect", "m.pt", "--at", "{}"),
    ("m.pt", "-o", "x.npz", "--dtype", "{}"),
    ("m.pt", "-o", "{}/y.npz", "--force"), ("m.pt", "-o", "{}.npz", "--to", "{}"), ("m.pt", "-o", "x.npz", "-c", "{}"),
    ("m.pt", "-o", "x.npz", "--engine", "{}"), ("m.pt", "-o", "x.npz", "--like", "{}:{}"), ("converters", "show", "{}"),
    ("report", "m.pt", "-o", "{}/r.html", "--force"), ("zoo", "{}", "nothing{}", "-o", "out"), ("zoo", "status", "out"),
    ("zoo", "o.pt", "meta.safetensors", "cut.safetensors", "-o", "out", "--resume", "-c", "7.toml"),
    ("zoo", "status", "{}"),
    *((verb, word, f"{i}.toml") for i in range(9) for verb, word in (("converters", "lint"), ("converters", "show"))),
    *(("m.pt", "-o", "x.npz", "--force", "-c", f"{i}.toml") for i in range(9)),
)  # fmt: skip


def forged(text: str) -> list[str]:
    """Lines that a name began, and characters that are not seen."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith(FORGED)]
    return lines + [repr(c) for c in {*text} if not c.isprintable() and c != "\n"]


@pytest.mark.skipif(os.name == "nt", reason="no file is called so there")
@pytest.mark.parametrize("source", ["", *SOURCES])
def test_no_name_begins_a_line(source: str, cli: Run, tmp_path: Path) -> None:
    lay(tmp_path, NAME)
    wrong = []
    for call in [[word.replace("@", source) for word in verb] for verb in VERBS] if source else WORDS:
        done = cli(*(word.replace("{}", NAME) for word in call))
        assert "Traceback" not in done.stderr, (call, done.stderr)
        wrong += [(call, line) for text in (done.stdout, done.stderr) for line in forged(text)]
    assert not wrong, "\n".join(map(str, wrong))
    assert source or [*(tmp_path / "out").iterdir()]


def foreign_member(folder: Path, name: str) -> None:
    with ZipFile(folder / "x.npz", "w") as z:
        z.writestr(name, b"")
    ckptconv.open(folder / "x.npz", from_="npz")


def two_states(folder: Path, name: str) -> None:
    words = b"".join(b"\x8c" + bytes([len(w.encode())]) + w.encode() for w in ("m", name))
    (folder / "x.pkl").write_bytes(b"\x80\x04" + words + b"\x93)R}b}b.")
    ckptconv.open(folder / "x.pkl", opaque=True)


def too_few_bytes(_: Path, name: str) -> None:
    list(stream(Coded(__name__, "x.npz", name, 8)))


def decode(_: Coded) -> list[bytes]:
    """What `stream` calls: this module is named as the one that decodes."""
    return [b"1234"]


def parser_that_fails(folder: Path, name: str) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError(name)

    (folder / "x.npy").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptconv.formats.npy.open", fails)
        ckptconv.open(folder / "x.npy", from_="npy")


@pytest.mark.parametrize("make", [foreign_member, two_states, too_few_bytes, parser_that_fails])
def test_no_name_begins_an_indented_line_of_a_message(make: Callable[[Path, str], None], tmp_path: Path) -> None:
    """A break before an indented line is kept, for our lists: what comes from a file is escaped before."""
    with pytest.raises(CorruptCheckpoint if make is not two_states else UnsafeCheckpoint, match="FORGED") as e:
        make(tmp_path, NAME)
    assert forged(str(e.value)) == []


def test_a_defect_shows_nothing_either(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"a\x1b[1G\n{FORGED} at http://me:hush@h/x?sig=hush") from ValueError(f"\n{FORGED}\x9b")

    monkeypatch.setattr("ckptconv.formats.table.table", broken)
    done = cli("formats")
    assert (done.returncode, done.stdout) == (70, "")
    assert "RuntimeError" in done.stderr
    assert "hush" not in done.stderr
    assert {c for c in done.stderr if not c.isprintable()} == {"\n"}
    assert [line for line in done.stderr.splitlines() if not line.startswith("  ")] == [
        "error: a defect of ckptconv; please report it:"
    ]


@pytest.mark.skipif(os.name == "nt", reason="no file is called so there")
def test_titles_of_reports_are_printable(cli: Run, tmp_path: Path) -> None:
    """What scripts draw passes `visible`; the title and the headings are written before."""
    name = "".join(f"a{c}b" for c in BREAKS) + "<script>1"
    (tmp_path / name).mkdir()
    for file in (f"{name}/{name}.npz", f"{name}/b.npz"):
        ckptconv.save({"w": np.arange(3.0)}, tmp_path / file)
        assert cli("report", file, "-o", "r.html", "--force").returncode == 0
        page = (tmp_path / "r.html").read_text()
        head, rest = page.split("<style>")[0], page.split("<header>")[1].split("</header>")[0]
        assert {c for c in head + rest if not c.isprintable()} <= {"\n"}
        assert "<script>1" not in page
        assert f"script-src {digest(page.rpartition('<script>')[2].partition('</script>')[0])};" in unescape(head)


# --- bounds -----------------------------------------------------------------------------------------------------------


LONG, MOST = 60_000, 120_000  # characters of a name, and of what is said


def test_what_is_said_of_many_and_of_long_names_is_short(cli: Run, tmp_path: Path) -> None:
    """What is not a table that was asked for is cut, with the number of what was left out."""
    count = 2000
    letters = [f"{np.base_repr(i * 7919 + 10**7, 36).translate(LETTERS)}w" for i in range(count)]  # that do not fold
    where = {n: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(letters)}
    for name, head in (
        ("many", where),
        ("few", {"w": where[letters[0]]}),
        ("long", {"n" * LONG: where[letters[0]], "m" * LONG: where[letters[1]]}),
        ("noted", {"__metadata__": {f"k{'v' * LONG}" if i == 0 else f"k{i}": "v" * 90 for i in range(9000)}}),
    ):
        safetensors(tmp_path / f"{name}.safetensors", head, bytes(4 * len(head) * (name != "noted")))
    (tmp_path / "hf").mkdir()
    index = {"metadata": {}, "weight_map": {n: f"{n}.safetensors" for n in letters}}
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "none.toml").write_text("[[rule]]\nfrom = 'nothing'\nto = 'x'\n")
    (tmp_path / "one.toml").write_text("[[rule]]\nfrom = '{x...}'\nto = 'x'\n")
    for call in (
        ("verify", "few.safetensors", "many.safetensors"), ("inspect", "noted.safetensors"), ("inspect", "hf"),
        ("many.safetensors", "-o", "x.npz", "-c", "none.toml"), ("many.safetensors", "-o", "x.npz", "-c", "one.toml"),
        ("long.safetensors", "-o", "x.npz", "-c", "none.toml"), ("long.safetensors", "-o", "x.npz", "-c", "one.toml"),
        ("verify", "few.safetensors", "long.safetensors"), ("inspect", "long.safetensors", "--check"),
        ("long.safetensors", "-o", "x.npz", "--to", "npz"), ("inspect", "long.safetensors", "--include", "nothing"),
        ("diff", "long.safetensors", "few.safetensors"),
        ("match", "long.safetensors", "few.safetensors", "-o", "r.toml"),
        ("long.safetensors", "long.safetensors", "-o", "x.npz"),
    ):  # fmt: skip
        done = cli(*call)
        assert len(done.stdout) + len(done.stderr) < MOST, call
        assert max(map(len, done.stderr.split("\n"))) <= MAX_LINE + 100, call
        assert "long" in call[0] + call[1] + call[-1] or "more" in done.stderr, (call, done.stderr[:300])


LETTERS = str.maketrans("0123456789", "!#$&'()*+,")


def test_a_message_is_bounded_and_keeps_its_end() -> None:
    """What is said of a long name stands behind it."""
    long = "n" * LONG
    said = str(UsageError(f"{long} is away"))
    assert said.endswith("n is away")
    assert f"({LONG + 8} characters)" in said
    assert len(said) < MAX_LINE + 100
    assert listing([f"{long}: why"]).endswith("nn: why")
    assert listing(map(str, range(10**5)), 2) == "  0\n  1\n  ... and 99,998 more"
    many = "\n".join(["one:", *["  two" * 99] * 10**5])
    assert "more lines" in paragraph(many)
    assert len(paragraph(many)) < MAX_TEXT + 2 * MAX_LINE


# --- urls where only a file of this machine can be --------------------------------------------------------------------

SOMEWHERE = (
    "s3://b/x.{}", "http://me:hush@h/x.{}", "HTTPS://h/x.{}?sig=hush",
    "memory://x.{}", "s3:/b/x.{}", "http:/me:hush@h/x.{}", "File:/x.{}",
)  # fmt: skip


@pytest.mark.parametrize("url", SOMEWHERE)
@pytest.mark.parametrize(
    ("call", "suffix"),
    [
        (("report", "a.npz", "-o"), "html"), (("zoo", "a.npz", "-o", "new", "--ledger"), "jsonl"),
        (("match", "a.npz", "b.npz", "-o"), "toml"),
        (("converters", "show"), "toml"), (("converters", "lint"), "toml"),
        (("a.npz", "-o", "c.npz", "-c"), "toml"), (("a.npz", "-o", "c.npz", "-c"), "x"),
    ],
)  # fmt: skip
def test_no_folder_is_made_of_a_url(call: tuple[str, ...], suffix: str, url: str, cli: Run, tmp_path: Path) -> None:
    """As a path it is a folder called `s3:`; the file in it was taken for one in a bucket, and named by its secrets."""
    for name in "ab":
        ckptconv.save({name: np.arange(3.0)}, tmp_path / f"{name}.npz")
    if call[0] == "zoo":
        ckptconv.zoo(tmp_path / "a.npz", tmp_path / "zoo")
    before = sorted(tmp_path.rglob("*"))
    done = cli(*call, url.format(suffix))
    assert (done.returncode, done.stdout) == (2, "")
    assert "on this machine" in done.stderr
    assert "hush" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.name == "nt", reason="no folder is called so there")
def test_a_folder_that_is_called_like_a_url_is_one(cli: Run, tmp_path: Path) -> None:
    ckptconv.save({"a": np.arange(3.0)}, tmp_path / "a.npz")
    (tmp_path / "s3:").mkdir()
    for at in ("s3:/x.html", "./http:/x.html", f"{tmp_path}/x:y.html"):
        (tmp_path / "http:").mkdir(exist_ok=True)
        assert cli("report", "a.npz", "-o", at, "--no-values").returncode == 0
    assert cli("a.npz", "-o", "ftp:/x/y.npz").returncode == 2
