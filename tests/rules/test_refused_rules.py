"""What rules, layouts and passes refuse, one case for each check; and the boundaries of what they take."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ckptconv.checkpoint import Checkpoint, contiguous, held
from ckptconv.dtypes import DTYPES
from ckptconv.errors import NameCollision, UsageError
from ckptconv.rules import names, passes
from ckptconv.rules.names import take_averages


def tensors(*shapes: tuple[int, ...], **named: Any) -> Checkpoint:
    """Tensors a, b, ... of these shapes, and others by name: a shape, or an array."""
    given = dict(zip("abcdefgh", shapes, strict=False)) | named
    arrays = {
        n: s if isinstance(s, np.ndarray) else np.arange(math.prod(s), dtype="f4").reshape(s) for n, s in given.items()
    }
    return Checkpoint({n.replace("__", "/"): held(n.replace("__", "/"), a) for n, a in arrays.items()})


# --- passes -------------------------------------------------------------------------------------------------------


def test_names_that_collide() -> None:
    with pytest.raises(NameCollision, match=r"1 names would collide:\n *b: becomes x, as another tensor does"):
        passes.renamed(tensors((1,), (1,)), lambda n: "x", "all=x")
    with pytest.raises(NameCollision, match=r"1 names are in more than one source(.|\n)*a"):
        passes.merge([tensors((1,)), tensors((1,), (1,))])


def test_what_is_not_in_an_entry_is_noted() -> None:
    after = names.take_entry(made({}, m__w=(1,), m__b=(1,), o__w=(1,)), "m")
    assert list(after) == ["w", "b"]
    assert [(n.kind, n.names) for n in after.notes if n.kind == "dropped"] == [("dropped", ("o.w",))]
    assert not [n for n in names.take_entry(made({}, m__w=(1,)), "m").notes if n.kind == "dropped"]


# --- averages -----------------------------------------------------------------------------------------------------


def shown(checkpoint: Checkpoint) -> dict[str, float]:
    return {n: float(t.numpy().ravel()[0]) for n, t in checkpoint.items()}


def made(about: dict[str, Any], **named: tuple[int, ...]) -> Checkpoint:
    """Tensors filled with their numbers: 0, 1, ...; `__` in a name is a dot. What lies in an average has its role."""
    out = {}
    for i, (name, shape) in enumerate(named.items()):
        name = name.replace("__", ".")
        beside = any(name.startswith(f"{a}.") for a in about.get("averages", ()))
        array = np.full(shape, i, "f4")
        out[name] = contiguous(
            name, DTYPES["float32"], shape, held(name, array).parts[0].data, role="average" if beside else ""
        )
    return Checkpoint(out, details={"entry": about})  # type: ignore[typeddict-item]


ONE = {"name": "model", "averages": ["ema"]}
SEVERAL = {"name": "", "averages": ["g_ema"]}
TWO_DECAYS = ("w", "w/ExponentialMovingAverage", "w/ExponentialMovingAverage_1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (made(ONE, w=(2,), b=(3,), ema__w=(2,), ema__b=(3,)), {"w": 2, "b": 3}),
        (made(ONE, w=(2,), b=(3,), ema__w=(2,)), {"w": 2, "b": 1}),
        (made(ONE, w=(2,), ema__module__w=(2,), ema__decay=()), {"w": 1}),
        (made(ONE, module__w=(2,), ema__w=(2,)), {"module.w": 1}),
        (made(SEVERAL, g__w=(2,), d__w=(2,), g_ema__w=(2,)), {"g.w": 2, "d.w": 1}),
    ],
)
def test_averages(before: Checkpoint, after: dict[str, float]) -> None:
    assert shown(take_averages(before)) == after


@pytest.mark.parametrize(
    ("named", "tie", "after"),
    [
        # an average for each parameter, as parameters() lists them, and not for each of its names
        (("a", "b", "h", "ema__a", "ema__b"), ("a", "h"), {"a": 3, "b": 4, "h": 3}),
        # each has its own, whatever that is; none has one; an average is no other tensor than its weight
        (("a", "h", "ema__a", "ema__h"), ("a", "h"), {"a": 2, "h": 3}),
        (("a", "h", "b", "ema__b"), ("a", "h"), {"a": 0, "h": 1, "b": 3}),
        (("a", "b", "ema__a", "ema__b"), ("a", "ema.a"), {"a": 2, "b": 3}),
    ],
)
def test_averages_of_weights_that_are_tied(named: tuple[str, ...], tie: tuple[str, str], after: Any) -> None:
    before = made(ONE, **dict.fromkeys(named, (2,)))
    assert shown(take_averages(replace(before, ties=(tie,)))) == after


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (made({}, w=(2,)), "this checkpoint has no moving averages"),
        (
            made({}, **dict.fromkeys(TWO_DECAYS, (2,))),
            "one weight; exclude= leaves one out:\n *w/Exp\\w*e, w/Exp\\w*_1$",
        ),
        (
            made(ONE, fc__w=(2,), ema__module__fc__w=(2,), ema__fc__w=(2,)),
            "exclude= leaves one out:\n *ema.module.fc.w, ema.fc.w$",
        ),
        (made(ONE, w=(2,), ema__w=(3,)), "differ from their weights in shape:\n *w"),
        (made({"name": "m", "averages": ["ema", "swa"]}, w=(2,), ema__w=(2,)), "several moving averages, ema, swa"),
        (made(ONE, w=(2,), ema__v=(2,)), "at='ema' takes them alone"),
        (made(ONE, a=(2,), ema__shadow_params__0=(2,)), "at='ema' takes them alone"),
        (made(SEVERAL, d__w=(2,), g_ema__w=(2,)), "at='g_ema' takes them alone"),
        (made({}, w=(2,), model_ema__w=(2,)), "this checkpoint has no moving averages"),
        (
            made(ONE, w=(2,), ema__w=(2,), ema__v=(2,)),
            "averages belong to no weight; at='ema' takes them alone:\n *ema.v",
        ),
    ],
)
def test_averages_that_have_no_weights(before: Checkpoint, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        take_averages(before)


@pytest.mark.parametrize(
    ("exclude", "after"),
    [
        ("*_1", {"w": 1, "w/ExponentialMovingAverage_1": 2}), ("*Average", {"w": 2, "w/ExponentialMovingAverage": 1}),
        ("w/*", {"w": 0, "w/ExponentialMovingAverage": 1, "w/ExponentialMovingAverage_1": 2}),
    ],
)  # fmt: skip
def test_one_of_two_averages_may_be_excluded(exclude: str, after: dict[str, float]) -> None:
    """It stays here, for the pass `select` to leave out."""
    before = made({}, **dict.fromkeys(TWO_DECAYS, (2,)))
    assert shown(take_averages(before, passes.selector(exclude=[exclude]))) == after
