"""The sizes of axes that the source shapes do not determine: fixed, taken from another tensor, or a parameter.

A parameter is given, or else taken from a tensor, or else read from config.json beside the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, Tensor
from ..errors import LayoutError, UsageError
from ..messages import brief, did_you_mean, printable
from ..storage.files import exists, read_all
from ..storage.json import parse_json
from ..storage.paths import sibling, split
from . import provenance
from .assign import Group, Names
from .templates import MAX_NAME, Matcher

if TYPE_CHECKING:
    from .converter import Converter, Count, Rule
    from .operations import Of


def checked(converter: Converter, given: Mapping[str, Any]) -> dict[str, int]:
    """The given parameters as numbers; UsageError for one that the converter does not have."""
    out = {}
    axes = {axis for rule in converter.rules if rule.backward for axis in rule.undetermined}
    for name, value in given.items():
        if name not in converter.params and name not in axes:
            hint = did_you_mean(name, converter.params, "parameters")
            raise UsageError(f"the converter {converter.name} has no parameter {name!r}{hint}")
        try:
            out[name] = int(value)
        except (TypeError, ValueError):
            raise UsageError(f"the parameter {printable(name)} must be an integer, not {value!r}") from None
    return out


def about(rule: Rule, group: Group, values: Mapping[str, str]) -> str:
    """The name of the first tensor that a rule takes or, in an inverse, gives; '' if that is stacked."""
    if not rule.backward:
        return min(group.members[0].items(), default=((), ""))[1]
    if group.spelled:
        return group.spelled[0][0]
    return "" if rule.targets[0].stacks else rule.targets[0].render(values)


class SizeFinder:
    """Looks sizes up; collects parameters that it finds in `params`, and those that lack a value in `missing`.

    `configured` says which were read from config.json. given: the parameters that a person gives.
    """

    def __init__(self, converter: Converter, names: Names, given: Mapping[str, Any]) -> None:
        self.converter, self.names = converter, names
        self.given = checked(converter, given)
        self.params = provenance.params(converter, names.checkpoint) | self.given
        self.missing: dict[str, str] = {}
        self.configured: list[str] = []
        self.told: dict[str, dict[str, int]] = {}  # by tensor
        self._recorded = provenance.told(converter, names.checkpoint)
        self.used: set[str] = set()  # the parameters that something needed
        self._config = Config(names.checkpoint.urls)

    def of(
        self,
        rule: Rule,
        values: Mapping[str, str],
        undetermined: Sequence[str] = (),
        first: str = "",
    ) -> dict[str, int]:
        """The sizes of a rule's axes for these captures; LayoutError if one cannot be found.

        undetermined: axes of an inverse whose sizes are not recorded, so that a person must give them. first: the name
        that `about` gives, of whose layer the file may tell the values of parameters.
        """
        out = {s: len(rule.where[s].table) for t in rule.targets for s in t.stacks if rule.counted(s)}
        told = self._of_file(first)
        lacking: LayoutError | None = None
        for axis, size in rule.sizes.items():
            if isinstance(size, str) and size in told:
                out[axis] = told[size]
                self.told.setdefault(first, {})[size] = told[size]
                continue
            try:
                out[axis] = self.one(size, values)
            except LayoutError as e:
                lacking = e
                if rule.inputs and size in self.missing:  # it is for some layers: say for which
                    self.missing[size] += f"; {printable(first)}"
        if lacking:
            raise lacking
        if undetermined and rule.backward and rule.pattern:
            out |= {axis: self.params[axis] for axis in undetermined if axis in self.params}
            needed = list[str]()
            while more := rule.pattern.undetermined({*out, *needed}):
                needed.append(more[-1])
                self.missing[more[-1]] = f"an axis of {rule.layout} whose size is not recorded"
            if needed:
                raise LayoutError(f"the size of {needed[0]} is not given")
        return out

    def number(self, value: float | str) -> float:
        """A number of `fill`, or the value of the parameter of that name."""
        return self._param(value) if isinstance(value, str) else value

    def one(self, size: int | str | Of, values: Mapping[str, str]) -> int:
        """A size: a number, a parameter's value, or the length of an axis; LayoutError if there is none."""
        if isinstance(size, int):
            return size
        if isinstance(size, str):
            return self._param(size)
        shape = self.names.shapes.get(name := size.name.render(values), ())
        if (length := size.length(shape)) is None:
            raise LayoutError(f"the size is an axis of {printable(name)}, which does not exist")
        return length

    def recorded(self) -> dict[str, Any]:
        """What an inverse needs: parameters, and what the file told of single tensors."""
        spelled = (lambda name: name) if self.converter.one_way else self.names.canonical
        return {"params": dict(self.params), "sizes": {spelled(name): told for name, told in self.told.items()}}

    def denied(self) -> Iterator[str]:
        """Sizes that were given although the file tells others of all layers: else they are those of the rest."""
        for name, given in self.given.items():
            numbers = {told[name] for told in self.told.values() if name in told}
            if name not in self.used and numbers - {given}:
                yield f"by the file, {name} is {' or '.join(map(str, sorted(numbers)))}; {given} was given"

    def _of_file(self, name: str) -> Mapping[str, int]:
        """What the file tells of the layer of a tensor, of an inverse of the one that it gives."""
        if self.converter.forward:
            return self._recorded.get(name, {})
        taken = self.names.checkpoint.details.get("inputs", {}).get(name)
        return {"height": taken.height, "width": taken.width} if taken and taken.height else {}

    def _param(self, name: str) -> int:
        """The value of a parameter; LayoutError if it has none."""
        self.used.add(name)
        if (found := self.known(name)) is not None:
            return found
        param = self.converter.params.get(name)
        if param is None:
            raise UsageError(
                f"the converter {self.converter.name} refers to {name!r}, which is not one of its parameters"
            )
        lacks = f"({self._config.lacks(param.config)})" if param.config else ""
        self.missing.setdefault(name, f"{param.help} {lacks}".strip())
        raise LayoutError(f"the parameter {printable(name)} is not given")

    def known(self, name: str) -> int | None:
        """The value of a parameter, if any: given, else of its tensor, else of config.json, else its default."""
        if name not in self.params and name in self.converter.params:
            param = self.converter.params[name]
            found = self._read_off(param.of) if param.of else None
            found = self._configured(name, param.config) if found is None and param.config else found
            found = param.default if found is None else found
            if found is None:
                return None
            self.params[name] = found
        return self.params.get(name)

    def _configured(self, name: str, key: str) -> int | None:
        found = self._config.number(key, name)
        if found is not None:
            self.configured.append(f"{name}={found} ({key})")
        return found

    def _read_off(self, of: Of) -> int | None:
        pattern = Matcher([(of.name, {})])
        shapes = (shape for known, shape in self.names.shapes.items() if pattern.first(known))
        return next((n for n in map(of.length, shapes) if n is not None), None)


# --- config.json: what Hugging Face stores, beside the weights, that shapes do not determine -----------------------
# {"num_attention_heads": 12, "text_config": {"num_attention_heads": 8}}    keys: the first, or with dots the second

NAME = "config.json"
MAX_SIZE = 2**20  # bytes; a language model of 500 labels has 50 kB
MAX_NUMBER = 2**31 - 1


class Config:
    """The config.json beside the files of a checkpoint; read when a number of it is first wanted, and not before."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    @cached_property
    def _files(self) -> dict[str, Any]:
        """What each file says, by its path: several sources may stand in several folders."""
        folders = {split(url)[0]: url for url in reversed(self._urls)}
        paths = [sibling(url, NAME) for url in reversed(folders.values())]
        return {path: parse_json(read_all(path, MAX_SIZE), path) for path in paths if exists(path)}

    def number(self, key: str, param: str) -> int | None:
        """The integer of a dotted key; None if no file has it, or has null there.

        Raises UsageError, which names `param`, if it cannot be a size or two files differ, and
        CorruptCheckpoint or UnsafeCheckpoint if a file cannot be trusted.
        """
        found: dict[str, int] = {}
        for path, value in self._files.items():
            for word in key.split("."):
                value = value.get(word) if isinstance(value, dict) else None
            if value is None:
                continue
            if type(value) is not int or not 0 < value <= MAX_NUMBER:
                shown = brief(printable(repr(value)), 100)
                raise UsageError(
                    f"{key} is {shown}, not an integer from 1 to {MAX_NUMBER}; give param='{param}=NUMBER'", url=path
                )
            found[path] = value
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{n} in {printable(path)}" for path, n in found.items())
            raise UsageError(f"the sources' {NAME} differ in {key}: {shown}; give param='{param}=NUMBER'")
        return next(iter(found.values()), None)

    def lacks(self, key: str) -> str:
        """Why there is no number for the key, for the error that asks for the parameter."""
        return f"{NAME} has no {key}" if self._files else f"there is no {NAME} beside the source to read {key} from"


# --- Layers that are missing, axes that differ, and models of other converters ---
#
# [count]
# "<layers>" = "layers"                   # model.layers.{l}: l is 0, 1, 2 ..., up to the parameter, if it is known
# [axes]
# k = "head_size"                         # all axes called k are equally long, as long as the parameter says, if any
# [[refuse]]
# equal = ["heads", "kv_heads"]           # two sizes that are equal only in a model of another converter
#
# A file that was cut off, or one of several that was not given, often ends between two layers, and no name would
# tell. A number that a person gives is believed, so that the layers of a model can have gaps on purpose. One of
# several shards is not checked. Names that are known, although their tensors were left out, count.


MAX_SHOWN = 8  # numbers that a message lists
_SHARD = re.compile(r".*-([0-9]{5})-of-([0-9]{5})(?:[^0-9].*)?", re.DOTALL)


def missing_layers(converter: Converter, checkpoint: Checkpoint, sizes: SizeFinder) -> Iterator[str]:
    """Say which numbers are missing in the names of a source."""
    if not converter.counts or _is_part(checkpoint):
        return
    kept = [n for n, t in checkpoint.tensors.items() if not t.role or converter.every]
    left_out = [n for note in checkpoint.notes if note.kind in ("dropped", "damaged") for n in note.names]
    names = Names(converter, checkpoint, kept + left_out)
    for count in converter.counts:
        if not count.source.captures:  # stacked in one tensor
            continue
        domain = count.where.get(count.source.captures[-1])
        first = max(0, -domain.shift) if domain else 0  # it becomes 0 in the target, if any does
        given, wanted = sizes.params.get(count.param), sizes.known(count.param)
        known = _numbers(count, map(names.canonical, kept + left_out))
        for layer in _numbers(count, map(names.canonical, kept)):
            numbers = known[layer]
            end = first + wanted if wanted else max(numbers) + 1
            missing = list(islice((n for n in range(first, end) if n not in numbers), MAX_SHOWN + 1))
            if missing and len(numbers) != given:
                shown = ", ".join(map(str, missing[:MAX_SHOWN])) + ", ..." * (len(missing) > MAX_SHOWN)
                where = f", where {count.param}={wanted}" if wanted else ""
                verb = "is" if len(missing) == 1 else "are"
                right = f"if that is right, param='{count.param}={len(numbers)}'"
                yield f"{printable(layer)}: {shown} {verb} missing{where}; {right}"


def _numbers(count: Count, names: Iterable[str]) -> dict[str, set[int]]:
    """The values of the last capture, by the beginning of the names with the values of the others."""
    text, order = count.source.regex(count.where)
    begins = re.compile(f"{text}(?:[^0-9].*)?", re.DOTALL).fullmatch
    number, out = count.source.captures[-1], dict[str, set[int]]()
    for m in filter(None, (begins(n) for n in names if len(n) <= MAX_NAME)):
        values = {name: m[k + 1] or "" for k, name in enumerate(order)}
        layer = count.source.render({**values, number: f"{{{number}}}"})
        out.setdefault(layer, set()).add(int(values[number]))
    return out


class Lengths:
    """The lengths of axes that have one name in several layouts, as they are found."""

    def __init__(self, converter: Converter) -> None:
        self._axes = converter.axes
        self._first: dict[str, dict[int, str]] = {axis: {} for axis in converter.axes}  # the first of each length

    def note(self, rule: Rule, sources: Sequence[Tensor], known: Mapping[str, int]) -> None:
        if rule.pattern is None or not (here := self._axes.keys() & rule.pattern.names):
            return
        shapes = [t.shape for t in sources]
        sizes = rule.pattern.unrolled(shapes).solve(shapes, known)
        for axis in here:
            self._first[axis].setdefault(sizes[axis], f"{sources[0].name or rule.sources[0].text} {list(shapes[0])}")

    def wrong(self, sizes: SizeFinder) -> Iterator[str]:
        """Say which axes have several lengths, or another than their parameter says."""
        for axis, found in self._first.items():
            wanted = sizes.known(param) if (param := self._axes[axis]) and found else None
            if len(found) > 1 or (wanted and wanted not in found):
                shown = ", ".join(f"{n} in {name}" for n, name in found.items())
                given = ", ".join(f"{k}={n}" for k, n in sizes.params.items())
                yield f"{param or axis} would be {shown}, with {given or 'no parameters'}"


def refused(converter: Converter, sizes: SizeFinder) -> Iterator[str]:
    """Say why a model with these sizes is another converter's."""
    for refusal in converter.refusals:
        a, b = (sizes.known(n) if isinstance(n, str) else n for n in refusal.equal)
        if a is not None and a == b:
            yield f"{' and '.join(map(str, refusal.equal))} are {a}: {refusal.why}"


def _is_part(checkpoint: Checkpoint) -> bool:
    """Whether the source is some of the shards of a checkpoint, by their names."""
    shards: dict[tuple[str, str], set[str]] = {}
    for url in checkpoint.urls:
        folder, base = split(url)
        if m := _SHARD.fullmatch(base):
            shards.setdefault((folder, m[2]), set()).add(m[1])
    return any(len(numbers) < int(total) for (_, total), numbers in shards.items())
