"""What is computed when it is read: copies that must be equal, and constants that an inverse leaves out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import examples, in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import ConversionError, CorruptCheckpoint, LayoutError, UnmatchedTensors
from ckptconv.moves import derived
from ckptconv.rules import library
from ckptconv.rules.apply import apply

Arrays = dict[str, np.ndarray[Any, Any]]


def parse(text: str) -> library.Converter:
    return library.parse(text, "test")


def read(checkpoint: Checkpoint) -> Arrays:
    return {n: pickle.loads(pickle.dumps(t)).numpy() for n, t in checkpoint.items()}


def ways(text: str, arrays: Arrays, folder: Path, *, inverse: bool) -> Iterator[Callable[[], Arrays]]:
    """Apply rules to arrays in memory, to a file by references that travel, and by a conversion."""
    rules, source, out = folder / "r.toml", folder / "a.safetensors", folder / "b.safetensors"
    rules.write_text(text)
    ckptconv.save(arrays, source)
    made = library.load(rules).inverse if inverse else library.load(rules)
    yield lambda: read(apply(made, in_memory(arrays)))
    yield lambda: read(apply(made, ckptconv.open(source)))
    yield lambda: ckptconv.convert(source, out, converter=rules, inverse=inverse) and ckptconv.open(out).numpy()


def stored(arrays: Arrays) -> dict[str, tuple[Any, ...]]:
    return {n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()}


def f(*numbers: float, dtype: Any = "f4") -> Any:
    return np.array(numbers, dtype)


W = np.arange(12.0, dtype="f4").reshape(3, 4)


def changed(at: tuple[int, ...], to: float) -> Any:
    out = W.copy()
    out[at] = to
    return out


SAME = "[[rule]]\nfrom = ['a/{x}', 'b/{x}', 'c/{x}']\nto = '{x}'\nsame = true\n"
TURNED = SAME + "layout = 'i o -> o i'\n"
TIED = "[[rule]]\nfrom = 'emb'\nto = 'a'\n[[tie]]\nnames = ['a', 'b']\n"
OP = "[[rule]]\nfrom = 'a'\nto = 'c'\nop = '%s'\n"
PAD = "[[rule]]\nfrom = 'w'\nto = 'v'\npad = { axis = 1, from = 3, to = 5 }\nlayout = 'o i -> i o'"
FORGET = "[params]\nforget = { default = 2 }"
GATES = """
[[rule]]
from = "{x}/bias"
to = "{x}.bias_ih"
layout = "(h.i + h.f) -> (h.f + h.i)"
fill = { "{x}.bias_hh" = FILL }
"""
BIAS = np.arange(6, dtype="f4")


def gates(fill: str) -> str:
    return FORGET * ("forget" in fill) + GATES.replace("FILL", fill)


def three(b: Any, c: Any) -> Arrays:
    return {"a/w": W, "b/w": b, "c/w": c}


def biases(constant: list[float]) -> Arrays:
    return {"a.bias_ih": BIAS, "a.bias_hh": np.array(constant, "f4")}


PADDED = np.pad(W.T[:, :3], ((0, 0), (0, 2)))
# what: the rules, the tensors, and what becomes of them: arrays, or the words of an error
THERE: dict[str, tuple[str, Arrays, Arrays | str]] = {
    "equal copies": (TURNED, three(W, W), {"w": W.T}),
    "one element differs": (SAME, three(W, changed((1, 2), 99)),
     r"of a/w that the rule asks for:\n  c/w, first at \[1, 2\]$"),
    "after a layout": (TURNED, three(W, changed((1, 2), 99)), r"c/w, first at \[1, 2\]$"),
    "other shapes": (SAME, three(W, W.T.copy()), r"c/w is \[4, 3\] float32, but a/w is \[3, 4\] float32"),
    "a sum": (OP.replace("'a'", "['a', 'b']") % "sum", {"a": f(0.5, 1), "b": f(0.25, 3e38)}, {"c": f(0.75, 3e38)}),
    "a sum of integers": (OP.replace("'a'", "['a', 'b']") % "sum", dict.fromkeys("ab", W.astype("i4")), "not int32"),
    "a missing copy": (SAME, {"a/w": W, "c/w": W}, "lacks b/w"),
    "a power of two": (OP % "mul:0.5", {"a": f(1, 3, np.inf, -0.0)}, {"c": f(0.5, 1.5, np.inf, -0.0)}),
    "too small": (OP % "mul:0.5", {"a": f(1, 1e-45, 3e-45)}, "mul:0.5 is not exact for 1 of 3 elements"),
    "a product that is too large": (OP % "mul:-4", {"a": f(3e38, 1)}, "mul:-4.0 is not exact for 1 of 2 elements"),
}  # fmt: skip
BACK: dict[str, tuple[str, Arrays, Arrays | str]] = {
    "all copies": (TURNED, {"w": W}, dict.fromkeys(("a/w", "b/w", "c/w"), W.T)),
    "what is tied": (TIED, {"a": W, "b": W}, {"emb": W}),
    "what is tied differs": (TIED, {"a": W, "b": changed((0, 0), -0.0)}, r"b, first at \[0, 0\]$"),
    "what is tied has another dtype": (TIED, {"a": W, "b": W.view("i4")},
     r"b is \[3, 4\] int32, but a is \[3, 4\] float32"),
    "padding": (PAD, {"v": PADDED}, {"w": W[:3, :].copy()}),
    "padding that was trained": (PAD, {"v": PADDED + f(0, 0, 0, 0, 7)},
     r"v: what would be cut off is not padding: at \[0, 4\] it is 7.0, not 0; a rule with `crop`"),
    "zeros": (gates("0"), biases([0] * 6), {"a/bias": f(3, 4, 5, 0, 1, 2)}),
    "blocks": (gates("[0, 1.5]"), biases([0, 0, 0, 1.5, 1.5, 1.5]), {"a/bias": f(3, 4, 5, 0, 1, 2)}),
    "a parameter": (gates("['forget', 0]"), biases([2, 2, 2, 0, 0, 0]), {"a/bias": f(3, 4, 5, 0, 1, 2)}),
    "no constant": (gates("1"), {"a.bias_ih": BIAS}, {"a/bias": f(3, 4, 5, 0, 1, 2)}),
    "trained": (gates("0"), biases([5] * 6),
     r"a.bias_hh: it would be left out, but is not what `fill` adds: at \[0\] it is 5.0, not 0; exclude="),
    "the second block is trained": (gates("[0, 1]"), biases([0, 0, 0, 1, 1, 0]), r"at \[5\] it is 0.0, not 1"),
    "a constant of another shape": (gates("0"), biases([0] * 5), r"a.bias_hh is \[5\], but a.bias_ih is \[6\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", [*THERE, *BACK])
def test_it_is_right_or_refused(case: str, tmp_path: Path) -> None:
    text, arrays, wanted = (THERE | BACK)[case]
    for way in ways(text, arrays, tmp_path, inverse=case in BACK):
        if isinstance(wanted, str):
            with pytest.raises((ConversionError, LayoutError, UnmatchedTensors), match=wanted):
                way()
            assert not (tmp_path / "b.safetensors").exists()
        else:
            assert stored(way()) == stored(wanted)


NOTED = {
    "equal copies": ("compare 3 copies, transpose", "tied", ("b/w", "c/w")),
    "what is tied": ("compare 2 copies", "tied", ("b",)),
    "zeros": ("compare a constant", "hint", ("a.bias_hh",)),
}


@pytest.mark.parametrize("case", NOTED)
def test_plan_and_notes_say_it(case: str, tmp_path: Path) -> None:
    text, arrays, _ = (THERE | BACK)[case]
    how, kind, names = NOTED[case]
    *_, _ = ways(text, arrays, tmp_path, inverse=case in BACK)
    options: dict[str, Any] = {"converter": tmp_path / "r.toml", "inverse": case in BACK}
    plan = ckptconv.dry_run(tmp_path / "a.safetensors", tmp_path / "b.safetensors", **options)
    assert plan.to_json()["plan"][0]["how"].startswith(how)
    assert [(n.kind, n.names) for n in plan.notes if n.names == names] == [(kind, names)]


def test_strings_are_not_compared() -> None:
    texts = {f"{n}/w": np.array([b"a", b"b"], object) for n in "abc"}
    with pytest.raises(LayoutError, match="copies are compared by bytes, which strings do not have"):
        apply(parse(SAME), in_memory(texts))


@examples(20)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=2), st.sampled_from(["f4", "f2", "f8", "c8"]))
def test_the_inverse_writes_all_that_there_was(shape: list[int], dtype: str) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    rules, before = TURNED + "op = 'neg'\n", three(array, array) | {"a/w": array}
    back = read(apply(parse(rules).inverse, apply(parse(rules), in_memory(before))))
    assert {n: (a.dtype, a.tobytes()) for n, a in back.items()} == {
        n: (a.dtype, a.tobytes()) for n, a in before.items()
    }


def test_a_one_way_converter_leads_back_to_all_copies() -> None:
    converter = parse("one_way = 'the scope is dropped'\nrewrite = [['^{m}/', '']]\n" + TURNED)
    back = apply(converter.inverse, apply(converter, in_memory({f"m/{c}/w": W for c in "abc"})))
    assert sorted(back) == ["m/a/w", "m/b/w", "m/c/w"]
    assert all(np.array_equal(t.numpy(), W) for t in back.values())


@pytest.mark.slow
def test_more_than_a_window(tmp_path: Path) -> None:
    a, b = np.ones(3_000_000), np.ones(3_000_000)
    b[2_999_999] = 1e-30
    ckptconv.save({"a/w": a, "b/w": b, "c/w": a}, tmp_path / "s.safetensors")
    with pytest.raises(ConversionError, match=r"b/w, first at \[2999999\]"):
        apply(parse(SAME), ckptconv.open(tmp_path / "s.safetensors"))["w"].numpy()


def test_a_source_that_changes_while_it_is_compared(tmp_path: Path) -> None:
    ckptconv.save(three(W, W), tmp_path / "s.npz")
    (part,) = apply(parse(SAME), ckptconv.open(tmp_path / "s.npz"))["w"].parts
    pieces = derived.decode(part.data)  # type: ignore[arg-type]
    next(pieces)
    with (tmp_path / "s.npz").open("ab") as file:
        file.write(b"?")
    with pytest.raises(CorruptCheckpoint, match="changed while it was read; nothing was written") as e:
        list(pieces)
    assert e.value.url == str(tmp_path / "s.npz")


# --- fill -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -3])
def test_a_parameter_is_remembered_even_if_it_is_no_size(number: int) -> None:
    there = parse(gates("['forget', 0]"))
    after = apply(there, in_memory({"a/bias": BIAS}), {"forget": number})
    assert after["a.bias_hh"].numpy().tolist() == [number] * 3 + [0] * 3
    assert apply(there.inverse, after)["a/bias"].numpy().tolist() == BIAS.tolist()


def test_a_trained_constant_may_be_excluded(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(gates("0"))
    ckptconv.save(biases([5] * 6), tmp_path / "a.safetensors")
    made = ckptconv.open(tmp_path / "a.safetensors", exclude="*_hh")
    assert list(library.change(made, str(tmp_path / "r.toml"), inverse=True)) == ["a/bias"]


def test_what_another_rule_takes_is_no_constant() -> None:
    there = parse(
        "[[rule]]\nfrom = '{x}/gamma'\nto = '{x}.weight'\n"
        "[[rule]]\nfrom = '{x}/mean'\nto = '{x}.mean'\nfill = { '{x}.weight' = 1 }"
    )
    back = apply(there.inverse, in_memory({"a.weight": f(3, 3), "a.mean": f(0, 0)}))
    assert {n: t.numpy().tolist() for n, t in back.items()} == {"a/gamma": [3, 3], "a/mean": [0, 0]}


def test_a_converter_that_remembers_names_checks_constants_too() -> None:
    there = parse("one_way = 'test'\n" + gates("1"))
    after = apply(there, in_memory({"a/bias": BIAS}))
    assert apply(there.inverse, after)["a/bias"].numpy().tolist() == BIAS.tolist()
    trained = Checkpoint({**after, "a.bias_hh": held("a.bias_hh", BIAS)}, after.metadata)
    with pytest.raises(ConversionError, match="it would be left out"):
        apply(there.inverse, trained)
