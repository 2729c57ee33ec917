"""GPT of 2018: all weights in one sequence of numbers, divided into .npy files at arbitrary positions.

    params_shapes.json            [[512, 768], [40478, 768], [1, 768, 2304], [2304], ...]
    params_0.npy ... params_9.npy one-dimensional; concatenated they are the weights in that order
    parameters_names.json         ["model/we:0", "model/h0/attn/c_attn/w:0", ...]    only if written by transformers

The weights are in the order in which the training code creates its variables; this order determines the names: twelve
for each layer, after the embeddings of positions and words, which that code keeps in one table `model/we`, words first.
Reading only. Source: openai/finetune-transformer-lm, model/ and train.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..checkpoint import Checkpoint, Note, Tensor, contiguous
from ..errors import CorruptCheckpoint
from ..moves.part import Part, Span, checked_count
from ..storage.files import Reader, Seen, join, names, read_all, sibling
from ..storage.json import parse_json
from .npy import MAX_HEAD, Head, parse_head
from .table import Reading

SHAPES, NAMES = "params_shapes.json", "parameters_names.json"
MAX_JSON = 2**20  # bytes of a list of shapes or names; the release has 2,000
MAX_FILES = 1000
LAYER = (
    "attn/c_attn/w", "attn/c_attn/b", "attn/c_proj/w", "attn/c_proj/b", "ln_1/g", "ln_1/b",
    "mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b", "ln_2/g", "ln_2/b",
)  # fmt: skip


class Numbers(NamedTuple):
    """The numbers of all files: the heads of the files, and how many numbers come before each, and in all."""

    urls: Sequence[str]
    heads: Sequence[Head]
    firsts: Sequence[int]

    def tensor(self, name: str, shape: tuple[int, ...], *starts: tuple[int, int]) -> Tensor:
        """The tensor with the numbers of each (start, count), one after the other."""
        kind = self.heads[0].kind
        assert kind is not None  # _numbers checks it
        if not prod(shape):
            return contiguous(name, kind, shape, Span(self.urls[0], self.heads[0].size, 0))
        parts, at = list[Part](), 0
        for start, count in starts:
            parts += self._parts(start, count, at)
            at += count
        return Tensor(name, kind, shape, tuple(parts))

    def _parts(self, start: int, count: int, at: int) -> Iterator[Part]:
        """The parts with `count` numbers from `start` on; they fill a tensor from its element `at` on."""
        for i in range(bisect_right(self.firsts, start) - 1, len(self.urls)):
            head, low = self.heads[i], max(start, self.firsts[i])
            n = min(start + count, self.firsts[i + 1]) - low
            if low >= start + count:
                return
            if n > 0 and head.kind:
                size = head.kind.itemsize
                data = Span(self.urls[i], head.size + (low - self.firsts[i]) * size, n * size)
                ops = ("swap",) if head.swapped else ()
                yield Part(data, head.kind, (n,), 0, (1,), at + low - start, (1,), ops)


def sniff(seen: Seen) -> int:
    return 3 if seen.is_dir and SHAPES in seen.files and "params_0.npy" in seen.files else 0


def open(url: str, how: Reading) -> Checkpoint:
    files = names(url)
    numbers, shapes = _numbers(url, files), _shapes(url)
    starts = [0, *accumulate(map(prod, shapes))]
    if numbers.firsts[-1] != starts[-1]:
        text = f"{SHAPES} needs {starts[-1]} numbers, but params_*.npy hold {numbers.firsts[-1]}"
        raise CorruptCheckpoint(text, url=url)
    known = _names(url, files, len(shapes))
    (positions, width), (words, _) = shapes[:2]
    tensors = [
        numbers.tensor(known[0], (words + positions, width), (starts[1], words * width), (0, positions * width)),
        *(
            numbers.tensor(name, shape, (start, prod(shape)))
            for name, shape, start in zip(known[1:], shapes[2:], starts[2:], strict=False)
        ),
    ]
    others = tuple(n for n in files if n not in (SHAPES, NAMES) and not n.startswith("params_"))
    notes = (Note("unread", "files that hold no weights", others, tensors=False),) if others else ()
    return Checkpoint({t.name: t for t in tensors}, format="gpt", urls=tuple(numbers.urls), notes=notes)


def _numbers(url: str, files: Sequence[str]) -> Numbers:
    """The files in order, all with the same dtype."""
    urls, heads, firsts = list[str](), list[Head](), [0]
    while len(urls) < MAX_FILES and (name := f"params_{len(urls)}.npy") in files:
        path = sibling(join(url, "."), name)
        with Reader(path) as f:
            head = parse_head(f.read(0, min(f.size, MAX_HEAD)), path)
            if head.kind is None or head.kind.kind == "s" or len(head.shape) != 1:
                raise CorruptCheckpoint(f"holds {head.descr}{list(head.shape)}, not a sequence of numbers", url=path)
            if head.size + head.nbytes != f.size:
                raise CorruptCheckpoint(f"needs {head.nbytes} bytes after byte {head.size} of {f.size}", url=path)
        urls.append(path)
        heads.append(head)
        firsts.append(firsts[-1] + head.shape[0])
        if head.kind != heads[0].kind:
            raise CorruptCheckpoint(f"holds {head.kind}, but earlier files hold {heads[0].kind}", url=path)
    if not urls:
        raise CorruptCheckpoint("has no params_0.npy beside the shapes", url=url)
    return Numbers(urls, heads, firsts)


def _json(url: str, name: str) -> list[object]:
    path = sibling(join(url, "."), name)
    rows = parse_json(read_all(path, MAX_JSON), path)
    if not isinstance(rows, list):
        raise CorruptCheckpoint("is not a list", url=path)
    return rows


def _shapes(url: str) -> list[tuple[int, ...]]:
    shapes = []
    for row in _json(url, SHAPES):
        if not isinstance(row, list) or not all(type(n) is int and n >= 0 for n in row):
            raise CorruptCheckpoint(f"{SHAPES} has the shape {str(row)[:80]}", url=url)
        checked_count(tuple(row), url=url)
        shapes.append(tuple(row))
    if len(shapes) < 2 or any(len(s) != 2 for s in shapes[:2]) or shapes[0][1] != shapes[1][1]:
        raise CorruptCheckpoint(f"{SHAPES} does not begin with the positions and the words", url=url)
    return shapes


def _names(url: str, files: Sequence[str], count: int) -> list[str]:
    """The names of all weights, words and positions together first."""
    if NAMES in files:
        known = [n.removesuffix(":0") for n in _json(url, NAMES) if isinstance(n, str)]
    else:
        layers = (count - 2) // len(LAYER)
        known = ["model/we", *(f"model/h{i}/{part}" for i in range(layers) for part in LAYER)]
    if len(known) != count - 1 or len(set(known)) != len(known):
        raise CorruptCheckpoint(f"{len(known)} names for {count} shapes (two of which are one weight)", url=url)
    return known
