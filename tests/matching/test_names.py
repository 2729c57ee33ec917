"""What names say: their words and numbers, and which tensors they pair."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ckptconv.matching import pairs
from ckptconv.matching.names import likeness
from ckptconv.matching.names.likeness import Unique, items, words

pytest.importorskip("scipy", reason="matching by names is an extra")

# --- words ------------------------------------------------------------------------------------------------------------

WORDS = {
    "bert/encoder/layer_3/attention/self/query/kernel": "bert encoder layer # attention self query weight",
    "encoder.layers.3.attn.self.q.weight": "encoder layer # attention self query weight",
    "bn1/gamma:0": "norm # weight",
    "out:12/w": "output # weight",  # a colon and digits end a name of TensorFlow, and nothing else
    "batch_normalization_2/moving_variance": "norm # running_var",
    "conv2d_1/kernel": "conv # weight",
    "Conv3d_1/kernel": "conv # weight",
    "pool1d/x": "pool x",
    "a/b/_kernel": "a b weight",
    "a/__w": "a weight",
    "a/_": "a",
    "layer_norm/gamma": "norm weight",
    "LayerNorm/beta": "norm bias",
    "a/beta": "a norm bias",
    "layer_layer_norm/x": "layer norm x",
    "layer_norm_layer/x": "norm layer x",
    "layer_norm_x/y": "norm x y",
    "a/b/gamma": "a b norm weight",
    "norm/a/gamma": "norm a weight",
    "norm/a/b/gamma": "norm a b norm weight",
    "layer/norm/x": "layer norm x",
    "rnn.weight_ih_l0": "rnn weight_ih",
    "rnn.weight_ih_l0_reverse": "rnn backward weight_ih",
    "rnn.bias_hh_l12": "rnn bias_hh",
    "cell/recurrent_kernel": "cell weight_hh",
    "cell.Bias_IH": "cell bias_ih",
    "norm/~/mean_ema/average": "norm running_mean",
    "norm/var_ema/~/average": "norm running_var",
    "norm/var_ema/average/x": "norm var ema average x",
    "HTTPServer2/x": "http server # x",
    "tokens/glass/w": "token glass weight",
    "heads/gass/buds/x": "head gass buds x",  # four letters are no plural
    "bonus/basis/alias/x": "bonus basis alias x",
    "values/classes/x": "value classe x",
    "a..b//c/w": "a b c weight",
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    assert words(name) == tuple(WORDS[name].split())


SPELLED = {  # as one says it: as others do
    "attention": "attn att", "embeddings": "embedding emb", "norm": "layernorm ln bn batchnorm normalization",
    "layer": "layers", "block": "blocks", "dense": "linear fc", "conv": "conv2d conv1d convolution", "stage": "stages",
    "group": "groups", "expert": "experts", "cross": "crossattention", "query": "q", "key": "k", "value": "v",
    "output": "o out", "encoder": "encdec", "backward": "bw bwd reverse", "forward": "fw fwd",
    "mlp": "ff ffn feedforward", "depthwise": "dw dwconv", "pointwise": "pw", "separable": "sep", "position": "pos",
    "downsample": "shortcut", "gate": "router",
}  # fmt: skip
VARIABLES = {
    "weight": "kernel scale embeddings embedding w weights g", "bias": "b biases offset",
    "running_mean": "moving_mean mean", "running_var": "moving_variance var",
    "depthwise_weight": "depthwise_kernel", "pointwise_weight": "pointwise_kernel", "weight_hh": "recurrent_kernel",
    "bias_hh": "recurrent_bias",
}  # fmt: skip


@pytest.mark.parametrize("word", SPELLED)
def test_spellings_of_one_word(word: str) -> None:
    assert {words(f"{other}/x") for other in [word, *SPELLED[word].split()]} == {(word, "x")}


@pytest.mark.parametrize("word", VARIABLES)
def test_spellings_of_one_variable(word: str) -> None:
    assert {words(f"x/{other}") for other in VARIABLES[word].split()} == {("x", word)}


# --- likeness and assignment ------------------------------------------------------------------------------------------


# --- pairs ------------------------------------------------------------------------------------------------------------

Found = list[tuple[str, str, bool, tuple[str, ...], tuple[str, ...]]]
ORDER = "only the order of the names pairs them"


def paired(a: dict[str, object] | Sequence[str], b: dict[str, object] | Sequence[str]) -> Found:
    sides = [items(list(s), s if isinstance(s, dict) else dict.fromkeys(s)) for s in (a, b)]
    return [(n.a, n.b, n.sure, n.why, n.rivals) for n in likeness.by_likeness(*sides)]


def test_tensors_of_two_classes_are_never_paired() -> None:
    assert paired({"a/w": 1}, {"a.w": 2}) == []
    assert paired({"l_1/w": 1, "l_2/w": 2}, {"l.1.w": 2, "l.2.w": 1}) == [
        ("l_1/w", "l.2.w", False, (ORDER,), ()),
        ("l_2/w", "l.1.w", False, (ORDER,), ()),
    ]


def test_what_is_left_over_is_tried_again() -> None:
    """In the first round `one` and `two` want the same name, and the shapes of `three` differ."""
    a = {"enc/one/w": 1, "enc/two/w": 1, "three/w": 2}
    b = {"enc.one.w": 1, "dec.w": 1, "three.top.w": 2, "four.w": 3}
    found = paired(a, b)
    wanted = [("enc/one/w", "enc.one.w"), ("enc/two/w", "dec.w"), ("three/w", "three.top.w")]
    assert [(x, y) for x, y, *_ in found] == wanted


@pytest.mark.parametrize(
    ("a", "b", "others", "same"),
    [
        ("enc w", "enc w", [], True),
        ("enc w", "dec w", [], True),  # words that one side alone uses say nothing
        ("enc w", "dec w", ["enc x", "dec x"], False),
        ("model enc w", "enc w", [], True),
        ("enc a w", "enc w", ["a x"], False),  # `a` stands between
        ("a enc w", "enc w", ["a x"], True),
        ("enc enc w", "enc w", [], True),  # a name that repeats itself is read once
        ("a b a b w", "a b w", [], True),
        ("u", "v", [], False),  # nothing in common
        ("enc w", "enc w", ["top enc w", "top x"], False),  # another name ends so
    ],
)
def test_names_that_say_the_same(a: str, b: str, others: list[str], same: bool) -> None:
    """`others` are names of both sides besides the two."""
    sides = [[pairs.Item(t, tuple(t.split()), (), None, 0) for t in (x, *others)] for x in (a, b)]
    assert Unique(*sides)(a.split(), b.split()) is same
    assert Unique(*sides)(b.split(), a.split()) is same


def test_a_bias_is_not_taken_for_a_weight() -> None:
    found = paired(["a/gamma", "b/beta"], ["c.bias", "d.weight"])
    assert {(a, b) for a, b, *_ in found} == {("a/gamma", "d.weight"), ("b/beta", "c.bias")}
