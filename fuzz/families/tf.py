"""TensorFlow: bundles, V1 files, graphs, object graphs and SavedModels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from .common import FIXTURES, Laid, Record, Way, beside, folder, globbed, of_ways, packed, raw, records, several


def table(kind: str) -> Way:
    """Records are the entries of a sound table; of a bundle the first is the shard."""

    def lay(data: bytes, folder: Path) -> Laid:
        from ckptconv.formats.tensorflow.table import build

        pairs = records(data)
        if kind == "tf" and pairs:
            (folder / "x.data-00000-of-00001").write_bytes(pairs.pop(0)[1])
        (folder / "x.index").write_bytes(build(sorted(dict(pairs).items())))
        return folder / "x.index", kind

    def seeds() -> Iterator[bytes]:
        from ckptconv.errors import CkptError
        from ckptconv.formats.tensorflow.table import Table
        from ckptconv.storage.files import Reader

        where = ("tf/*.index", "tf/tf1/*.index", "hostile/tf/*.index", "originals/bert/*.index")
        for path in globbed(where if kind == "tf" else ("tf/v1", "tf/v1s-*")):
            shard = path.with_suffix(".data-00000-of-00001")
            data = shard.read_bytes() if shard.exists() else b""
            with suppress(CkptError), Reader(str(path)) as f:
                pairs = list(Table(f))
                yield packed([(b"", data), *pairs] if kind == "tf" else pairs)

    return Way(lay, seeds, packed=True)


def bundle(graph: bytes, named: Sequence[Record], path: Path) -> None:
    """Write a sound bundle of float32 vectors and an object graph."""
    from ckptconv.formats.tensorflow import elements, messages_pb2 as pb
    from ckptconv.formats.tensorflow.bundle import OBJECT_GRAPH
    from ckptconv.formats.tensorflow.table import build
    from ckptconv.storage.checksum import crc, mask

    entries, data = {b"": b"\x08\x01\x1a\x02\x08\x01"}, b""
    for name, body in named[:64]:
        body = body[: len(body) // 4 * 4]
        entry = pb.BundleEntryProto(dtype=1, offset=len(data), size=len(body), crc32c=mask(crc("crc32c", body)))
        entry.shape.dim.add(size=len(body) // 4)
        entries[name or b"x"], data = entry.SerializeToString(), data + body
    words, check = elements.pack([graph])
    entry = pb.BundleEntryProto(dtype=7, offset=len(data), size=len(words), crc32c=mask(check))
    entry.shape.SetInParent()
    entries[OBJECT_GRAPH.encode()] = entry.SerializeToString()
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".data-00000-of-00001").write_bytes(data + words)
    path.with_suffix(".index").write_bytes(build(sorted(entries.items())))


def taken_apart(index: Path) -> Iterator[Record]:
    """The object graph of a bundle, and its tensors' keys and bytes."""
    from ckptconv.formats.table import Reading
    from ckptconv.formats.tensorflow.bundle import read

    found, graph = read(str(index), Reading())
    yield b"", graph or b""
    yield from ((k.encode("utf-8", "surrogateescape"), t.numpy().tobytes()) for k, t in found.items()
                if t.dtype.kind != "s")  # fmt: skip


def object_graph(data: bytes, folder: Path) -> Laid:
    """The first record's b is the object graph; the others are variables."""
    pairs = records(data) or [(b"", b"")]
    bundle(pairs[0][1], pairs[1:], folder / "x.index")
    return folder / "x", "tf"


def object_graphs() -> Iterator[bytes]:
    return (packed(taken_apart(p)) for p in globbed(["tf/objects-1.index", "tf/keras3.index"]))


def saved_model(data: bytes, folder: Path) -> Laid:
    """The model, the object graph of its variables, the variables."""
    pairs = [*records(data), (b"", b""), (b"", b"")]
    (folder / "saved_model.pb").write_bytes(pairs[0][1])
    bundle(pairs[1][1], pairs[2:-2], folder / "variables" / "variables.index")
    return folder, "tf-graph"


def saved_models() -> Iterator[bytes]:
    home = FIXTURES / "tf" / "saved"
    model = (b"", (home / "saved_model.pb").read_bytes())
    yield packed([model, *taken_apart(home / "variables" / "variables.index")])


WAYS = (
    several(["x.index", "x.data-00000-of-00001", "x.meta"], "x", "tf",
            beside(["tf/[dkos]*.index", "tf/tf1/*.index", "hostile/tf/*.index"], ".data-00000-of-00001", ".meta")),
    table("tf"),
    raw("x", "tf-v1", "tf/v1", "tf/v1s-*"),
    table("tf-v1"),
    raw("x.pb", "tf-graph", "tf/*.pb", "hostile/tf/*.pb"),
    Way(object_graph, object_graphs, packed=True),
    Way(saved_model, saved_models, packed=True),
    folder("tf", "tf/tf1", "originals/bert", "tf/saved/variables", "hostile/tf/*"),
    folder(None, "tf/saved", "tf/tf1", "hostile/tf/*"),
    several(["x.index", "x.data-00000-of-00002", "x.data-00001-of-00002"], "x", "tf",
            beside(["tf/sharded.index"], ".data-00000-of-00002", ".data-00001-of-00002")),
)  # fmt: skip
CONSTANTS = (
    "table.TF_TABLE",
    "tensorflow.bundle.STATE",
    "tensorflow.bundle.OBJECT_GRAPH",
    "tensorflow.objects.VALUE",
    "tensorflow.objects.CONFIG",
    "tensorflow.objects.TRAINED",
    "tensorflow.objects.STEPS",
    "tensorflow.objects.STATES",
)
SPELLED = rb"Const Identity VarHandleOp value tensor_content /.OPTIMIZER_SLOT/ \xff\xff\xff\xff\xff\x01 \x10\x01"
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS)
