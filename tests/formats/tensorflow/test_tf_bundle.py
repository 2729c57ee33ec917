"""V2 checkpoints against the real TensorFlow: what it writes we read, what we write it restores, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from google.protobuf import text_format
from kit import Later, refused, same

import ckptconv
from ckptconv.dtypes import DTYPES, dtype
from ckptconv.errors import Unrepresentable
from ckptconv.formats.tensorflow import messages_pb2 as pb, table
from ckptconv.storage.checksum import mask
from ckptconv.storage.files import Reader

pytestmark = pytest.mark.xdist_group("tensorflow")
tf = Later("tensorflow")

KINDS = [k for k, d in DTYPES.items() if d.tf and d.kind != "s"]
LOW = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}


def random(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """All bit patterns alike: NaNs, infinities, subnormals and -0.0 among them."""
    rng = np.random.default_rng(seed)
    row = dtype(kind)
    raw = rng.integers(0, 256, (*shape, row.itemsize), dtype="u1")
    if kind == "bool":
        raw &= 1
    if kind in LOW:
        raw &= (1 << LOW[kind]) - 1
        if kind.startswith("int"):
            raw = (raw << (8 - LOW[kind])).view("i1") >> (8 - LOW[kind])
    return np.ascontiguousarray(raw).view(row.dtype).reshape(shape)


def save(prefix: Path | str, arrays: dict[str, np.ndarray]) -> None:
    values = [tf.constant(v) for v in arrays.values()]
    whole = [""] * len(arrays)
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=list(arrays), shape_and_slices=whole, tensors=values)


def save_parts(prefix: Path, name: str, parts: dict[str, np.ndarray]) -> None:
    """Save a variable by its parts, each with its specification."""
    values = [tf.constant(v) for v in parts.values()]
    names = [name] * len(parts)
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=list(parts), tensors=values)


def writable(kind: str) -> bool:
    try:
        tf.constant(np.zeros(1, dtype(kind).dtype))
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def pairs_of(prefix: Path) -> dict[bytes, bytes]:
    with Reader(f"{prefix}.index") as f:
        return dict(table.Table(f))


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_dtypes_and_shapes(tmp_path, kind):
    if not writable(kind):
        pytest.skip(f"this TensorFlow has no {kind}")
    shapes = [(), (1,), (0,), (3, 5), (0, 4), (2, 0, 3), (2, 3, 4), (1, 1, 1, 1, 7)]
    arrays = {f"t{i}": random(kind, s, i) for i, s in enumerate(shapes)}
    save(tmp_path / "m", arrays)
    found = ckptconv.open(tmp_path / "m")
    assert {k: (str(t.dtype), t.shape) for k, t in found.items()} == {k: (kind, v.shape) for k, v in arrays.items()}
    for name, array in arrays.items():
        assert same(found[name].numpy(), array), name


def test_thousands_of_variables_and_odd_names(tmp_path):
    odd = [" ", "a:0", "é/ü", "a//b", ".", "x" * 70_000, "\x01", "a\nb", "\0nul", "0", "A"]
    arrays = {n: np.array([i], "i4") for i, n in enumerate([*odd, *(f"scope_{i % 7}/v{i}" for i in range(6000))])}
    save(tmp_path / "m", arrays)
    found = ckptconv.open(tmp_path / "m")
    assert set(found) == set(arrays)
    assert list(found) == sorted(arrays, key=str.encode)
    assert all(found[n].numpy() == arrays[n] for n in [*odd, "scope_3/v3"])


@pytest.mark.parametrize("parts", [(1, 1), (3, 1), (1, 2), (7, 1), (2, 3)])
def test_partitioned_variables(tmp_path, parts):
    array = random("float64", (7, 5), 1)
    rows, columns = (np.array_split(range(n), p) for n, p in zip(array.shape, parts, strict=True))
    boxes = [(r[0], len(r), c[0], len(c)) for r in rows for c in columns]
    pieces = {f"7 5 {a},{m}:{b},{n}": array[a : a + m, b : b + n] for a, m, b, n in boxes}
    save_parts(tmp_path / "m", "net/w", pieces)
    found = ckptconv.open(tmp_path / "m")
    assert list(found) == ["net/w"]
    assert same(found["net/w"].numpy(), array)
    assert same(found["net/w"].numpy(), tf.train.load_checkpoint(str(tmp_path / "m")).get_tensor("net/w"))


@pytest.mark.parametrize("kind", ["float16", "uint16", "uint32", "bfloat16", "complex128", "bool", "int64", "string"])
def test_partitions_of_types_that_tensorflow_cannot_join(tmp_path, kind):
    array = np.array([[b"%d,%d" % (i, j) * i for j in range(3)] for i in range(4)], object)
    array = array if kind == "string" else random(kind, (4, 3))
    save_parts(tmp_path / "m", "w", {"4 3 0,1:-": array[:1], "4 3 1,3:-": array[1:]})
    assert same(ckptconv.open(tmp_path / "m")["w"].numpy(), array)


def test_shards_of_irregular_slices(tmp_path):
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=100)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    values = {n: random("float32", s, i) for i, (n, s) in enumerate({"a": (16, 4), "b": (3,), "c": (5, 7)}.items())}
    model = tf.train.Checkpoint(**{n: tf.Variable(v) for n, v in values.items()})
    path = model.write(str(tmp_path / "m"), options)
    found = ckptconv.open(path)
    assert found.details["shards"] > 3
    assert any(len(t.parts) > 1 for t in found.values())
    for name, value in values.items():
        assert same(found[name].numpy(), value)


def test_iterators_are_noted_and_left_out(tmp_path):
    rows = iter(tf.data.Dataset.range(5).batch(2))
    path = tf.train.Checkpoint(it=rows, v=tf.Variable(1.0)).write(str(tmp_path / "m"))
    found = ckptconv.open(path)
    assert list(found) == ["v"]
    assert any(n.kind == "skipped" and any("it" in name for name in n.names) for n in found.notes)


def rewrite(prefix: Path, change, header=None) -> None:
    """Edit the entries of an index and seal it again."""
    pairs = pairs_of(prefix)
    for key, value in pairs.items():
        if key:
            entry = pb.BundleEntryProto.FromString(value)
            change(key, entry)
            pairs[key] = entry.SerializeToString()
        elif header:
            pairs[key] = header.SerializeToString()
    Path(f"{prefix}.index").write_bytes(table.build(pairs.items()))


def test_big_endian(tmp_path):
    kinds = ["float32", "int64", "complex64", "complex128", "uint16", "uint8", "bool", "float16", "bfloat16"]
    arrays = {k: random(k, (3, 2)) for k in kinds}
    save(tmp_path / "m", arrays)
    words = [b"x" * 300, b"", b"yz"]
    file = Path(f"{tmp_path}/m.data-00000-of-00001")
    data = bytearray(file.read_bytes())

    def swap(key, entry):
        row = dtype(key.decode())
        part = slice(entry.offset, entry.offset + entry.size)
        swapped = np.frombuffer(data[part], f"u{min(row.word, 8)}").byteswap().tobytes()
        data[part] = swapped
        entry.crc32c = mask(crc32c(swapped))

    rewrite(tmp_path / "m", swap, pb.BundleHeaderProto(num_shards=1, endianness=1))
    lengths = crc32c(b"".join(len(w).to_bytes(4, "big") for w in words))
    tail = mask(lengths).to_bytes(4, "big") + b"".join(words)
    entry = pb.BundleEntryProto(dtype=7, offset=len(data), crc32c=mask(crc32c(tail, lengths)))
    entry.shape.dim.add(size=3)
    data += b"\xac\x02\x00\x02" + tail
    entry.size = len(data) - entry.offset
    file.write_bytes(data)
    pairs = pairs_of(tmp_path / "m") | {b"words": entry.SerializeToString()}
    (tmp_path / "m.index").write_bytes(table.build(sorted(pairs.items())))
    reader = tf.train.load_checkpoint(str(tmp_path / "m"))
    found = ckptconv.open(tmp_path / "m")
    assert found.details["endianness"] == "big"
    assert found["words"].numpy().tolist() == words == reader.get_tensor("words").tolist()
    for name, array in arrays.items():
        assert same(found[name].numpy(), array), name
    assert same(found["float32"].numpy(), reader.get_tensor("float32"))


def test_unaligned_padded_and_shared_ranges(tmp_path):
    save(tmp_path / "m", {n: np.arange(i, i + 3, dtype="f8") for n, i in {"a": 0, "b": 3, "c": 0}.items()})
    file = Path(f"{tmp_path}/m.data-00000-of-00001")
    data = file.read_bytes()
    file.write_bytes(b"!" + data[:24] + b"gap" + data[24:48])
    starts = {b"a": 1, b"b": 28, b"c": 1}
    rewrite(tmp_path / "m", lambda key, entry: setattr(entry, "offset", starts[key]))
    found = ckptconv.open(tmp_path / "m")
    assert {k: t.numpy().tolist() for k, t in found.items()} == {"a": [0, 1, 2], "b": [3, 4, 5], "c": [0, 1, 2]}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("offset: 1", "are needed"),
        ("offset: -1", "negative"),
        ("size: 8", "has 12"),
        ("offset: 4611686018427387904 size: 12", "are needed"),
        ("shard_id: 1", "shard 1"),
        ("shard_id: -1", "shard -1"),
        ("dtype: 99", "dtype"),
        ("shape { dim { size: -3 } }", "negative|has 12"),
        ("shape { dim { size: 1099511627776 } dim { size: 1099511627776 } }", "2\\^63|bytes"),
        ("shape { unknown_rank: true }", "the shape has no rank"),
    ],
)
def test_entries_that_lie(tmp_path, entry, said):
    save(tmp_path / "m", {"x": np.ones(3, "f4")})
    lie = text_format.Parse(entry, pb.BundleEntryProto())

    def told(key, true):
        if lie.HasField("shape"):
            true.ClearField("shape")
        true.MergeFrom(lie)

    rewrite(tmp_path / "m", told)
    with refused(said):
        ckptconv.open(tmp_path / "m")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("num_shards: 1 version { min_consumer: 2 }", "a reader of version"),
        ("num_shards: 1 version { bad_consumers: 1 }", "a reader of version"),
        ("num_shards: -1", "shard count or endianness is out of range"),
        ("endianness: BIG", "is in shard 0, but the number of shards is 0"),
    ],
)
def test_headers_that_cannot_be(tmp_path, header, said):
    save(tmp_path / "m", {"x": np.ones(3, "f4")})
    rewrite(tmp_path / "m", lambda key, entry: None, text_format.Parse(header, pb.BundleHeaderProto()))
    with refused(said):
        ckptconv.open(tmp_path / "m")


# --- writing ----------------------------------------------------------------------------------------------------


def matrix() -> dict[str, np.ndarray]:
    arrays = {f"{k}/{i}": random(k, s) for k in KINDS if writable(k) for i, s in enumerate([(), (3, 2), (0, 4)])}
    strings = {"s0": np.array(b"hello", object), "s1": np.array([[b"ab", b""], [b"x" * 300, b"\0\xff"]], object)}
    # TensorFlow clears the high bits of small signed integers, ml_dtypes repeats the sign in them
    arrays = {k: v for k, v in arrays.items() if not k.startswith(("int4", "int2"))}
    return arrays | strings | {"s2": np.zeros(0, object)}


ARRAYS: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "matrix": matrix,
    "order": lambda: {"b": np.arange(3), "a": np.arange(2)},
    "9000": lambda: {f"scope_{i % 13}/variable_{i}": np.full(i % 3, i, "i4") for i in range(9000)},
    "long keys": lambda: {"k" * 300_000 + str(i): np.ones(1, "f4") for i in range(4)},
    "longest keys": lambda: {chr(255) * 3 + str(i) + "x" * 600_000: np.ones(1, "u1") for i in range(2)},
    "empty": dict,
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_files_are_tensorflows_own_byte_for_byte(tmp_path, kind):
    arrays = ARRAYS[kind]()
    if arrays:
        (tmp_path / "theirs").mkdir()
        save(tmp_path / "theirs" / "m", arrays)
    ckptconv.save(arrays, tmp_path / "ours" / "m.ckpt")
    if not arrays:
        assert tf.train.load_checkpoint(str(tmp_path / "ours")).get_variable_to_shape_map() == {}
        return
    for suffix in ("data-00000-of-00001", "index"):
        ours, theirs = tmp_path / "ours" / f"m.ckpt.{suffix}", tmp_path / "theirs" / f"m.{suffix}"
        assert ours.read_bytes() == theirs.read_bytes(), suffix


def test_tensorflow_restores_what_we_write_in_all_its_ways(tmp_path):
    values = {"scope/w": random("float32", (3, 4)), "b": np.arange(4, dtype="i8")}
    values["s"] = np.array(["é", b"\xff"], object)
    ckptconv.save(values, tmp_path / "m.ckpt")
    prefix = str(tmp_path / "m.ckpt")
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert set(reader.get_variable_to_shape_map()) == set(values)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v1 = tf.compat.v1
        numbers = {n: v for n, v in values.items() if n != "s"}
        variables = {n: v1.get_variable(n, shape=v.shape, dtype=v.dtype) for n, v in numbers.items()}
        v1.train.Saver(variables).restore(session, prefix)
        for name, variable in variables.items():
            assert same(session.run(variable), values[name])
    w, b = tf.Variable(tf.zeros((3, 4)), name="scope/w"), tf.Variable(tf.zeros(4, tf.int64), name="b")
    tf.train.Checkpoint(x=w, y=b).restore(prefix).assert_existing_objects_matched()
    assert same(w.numpy(), values["scope/w"])
    assert same(b.numpy(), values["b"])
    assert reader.get_tensor("s").tolist() == ["é".encode(), b"\xff"]


@pytest.mark.parametrize("name", ["", "_CHECKPOINTABLE_OBJECT_GRAPH", "\ud800"])
def test_names_that_cannot_be(tmp_path, name):
    with pytest.raises(Unrepresentable):
        ckptconv.save({name: np.ones(1)}, tmp_path / "m.ckpt")
    assert not list(tmp_path.iterdir())
