"""What a converter records for its way back, which comes from a file; and how it says what it cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import LayoutError, NameCollision, UnmatchedTensors, UsageError
from ckptconv.rules import library, provenance, sizes
from ckptconv.rules.apply import Problems, apply, refuse_unmatched
from ckptconv.rules.assign import Assignment
from ckptconv.rules.provenance import KEY, PARAMS, TIED, Moved


def parse(text: str) -> library.Converter:
    return library.parse(text, "test")


def tensors(**shapes: tuple[int, ...]) -> Checkpoint:
    names = {n.replace("__", "/"): shape for n, shape in shapes.items()}
    return Checkpoint({n: held(n, np.full(shape, k, "f4")) for k, (n, shape) in enumerate(names.items())})


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


def after() -> Checkpoint:
    return apply(parse(ONE_WAY), BEFORE)


def test_what_is_recorded() -> None:
    assert json.loads(after().metadata[KEY]) == {
        "converter": "test",
        "rules": [r.label for r in parse(ONE_WAY).rules],
        "names": {
            "a.w": [0, ["m/a/w"], []], "b.w": [0, ["b/w"], []], "a.e": [1, ["m/a/e_0", "m/a/e_1", "m/a/e_2"], []],
            "c.f.0": [2, ["m/c/f"], []], "c.f.1": [2, ["m/c/f"], []], "d.v": [3, ["m/d/v"], []],
        },
    }  # fmt: skip
    assert not {", ", ": "} & {a + b for a, b in pairwise(after().metadata[KEY])}
    back = apply(parse(ONE_WAY).inverse, after())
    assert {n: t.shape for n, t in back.items()} == {n: t.shape for n, t in BEFORE.items()}
    assert all(np.array_equal(back[n].numpy(), t.numpy()) for n, t in BEFORE.items())
    assert not back.metadata


def test_only_what_does_not_follow_from_names_is_recorded() -> None:
    plain = parse("[[rule]]\nfrom = '{x}/w'\nto = '{x}.w'")
    before = replace(tensors(a__w=(2,)), metadata={"own": "1", KEY: "old", PARAMS: "old", TIED: "old"})
    made = apply(plain, before)
    assert made.metadata == {"own": "1"}
    assert apply(plain.inverse, made).metadata == {"own": "1"}


def changed(change: Callable[[Any], object]) -> Checkpoint:
    made = after()
    said = json.loads(made.metadata[KEY])
    change(said)
    return replace(made, metadata={KEY: json.dumps(said)})


UNSOUND: dict[str, Callable[[Any], object]] = {
    "another converter": lambda s: s.update(converter="other"),
    "no converter": lambda s: s.pop("converter"),
    "no rules": lambda s: s.pop("rules"),
    "names are a list": lambda s: s.update(names=[]),
    "a rule before the first": lambda s: s["names"]["b.w"].__setitem__(0, -1),
    "a rule behind the last": lambda s: s["names"]["b.w"].__setitem__(0, 4),
    "a rule by its name": lambda s: s["names"]["b.w"].__setitem__(0, "0"),
    "a rule that is a fraction": lambda s: s["names"]["b.w"].__setitem__(0, 0.0),
    "a rule that is a truth": lambda s: s["names"]["b.w"].__setitem__(0, True),
    "rules that are a text": lambda s: s.update(rules="four"),
    "from a text": lambda s: s["names"]["b.w"].__setitem__(1, "b/w"),
    "from nothing": lambda s: s["names"]["b.w"].__setitem__(1, []),
    "from a number": lambda s: s["names"]["b.w"].__setitem__(1, ["b/w", 3]),
    "a copy that is a number": lambda s: s["names"]["b.w"].__setitem__(2, [3]),
    "a row too short": lambda s: s["names"]["b.w"].pop(),
    "a row too long": lambda s: s["names"]["b.w"].append([]),
    "a row that is a number": lambda s: s["names"].update({"b.w": 3}),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_a_record_that_is_not_sound_is_none(case: str) -> None:
    with pytest.raises(UsageError, match=r"only by the names .* there are none of it here \(why\)"):
        provenance.recall(parse(ONE_WAY).inverse, changed(UNSOUND[case]))


STRANGE: dict[str, tuple[Callable[[Any], object], list[str]]] = {
    "as it was": (lambda s: None, []),
    "a name is gone": (lambda s: s["names"].pop("b.w"), ["b.w"]),
    "the rule is another one now": (lambda s: s["rules"].__setitem__(0, "other"), ["a.w", "b.w"]),
    "the last rule is another one now": (lambda s: s["rules"].__setitem__(3, "other"), ["d.v"]),
    "a rule that cannot have taken it": (lambda s: s["names"]["b.w"].__setitem__(0, 3), ["b.w"]),
    "a name that no rule takes": (lambda s: s["names"]["b.w"].__setitem__(1, ["b/z"]), ["b.w"]),
    "a name of another tensor": (lambda s: s["names"]["b.w"].__setitem__(1, ["q/w"]), ["b.w"]),
    "a part is missing": (lambda s: s["names"].pop("c.f.0"), ["c.f.0", "c.f.1"]),
    "a name that is not there": (lambda s: s["names"].update({"z.w": [0, ["z/w"], []]}), []),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_the_record_does_not_explain_is_left_over(case: str) -> None:
    change, left = STRANGE[case]
    found = provenance.recall(parse(ONE_WAY).inverse, changed(change))
    assert sorted(found.unmatched) == left
    assert len(found.groups) == 5 - len({n[:3] for n in left})
    assert [g.spelled for g in found.groups if len(g.spelled) == 3] == [
        (("m/a/e_0",), ("m/a/e_1",), ("m/a/e_2",))
    ]  # fmt: skip


def test_copies_come_back() -> None:
    found = provenance.recall(parse(ONE_WAY).inverse, changed(lambda s: s["names"]["b.w"].__setitem__(2, ["copy/w"])))
    assert (("b/w", "copy/w"),) in [g.spelled for g in found.groups]
    found = provenance.recall(parse(ONE_WAY).inverse, changed(lambda s: s["names"]["a.e"].__setitem__(2, ["copy/w"])))
    assert not any("copy/w" in names for g in found.groups for names in g.spelled)  # it came of several


def test_only_an_inverse_recalls() -> None:
    with pytest.raises(UsageError, match="test is not an inverse"):
        provenance.recall(parse(ONE_WAY), after())


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (None, set()), ('["a", "b"]', {"a", "b"}), ('["a", 3, null]', {"a"}), ("3", set()), ("no JSON", set()),
        ("[" * 10**5, set()), ("[]", set()),
    ],
)  # fmt: skip
def test_names_that_were_added_for_ties(said: str | None, names: set[str]) -> None:
    assert provenance.tied(Checkpoint({}, {} if said is None else {TIED: said})) == names


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


def test_a_size_is_given_or_of_a_tensor_or_its_default() -> None:
    before = tensors(a__w=(12,), a__k=(1, 3), a__u=(8,))
    for given, shape, other in [({}, (3, 4), (2, 4)), ({"n": 6}, (6, 2), (2, 4)), ({"n": "2", "d": 4}, (2, 6), (4, 2))]:
        made = apply(parse(SIZED), before, given)
        assert (made["a.w"].shape, made["a.u"].shape) == (shape, other)
        said = {"n": shape[0], "d": other[0]}
        assert json.loads(made.metadata[PARAMS]) == {"converter": "test", "params": said}
        assert made.metadata[PARAMS].count(" ") == 0
        assert provenance.params(parse(SIZED).inverse, made) == said
        assert provenance.params(parse(SIZED), made) == {}  # only the way back asks
    for lacking in ({"a__k": (7,)}, {"b__k": (1, 3)}):
        with pytest.raises(UsageError, match=r"the converter test needs param='n=NUMBER'\n  n: number of heads"):
            apply(parse(SIZED), tensors(a__w=(12,), **lacking))


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ('{"n": 1, "d": 7}', {"n": 1, "d": 7}), ('{"n": 0}', {}), ('{"n": -3}', {}), ('{"n": true}', {}),
        ('{"n": "3"}', {}), ('{"n": 3.0}', {}), ('{"other": 3}', {}), ("[]", {}), ("3", {}), ("null", {}),
    ],
)  # fmt: skip
def test_recorded_parameters_of_a_stranger(params: str, found: dict[str, int]) -> None:
    inverse = parse(SIZED).inverse
    text = f'{{"converter": "test", "params": {params}}}'
    for name, wanted in ((inverse.name, found), ("other", {})):
        said = text.replace('"test"', json.dumps(name))
        assert provenance.params(inverse, Checkpoint({}, {PARAMS: said})) == wanted
    for broken in ("", "[]", "{}", '{"converter": 3}', "[" * 10**5):
        assert provenance.params(inverse, Checkpoint({}, {PARAMS: broken})) == {}


def test_parameters_are_numbers() -> None:
    assert sizes.checked(parse(SIZED), {"n": "3", "d": 4.0}) == {"n": 3, "d": 4}


# --- what it cannot do ------------------------------------------------------------------------------------------------


def test_the_first_kind_of_problem_is_said_with_all_its_cases() -> None:
    problems = Problems()
    problems.check("c")
    problems.clash("x", Moved(("a", "b"), "first", 0, []), ["c\n"], "second")
    with pytest.raises(NameCollision) as clash:
        problems.check("c")
    assert clash.value.message == "1 name would be given twice:\n  x: from a, b (by first) and c\\n (by second)"
    problems.clash("y", Moved(("a",), "first", 0, []), ["d"], "second")
    with pytest.raises(NameCollision, match=r"2 names would be given twice:\n  x: .*\n  y: from a "):
        problems.check("c")
    problems.broken.append("one")
    with pytest.raises(LayoutError, match=r"1 layout does not fit:\n  one$"):
        problems.check("c")
    problems.broken.append("two")
    with pytest.raises(LayoutError, match=r"2 layouts do not fit:\n  one\n  two$"):
        problems.check("c")
    problems.missing.update(n="number of heads", m="")
    with pytest.raises(UsageError) as missing:
        problems.check("c")
    assert missing.value.message == (
        "the converter c needs param='n=NUMBER' param='m=NUMBER'\n  n: number of heads\n  m"
    )


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
    ("left", "of", "said"),
    [
        (["enc/a/kern"], 2, "takes 1 of 2 tensors; drop them with exclude=, or add rules:\n"
         "  enc/a/kern [3] - nearest rule: enc/{x}/kernel"),
        (["decoder/a/biases"], 2, "  decoder/a/biases [3] - nearest rule: decoder/{x}/bias"),
        (["z1", "z2"], 3, "takes 2 of 3 tensors; it may be the wrong converter (it is for bert): converter='auto' "
         "finds one that takes all; or add rules:\n"),
        (["z1", "z2"], 4, "takes 2 of 4 tensors; drop them with exclude=, or add rules:\n"),
    ],
)  # fmt: skip
def test_what_no_rule_takes(left: list[str], of: int, said: str) -> None:
    names = [*left, *(f"enc/{k}/kernel" for k in range(of - len(left)))]
    made = Checkpoint({n: held(n, np.zeros(3, "f4")) for n in names})
    found = Assignment()
    refuse_unmatched(parse(RULES), made, found)
    found.unmatched += left
    with pytest.raises(UnmatchedTensors) as caught:
        refuse_unmatched(parse(RULES), made, found)
    assert said in caught.value.message
    assert caught.value.url is None
