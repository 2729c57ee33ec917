"""Options are declared once: the command line, Python's keywords and the pages agree."""

from __future__ import annotations

import inspect
import json
import pydoc
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from kit import ROOT, Run

import ckptconv
from ckptconv.api import options
from ckptconv.cli import show
from ckptconv.cli.options import spelled
from ckptconv.cli.suggestions import option
from ckptconv.errors import UsageError


def test_every_verb_and_every_option_is_on_a_page() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "make_options.py"))["pages"]()
    assert {p.stem for p in made} == {
        "keywords",
        "convert",
        "inspect",
        "diff",
        "verify",
        "match",
        "report",
        "serve",
        "zoo",
    }
    assert [p.name for p, text in made.items() if p.read_text("utf-8") != text] == [], "python tools/make_options.py"


@pytest.mark.parametrize(
    ("word", "keyword"),
    [("overwrite", "force"), ("format", "to"), ("cast", "dtype"), ("no such word", "")],
)
def test_a_word_of_another_program_leads_to_an_option(word: str, keyword: str) -> None:
    assert {k for keywords in options.SYNONYMS.values() for k in keywords} <= {*options.KNOWN, "rtol"}
    assert options.SYNONYMS.keys().isdisjoint(options.KNOWN)
    assert options.synonym(word, options.KNOWN) == keyword
    assert options.synonym(word, options.KNOWN.keys() - {keyword}) in ("", "from_")


@pytest.mark.parametrize(
    "call", [("a.npz", "-o"), ("convert", "a.npz", "-n", "-o"), ("zoo", ".", "--ledger", "l", "-o")]
)
def test_nothing_is_written_to_the_memory_of_a_command(call: tuple[str, ...], cli: Run, tmp_path: Path) -> None:
    """It said what it had written, which was gone when it ended; a program of one's own can go on with it."""
    ckptconv.save({"a": np.arange(3.0)}, tmp_path / "a.npz")
    done = cli(*call, "memory://gone/x.npz")
    assert done.returncode == 2
    assert "memory://gone/x.npz is in the memory of this command, and gone when it ends" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz"]
    kept = f"memory://kept/{len(call)}{call[0]}.npz"
    ckptconv.convert(tmp_path / "a.npz", kept)
    assert list(ckptconv.open(kept)) == ["a"]


@pytest.mark.parametrize("verb", ["open", "convert", "diff"])
def test_help_shows_every_keyword(verb: str) -> None:
    function = getattr(ckptconv, verb)
    shown = [p.name for p in inspect.signature(function).parameters.values() if p.name in options.KNOWN]
    assert shown
    assert all(re.search(rf"^    {name} +\S", function.__doc__, re.M) for name in shown)


def test_help_of_the_package_can_be_read() -> None:
    assert len(pydoc.render_doc(ckptconv).splitlines()) <= 400


@pytest.mark.parametrize(
    ("keyword", "given", "kept"),
    [
        ("include", "bert*", ("bert*",)),
        ("include", ["a", "b"], ("a", "b")),
        ("rename", {"a": "b"}, (("a", "b"),)),
        ("rename", "a=b", ("a=b",)),
        ("param", {"heads": 12}, {"heads": 12}),
        ("param", ["heads=12", "kind=x"], {"heads": 12, "kind": "x"}),
        ("max_memory", "1GiB", 2**30),
        ("max_memory", "512MiB", options.Options().max_memory),  # the default, as help says
        ("max_shard_size", 1000, 1000),
        ("verify", 1, True),
        ("verify", False, False),
        ("verify", None, None),
        ("dtype", np.float16, "float16"),
        ("dtype", None, None),
        ("from_", "tf", "tf"),
    ],
)
def test_what_people_write_for_a_value(keyword: str, given: object, kept: object) -> None:
    assert getattr(options.Options(**{keyword: given}), keyword) == kept


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"verify": "sometimes"}, "verify= takes True or False, not 'sometimes'"),
        ({"max_memory": "much"}, "'much' is not a size; write it like 512MB"),
        ({"param": "heads"}, "takes NAME=VALUE, not 'heads'"),
        *(
            ({k: given}, f"^{k}='' is empty: give a value, or leave it out$")
            for k, how in options.KNOWN.items()
            for given in ["", ["a", ""]][: 2 if how.kind.startswith("Seq") else 1]
            if how.metavar and k != "jobs"
        ),
    ],
)
def test_a_mistaken_keyword_is_a_usage_error(given: dict[str, object], says: str) -> None:
    with pytest.raises(ckptconv.UsageError, match=says) as e:
        ckptconv.convert("a", "b", **given)
    assert len(e.traceback) <= 6  # `takes`, `once`, `convert`, Options and what normalises the value


@pytest.mark.parametrize(
    ("said", "spelt"),
    [
        ("exists; force=True replaces it", "exists; --force replaces it"),
        ("say which with from_='tf'", "say which with --from tf"),
        ("rename='module.{x...}={x...}' takes it off", "--rename 'module.{x...}={x...}' takes it off"),
        ("choose with include='a.*'", "choose with --include 'a.*'"),
        ("give param='heads=NUMBER'", "give --param heads=NUMBER"),
        ("leave some out with exclude= or rename=:", "leave some out with --exclude or --rename:"),
        ("give each a scope=NAME:", "give each a --scope NAME:"),
        ("leave it out (hash=False)", "leave it out (--no-hash)"),
        ("choose one with converter=", "choose one with -c"),
        ("a tensor x.force=True", "a tensor x.force=True"),
        ("format=hdf5", "format=hdf5"),
    ],
)
def test_messages_of_the_library_are_spelt_for_the_command_line(said: str, spelt: str) -> None:
    assert spelled(said) == spelt


@pytest.mark.parametrize("name", ["a\u202eb", "a\x9bb", "a\u200bb", "a\ud800b", "a\U000e0001b", "a\x7fb", "é"])
def test_json_drives_no_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show.as_json({"name": name, "rows": [{"name": name}]})
    text = capsys.readouterr().out
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(text) == {"name": name, "rows": [{"name": name}]}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000", 1000), ("12B", 12), ("5 kB", 5000), ("2MB", 2_000_000), ("1.5GB", 1_500_000_000), ("1tb", 10**12),
        ("1KiB", 1024), ("512MiB", 2**29), ("2 GiB", 2**31), (" 1Ti ", 2**40), (7, 7), ("0.5", None), ("0MB", None),
        ("999", None),
        ("MB", None), ("1e3", None), ("-1", None), ("1 XB", None), ("9" * 400, None), ("1." + "0" * 400 + "MB", None),
    ],
)  # fmt: skip
def test_sizes(text: str | int, count: int | None) -> None:
    if count is None:
        with pytest.raises(UsageError, match="is not a size; write it like 512MB"):
            options.size(text)
    else:
        assert options.size(text) == count


def test_an_unknown_option_is_compared_with_all_but_few_are_named() -> None:
    known = ["--abc1", "--abc2", "--abc3", "--abc4", "--from", "other"]
    assert option("--abc5", known).count("--abc") == 3
    assert option("--zzzzzzzzz", known) == ""
