"""`same = true`: sources that must be equal copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import examples

import ckptconv
from ckptconv.errors import CkptError, ConversionError, CorruptCheckpoint, LayoutError, UsageError
from ckptconv.moves import derived
from ckptconv.rules import library
from ckptconv.rules.library import lint

RULES = "[[rule]]\nfrom = ['a/{x}', 'b/{x}', 'c/{x}']\nto = '{x}'\nsame = true\n"
TURNED = RULES + "layout = 'i o -> o i'\n"
W = np.arange(12.0, dtype="f4").reshape(3, 4)


def saved(at: Path, **arrays: Any) -> Path:
    ckptconv.save({n.replace("__", "/"): a for n, a in arrays.items()}, at)
    return at


def rules(folder: Path, text: str) -> str:
    (folder / "mine.toml").write_text(text)
    return str(folder / "mine.toml")


def changed(at: tuple[int, ...], to: float) -> np.ndarray[Any, Any]:
    out = W.copy()
    out[at] = to
    return out


def test_equal_copies_become_one(tmp_path: Path) -> None:
    source = saved(tmp_path / "s.safetensors", a__w=W, b__w=W, c__w=W)
    how: dict[str, Any] = {"converter": rules(tmp_path, TURNED)}
    plan = ckptconv.dry_run(source, tmp_path / "t.safetensors", **how)
    (row,) = plan.to_json()["plan"]
    assert row["how"] == "compare 3 copies, transpose"
    assert len(row["from"]) == 3
    assert row["by"]["from"] == ["a/w", "b/w", "c/w"]
    assert [n.names for n in plan.notes if "copies that must be equal" in n.text] == [("b/w", "c/w")]
    ckptconv.convert(source, tmp_path / "t.safetensors", **how)
    assert np.array_equal(ckptconv.open(tmp_path / "t.safetensors")["w"].numpy(), W.T)


ODD: dict[str, tuple[Any, Any, str]] = {
    "one element": (W, changed((1, 2), 99), r"copies of a/w that the rule asks for:\n  c/w, first at \[1, 2\]$"),
    "the sign of zero": (W, changed((0, 0), -0.0), r"c/w, first at \[0, 0\]"),
    "both": (changed((2, 3), 1), changed((0, 1), 5), r"b/w, first at \[2, 3\]\n  c/w, first at \[0, 1\]"),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("text", [RULES, TURNED])
def test_copies_that_differ_are_named(what: str, text: str, tmp_path: Path) -> None:
    second, third, words = ODD[what]
    source = saved(tmp_path / "s.safetensors", a__w=W, b__w=second, c__w=third)
    name = rules(tmp_path, text)
    with pytest.raises(ConversionError, match=words):
        ckptconv.convert(source, tmp_path / "t.safetensors", converter=name)
    assert not (tmp_path / "t.safetensors").exists()
    lazy = library.change(ckptconv.open(source), name)["w"]
    with pytest.raises(ConversionError, match=words):
        lazy.numpy()
    held = ckptconv.open(source).numpy()
    with pytest.raises(ConversionError, match=words):  # arrays in memory are compared at once
        library.change(_in_memory(held), name)


def _in_memory(arrays: dict[str, Any]) -> ckptconv.Checkpoint:
    from ckptconv.checkpoint import held

    return ckptconv.Checkpoint({n: held(n, a) for n, a in arrays.items()})


UNLIKE: dict[str, tuple[Any, type[CkptError], str]] = {
    "shapes": (W.T.copy(), LayoutError, r"c/w is \[4, 3\] float32, but a/w is \[3, 4\] float32"),
    "dtypes": (W.astype("f8"), LayoutError, r"c/w is \[3, 4\] float64, but a/w is \[3, 4\] float32"),
    "ranks": (W.reshape(-1), LayoutError, r"c/w is \[12\]"),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_copies_are_alike(what: str, tmp_path: Path) -> None:
    third, error, words = UNLIKE[what]
    source = saved(tmp_path / "s.safetensors", a__w=W, b__w=W, c__w=third)
    with pytest.raises(error, match=words):
        library.change(ckptconv.open(source), rules(tmp_path, RULES))


def test_a_copy_that_is_missing_is_named(tmp_path: Path) -> None:
    source = saved(tmp_path / "s.safetensors", a__w=W, c__w=W)
    with pytest.raises(ckptconv.UnmatchedTensors, match="lacks b/w"):
        library.change(ckptconv.open(source), rules(tmp_path, RULES))


@pytest.mark.parametrize(
    "text",
    [
        "[[rule]]\nfrom = 'a'\nto = 'w'\nsame = true",
        f"[[rule]]\nfrom = {[f'a{i}' for i in range(65)]}\nto = 'w'\nsame = true",
        "[[rule]]\nfrom = ['a', 'b']\nto = ['v', 'w']\nsame = true",
        "[[rule]]\nfrom = ['a', 'b']\nto = []\nsame = true",
        "[[rule]]\nfrom = ['a_{e*}', 'b_{e*}']\nto = 'w'\nsame = true",
    ],
)
def test_what_is_not_several_names_to_one_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"`same` takes a list of 2 to 64 names, without \{e\*\}, to one name"):
        library.parse(text, "test")


def test_a_layout_is_that_of_one_copy() -> None:
    text = RULES + "layout = 'i o, i o, i o -> o i'"
    with pytest.raises(UsageError, match="does not list one tensor for each name"):
        library.parse(text, "test")


@examples(20)
@given(
    shape=st.lists(st.integers(0, 4), min_size=2, max_size=2), turned=st.booleans(),
    dtype=st.sampled_from(["f4", "i8", "?", "f2", "c8"]), strange=st.booleans(),
)  # fmt: skip
def test_the_inverse_writes_all_copies(
    shape: list[int], turned: bool, dtype: str, strange: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("same")
    text = (TURNED if turned else RULES) + ("op = 'neg'\n" if strange and dtype not in "?i8" else "")
    name = rules(folder, text)
    assert lint(library.load(name)) == []
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    source = saved(folder / "s.safetensors", **{f"{c}__{n}": array for c in "abc" for n in ("w", "v")})
    ckptconv.convert(source, folder / "t.safetensors", converter=name)
    ckptconv.convert(folder / "t.safetensors", folder / "b.safetensors", converter=name, inverse=True)
    back = ckptconv.open(folder / "b.safetensors").numpy()
    assert sorted(back) == [f"{c}/{n}" for c in "abc" for n in "vw"]
    assert all(b.dtype == array.dtype and b.tobytes() == array.tobytes() for b in back.values())


def test_a_one_way_converter_leads_back_to_all_copies(tmp_path: Path) -> None:
    text = "one_way = 'the scope is dropped'\nrewrite = [['^{m}/', '']]\n" + TURNED
    source = saved(tmp_path / "s.safetensors", **{f"m__{c}__w": W for c in "abc"})
    name = rules(tmp_path, text)
    ckptconv.convert(source, tmp_path / "t.safetensors", converter=name)
    back = library.change(ckptconv.open(tmp_path / "t.safetensors"), name, inverse=True)
    assert sorted(back) == ["m/a/w", "m/b/w", "m/c/w"]
    assert all(np.array_equal(t.numpy(), W) for t in back.values())


def test_strings_are_not_compared(tmp_path: Path) -> None:
    texts = {f"{n}/w": np.array([b"a", b"b"], object) for n in "abc"}
    with pytest.raises(LayoutError, match="copies are compared by bytes, which strings do not have"):
        library.change(_in_memory(texts), rules(tmp_path, RULES))


def test_a_source_that_changes_while_it_is_compared(tmp_path: Path) -> None:
    source = saved(tmp_path / "s.npz", a__w=W, b__w=W, c__w=W)
    found = library.change(ckptconv.open(source), rules(tmp_path, RULES))["w"]
    (part,) = found.parts
    pieces = derived.decode(part.data)  # type: ignore[arg-type]
    next(pieces)
    with source.open("ab") as f:
        f.write(b"?")
    with pytest.raises(CorruptCheckpoint, match="changed while it was read; nothing was written") as e:
        list(pieces)
    assert e.value.url == str(source)


TIED = "[[rule]]\nfrom = 'emb'\nto = 'a'\n[[tie]]\nnames = ['a', 'b']\n"


@pytest.mark.parametrize(
    ("second", "error", "words"),
    [
        (W, None, ""),
        (changed((0, 0), -0.0), ConversionError, r"b, first at \[0, 0\]$"),
        (W.view("i4"), LayoutError, r"b is \[3, 4\] int32, but a is \[3, 4\] float32"),
        (W.reshape(-1), LayoutError, r"b is \[12\] float32, but a is \[3, 4\]"),
    ],
)
def test_what_the_inverse_leaves_out_of_a_tie_is_compared(
    second: Any, error: type[CkptError] | None, words: str, tmp_path: Path
) -> None:
    """The first was taken, whatever the others held."""
    source, name = saved(tmp_path / "s.safetensors", a=W, b=second), rules(tmp_path, TIED)
    if error:
        with pytest.raises(error, match=words):
            ckptconv.convert(source, tmp_path / "t.safetensors", converter=name, inverse=True)
        assert not (tmp_path / "t.safetensors").exists()
        return
    done = ckptconv.convert(source, tmp_path / "t.safetensors", converter=name, inverse=True)
    assert [n.names for n in done.notes if n.kind == "tied"] == [("b",)]
    assert np.array_equal(ckptconv.open(tmp_path / "t.safetensors")["emb"].numpy(), W)
