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
    }  # fmt: skip
    return Checkpoint({n: held(n, np.zeros(s, "f4")) for n, s in names.items()})


def attempt(data: bytes, home: Path) -> int:
    """Parse rules, lint them, apply them both ways."""
    from ckptconv.errors import CkptError
    from ckptconv.rules.lint import lint
    from ckptconv.rules.toml import parse

    made = parse(data.decode("utf-8", "replace"), "fuzzed")
    takes(made, sample())
    lint(made)
    for one in (lambda: made, lambda: made.inverse):
        with suppress(CkptError):
            apply(one(), sample())
    return len(made.rules)


def seeds() -> Iterator[bytes]:
    """The shipped converters, and rule files that attack."""
    files = [*sorted(CONVERTERS.glob("*.toml")), *globbed(["hostile/rules/*.toml"])]
    return (s for p in files if len(s := p.read_bytes()) <= LARGEST)


SPELLED = (
    b"[[rule]] from to where layout sizes op [[tie]] names if [detect] all any none include [params] {i} "
    b"{x...} {e*} -> (h+d) + i rewrite let fill rank unless kind shared optional one_way separators "
    b"[count] [axes] [[refuse]] equal why"
)
FAMILY = Family(attempt, seeds, SPELLED)
