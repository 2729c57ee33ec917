"""From torch to Keras and Flax, by names and shapes: biases, gates and flattened images are right or asked about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit import in_memory

import ckptconv
from ckptconv.checkpoint.details import LayerInput
from ckptconv.errors import UsageError
from ckptconv.rules.apply import apply

pytest.importorskip("scipy", reason="matching by names is an extra")

RNG = np.random.default_rng(1)
Arrays = dict[str, np.ndarray[Any, Any]]


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype("f4")


def zrh(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    r, z, n = np.split(x, 3)
    return np.concatenate([z, r, n])


def cell(gates: int) -> Arrays:
    shapes = {"weight_ih": (6,), "weight_hh": (5,), "bias_ih": (), "bias_hh": ()}
    return {f"rnn.{role}_l0": drawn(gates * 5, *more) for role, more in shapes.items()}


def keras(t: Arrays, bias: np.ndarray[Any, Any], order: Any = np.asarray) -> Arrays:
    x, h, *_ = t.values()
    return {"rnn/kernel": order(x).T, "rnn/recurrent_kernel": order(h).T, "rnn/bias": bias}


def flax(t: Arrays) -> Arrays:
    x, h, one, other = t.values()
    out = {}
    for k, gate in enumerate("ifgo"):
        rows = slice(5 * k, 5 * k + 5)
        out |= {f"cell/i{gate}/kernel": x[rows].T, f"cell/h{gate}/kernel": h[rows].T}
        out[f"cell/h{gate}/bias"] = (one + other)[rows]
    return out


def summed(t: Arrays, inputs: str, state: str, bias: str) -> Arrays:
    x, h, one, other = t.values()
    return {f"cell/{inputs}/kernel": x.T, f"cell/{state}/kernel": h.T, f"cell/{bias}/bias": one + other}


LSTM, GRU, RNN = cell(4), cell(3), cell(1)
SHAPED = {"d.weight": drawn(24, 5), "d.bias": drawn(24), "t.weight": drawn(6, 4, 2, 2)}  # an image of six channels
MEAN = {"m.weight": drawn(5, 24)}
LISTED = {"mean/kernel": "m.weight", "dense/kernel": "d.weight", "dense/bias": "d.bias"}
IMAGE = {"c.weight": drawn(4, 3, 3, 3), "c.bias": drawn(4), "n.weight": drawn(36), "n.bias": drawn(36)}
IMAGE |= {"d.weight": drawn(8, 36), "d.bias": drawn(8)}


WIDE = {"c.weight": IMAGE["c.weight"], "d.weight": drawn(9, 36), "e.weight": drawn(36, 9), "f.weight": drawn(7, 36)}


CROSSED = {f"b.{i}.{n}": drawn(*shape) for i in "01" for n, shape in {
    "0.weight": (8, 5), "0.bias": (8,), "1.weight": (5, 8), "1.bias": (5,)}.items()}  # fmt: skip
BACK = {f"b_{n[2]}/Dense_{1 - int(n[4])}/{'kernel' if t.ndim > 1 else 'bias'}": t.T for n, t in CROSSED.items()}
NORMS = {f"{m}.{n}": drawn(8) for m in ("mlp.0.1", "mlp.1.1", "head.1") for n in ("weight", "bias")}
NORMED = dict(zip((f"norm{k}/{n}" for k in ("", "_1", "_2") for n in ("gamma", "beta")), NORMS.values(), strict=True))
BARE, BARE_BACK = ({n: t for n, t in side.items() if t.ndim > 1} for side in (CROSSED, BACK))


def plain(t: Arrays) -> Arrays:
    made = {"c/kernel": t["c.weight"].transpose(2, 3, 1, 0), "c/bias": t["c.bias"]}
    return made | {"n/gamma": t["n.weight"], "n/beta": t["n.bias"], "d/kernel": t["d.weight"].T, "d/bias": t["d.bias"]}


def turned(t: Arrays) -> Arrays:
    back = np.arange(36).reshape(4, 9).T.reshape(-1)
    made = plain(t)
    return made | {n: made[n][back] for n in ("n/gamma", "n/beta", "d/kernel")}


def taken(state: Any, height: int = 0, width: int = 0) -> dict[str, Any]:
    known = LayerInput(state, height, width)
    return {"inputs": {"d/kernel": known, "n/gamma": known, "n/beta": known}}


# what there is, what must come of it, what is known of the target, what is to look at
CASES: dict[str, tuple[Arrays, Arrays, dict[str, Any], set[str]]] = {
    "LSTM": (LSTM, keras(LSTM, LSTM["rnn.bias_ih_l0"] + LSTM["rnn.bias_hh_l0"]), {}, set()),
    "GRU": (GRU, keras(GRU, np.stack([zrh(GRU[f"rnn.bias_{x}_l0"]) for x in ("ih", "hh")]), zrh), {}, set()),
    "GRU, reset before": (GRU, keras(GRU, zrh(GRU["rnn.bias_ih_l0"] + GRU["rnn.bias_hh_l0"]), zrh), {}, {"rnn/bias"}),
    "Flax": (LSTM, flax(LSTM), {}, set()),
    "SimpleCell": (RNN, summed(RNN, "i", "h", "i"), {}, set()),
    "NNX": (LSTM, summed(LSTM, "dense_i", "dense_h", "dense_h"), {}, set()),
    "a decoder": (SHAPED, {"dense/kernel": SHAPED["d.weight"].reshape(6, 4, 5).swapaxes(0, 1).reshape(24, 5).T,
                           "dense/bias": SHAPED["d.bias"].reshape(6, 4).T.reshape(-1),
                           "conv2d_transpose/kernel": SHAPED["t.weight"].transpose(2, 3, 1, 0)},
                  {}, {"dense/kernel", "dense/bias"}),
    "a decoder, listed last": (SHAPED | MEAN,
                               {"conv2d_transpose/kernel": SHAPED["t.weight"].transpose(2, 3, 1, 0)}
                               | {n: (SHAPED | MEAN)[m].T for n, m in LISTED.items()},
                               {}, {"dense/kernel", "dense/bias"}),
    "a Flatten in the config": (IMAGE, turned(IMAGE), taken("flattened", 3, 3), set()),
    "no Flatten there": (IMAGE, plain(IMAGE), taken("plain"), set()),
    "shapes alone": (IMAGE, turned(IMAGE), {}, {"d/kernel", "n/gamma", "n/beta"}),
    "as tutorials call them": ({n: IMAGE[n] for n in IMAGE if n[0] != "n"},
                               {f"{n}/{'W' if m == 'kernel' else 'b'}_{n}": a for k, a in turned(IMAGE).items()
                                for n, m in [k.split("/")] if n != "n"}, {}, {"d/W_d"}),
    "a later layer has as many outputs": (WIDE, {f"{n[0]}/kernel": a.T if a.ndim == 2 else a.transpose(2, 3, 1, 0)
                                                 for n, a in reversed(WIDE.items())}, {}, {"d/kernel"}),
    "numbers cross": (CROSSED, BACK, {}, set()),
    "numbers cross, no bias tells": (BARE_BACK, BARE, {}, set()),
    "words in the order of the file": (NORMS, NORMED, {}, {*NORMED}),
    "biases fit other layers": (IMAGE, plain(IMAGE) | {"c/bias": IMAGE["d.bias"], "d/bias": IMAGE["c.bias"]},
                                taken("plain"), {"c/kernel", "c/bias", "d/kernel", "d/bias"}),
    "a bias is left over": (IMAGE, {n: a for n, a in plain(IMAGE).items() if n != "c/bias"}, taken("plain"),
                            {"c/kernel"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_right_or_asked_about(case: str) -> None:
    have, want, details, doubtful = CASES[case]
    source, target = in_memory(have), in_memory({n: drawn(*a.shape) for n, a in want.items()}, details=details)
    found = ckptconv.match(source, target, values=False)
    made = {n: t.numpy() for n, t in apply(found.converter, source).items()}
    assert {n: a.tobytes() for n, a in made.items()} == {n: a.tobytes() for n, a in want.items()}
    assert {n for p in found.proposal.doubtful for n in p.targets} == doubtful
    assert ("the feature map is permuted first: layout = " in found.rules) is ("sizes = { c = 4 }" in found.rules)
    if 'op = "sum"' in found.rules:
        with pytest.raises(UsageError, match="'sum' cannot be undone exactly"):
            _ = found.converter.inverse


def test_a_file_of_weights_does_not_say_where_its_flatten_is() -> None:
    have, want = ({n: a for n, a in side.items() if n[0] == "d"} for side in (IMAGE, plain(IMAGE)))
    details: Any = {"names": {"layers/flatten": "flatten"}, "kinds": dict.fromkeys(want, "dense")}
    target = in_memory({n: drawn(*a.shape) for n, a in want.items()}, details=details)
    found = ckptconv.match(have, target, values=False)
    assert [p.targets for p in found.proposal.doubtful] == [("d/kernel",)]
