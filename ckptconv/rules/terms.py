"""What a converter has beside its rules: parameters, sizes, rewrites, ties and checks. Pure data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .domains import Domain
from .templates import Template


class Of(NamedTuple):
    """A size taken from a tensor of the source: the length of one of its axes."""

    name: Template
    axis: int

    def length(self, shape: Sequence[int]) -> int | None:
        """The length of the axis in a shape, counted from its end if negative; None if it has no such axis."""
        return shape[self.axis] if -len(shape) <= self.axis < len(shape) else None


class Resize(NamedTuple):
    """The length of an axis of a rule's target, and what it was; `pads` or crops, and with which value."""

    pads: bool
    axis: int
    to: int | str | Of
    before: int | str | Of | None = None
    value: float = 0.0
    front: bool = False  # at the beginning of the axis, not at its end
    unchecked: bool = False  # the inverse of a pad cuts off whatever is there

    def __str__(self) -> str:
        return f"{'pad' if self.pads else 'crop'}{' the front of' * self.front} axis {self.axis}"


class Param(NamedTuple):
    """A number that names and shapes do not determine: from a tensor, else from the model's config.json, else given."""

    default: int | None = None
    of: Of | None = None
    help: str = ""
    config: str = ""  # the key in config.json beside the source, dotted if it is nested


class Tie(NamedTuple):
    """Names that share one tensor in the target; `apart` if the source may have a tensor for each."""

    names: tuple[Template, ...]
    apart: bool = False
    having: tuple[str, ...] = ()  # names that must be in the source


class Count(NamedTuple):
    """The beginning of names in the source and in the target, whose last capture counts; the parameter: how many."""

    source: Template
    target: Template
    param: str
    where: Mapping[str, Domain]

    @property
    def inverse(self) -> Count:
        return Count(self.target, self.source, self.param, {k: d.inverse for k, d in self.where.items()})


class Refusal(NamedTuple):
    """Why a model of which these sizes are equal is another converter's."""

    equal: tuple[int | str, int | str]
    why: str


@dataclass(frozen=True)
class Rewrite:
    """A replacement made everywhere in all names before rules see them; `^` and `$` anchor it to a name's ends."""

    source: Template
    target: Template
    start: bool = False
    end: bool = False
    where: Mapping[str, Domain] = field(default_factory=dict)
    one: str = ""  # apply only if this capture has one value over all names
    given: Template | None = None  # apply only if some name matches this

    @property
    def anchored(self) -> bool:
        return self.start or self.end

    @cached_property
    def literal(self) -> str:
        """Text that every name contains in which something is replaced."""
        return max((p for p in self.source.parts if isinstance(p, str)), key=len, default="")

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], list[str]]:
        """The regular expression, and the captures in the order of its groups; captures match as little as possible."""
        text, order = self.source.regex(self.where)
        text = text.replace("([^/.]+)", "([^/]*?)")
        return re.compile("^" * self.start + text + "$" * self.end), order


__all__ = ["Count", "Of", "Param", "Refusal", "Resize", "Rewrite", "Tie"]
