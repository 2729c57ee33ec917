"""Rules: the page that teaches them, what they refuse, and that they lead back."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import ROOT, examples, in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint, contiguous, held
from ckptconv.checkpoint.details import LayerInput
from ckptconv.dtypes import DTYPES
from ckptconv.errors import LayoutError, NameCollision, UnmatchedTensors, UsageError
from ckptconv.moves.part import Held
from ckptconv.rules import library, names, passes
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint
from ckptconv.rules.names import take_averages
from ckptconv.rules.passes import select
from ckptconv.rules.templates import Matcher, template

PAGE = ROOT / "converters" / "README.md"


def checkpoint(shapes: dict[str, list[int]], **roles: str) -> Checkpoint:
    """A checkpoint whose values are all different."""
    out, first = {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        array = np.arange(first, first + count, dtype=np.float64).reshape(shape)
        out[name] = contiguous(name, DTYPES["float64"], shape, Held(array), role=roles.get(name, ""))
        first += count
    return Checkpoint(out)


def parse(text: str) -> library.Converter:
    return library.parse(text, "test")


def rule(**keys: Any) -> str:
    def spell(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{k} = {spell(v)}" for k, v in value.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(spell, value)) + "]"
        return str(value).lower() if isinstance(value, bool | int) else f'"{value}"'

    return "[[rule]]\n" + "\n".join(f"{k.rstrip('_')} = {spell(v)}" for k, v in keys.items()) + "\n"


# --- the page ---------------------------------------------------------------------------------------------------

EXAMPLES = re.findall(r"```toml\n(.*?)```\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)


def sides(text: str) -> tuple[dict[str, list[int]], dict[str, list[int]], dict[str, str]]:
    """Read `name [shape] & name [shape] -> name [shape]` lines, and the parameters."""
    both: list[dict[str, list[int]]] = [{}, {}]
    params = {}
    for line in text.splitlines():
        if line.startswith("param "):
            key, value = line[6:].split("=")
            params[key] = value
        for into, side in zip(both, line.split("->"), strict=False):
            for m in re.finditer(r"(\S+) \[([\d, ]*)\]", side):
                into[m[1]] = [int(n) for n in m[2].split(",") if n.strip()]
    return both[0], both[1], params


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("```toml") >= 4


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_page(example: tuple[str, str]) -> None:
    text, table = example
    source, want, params = sides(table)
    converter = parse(text)
    before = checkpoint(source)
    equal = {n: held(n, before[n.replace("rank_1", "rank_0")].numpy()) for n in source if n.startswith("rank_1")}
    zero = {n: held(n, np.zeros(shape)) for n, shape in source.items() if n.endswith("/bias_hh")}
    before = replace(before, tensors=before.tensors | equal | zero)
    after = apply(converter, before, params)
    assert {n: list(t.shape) for n, t in after.items()} == want
    if "not reversible" in table:
        return
    assert lint(converter) == []
    back = apply(converter.inverse, after, params)
    moved = {n for m in after.moved.values() for n in m.sources}
    assert set(back) == moved
    for name in moved:
        assert np.array_equal(back[name].numpy(), before[name].numpy())


# --- values -----------------------------------------------------------------------------------------------------


def test_values_are_those_of_numpy() -> None:
    before = checkpoint(
        {"g/k": [3, 10], "c/k": [3, 5], "e_0": [2, 3], "e_1": [2, 3], "e_10": [2, 3]}
        | {f"e_{i}": [2, 3] for i in range(2, 10)}
    )
    text = rule(from_=["g/k", "c/k"], to="w", layout="i (h.r + h.z), i h.n -> (h.r + h.z + h.n) i")
    text += rule(from_="e_{e*}", to="e", layout="i o -> e o i")
    after = apply(parse(text), before)
    old = {n: t.numpy() for n, t in before.items()}
    assert np.array_equal(after["w"].numpy(), np.concatenate([old["g/k"], old["c/k"]], 1).T)
    assert np.array_equal(after["e"].numpy(), np.stack([old[f"e_{i}"].T for i in range(11)]))
    back = apply(parse(text).inverse, after)
    assert all(np.array_equal(back[n].numpy(), old[n]) for n in old)


def test_conditions_lead_back() -> None:
    """A batch norm is told from a layer norm by its statistics, in both directions."""
    text = rule(from_="{x...}/gamma", to="{x...}.weight", if_=["{x...}/moving_mean"], layout="c -> c 1")
    text += rule(from_="{x...}/moving_mean", to="{x...}.running_mean") + rule(
        from_="{x...}/gamma", to="{x...}.weight", rank=1
    )
    converter = parse(text)
    before = checkpoint({"bn/gamma": [4], "bn/moving_mean": [4], "ln/gamma": [4]})
    after = apply(converter, before)
    assert {n: t.shape for n, t in after.items()} == {"bn.weight": (4, 1), "bn.running_mean": (4,), "ln.weight": (4,)}
    back = apply(converter.inverse, after)
    assert {n: t.shape for n, t in back.items()} == {n: t.shape for n, t in before.items()}


# --- ties, slots, provenance ------------------------------------------------------------------------------------


def test_ties_of_the_source_survive_and_copies_are_taken_once() -> None:
    a = held("a", np.arange(3.0))
    before = Checkpoint(
        {"a": a, "b": a.renamed("b"), "x/c": a.renamed("x/c"), "y/c": a.renamed("y/c")},
        ties=(("a", "b", "x/c", "y/c"),),
    )
    after = apply(
        parse('[[rule]]\n[rule.names]\n"a" = "p"\n"b" = "q"\n"x/c" = "c"\n"y/c" = "c"\n'),
        before,
    )
    assert after.ties == (("p", "q", "c"),)
    assert list(after) == ["p", "q", "c"]
    assert [n.kind for n in after.notes] == ["tied"]


def test_slots_are_no_weights() -> None:
    before = checkpoint(
        {"a/kernel": [2, 3], "a/kernel/Adam": [2, 3], "a/kernel/vr": [2], "step": []},
        **{"a/kernel/Adam": "slot", "a/kernel/vr": "slot", "step": "step"},
    )
    converter = parse(
        rule(from_="{x...}/kernel", to="{x...}.weight", layout="i o -> o i") + rule(from_="{x...}", to="{x...}")
    )
    left = apply(converter, before)
    assert list(left) == ["a.weight"]
    assert {n.kind for n in left.notes} >= {"skipped"}


KEEP = rule(from_="{x...}", to="{x...}")
SWAP = parse(rule(from_="{l}/k", to="{l}/k", where={"l": {"a": "b", "b": "a"}}) + KEEP)
SPLIT = parse(rule(from_="a/k", to=["p", "q"], layout="(q + k) -> q, k", sizes={"q": 2}) + KEEP)
JOIN = parse(rule(from_=["a/k", "b/k"], to="j", layout="q, k -> (q + k)") + KEEP)
EMA = "ExponentialMovingAverage"

Step = Callable[[Checkpoint], Checkpoint]


def renamed(*pairs: str) -> Step:
    return lambda c: library.change(c, None, pairs)


def replaced(*pairs: str) -> Step:
    return lambda c: names.rename_by_regex(c, pairs)


def by(converter: library.Converter) -> Step:
    return lambda c: apply(converter, c)


def scoped(*names: str) -> Step:
    return lambda c: passes.merge([passes.scope(c, n) for n in names])


@pytest.mark.parametrize(
    ("steps", "came"),
    [
        ([renamed("a/=b/", "b/=a/"), renamed("c/=d/")], {"b/k": "a/k", "a/k": "b/k", "d/k": "c/k"}),
        ([replaced("^a=x"), renamed("x/=a/")], {"a/k": "a/k", "b/k": "b/k", "c/k": "c/k"}),
        ([by(SWAP), renamed("c/=d/")], {"b/k": "a/k", "a/k": "b/k", "d/k": "c/k"}),
        ([by(SPLIT), renamed("c/=d/")], {"p": "a/k", "q": "a/k", "b/k": "b/k", "d/k": "c/k"}),
        ([by(JOIN), renamed("j=a/k")], {"a/k": "a/k b/k", "c/k": "c/k"}),
        ([scoped("s"), renamed("s/a/=a/")], {"a/k": "a/k", "s/b/k": "b/k", "s/c/k": "c/k"}),
        ([scoped("s", "t"), lambda c: select(c, ["?/a/k"])], {"s/a/k": "a/k", "t/a/k": "a/k"}),
        ([renamed(f"a/k=b/k/{EMA}", "b/k=a/k"), take_averages], {"b/k": "a/k", "a/k": "b/k", "c/k": "c/k"}),
    ],
)  # fmt: skip
def test_of_several_steps_the_names_are_those_before_the_first(steps: list[Step], came: dict[str, str]) -> None:
    found = checkpoint({"a/k": [4], "b/k": [4], "c/k": [4]})
    for step in steps:
        found = step(found)
    assert {name: " ".join(found.sources(name)) for name in found} == came


@pytest.mark.parametrize(
    ("name", "pair", "new"),
    [
        ("a=b", r"a\=b=c", "c"), ("b", r"b=\=c", r"\=c"),
        (r"a\b", r"a\b=c", "c"), ("a\\", r"a\\=c", "c"),
        ("a=1/k", r"a\={x}/k={x}=a.k", "1=a.k"),
    ],
)  # fmt: skip
def test_names_with_an_equals_sign_are_renamed(name: str, pair: str, new: str) -> None:
    assert list(library.change(checkpoint({name: [1]}), None, [pair])) == [new]


def test_a_regular_expression_finds_an_equals_sign() -> None:
    assert list(names.rename_by_regex(checkpoint({"a=b": [1]}), [r"\=(.)$=.\1=", "[\\=]=/"])) == ["a.b/"]


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("pair", "name", "new"),
    [
        ("a/=b/", LONG, LONG), ("a/=b/", f"a/{LONG}", f"b/{LONG}"),
        ("{x}/k=k.{x}", f"{LONG}/k", f"k.{LONG}"), ("{x...}/k={x...}/w", f"{LONG}/y/k", f"{LONG}/y/w"),
        ("a/{x...}k{y}=z/{y}/{x...}", LONG, LONG),
    ],
    ids=range(5),
)  # fmt: skip
def test_a_long_name_is_in_the_way_of_no_rename(pair: str, name: str, new: str) -> None:
    """Of several captures, whose time would not be linear, it is said."""
    before = checkpoint({"a/k": [1], "a/ky": [1], name: [1]})
    began = time.process_time()
    with (
        nullcontext() if new else pytest.raises(UsageError, match="captures, which take names of up to 500 characters")
    ):
        assert new in library.change(before, None, [pair])
    assert time.process_time() - began < 2


def test_of_several_steps_the_rules_are_those_that_did_something() -> None:
    swapped = apply(SWAP, checkpoint({"a/k": [1], "b/k": [1]}))
    after = names.rename_by_regex(library.change(swapped, None, ["a/=c/"]), ["^c=d"])
    one = "{l}/k -> {l}/k"
    assert after.moved == {
        "b/k": (one, ("a/k",)), "d/k": (f"{one}, then a/{{any...}} -> c/{{any...}}, then ^c=d", ("b/k",)),
    }  # fmt: skip


def test_parameters_are_asked_for() -> None:
    text = '[params]\nheads = { help = "how many" }\n' + rule(
        from_="a", to="a", layout="(h d) -> d h", sizes={"h": "heads"}
    )
    with pytest.raises(UsageError, match="no parameter 'head'; did you mean heads"):
        apply(parse(text), checkpoint({"a": [6]}), {"head": 2})
    with pytest.raises(UsageError, match="must be an integer"):
        apply(parse(text), checkpoint({"a": [6]}), {"heads": "two"})
    assert apply(parse(text), checkpoint({"a": [6]}), {"heads": "2"})["a"].shape == (3, 2)


VALUES = "3 -1 true 1.5 'a' '{x}' '{x...}/k' [] ['a','b'] [['a','b']] {} {a='b'} {from='^{x}/',to=''}"
TOP = "title include params let rewrite rule tie detect optional one_way notes"
INNER = "from to names layout where sizes op rank if unless same optional"


@examples(200)
@given(st.data())
def test_any_file_is_a_converter_or_a_usage_error(data: st.DataObject) -> None:
    """Values of any kind under known keys, in any mixture."""
    value = st.sampled_from(VALUES.split())
    top = data.draw(st.lists(st.sampled_from(TOP.split()), max_size=3, unique=True))
    text = "".join(f"{k} = {data.draw(value)}\n" for k in top)
    if "rule" not in top:
        keys = data.draw(st.lists(st.sampled_from(INNER.split()), max_size=5, unique=True))
        text += "[[rule]]\n" + "".join(f"{k} = {data.draw(value)}\n" for k in keys)
    try:
        converter = parse(text)
        lint(converter)
        apply(converter, checkpoint({"a": [2, 3], "b/k": [3]}))
    except (UsageError, LayoutError, UnmatchedTensors, NameCollision):
        pass


# --- finding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("converter", "names", "words"),
    [
        ("bert", ["bert/embeddings/position_embeddings"], ""),
        (
            "bert",
            ["encoder/kernel", "encoder/bias"],
            "converter='tf-torch' takes every tensor; none of the names that identify bert",
        ),
        ("bert", ["mine"], "`ckptconv match` proposes rules"),
        ("keras-torch", ["encoder/kernel"], ""),  # any names
        ("keras-torch", ["a/kernel", "odd/one"], "takes 1 of 2 tensors; drop them with exclude='odd/one', or"),
        ("keras-torch", ["a/kernel", "fc.weight", "fc.bias"], r"wrong converter \(it is for Keras\); `ckptconv match`"),
        ("gpt2", ["a/kernel", "b/kernel"], "converter='tf-torch' takes every"),
    ],
)
def test_a_converter_refuses_names_of_another_family(converter: str, names: list[str], words: str) -> None:
    """A rule that takes any kernel takes a stranger's as well: to exclude the rest would be bad advice."""
    source = replace(checkpoint({n: [2] if n.endswith("bias") else [2, 3] for n in names}), format="tf")
    if not words:
        assert len(library.change(source, converter)) == 1
        return
    with pytest.raises(UnmatchedTensors, match=words):
        library.change(source, converter)


def test_a_part_of_a_family_is_of_the_family() -> None:
    """What it is recognised by may have been left out by name."""
    whole = checkpoint({"bert/embeddings/position_embeddings": [2, 3], "bert/encoder/layer_0/output/dense/bias": [3]})
    found = library.change(select(whole, ["*/bias"]), "bert")
    assert list(found) == ["bert.encoder.layer.0.output.dense.bias"]


def test_load_names_the_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no converter is called"):
        library.load("hf-tff")
    (tmp_path / "mine.toml").write_text('include = ["_parts"]\n' + rule(from_="a", to="b"))
    (tmp_path / "_parts.toml").write_text(rule(from_="c", to="d"))
    assert [r.label for r in library.load(tmp_path / "mine.toml").rules] == ["a -> b", "c -> d"]
    (tmp_path / "_parts.toml").write_text('include = ["_parts"]')
    with pytest.raises(UsageError, match="include each other"):
        library.load(str(tmp_path / "mine.toml"))
    for depth in range(18):
        (tmp_path / f"_{depth}.toml").write_text(f"include = ['_{depth - 1}']\n" if depth else rule(from_="a", to="b"))
    assert len(library.load(tmp_path / "_16.toml").rules) == 1
    with pytest.raises(UsageError, match="include each other"):
        library.load(tmp_path / "_17.toml")
    (tmp_path / "wide.toml").write_text(f"include = {['_0'] * 17}\n")
    with pytest.raises(UsageError, match="more than 16 of them"):
        library.load(tmp_path / "wide.toml")
    with pytest.raises(UsageError, match="no such file"):
        library.load(str(tmp_path / "none.toml"))


def test_renames_leave_other_names_alone() -> None:
    before = checkpoint({"model/a": [1], "b/c": [2], "model/a/Adam": [1]}, **{"model/a/Adam": "slot"})
    assert list(library.change(before, None, ["model/{x...}={x...}"])) == ["a", "b/c", "a/Adam"]
    with pytest.raises(UsageError, match="FROM=TO"):
        library.renaming(["a"])


def test_auto_names_the_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"a": rule(from_="{x}/k", to="{x}.w"), "b": rule(from_="{x...}", to="{x...}"), "c": rule(from_="q", to="r")}
    texts["d"] = "[detect]\nall = ['{x}/seen']\n" + texts["b"]
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    monkeypatch.setattr(library, "_installed", lambda: {n: tmp_path / f"{n}.toml" for n in texts})
    with pytest.raises(UsageError, match=r"choose one with converter=:\n  a: \n  b: "):
        library.auto(checkpoint({"x/k": [1]}))
    assert library.auto(checkpoint({"x/y/k": [1]})).name == "b"
    assert library.auto(checkpoint({"x/seen": [1]})).name == "d"


@pytest.mark.slow
def test_auto_takes_the_converter_of_the_source_s_own_framework() -> None:
    """Names of Keras's layers are those of TensorFlow's, too; the format says whose they are."""
    dense = replace(checkpoint({"dense/kernel": [2, 3], "dense/bias": [3]}), format="keras")
    assert library.auto(dense).name == "keras-torch"
    assert library.suggestion(dense) == ""
    assert library.suggestion(dense, conventions=True) == "keras-torch"
    assert library.auto(replace(dense, format="tf")).name == "tf-torch"


# --- sizes that no shape tells on the way back -------------------------------------------------------------------

MERGED = {  # layouts whose targets do not tell the sources' shapes: the rule, and tensors of different sizes
    "heads": (rule(from_="{x}/w", to="{x}.w", layout="i h d -> (h d) i"), {"a/w": [2, 3, 4], "b/w": [2, 6, 2]}),
    "leading": (rule(from_="{x}/w", to="{x}.w", layout="... h d -> (h d) ...", rank=4), {"a/w": [2, 2, 3, 4]}),
    "stack": (rule(from_="{e*}/w", to="w", layout="i h d -> e (h d) i"), {f"{i}/w": [2, 3, 4] for i in (0, 1)}),
    "join": (
        rule(from_=["q", "k"], to="qk", layout="i h.q d, i h.k d -> i ((h.q + h.k) d)"),
        {"q": [5, 2, 3], "k": [5, 2, 3]},
    ),
    "one way": (
        'one_way = "x"\nrewrite = [["^m/", ""]]\n'
        + rule(from_="{x}/{e*}/w", to="{x}.w", layout="i h d -> e (h d) i")
        + rule(from_="{x}/v", to="{x}.v", layout="h d -> (h d)"),
        {"m/a/0/w": [2, 3, 4], "m/a/1/w": [2, 3, 4], "m/b/v": [5, 2], "m/c/v": [2, 5]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MERGED)
def test_sizes_of_merged_axes_are_remembered(case: str) -> None:
    text, shapes = MERGED[case]
    converter, before = parse(text), checkpoint(shapes)
    assert lint(converter) == []
    after = apply(converter, before)
    back = apply(converter.inverse, after)
    assert {n: t.shape for n, t in back.items()} == {n: t.shape for n, t in before.items()}
    assert all(np.array_equal(back[n].numpy(), before[n].numpy()) for n in before)
    assert not back.metadata


KEEPERS = {
    "x.safetensors": "",
    "x.pt": "",
    "x.ckpt": "",
    "x.hdf5": "hdf5",
    "arrays": "npy",
}


@pytest.mark.parametrize("via", KEEPERS)
def test_every_format_that_can_keeps_what_an_inverse_needs(via: str, tmp_path: Path) -> None:
    """Sizes of merged axes, parameters, and the names before a one-way converter."""
    text = MERGED["one way"][0] + rule(from_="{x}/k", to="{x}.k", layout="n d -> (n d)", sizes={"n": "n"})
    text += "[params]\nn = { of = '{x...}/k', axis = 0 }\n"
    (tmp_path / "c.toml").write_text(text)
    rng = np.random.default_rng(0)
    shapes = {**MERGED["one way"][1], "m/d/k": [3, 5]}
    before = {n: rng.normal(size=s) for n, s in shapes.items()}
    np.savez(tmp_path / "a.npz", **before)
    ckptconv.convert(tmp_path / "a.npz", tmp_path / via, to=KEEPERS[via] or None, converter=str(tmp_path / "c.toml"))
    back = {"converter": str(tmp_path / "c.toml"), "inverse": True}
    ckptconv.convert(tmp_path / via, tmp_path / "b.npz", **back)
    with np.load(tmp_path / "b.npz") as found:
        assert set(found.files) == set(before)
        assert all(np.array_equal(found[n], before[n]) for n in before)


def test_flax_loses_what_an_inverse_needs_and_says_so(tmp_path: Path) -> None:
    text, shapes = MERGED["heads"]
    (tmp_path / "c.toml").write_text(text)
    before = {n: np.ones(s) for n, s in shapes.items()}
    np.savez(tmp_path / "a.npz", **before)
    done = ckptconv.convert(tmp_path / "a.npz", tmp_path / "b.msgpack", converter=str(tmp_path / "c.toml"))
    assert [n.text for n in done.notes if n.kind == "lossy"] == [
        "Flax has no place for metadata: it lacks sizes that the converter's inverse needs"
    ]


def test_sizes_of_merged_axes_are_asked_for_where_nothing_remembers_them() -> None:
    text, shapes = MERGED["heads"]
    converter, before = parse(text), checkpoint({"a/w": shapes["a/w"]})
    after = replace(apply(converter, before), metadata={})
    with pytest.raises(UsageError, match=r"(?s)needs param='h=NUMBER'\n.*h: an axis of \(h d\) i -> i h d"):
        apply(converter.inverse, after)
    with pytest.raises(LayoutError, match="an axis of length 12"):
        apply(converter.inverse, after, {"h": 5})
    back = apply(converter.inverse, after, {"h": 3})
    assert np.array_equal(back["a/w"].numpy(), before["a/w"].numpy())
    with pytest.raises(UsageError, match="no parameter 'h'"):  # which the way there does not need
        apply(converter, before, {"h": 3})


@pytest.mark.parametrize("sizes", ['{"a.w": {"h": 3, "d": 5}}', '{"a.w": {"h": 0, "d": 4}}'])
def test_remembered_sizes_that_do_not_fit_are_an_error(sizes: str) -> None:
    after = apply(parse(MERGED["heads"][0]), checkpoint({"a/w": [2, 3, 4]}))
    after.metadata["ckptconv.params"] = f'{{"converter": "test", "params": {{}}, "sizes": {sizes}}}'
    with pytest.raises(LayoutError):
        apply(parse(MERGED["heads"][0]).inverse, after)


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeated", ["{x}/{x}", "{x}/{y}/{y}", "{x...}/b/{x...}/w"])
def test_repeated_captures_of_many_templates(repeated: str) -> None:
    """In one regular expression, where \\100 is the character @ and not the hundredth group."""
    templates = [template(f"layer{n}/{repeated}") for n in range(150)]
    matcher = Matcher([(t, {}) for t in templates])
    for n, t in enumerate(templates):
        values = {name: f"{name}{n}" for name in t.captures}
        found = matcher.first(t.render(values))
        assert found is not None
        assert (found.number, found.values) == (n, values)


@pytest.mark.parametrize(
    ("text", "name", "want"),
    [
        ("{x...}/k", "k", {"x": ""}),
        ("{x...}/k", "a/b.c/k", {"x": "a/b.c"}),
        ("a/{x...}/k", "a/k", {"x": ""}),
        ("a/{x...}", "a", {"x": ""}),
        ("l{x...}z", "l/z", {"x": "/"}),
        ("{x}/k", "a.b/k", None),
        ("{c}/{c}_1", "q/q_1", {"c": "q"}),
        ("{{x}}/{y}", "{x}/z", {"y": "z"}),
        ("a+(b)", "a+(b)", {}),
    ],
)
def test_templates(text: str, name: str, want: dict[str, str] | None) -> None:
    t = template(text)
    m = Matcher([(t, {})]).first(name)
    assert (m.values if m else None) == want
    if m:
        assert t.render(m.values) == name


# --- problems and purity ----------------------------------------------------------------------------------------


def test_an_include_stays_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in a stranger's folder would read a file of the user's."""
    home, theirs = tmp_path / "home", tmp_path / "theirs"
    home.mkdir()
    theirs.mkdir()
    (home / "private.toml").write_text(rule(from_="c", to="d"))
    (theirs / "mine.toml").write_text('include = ["parts"]\n' + rule(from_="a", to="b"))
    (theirs / "parts.toml").symlink_to(home / "private.toml")
    with pytest.raises(UsageError, match="include 'parts': is a link that leaves the folder"):
        library.load(theirs / "mine.toml")
    monkeypatch.setenv("CKPTCONV_LINKS", str(home))
    assert [r.label for r in library.load(theirs / "mine.toml").rules] == ["a -> b", "c -> d"]
    (theirs / "parts.toml").unlink()
    (theirs / "parts.toml").symlink_to("other.toml")  # inside it may be one
    (theirs / "other.toml").write_text(rule(from_="e", to="f"))
    (tmp_path / "way").symlink_to(theirs)
    assert [r.label for r in library.load(tmp_path / "way" / "mine.toml").rules] == ["a -> b", "e -> f"]


@pytest.mark.parametrize(
    ("name", "notes"), [("a", ["always", "of a and c"]), ("b", ["always"]), ("c", ["always", "of a and c"])]
)
def test_a_rule_has_its_own_note(name: str, notes: list[str]) -> None:
    """It is shown, once, where the rule takes a tensor, and not by the inverse."""
    rows = [
        f'[[rule]]\nfrom = "{a}"\nto = "{a}1"\noptional = true\n' + 'note = "of a and c"\n' * (a != "b") for a in "abc"
    ]
    converter = library.parse('notes = ["always"]\n' + "".join(rows), "noted")
    source = in_memory({name: np.zeros(1, "u1")})
    made = apply(converter, source)
    assert [n.text for n in made.notes if n.kind == "hint"] == notes
    back = apply(converter.inverse, made)
    assert [n.text for n in back.notes if n.kind == "hint"] == notes, "those of the way there"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("w/Adam", "slot"), ("a.b/w/adam_v", "slot"),
        ("m.w_slot_v", "slot"), ("absent/Adam", ""), ("Adam", ""), ("global_step", "step"),
        ("m/beta1_power_2", "step"), ("x/learning_rate", "state"), ("loss_scale", "state"),
        ("w/ExponentialMovingAverage", "average"), ("w/kernel", ""),
    ],
)  # fmt: skip
def test_roles_are_those_of_the_whole_name(name: str, role: str) -> None:
    assert passes.roles(in_memory(dict.fromkeys(("w", "m.w", name), 1)))[name].role == role


def test_the_end_of_a_name_and_the_next_name_are_not_a_wrapper() -> None:
    assert not names.add_hints(in_memory(dict.fromkeys(("a._orig_mod", "b", "c_orig_mod.d"), 1))).notes


@pytest.mark.parametrize(
    ("metadata", "escaped", "names"),
    [
        ({"a": "b", "ä": "ö"}, {"a": "b", "ä": "ö"}, ()),
        ({"a": "b\udcff", "c": "d"}, {"a": "b\\udcff", "c": "d"}, ("a",)),
        ({"\ud800": "\ud801", "c": "\udc80"}, {"\\ud800": "\\ud801", "c": "\\udc80"}, ("\\ud800", "c")),
    ],
)
def test_metadata_that_is_not_unicode_is_escaped(
    metadata: dict[str, str], escaped: dict[str, str], names: tuple[str, ...]
) -> None:
    before = in_memory({"w": 1}, metadata=metadata)
    found = passes.escape_metadata(before)
    assert dict(found.metadata) == escaped
    said = [(n.kind, n.text, n.names) for n in found.notes]
    assert said == ([("lossy", "metadata that is not valid Unicode is escaped", names)] if names else [])
    assert (found is before) is not bool(names)


def test_merged_checkpoints_keep_ties_and_urls() -> None:
    one = in_memory({"a": 1}, ties=(("a", "b"),), urls=("u",))
    two = in_memory({"c": 1}, ties=(("c", "d"),), urls=("v",))
    found = passes.merge([one, two])
    assert (list(found), found.ties, found.urls) == (["a", "c"], (("a", "b"), ("c", "d")), ("u", "v"))
    assert passes.merge([one]) is one


MOVED, PARAMS, KERAS = (f"ckptconv.{key}" for key in ("moved", "params", "keras"))


@pytest.mark.parametrize(
    ("sources", "kept", "dropped"),
    [
        ([{"k": "1", "x": "1"}, {"k": "2", "y": "2"}], {"k": "1", "x": "1", "y": "2"}, ("k",)),
        ([{PARAMS: "1"}, {PARAMS: "2"}], {}, (PARAMS,)),
        ([{}, {PARAMS: "1", MOVED: "2"}], {}, (PARAMS, MOVED)),
        ([{KERAS: "2"}, {KERAS: "1"}], {}, (KERAS,)),
    ],
)
def test_metadata_of_merged_checkpoints(
    sources: list[dict[str, str]], kept: dict[str, str], dropped: tuple[str, ...]
) -> None:
    """What converters recorded is dropped unless all say it; of all else the first is kept."""
    made = [in_memory({f"t{i}": 1}, metadata=metadata) for i, metadata in enumerate(sources)]
    found = passes.merge(made)
    assert dict(found.metadata) == kept
    assert [(n.kind, n.names) for n in found.notes] == ([("lossy", dropped)] if dropped else [])


def test_merged_checkpoints_keep_what_is_known_of_each_tensor() -> None:
    made = [
        in_memory(
            {n: 1},
            details={
                "kinds": {n: n, "gone": n},
                "inputs": {n: LayerInput("plain")},
                "keys": {n: [[n, "list"]]},
                "endianness": n,
            },
        )
        for n in "ab"
    ]
    found = passes.merge([in_memory({"c": 1}), *made])
    assert found.details == {
        "kinds": {"a": "a", "b": "b"},
        "inputs": {"a": LayerInput("plain"), "b": LayerInput("plain")},
        "keys": {"a": [["a", "list"]], "b": [["b", "list"]]},
    }
    assert passes.merge(made).details["endianness"] == "a"


RENAMED: dict[str, Callable[[Checkpoint], Checkpoint]] = {
    "scope": lambda c: passes.scope(c, "s"),
    "strip_prefix": lambda c: names.strip_prefixes(c, ["s/a/"]),
    "ema": lambda c: take_averages(passes.roles(passes.renamed(c, lambda n: f"{n}/{EMA}", ""))),
    "rename_regex": lambda c: names.rename_by_regex(c, ["^s/=t/", "^a=s/a"]),
    "rename": lambda c: library.change(c, None, ["a/k=s/a/k", "s/=t/"]),
    "rules": lambda c: apply(library.parse("[[rule]]\nfrom = '{x...}/k'\nto = 's/{x...}/k'", "test"), c),
}


@pytest.mark.parametrize("how", RENAMED)
def test_what_is_known_of_a_tensor_goes_with_it(how: str) -> None:
    """A scope called as a model within gave the layers of both each other's classes."""
    known = {"a/k": "dense", "s/a/k": "conv1d", "gone": "lstm"}
    whole = in_memory({n: np.ones(len(n)) for n in ("a/k", "s/a/k")}, details={"kinds": known})
    made = RENAMED[how](whole)
    assert {made[n].shape: kind for n, kind in made.details["kinds"].items()} == {(3,): "dense", (5,): "conv1d"}


def test_only_floats_are_cast() -> None:
    kinds = ("float64", "float16", "bfloat16", "int32", "bool", "complex64")
    before = in_memory({k: np.ones(1, DTYPES[k].dtype) for k in kinds})
    found = passes.cast(before, DTYPES["float16"])
    assert [t.dtype.name for t in found.values()] == ["float16", "float16", "float16", "int32", "bool", "complex64"]
    for kind in ("int8", "bool", "complex64", "string"):
        with pytest.raises(UsageError, match=f"dtype= takes a floating-point dtype, not {kind}: integers and"):
            passes.cast(before, DTYPES[kind])
