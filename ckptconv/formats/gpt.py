"""GPT of 2018: all weights in one sequence of numbers, divided into .npy files at arbitrary positions.

    params_shapes.json            [[512, 768], [40478, 768], [1, 768, 2304], [2304], ...]
    params_0.npy ... params_9.npy one-dimensional; concatenated they are the weights in that order
    parameters_names.json         ["model/we:0", "model/h0/attn/c_attn/w:0", ...]    only if written by transformers

The weights are in the order in which the training code creates its variables; this order determines the names: twelve
for each layer, after the embeddings of positions and words, which that code keeps in one table `model/we`, words first.
Reading only. Source: openai/finetune-transformer-lm, model/ and train.py.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from math import prod
from operator import attrgetter
from typing import NamedTuple

from ..checkpoint import Checkpoint, Note, Tensor
from ..dtypes import DType
from ..errors import CorruptCheckpoint
from ..moves.part import Part, Span, c_strides, checked_count
from ..storage.files import Reader, Seen, join, names, read_all, sibling
from .npy import MAX_HEAD, parse_head
from .table import Reading

SHAPES, NAMES = "params_shapes.json", "parameters_names.json"
MAX_JSON = 2**20  # bytes of a list of shapes or names; the release has 2,000
MAX_FILES = 1000
LAYER = (
    "attn/c_attn/w", "attn/c_attn/b", "attn/c_proj/w", "attn/c_proj/b", "ln_1/g", "ln_1/b",
    "mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b", "ln_2/g", "ln_2/b",
)  # fmt: skip


class ParamsFile(NamedTuple):
    """One file: `length` elements from `first` on, after a head of `skip` bytes."""

    url: str
    skip: int
    first: int
    length: int
    kind: DType
    swapped: bool


def sniff(seen: Seen) -> int:
    return 3 if seen.is_dir and SHAPES in seen.files and "params_0.npy" in seen.files else 0


def open(url: str, how: Reading) -> Checkpoint:
    files = names(url)
    pieces = _pieces(url, files)
    shapes = _shapes(url)
    stored, needed = pieces[-1].first + pieces[-1].length, sum(map(prod, shapes))
    if stored != needed:
        raise CorruptCheckpoint(f"{SHAPES} needs {needed} numbers, but params_*.npy hold {stored}", url=url)
    known = _names(url, files, len(shapes))
    starts = [0]
    for shape in shapes:
        starts.append(starts[-1] + prod(shape))
    (positions, width), (words, _) = shapes[:2]
    table = [*_parts(pieces, starts[1], words * width, 0), *_parts(pieces, 0, positions * width, words * width)]
    tensors = [Tensor(known[0], pieces[0].kind, (words + positions, width), tuple(table))]
    for name, shape, start in zip(known[1:], shapes[2:], starts[2:], strict=False):
        tensors.append(Tensor(name, pieces[0].kind, shape, tuple(_parts(pieces, start, prod(shape), 0))))
    others = tuple(n for n in files if n not in (SHAPES, NAMES) and not n.startswith("params_"))
    notes = (Note("unread", "files that hold no weights", others, tensors=False),) if others else ()
    urls = tuple(p.url for p in pieces)
    return Checkpoint({t.name: t for t in tensors}, format="gpt", urls=urls, notes=notes)


def _pieces(url: str, files: Sequence[str]) -> list[ParamsFile]:
    """The files in order, all with the same dtype."""
    pieces: list[ParamsFile] = []
    while len(pieces) < MAX_FILES and (name := f"params_{len(pieces)}.npy") in files:
        path = sibling(join(url, "."), name)
        with Reader(path) as f:
            head = parse_head(f.read(0, min(f.size, MAX_HEAD)), path)
            if head.kind is None or head.kind.kind == "s" or len(head.shape) != 1:
                raise CorruptCheckpoint(f"holds {head.descr}{list(head.shape)}, not a sequence of numbers", url=path)
            if head.size + head.nbytes != f.size:
                raise CorruptCheckpoint(f"needs {head.nbytes} bytes after byte {head.size} of {f.size}", url=path)
        first = pieces[-1].first + pieces[-1].length if pieces else 0
        pieces.append(ParamsFile(path, head.size, first, head.shape[0], head.kind, head.swapped))
        if head.kind != pieces[0].kind:
            raise CorruptCheckpoint(f"holds {head.kind}, but earlier files hold {pieces[0].kind}", url=path)
    if not pieces:
        raise CorruptCheckpoint("has no params_0.npy beside the shapes", url=url)
    return pieces


def _parts(pieces: Sequence[ParamsFile], start: int, count: int, at: int) -> Iterator[Part]:
    """The parts with `count` numbers from `start` on; they fill a tensor from its element `at` on."""
    first = max(0, bisect_right(pieces, start, key=attrgetter("first")) - 1)
    for p in takewhile(lambda p: p.first < start + count, islice(pieces, first, None)):
        low, high = max(start, p.first), min(start + count, p.first + p.length)
        if low < high:
            size = p.kind.itemsize
            data = Span(p.url, p.skip + (low - p.first) * size, (high - low) * size)
            ops = ("swap",) if p.swapped else ()
            yield Part(data, p.kind, (high - low,), 0, (1,), at + low - start, (1,), ops)
    if not count:
        yield Part(
            Span(pieces[0].url, pieces[0].skip, 0), pieces[0].kind, (0,), 0, c_strides((0,)), at, c_strides((0,))
        )


def _json(url: str, name: str) -> list[object]:
    path = sibling(join(url, "."), name)
    try:
        rows = json.loads(read_all(path, MAX_JSON))
    except (ValueError, RecursionError) as e:
        raise CorruptCheckpoint("is not JSON", url=path) from e
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
