"""Settings of the functions that a module calls, tried without changing it: epsilons, paddings, modes.

A mode of torch sees each call of torch's functions, from torch's own modules as from code that calls them itself, and
replaces one argument. Modules that normalise by themselves keep their epsilon as an attribute, which is set for a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..verification.torch import Runner
from .given import channels_last
from .settings import ARRAYS, Knob, Site

EPSILONS = (1e-3, 1e-5, 1e-6, 1e-12)
SAME = "SAME of TensorFlow"
LESS = "one less in front"
LEGACY = "TensorFlow 1"
ATTRIBUTES = ("eps", "epsilon", "variance_epsilon")  # of modules that are not torch's own


class Row(NamedTuple):
    """A function: its parameters in order, the argument that is tried, its default, and the values to try."""

    name: str
    parameters: str
    argument: str
    default: Any
    candidates: tuple[Any, ...]


CONV = "input weight bias stride padding dilation groups"
BACK = "input weight bias stride padding output_padding groups dilation"
MAX = "input kernel_size stride padding dilation ceil_mode return_indices"
AVG = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"
SIZED = "input size scale_factor mode align_corners recompute_scale_factor antialias"


def _rows() -> Iterator[tuple[Any, Row]]:
    """What is tried, the likeliest first."""
    moving = "input running_mean running_var weight bias training momentum eps"
    yield functional.batch_norm, Row("batch_norm", moving, "eps", 1e-5, EPSILONS)
    yield functional.layer_norm, Row("layer_norm", "input normalized_shape weight bias eps", "eps", 1e-5, EPSILONS)
    yield functional.group_norm, Row("group_norm", "input num_groups weight bias eps", "eps", 1e-5, EPSILONS)
    yield functional.instance_norm, Row("instance_norm", f"{moving} ", "eps", 1e-5, EPSILONS)
    if hasattr(functional, "rms_norm"):
        yield functional.rms_norm, Row("rms_norm", "input normalized_shape weight eps", "eps", None, EPSILONS)
    for n in (1, 2, 3):
        yield getattr(functional, f"conv{n}d"), Row(f"conv{n}d", CONV, "padding", 0, (SAME,))
        yield getattr(functional, f"conv_transpose{n}d"), Row(f"conv_transpose{n}d", BACK, "padding", 0, (SAME,))
        for home in (torch, functional):
            yield getattr(home, f"max_pool{n}d"), Row(f"max_pool{n}d", MAX, "padding", 0, (SAME,))
            yield getattr(home, f"max_pool{n}d"), Row(f"max_pool{n}d", MAX, "ceil_mode", False, (True, False))
        yield getattr(functional, f"avg_pool{n}d"), Row(f"avg_pool{n}d", AVG, "padding", 0, (SAME,))
        yield getattr(functional, f"avg_pool{n}d"), Row(f"avg_pool{n}d", AVG, "count_include_pad", True, (True, False))
        yield getattr(functional, f"avg_pool{n}d"), Row(f"avg_pool{n}d", AVG, "ceil_mode", False, (True, False))
    yield functional.pad, Row("pad", "input pad mode value", "pad", None, (LESS,))
    yield functional.gelu, Row("gelu", "input", "approximate", "none", ("tanh", "none"))
    yield (
        functional.leaky_relu,
        Row("leaky_relu", "input negative_slope", "negative_slope", 0.01, (0.3, 0.2, 0.1, 0.01)),
    )
    yield functional.interpolate, Row("interpolate", SIZED, "align_corners", None, (True, False, LEGACY))
    attend = "query key value attn_mask dropout_p is_causal scale"
    yield functional.scaled_dot_product_attention, Row("scaled_dot_product_attention", attend, "scale", None, (1.0,))
    for spread in ("var", "std"):
        for owner in (torch, torch.Tensor):
            yield getattr(owner, spread), Row(spread, "input dim", "correction", 1, (0, 1))


FUNCTIONS: dict[Any, list[Row]] = {}
KINDS: dict[tuple[str, str], int] = {}  # in the order in which they are tried
for _function, _row in _rows():
    FUNCTIONS.setdefault(_function, []).append(_row)
    KINDS.setdefault((_row.name, _row.argument), len(KINDS))


class Calls(TorchFunctionMode):
    """While it is entered, calls in a module have the chosen arguments; it knows what is called, and what changed."""

    def __init__(self, module: torch.nn.Module, chosen: Mapping[Site, Any]) -> None:
        super().__init__()
        self.module, self.chosen = module, chosen
        self.seen: dict[Site, Knob] = {}
        self.changed: set[Site] = set()
        self.inside: list[str] = []
        self.done = ExitStack()

    def __enter__(self) -> Any:
        for name, part in self.module.named_modules():
            for hook in (
                part.register_forward_pre_hook(lambda _m, _i, name=name: self.inside.append(name)),
                part.register_forward_hook(lambda _m, _i, _o: self._left()),
            ):
                self.done.callback(hook.remove)
            self._attributes(name, part)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        self.done.close()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _left(self) -> None:
        self.inside.pop()

    def _attributes(self, name: str, part: torch.nn.Module) -> None:
        """Set the epsilon of a module that is not torch's own, until the end."""
        for key in ATTRIBUTES if not type(part).__module__.startswith("torch.nn.modules") else ():
            now, site = part.__dict__.get(key), Site(name, type(part).__name__, key)
            if type(now) is float:
                self.seen[site] = Knob(site, now, EPSILONS)
                if site in self.chosen:
                    setattr(part, key, self.chosen[site])
                    self.changed.add(site)
                    self.done.callback(setattr, part, key, now)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        for row in FUNCTIONS.get(func, ()):
            site = Site(self.inside[-1] if self.inside else "", row.name, row.argument)
            call = Call(func, row, list(args), kwargs)
            self.seen.setdefault(site, Knob(site, call.get(row.argument, row.default), row.candidates))
            if site in self.chosen and (found := _changed(call, self.chosen[site])) is not None:
                self.changed.add(site)
                if not isinstance(found, Call):
                    return found
                args, kwargs = found.args, found.kwargs
        return func(*args, **kwargs)


class Call(NamedTuple):
    """A call of a function, and the row that knows its parameters."""

    func: Any
    row: Row
    args: list[Any]
    kwargs: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        names = self.row.parameters.split()
        at = names.index(name) if name in names else len(self.args)
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, default)

    def having(self, **changes: Any) -> Call:
        names, args, kwargs = self.row.parameters.split(), list(self.args), dict(self.kwargs)
        for name, value in changes.items():
            if name in names and names.index(name) < len(args):
                args[names.index(name)] = value
            else:
                kwargs[name] = value
        return self._replace(args=args, kwargs=kwargs)

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)


def _changed(call: Call, value: Any) -> Any:
    """The call with another value of its argument, or what it then returns; None if that is the same."""
    row = call.row
    if value == LESS:
        pad = call.get("pad")
        fewer = [n - (n > 0 and n == m) if k % 2 == 0 else n for k, (n, m) in enumerate(pairwise([*pad, None]))]
        return call.having(pad=fewer) if fewer != list(pad) else None
    if value == SAME:
        return _cropped(call) if row.name.startswith("conv_transpose") else _padded(call)
    if row.argument == "align_corners":
        if "linear" not in (mode := call.get("mode", "nearest")) and mode != "bicubic":
            return None
        return _legacy(call) if value == LEGACY else call.having(align_corners=value)
    if row.argument == "correction":
        if any(isinstance(a, bool) for a in call.args):
            return None
        call.kwargs.pop("unbiased", None)
    return call.having(**{row.argument: value}) if value != call.get(row.argument, row.default) else None


def _each(value: Any, rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else [*value] * (rank if len(value) == 1 else 1)


def _windows(call: Call) -> tuple[Any, list[int], list[int], list[int], list[int], list[int]]:
    """The input, and of each axis its length, the kernel, stride, dilation and padding."""
    x, rank = call.get("input"), int(call.row.name[-2])
    kernel = [*call.get("weight").shape[2:]] if "conv" in call.row.name else _each(call.get("kernel_size"), rank)
    stride = _each(call.get("stride") or (1 if "conv" in call.row.name else kernel), rank)
    return (
        x,
        [*x.shape[-rank:]],
        kernel,
        stride,
        _each(call.get("dilation", 1), rank),
        _each(call.get("padding", 0), rank),
    )


def _padded(call: Call) -> Any:
    """The call with as many zeros on each side as TensorFlow puts there; None if these are the same, or too many."""
    if isinstance(call.get("padding", 0), str):
        return None
    x, sizes, kernel, stride, dilation, padding = _windows(call)
    pads: list[int] = []
    for n, k, s, d, p in reversed([*zip(sizes, kernel, stride, dilation, padding, strict=True)]):
        missing = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads += [missing // 2, missing - missing // 2]
        if -(-n // s) != (n + 2 * p - d * (k - 1) - 1) // s + 1 and not call.get("ceil_mode", False):
            return None
    if pads == [p for p in reversed(padding) for _ in range(2)]:
        return None
    if "avg" in call.row.name:  # what is padded does not count
        both = [call.having(input=functional.pad(y, pads), padding=0).run() for y in (x, torch.ones_like(x))]
        return both[0] / both[1]
    return call.having(input=functional.pad(x, pads, value=-torch.inf if "max" in call.row.name else 0.0), padding=0)


def _cropped(call: Call) -> Any:
    """The output of a transposed convolution cropped as TensorFlow crops it; None if that is the same."""
    _, sizes, kernel, stride, dilation, padding = _windows(call)
    rank, more = len(sizes), _each(call.get("output_padding", 0), len(sizes))
    front = [max(k - s, 0) // 2 for k, s in zip(kernel, stride, strict=True)]
    every = zip(sizes, kernel, stride, dilation, padding, more, strict=True)
    if front == padding or any((n - 1) * s + d * (k - 1) + 1 - 2 * p + m != n * s for n, k, s, d, p, m in every):
        return None
    whole = call.having(padding=0, output_padding=0).run()
    for axis, (before, n, s) in enumerate(zip(front, sizes, stride, strict=True), whole.dim() - rank):
        whole = whole.narrow(axis, before, n * s)
    return whole


def _legacy(call: Call) -> Any:
    """Resizing as TensorFlow 1 does it: corners are not aligned, and pixels have no halves."""
    x, now = call.get("input"), call.run()
    for axis in range(2, x.dim()):
        n, to = x.shape[axis], now.shape[axis]
        at = torch.arange(to, device=x.device, dtype=x.dtype) * (n / to)
        low = at.long().clamp(max=n - 1)
        weight = (at - low).reshape([-1] + [1] * (x.dim() - axis - 1))
        x = x.index_select(axis, low) * (1 - weight) + x.index_select(axis, (low + 1).clamp(max=n - 1)) * weight
    return x


def _first(value: Any) -> Any:
    return value.movedim(-1, 1) if isinstance(value, torch.Tensor) and value.dim() > 2 else value


def _last(array: Any) -> Any:
    turned = channels_last(array)
    return turned if turned.shape == array.shape else array


class Adjustable(Runner):
    """A module that is run with other weights and other settings; `chosen` are those of the next run."""

    def __init__(self, module: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        super().__init__(module, arguments, named)
        self.chosen: dict[Site, Any] = {}
        self.changed: set[Site] = set()  # where the last run was another one for that

    def outputs(self) -> dict[str, list[Any]]:
        """The outputs of every submodule, in the order of execution."""
        if not self.chosen:
            self.changed = set()
            return super().outputs()
        last = self.chosen.get(ARRAYS, "")
        given = self.arguments, self.named
        if "inputs" in last:
            self.arguments, self.named = tuple(map(_first, given[0])), {n: _first(x) for n, x in given[1].items()}
        try:
            with Calls(self.module, self.chosen) as calls:
                found = super().outputs()
        finally:
            self.arguments, self.named = given
        self.changed = calls.changed
        if "outputs" in last:
            found |= {n: [_last(x) for x in found[n]] for n in self.picked if n in found}
        return found

    def knobs(self) -> Sequence[Knob]:
        """What could be set: by kind, the likeliest first, then in the order of execution."""
        with Calls(self.module, {}) as calls:
            super().outputs()
        given = {s.where for s in calls.seen if s.argument == "eps" and (s.function, "eps") in KINDS}
        for site in [*calls.seen]:
            if (site.function, site.argument) not in KINDS and site.where in given:
                del calls.seen[site]  # an attribute that is handed to a function
        if any(_first(x) is not x for x in (*self.arguments, *self.named.values())):
            calls.seen[ARRAYS] = Knob(ARRAYS, None, ("inputs", "outputs", "inputs and outputs"))
        return sorted(calls.seen.values(), key=lambda k: KINDS.get((k.site.function, k.site.argument), -1))


__all__ = ["Adjustable", "Calls"]
