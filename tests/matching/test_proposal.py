"""`match` as it is called: what it refuses before and after it looked, what it writes, and what it says of itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv import MissingExtra, UsageError
from ckptconv.checkpoint import held
from ckptconv.matching.pairs import Pair, Proposal
from ckptconv.matching.proposal import Match

W = np.arange(6.0, dtype="f4").reshape(2, 3)


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    ckptconv.save({"d/kernel": W, "d/bias": W[0] + 9}, tmp_path / "a.npz")
    ckptconv.save({"fc.weight": W.T.copy(), "fc.bias": W[0] + 9}, tmp_path / "b.safetensors")
    return tmp_path / "a.npz", tmp_path / "b.safetensors"


def test_a_tensor_without_a_module_that_is_left_over_is_of_no_other_module() -> None:
    found = ckptconv.match({"d/kernel": W, "bias": W[0] + 9}, {"d.weight": W.T.copy()})
    assert not found.proposal.doubtful


def test_the_rules_are_written_and_named_after_both(sides: tuple[Path, Path], tmp_path: Path) -> None:
    found = ckptconv.match(*sides, tmp_path / "r.toml")
    text = (tmp_path / "r.toml").read_text()
    assert text == found.rules
    assert 'title = "a.npz to b.safetensors"\nsource = "a.npz"\ntarget = "b.safetensors"\n' in text
    assert (repr(found), str(found)) == (
        "<Match: 2 tensors of the target found: 2 by values>", "2 tensors of the target found: 2 by values"
    )  # fmt: skip
    assert found.proof is None
    target = ckptconv.open(sides[1])
    assert 'target = "Checkpoint"\n' in ckptconv.match(sides[0], target).rules
    ckptconv.convert(sides[0], tmp_path / "c.safetensors", converter=str(tmp_path / "r.toml"))
    assert str(ckptconv.diff(tmp_path / "c.safetensors", sides[1])) == "the same: 2 tensors equal"


def test_no_proposal_over_its_source(sides: tuple[Path, Path]) -> None:
    for side in sides:
        before = side.read_bytes()
        link = side.with_suffix(".toml")
        link.symlink_to(side)
        with pytest.raises(UsageError, match="is read here, and the result would replace it; give another"):
            ckptconv.match(*sides, link, force=True)
        assert side.read_bytes() == before


def test_a_check_needs_a_module(sides: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=W)
    check: Any = (tmp_path / "in.npz", {"y": W})
    for target in (sides[1], str(sides[1]), ckptconv.open(sides[1])):
        with pytest.raises(UsageError, match=r"check needs a torch module as the target"):
            ckptconv.match(sides[0], target, check=check)


@pytest.mark.parametrize("how", ["function", "name", "arrays", "file"])
def test_outputs_come_from_arrays_or_the_original(
    how: str, sides: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "orig_of_match.py").write_text(
        "import numpy as np\ndef run(x):\n    a = np.load('a.npz')\n    return x @ a['d/kernel'] + a['d/bias']\n"
        "def net():\n    import torch\n    return torch.nn.Sequential(torch.nn.Linear(2, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    x = np.array([[1.3, 2.1]], "f4")
    y = x @ W + W[0] + 9
    np.savez(tmp_path / "in.npz", x=x)
    np.savez(tmp_path / "out.npz", y=y)
    given: Any = {
        "function": (tmp_path / "in.npz", lambda x: y), "name": ({"x": x}, "orig_of_match:run"),
        "arrays": ({"x": x}, {"y": y}), "file": (str(tmp_path / "in.npz"), tmp_path / "out.npz"),
    }[how]  # fmt: skip
    module = torch.nn.Sequential(torch.nn.Linear(2, 3))
    for target in (module, "orig_of_match:net") if how != "file" else (module,):
        found = ckptconv.match(sides[0], target, check=given)
        assert found.proof is not None
        first, note, second = str(found).splitlines()
        assert note == "note: inputs in order: x as input"
        assert first == "2 tensors of the target found: 2 proved"
        assert second.startswith("checked against outputs: the same: 1 output, the largest difference is ")
        assert float(second.partition("; relative to the size of the outputs: ")[2]) < 1e-5
    assert 'target = "Sequential"' in ckptconv.match(sides[0], module).rules


def test_names_that_are_only_alike_need_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    sides = [ckptconv.Checkpoint({n: held(n, W) for n in names}) for names in (("a", "b"), ("c", "d"))]
    with pytest.raises(MissingExtra, match=r"matching by names needs scipy; pip install 'ckptconv\[match\]'"):
        ckptconv.match(*sides, values=False)


# --- what is said -------------------------------------------------------------------------------------------------


def test_what_a_match_says() -> None:
    pairs = [
        Pair(("a",), ("A",), evidence="values"),
        Pair(("b",), ("B1", "B2"), evidence="names", fills=(("F", (0.0,)),)),
        Pair(("c",), ("C",), sure=False),
        Pair(("d",), ("D",), sure=False, real=True, why=("two could be meant",)),
        Pair(("e",), ("E",), evidence="proved"),
        Pair(("f",), ("G",), sure=False, evidence="shape"),
    ]
    found = Proposal(pairs, source_only=("s.0", "s.1"), target_only=("t",), notes=("a note",), doubt="why")
    assert str(Match(found, "rules")).splitlines() == [
        "8 tensors of the target found: 1 by values, 3 by names, 2 assumed, 1 to look at, 1 proved",
        "no counterpart in the source:",
        "  t",
        "no counterpart in the target:",
        "  s.{0..1} (2)",
        "note: a note",
        "look at this: two could be meant (D)",
    ]
    assert Match(found, "rules").doubt == "why"
    assert str(Match(Proposal([]), "")) == "0 tensors of the target found: "


def test_a_match_as_json() -> None:
    found = Proposal([Pair(("d",), ("D",), sure=False, real=True, why=("w",), rivals=("r",), fills=(("F", (0.5,)),))],
                     (("x", "y"),), {"c": "d"}, ("s",), ("t",), ("n",))  # fmt: skip
    assert Match(found, "").to_json() == {
        "pairs": [{
            "from": ["d"], "to": ["D"], "layout": "", "sizes": {}, "evidence": "names", "assumed": True,
            "doubtful": True, "why": ["w"], "candidates": ["r"], "fill": {"F": [0.5]},
        }],
        "ties": [["x", "y"]], "copies": {"c": "d"}, "source_only": ["s"], "target_only": ["t"], "notes": ["n"],
    }  # fmt: skip
