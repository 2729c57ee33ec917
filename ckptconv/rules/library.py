"""Converters by name: find one, choose the one that fits, apply it. A rename is a converter, too.

toml.py parses their files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..errors import UnmatchedTensors, UsageError
from ..messages import Fold, brief, did_you_mean, fold, listing, printable
from ..storage import plugins
from ..storage.paths import refuse_remote
from .apply import apply
from .assign import assign, resembles, takes
from .converter import Converter, Rule
from .lint import lint
from .templates import MAX_NAME, Matcher, Template, halves, template
from .toml import MAX_FILE, beside, included, parse, read, shipped


def _plugins() -> plugins.Installed:
    return plugins.installed("ckptconv.converters", _checked)


@lru_cache(maxsize=1)
def _installed() -> dict[str, Path]:
    """Files of converters by name: those shipped, and those of packages with the entry point `ckptconv.converters`."""
    found = {p.stem: p for p in sorted(shipped().glob("*.toml")) if not p.name.startswith("_")}
    for name, path in _plugins().found:
        found.setdefault(name, path)
    return found


def _checked(name: str, given: Any) -> Path:
    """The path of a package's converter, which can be parsed; whatever is wrong with it is raised."""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"it gives a {type(given).__name__}, not the path of a converter")
    path = Path(given)
    parse(read(path), name, folder=path.parent)
    return path


def names() -> list[str]:
    """The names of all converters."""
    return list(_installed())


def load(name: str | Path) -> Converter:
    """Load a converter by name, or from a .toml file; UsageError suggests names that are like it, or lists all."""
    refuse_remote(str(name), "a converter's file")
    if str(name).endswith(".toml"):
        path = Path(name)
        return parse(read(path), path.stem, folder=path.parent)
    found = _installed()
    if str(name) not in found:
        hint = did_you_mean(str(name), found, "converters", count=3)
        raise UsageError(f"no converter is called {str(name)!r}, and it is not a .toml file{hint}{_plugins().hint()}")
    path = found[str(name)]
    return _kept(path) if path.parent == shipped() else parse(read(path), str(name), folder=path.parent)


@cache
def _kept(path: Path) -> Converter:
    """A converter that we ship, parsed once: the one that fits is searched for among all of them."""
    return parse(read(path), path.stem, folder=path.parent)


def texts(name: str) -> tuple[str, ...]:
    """The text of a converter's file and of all files that it includes: everything its rules depend on."""
    start = Path(name) if name.endswith(".toml") else _installed().get(name)
    found, todo = dict[Path, str](), [start] if start else []
    while todo:
        path = todo.pop()
        if path not in found and os.path.isfile(path):  # also False for an invalid file name
            found[path] = read(path)
            todo += [beside(other, path.parent) for other in included(found[path])]
    return tuple(found.values())


def auto(checkpoint: Checkpoint) -> Converter:
    """The one converter that takes every tensor; UsageError lists the candidates if there are several."""
    fits = _fitting(checkpoint)
    if len(fits) == 1:
        return fits[0]
    if fits:
        shown = [f"{c.name}: {c.title}" for c in fits]
        raise UsageError(f"several converters take every tensor; choose one with converter=:\n{listing(shown)}")
    raise UsageError(f"no converter takes every tensor; {_closest(checkpoint) or '`ckptconv converters` lists them'}")


def _closest(checkpoint: Checkpoint) -> str:
    """The converter that takes most tensors, if that is more than half of the weights."""
    weights = sum(1 for t in checkpoint.values() if not t.role)
    known = (c for c in map(load, names()) if resembles(c, checkpoint))
    left = {c.name: n for c in known if (n := len(assign(c, checkpoint).unmatched))}
    name = min(left, key=lambda n: (left[n], not checkpoint.format.startswith(n.partition("-")[0])), default="")
    if not name or 2 * left[name] > weights:
        return ""
    return f"{name} takes all but {left[name]} of {weights}, which converter={name!r} lists"


def _fitting(checkpoint: Checkpoint) -> list[Converter]:
    """Converters that take every tensor: those for the family, or else those for conventions."""
    fits = [c for c in map(load, names()) if takes(c, checkpoint)]
    own = [c for c in fits if checkpoint.format.startswith(c.name.partition("-")[0])]  # keras-torch for a Keras file
    return [c for c in fits if c.present] or own or fits


def suggestion(checkpoint: Checkpoint, *, conventions: bool = False) -> str:
    """The name of the only converter for the family that takes every tensor, or ''.

    With `conventions`, also that of a converter for the naming and layout conventions of the source's framework.
    """
    fits = _fitting(checkpoint)
    return fits[0].name if len(fits) == 1 and (fits[0].present or conventions) else ""


def change(
    checkpoint: Checkpoint,
    converter: str | None,
    renames: Sequence[str] = (),
    *,
    inverse: bool = False,
    params: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Apply a converter (a name, a file or 'auto'), then renames `FROM=TO`, which leave other names alone."""
    if converter:
        rules = auto(checkpoint) if converter == "auto" else load(converter)
        if not inverse and not resembles(rules, checkpoint):
            raise _stranger(rules, checkpoint)
        checkpoint = apply(rules.inverse if inverse else rules, checkpoint, params)
    elif inverse or params:
        raise UsageError("inverse= and param= apply to a converter; choose one with converter=")
    if not renames:
        return checkpoint
    _sought(made := renaming(renames), checkpoint)
    return apply(made, checkpoint)


def _stranger(rules: Converter, checkpoint: Checkpoint) -> UnmatchedTensors:
    """Of a converter that may take some names by chance, but is of another family."""
    known = ", ".join(t.text for t, _ in rules.present)
    fits = [c.name for c in _fitting(checkpoint)]
    better = f"converter={fits[0]!r} takes every tensor" if len(fits) == 1 else "`ckptconv match` proposes rules"
    return UnmatchedTensors(
        f"none of the names that identify {rules.name} is here ({known}); {better}",
        url=checkpoint.urls[0] if checkpoint.urls else None,
    )


def _sought(renames: Converter, checkpoint: Checkpoint) -> None:
    """Refuse renames of names that do not exist: most of them are misspelt."""
    lost = []
    for source in (t for rule in renames.rules if not rule.optional for t in rule.sources):
        matcher = Matcher([(source, {})])
        if not any(map(matcher.first, checkpoint)):
            text = "".join(p for p in source.parts if isinstance(p, str))
            prefix = next((text + s for n in checkpoint for s in "/." if n.startswith(text + s)), "")
            if prefix:
                hint = f"; a prefix is renamed by '{prefix}=NEW{prefix[-1]}'"
            else:
                hint = did_you_mean(text, checkpoint, count=3)
            lost.append(source.text + hint)
        if not source.simple and (far := _far(source, checkpoint)):
            text = f"rename= {source.text!r} has several captures, which take names of up to {MAX_NAME} characters"
            raise UsageError(f"{text}; rename_regex= takes any: {brief(printable(far), 80)}")
    if lost:
        raise UsageError(f"no tensor matches these values of rename=; `inspect` lists the names:\n{listing(lost)}")


def _far(source: Template, names: Iterable[str]) -> str:
    """A name too long for a template that begins as it does, or ''."""
    first = source.parts[0] if isinstance(source.parts[0], str) else ""
    return next((n for n in names if len(n) > MAX_NAME and n.startswith(first)), "")


def _whole(a: str, equals: str, b: str) -> tuple[str, str]:
    """Turn a prefix that ends with a separator, `old/=new/` or `module.=`, into templates of whole names."""
    a = re.sub(r"\\([\\=])", r"\1", a)
    return (a + "{any...}", b + "{any...}") if a[-1:] in ("/", ".") and equals and "{" not in a + b else (a, b)


def renaming(renames: Sequence[str]) -> Converter:
    """Make a converter from `FROM=TO` pairs of templates; other names stay as they are."""
    pairs = [_whole(*halves(r)) for r in renames]
    if bad := [r for r, (a, b) in zip(renames, pairs, strict=True) if not (a and b)]:
        raise UsageError(f"rename= takes FROM=TO, not {bad[0]!r}")
    rules = [Rule((template(a),), (template(b),)) for a, b in pairs]
    keep = Rule((template("{any...}"),), (template("{any...}"),), optional=True)
    return Converter("rename=", (*rules, keep), separators=("", ""), every=True)


__all__ = [
    "MAX_FILE", "Converter", "Fold", "Rule", "auto", "change", "fold", "lint", "load", "names", "parse", "renaming",
    "shipped",
]  # fmt: skip
