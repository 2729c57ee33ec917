"""Rule files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ckptconv.rules.apply import apply
from ckptconv.rules.assign import takes

from .common import CONVERTERS, LARGEST, Family, globbed


@lru_cache
def sample() -> Any:
    """A checkpoint with names of a few families, small."""
    import numpy as np

    from ckptconv.checkpoint import Checkpoint, held

    names = {
        "bert/embeddings/word_embeddings": (5, 4), "bert/encoder/layer_0/attention/self/query/kernel": (4, 4),
        "bert/encoder/layer_0/attention/self/query/bias": (4,), "bert/encoder/layer_1/output/LayerNorm/gamma": (4,),
        "model.layers.0.mlp.weight": (4, 2), "conv/kernel": (3, 3, 2, 4), "a" * 500: (1,),
        "stack/q": (3, 4, 2, 2), "stack/kv": (3, 4, 1, 2), "layer_0/e_0/w": (4, 4), "layer_1/e_0/w": (4, 4),
        "layer_1/e_1/w": (4, 2),
    }  # fmt: skip
    return Checkpoint({n: held(n, np.zeros(s, "f4")) for n, s in names.items()})


def attempt(data: bytes, home: Path) -> int:
    """Parse rules, lint them, apply them both ways."""
    from ckptconv.errors import CkptError
    from ckptconv.rules.library import lint
    from ckptconv.rules.toml import parse

    made = parse(data.decode("utf-8", "replace"), "fuzzed")
    takes(made, sample())
    lint(made)
    for one in (lambda: made, lambda: made.inverse):
        with suppress(CkptError):
            apply(one(), sample())
    return len(made.rules)


COUNTED = rb"""# what counts in the names of the sample, axes that are equally long, and what is another's model
[params]
heads = { of = "stack/q", axis = 2 }
kv_heads = { of = "stack/kv", axis = -2 }
layers = { config = "num_hidden_layers" }
experts = { config = "experts" }
head_size = { config = "head_dim" }
width = { of = "stack/q", axis = 1 }
[count]
"model.layers.{l*}" = "layers"
"layer_{l}" = "layers"
"layer_{l}/e_{e}" = "experts"
[axes]
k = "head_size"
d = "width"
[[refuse]]
equal = ["heads", "kv_heads"]
why = "groups"
[[refuse]]
equal = ["width", 5]
why = "sizes"
[[rule]]
from = "stack/{c}"
to = "model.layers.{l*}.{c}.weight"
layout = "l d h k -> (h k) d"
[[rule]]
from = "layer_{l}/e_{e}/w"
to = "model.layers.{l}.experts.{e}.weight"
layout = "d k -> k d"
[[rule]]
from = "{x...}"
to = "{x...}"
"""


def seeds() -> Iterator[bytes]:
    """The shipped converters, rule files that attack, and one that takes the sample."""
    files = [*sorted(CONVERTERS.glob("*.toml")), *globbed(["hostile/rules/*.toml"])]
    yield COUNTED
    yield from (s for p in files if len(s := p.read_bytes()) <= LARGEST)


SPELLED = (
    b"[[rule]] from to where layout sizes op [[tie]] names if [detect] all any none include [params] {i} "
    b"{x...} {e*} -> (h+d) + i rewrite let fill rank unless kind shared optional one_way "
    b"[count] [axes] [[refuse]] equal why"
)
FAMILY = Family(attempt, seeds, SPELLED)
