"""What a converter records for its inverse, which comes from a file; and how it says what it cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from kit import in_memory

from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import CkptError, LayoutError, NameCollision, UnmatchedTensors, UsageError
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.assign import KEY, PARAMS, TIED


def parse(text: str) -> library.Converter:
    return library.parse(text, "test")


def tensors(**shapes: tuple[int, ...]) -> Checkpoint:
    names = {n.replace("__", "/"): shape for n, shape in shapes.items()}
    return in_memory({n: np.full(shape, k, "f4") for k, (n, shape) in enumerate(names.items())})


# --- names ------------------------------------------------------------------------------------------------------------

ONE_WAY = """
one_way = "why"
rewrite = [["^m/", ""]]
[[rule]]
from = "{x}/w"
to = "{x}.w"
[[rule]]
from = "{x}/e_{e*}"
to = "{x}.e"
[[rule]]
from = "{x}/f"
to = "{x}.f.{e*}"
[[rule]]
from = "{x}/v"
to = "{x}.v"
"""
BEFORE = tensors(
    m__a__w=(2,), b__w=(2,), m__a__e_0=(3,), m__a__e_1=(3,), m__a__e_2=(3,), m__c__f=(2, 4), m__d__v=(1,)
)  # fmt: skip
INVERSE = parse(ONE_WAY).inverse


def after(change: Callable[[Any], object] = lambda record: None) -> Checkpoint:
    """What the converter makes, with another record."""
    made = apply(parse(ONE_WAY), BEFORE)
    record = json.loads(made.metadata[KEY])
    change(record)
    return replace(made, metadata={KEY: json.dumps(record)})


def test_what_is_recorded() -> None:
    made = apply(parse(ONE_WAY), BEFORE)
    assert json.loads(made.metadata[KEY]) == {
        "converter": "test",
        "rules": [r.label for r in parse(ONE_WAY).rules],
        "names": {
            "a.w": [0, ["m/a/w"], []], "b.w": [0, ["b/w"], []], "a.e": [1, ["m/a/e_0", "m/a/e_1", "m/a/e_2"], []],
            "c.f.0": [2, ["m/c/f"], []], "c.f.1": [2, ["m/c/f"], []], "d.v": [3, ["m/d/v"], []],
        },
    }  # fmt: skip
    assert not {", ", ": "} & {a + b for a, b in pairwise(made.metadata[KEY])}


def test_only_what_does_not_follow_from_names_is_recorded() -> None:
    plain = parse("[[rule]]\nfrom = '{x}/w'\nto = '{x}.w'")
    before = replace(tensors(a__w=(2,)), metadata={"own": "1", KEY: "old", PARAMS: "old", TIED: "old"})
    made = apply(plain, before)
    assert made.metadata == {"own": "1"}
    assert apply(plain.inverse, made).metadata == {"own": "1"}


ROW: dict[str, Callable[[list[Any]], object]] = {
    "a rule before the first": lambda row: row.__setitem__(0, -1),
    "a rule beyond the last": lambda row: row.__setitem__(0, 4),
    "a rule that is a truth": lambda row: row.__setitem__(0, True),
    "from a text": lambda row: row.__setitem__(1, "b/w"),
    "from nothing": lambda row: row.__setitem__(1, []),
    "a row too short": lambda row: row.pop(),
}
UNSOUND: dict[str, Callable[[Any], object]] = {
    "another converter": lambda s: s.update(converter="other"),
    "no rules": lambda s: s.pop("rules"),
    "rules that are a text": lambda s: s.update(rules="four"),
    **{case: lambda s, change=change: change(s["names"]["b.w"]) for case, change in ROW.items()},  # type: ignore[misc]
}


@pytest.mark.parametrize("case", UNSOUND)
def test_a_record_that_is_not_sound_is_none(case: str) -> None:
    with pytest.raises(UsageError, match=r"which record the original names, and this one does not \(why\)"):
        apply(INVERSE, after(UNSOUND[case]))


STRANGE: dict[str, tuple[Callable[[Any], object], list[str]]] = {
    "as it was": (lambda s: None, []),
    "a name that is not there": (lambda s: s["names"].update({"z.w": [0, ["z/w"], []]}), []),
    "a name is gone": (lambda s: s["names"].pop("b.w"), ["b.w"]),
    "the rule is another one now": (lambda s: s["rules"].__setitem__(0, "other"), ["a.w", "b.w"]),
    "the last rule is another one now": (lambda s: s["rules"].__setitem__(3, "other"), ["d.v"]),
    "a rule that cannot have made it": (lambda s: s["names"]["b.w"].__setitem__(0, 3), ["b.w"]),
    "a part is missing": (lambda s: s["names"].pop("c.f.0"), ["c.f.{0..1}"]),
    "parts of different tensors": (lambda s: s["names"]["c.f.0"].__setitem__(1, ["q/f"]), ["c.f.{0..1}"]),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_the_record_does_not_explain_is_left_over(case: str) -> None:
    change, left = STRANGE[case]
    if left:
        with pytest.raises(UnmatchedTensors) as caught:
            apply(INVERSE, after(change))
        assert all(f"\n  {name} " in caught.value.message for name in left)
        return
    back = apply(INVERSE, after(change))
    assert {n: t.numpy().tolist() for n, t in back.items()} == {n: t.numpy().tolist() for n, t in BEFORE.items()}
    assert not back.metadata


def test_copies_come_back() -> None:
    back = apply(INVERSE, after(lambda s: s["names"]["b.w"].__setitem__(2, ["copy/w"])))
    assert np.array_equal(back["copy/w"].numpy(), back["b/w"].numpy())
    assert "copy/w" not in apply(INVERSE, after(lambda s: s["names"]["a.e"].__setitem__(2, ["copy/w"])))


TIE = parse("[[rule]]\nfrom = 'w'\nto = 'w'\n[[rule]]\nfrom = 'v'\nto = 'v'\n[[tie]]\nnames = ['w', 'v']\napart = true")


@pytest.mark.parametrize(
    ("record", "left_out"),
    [('["v"]', True), ('["a", 3, null, "v"]', True), ("no JSON", False), ("[" * 10**5, False),
      (None, False)],
)  # fmt: skip
def test_names_that_were_added_for_ties(record: str | None, left_out: bool) -> None:
    """Without a record a tensor may be one of its own."""
    made = replace(tensors(w=(2,), v=(2,)), metadata={} if record is None else {TIED: record})
    if left_out:
        with pytest.raises(CkptError, match="copies of w"):  # it must be equal
            apply(TIE.inverse, made)
    else:
        assert list(apply(TIE.inverse, made)) == ["w", "v"]


# --- sizes ------------------------------------------------------------------------------------------------------------

SIZED = """
[params]
n = { of = "a/k", axis = 1, help = "number of heads" }
d = { default = 2 }
[[rule]]
from = "{x}/w"
to = "{x}.w"
layout = "(n d) -> n d"
sizes = { n = "n" }
[[rule]]
from = "{x}/k"
to = "{x}.k"
[[rule]]
from = "{x}/u"
to = "{x}.u"
layout = "(d c) -> d c"
sizes = { d = "d" }
"""


@pytest.mark.parametrize(
    ("given", "n", "d"), [({}, 3, 2), ({"n": 6}, 6, 2), ({"n": "2", "d": 4.0}, 2, 4)]
)  # fmt: skip
def test_a_size_is_given_or_of_a_tensor_or_its_default(given: dict[str, Any], n: int, d: int) -> None:
    made = apply(parse(SIZED), tensors(a__w=(12,), a__k=(1, 3), a__u=(8,)), given)
    assert (made["a.w"].shape, made["a.u"].shape) == ((n, 12 // n), (d, 8 // d))
    assert json.loads(made.metadata[PARAMS]) == {"converter": "test", "params": {"n": n, "d": d}}
    assert made.metadata[PARAMS].count(" ") == 0


FOLD = parse("[params]\nn = { help = 'heads' }\n[[rule]]\nfrom = 'w'\nto = 'w'\nlayout = 'n d -> (n d)'\n"
             "sizes = { n = 'n' }")  # fmt: skip


@pytest.mark.parametrize(
    ("params", "words"),
    [('{"n": 2}', ""), ('{"n": 0}', "does not fit"), ('{"n": -3}', "does not fit"), ('{"n": 3.0}', "needs param"),
    ('{"other": 3}', "needs param"), ("[]", "needs param")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["test", "other"])
def test_recorded_parameters_of_a_stranger(params: str, words: str, name: str) -> None:
    made = in_memory({"w": np.arange(6.0)}, metadata={PARAMS: f'{{"converter": "{name}", "params": {params}}}'})
    if not words and name == "test":
        assert apply(FOLD.inverse, made)["w"].shape == (2, 3)
        return
    with pytest.raises((UsageError, LayoutError), match=words if name == "test" else "needs param"):
        apply(FOLD.inverse, made)


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"converter": 3}', "[" * 10**5])
def test_a_broken_record_is_none(record: str) -> None:
    with pytest.raises(UsageError, match="needs param='n=NUMBER'"):
        apply(FOLD.inverse, in_memory({"w": np.arange(6.0)}, metadata={PARAMS: record}))


# --- what it cannot do ------------------------------------------------------------------------------------------------

TWO = "[params]\nn = { help = 'number of heads' }\nm = {}\n" + "".join(
    f"[[rule]]\nfrom = '{a}'\nto = '{b}'\nlayout = '{layout}'\nsizes = {sizes}\n"
    for a, b, layout, sizes in [
        ("a", "x", "i -> i", "{}"), ("b", "x", "i -> i", "{}"), ("c", "z", "(k i) -> k i", "{ k = 2 }"),
        ("d", "v", "(k i) -> k i", "{ k = 3 }"), ("e", "u", "(k i) -> k i", "{ k = 'n' }"),
        ("f", "t", "(k i) -> k i", "{ k = 'm' }"),
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (
            "ab",
            NameCollision,
            "more than one tensor would have these names:\n  x: from a (by a -> x (i -> i)) and b (by b -> x",
        ),
        ("abc", LayoutError, "1 layout does not fit:\n  c [5] by c -> z ((k i) -> k i): "),
        ("abcd", LayoutError, "2 layouts do not fit:\n  c [5] by c -> z"),
        ("abcdef", UsageError, "the converter test needs param='n=NUMBER' param='m=NUMBER'\n  n: number of heads\n  m"),
    ],
)
def test_the_first_kind_of_problem_is_raised_with_all_its_cases(
    names: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        apply(parse(TWO), tensors(**dict.fromkeys(names, (5,))))
    assert str(caught.value).startswith(message)


RULES = """
source = "bert"
[[rule]]
from = "enc/{x}/kernel"
to = "{x}.weight"
[[rule]]
from = "decoder/{x}/bias"
to = "{x}.bias"
"""


@pytest.mark.parametrize(
    ("left", "of", "words"),
    [
        (["enc/a/kern"], 2, "takes 1 of 2 tensors; drop them with exclude='enc/a/kern', or add rules:\n"
         "  enc/a/kern [3] - nearest rule: enc/{x}/kernel"),
        (["decoder/a/biases"], 2, "  decoder/a/biases [3] - nearest rule: decoder/{x}/bias"),
        (["z1", "z2"], 3, "takes 2 of 3 tensors; it may be the wrong converter (it is for bert); `ckptconv match` "
         "proposes rules; or add them:\n"),
        (["z1", "z*"], 4, "takes 2 of 4 tensors; drop them with exclude='z1' exclude='z[*]', or add rules:\n"),
    ],
)  # fmt: skip
def test_what_no_rule_takes(left: list[str], of: int, words: str) -> None:
    names = [*left, *(f"enc/{k}/kernel" for k in range(of - len(left)))]
    with pytest.raises(UnmatchedTensors) as caught:
        apply(parse(RULES), in_memory(dict.fromkeys(names, np.zeros(3, "f4"))))
    assert words in caught.value.message


def test_an_inverse_leaves_out_the_further_name_of_a_tied_weight() -> None:
    emb = held("emb.weight", np.zeros(3, "f4"))
    both = {t.name: t for t in (emb, emb.renamed("head.weight"))}
    made = apply(parse("[[rule]]\nnames = { 'emb/t' = 'emb.weight' }").inverse, Checkpoint(both, ties=(tuple(both),)))
    assert (list(made), made.notes[-1].names) == (["emb/t"], ("head.weight",))
