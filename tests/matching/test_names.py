"""What names say: their words, and whether two say the same."""

from __future__ import annotations

import numpy as np
import pytest

from ckptconv.checkpoint import Checkpoint, held
from ckptconv.matching.likeness import words
from ckptconv.matching.proposal import propose as match

pytest.importorskip("scipy", reason="matching by names is an extra")

# --- words ------------------------------------------------------------------------------------------------------------

WORDS = {
    "bert/encoder/layer_3/attention/self/query/kernel": "bert encoder layer # attention self query weight",
    "encoder.layers.3.attn.self.wq.weight": "encoder layer # attention self query weight",
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


# --- names that say the same ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "others", "same"),
    [
        ("enc/w", "enc.weight", [], True),
        ("enc/w", "dec.weight", [], False),  # nothing in common
        ("enc/w", "dec.weight", ["enc/x", "dec/x"], False),
        ("model/enc/w", "enc.weight", [], True),
        ("enc/a/w", "enc.weight", ["a/x"], False),  # `a` stands between
        ("a/enc/w", "enc.weight", ["a/x"], True),
        ("enc/enc/w", "enc.weight", [], True),  # a name that repeats itself is read once
        ("a/b/a/b/w", "a.b.weight", [], True),
        ("enc/w", "enc.weight", ["top/enc/w", "top/x/w"], False),  # another name ends so
        ("t/layer_0/pre_attention_norm/w", "layers.0.post_attention_norm.weight", ["a/x"], False),
        ("net/enc/left/proj/w", "net.enc.mine.proj.weight", ["a/x"], False),  # other words in one place
        ("net/enc/big/proj/w", "net.enc.proj.weight", [], True),  # a word more
        ("bert/enc/proj/w", "model.enc.proj.weight", [], True),  # the name of the model
        ("cls/hid/w", "box.hid.weight", ["a/x", "b/x"], False),
        ("left/enc/proj/w", "right.enc.proj.weight", ["a/x"], False),
        ("enc/layer_1/w", "enc.layers.2.weight", [], False),  # block 1 is not block 2
    ],
)
def test_names_that_say_the_same(a: str, b: str, others: list[str], same: bool) -> None:
    """`others` are names of both sides besides the two; their shape is another one."""
    sides = [
        {n: held(n, np.full((5, 7) if n in others else ((4, 6), (6, 4))[k], k, "f4")) for n in (x, *others)}
        for k, x in enumerate((a, b))
    ]
    found = match(*map(Checkpoint, sides), values=False)
    assert [p.sure for p in found.pairs if p.sources == (a,)] == [same]


def test_tensors_of_two_shapes_are_never_paired() -> None:
    a, b = ({n: held(n, np.ones(s, "f4")) for n, s in side.items()} for side in (
        {"l_1/w": (2, 3), "l_2/w": (4, 5), "l_3/w": (7, 7)}, {"l.1.w": (4, 5), "l.2.w": (2, 3), "l.3.w": (8, 9)}
    ))  # fmt: skip
    found = match(Checkpoint(a), Checkpoint(b), values=False)
    assert [(*p.sources, *p.targets, p.sure) for p in found.pairs] == [
        ("l_1/w", "l.2.w", False), ("l_2/w", "l.1.w", False),
    ]  # fmt: skip
