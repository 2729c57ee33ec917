"""Regular expressions of our own: as `re`, but in linear time."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from kit import EFFORT

import ckptconv
from ckptconv.rules.regex import Regex

PIECES = ["a", "b", "ab", ".", "[ab]", "[^a]", r"\d", r"\.", "1", "^", "$", "{", "]a", r"[\]b]"]
REPEATS = ["*", "+", "?", "{1,2}", "{2}", "{0,}"]


def pattern(rnd: random.Random, depth: int = 0) -> str:
    kind = rnd.random() if depth < 4 else 0.0
    if kind < 0.4:
        return rnd.choice(PIECES)
    inner = pattern(rnd, depth + 1)
    if kind < 0.55:
        return inner + pattern(rnd, depth + 1)
    if kind < 0.65:
        return f"(?:{inner}|{pattern(rnd, depth + 1)})"
    if kind < 0.8 or re.match(inner, ""):  # which empty rounds of a repetition a group keeps is not the same
        return f"({inner})"
    return f"(?:{inner}){rnd.choice(REPEATS)}"


def test_it_replaces_what_re_replaces() -> None:
    rnd = random.Random(1)
    tries = max(100, int(1500 * EFFORT))
    for _ in range(tries):
        text = pattern(rnd)
        theirs = re.compile(text, re.DOTALL)
        to = "<" + "".join(f"\\{i + 1}," for i in range(theirs.groups)) + ">"
        name = "".join(rnd.choice("ab1.{]") for _ in range(rnd.randrange(9)))
        assert Regex(text).sub(to, name) == theirs.sub(to, name), (text, name)


@pytest.mark.parametrize(
    ("text", "to", "name", "wanted"),
    [
        (r"^", "model.", "a.b", "model.a.b"),
        (r"$", ".weight", "a.b", "a.b.weight"),
        (r"layer_(\d+)", r"h.\1", "enc/layer_12/k", "enc/h.12/k"),
        (r"(\w+)/(\w+)", r"\2.\1", "a/b", "b.a"),
        (r"a.*?b", "x", "acbcb", "xcb"),
        (r"a{2,3}?", "x", "aaa", "xa"),
        (r"/", r"\\", "a/b", r"a\b"),
        (r"(a)|b", r"[\1]", "ab", "[a][]"),
        (r"a||b", "x", "bab", "xxxxxx"),
        (r"a??", "<>", "aa", "<><><><><>"),
        (r"[[a]", "x", "[ab", "xxb"),
    ],
)
def test_replacements(text: str, to: str, name: str, wanted: str) -> None:
    assert Regex(text).sub(to, name) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(a", "a group without its end"), ("a)", "a closing bracket too many"), ("*a", "repeats nothing"),
        ("a**", "repeats a repetition"), ("a?+b", "repeats a repetition"),
        ("[a", "a class without its end"), ("a\\", "backslash"),
        (r"(a)\1", "backslash"),
        (r"a\b", "backslash"), ("(?=a)", "looks around"), ("a{9999}", "too large"), ("(a{999}){9}", "too large"),
        ("a{3,2}", "ends before it begins"), ("(" * 60 + ")" * 60, "nests groups too deeply"),
        ("[z-a]", "is not one: bad"), ("(?i)a", "sets flags, which are not taken"), ("(?m)", "sets flags"),
        ("(?x)a", "sets flags"), ("(?s-i:a)", "sets flags"), ("(?P<n>a)", "names a group"),
        ("[[:alpha:]]", r"has \[:alpha:\], which is no class here"), ("[^0[:word:]]", r"has \[:word:\]"),
        (r"\y", "is not one: bad escape"), ("a{999}" * 9, "repeats too much"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str, says: str) -> None:
    with pytest.raises(ckptconv.UsageError, match=says):
        Regex(text)


def test_no_expression_takes_for_ever() -> None:
    began = time.process_time()
    assert Regex("(a*)*(a|aa)+b").sub("x", "a" * 200) == "a" * 200
    assert time.process_time() - began < 5


def test_names_are_replaced_in_a_conversion(tmp_path: Path) -> None:
    ckptconv.save({f"enc/layer_{i}/{v}": np.full(2, i) for i in range(3) for v in ("k", "b")}, tmp_path / "a.npz")
    source, out = tmp_path / "a.npz", tmp_path / "o.safetensors"
    options = {"rename_regex": [r"^enc/layer_(\d+)/=h.\1.", "b$=bias"]}
    ckptconv.convert(source, out, **options)
    found = ckptconv.open(out)
    assert set(found) == {f"h.{i}.{v}" for i in range(3) for v in ("k", "bias")}
    assert found["h.2.k"].numpy().tolist() == [2, 2]
    assert len(ckptconv.verify(source, out, **options)) == 6
    with pytest.raises(ckptconv.VerifyError, match=r"made with other options: rename_regex="):
        ckptconv.verify(source, out)
    assert "enc/layer_{0..2}/k -> h.{0..2}.k" in str(ckptconv.dry_run(source, tmp_path / "p.npz", **options))
    for pair, says in (
        ("nope=x", "changes no name"), ("x", "takes FROM=TO"), (r"(b)=\2", r"\\2 in the replacement is not a group"),
        ("^.*$=", "leaves nothing of a name"), (r"\d=", "3 names would collide|4 names would collide"),
    ):  # fmt: skip
        with pytest.raises(ckptconv.CkptError, match=says):
            ckptconv.convert(source, tmp_path / "q.npz", rename_regex=pair)
