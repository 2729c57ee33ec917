"""Into torch modules: checks before changes, loading in place, comparing; and the tutorials, run as they stand."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from kit import ROOT

import ckptconv
from ckptconv.api.memory import import_named, to_checkpoint
from ckptconv.errors import ConversionError, UsageError
from ckptconv.verification.compare import Step, compare_outputs, step

torch = pytest.importorskip("torch")
from documents import fits, run, steps  # noqa: E402
from torch import nn  # noqa: E402

import ckptconv.torch as into  # noqa: E402
from ckptconv.verification.torch import run as computed  # noqa: E402

torch.set_num_threads(1)  # all modules here are small: threads would only wait for each other

TUTORIALS = sorted((ROOT / "docs").glob("tutorial*.md"))
RULES = """
[[rule]]
layout = "i o -> o i"
names = { "{x...}/kernel" = "{x...}.weight" }
[[rule]]
names = { "{x...}/bias" = "{x...}.bias" }
"""


class Net(nn.Module):
    def __init__(self, wide: int = 5) -> None:
        super().__init__()
        self.a = nn.Linear(4, wide)
        self.norm = nn.BatchNorm1d(wide, affine=False)
        self.b = nn.Linear(wide, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.norm(torch.relu(self.a(x))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.emb.weight


def holding(x: torch.Tensor) -> nn.Module:
    """A module with one buffer."""
    module = nn.Module()
    module.register_buffer("x", x)
    return module


def state(module: nn.Module) -> dict[str, np.ndarray]:
    return {n: t.detach().numpy().copy() for n, t in module.state_dict().items()}


def saved(tmp_path: Path, wide: int = 5) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"a/kernel": (4, wide), "a/bias": (wide,), "b/kernel": (wide, 2), "b/bias": (2,)}
    ckptconv.save({n: rng.normal(size=s).astype("f4") for n, s in shapes.items()}, tmp_path / "m.npz")
    (tmp_path / "rules.toml").write_text(RULES)
    return tmp_path / "m.npz"


# --- loading ----------------------------------------------------------------------------------------------------------


def test_load_into(tmp_path: Path) -> None:
    source, module = saved(tmp_path), Net()
    memory = module.a.weight.data_ptr()
    report = into.load_into(module, source, converter=str(tmp_path / "rules.toml"))
    assert report.loaded == ("a.weight", "a.bias", "b.weight", "b.bias")
    assert report.missing == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert module.a.weight.data_ptr() == memory
    assert module.a.weight.requires_grad
    want = ckptconv.open(source)["a/kernel"].numpy().T
    assert module.a.weight.detach().numpy().tobytes() == want.tobytes()
    assert "3 missing" in str(report)


def test_what_to_look_at_is_in_the_report(tmp_path: Path) -> None:
    """As `convert` says it: of a converter, of a match, and of its file."""
    source = {"conv/kernel": np.ones((3, 3, 3, 8), "f4"), "fc/kernel": np.ones((32, 4), "f4")}
    module = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3, bias=False), "fc": nn.Linear(32, 4, bias=False)})
    found = ckptconv.match(source, module, values=False)
    file, marked = tmp_path / "r.toml", "1 rule of r.toml marked as a guess by `match` (after a flattened"
    file.write_text(found.rules)
    for rules, says in (("keras-torch", "(fc/kernel)"), (found, "look at this: after a flattened"), (file, marked)):
        report = into.load_into(module, source, converter=rules)
        assert says in str(report)
        assert " loaded; " in repr(report)
    assert "look at this: after a flattened" in str(found)


ODD = {
    "plain": lambda t: t, "transposed": lambda t: t.t(), "strided": lambda t: t[:, ::2], "wider": lambda t: t.double(),
    "bfloat16": lambda t: t.bfloat16(), "none": lambda t: t[:0],
    "conjugate": lambda t: torch.complex(t, t).conj(), "negative": lambda t: torch.complex(t, t).conj().imag,
}  # fmt: skip


@pytest.mark.parametrize("sort", ODD)
def test_any_memory_is_filled_as_torch_fills_it(sort: str, tmp_path: Path) -> None:
    want = ODD[sort](torch.randn(4, 6)).resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    given = want.float() if sort == "wider" else want
    torch.save({"x": given}, tmp_path / "a.pt")
    module = holding(ODD[sort](torch.randn(4, 6)))
    memory, version, strides = module.x.data_ptr(), module.x._version, module.x.stride()
    into.load_into(module, tmp_path / "a.pt")
    assert torch.equal(module.x, given.to(want.dtype))
    assert (module.x.data_ptr(), module.x.stride()) == (memory, strides)
    assert module.x._version > version  # autograd sees that it changed


def test_a_module_is_loaded_from_its_own_memory_in_another_order(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('[[rule]]\nlayout = "i o -> o i"\nnames = { "weight" = "weight" }\n')
    module = nn.Linear(512, 512, bias=False)  # more than one tile
    want = module.weight.detach().t().clone()
    into.load_into(module, into.snapshot(module), converter=str(tmp_path / "r.toml"))
    assert torch.equal(module.weight, want)


def test_nothing_changes_unless_all_fits(tmp_path: Path) -> None:
    source, module = saved(tmp_path, wide=6), Net()
    before = state(module)
    with pytest.raises(ConversionError, match=r"a\.weight: \[6, 4\] in the source, \[5, 4\] in the module"):
        into.load_into(module, source, converter=str(tmp_path / "rules.toml"))
    with pytest.raises(ConversionError, match="4 not in the module"):
        into.load_into(module, source)
    after = state(module)
    assert all(np.array_equal(before[n], after[n]) for n in before)
    loose = into.load_into(module, source, converter=str(tmp_path / "rules.toml"), strict=False)
    assert loose.loaded == ("b.bias",)
    assert len(loose.mismatched) == 3
    assert not loose.complete


def test_a_missing_parameter_is_an_error_and_a_missing_buffer_is_not() -> None:
    module = Net()
    arrays = {n: a for n, a in state(module).items() if "norm" not in n}
    assert into.load_into(module, to_checkpoint(arrays)).missing[0] == "norm.running_mean"
    del arrays["b.bias"]
    with pytest.raises(ConversionError, match=r"b\.bias"):
        into.load_into(module, to_checkpoint(arrays))


def test_what_is_cast_is_said() -> None:
    module = nn.Linear(2, 2).to(torch.bfloat16)
    report = into.load_into(module, to_checkpoint({"weight": np.full((2, 2), 1.5, "f4"), "bias": np.zeros(2, "f4")}))
    assert report.cast == ("weight", "bias")
    assert module.weight[0, 0].item() == 1.5


LOST = {  # what is loaded, into what, and how many values became infinite and zero
    "halves": ([7e4, 1e-9, 0, np.inf, 1], "f4", "float16", (1, 1)),
    "bfloat16": ([1e300, 1e-300, 1], "f8", "bfloat16", (1, 1)),
    "integers": ([70000, 3], "i8", "float16", (1, 0)),
    "complex": ([1e300 + 1e-300j, 1], "c16", "complex64", (1, 1)),
    "nothing": ([1, 2], "f8", "float32", None),
}


@pytest.mark.parametrize("case", LOST)
def test_what_a_cast_loses_is_counted(case: str) -> None:
    given, kind, wanted, loss = LOST[case]
    module = holding(torch.zeros(len(given), dtype=getattr(torch, wanted)))
    report = into.load_into(module, to_checkpoint({"x": np.array(given, kind)}))
    assert report.loss == ({} if loss is None else {"x": loss})
    assert ("  lossy: in 1 tensor, " in str(report)) is bool(loss)


OTHER = {  # what torch would load as other values, and how many of them; and what is no other value
    "a fraction": ([0.5, 2.0, -0.0], "f4", "int32", 1),
    "a sign": ([-1, 5], "i1", "uint8", 1),
    "unsigned": ([2**63, 2**63 - 1], "u8", "int64", 1),
    "a mask": ([-1e4, 0, 1], "f4", "bool", 1),
    "bfloat16": ([3, 0.5], "bfloat16", "int64", 1),
    "bools": ([True, False], "?", "int8", 0),
    "zero and one": ([0, 1], "i8", "bool", 0),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_cast_that_makes_other_values_is_refused(case: str) -> None:
    given, kind, wanted, odd = OTHER[case]
    module = holding(torch.zeros(len(given), dtype=getattr(torch, wanted)))
    source = to_checkpoint({"x": np.array(given, getattr(ml_dtypes, kind, kind))})
    if odd:
        with pytest.raises(ckptconv.ConversionError, match=f"x: {odd} of {len(given)} values do not fit {wanted}"):
            into.load_into(module, source)
        assert not module.x.any()
    else:
        into.load_into(module, source)
        assert module.x.tolist() == given


@pytest.mark.parametrize("kind", ["complex64", "float4_e2m1fn_x2"])
def test_what_is_no_real_number_is_not_cast_to_one(kind: str, tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(8, dtype=torch.uint8).view(getattr(torch, kind))}, tmp_path / "m.pt")
    for wanted in (torch.float32, torch.uint8, torch.bool):
        module = holding(torch.zeros(8 if kind[0] == "f" else 1, dtype=wanted))
        with pytest.raises(ckptconv.ConversionError, match=f"x: {kind} cannot be cast to {str(wanted)[6:]}"):
            into.load_into(module, tmp_path / "m.pt")


@pytest.mark.parametrize("kind", ["a span", "compressed"])
def test_what_is_loaded_is_compared_with_the_hashes_of_its_file(kind: str, tmp_path: Path) -> None:
    """Given by its path or open, as it is or by rules."""
    path, module = tmp_path / "m.hdf5", nn.Linear(8, 8)
    ckptconv.save(nn.Linear(8, 8), path)
    damage(path, "weight", compressed=kind == "compressed")
    before = module.bias.detach().clone()
    (tmp_path / "r.toml").write_text('[[rule]]\nnames = { "{x}" = "{x}" }\n')
    for source in (path, ckptconv.open(path)):
        for rules in (None, str(tmp_path / "r.toml")):
            with pytest.raises(ckptconv.CkptError, match=r"weight: its content does not|match the file's own hashes"):
                into.load_into(module, source, converter=rules)
    assert torch.equal(module.bias, before)
    for source in (path, ckptconv.open(path)):  # the hashes may be those of before an edit
        for rules in (None, str(tmp_path / "r.toml")):
            assert into.load_into(module, source, converter=rules, verify=False).complete


VALUELESS = {  # what `save` does not take, and what it says of it
    "sparse": (lambda: torch.eye(3).to_sparse(), "it is sparse_coo; save a dense tensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "it is nested; save a dense tensor"),
    "meta": (lambda: torch.ones(2, device="meta"), "it has no values yet: load some"),
    "lazy": (lambda: nn.LazyLinear(2).weight, "it has no values yet: load some, or run its module"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "it is quantised"),
    "complex32": (lambda: torch.ones(2).to(torch.complex32), "torch's dtype complex32 is not supported"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse|.*prototype stage|.*[Qq]uantiz")
@pytest.mark.parametrize("what", VALUELESS)
def test_save_says_which_tensor_is_no_array_and_what_is(what: str, tmp_path: Path) -> None:
    """Not in the words of torch's internals."""
    make, says = VALUELESS[what]
    with pytest.raises(ckptconv.UsageError, match=rf"1 of 2 values are not .*\n  net\.w: .*{says}"):
        ckptconv.save({"net.w": make(), "ok": torch.ones(1)}, tmp_path / "a.safetensors")


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["m.safetensors", "m.npz", "m.hdf5"])
def test_another_file_under_the_same_names_is_not_loaded(name: str, verify: bool, tmp_path: Path) -> None:
    """As it is or by rules."""
    (tmp_path / "r.toml").write_text('[[rule]]\nnames = { "{x}" = "{x}" }\n')

    def made(value: int) -> None:
        ckptconv.save(
            {"weight": np.full((2, 2), value, "f4"), "bias": np.full(2, value, "f4")}, tmp_path / "new" / name
        )
        (tmp_path / "new" / name).replace(tmp_path / name)

    for rules in (None, str(tmp_path / "r.toml")):
        module = nn.Linear(2, 2)
        before = module.weight.detach().clone()
        made(1)
        source = ckptconv.open(tmp_path / name)
        made(2)
        with pytest.raises(ckptconv.CorruptCheckpoint, match="changed since it was opened"):
            into.load_into(module, source, converter=rules, verify=verify)
        assert torch.equal(module.weight, before)


def damage(path: Path, name: str, *, compressed: bool) -> None:
    """Change a value of a tensor in an HDF5 file, which keeps its hashes."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r+") as file:
        values = file[name][()]
        values.flat[3] += 1
        del file[name]
        file.create_dataset(name, data=values, compression="gzip" if compressed else None)


def test_outline_needs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big_module.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n    return nn.Linear(2**20, 2**20)\n"
        "def picky():\n    m = nn.Linear(2, 3)\n    m.bias.data.fill_(float(torch.ones(1).item()))\n    return m\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = into.outline(into.build("big_module:build", meta=True))
    assert {n: t.shape for n, t in made.items()} == {"weight": (2**20, 2**20), "bias": (2**20,)}
    assert into.outline(into.build("big_module:picky", meta=True))["bias"].shape == (3,)  # which meta cannot build
    for wrong, why in (
        ("big_module:nothing", "nothing"),
        ("no_such_module:f", "no_such"),
        ("big_module:number", "int"),
        ("big_module:nn.Linear", "without arguments: missing a required argument: .in_features.; name a function"),
    ):
        with pytest.raises(UsageError, match=why):
            into.build(wrong)


# --- comparing --------------------------------------------------------------------------------------------------------


def test_compare_names_the_first_that_departs() -> None:
    one, other = Net().eval(), Net().eval()
    other.load_state_dict(one.state_dict())
    x = torch.randn(3, 4)
    assert into.compare(one, other, x).same
    with torch.no_grad():
        other.b.bias += 1
    found = into.compare(one, other, x)
    assert found.first is not None
    assert found.first.name == "b"
    assert [s.name for s in found.steps if s.same] == ["a", "norm"]
    assert "b departs" in str(found)


def test_compare_with_arrays_and_functions() -> None:
    module = Net()
    module.train()
    x = np.ones((3, 4), "f4")
    module.eval()
    want = module(torch.from_numpy(x)).detach().numpy()
    module.train()
    assert into.compare(module, {"": want}, x).same
    assert into.compare(module, lambda _: want, x).same
    assert module.training  # as it was
    found = into.compare(module, {"": want[:2]}, x)
    assert "shape" in str(found)
    with pytest.raises(UsageError, match="nowhere"):
        into.compare(module, {"nowhere": want}, x)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


def test_what_was_not_compared_is_not_the_same() -> None:
    module, x = Unused(), torch.ones(1, 2)
    right, other = module.a(x).detach().numpy(), np.full((1, 2), 99.0)
    for want, text in (
        ({"unused": other}, "unused departs: it did not run"),
        ({"unused": other, "a": right}, "unused departs: it did not run; a before it is the same"),
        ({"unused": other, "a": other}, f"a departs: by {99 - right.min():.3g}"),
    ):
        found = into.compare(module, want, x)
        assert not found.same
        assert str(found) == text
    for nothing in ({}, lambda _: {}):
        with pytest.raises(UsageError, match="the reference has no outputs"):
            into.compare(module, nothing, x)


def test_what_a_function_computes_in_one_of_two_modules_is_not_compared() -> None:
    class Called(Unused):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.unused(x)
            return super().forward(x)

    module, called, x = Unused(), Called(), torch.ones(1, 2)
    called.load_state_dict(module.state_dict())
    assert into.compare(module, called, x).same
    nn.init.zeros_(called.a.weight)
    assert not into.compare(module, called, x).same


def test_a_layer_without_shapes_that_is_not_loaded() -> None:
    module = nn.ModuleDict({"a": nn.Linear(2, 2), "head": nn.LazyLinear(3)})
    given = {"a.weight": np.ones((2, 2), "f4"), "a.bias": np.ones(2, "f4")}
    found = into.load_into(module, to_checkpoint(given), strict=False)
    assert found.loaded == ("a.weight", "a.bias")
    with pytest.raises(ConversionError, match=r"(?s)nothing is loaded:\n.*match\(source, module\) proposes[^\n]*$"):
        into.load_into(module, {"b.weight": np.ones((2, 2), "f4")}, strict=False)
    for refused in (
        lambda: into.load_into(module, to_checkpoint(given | {"head.bias": np.ones(3, "f4")}), strict=False),
        lambda: into.outline(module),
    ):
        with pytest.raises(UsageError, match=r"run the module once(.|\n)*head\."):
            refused()


def test_names_of_arrays_beside_tensors_of_torch_are_joined_as_in_its_files() -> None:
    given = {
        "model": {"a.weight": torch.ones(1)},
        "ema": {"a.weight": nn.Parameter(torch.ones(1))},
        "p": {"b": np.ones(1)},
    }
    assert [*to_checkpoint(given)] == ["model.a.weight", "ema.a.weight", "p.b"]


# --- the tutorials ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.stem)
def test_tutorial(
    page: Path, fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("msgpack")
    home = tmp_path / "home"
    home.mkdir()
    (home / "fixtures").symlink_to(fixtures)
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    space: dict[str, object] = {}
    ran, written = 0, []
    for kind, file, text in re.findall(
        r"^```(python|shell)(?: file=(\S+))?\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
    ):
        ran += 1
        if file:
            (home / file).write_text(text)
            written.append(Path(file).stem)
        elif kind == "python":
            exec(compile(text, f"{page.name}, block {ran}", "exec"), space)
        else:
            for step in steps(text):
                shown = run(step.command, home)
                assert fits(step.expected, shown), f"$ {step.command}\n{shown}"
    assert ran >= 5
    for name in written:
        sys.modules.pop(name, None)
    assert "the same: 1 output," in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_dtype_of_torch_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="torch's dtype quint8 is not supported"):
        into.outline(holding(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)))


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_loaded_gets_memory_on_the_device(whole: bool) -> None:
    """Ties stay ties, gradients as they were; what is not loaded stays without memory instead of holding anything."""
    table, shift = np.arange(28, dtype="f4").reshape(7, 4), np.ones(7, "f4")
    with torch.device("meta"):
        module = Tied()
        module.register_buffer("shift", torch.zeros(7))
    module.emb.weight.requires_grad_(False)
    report = into.load_into(
        module, to_checkpoint({"emb.weight": table} | ({"shift": shift} if whole else {})), device="cpu"
    )
    assert module.head.weight is module.emb.weight
    assert isinstance(module.emb.weight, nn.Parameter)
    assert torch.equal(module.emb.weight, torch.from_numpy(table))
    assert not module.emb.weight.requires_grad
    assert module.shift.is_meta is not whole
    assert ("shift" in report.missing) is not whole


def test_a_module_without_memory_is_not_filled() -> None:
    with pytest.raises(UsageError, match=r"weight has no memory \(device meta\); give load_into a device="):
        into.load_into(nn.Linear(2, 2, device="meta"), to_checkpoint({"weight": np.ones((2, 2)), "bias": np.ones(2)}))


RAISING = {
    "syntax.py": ("def (", r"SyntaxError: .*\(.*syntax.py:1\)$"),
    "late.py": ("import missing_thing_of_mine", r"ModuleNotFoundError: No module .*\(.*late.py:1\)$"),
    "left.py": ("raise SystemExit(3)", r"SystemExit: 3 \(.*left.py:1\)$"),
}


@pytest.mark.parametrize("file", RAISING)
def test_code_that_cannot_be_imported_is_blamed(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, words = RAISING[file]
    (tmp_path / f"blamed_{file}").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"blamed_{file.removesuffix('.py')}:net"
    with pytest.raises(UsageError, match=f"^{name} raised {words}".replace("syntax.py", "blamed_syntax.py")):
        import_named(name)


def test_what_is_not_there_is_not_blamed_on_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blamed_fine.py").write_text("class A:\n    b = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert import_named("blamed_fine.py:A.b") == 5
    for name, words in (
        ("blamed_fine:c", "module 'blamed_fine' has no attribute 'c'"),
        ("blamed_no:c", "No module named"),
    ):
        with pytest.raises(UsageError, match=f"^{name}: {words}"):
            import_named(name)


# --- what modules compute ---------------------------------------------------------------------------------------


NOT_FINITE = "1 of the 2 numbers of its output are NaN or infinite, or should be"
STEPS = {
    "one NaN": ([np.array([np.nan, 1.0])], [np.array([2.0, 1.0])], 0.0, False, NOT_FINITE),
    "within": ([np.array([1.0, 100.5])], [np.array([1.25, 100.0])], 0.5, True, ""),
    "beyond it": ([np.array([0.2501])], [np.array([0.0])], 0.2501, False, ""),
    "beyond both": ([np.array([101.5])], [np.array([100.0])], 1.5, False, ""),
    "the second": ([np.ones(1), np.ones(1)], [np.ones(1), np.array([9.0])], 8.0, False, ""),
    "complex": ([np.array([1 + 1j])], [np.array([1.0])], 1.0, False, ""),
    "shapes": ([np.ones((2, 1))], [np.ones(2)], np.inf, False, "its output has the shape [2, 1], not [2]"),
}


@pytest.mark.parametrize("case", STEPS)
def test_one_output(case: str) -> None:
    got, want, difference, same, why = STEPS[case]
    found = step("name", got, want, rtol=0.01, atol=0.25)
    assert found == ("name", pytest.approx(difference), same, why)
    assert compare_outputs({"a": got, "only here": got}, {"only there": want, "a": want}, 0.01, 0.25).steps == (
        found._replace(name="a"), Step("only there", np.inf, False, "it did not run"),
    )  # fmt: skip


class Named(NamedTuple):
    last: Any
    states: Any


@dataclass
class Filled:
    last: Any
    states: Any = None


class Cache:
    """Can be iterated over and is ragged, like a cache of keys and values in Transformers."""

    def __iter__(self) -> Any:
        return iter([[1], [1, 2]])


ONE = torch.ones(1)
IN_ORDER = (ONE, [ONE])  # below one key
OUTPUTS: dict[str, tuple[Any, list[Any], list[str]]] = {  # what a module returns, its arrays, and their names
    "bfloat16": (torch.ones(2, dtype=torch.bfloat16), [[1.0, 1.0]], [""]),
    "nested": ([ONE, {"a": ONE, "b": (ONE * 2,)}], [[1.0], [1.0], [2.0]], ["", "a", "b"]),
    "an array": (np.arange(2), [[0, 1]], [""]),
    "a cache": ({"y": ONE, "past": Cache()}, [[1]], ["y"]),
    "a tuple of names": (Named(ONE, {"hidden": IN_ORDER, 3: ONE}), [[1]] * 4, ["last", "hidden", "hidden", "3"]),
    "fields": ([ONE, Filled(ONE, ONE), ONE], [[1]] * 4, ["", "last", "states", ""]),
}


def run_once(value: Any) -> tuple[list[Any], list[str]]:
    """The arrays of what a module returns, and their names."""
    module = nn.Module()
    module.forward = lambda: value
    found, names = computed(module, (), {})
    return found[""], names


@pytest.mark.parametrize("case", OUTPUTS)
def test_all_tensors_of_an_output_and_their_names(case: str) -> None:
    value, arrays, names = OUTPUTS[case]
    found, labels = run_once(value)
    assert ([a.tolist() for a in found], labels) == (arrays, names)


def test_arrays_of_an_output_are_its_own() -> None:
    for kind, made in ((torch.float32, "float32"), (torch.bfloat16, "float64"), (torch.float64, "float64")):
        value = torch.ones(2, dtype=kind)
        ((found,), _) = run_once(value)
        value.zero_()
        assert (found.tolist(), found.dtype.name) == ([1, 1], made)


class Packed(nn.Module):
    """Its tensors are placed anew each time that its state dict is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.register_buffer("b", torch.zeros(3))
        self.register_state_dict_pre_hook(lambda *_: self.pack())

    def pack(self) -> None:
        both = torch.cat([self.w.data, self.b])
        self.w.data, self.b = both[:3], both[3:]


def test_a_module_whose_tensors_move_is_loaded(tmp_path: Path) -> None:
    arrays = {"w": np.arange(3, dtype="f4"), "b": np.arange(3, dtype="f4") + 5}
    ckptconv.save(arrays, tmp_path / "m.safetensors")
    module = Packed()
    assert set(into.load_into(module, tmp_path / "m.safetensors").loaded) == {"w", "b"}
    assert (module.w.tolist(), module.b.tolist()) == ([0, 1, 2], [5, 6, 7])


class Wrapping(nn.Module):
    """Gives what a function makes of its outputs."""

    def __init__(self, by: float, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.by, self.wrap = nn.Identity(), by, wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.a(x) * self.by)


def sparse_but_kept(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y > 1, y, 0).to_sparse()


ODD_OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {  # of a module, from a tensor of three rows
    "conjugate": lambda y: torch.complex(y, y).conj(), "negative": lambda y: torch.complex(y, y).conj().imag,
    "sparse": sparse_but_kept,
    "by rows": lambda y: sparse_but_kept(y).to_dense().to_sparse_csr(),
    "quantised": lambda y: torch.quantize_per_tensor(y, 0.1, 0, torch.qint8),
    **{
        name: lambda y, name=name: y.to(getattr(torch, name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16", "bool")
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("case", ODD_OUTPUTS)
def test_outputs_of_any_dtype_and_layout_are_compared(case: str) -> None:
    """With themselves, and with what they stand for as an array."""
    x = torch.tensor([[1.0, 1.0], [2.0, 4.0], [0.0, 8.0]])
    one, other = Wrapping(1, ODD_OUTPUTS[case]), Wrapping(0, ODD_OUTPUTS[case])
    assert into.compare(one, one, x).same
    found = into.compare(one, other, x)
    assert found.first == Step("", found.steps[-1].difference, False)
    ((array,), _) = run_once(ODD_OUTPUTS[case](x))
    assert array.dtype.kind in "fiubc"
    assert array.dtype.isnative
    like = {"conjugate": x - 1j * x, "negative": -x, "sparse": x * (x > 1), "bool": x > 0}
    want = like.get(case, x if case != "by rows" else x * (x > 1)).numpy()
    assert np.allclose(array, want, atol=1e-6 if "e8m0" not in case else 1e-30)
    assert into.compare(one, {"": array.astype(array.dtype.newbyteorder(">"))}, x).same


REFUSED_OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "nested": (lambda y: torch.nested.nested_tensor([y, y[:1]]), "it is nested"),
    "without memory": (lambda y: y.to("meta"), "it is a Tensor of float32 on meta"),
    "packed": (lambda y: y.to(torch.uint8).view(torch.float4_e2m1fn_x2), "it is a Tensor of float4_e2m1fn_x2 on cpu"),
}


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("case", REFUSED_OUTPUTS)
def test_outputs_that_are_no_array_are_refused_by_the_name_of_the_submodule(case: str) -> None:
    """Unless others are compared."""
    wrap, words = REFUSED_OUTPUTS[case]
    module, x = nn.Sequential(Wrapping(1, wrap)), torch.ones(3, 2)
    for want, name in ((module, "0"), ({"": np.ones(1)}, "the whole module"), ({"0": np.ones(1)}, "0")):
        with pytest.raises(UsageError, match=f"^an output of {name} cannot be compared: {words}"):
            into.compare(module, want, x)
    assert into.compare(module, {"0.a": x}, x).same


WHOLE = {  # what a module gives, what it is compared with (None: a module that computes something else), what is said
    "a distribution": (lambda y: torch.distributions.Normal(y, 1.0), None, "no tensors.*:\n  .the whole module.$"),
    "nothing": (lambda y: None, None, "no tensors"),
    "a part of it": (lambda y: None, {"a": np.ones((1, 3))}, "the same: 1 output,"),
    "a field": (lambda y: Filled(y), None, "departs: by 1; a before it is the same"),
    "a tensor instead of none": (lambda y: y, {"": None}, r"departs: its output has the shape \[1, 3\], not none"),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_holds_no_tensors_is_not_the_same(case: str) -> None:
    wrap, want, said = WHOLE[case]
    module, other = Wrapping(1, wrap), Wrapping(2, wrap)
    try:
        text = str(into.compare(module, other if want is None else want, torch.ones(1, 3)))
    except UsageError as e:
        text = e.message
    assert re.search(said, text)


@pytest.mark.parametrize("options", [{}, {"weights_only": False}])
def test_what_is_no_weight_is_neither_loaded_nor_unexpected(options: dict[str, Any], tmp_path: Path) -> None:
    arrays = {"weight": np.ones((2, 2), "f4"), "bias": np.ones(2, "f4"), "global_step": np.int64(3)}
    ckptconv.save(arrays, tmp_path / "m.npz")
    found = into.load_into(nn.Linear(2, 2), tmp_path / "m.npz", **options)
    assert (found.loaded, found.unexpected) == (("weight", "bias"), ())
