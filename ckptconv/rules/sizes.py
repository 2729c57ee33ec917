"""The sizes of axes that the source shapes do not determine: fixed, taken from another tensor, or a parameter.

A parameter is given, or else taken from a tensor, or else read from config.json beside the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import LayoutError, UsageError
from ..messages import brief, did_you_mean, printable
from ..storage.files import exists, read_all
from ..storage.json import parse_json
from ..storage.paths import sibling, split
from . import provenance
from .assign import Group, Names
from .templates import Matcher

if TYPE_CHECKING:
    from .converter import Converter, Of, Rule


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
