"""What graphs, SavedModels and V1 tables may not say, one case for each check; and what they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from google.protobuf import text_format
from kit import refused

import ckptconv
from ckptconv.errors import UsageError
from ckptconv.formats.tensorflow import elements, graph as graphs, messages_pb2 as pb, table
from ckptconv.storage.checksum import mask

FLOAT, STRING, RESOURCE, VARIANT, QINT8 = 1, 7, 20, 21, 11
Dims = tuple[int, ...]


def shaped(shape: Dims) -> pb.TensorShapeProto:
    return pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=n) for n in shape])


def value(code: int, shape: Dims = (2,), **fields: Any) -> pb.TensorProto:
    return pb.TensorProto(dtype=code, tensor_shape=shaped(shape), **fields)


def const(name: str, tensor: pb.TensorProto) -> pb.NodeDef:
    node = pb.NodeDef(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tensor)
    return node


def graph(*nodes: pb.NodeDef, **functions: list[pb.NodeDef]) -> pb.GraphDef:
    made = [pb.FunctionDef(signature=pb.OpDef(name=n), node_def=inside) for n, inside in functions.items()]
    return pb.GraphDef(node=nodes, library=pb.FunctionDefLibrary(function=made))


def opened(path: Path, message: Any, **options: Any) -> ckptconv.Checkpoint:
    path.write_bytes(message if isinstance(message, bytes) else message.SerializeToString())
    return ckptconv.open(path, **options)


W = const("w", value(FLOAT, (2, 2), float_val=[1, 2, 3, 4]))

# --- graphs -------------------------------------------------------------------------------------------------------

GRAPHS: dict[str, tuple[Any, str]] = {
    "a variant of no rank": (
        graph(const("x", pb.TensorProto(dtype=FLOAT, tensor_shape=pb.TensorShapeProto(unknown_rank=True)))),
        "x.*: the constant has the unknown dtype 1 or no rank",
    ),
    "an unknown dtype": (graph(const("x", value(99))), "the constant has the unknown dtype 99 or no rank"),
    "one name twice": (graph(W, W), "two nodes have this name"),
    "half a complex number": (graph(const("x", value(8, scomplex_val=[1.0]))), "the constant ends within a complex64"),
    "numbers that repeat beyond bounds": (
        graph(*(const(f"x{i}", value(FLOAT, (2**15, 2**15), float_val=[0.5])) for i in range(2))), "4 bytes claim to be"
    ),
    "a shape that is negative": (graph(const("x", value(FLOAT, (-1,)))), "x: "),
    "content of another size": (graph(const("x", value(FLOAT, tensor_content=b"1234567"))), "has 7 bytes, not 8"),
    "a function of 301 characters": (graph(**{"f" * 301: [W]}), "a function has a name of 301 bytes"),
    "nothing": (b"", "is empty"),
    "a SavedModel by another name": (pb.SavedModel(saved_model_schema_version=1), "is not a GraphDef"),
    "something else": (b"\x18\1\x30\1", "is not a GraphDef; a SavedModel must be called saved_model.pb"),
}  # fmt: skip


@pytest.mark.parametrize("what", GRAPHS)
def test_graphs(what: str, tmp_path: Path) -> None:
    message, words = GRAPHS[what]
    with refused(words):
        opened(tmp_path / "g.pb", message)


def test_numbers_are_repeated_without_memory_and_keep_their_bits(tmp_path: Path) -> None:
    nans = np.array([0x7F800001, 0xFFA00000], "u4")
    raw = value(FLOAT).SerializeToString() + b"\x2a\x08" + nans.tobytes()
    splat = const("splat", value(FLOAT, (2**15, 2**15), float_val=[0.5]))
    found = opened(tmp_path / "g.pb", graph(const("nan", pb.TensorProto.FromString(raw)), splat))
    assert found["nan"].numpy().view("u4").tolist() == nans.tolist()
    assert found["splat"].nbytes == 2**32


def test_what_a_graph_may_hold(tmp_path: Path) -> None:
    """Text, quantised numbers, a handle, a function without a name or of 300 characters."""
    nameless = pb.FunctionDef(node_def=[W])
    made = graph(
        const("s", value(STRING, (2,), tensor_content=b"\1\2abb")),
        const("t", value(STRING, (2**30,), string_val=[b"a", b"b"])),
        const("q", value(QINT8, (2, 2), int_val=[1, -1, 2])),
        const("r", value(RESOURCE)),
        const("v", value(VARIANT)),
        **{"f" * 300: [W]},
    )
    made.library.function.append(nameless)
    found = opened(tmp_path / "g.pb", made)
    assert {n: t.numpy().tolist() for n, t in found.items()} == {
        "q": [[1, -1], [2, 2]], "f" * 300 + "/w": [[1, 2], [3, 4]], "/w": [[1, 2], [3, 4]],
    }  # fmt: skip
    notes = {n.text.split()[0]: n.names for n in found.notes}
    assert (notes["quantised"], notes["constants"]) == (("q",), ("s", "t"))


NUMBERS = {
    "number": value(FLOAT, (), float_val=[1]), "pair": value(FLOAT, (2,), float_val=[1]),
    "table": value(3, (9, 9), int_val=[1]), "quantised": value(QINT8, (2,), int_val=[1]),
}  # fmt: skip


# a constant `x`, what reads it (its name, its operation, its input), and whether `x` is a weight
@pytest.mark.parametrize(
    "case",
    """
    number     x/read Identity x   weight
    number     y/read Identity x   not
    number     r Identity x        not
    table      x/read Identity x   weight
    table      x/read Reshape x    not
    pair       r Reshape x         weight
    quantised  r Add x             weight
    """.strip().splitlines(),
)
def test_constants_are_weights_by_what_they_are(case: str, tmp_path: Path) -> None:
    kind, called, op, source, expected = case.split()
    nodes = [W, const("x", NUMBERS[kind]), pb.NodeDef(name=called, op=op, input=[source])]
    assert ("x" in opened(tmp_path / "g.pb", graph(*nodes))) is (expected == "weight")


def test_what_freezing_calls_a_weight_is_one(tmp_path: Path) -> None:
    name = "a/ReadVariableOp/resource"
    assert name in opened(tmp_path / "g.pb", graph(const(name, NUMBERS["number"])))


@pytest.mark.parametrize(("count", "spans"), [(15, False), (16, True), (17, True)])
def test_large_contents_stay_in_the_file(count: int, spans: bool, tmp_path: Path) -> None:
    content = np.arange(count, dtype="<f4")
    found = opened(tmp_path / "g.pb", graph(const("x", value(FLOAT, (count,), tensor_content=content.tobytes()))))
    assert (type(found["x"].parts[0].data).__name__ == "Span") is spans
    assert found["x"].numpy().tolist() == content.tolist()


def test_a_graph_as_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.pbtxt").write_text(str(graph(W)))
    with refused("is a graph as text, which is not read; write it as .pb"):
        ckptconv.open(tmp_path / "g.pbtxt")


# --- SavedModels --------------------------------------------------------------------------------------------------


def meta(*nodes: pb.NodeDef, tags: tuple[str, ...] = (), **fields: Any) -> pb.MetaGraphDef:
    return pb.MetaGraphDef(meta_info_def=pb.MetaGraphDef.MetaInfoDef(tags=tags), graph_def=graph(*nodes), **fields)


def model(folder: Path, *metas: pb.MetaGraphDef) -> ckptconv.Checkpoint:
    made = pb.SavedModel(saved_model_schema_version=1, meta_graphs=metas)
    return opened(folder / "saved_model.pb", made)


def test_the_graph_that_serves_is_read(tmp_path: Path) -> None:
    other = const("v", value(FLOAT, (2,), float_val=[1, 2]))
    assert list(model(tmp_path, meta(other, tags=("train",)), meta(W, tags=("gpu", "serve")))) == ["w"]
    found = model(tmp_path, meta(other, tags=("train",)), meta(W, tags=("gpu",)))
    assert (list(found), found.details["tags"]) == (["v"], ["train"])
    quantised = const("q", value(QINT8, (2, 2), int_val=[1]))
    assert any("quantised integers" in n.text for n in model(tmp_path, meta(quantised)).notes)


def test_messages_that_are_too_large_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = meta(W)
    described.object_graph_def.nodes.add().variable.name = "w"
    monkeypatch.setattr(graphs, "MAX_OBJECTS", 4)
    with refused("a message of [0-9]+ bytes is not a description"):
        model(tmp_path, described)
    monkeypatch.undo()
    with refused("the SavedModel holds no graph"):
        model(tmp_path)
    raw = pb.SavedModel(saved_model_schema_version=1).SerializeToString()
    broken = meta(W).SerializeToString() + b"\x3a\3\x0a\x05a"
    with refused("the object graph is not a valid message"):
        opened(tmp_path / "saved_model.pb", raw + b"\x12" + table.varint(len(broken)) + broken)


# --- V1 tables ----------------------------------------------------------------------------------------------------


def span(text: str) -> pb.TensorSliceProto:
    """A slice as `start,length` for each axis; `-` is a whole one."""
    made = pb.TensorSliceProto()
    for axis in text.split("x"):
        extent = made.extent.add()
        if axis != "-":
            extent.start, extent.length = map(int, axis.split(","))
    return made


def v1(path: Path, rows: str, consumer: int = 0) -> Path:
    """A table of tensors: a line each, of its name, dtype, shape (`.` for a scalar), and slices `span=values`."""
    head, pairs = pb.SavedTensorSlices(), {}
    head.meta.versions.min_consumer = consumer
    for name, code, sizes, *pieces in map(str.split, rows.strip().splitlines()):
        shape = shaped(tuple(map(int, sizes.split(","))) if sizes != "." else ())
        item = head.meta.tensor.add(name=name.encode(), type=int(code), shape=shape)
        for piece in pieces:
            where, _, values = piece.partition("=")
            item.slice.append(span(where))
            held = values.split(",") if values else []
            if int(code) == STRING:
                data = pb.TensorProto(string_val=[v.encode() for v in held])
            elif int(code) == QINT8:
                data = pb.TensorProto(int_val=map(int, held))
            else:
                data = pb.TensorProto(float_val=map(float, held))
            stored = pb.SavedTensorSlices(data=pb.SavedSlice(name=name.encode(), slice=span(where), data=data))
            pairs[elements.slice_key(name.encode(), span(where))] = stored.SerializeToString()
    path.write_bytes(table.build(sorted({b"": head.SerializeToString(), **pairs}.items())))
    return path


def test_what_a_table_may_hold(tmp_path: Path) -> None:
    rows = """
        w 1 2 -=1,2
        cut 1 2 0,1=1 1,1=2
        part 1 2 0,1=1
        ref 101 2 -=1,2
        q 11 2 -=1,-1
        s 7 2 -=a,bc
        r 20 .
        v 21 .
    """
    found = ckptconv.open(v1(tmp_path / "m.ckpt", rows, consumer=1))
    assert found.format == "tf-v1"
    assert {n: t.numpy().tolist() for n, t in found.items()} == {
        "w": [1, 2], "cut": [1, 2], "ref": [1, 2], "q": [1, -1], "s": [b"a", b"bc"],
    }  # fmt: skip
    assert {n.names for n in found.notes} == {("r", "v"), ("q",), ("part",)}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("w 99 2\nv 98 2", "2 tensors with an unknown dtype:\n *w"),
        ("w 1 2 -=1,2\nw 3 2", r"is \[2\] of dtype 3 here, \[2\]"),
        ("w 1 2 -=1,2\nw 1 3", r"is \[3\] of dtype 1 here, \[2\] of"),
        ("w 1 2 0,1=1 -=1,2", r"its chunk at \[0\] overlaps another"),
        ("w 1 2 1,2=1,2", r"a slice is outside \[2\]"),
        ("w 1 2 -x-=1", r"a slice is outside \[2\]"),
        ("w 1 2 1,-1=", r"a slice is outside \[2\]"),
        ("w 1 2 -1,1=", r"a slice is outside \[2\]"),
        ("w 1 2 -=1", "a slice has 1 elements, not 2"),
        ("s 7 2 -=a", "a slice has 1 elements, not 2"),
    ],
)
def test_tables(rows: str, words: str, tmp_path: Path) -> None:
    with refused(words):
        for t in ckptconv.open(v1(tmp_path / "m.ckpt", rows)).values():
            t.numpy()


def test_a_table_of_a_new_reader(tmp_path: Path) -> None:
    with refused("needs a reader of version 2; version 1 is supported"):
        ckptconv.open(v1(tmp_path / "m.ckpt", "w 1 2 -=1,2", consumer=2))


# --- the table, strings, slices -----------------------------------------------------------------------------------


def test_strings_of_a_bundle() -> None:
    assert elements.unpack(b"", 0, 0) == []
    packed, running = elements.pack([b"ab", b"c"])
    for data, count, words in (
        (packed[:1], 2, "2 strings do not fit in 1 bytes"),
        (b"\x82\x82", 2, "the lengths of 2 strings exceed their data"),
        (packed, 3, "3 strings take 13 bytes, 9 are stored"),
        (packed + b"d", 2, "2 strings take 9 bytes, 10 are stored"),
        (packed[:2] + b"\0" + packed[3:], 2, "the checksum of the strings' lengths is wrong"),
        (packed[:-1] + b"d", 2, "the checksum of the strings is wrong"),
    ):
        with refused(words):
            elements.unpack(data, count, running)


def test_a_prefix_is_text_which_the_state_file_quotes(tmp_path: Path) -> None:
    for name, words in (
        ("x\udcff.ckpt", "choose one that is valid Unicode"),
        ("checkpoint", "the prefix `checkpoint` is the name of the state file"),
        ("", "a TensorFlow checkpoint needs a prefix"),
    ):
        with pytest.raises(UsageError, match=words):
            ckptconv.save({"w": np.ones(2)}, f"{tmp_path}/{name}", to="tf")
        assert not [*tmp_path.iterdir()]
    base = 'a"\nmodel_checkpoint_path: "evil[x]*'
    ckptconv.save({"w": np.ones(2)}, tmp_path / base, to="tf")
    state = text_format.Parse((tmp_path / "checkpoint").read_text(), pb.CheckpointState())
    assert [state.model_checkpoint_path, *state.all_model_checkpoint_paths] == [base] * 2


@pytest.mark.xdist_group("tensorflow")
def test_quantised_numbers_are_those_of_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    for code, name in elements.QUANTISED.items():
        assert tf.dtypes.as_dtype(code).name == f"q{name}"
        assert elements.BY_CODE[code].name == name
    assert {tf.dtypes.as_dtype(code).name for code in elements.OPAQUE} == {"resource", "variant"}


# --- partitioned variables of a bundle --------------------------------------------------------------------------


def partitioned(folder: Path, listed: str, stored: str) -> Path:
    """A bundle with a float32 variable of 4 elements: the slices that are listed, and that are stored.

    A slice is `start,length`; one that is stored has a dtype and a shape.
    """
    pairs, data = [(b"", pb.BundleHeaderProto(num_shards=1).SerializeToString())], b""
    slices = [span(s) for s in listed.split()]
    whole = pb.BundleEntryProto(dtype=FLOAT, shape=shaped((4,)), slices=slices)
    pairs.append((b"w", whole.SerializeToString()))
    for piece in stored.split():
        extent, dtype, sizes = piece.split(":")
        shape = tuple(map(int, sizes.split(",")))
        raw = np.arange(len(data) // 4, len(data) // 4 + int(np.prod(shape)), dtype="<f4").tobytes()
        entry = pb.BundleEntryProto(
            dtype=int(dtype), shape=shaped(shape), offset=len(data), size=len(raw), crc32c=mask(crc32c(raw))
        )
        pairs.append((elements.slice_key(b"w", span(extent)), entry.SerializeToString()))
        data += raw
    (folder / "m.index").write_bytes(table.build(sorted(pairs)))
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return folder / "m"


@pytest.mark.parametrize(
    ("listed", "stored", "words"),
    [
        ("0,2 2,2", "0,2:1:2", r"the slice at \[2\] of size \[2\] is listed but not stored"),
        ("0,2 2,3", "0,2:1:2 2,2:1:2", r"a slice is outside \[4\]"),
        ("0,2 2,2", "0,2:1:2 2,2:3:2", r"at \[2\] of size \[2\] is stored with dtype 3 and shape \[2\]"),
        ("0,2 2,2", "0,2:1:2 2,2:1:1", r"at \[2\] of size \[2\] is stored with dtype 1 and shape \[1\]"),
        ("0,2 2,2", "0,2:1:2 2,2:1:2,1", r"at \[2\] of size \[2\] is stored with dtype 1 and shape \[2, 1\]"),
    ],
)
def test_slices_that_do_not_fit(listed: str, stored: str, words: str, tmp_path: Path) -> None:
    with refused(words):
        ckptconv.open(partitioned(tmp_path, listed, stored))["w"].numpy()
