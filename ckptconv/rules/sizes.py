"""The sizes of axes that the source shapes do not determine: fixed, taken from another tensor, or a parameter.

A parameter is given, or else taken from a tensor, or else a setting of the model, or else its default. Settings are in
config.json (of Hugging Face) or params.json (of Meta, Mistral) beside the source, or in it, as Megatron's `args`.
Sizes also tell a source that is not whole, and a model that is another converter's:

    [count]
    "<layers>" = "layers"                   # model.layers.{l}: l is 0, 1, 2 ..., up to the parameter, if it is known
    [axes]
    k = "head_size"                         # all axes called k are equally long, as long as the parameter says, if any
    [[refuse]]
    equal = ["heads", "kv_heads"]           # two sizes that are equal only in a model of another converter
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

from ..checkpoint import Tensor
from ..errors import LayoutError, UnmatchedTensors, UsageError
from ..messages import brief, did_you_mean, listing, printable
from ..storage.files import exists, read_all
from ..storage.json import parse_json
from ..storage.paths import sibling, split
from . import operations
from .assign import Group, Names, Shape, input_of, recorded
from .converter import RANKS, Converter, Fill, Rule, Size
from .passes import PART
from .templates import INT, Matcher, Template

CONFIGS = ("config.json", "params.json")
MAX_NUMBER = 2**31 - 1
MAX_CONFIG = 2**20  # bytes; a language model of 500 labels has 50 kB


class Sizes:
    """The sizes of axes and the parameters of one conversion.

    params: the values in use. missing: parameters that lack a value, with their help. configured: what was read from
    the settings in the files `read`. given: the parameters that a person gives.
    """

    def __init__(self, converter: Converter, names: Names, given: Mapping[str, Any]) -> None:
        self.converter, self.names = converter, names
        self.given = _integers(converter, given)
        params, self._record = recorded(converter, names.checkpoint)
        self.params = params | self.given
        self.missing: dict[str, str] = {}
        self.configured: list[str] = []
        self.read: dict[str, None] = {}
        self._used: set[str] = set()  # the parameters that something needed
        self._told: dict[str, set[int]] = {}  # what the file told of layers, by parameter
        self._lengths: dict[str, dict[int, str]] = {}  # of the axes that are compared, with the first tensor of each

    def axes(self, group: Group, values: Mapping[str, str]) -> dict[str, int]:
        """The sizes of a rule's axes that are known besides the shapes of its sources; LayoutError if one is lacking.

        values: the captures as the targets have them.
        """
        rule, lacking, first = group.rule, None, group.names[0]
        own = self._of_file(rule, first)
        ranks = [own[axis] for axis, size in rule.sizes.items() if size == RANKS and axis in own]
        if ranks and self.given.get(RANKS, ranks[0]) != ranks[0]:
            own = {}  # which belongs to another number of ranks
        group.recorded = own
        if rule.pattern is None and not rule.backward:
            return {}
        captures, out = values if rule.backward else group.values, rule.counts | own
        for axis, size in rule.sizes.items():
            if axis in own:
                self._told.setdefault(str(size), set()).add(own[axis])
                continue
            try:
                out[axis] = self.one(size, captures)
            except LayoutError as e:
                lacking = e
                if rule.input and size in self.missing:  # it is for some layers: say for which
                    self.missing[size] += f"; {printable(first)}"
        if lacking:
            raise lacking
        return out

    def solved(self, group: Group, known: Mapping[str, int], shapes: Sequence[Shape]) -> Mapping[str, int]:
        """The sizes of all axes of a rule, if scalings, comparisons or the inverse need them."""
        rule, compared, forgotten = group.rule, self.converter.axes, self._forgotten[group.number]
        scaled = forgotten or any(map(operations.scales, rule.op))
        if not rule.pattern or not (scaled or compared.keys() & rule.pattern.names):
            return {}
        lengths = rule.pattern.bound(shapes, known).sizes
        group.recorded |= {axis: lengths[axis] for axis in forgotten}
        for axis in compared.keys() & lengths.keys():
            first = f"{group.names[0]} {list(self.names.checkpoint[group.names[0]].shape)}"
            self._lengths.setdefault(axis, {}).setdefault(lengths[axis], first)
        return lengths

    def one(self, size: Size, captures: Mapping[str, str]) -> int:
        """A size: a number, a parameter's value, or the length of an axis; LayoutError if there is none."""
        if isinstance(size, int):
            return size
        if isinstance(size, str):
            return self.param(size)
        shape = self.names.shapes.get(name := size.name.render(captures), ())
        if (length := size.length(shape)) is None:
            raise LayoutError(f"the size is an axis of {printable(name)}, which does not exist")
        return length

    def param(self, name: str) -> int:
        """The value of a parameter; LayoutError if it has none."""
        if (found := self.known(name)) is not None:
            return found
        param = self.converter.params.get(name)
        if param is None:
            raise UsageError(
                f"the converter {self.converter.name} refers to {name!r}, which is not one of its parameters"
            )
        where = f"(a config.json beside the source has no {' or '.join(param.config)})" if param.config else ""
        self.missing.setdefault(name, f"{param.help} {where}".strip())
        raise LayoutError(f"the parameter {printable(name)} is not given")

    def numbers(self, blocks: Fill) -> list[float]:
        """The numbers of `fill`, those of parameters among them."""
        return [float(self.param(b) if isinstance(b, str) else b) for b in blocks]

    def recorded(self, groups: Iterable[Group]) -> dict[str, Any]:
        """What an inverse needs: parameters, and for single tensors what neither they nor shapes tell."""
        told = {g.targets[0].name: g.recorded for g in groups if g.recorded}
        return {"params": self.params} | ({"sizes": told} if told else {})

    @cached_property
    def _forgotten(self) -> list[tuple[str, ...]]:
        """For each rule the axes that the shapes of its targets do not determine, as if heads are merged into one."""
        # the inverse of a one-way converter cannot use `sizes`: it knows recorded names only
        one_way, rules = self.converter.one_way, () if self.converter.forward else self.converter.rules
        axes = (r.pattern.inverse.undetermined(() if one_way else r.sizes) if r.pattern else () for r in rules)
        return list(axes) or [()] * len(self.converter.rules)

    def _of_file(self, rule: Rule, name: str) -> dict[str, int]:
        """What the file tells of a rule's axes by the config of a tensor's layer, or what an inverse finds recorded."""
        if rule.backward:
            return self._record.get(name, {})
        taken = input_of(self.names.checkpoint, name)
        told = {"height": taken.height, "width": taken.width} if taken and taken.height else {}
        return {axis: told[size] for axis, size in rule.sizes.items() if isinstance(size, str) and size in told}

    def known(self, name: str) -> int | None:
        """The value of a parameter, if any: given, else of its tensor, else of config.json, else its default."""
        self._used.add(name)
        param = self.converter.params.get(name)
        if name in self.params or param is None:
            return self.params.get(name)
        value = None
        if param.of:
            pattern = Matcher([(param.of.name, {})])
            shapes = (shape for known, shape in self.names.shapes.items() if pattern.first(known))
            value = next((n for n in map(param.of.length, shapes) if n is not None), None)
        for key in param.config if value is None else ():
            if (value := self._configured(key, name)) is not None:
                break
        value = param.default if value is None else value
        if value is not None:
            self.params[name] = value
        return value

    def wrong(self) -> Iterator[str]:
        """Say which sizes do not fit.

        Axes that have several lengths, or another than their parameter says. Sizes that were given although the file
        tells others of all layers, or although no rule needs them: else they are those of the rest.
        """
        for axis, tensors in self._lengths.items():
            wanted = self.known(param) if (param := self.converter.axes[axis]) else None
            if len(tensors) > 1 or (wanted and wanted not in tensors):
                shown = ", ".join(f"{n} in {name}" for n, name in tensors.items())
                given = ", ".join(f"{k}={n}" for k, n in self.params.items())
                yield f"{param or axis} would be {shown}, with {given or 'no parameters'}"
        for name, number in self.given.items():
            numbers = self._told.get(name)
            if name not in self._used and not numbers:
                yield f"{name}={number} was given, but no rule that takes a tensor here needs it"
            elif numbers and name not in self._used and numbers - {number}:
                yield f"by the file, {name} is {' or '.join(map(str, sorted(numbers)))}; {number} was given"

    def setting(self, key: str) -> Any:
        """The number or text at a dotted key of the model's settings, in the first that have it."""
        found = (_value(settings, key) for settings in self._settings.values())
        return next((v for v in found if isinstance(v, bool | int | float | str)), None)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """The model's settings, by where they stand; read when a number of them is first wanted."""
        checkpoint = self.names.checkpoint
        folders = {split(url)[0]: url for url in reversed(checkpoint.urls)}
        paths = [sibling(url, name) for url in reversed(folders.values()) for name in CONFIGS]
        found = {path: parse_json(read_all(path, MAX_CONFIG), path) for path in paths if exists(path)}
        own = checkpoint.details.get("settings")
        return found | ({checkpoint.urls[-1]: own} if own else {})

    def _configured(self, key: str, param: str) -> int | None:
        """The number of a key of the settings, or a quotient; None if a key is nowhere, or null.

        Raises UsageError, which names `param`, if it cannot be a size or settings differ, and CorruptCheckpoint or
        UnsafeCheckpoint if a file cannot be trusted.
        """
        numbers: dict[int, str] = {}
        advice = f"give param='{param}=NUMBER'"
        for path, settings in self._settings.items():
            values = [int(word) if word.isdecimal() else _value(settings, word) for word in key.split("/")]
            if None in values:
                continue
            number = 0
            for i, value in enumerate(values):
                if type(value) is not int or not 0 < value <= MAX_NUMBER or (i and number % value):
                    shown = " / ".join(brief(printable(repr(v)), 100) for v in values)
                    raise UsageError(f"{key} is {shown}, not an integer from 1 to {MAX_NUMBER}; {advice}", url=path)
                number = number // value if i else value
            numbers[number] = path
        if len(numbers) > 1:
            shown = ", ".join(f"{n} in {printable(path)}" for n, path in numbers.items())
            raise UsageError(f"the sources' {CONFIGS[0]} differ in {key}: {shown}; {advice}")
        for number, path in numbers.items():
            self.configured.append(f"{param}={number} ({key})")
            self.read[split(path)[1]] = None
            return number
        return None


def _value(settings: Any, key: str) -> Any:
    """What stands at a dotted key."""
    for word in key.split("."):
        settings = settings.get(word) if isinstance(settings, dict) else None
    return settings


def _integers(converter: Converter, given: Mapping[str, Any]) -> dict[str, int]:
    """The given parameters as numbers; UsageError for one that the converter does not have."""
    out = dict[str, int]()
    for name, value in given.items():
        if name not in converter.params:
            hint = did_you_mean(name, converter.params, "parameters")
            raise UsageError(f"the converter {converter.name} has no parameter {name!r}{hint}")
        try:
            out[name] = int(value)
        except (TypeError, ValueError):
            raise UsageError(f"the parameter {printable(name)} must be an integer, not {value!r}") from None
    return out


# --- what is missing, or of another model ---------------------------------------------------------------------------
# A file that was cut off, or one of several that was not given, often ends between two layers, and no name would
# tell. A number that a person gives is believed, so that the layers of a model can have gaps on purpose. A part
# of a model is not checked. Names that are known, although their tensors were left out, count.


MAX_SHOWN = 8  # numbers that a message lists


def check_model(sizes: Sizes) -> None:
    """Refuse a model of another converter (UsageError), and one that lacks layers (UnmatchedTensors)."""
    converter, refused = sizes.converter, []
    for refusal in converter.refusals:
        a, b = (sizes.known(n) if isinstance(n, str) else n for n in refusal.equal)
        if a is not None and a == b:
            refused.append(f"{' and '.join(map(str, refusal.equal))} are {a}: {refusal.why}")
    if refused:
        raise UsageError(f"the converter {converter.name} is not for this model:\n{listing(refused)}")
    if missing := list(_missing_layers(sizes)):
        raise UnmatchedTensors(f"the source is not whole; give all of its files:\n{listing(missing)}")


def _missing_layers(sizes: Sizes) -> Iterator[str]:
    """Say which numbers are missing in the names of a source."""
    converter, checkpoint = sizes.converter, sizes.names.checkpoint
    if not converter.counts or any(note.text.startswith(PART) for note in checkpoint.notes):
        return
    kept = [n for n, t in checkpoint.tensors.items() if not t.role or converter.every]
    left_out = checkpoint.names_in_notes("dropped", "damaged")
    known = Names(converter, checkpoint, kept + left_out).known
    for counted in converter.counts:
        if not counted.source.captures:  # stacked in one tensor
            continue
        given, wanted = sizes.params.get(counted.param), sizes.known(counted.param)
        for (layer, first), numbers in _numbers(converter, counted.source, known.values()).items():
            end = first + wanted if wanted else max(numbers) + 1
            missing = list(islice((n for n in range(first, end) if n not in numbers), MAX_SHOWN + 1))
            if missing and len(numbers) != given:
                shown = ", ".join(map(str, missing[:MAX_SHOWN])) + ", ..." * (len(missing) > MAX_SHOWN)
                where = f", where {counted.param}={wanted}" if wanted else ""
                verb = "is" if len(missing) == 1 else "are"
                right = f"if that is right, param='{counted.param}={len(numbers)}'"
                yield f"{printable(layer)}: {shown} {verb} missing{where}; {right}"


def _numbers(converter: Converter, head: Template, names: Iterable[str]) -> dict[tuple[str, int], set[int]]:
    """The values of the last capture of what names begin with, by the beginning with the values of the others.

    With the first number that there must be, which becomes 0 in the target, if any does.
    """
    number, out = head.captures[-1], defaultdict[tuple[str, int], set[int]](set)
    for m in chain.from_iterable(map(converter.matcher.matches, names)):
        i, k = converter.origins[m.number]
        rule = converter.rules[i]
        if not rule.sources[k].text.startswith(head.text):
            continue
        domain, value = rule.where.get(number, INT), m.values[number]
        if re.fullmatch(domain.pattern, value):
            layer = head.render({**m.values, number: f"{{{number}}}"})
            out[layer, max(0, -domain.shift)].add(int(value))
    return out


# --- the config.json that a target's library wants beside the weights, of the template in a converter ---
#
# [config]
# model_type = "llama"                                    # as it stands, or:
# hidden_size = { of = "model.norm.weight" }              # the length of a target's axis; `axis = 1`: another
# rms_norm_eps = { setting = ["norm_eps", "eps"] }        # of the source's settings, or else `default`
# sliding_window = { if = "window", then = 3, else = 4 }  # a setting that is true (`is = 2`: 2), or a target
#
# Without `else` the value is null. If one value is not known, there is no config.json, and a note says what is lacking.

KINDS = ("of", "setting", "if")  # keys, one of which makes a table a value that follows from the model


def filled(value: Any, sizes: Sizes, targets: Mapping[str, Tensor], lacking: list[str]) -> Any:
    """A template with its values; what is not known is appended to `lacking`."""
    if isinstance(value, list):
        return [filled(v, sizes, targets, lacking) for v in value]
    if not isinstance(value, dict):
        return value
    if not any(kind in value for kind in KINDS):
        return {k: filled(v, sizes, targets, lacking) for k, v in value.items()}
    if key := value["if"]:
        found, wanted = key in targets or sizes.setting(key), value["is"]
        holds = bool(found) if wanted is None else found == wanted
        return filled(value["then" if holds else "else"], sizes, targets, lacking)
    if name := value["of"]:
        known = next(iter(targets[name].shape[value["axis"] :]), None) if name in targets else None
    else:
        known = next((v for v in map(sizes.setting, value["setting"]) if v is not None), value["default"])
    if known is None:
        lacking.append(name or " or ".join(value["setting"]))
    return known
