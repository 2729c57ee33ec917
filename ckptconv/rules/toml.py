"""Parse a converter's file. converters/README.md describes the language.

    [[rule]]
    from = "bert/encoder/layer_{i}/attention/self/{p}/kernel"
    to = "bert.encoder.layer.{i}.attention.self.{p}.weight"
    where = { p = ["query", "key", "value"] }
    layout = "i o -> o i"

An invalid file is refused with the reason; an unknown key is an error, too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import LayoutError, UsageError
from ..messages import brief, did_you_mean
from ..storage.paths import inside
from .converter import Converter, Fill, Of, Param, Resize, Rewrite, Rule, Tie
from .domains import Domain, domain
from .templates import Template, template

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE = 2**20  # bytes of a rule file
MAX_FILL = 8  # blocks of a filled tensor
MAX_MESSAGE = 4000  # characters of an error
MAX_PARTS = 32  # of a dotted key
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*')  # texts and comments
_LONG_KEY = re.compile(rf"(?:\.[\s\w-]*){{{MAX_PARTS}}}")
MAX_TEMPLATE = 1000  # characters, after `let` is expanded

_TOP = {
    "title", "source", "target", "separators", "include", "params", "let", "where", "rewrite", "rule", "tie", "detect",
    "optional", "one_way", "notes",
}  # fmt: skip
_RULE = {
    "from", "to", "names", "layout", "where", "sizes", "op", "rank", "if", "unless", "kind", "fill",
    "crop", "pad", "same", "sum", "shared", "optional", "note", "doubts", "refuse",
}  # fmt: skip


def _known(table: Any, keys: Iterable[str], what: str) -> dict[str, Any]:
    """Refuse unknown keys: a misspelt one would be ignored silently."""
    if not isinstance(table, dict):
        raise UsageError(f"{what} must be a table")
    keys = sorted(keys)
    for key in table:
        if key not in keys:
            raise UsageError(f"{what}: unknown key {key!r}{did_you_mean(key, keys, 'keys')}")
    return table


def parse(
    text: str, name: str, *, folder: Path | None = None, depth: int = 0, let: Mapping[str, Sequence[str]] | None = None
) -> Converter:
    """Parse a rule file; UsageError, with the file's name, if it is invalid. `let` overrides the file's own."""
    if _LONG_KEY.search(_QUOTED.sub("", text)):  # the parser takes time quadratic in the parts of a key
        raise UsageError(f"converter {name}: a key has more than {MAX_PARTS} parts")
    try:
        return _converter(_known(tomllib.loads(text), _TOP, "the file"), name, folder, depth, let or {})
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"converter {name}: not valid TOML: {e}") from e
    except RecursionError as e:
        raise UsageError(f"converter {name}: is nested too deeply") from e
    except (TypeError, ValueError, AttributeError, KeyError) as e:  # a value of the wrong type for its key
        raise UsageError(f"converter {name}: not a rule file: {e}") from e
    except (UsageError, LayoutError) as e:
        text = e.message if e.message.startswith("converter ") else f"converter {name}: {e.message}"
        raise UsageError(brief(text, MAX_MESSAGE)) from e


def _converter(
    top: dict[str, Any], name: str, folder: Path | None, depth: int, outer: Mapping[str, Sequence[str]]
) -> Converter:
    let = {k: _strings(v) for k, v in _table(top, "let").items()} | dict(outer)
    shared = [_included(i, folder, depth, let) for i in _strings(top.get("include", []))]
    common = {k: _domain(v, let) for k, v in _table(top, "where").items()}
    rules = [_with_common(r, common) for table in top.get("rule", []) for r in _rules(table, let)]
    detect = _known(top.get("detect", {}), {"all", "none", "where"}, "detect")
    spoken = common | {k: domain(v) for k, v in detect.get("where", {}).items()}
    separators = _strings(top.get("separators", list(shared[0].separators) if shared else ["/", "."]))
    if len(separators) != 2:
        raise UsageError("separators must be two strings: that of the source and that of the target")
    own = Converter(
        name=name,
        rules=tuple(rules),
        title=str(top.get("title", "")),
        source=str(top.get("source", "")),
        target=str(top.get("target", "")),
        separators=(separators[0], separators[1]),
        params={k: _param(k, v) for k, v in _table(top, "params").items()},
        rewrites=tuple(_rewrite(r) for r in top.get("rewrite", [])),
        ties=tuple(_tie(t) for t in top.get("tie", [])),
        present=tuple((template(t), spoken) for t in _strings(detect.get("all", []))),
        absent=tuple((template(t), spoken) for t in _strings(detect.get("none", []))),
        optional=bool(top.get("optional", any(s.optional for s in shared))),
        one_way=str(top.get("one_way", "")),
        notes=tuple(_strings(top.get("notes", []))),
    )
    return _joined(own, shared)


def _joined(own: Converter, shared: Sequence[Converter]) -> Converter:
    """Append the rules of the included converters to those of the converter itself."""
    return replace(
        own,
        rules=(*own.rules, *(r for s in shared for r in s.rules)),
        params={k: v for s in shared for k, v in s.params.items()} | dict(own.params),
        rewrites=(*own.rewrites, *(r for s in shared for r in s.rewrites)),
        ties=(*own.ties, *(t for s in shared for t in s.ties)),
    )


def _table(top: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table whose keys are the author's own."""
    return _known(top.get(key, {}), top.get(key, {}), key)


def _tie(table: Any) -> Tie:
    names = _strings(_known(table, {"names", "apart", "if"}, "tie").get("names", []))
    return Tie(tuple(map(template, names)), bool(table.get("apart", False)), tuple(_strings(table.get("if", []))))


def _rewrite(value: Any) -> Rewrite:
    if isinstance(value, list) and len(_strings(value)) == 2:
        value = {"from": value[0], "to": value[1]}
    _known(value, {"from", "to", "where", "one", "if"}, "rewrite")
    source, target = str(value.get("from", "")), str(value.get("to", ""))
    start, end = source.startswith("^"), source.endswith("$")
    parsed = template(source[start : len(source) - end])
    if not parsed.parts or any(p.kind for p in parsed.parts if not isinstance(p, str)):
        raise UsageError(f"rewrite {source!r}: it may contain text and {{x}} only")
    where = {k: domain(v) for k, v in value.get("where", {}).items()}
    given = template(value["if"]) if "if" in value else None
    made = Rewrite(parsed, template(target), start, end, where, str(value.get("one", "")), given)
    if odd := ({*made.target.captures, made.one} - {"", *parsed.captures}):
        raise UsageError(f"rewrite {source!r}: {{{min(odd)}}} is not in it")
    return made


def _included(name: str, folder: Path | None, depth: int, let: Mapping[str, Sequence[str]]) -> Converter:
    if depth > 4:
        raise UsageError(f"include {name!r}: files include each other")
    path = beside(name, folder)
    return parse(read(path), name, folder=path.parent, depth=depth + 1, let=let)


def beside(name: str, folder: Path | None) -> Path:
    """The file that an include refers to: in the folder of the including file, or among those shipped."""
    if "/" in name or "\\" in name or name.startswith("."):
        raise UsageError(f"include {name!r}: must be the bare name of a file beside this one")
    for home in filter(None, (folder, shipped())):
        if os.path.isfile(path := home / f"{name}.toml"):  # also False for an invalid file name
            if home != shipped() and not inside(str(path), str(home)):  # what is read could be shown in a message
                raise UsageError(f"include {name!r}: is a link that leaves the folder of the file that includes it")
            return path
    raise UsageError(f"include {name!r}: there is no {name}.toml beside this file")


def _strings(value: Any) -> list[str]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"{value!r} must be a string or a list of strings")
    return value


def _rules(table: Any, let: Mapping[str, Sequence[str]]) -> list[Rule]:
    """The rules of one [[rule]]: one, or one for each pair of `names`."""
    _known(table, _RULE, "rule")
    pairs = [*([(table["from"], table.get("to"))] if "from" in table else ()), *table.get("names", {}).items()]
    if not pairs or any(b is None for _, b in pairs):
        raise UsageError(f"rule {table!r} needs `from` and `to`, or `names`")
    rules = [_rule(a, b, table, let) for a, b in pairs]
    return _narrowed(rules) if len(rules) > 1 else rules


def _narrowed(rules: Sequence[Rule]) -> list[Rule]:
    """Restrict a shared `where` to each rule's own captures; lint reports entries that no rule binds."""
    bound = [{c for t in (*r.sources, *r.targets) for c in t.captures} for r in rules]
    anywhere = set().union(*bound)
    return [
        replace(r, where={k: v for k, v in r.where.items() if k in own or k not in anywhere})
        for r, own in zip(rules, bound, strict=True)
    ]


def _with_common(rule: Rule, common: Mapping[str, Domain]) -> Rule:
    """Add the file's `where` for captures that the rule's own `where` does not mention."""
    own = {c for t in (*rule.sources, *rule.targets) for c in t.captures}
    return replace(rule, where={**{k: v for k, v in common.items() if k in own}, **rule.where}) if common else rule


def _rule(source: Any, target: Any, table: dict[str, Any], let: Mapping[str, Sequence[str]]) -> Rule:
    def side(texts: Any, which: int) -> tuple[Template, ...]:
        return tuple(template(_expand(t, let, which)) for t in _strings(texts))

    sources, targets = side(source, 0), side(target, 1)
    layout = " ".join(_expand(str(table.get("layout", "")), let, 0).split())
    rank = table.get("rank", [])
    rule = Rule(
        sources, targets, layout if targets else "",
        where={k: _domain(v, let) for k, v in _table(table, "where").items()},
        sizes={k: _size(_expand(v, let, 0), side) for k, v in table.get("sizes", {}).items()},
        ops=tuple(_strings(table.get("op", []))),
        ranks=tuple(int(r) for r in (rank if isinstance(rank, list) else [rank])),
        having=side(table.get("if", []), 0),
        lacking=side(table.get("unless", []), 0),
        kinds=tuple(_strings(table.get("kind", []))),
        fills=tuple((side(k, 1)[0], _fill(v)) for k, v in table.get("fill", {}).items()),
        resize=_resize(table, side),
        same=bool(table.get("same", False)), sum=str(table.get("sum", "")), shared=bool(table.get("shared", False)),
        optional=bool(table.get("optional", False)), note=str(table.get("note", "")),
        doubts=_known(table.get("doubts", {}), ("class", "flatten"), "doubts"), refuse=str(table.get("refuse", "")),
    )  # fmt: skip
    try:
        rule.check(layout)
    except (UsageError, LayoutError) as e:
        raise UsageError(f"rule {rule.label}: {e.message}") from e
    return rule


def _fill(value: Any) -> Fill:
    blocks = value if isinstance(value, list) else [value]
    if not 0 < len(blocks) <= MAX_FILL or not all(isinstance(v, int | float | str) for v in blocks):
        raise UsageError(f"fill {value!r} is neither a number (or a parameter's name) nor a list of up to {MAX_FILL}")
    return tuple(v if isinstance(v, str) else float(v) for v in blocks)


def _resize(table: Mapping[str, Any], side: Any) -> Resize | None:
    """`crop` or `pad` of a rule."""
    given = [(word, table[word]) for word in ("crop", "pad") if word in table]
    if not given:
        return None
    word, value = given[0]
    _known(value, {"axis", "to", "from", "value", "front", "unchecked"}, f"`{word}`")
    axis, number = value.get("axis"), value.get("value", 0)
    flags = [value.get(k, False) for k in ("front", "unchecked")]
    kinds = type(axis) is int and axis >= 0 and type(number) in (int, float) and {*map(type, flags)} == {bool}
    if len(given) > 1 or "to" not in value or not kinds:
        raise UsageError(f"give one of `crop` and `pad`, as {word} = {{ axis = 0, to = 100, value = 0 }}")
    before = _size(value["from"], side) if "from" in value else None
    return Resize(word == "pad", axis, _size(value["to"], side), before, float(number), *flags)


def _domain(spec: Any, let: Mapping[str, Sequence[str]]) -> Domain:
    return domain(_expand(spec, let, 0))


def _expand(text: Any, let: Mapping[str, Sequence[str]], which: int) -> Any:
    """Replace <name> in a text by that of `let`: the first of two in sources, the second in targets."""
    for name, texts in let.items() if isinstance(text, str) else ():
        text = text.replace(f"<{name}>", texts[min(which, len(texts) - 1)])
        if len(text) > MAX_TEMPLATE:
            raise UsageError(f"template {text[:40]!r}...: grows beyond {MAX_TEMPLATE} characters")
    return text


def _size(value: Any, side: Any) -> int | str | Of:
    if isinstance(value, dict):
        _known(value, {"of", "axis"}, "sizes")
        return Of(side(value.get("of", ""), 0)[0], int(value.get("axis", 0)))
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"a size is a number, a parameter's name or {{ of, axis }}, not {value!r}")
    return value


def _param(name: str, value: Any) -> Param:
    if isinstance(value, int):
        return Param(default=value)
    _known(value, {"of", "axis", "config", "default", "help"}, f"parameter {name}")
    of = Of(template(value["of"]), int(value.get("axis", 0))) if "of" in value else None
    config = value.get("config", "")
    if not isinstance(config, str) or ("config" in value and not all(config.split("."))):
        raise UsageError(f'parameter {name}: {config!r} is not a key of config.json; write "heads" or "text.heads"')
    return Param(value.get("default"), of, str(value.get("help", "")), config)


# --- files ------------------------------------------------------------------------------------------------------


def included(text: str) -> list[str]:
    """The names that a rule file includes; none if it is not a rule file, which parsing reports."""
    try:
        return _strings(tomllib.loads(text).get("include", []))
    except (ValueError, RecursionError, UsageError):
        return []


@lru_cache(maxsize=1)
def shipped() -> Path:
    """The folder of the shipped converters: in the wheel, or in the source tree."""
    here = Path(__file__).parents[1]
    return here / "converters" if (here / "converters").is_dir() else here.parent / "converters"


def read(path: Path) -> str:
    """The text of a rule file; UsageError if there is none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, for ever
            raise UsageError(f"converter {path}: is not a regular file")
        with path.open("rb") as f:
            data = f.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise UsageError(f"converter {path.name}: is larger than {MAX_FILE} bytes")
        return data.decode()
    except OSError as e:
        raise UsageError(f"converter {path}: {(e.strerror or str(e)).lower()}") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"converter {path}: not UTF-8 text") from e
