"""`sum`: tensors that are added, exactly or not at all; and scalings by powers of two."""

from __future__ import annotations

import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import examples

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import CkptError, ConversionError, LayoutError, UnmatchedTensors, UsageError
from ckptconv.moves import derived
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint

W = np.arange(12.0, dtype="f4").reshape(3, 4)


def rules(how: str, more: str = "") -> library.Converter:
    return library.parse(f"[[rule]]\nfrom = ['{{x}}/a', '{{x}}/b']\nto = '{{x}}.c'\nsum = '{how}'\n{more}\n", "test")


def made(how: str, a: Any, b: Any, more: str = "") -> np.ndarray[Any, Any]:
    arrays = {"m/a": a, "m/b": b}
    return apply(rules(how, more), Checkpoint({n: held(n, x) for n, x in arrays.items()}))["m.c"].numpy()


def f(*numbers: float, dtype: Any = "f4") -> Any:
    return np.array(numbers, dtype)


SUMS: dict[str, tuple[str, Any, Any, Any]] = {
    "exact": ("exact", f(1, 2.5, -3), f(4, 0.25, 3), f(5, 2.75, 0)),
    "with zeros": ("exact", f(0.1, 0.2), f(0, -0.0), f(0.1, 0.2)),
    "halves": ("exact", f(1, 2, dtype="f2"), f(0.5, -2, dtype="f2"), f(1.5, 0, dtype="f2")),
    "brain floats": ("exact", *(f(x, dtype=ml_dtypes.bfloat16) for x in (3, 4, 7))),
    "doubles": ("exact", f(2.0**60, dtype="f8"), f(256, dtype="f8"), f(2.0**60 + 256, dtype="f8")),
    "no elements": ("exact", f(), f(), f()),
    "the first": ("zeros", f(0.1, -0.0, np.nan), f(0, 0, 0), f(0.1, -0.0, np.nan)),
    "no dimensions": ("exact", np.array(1, "f4"), np.array(2, "f4"), np.array(3, "f4")),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums(case: str, tmp_path: Path) -> None:
    how, a, b, want = SUMS[case]
    found = made(how, a, b)
    assert found.dtype == want.dtype
    assert found.tobytes() == want.tobytes()
    ckptconv.save({"m/a": a, "m/b": b}, tmp_path / "s.safetensors")
    lazy = apply(rules(how), ckptconv.open(tmp_path / "s.safetensors"))["m.c"]
    assert pickle.loads(pickle.dumps(lazy)).numpy().tobytes() == want.tobytes()


ROUNDS: dict[str, tuple[str, Any, Any, str]] = {
    "rounds": ("exact", f(1, 0.1, 1), f(1, 0.2, 1e-9), r"m/b, 2 elements, the first at \[1\]"),
    "halves round": ("exact", f(2048, dtype="f2"), f(1, dtype="f2"), r"m/b, 1 element, the first at \[0\]"),
    "doubles round": ("exact", f(2.0**60, dtype="f8"), f(1, dtype="f8"), "1 element"),
    "far apart": ("exact", f(1e30), f(1e-30), "1 element"),
    "too large": ("exact", f(3e38), f(3e38), "1 element"),
    "infinity": ("exact", f(np.inf), f(1), "1 element"),
    "no number": ("exact", f(np.nan), f(1), "1 element"),
    "not zeros": ("zeros", W, W, r"`sum` takes the first .*\n  m/b, 11 elements, the first at \[0, 1\]"),
    "a negative zero": ("zeros", f(1), f(-0.0), "1 element"),
}


@pytest.mark.parametrize("case", ROUNDS)
def test_what_is_not_exact_is_refused(case: str, tmp_path: Path) -> None:
    how, a, b, words = ROUNDS[case]
    with pytest.raises(ConversionError, match=words) as raised:
        made(how, a, b)
    assert raised.value.message.startswith("m/a + m/b: ")
    ckptconv.save({"m/a": a, "m/b": b}, tmp_path / "s.safetensors")
    (tmp_path / "r.toml").write_text(f"[[rule]]\nfrom = ['m/a', 'm/b']\nto = 'c'\nsum = '{how}'\n")
    with pytest.raises(ConversionError, match=words):
        ckptconv.convert(tmp_path / "s.safetensors", tmp_path / "t.safetensors", converter=str(tmp_path / "r.toml"))
    assert not (tmp_path / "t.safetensors").exists()


@examples(60)
@given(st.lists(st.tuples(*[st.floats(width=16, allow_nan=False)] * 2), min_size=1, max_size=4), st.booleans())
def test_a_sum_is_that_of_fractions(pairs: list[tuple[float, float]], wide: bool) -> None:
    """An element passes if, and only if, the exact sum is a number of the dtype."""
    dtype = np.dtype("f4" if wide else "f2")
    a, b = (np.array(x, dtype) for x in zip(*pairs, strict=True))
    fits = []
    with np.errstate(all="ignore"):
        for x, y in zip(a, b, strict=True):
            rounded = float(x + y)
            fits.append(np.isfinite(rounded) and np.isfinite([x, y]).all()
                        and Fraction(float(x)) + Fraction(float(y)) == Fraction(rounded))  # fmt: skip
    if all(fits):
        assert np.array_equal(made("exact", a, b), a + b)
    else:
        words = f"m/b, {fits.count(False)} element.*the first at \\[{fits.index(False)}\\]"
        with pytest.raises(ConversionError, match=words):
            made("exact", a, b)


@examples(20)
@given(st.lists(st.integers(0, 4), max_size=2), st.sampled_from(["f2", "f4", "f8"]))
def test_zeros_come_back(shape: list[int], dtype: str) -> None:
    a = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(dtype)
    there = rules("zeros", "layout = 'i o -> o i'" if len(shape) == 2 else "")
    assert lint(there) == []
    after = apply(there, Checkpoint({"m/a": held("m/a", a), "m/b": held("m/b", np.zeros_like(a))}))
    back = {n: t.numpy() for n, t in apply(there.inverse, after).items()}
    assert {n: (x.dtype, x.tobytes()) for n, x in back.items()} == {
        "m/a": (a.dtype, a.tobytes()), "m/b": (a.dtype, np.zeros_like(a).tobytes())
    }  # fmt: skip


def test_an_exact_sum_has_no_inverse() -> None:
    with pytest.raises(UsageError, match=r'a sum cannot be undone; `sum = "zeros"` can'):
        _ = rules("exact").inverse
    assert any("cannot be undone" in line for line in lint(rules("exact")))


UNLIKE: dict[str, tuple[Any, Any, type[CkptError], str]] = {
    "shapes": (W, W.T.copy(), LayoutError, r"m/b is \[4, 3\] float32, but m/a is \[3, 4\] float32"),
    "dtypes": (W, W.astype("f8"), LayoutError, "m/b is .* float64, but"),
    "integers": (W.astype("i4"), W.astype("i4"), LayoutError, "`sum` adds floating-point numbers, not int32"),
    "complex": (W.astype("c8"), W.astype("c8"), LayoutError, "not complex64"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_terms_are_alike(case: str) -> None:
    a, b, error, words = UNLIKE[case]
    with pytest.raises(error, match=words):
        made("exact", a, b)


def test_a_term_that_is_missing_is_named() -> None:
    with pytest.raises(UnmatchedTensors, match="lacks m/b"):
        apply(rules("exact"), Checkpoint({"m/a": held("m/a", W)}))


SPELLED = {
    "from = 'a'\nto = 'c'\nsum = 'exact'": r"`sum` takes a list of 2 to 64 names",
    "from = ['a', 'b']\nto = ['c', 'd']\nsum = 'exact'": r"`sum` takes a list of 2 to 64 names",
    "from = ['a{e*}', 'b']\nto = 'c'\nsum = 'exact'": r"without \{e\*\}",
    "from = ['a', 'b']\nto = 'c'\nsum = true": "sum = True: give a text",
    "from = ['a', 'b']\nto = 'c'\nsum = 'some'": r'`sum` is "exact", or "zeros"',
    "from = ['a', 'b']\nto = 'c'\nsum = 'zeros'\nsame = true": "without `same` or `fill`",
    "from = ['a', 'b']\nto = 'c'\nsum = 'zeros'\nfill = { d = 0 }": "without `same` or `fill`",
}


@pytest.mark.parametrize("text", SPELLED)
def test_the_spelling_is_checked(text: str) -> None:
    with pytest.raises(UsageError, match=SPELLED[text]):
        library.parse(f"[[rule]]\n{text}", "test")


@pytest.mark.slow
def test_more_than_a_window(tmp_path: Path) -> None:
    a, b = np.ones(3_000_000), np.ones(3_000_000)
    b[2_999_999] = 1e-30
    ckptconv.save({"m/a": a, "m/b": b}, tmp_path / "s.safetensors")
    lazy = apply(rules("exact"), ckptconv.open(tmp_path / "s.safetensors"))["m.c"]
    assert [t.name for t in derived.derived(lazy.parts[0].data).sources] == ["m/a", "m/b"]
    with pytest.raises(ConversionError, match=r"1 element, the first at \[2999999\]"):
        lazy.numpy()


SCALED: dict[str, tuple[str, Any, str]] = {
    "a power of two": ("mul:0.5", f(1, 3, np.inf, -0.0), ""),
    "no number": ("mul:4", f(np.nan), ""),
    "too small": ("mul:0.5", f(1, 1e-45, 3e-45), "mul:0.5 is not exact for 1 of 3 elements"),
    "too large": ("mul:-4", f(3e38, 1), "mul:-4.0 is not exact for 1 of 2 elements"),
    "a half that is too large": ("mul:2", f(60000, dtype="f2"), "1 of 1 elements"),
}


@pytest.mark.parametrize("case", SCALED)
def test_a_power_of_two_is_exact_or_refused(case: str) -> None:
    op, a, words = SCALED[case]
    there = library.parse(f"[[rule]]\nfrom = 'a'\nto = 'c'\nop = '{op}'", "test")
    after = apply(there, Checkpoint({"a": held("a", a)}))
    if words:
        with pytest.raises(ConversionError, match=words):
            after["c"].numpy()
        return
    back = apply(there.inverse, Checkpoint({"c": held("c", after["c"].numpy())}))
    assert back["a"].numpy().tobytes() == a.tobytes()
