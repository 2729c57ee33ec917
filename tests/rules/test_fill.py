"""Constants that a rule adds beside its target: an inverse leaves them out, and checks that they are what it adds."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import ConversionError, LayoutError
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint

PARAMS = "[params]\nforget = { default = 2 }\n"
GATES = """
[[rule]]
from = "{{x}}/bias"
to = "{{x}}.bias_ih"
layout = "(h.i + h.f) -> (h.f + h.i)"
fill = {{ "{{x}}.bias_hh" = {} }}
"""
BIAS = np.arange(6, dtype="f4")


def text(fill: str) -> str:
    return PARAMS * ("forget" in fill) + GATES.format(fill)


def rules(fill: str) -> library.Converter:
    return library.parse(text(fill), "test")


def model(constant: list[float] | None, dtype: str = "f4") -> Checkpoint:
    there = {"a.bias_ih": held("a.bias_ih", BIAS.astype(dtype))}
    beside = {} if constant is None else {"a.bias_hh": held("a.bias_hh", np.array(constant, dtype))}
    return Checkpoint(there | beside)


LEFT_OUT = {
    # what is filled in, what the model has there
    "zeros": ("0", [0] * 6),
    "ones": ("1", [1] * 6),
    "a fraction": ("0.1", [0.1] * 6),
    "blocks": ("[0, 1.5]", [0, 0, 0, 1.5, 1.5, 1.5]),
    "a parameter": ("['forget', 0]", [2, 2, 2, 0, 0, 0]),
    "nothing": ("1", None),
}


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize("case", LEFT_OUT)
def test_the_inverse_leaves_out_what_the_rule_adds(case: str, dtype: str) -> None:
    fill, constant = LEFT_OUT[case]
    there = rules(fill)
    assert lint(there) == []
    back = apply(there.inverse, model(constant, dtype))
    assert {n: t.numpy().tolist() for n, t in back.items()} == {"a/bias": [3, 4, 5, 0, 1, 2]}
    notes = [(n.kind, n.names) for n in back.notes if "must hold what `fill` adds" in n.text]
    assert notes == ([("hint", ("a.bias_hh",))] if constant else [])
    assert not [n for n in back.notes if n.kind == "skipped"]
    again = apply(there, back)
    assert again["a.bias_hh"].numpy().tolist() == np.array(constant or [1] * 6, dtype).tolist()


ANOTHER = {
    "trained": ("0", [5] * 6, r"at \[0\] it is 5.0, not 0"),
    "the last": ("1", [1, 1, 1, 1, 1, 0], r"at \[5\] it is 0.0, not 1"),
    "a negative zero": ("0", [0, 0, -0.0, 0, 0, 0], r"at \[2\] it is -0.0, not 0"),
    "the second block": ("[0, 1]", [0, 0, 0, 1, 1, 0], r"at \[5\] it is 0.0, not 1"),
    "a parameter": ("['forget', 0]", [1, 1, 1, 0, 0, 0], r"at \[0\] it is 1.0, not 2"),
}


@pytest.mark.parametrize("case", ANOTHER)
def test_what_was_trained_is_not_left_out(case: str, tmp_path: Path) -> None:
    """In memory, in a file, and through a plan that travels; `exclude` leaves it out."""
    fill, constant, words = ANOTHER[case]
    inverse = rules(fill).inverse
    words = rf"a.bias_hh: it would be left out, but is not what `fill` adds: {words}; exclude= leaves it out"
    with pytest.raises(ConversionError, match=words):
        apply(inverse, model(constant))
    ckptconv.save(model(constant).numpy(), tmp_path / "a.safetensors")
    lazy = apply(inverse, ckptconv.open(tmp_path / "a.safetensors"))["a/bias"]
    with pytest.raises(ConversionError, match=words):
        pickle.loads(pickle.dumps(lazy)).numpy()
    (tmp_path / "r.toml").write_text(text(fill))
    out, how = tmp_path / "b.safetensors", {"converter": str(tmp_path / "r.toml"), "inverse": True}
    with pytest.raises(ConversionError, match=words):
        ckptconv.convert(tmp_path / "a.safetensors", out, **how)  # type: ignore[arg-type]
    assert not out.exists()
    plan = ckptconv.dry_run(tmp_path / "a.safetensors", out, **how)  # type: ignore[arg-type]
    assert plan.to_json()["plan"][0]["how"].startswith("compare a constant")
    ckptconv.convert(tmp_path / "a.safetensors", out, exclude=["*_hh"], **how)  # type: ignore[arg-type]
    assert ckptconv.open(out)["a/bias"].numpy().tolist() == [3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize("number", [0, -3])
def test_a_parameter_is_remembered_even_if_it_is_no_size(number: int) -> None:
    there = rules("['forget', 0]")
    after = apply(there, Checkpoint({"a/bias": held("a/bias", BIAS)}), {"forget": number})
    assert after["a.bias_hh"].numpy().tolist() == [number] * 3 + [0] * 3
    assert apply(there.inverse, after)["a/bias"].numpy().tolist() == BIAS.tolist()


def test_a_constant_of_another_shape() -> None:
    with pytest.raises(LayoutError, match=r"a.bias_hh is \[5\], but a.bias_ih is \[6\]"):
        apply(rules("0").inverse, model([0] * 5))


NORMS = """
[[rule]]
from = "{x}/gamma"
to = "{x}.weight"
[[rule]]
from = "{x}/mean"
to = "{x}.mean"
fill = { "{x}.weight" = 1 }
"""


def test_what_another_rule_takes_is_no_constant() -> None:
    there = library.parse(NORMS, "test")
    weight = held("a.weight", np.full(2, 3, "f4"))
    back = apply(there.inverse, Checkpoint({"a.weight": weight, "a.mean": held("a.mean", np.zeros(2, "f4"))}))
    assert back["a/gamma"].numpy().tolist() == [3, 3]
    assert back["a/mean"].numpy().tolist() == [0, 0]


def test_a_converter_that_remembers_names_checks_constants_too() -> None:
    there = library.parse("one_way = 'test'\n" + GATES.format("1"), "test")
    after = apply(there, Checkpoint({"a/bias": held("a/bias", BIAS)}))
    assert apply(there.inverse, after)["a/bias"].numpy().tolist() == BIAS.tolist()
    changed = Checkpoint({**after, "a.bias_hh": held("a.bias_hh", BIAS)}, after.metadata)
    with pytest.raises(ConversionError, match=r"a.bias_hh: it would be left out"):
        apply(there.inverse, changed)
