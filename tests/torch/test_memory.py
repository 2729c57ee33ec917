"""The memory of modules: what is loaded in place is the module's own, what shares memory agrees, sources stay apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import in_memory

import ckptconv
from ckptconv.errors import CkptError, ConversionError, UsageError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ckptconv.torch as into  # noqa: E402
from ckptconv.moves.torch import to_array  # noqa: E402


def given(values: Mapping[str, Any]) -> ckptconv.Checkpoint:
    """A source that shares no memory with the module."""
    arrays = {n: np.array(v, "f4") if isinstance(v, list | float) else v for n, v in values.items()}
    return in_memory(arrays)


def values(module: nn.Module) -> dict[str, np.ndarray]:
    return {n: to_array(t).copy() for n, t in module.state_dict().items()}


def bare(**tensors: torch.Tensor) -> nn.Module:
    """A module of parameters and buffers, in this order."""
    module = nn.Module()
    for name, t in tensors.items():
        if isinstance(t, nn.Parameter):
            setattr(module, name, t)
        else:
            module.register_buffer(name, t)
    return module


# --- what the module computes -----------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """Keeps a number beside its parameters, in the extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.w = torch.tensor(1.0), nn.Parameter(torch.zeros(2))

    def get_extra_state(self) -> torch.Tensor:
        return self.scale

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scale = state


class Own(nn.Linear):
    """Makes its state dict itself, of copies."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {n: t.detach().clone() for n, t in super().state_dict(*args, **kwargs).items()}


def hooked(change: Callable[[dict[str, torch.Tensor]], None]) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_state_dict_post_hook(lambda _m, found, _p, _l: change(found))
    return module


COMPUTED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "copies": (lambda: hooked(lambda d: d.update({n: t.detach().clone() for n, t in d.items()})), ("weight", "bias")),
    "one cast": (lambda: hooked(lambda d: d.update(weight=d["weight"].double())), ("weight",)),
    "a method of its own": (lambda: Own(2, 2), ("weight", "bias")),
    "extra state": (Scaled, ("_extra_state",)),
}


def test_an_error_names_the_option_that_makes_it_fit() -> None:
    plain = nn.Linear(2, 1)
    for module, prefix, hint in (
        (plain, "module.", r"; strip_prefix='module\.' removes them"),
        (plain, "0.", r"strip_prefix='0\.' makes 0\.weight the module's weight"),
        (nn.DataParallel(plain), "", r"load into module\.module, which has weight"),
    ):
        with pytest.raises(ConversionError, match=f"(?s)fit the module.*{hint}$"):
            into.load_into(module, given({f"{prefix}weight": ONE, f"{prefix}bias": 1.0}))


@pytest.mark.parametrize("case", COMPUTED)
def test_what_the_state_dict_computes_is_not_said_to_be_loaded(case: str, tmp_path: Path) -> None:
    make, names = COMPUTED[case]
    module = make()
    ckptconv.save({n: np.full(t.shape, 7, "f4") for n, t in make().state_dict().items()}, tmp_path / "a.safetensors")
    before = {n: t.detach().clone() for n, t in module.named_parameters()}
    with pytest.raises(ConversionError, match=r"computed by the module's state_dict; convert to a \.pt file") as e:
        into.load_into(module, tmp_path / "a.safetensors")
    assert all(f"      {n}" in str(e.value) for n in names)
    assert all(torch.equal(t, before[n]) for n, t in module.named_parameters())
    loose = into.load_into(module, tmp_path / "a.safetensors", strict=False)
    assert loose.computed == names
    assert not loose.complete
    assert all((module.get_parameter(n) == 7).all() for n in loose.loaded)
    assert {*loose.loaded, *loose.computed} == {*module.state_dict()}
    module.load_state_dict(ckptconv.open(tmp_path / "a.safetensors").torch())  # as the error says
    assert all(bool((t == 7).all()) for t in module.state_dict().values())


def test_a_computed_parameter_that_the_source_lacks_is_missing() -> None:
    with pytest.raises(ConversionError, match=r"1 missing in the source(?s:.*)weight"):
        into.load_into(COMPUTED["one cast"][0](), given({"bias": [1.0, 2.0]}))
    report = into.load_into(Scaled(), given({"w": [1.0, 2.0]}))
    assert (report.loaded, report.missing) == (("w",), ("_extra_state",))


def test_the_values_of_a_state_dict_are_those_that_it_computes() -> None:
    module = hooked(lambda d: d.update(weight=d["weight"].detach() * 2))
    shot = into.snapshot(module)
    assert shot["weight"].numpy().tolist() == (module.weight * 2).tolist()
    assert into.outline(Scaled())["_extra_state"].shape == ()


class Heads(nn.Module):
    """Gives three views of one parameter for its state."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(6, 2))

        def split(_m: Any, found: dict[str, torch.Tensor], prefix: str, _l: Any) -> None:
            whole = found.pop(prefix + "qkv")
            found.update({prefix + n: t for n, t in zip("qkv", whole.chunk(3), strict=True)})

        self.register_state_dict_post_hook(split)


class TiedLate(nn.Module):
    """Ties its head as Transformers does, after both were made."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight


def pruned() -> nn.Module:
    from torch.nn.utils import prune

    module = nn.Linear(3, 3)
    prune.l1_unstructured(module, "weight", 0.5)
    return module


def old_norm() -> nn.Module:
    with pytest.warns(FutureWarning):
        return torch.nn.utils.weight_norm(nn.Linear(3, 2))


def wrapped() -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return nn.Sequential(checkpoint_wrapper(nn.Linear(3, 2)), nn.ReLU())  # a hook takes its prefix away


COMMON: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm2d(3),
    "attention": lambda: nn.MultiheadAttention(4, 2), "bidirectional": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "weight norm": lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), "old norm": old_norm,
    "pruned": pruned,
    "tied": TiedLate, "wrapped": wrapped,
    "views": Heads,
}  # fmt: skip


@pytest.mark.parametrize("case", COMMON)
def test_modules_in_common_use_are_loaded_whole(case: str, tmp_path: Path) -> None:
    one, other = COMMON[case](), COMMON[case]()
    torch.save(one.state_dict(), tmp_path / "a.pt")
    before = [t.data_ptr() for t in other.parameters()]
    report = into.load_into(other, tmp_path / "a.pt")
    assert report.complete
    assert {*report.loaded} == {*one.state_dict()}
    assert [t.data_ptr() for t in other.parameters()] == before
    got, want = other.state_dict(), one.state_dict()
    assert all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize("case", ["attention", "bidirectional", "tied", "wrapped"])
def test_modules_in_common_use_are_built_without_memory_and_loaded(case: str, tmp_path: Path) -> None:
    one = COMMON[case]()
    torch.save(one.state_dict(), tmp_path / "a.pt")
    with torch.device("meta"):
        other = COMMON[case]()
    assert into.load_into(other, tmp_path / "a.pt", device="cpu").complete
    got, want = other.state_dict(), one.state_dict()
    assert all(torch.equal(got[n], want[n]) for n in want)


# --- memory that names share ------------------------------------------------------------------------------------------


def by_data(device: str = "cpu") -> nn.Module:
    """Two parameters that are one memory."""
    module = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)}).to(device)
    module["b"].weight.data = module["a"].weight.data
    return module


def by_name() -> nn.Module:
    module = by_data()
    module["b"].weight = module["a"].weight
    return module


NAN = np.uint32(0x7FC00123).view("f4")
ONE = [[NAN, -0.0], [1.0, 2.0]]
SHARED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], bool]] = {
    "one memory": (by_data, {"a.weight": ONE, "b.weight": ONE}, True),
    "one tensor": (by_name, {"a.weight": ONE, "b.weight": ONE}, True),
    "two zeros": (by_name, {"a.weight": [[0.0, 1.0]] * 2, "b.weight": [[-0.0, 1.0]] * 2}, False),
    "two NaNs": (by_name, {"a.weight": ONE, "b.weight": [[np.nan, -0.0], [1.0, 2.0]]}, False),
    "equal once cast": (
        lambda: by_name().to(torch.bfloat16), {"a.weight": [[1.0, 2.0]] * 2, "b.weight": [[1.0001, 2.0]] * 2}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED)
def test_values_for_the_same_memory_agree_bit_for_bit(case: str) -> None:
    """Known before anything is changed: a module is not left with some of its tensors loaded."""
    make, arrays, fits = SHARED[case]
    module = make()
    module.first = nn.Parameter(torch.zeros(1))
    source = given({"first": [5.0], **arrays})
    before = values(module)
    if fits:
        assert into.load_into(module, source).complete
        after, state = values(module), module.state_dict()
        for n, t in source.items():
            want = to_array(torch.from_numpy(t.numpy()).to(state[n].dtype))
            assert after[n].tobytes() == want.tobytes()
        return
    names = "\n  ".join(arrays)
    with pytest.raises(ConversionError, match=f"ties these, which share memory, .* two values:\n  {names}$"):
        into.load_into(module, source)
    after = values(module)
    assert all(after[n].tobytes() == before[n].tobytes() for n in before)


def test_what_shares_memory_is_tied() -> None:
    module = by_data()
    assert into.ties(nn.Linear(1, 1)) == ()
    assert into.ties(module) == into.outline(module).ties == into.snapshot(module).ties == (("a.weight", "b.weight"),)
    report = into.load_into(module, given({"a.weight": ONE}))  # the other has it, too
    assert (report.loaded, report.missing) == (("a.weight",), ())
    assert values(module)["b.weight"].tobytes() == np.array(ONE, "f4").tobytes()
    meta = by_data("meta")
    assert into.ties(meta) == (("a.weight", "b.weight"),)
    assert into.load_into(meta, given({"a.weight": ONE}), device="cpu").complete
    assert values(meta)["b.weight"].tobytes() == np.array(ONE, "f4").tobytes()
    with pytest.raises(ConversionError, match="two values"):
        into.load_into(by_data("meta"), given({"a.weight": ONE, "b.weight": [[1.0, 1.0]] * 2}), device="cpu")


PARTED: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "transposed": lambda: (x := torch.zeros(2, 2), x.t()),
    "overlapping": lambda: ((x := torch.zeros(4))[:3], x[1:]),
    "another dtype": lambda: (x := torch.zeros(1), x.view(torch.int32)),
}  # fmt: skip


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("case", PARTED)
def test_memory_that_is_shared_in_part_is_refused(case: str, device: str | None) -> None:
    a, b = PARTED[case]()
    module = bare(a=a, b=b, first=nn.Parameter(torch.zeros(1)))
    arrays = {n: np.ones(tuple(t.shape), to_array(t).dtype) for n, t in (("a", a), ("b", b))}
    with pytest.raises(UsageError, match=r"these share memory in different ways; convert to a \.pt file"):
        into.load_into(module, given({"first": [5.0], **arrays}), device=device)
    assert module.first.tolist() == [0]


# --- before anything is changed ---------------------------------------------------------------------------------------


def test_what_cannot_be_loaded_is_known_before_anything_is_changed() -> None:
    module = bare(a=nn.Parameter(torch.zeros(2)), b=torch.zeros(1).expand(4), c=torch.zeros(2, 1).expand(2, 3))
    source = {"a": [1.0, 2.0], "b": [1.0] * 4, "c": [[1.0] * 3] * 2}
    with pytest.raises(UsageError, match=r"\n  b: it is expanded, .* its clone\(\)\n  c: it is expanded"):
        into.load_into(module, given(source))
    assert module.a.tolist() == [0, 0]
    assert into.load_into(module, given({"a": [1.0, 2.0]})).loaded == ("a",)
    fine = bare(x=torch.zeros(3).expand(1, 3))  # along an axis of one element: as the positions of BERT
    assert into.load_into(fine, given({"x": [[1.0, 2.0, 3.0]]})).loaded == ("x",)
    two = bare(a=nn.Parameter(torch.zeros(2)), b=torch.zeros(2))
    with pytest.raises(ConversionError, match="b: string cannot be cast to float32"):
        into.load_into(two, given({"a": [1.0, 2.0], "b": np.array([b"x", b"y"], object)}))
    assert two.a.tolist() == [0, 0]


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(1)], layout=layout)


class Wrapped(torch.Tensor):
    """Keeps its elements in another tensor, as those do that are distributed over processes."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise AssertionError("mixed with a plain tensor")


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(3)


UNWRITABLE: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (
        lambda: torch.zeros(3).to_sparse(),
        "nothing was:\n  b: its layout is sparse_coo; give the module its to_",
    ),
    "made in inference mode": (inferred, "b: it was made in inference mode; load under torch.inference_mode"),
    "in another tensor": (lambda: Wrapped(torch.zeros(3)), "b: a Wrapped is not plain memory"),
    "nested": (lambda: nested(torch.strided), "have no single shape: .*:\n  b$"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_tensor_that_cannot_be_filled_is_named_before_another_is(case: str, device: str | None) -> None:
    make, words = UNWRITABLE[case]
    module = bare(a=nn.Parameter(torch.zeros(2)), b=make())
    with pytest.raises(UsageError, match=words):
        into.load_into(module, given({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]}), device=device)
    assert module.a.tolist() == [0, 0]
    assert into.load_into(module, given({"a": [1.0, 2.0]}), strict=False).loaded == ("a",)


def test_a_module_of_inference_mode_is_filled_in_inference_mode(tmp_path: Path) -> None:
    """From memory and from a file."""
    ckptconv.save({"b": np.ones(3, "f4")}, tmp_path / "a.safetensors")
    for source in (given({"b": [1.0, 1.0, 1.0]}), tmp_path / "a.safetensors"):
        module = bare(b=inferred())
        with torch.inference_mode():
            into.load_into(module, source)
        assert module.b.tolist() == [1, 1, 1]


def test_what_is_no_checkpoint_and_what_is_no_module_are_said_to_be_none(tmp_path: Path) -> None:
    module = nn.Linear(1, 1)
    ckptconv.save(module, tmp_path / "a.safetensors")
    for source, words in (
        ({"weight": 1}, "does not fit the module"), (3, "a path, a mapping of arrays or a module is needed, not int"),
    ):  # fmt: skip
        with pytest.raises(CkptError, match=words):
            into.load_into(module, source)  # type: ignore[arg-type]
    for act in (into.outline, into.snapshot, lambda m: into.load_into(m, tmp_path / "a.safetensors")):
        with pytest.raises(UsageError, match=r"a torch\.nn\.Module is needed, not dict"):
            act({})


# --- sources in the module's own memory -------------------------------------------------------------------------------

MOVED = {
    "swapped": (["a.{x}=b.{x}", "b.{x}=a.{x}"], {"a": "b", "b": "a", "c": "c"}),
    "in a circle": (["a.{x}=b.{x}", "b.{x}=c.{x}", "c.{x}=a.{x}"], {"b": "a", "c": "b", "a": "c"}),
}


@pytest.mark.parametrize("case", MOVED)
def test_a_module_is_loaded_from_its_own_memory_under_other_names(case: str) -> None:
    renames, origins = MOVED[case]
    module = nn.ModuleDict({n: nn.Linear(2, 3) for n in "abc"})
    module["c"].register_buffer("nothing", torch.zeros(0, 3))
    before = values(module)
    assert len(into.load_into(module, into.snapshot(module), rename=renames, strict=False).loaded) >= 6
    after = values(module)
    for to, of in origins.items():
        assert after[f"{to}.weight"].tobytes() == before[f"{of}.weight"].tobytes()
        assert after[f"{to}.bias"].tobytes() == before[f"{of}.bias"].tobytes()
