"""What a torch pickle may not say, one case for each check, on the words of its refusal; and what it just may."""

from __future__ import annotations

import pickletools
from typing import Any

import pytest
from kit import refused
from pickles import Call, Global, Id, Raw, pickled

from ckptconv.dtypes import DTYPES
from ckptconv.formats.pytorch.pickle import OPS, load
from ckptconv.formats.pytorch.tensors import (
    TORCH,
    UNTYPED,
    Pieces,
    Storage,
    StorageType,
    View,
    bare,
)
from ckptconv.moves.part import Span

FLOAT, LONG = (StorageType(f"{r.storage}Storage", r, r.itemsize * 8) for r in (DTYPES["float32"], DTYPES["int64"]))
STORAGES = {
    name: Storage(kind, name, Span("x", 0, size), size, swapped=name == "big")
    for name, kind, size in [
        ("float", FLOAT, 24),
        ("big", FLOAT, 24),
        ("long", LONG, 48),
        ("complex", TORCH["torch", "ComplexFloatStorage"], 48),
        ("half", TORCH["torch", "ComplexHalfStorage"], 24),
        ("quantised", TORCH["torch", "QInt8Storage"], 6),
        ("bytes", UNTYPED, 24),
    ]
}
ORDERED = Call(Global("collections.OrderedDict"))
FLOAT32, INT64 = Global("torch.float32"), Global("torch.int64")
TENSOR, PARAMETER = Global("torch._tensor.Tensor"), Global("torch.nn.parameter.Parameter")
AFFINE, CHANNELS = Global("torch.per_tensor_affine"), Global("torch.per_channel_affine")


def read(value: Any, **options: Any) -> Any:
    return load(pickled(value), allowed=TORCH, persistent_load=STORAGES.get, **options)


def utils(name: str, *args: Any) -> Call:
    return Call(Global(f"torch._utils.{name}"), args)


def tensor(
    storage: Any = "float", offset: Any = 0, shape: Any = (2, 3), strides: Any = (3, 1), grad: Any = False, *more: Any
) -> Call:
    where = Id(storage) if isinstance(storage, str) else storage
    return utils("_rebuild_tensor_v2", where, offset, shape, strides, grad, ORDERED, *more)


def typed(kind: Any, *more: Any, storage: str = "bytes", shape: Any = (2,)) -> Call:
    return utils("_rebuild_tensor_v3", Id(storage), 0, shape, (1,), False, ORDERED, kind, *more)


def subclass(make: Any, kind: Any, args: Any, state: Any, name: str = "_rebuild_from_type_v2") -> Call:
    return Call(Global(f"torch._tensor.{name}"), (make, kind, args, state))


def plain(make: str = "_rebuild_tensor_v2") -> tuple[Any, tuple[Any, ...]]:
    return Global(f"torch._utils.{make}"), (Id("float"), 0, (2,), (1,), False, ORDERED)


def state(name: str, value: Any) -> Call:
    return utils("_rebuild_parameter_with_state", tensor(), False, ORDERED, {name: value})


def sparse(layout: Any, data: Any) -> Call:
    how = Call(Global("torch.serialization._get_layout"), (layout,)) if isinstance(layout, str) else layout
    return utils("_rebuild_sparse_tensor", how, data)


def quantised(quantiser: Any, storage: str = "quantised") -> Call:
    return utils("_rebuild_qtensor", Id(storage), 0, (2, 3), (3, 1), quantiser, False, ORDERED)


TENSORS: dict[str, tuple[Any, str]] = {
    "a layout of a number": (sparse(Call(Global("torch.serialization._get_layout"), (3,)), ()), "a layout is called 3"),
    "no quantiser": (tensor("quantised"), "a tensor without a quantiser lies in QInt8Storage"),
    "a dtype of text": (typed("float32"), "a tensor has the dtype 'float32'"),
    "unknown metadata": (tensor("float", 0, (2, 3), (3, 1), False, {"perm": True}), "the metadata .'perm'.; conj and"),
    "neg of whole numbers": (tensor("long", 0, (2, 3), (3, 1), False, {"neg": True}), "of int64 is stored conjugated"),
    "a parameter of a number": (Call(PARAMETER, (3,)), "a parameter is made of 3"),
    "meta with a dtype of text": (utils("_rebuild_meta_tensor_no_storage", "f", (2,), (1,), False), "the dtype 'f'"),
    "another device, of a number": (
        utils("_rebuild_xla_tensor", 3, FLOAT32, "xla", False), "a tensor of another device is made of 3"
    ),
    "another device, cast to text": (
        utils("_rebuild_xla_tensor", tensor(), "f", "xla", False), "stored as float32 and is to become 'f'"
    ),
    "made of a list": (Call(Global("torch.FloatTensor"), ([1.0],)), r"a tensor is made by FloatTensor\(.1.0.\)"),
    "a state of three": (
        utils("_rebuild_parameter_with_state", tensor(), False, ORDERED, (1, 2, 3)), r"has the state \(1, 2, 3\)"
    ),
    "an attribute called 3": (state(3, 1), "an attribute of a tensor is called 3"),  # type: ignore[arg-type]
    "a subclass by a list": (subclass(plain()[0], TENSOR, [1], None), "a tensor subclass is rebuilt without arguments"),
    "of a known class that is no tensor": (
        subclass(plain()[0], Global("torch.Size"), plain()[1], None), "a tensor is of the class a Known"
    ),
    "rebuilt by what rebuilds nothing": (
        subclass(Global("torch.Size"), TENSOR, ((2,),), None), "a tensor subclass is rebuilt by a Known"
    ),
    "rebuilt of 64 arguments": (subclass(plain()[0], TENSOR, (0,) * 64, None), "a tensor subclass is rebuilt by a"),
    "of another device, with a state": (
        subclass(
            Global("torch._utils._rebuild_device_tensor_from_numpy"), TENSOR,
            (Call(
                Global("numpy.core.numeric._frombuffer"),
                (b"\0" * 8, Call(Global("numpy.dtype"), ("f4", False, True)), (2,)),
            ), FLOAT32, "xla", False), {"a": 1},
        ), "a tensor of another device has a state",
    ),
    "an unknown layout": (sparse("torch.sparse_new", (tensor(), tensor(), (2, 3))), "layout .* is not understood"),
    "sparse without a size": (sparse("torch.sparse_coo", (tensor(), tensor())), "is not understood"),
    "sparse of numbers": (sparse("torch.sparse_coo", (1, tensor(), (2, 3))), "pieces of a sparse_coo tensor are not"),
    "sparse of the shape None": (sparse("torch.sparse_coo", (tensor(), tensor(), None)), "the shape of a tensor is"),
    "sparse without end": (sparse("torch.sparse_coo", (tensor(), tensor(), (2**40, 2**40))), "more than 2.63 elements"),
    "quantised by a list": (quantised([AFFINE, 0.1, 3]), "a quantised tensor without a quantiser"),
    "quantised with one number": (quantised((AFFINE, 0.1)), "the scheme per_tensor_affine with 1 numbers"),
    "quantised in a way unknown": (
        quantised((Global("torch.per_tensor_symmetric"), 0.1, 3)), "scheme per_tensor_symmetric with 2 numbers"
    ),
    "along the third axis of two": (quantised((CHANNELS, [1.0, 1.0], [0, 0], 2)), "quantised along the axis 2"),
    "along the axis before": (quantised((CHANNELS, [1.0, 1.0], [0, 0], -1)), "quantised along the axis -1"),
    "too few scales": (quantised((CHANNELS, tensor(), tensor(), 0)), r"2 quantised channels have the scale \(2, 3\)"),
    "a nested tensor": (utils("_rebuild_nested_tensor", tensor(), tensor(), 1, tensor()), "_rebuild_nested_tensor"),
    "a state that brings other data": (
        Raw(pickled(tensor())[2:-1] + b"K\1b"), "a tensor is given other data by its state 1"
    ),
    "an empty tensor filled by nothing": (Call(Global("torch.FloatTensor"), (), (3,)), "an empty tensor is given .* 3"),
    "an empty tensor filled by another type": (
        Call(Global("torch.FloatTensor"), (), ((Id("long"), 0, (2,), (1,)),)), "an empty tensor is given the state"
    ),
    "a shape of text": (tensor(shape="2", strides=(1,)), "the shape of a tensor is '2', not at most 64 whole numbers"),
    "no storage": (tensor(storage=3), "a tensor has the storage 3"),
    "an offset of text": (tensor(offset="0"), "the offset '0'"),
    "strides for another shape": (tensor(shape=(2,), strides=(3, 1)), r"has the shape \[2\] but the strides \[3, 1\]"),
    "one element too many": (tensor(offset=1), "reaches byte 28 of the storage 'float', which has 24"),
    "an expansion": (
        tensor(shape=(2**16, 2**14 + 1), strides=(0, 0)), r"expands 24 stored bytes to 4295229440"
    ),
    "big-endian by another type": (typed(INT64, storage="big"), "int64 lies big-endian in FloatStorage, by which"),
}  # fmt: skip


ALLOWED: dict[str, tuple[Any, type, tuple[int, ...]]] = {
    "to the last byte": (tensor(), View, (2, 3)),
    "64 axes": (tensor(shape=(1,) * 64, strides=(1,) * 64), View, (1,) * 64),
    "nothing, far away": (tensor(offset=99, shape=(0,), strides=(1,)), View, (0,)),
    "the widest expansion": (tensor(shape=(2**30,), strides=(0,)), View, (2**30,)),
    "conjugated": (tensor("complex", 0, (2,), (1,), False, {"conj": True, "neg": True}), View, (2,)),
    "sparse, coalesced": (sparse("torch.sparse_coo", (tensor(), tensor(), (4, 5), True)), Pieces, (4, 5)),
    "compressed": (sparse("torch.sparse_csr", (tensor(), tensor(), tensor(), [4, 5])), Pieces, (4, 5)),
    "quantised": (quantised((AFFINE, 0.1, 3)), Pieces, (2, 3)),
    "bytes": (tensor("bytes", 0, (24,), (1,)), View, (24,)),
    "made of its storage": (Call(Global("torch.LongTensor"), (Id("long"),)), View, (6,)),
    "a Variable": (
        Call(Global("torch.Tensor"), (), ((tensor(), False, None, False, False),)), View, (2, 3)
    ),
    "a Variable's state": (
        Call(Global("torch._utils._rebuild_tensor"), (Id("float"), 0, (2,), (1,)), ((False, False, None),)), View, (2,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ALLOWED)
def test_tensors_that_are_read(what: str) -> None:
    value, kind, shape = ALLOWED[what]
    made = bare(read(value))
    assert type(made) is kind
    assert made.shape == shape


def test_what_is_done_to_elements() -> None:
    assert read(tensor("big")).ops == ("swap",)
    assert read(tensor("complex", 0, (2,), (1,), False, {"conj": True, "neg": True})).ops == ("conj", "neg")


# --- numpy --------------------------------------------------------------------------------------------------------


def dtype(spelling: Any = "f4", copied: Any = True, *states: Any) -> Call:
    return Call(Global("numpy.dtype"), (spelling, False, copied), states)


def array(*state: Any, states: int = 1) -> Call:
    make = (Global("numpy.ndarray"), (0,), b"b")
    return Call(Global("numpy.core.multiarray._reconstruct"), make, (state,) * states)


def buffer(*args: Any) -> Call:
    return Call(Global("numpy.core.numeric._frombuffer"), args)


LITTLE = (3, "<", None, None, None, -1, -1, 0)
SHARED = Raw(pickled(dtype())[2:-1] + b"q\1")  # one dtype, which an array uses before it is given a state

ARRAYS: dict[str, tuple[Any, str]] = {
    "spelled by a number": (dtype(3), "a pickled numpy dtype is spelled 3"),
    "a state of text": (dtype("f4", True, "<"), "the state of a pickled numpy dtype is '<'"),
    "a subarray": (dtype("f4", True, (3, "<", 1, *LITTLE[3:])), "a structured numpy dtype is not a tensor's dtype"),
    "a state while it is used": (
        (buffer(b"\0" * 4, SHARED, (1,)), Raw(b"h\1"), Raw(b"h\1" + pickled(LITTLE)[2:-1] + b"b")),
        "given a state where NumPy ignores it or arrays use it",
    ),
    "another size": (dtype("S4", True, (3, "|", None, None, None, 8, 1, 0)), "dtype S4 is given the size 8"),
    "unknown to numpy": (buffer(b"\0" * 3, dtype("f3"), (1,)), "numpy has no dtype 'f3'"),
    "an array's state of three": (array((2,), dtype(), False), "the state of a pickled numpy array is not understood"),
    "filled twice": (array(1, (1,), dtype(), False, b"\0" * 4, states=2), "a pickled numpy array is filled twice"),
    "a shape of text": (array(1, "1", dtype(), False, b"\0" * 4), "a pickled numpy array has no proper shape or dtype"),
    "a byte too many": (array(1, (2,), dtype(), False, b"\0" * 9), r"array of shape \[2\] holds 9 instead of 8"),
    "objects without a list": (array(1, (1,), dtype("O8"), False, b"\0" * 8), r"array of shape \[1\] holds 8 instead"),
    "reconstructed from something else": (
        Call(Global("numpy.core.multiarray._reconstruct"), (FLOAT32, (0,), b"b")), "numpy is asked to reconstruct a"
    ),
    "an unknown order of elements": (buffer(b"\0" * 4, dtype(), (1,), "A"), "a pickled numpy array in the order 'A'"),
    "axes without being kept": (buffer(b"\0" * 4, dtype(), (1,), "C", (0,)), "a pickled numpy array in the order 'C'"),
    "axes that are none": (buffer(b"\0" * 4, dtype(), (1, 1), "K", (0, 2)), r"array whose axes are \(0, 2\)"),
}  # fmt: skip


@pytest.mark.parametrize("size", [-1, 0, 4])
def test_the_size_in_a_state_may_be_the_dtypes(size: int) -> None:
    kind = dtype("S4", True, (3, "|", None, None, None, size, 1, 0))
    assert read(buffer(b"abcd", kind, (1,))).numpy().tolist() == [b"abcd"]


# --- the machine --------------------------------------------------------------------------------------------------

KEY: Any = ()
for _ in range(63):
    KEY = (KEY,)  # 64 tuples, each in the next

MACHINE: dict[str, tuple[bytes, str]] = {
    "cut in a number": (b"\x80\2J\0\0\0", "the pickle ends early: 4 bytes are needed at 3"),
    "a global cut off": (b"\x80\2cnumpy", "the pickle ends early: 1000 bytes are needed at 3"),
    "no mark": (b"\x80\2t.", "no MARK is open at byte 3"),
    "a call without a tuple": (pickled(Call(Global("torch.Size"), [1])), "has no tuple of arguments"),
    "a name that is called": (
        pickled(Call(Global("torch.storage.TypedStorage"), ())),
        "TypedStorage is called at byte",
    ),
    "a function that is made": (
        pickled(Call(Global("torch._utils._rebuild_tensor"), (), new=True)),
        "_rebuild_tensor is called by NEWOBJ at",
    ),
    "called with names": (
        b"\x80\4" + pickled(Global("torch.Size"))[2:-1] + b")}X\1\0\0\0xK\1s\x92.",
        "Size is called by NEWOBJ at byte",
    ),
    "a number that is called": (b"\x80\2K\1)R.", "a int is called at byte 6"),
    "a key of 65": (pickled({(1,) * 64: 1}), "a key at byte [0-9]+ is nested too deeply"),
    "a long key": (pickled({("a" * 2**15, "b" * 2**15, "c"): 1}), "a key at byte [0-9]+ is nested too deeply"),
    "a list for a key": (b"\x80\2}]K\1s.", r"a list cannot be a key \(byte 7\)"),
    "a key without a value": (b"\x80\2}(K\1u.", "a key without a value at byte 7"),
    "items of a list": (b"\x80\2]K\1K\1s.", "items are set on a list at byte 8"),
    "appended to a dictionary": (b"\x80\2}K\1a.", "members are added to a dict at byte 6"),
    "a state of a list": (b"\x80\2]}b.", "a list is given a dict as its state at byte 5"),
    "a state of text for a dictionary": (
        pickled(Call(Global("collections.OrderedDict"), (), ("x",))),
        "a Ordered is given a str as its state",
    ),
    "a tuple of what is not there": (b"\x80\2K\1\x86.", "the stack is empty at byte 5"),
    "not an opcode": (b"\x80\2\xff.", "byte 0xff at byte 2 of the pickle is not an opcode"),
    "two arguments of a dictionary": (
        pickled(Call(Global("collections.OrderedDict"), ({}, {}))),
        "a dictionary is made of 2 arguments",
    ),
    "a dictionary of text": (pickled(Call(Global("collections.OrderedDict"), ("ab",))), "is made of 'ab'"),
    "a dictionary of texts": (pickled(Call(Global("builtins.dict"), (["ab"],))), "is made of pairs such as 'ab'"),
    "counted text": (pickled(Call(Global("collections.Counter"), ("ab",))), "a Counter of 'ab'"),
    "a list of text": (pickled(Call(Global("builtins.list"), ("ab",))), "a str instead of a list"),
    "a complex of text": (pickled(Call(Global("builtins.complex"), ("1", 2))), r"complex\(\) of something that is not"),
    "a set of lists": (pickled(Call(Global("builtins.set"), ([[1]],))), "a list cannot be a key"),
    "a path of numbers": (pickled(Call(Global("pathlib.PosixPath"), ("a", 1))), r"a path is made of \('a', 1\)"),
    "an item of a dictionary": (pickled(Call(Global("operator.getitem"), ({}, 1))), "an item of a dict is asked for"),
    "a list that is not one": (
        pickled(Call(Global("torch.jit._pickle.build_intlist"), ("12",))),
        "is built from something that is not a list",
    ),
    "a size of text": (pickled(Call(Global("torch.Size"), ("12",))), "the size of a tensor is '12'"),
}


PICKLES = MACHINE | {what: (pickled({"w": value}), words) for what, (value, words) in (TENSORS | ARRAYS).items()}


@pytest.mark.parametrize("what", PICKLES)
def test_refused(what: str) -> None:
    data, words = PICKLES[what]
    with refused(words):
        load(data, allowed=TORCH, persistent_load=STORAGES.get)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Call(Global("torch.device"), (1,) * 64), ":".join("1" * 64)),
        ({(1,) * 63: 1}, {(1,) * 63: 1}),
        ({KEY: 1}, {KEY: 1}),
        (Raw(b"\x8a\x40" + b"\1" * 64), int.from_bytes(b"\1" * 64, "little")),
        (Raw(b"\x8b\2\0\0\0\xff\xff"), -1),
        (Raw(b"\x8f(K\1K\2\x90"), {1, 2}),
        (Call(Global("pathlib.PosixPath"), ("/", "a", "b")), "/a/b"),
        (Call(Global("builtins.slice"), (1, None, 2)), (1, None, 2)),
        (Call(Global("builtins.complex"), (1, 2.5)), 1 + 2.5j),
        (Call(Global("builtins.bytearray"), ("é", "latin-1")), b"\xe9"),
        (Call(Global("collections.OrderedDict"), ([["a", 1], ("b", 2)],)), {"a": 1, "b": 2}),
        (Call(Global("collections.defaultdict"), (Global("builtins.int"), {"a": 1})), {"a": 1}),
        (Call(Global("collections.defaultdict"), (None, (("a", 1),))), {"a": 1}),
        (Call(Global("collections.Counter"), ({"a": 1},)), {"a": 1}),
        (Call(Global("torch.jit._pickle.build_intlist"), ((1, 2),)), [1, 2]),
        (Call(Global("torch.jit._pickle.restore_type_tag"), ([1], "List[int]")), [1]),
    ],
)  # fmt: skip
def test_what_is_just_allowed(value: Any, expected: Any) -> None:
    assert read(value) == expected


def test_an_object_has_one_state() -> None:
    with refused("x.Y is given a second state at byte"):
        read(Call(Global("x.Y"), (), (1, 2)), opaque=True)
    thing = read(Call(Global("x.Y"), (1,), ({"a": 2},)), opaque=True)
    assert (thing.path, thing.args, thing.state) == ("x.Y", (1,), {"a": 2})


@pytest.mark.parametrize("opaque", [False, True])
def test_tensors_that_torch_did_not_save(opaque: bool) -> None:
    """pickle.dump of a state dict, and the networks of StyleGAN2-ada: no option reads them, so none is named."""
    with refused("torch.save was not used"):
        read([Call(Global("x.Y")), tensor(Call(Global("torch.storage._load_from_bytes"), (b"x",)))], opaque=opaque)


def test_only_the_packages_named_may_stay() -> None:
    two = [Call(Global("x.Y")), Call(Global("xy.Z"))]
    with refused(r"names 1 unknown class or function(.|\n)*xy\.Z"):
        read(two, opaque=("x",))
    assert [thing.path for thing in read(two, opaque=("x", "xy"))] == ["x.Y", "xy.Z"]


def test_a_persistent_id_without_a_meaning() -> None:
    with refused("a persistent id at byte 5, which nothing here resolves"):
        load(pickled(Id(1)), allowed=TORCH)


def test_every_opcode_is_run_or_refused_by_its_name() -> None:
    """Only what no framework writes is refused."""
    refused_ones = [op.name for op in pickletools.opcodes if ord(op.code) not in OPS and op.name != "STOP"]
    for name in refused_ones:
        code = next(op.code for op in pickletools.opcodes if op.name == name)
        with refused(f"opcode {name} at byte 2 of the pickle"):
            load(b"\x80\2" + code.encode("latin-1") + b".")
    assert set(refused_ones) == {
        "DUP", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "PERSID", "POP", "POP_MARK", "READONLY_BUFFER",
    }  # fmt: skip


def test_types_for_people_are_only_names() -> None:
    load(b"ctyping\nDict\n.", allowed=TORCH)
    with refused("the pickle names 1 unknown"):
        load(b"ctyping\nget_type_hints\n.", allowed=TORCH)
