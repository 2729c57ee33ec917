"""The arrays of a check: whose they are, and what is refused or said; a module that cannot prove anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.errors import UnsafeCheckpoint, UsageError
from ckptconv.matching.check.prove import arguments, places
from ckptconv.matching.pairs import Proposal

pytest.importorskip("scipy", reason="matching by names is an extra")
Shape = tuple[int, ...]

# --- inputs ---------------------------------------------------------------------------------------------------------


def of_two(left: Any, right: Any, mask: Any = None) -> None: ...


def by_name(x: Any, *, scale: Any = 1) -> None: ...


def more(x: Any, **options: Any) -> None: ...


def in_place(x: Any, /) -> None: ...


ARGUMENTS: dict[str, tuple[Callable[..., Any], str, tuple[tuple[Any, ...], dict[str, Any]], str]] = {
    "by names": (of_two, "right left", ((), {"right": 0, "left": 1}), ""),
    "a keyword": (by_name, "scale x", ((), {"scale": 0, "x": 1}), ""),
    "in order": (of_two, "images text", ((0, 1), {}), "inputs in order: images as left, text as right"),
    "one": (by_name, "foo", ((0,), {}), "inputs in order: foo as x"),
    "other options": (more, "x y", ((), {"x": 0, "y": 1}), ""),
    "no keyword": (in_place, "x", ((0,), {}), "inputs in order: x as x"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_which_input_is_which_argument(case: str) -> None:
    function, names, want, note = ARGUMENTS[case]
    found = arguments(function, {n: k for k, n in enumerate(names.split())})
    assert found == (*want, note)


# --- outputs --------------------------------------------------------------------------------------------------------


def drawn(shapes: dict[str, Shape]) -> dict[str, Any]:
    return {n: np.full(shape, k) for k, (n, shape) in enumerate(shapes.items())}


PICKED: dict[str, tuple[dict[str, Shape], list[int], str]] = {
    "by their names": ({"probs": (2, 5), "logits": (2, 5)}, [1, 0], ""),
    "one by its name": ({"probs": (2, 5)}, [1], ""),
    "in order": ({"Identity": (2, 5)}, [0], "output Identity is taken for number 1 of the module's 3, logits"),
    "by their shapes": ({"s": (7,), "y": (2, 5)}, [], "the whole module gives"),
}


@pytest.mark.parametrize("case", PICKED)
def test_several_outputs_of_the_whole(case: str) -> None:
    wanted, picked, words = PICKED[case]
    got = {"": [np.zeros((2, 5)), np.zeros((2, 5)), np.zeros(7)]}
    if not picked:  # two could be y
        with pytest.raises(UsageError, match=words):
            places(Proposal(()), got, ["logits", "probs", "state"], drawn(wanted))
        return
    found = places(Proposal(()), got, ["logits", "probs", "state"], drawn(wanted))
    assert found.picked == {"": picked}
    assert found.notes == ((words,) if words else ())


OTHER_SHAPES: dict[str, tuple[dict[str, Shape], list[Shape], str]] = {
    "rows": ({"y": (3, 5)}, [(2, 5)], "y [3, 5]\n  the whole module gives [2, 5]"),
    "too many": ({"y": (2, 5), "z": (2, 5)}, [(2, 5)], "y [2, 5], z [2, 5]\n  the whole module gives [2, 5]"),
    "none": ({"y": (2, 5)}, [], "y [2, 5]\n  the whole module gives no tensor"),
    "a layer alone": (
        {"a": (1, 2)},
        [(2, 5)],
        "but a gives [2, 3]\n  the whole module gives [2, 5]",
    ),
}


@pytest.mark.parametrize("case", OTHER_SHAPES)
def test_outputs_of_other_shapes_are_refused_with_all_shapes(case: str) -> None:
    wanted, whole, words = OTHER_SHAPES[case]
    got = {"a": [np.zeros((2, 3))], "": [np.zeros(s) for s in whole]}
    with pytest.raises(UsageError, match=re.escape(words) + "$"):
        places(Proposal(()), got, [""] * len(whole), drawn(wanted))


# --- modules --------------------------------------------------------------------------------------------------------


def modules() -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="--check runs a module of torch")

    class Net(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, then: Any = lambda y: y) -> None:
            super().__init__()
            self.fc, self.then = torch.nn.Linear(4, 3), then

        def forward(self, x: Any) -> Any:
            return self.then(self.fc(x))

    def raises(y: Any) -> Any:
        raise KeyError("logits")

    class Table(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Embedding(3, 4)

        def forward(self, x: Any) -> Any:
            return self.fc(x)

    return {
        "plain": Net, "bfloat16": lambda: Net().bfloat16(), "table": Table,
        "random": lambda: Net(lambda y: y + torch.rand(3)), "raises": lambda: Net(raises),
        "NaN": lambda: Net(lambda y: y * float("nan")), "dropout": lambda: Net(torch.nn.Dropout(0.5)),
        "empty": torch.nn.Identity,
    }  # fmt: skip


X = np.random.default_rng(1).normal(size=(5, 4))
W = np.random.default_rng(2).normal(size=(4, 3)).astype("f4")
CHECKED: dict[str, tuple[str, Any, str]] = {
    "as it is": ("plain", X.astype("f4"), "the same"),
    "of numpy's own dtype": ("plain", X, "note: inputs: float64 cast to float32"),
    "for bfloat16": ("bfloat16", X, "note: inputs: float64 cast to bfloat16"),
    "indices": ("table", np.array([[0, 2]], "u1"), "note: inputs: uint8 cast to int64"),
    "dropout": ("dropout", X.astype("f4"), "the same"),
    "NaN": ("NaN", X.astype("f4"), "15 of the 15 numbers of its output are NaN or infinite"),
    "random": ("random", X.astype("f4"), "computes something else when it runs again"),
    "raises": ("raises", X.astype("f4"), r"with these inputs: KeyError: 'logits' \(.*test_given.py:\d+\); the inputs"),
    "wide": (
        "plain",
        X[:, :3].astype("f4"),
        r"mat1 and mat2 shapes cannot be multiplied.*; the inputs are x float32 \[5, 3\]",
    ),
}


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2**26, 4), r"big.pt: its 1,\d{3} bytes hold arrays of 1,073,741,824, more than 64 times"),
        ((5, 3), "the same"),
    ],
)
def test_arrays_of_strangers_are_bounded(shape: Shape, words: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"y": torch.zeros(1).expand(shape)}, tmp_path / "big.pt")
    np.savez(tmp_path / "in.npz", x=np.zeros((5, 4), "f4"))
    module = torch.nn.Linear(4, 3, bias=False)
    ckptconv.save({"kernel": np.arange(12, dtype="f4").reshape(4, 3)}, tmp_path / "a.npz")
    try:
        said = str(ckptconv.match(tmp_path / "a.npz", module, check=(tmp_path / "in.npz", tmp_path / "big.pt")))
    except (UnsafeCheckpoint, UsageError) as e:
        said = str(e)
    assert re.search(words, said), said


@pytest.mark.parametrize("case", CHECKED)
def test_a_check_says_what_it_changed_or_what_is_wrong(case: str, tmp_path: Path) -> None:
    name, x, words = CHECKED[case]
    module = modules()[name]()
    weights = {"fc/embeddings": W.T} if name == "table" else {"fc/kernel": W, "fc/bias": W[0]}
    wanted = W.T[x] if name == "table" else x[:, :1] @ W[:1] if case == "wide" else x @ W + W[0]
    ckptconv.save(weights, tmp_path / "a.npz")
    module.train()
    for part in module.children():
        part.eval()
    try:
        found = ckptconv.match(tmp_path / "a.npz", module, check=({"x": x}, {"y": wanted}))
        said = str(found)
    except UsageError as e:
        said = str(e)
    assert re.search(words, said), said
    assert module.training
    assert not any(part.training for part in module.children())
    if case not in ("NaN", "random", "raises", "wide", "empty", "for bfloat16"):
        assert "checked against outputs: the same" in said
