"""GPT of 2018: all weights in one sequence of numbers, divided into .npy files at arbitrary positions.

    params_shapes.json            [[512, 768], [40478, 768], [1, 768, 2304], [2304], ...]
    params_0.npy ... params_9.npy one-dimensional; concatenated they are the weights in that order

The weights are in the order in which the training code creates its variables; this order determines the names
("model/we", "model/h0/attn/c_attn/w" ...; transformers keeps a list of the same in parameters_names.json): twelve
for each layer, after the embeddings of positions and words, which that code keeps in one table `model/we`, words first.
Reading only. Source: openai/finetune-transformer-lm, model/ and train.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from ..checkpoint import Checkpoint, Note, Tensor
from ..errors import CorruptCheckpoint
from ..moves.part import Part, Span, checked_count
from ..storage.files import Seen, names, read_all, within
from ..storage.json import parse_json
from .npy import located
from .table import Reading
from .tiling import cut

SHAPES = "params_shapes.json"
MAX_JSON = 2**20  # bytes of a list of shapes or names; the release has 2,000
MAX_FILES = 1000
LAYER = (
    "attn/c_attn/w", "attn/c_attn/b", "attn/c_proj/w", "attn/c_proj/b", "ln_1/g", "ln_1/b",
    "mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b", "ln_2/g", "ln_2/b",
)  # fmt: skip


def sniff(seen: Seen) -> int:
    return 3 if seen.is_dir and SHAPES in seen.files and "params_0.npy" in seen.files else 0


def open(url: str, how: Reading) -> Checkpoint:
    files = names(url)
    numbers, shapes = _numbers(url, files), _shapes(url)
    starts = [0, *accumulate(map(prod, shapes))]
    if (stored := numbers[-1].start + numbers[-1].shape[0]) != starts[-1]:
        raise CorruptCheckpoint(f"{SHAPES} needs {starts[-1]} numbers, but params_*.npy hold {stored}")
    known = [f"model/h{i}/{part}" for i in range((len(shapes) - 2) // len(LAYER)) for part in LAYER]
    (positions, width), (words, _) = shapes[:2]
    kind, table = numbers[0].dtype, (*cut(numbers, starts[1], starts[2]), *cut(numbers, 0, starts[1], words * width))
    tensors = [Tensor("model/we", kind, (words + positions, width), table)]
    for name, shape, start in zip(known, shapes[2:], starts[2:], strict=False):
        tensors.append(Tensor(name, kind, shape, tuple(cut(numbers, start, start + prod(shape)))))
    others = tuple(n for n in files if not n.startswith(("params_", "parameters_")))
    notes = (Note("unread", "files that hold no weights", others, tensors=False),) if others else ()
    urls = tuple(p.data.url for p in numbers if isinstance(p.data, Span))
    return Checkpoint({t.name: t for t in tensors}, format="gpt", urls=urls, notes=notes)


def _numbers(url: str, files: Sequence[str]) -> list[Part]:
    """The numbers of each file, in order, all with the same dtype; together they fill one sequence."""
    numbers, start = list[Part](), 0
    while len(numbers) < MAX_FILES and (name := f"params_{len(numbers)}.npy") in files:
        path = within(url, name)
        head, data = located(path)
        if isinstance(data, Checkpoint) or head.kind is None or len(head.shape) != 1:
            raise CorruptCheckpoint(f"holds {head.descr}{list(head.shape)}, not a sequence of numbers", url=path)
        ops = ("swap",) if head.swapped else ()
        numbers.append(Part(data, head.kind, head.shape, 0, (1,), start, (1,), ops))
        start += head.shape[0]
        if head.kind != numbers[0].dtype:
            raise CorruptCheckpoint(f"holds {head.kind}, but earlier files hold {numbers[0].dtype}", url=path)
    if not numbers:
        raise CorruptCheckpoint("has no params_0.npy beside the shapes")
    return numbers


def _shapes(url: str) -> list[tuple[int, ...]]:
    path = within(url, SHAPES)
    rows = parse_json(read_all(path, MAX_JSON), path)
    if not isinstance(rows, list):
        raise CorruptCheckpoint("is not a list", url=path)
    for row in rows:
        if not isinstance(row, list) or not all(type(n) is int and n > 0 for n in row):
            raise CorruptCheckpoint(f"{SHAPES} has the shape {str(row)[:80]}")
        checked_count(row)
    shapes = [tuple(row) for row in rows]
    if len(shapes) < 2 or any(len(s) != 2 for s in shapes[:2]) or shapes[0][1] != shapes[1][1]:
        raise CorruptCheckpoint(f"{SHAPES} does not begin with the positions and the words")
    if (len(shapes) - 2) % len(LAYER):
        raise CorruptCheckpoint(f"{SHAPES} has {len(shapes)} shapes, which are not those of whole layers")
    return shapes
