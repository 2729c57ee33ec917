"""`crop` and `pad`: an axis that is longer on one side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import LayoutError
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint

W = np.arange(1.0, 13, dtype="f4").reshape(4, 3)


def rules(how: str, more: str = "", params: str = "") -> library.Converter:
    return library.parse(f"{params}[[rule]]\nfrom = 'w'\nto = 'v'\n{how}\n{more}\n", "test")


def made(converter: library.Converter, array: Any = W, **params: int) -> np.ndarray[Any, Any]:
    return apply(converter, Checkpoint({"w": held("w", array)}), params)["v"].numpy()


TURNED = "layout = 'i o -> o i'"
MERGED = "layout = 'i o -> (i o)'"
ROWS = ((0, 4), (0, 0))
CASES: dict[str, tuple[str, str, Any]] = {
    "rows are added": ("pad = { axis = 0, to = 6 }", "", np.pad(W, ((0, 2), (0, 0)))),
    "after the layout": ("pad = { axis = 0, to = 7 }", TURNED, np.pad(W.T, ROWS)),
    "of a merged axis": ("pad = { axis = 0, to = 16 }", MERGED, np.pad(W.reshape(-1), (0, 4))),
    "long enough": ("pad = { axis = 0, to = 4 }", "", W),
    "columns, after the layout": ("crop = { axis = 1, to = 3 }", TURNED, W.T[:, :3]),
    "all of them": ("crop = { axis = 0, to = 0 }", "", W[:0]),
    "short enough": ("crop = { axis = 0, to = 4 }", "", W),
    "of a length that is checked": ("crop = { axis = 0, from = 4, to = 1 }", "", W[:1]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_numpy_and_lead_back(case: str, tmp_path: Path) -> None:
    how, more, want = CASES[case]
    (tmp_path / "r.toml").write_text(f"[[rule]]\nfrom = 'w'\nto = 'v'\n{how}\n{more}\n")
    assert np.array_equal(made(rules(how, more)), want)
    ckptconv.save({"w": W}, tmp_path / "a.safetensors")
    convert: dict[str, Any] = {"converter": str(tmp_path / "r.toml")}
    ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", **convert)
    assert np.array_equal(ckptconv.open(tmp_path / "b.safetensors")["v"].numpy(), want)
    ckptconv.convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors", inverse=True, **convert)
    back = ckptconv.open(tmp_path / "c.safetensors")["w"].numpy()
    lost = W.copy()
    if "crop" in how:
        kept = np.zeros_like(W.T if more else W)
        kept[tuple(slice(n) for n in want.shape)] = want
        lost = kept.T if more else kept
    assert np.array_equal(back, lost)


def test_what_a_program_drew_at_random_is_cut_off_with_a_note() -> None:
    both = rules("pad = { axis = 0, from = 4, to = 6, unchecked = true }")
    assert np.array_equal(made(both, W), np.pad(W, ((0, 2), (0, 0))))
    back = apply(both.inverse, Checkpoint({"v": held("v", np.vstack([W, W[:2]]))}))
    assert np.array_equal(back["w"].numpy(), W)
    (note,) = (n for n in back.notes if "axis" in n.text)
    assert (note.kind, note.text) == ("lossy", "axis 0 is cropped from 6 to 4: what is beyond is lost")


def test_an_inverse_without_a_record_asks_for_the_length() -> None:
    without = rules("crop = { axis = 0, to = 4 }").inverse
    with pytest.raises(LayoutError, match=r"the length of axis 0 before is not recorded; give it as `from`"):
        apply(without, Checkpoint({"v": held("v", W)}))
    wrong = rules("pad = { axis = 0, from = 3, to = 5 }").inverse
    with pytest.raises(LayoutError, match="axis 0 is 4 long, not 5 as `to` says"):
        apply(wrong, Checkpoint({"v": held("v", W)}))


@pytest.mark.parametrize(
    ("recorded", "fits"),
    [
        (4, True),
        (2**20 + 6, True),
        (2**24, False),
    ],
)
def test_a_recorded_length_is_bounded(recorded: int, fits: bool) -> None:
    """A forged file must not make a tensor of terabytes: 64 MB are added at most, or eight times the tensor."""
    there = rules("crop = { axis = 0, to = 2 }")
    made = apply(there, Checkpoint({"w": held("w", W)}))
    forged = made.metadata["ckptconv.params"].replace('axis 0":4', f'axis 0":{recorded}')
    made = Checkpoint(dict(made), {**made.metadata, "ckptconv.params": forged})
    if fits:
        assert apply(there.inverse, made)["w"].shape == (recorded, 3)
    else:
        with pytest.raises(LayoutError, match=f"was {recorded} long, as the metadata records: .* `from`"):
            apply(there.inverse, made)


def test_lengths_are_sizes() -> None:
    """A number, a parameter or another tensor's axis; lint knows them."""
    of = library.parse("[[rule]]\nfrom='{m}/w'\nto='{m}.w'\ncrop = { axis = 0, to = { of = '{m}/b', axis = 0 } }\n"
                       "[[rule]]\nfrom='{m}/b'\nto='{m}.b'", "test")  # fmt: skip
    after = apply(of, Checkpoint({"m/w": held("m/w", W), "m/b": held("m/b", W[:3, 0].copy())}))
    assert after["m.w"].shape == (3, 3)
    assert lint(of) == []
    given = rules("pad = { axis = 0, to = 'n' }", params="[params]\nn = { help = 'rows' }\n")
    assert made(given, n=9).shape == (9, 3)
    assert lint(given) == []
    assert lint(rules("pad = { axis = 0, to = 'n' }")) == [
        "rule w -> v (pad axis 0): the size or number 'n' is not a parameter"
    ]


@pytest.mark.parametrize(
    ("how", "now", "before", "words"),
    [
        ("pad = { axis = 0, to = 6 }", 6, 7, "axis 0 is 6 long: to crop it to 7 is impossible"),
        ("crop = { axis = 0, to = 2 }", 2, 1, "axis 0 is 2 long: to pad it to 1 is impossible"),
        ("pad = { axis = 0, to = 6 }", 5, 4, "axis 0 is 5 long, not 6 as `to` says"),
        ("pad = { axis = 0, to = 6 }", 6, 6, ""),
        ("pad = { axis = 0, to = 6 }", 6, 0, ""),
    ],
)
def test_backwards_only_what_the_rule_does(how: str, now: int, before: int, words: str) -> None:
    record = f'{{"converter": "test", "params": {{}}, "sizes": {{"v": {{"{how[:4].strip()} axis 0": {before}}}}}}}'
    made = Checkpoint({"v": held("v", np.zeros((now, 3), "f4"))}, {"ckptconv.params": record})
    if words:
        with pytest.raises(LayoutError, match=words):
            apply(rules(how).inverse, made)
    else:
        assert apply(rules(how).inverse, made)["w"].shape == (before, 3)
