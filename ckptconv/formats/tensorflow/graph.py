"""SavedModels, .meta files and frozen graphs.

    folder/saved_model.pb         SavedModel { schema version, meta_graphs { info, graph_def, collections, objects } }
    folder/variables/variables.*  a V2 checkpoint (bundle.py); none if all weights are constants
    P.meta                        MetaGraphDef: a training graph; its values are in the V2 checkpoint P
    graph.pb                      GraphDef: frozen, weights are Const nodes (nodes.py)

.pbtxt is any of these as text. Specification: tensorflow/core/protobuf/{saved_model,meta_graph}.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint
from ...errors import CorruptCheckpoint, StorageError
from ...messages import brief
from ...storage.files import Reader, Seen, exists, is_dir, join, read_all, sibling, split
from ...storage.ranges import InMemory, Ranges
from ..reading import Reading
from ..signatures import SAVED_MODELS
from . import locate, saved_model
from .saved_model import Regions, constants
from .table import read_varint
from .wire import fields, messages

FORMAT = "tf-graph"
TEXT_LIMIT = 1 << 28  # text is parsed in memory, by Python
MAX_LINE = 2**14  # characters
_BETWEEN = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}<>\[\],;\s]""")
TEXT = (b"node {", b"meta_info_def {", b"graph_def {", b"saved_model_schema_version", b"meta_graphs {", b"versions {")


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if any(name in seen.files for name in SAVED_MODELS) else 0
    if seen.base in SAVED_MODELS:
        return 3 if seen.size else 1
    if seen.base.endswith(".pbtxt"):
        return 2 if any(word in seen.head for word in TEXT) else 1
    if seen.base.endswith(".meta"):
        return 2 if seen.head[:1] == b"\n" else 0
    if _first_node(seen.head):
        return 2
    return int(seen.base.endswith(".pb") and seen.size > 0)


def open(url: str, how: Reading) -> Checkpoint:
    """Open a SavedModel, .meta or GraphDef; `how.opaque` reads every constant, weight or not."""
    if is_dir(url):
        url = sibling(join(url, "."), next((n for n in SAVED_MODELS if exists(join(url, n))), SAVED_MODELS[0]))
    with _message(url) as f:
        regions = _regions(f)
        if regions.saved_model:
            return saved_model.open(url, f, regions, how.opaque)
        checkpoint = constants(f, regions, how.opaque)
        details = saved_model.collections(f, *regions.meta) if regions.meta else {}
        if details and not how.opaque:
            index = split(locate.prefix_of(url))[1] + ".index"
            raise StorageError(f"holds a graph but no weights; they are in {index}, which is missing", url=url)
    return replace(checkpoint, details={**checkpoint.details, **details})


# --- what kind of message ---------------------------------------------------------------------------------------


@contextmanager
def _message(url: str) -> Iterator[Ranges]:
    """A file in binary form; text is parsed and serialized in memory."""
    if not url.endswith("txt"):
        with Reader(url) as f:
            yield f
        return
    from google.protobuf import text_format

    from . import messages_pb2 as pb

    text = read_all(url, TEXT_LIMIT)
    kind: type[Any] = pb.GraphDef
    if b"saved_model_schema_version" in text or b"meta_graphs {" in text:
        kind = pb.SavedModel
    elif b"meta_info_def {" in text or b"graph_def {" in text:
        kind = pb.MetaGraphDef
    try:
        message = text_format.Parse(_broken_up(text.decode()), kind(), allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as e:  # ValueError: a number beyond its field, no UTF-8
        raise CorruptCheckpoint(f"is not the text of a {kind.__name__} ({brief(str(e))})", url=url) from e
    yield InMemory(url, message.SerializeToString())


def _broken_up(text: str) -> str:
    """A text whose long lines are broken between tokens: the parser copies a line for each unknown field in it."""
    return _BETWEEN.sub(r"\g<0>\n", text) if max(map(len, text.split("\n"))) > MAX_LINE else text


def _regions(f: Ranges) -> Regions:
    """Distinguish the three messages by their first fields."""
    if not f.size:
        raise CorruptCheckpoint("is empty (0 bytes)", url=f.url)
    head = f.read(0, min(4096, f.size))
    if head.startswith(b"version https://git-lfs"):
        raise CorruptCheckpoint("is a git-lfs pointer; run `git lfs pull` in its repository", url=f.url)
    if _first_node(head):
        return Regions((), (0, f.size), False)
    top = list(fields(f, 0, f.size))
    second = [(x.start, x.start + x.size) for x in top if x.number == 2 and x.wire == 2]
    if top[0].number == 1 and top[0].wire == 0:
        return _served(f, second)
    if len(second) == 1 and _is_graph(f, *second[0]):
        return Regions((0, f.size), second[0], False)
    if all(x.wire == 2 or x.number == 3 for x in top) and {x.number for x in top} <= {1, 2, 3, 4, 5}:
        return Regions((), (0, f.size), False)
    raise CorruptCheckpoint("is not a GraphDef, MetaGraphDef or SavedModel", url=f.url)


def _served(f: Ranges, metas: list[tuple[int, int]]) -> Regions:
    """The regions of a SavedModel: the first meta graph with the tag `serve`, otherwise the first one."""
    tagged = [(_tags(f, *m), m) for m in metas]
    if not tagged:
        raise CorruptCheckpoint("the SavedModel holds no graph", url=f.url)
    tags, meta = next((pair for pair in tagged if "serve" in pair[0]), tagged[0])
    return Regions(meta, next(messages(f, *meta, 2), ()), True, tags)


def _is_graph(f: Ranges, start: int, end: int) -> bool:
    return start == end or _first_node(f.read(start, min(4096, end - start)))


def _first_node(head: bytes) -> bool:
    """Whether a message begins with a node: field 1 that begins with a name (field 1) and an op (field 2)."""
    try:
        if head[0] != 0x0A:
            return False
        at = read_varint(head, 1)[1]
        if head[at] != 0x0A:
            return False
        size, at = read_varint(head, at + 1)
        at += size
        if not size or head[at] != 0x12:
            return False
        size, at = read_varint(head, at + 1)
        op = head[at : at + size]
        return 0 < len(op) == size and op.replace(b"_", b"").replace(b">", b"").replace(b".", b"").isalnum()
    except IndexError:
        return False


def _tags(f: Ranges, start: int, end: int) -> tuple[str, ...]:
    info = next(messages(f, start, end, 1), None)
    if info is None:
        return ()
    return tuple(f.read(a, b - a).decode("utf-8", "replace") for a, b in messages(f, *info, 4))
