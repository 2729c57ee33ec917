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
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast, get_args

from ..checkpoint.details import State
from ..errors import LayoutError, UsageError
from ..messages import brief, did_you_mean, printable
from ..storage.paths import inside
from . import doubts
from .converter import Combine, Conditions, Converter, Count, Fill, Param, Refusal, Rewrite, Rule, Tie
from .operations import Of, Resize
from .templates import MAX_FREE, Domain, Template, check_free, domain, template

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE = 2**20  # bytes of a rule file
MAX_CAPTURED = 2000  # names with captures, in sources and targets: each is tried on each name
MAX_TOTAL = 100_000  # rules
MAX_TOGETHER = 500  # names of one side of a rule; a layout of MAX_PATTERN characters has no more
MAX_SPELLED = 2**22  # characters of the names of one [[rule]]
MAX_ENTRIES = 1000  # of a table that is looked at for every name
MAX_WORDS = 2**18  # characters of the tables in `where`, written out for each rule
MAX_INCLUDES = 16  # files in all
MAX_FILL = 8  # blocks of a filled tensor
MAX_MESSAGE = 4000  # characters of an error
MAX_PARTS = 32  # of a dotted key
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*')  # texts and comments
_LONG_KEY = re.compile(rf"(?:\.[\s\w-]*){{{MAX_PARTS}}}")

_TOP = {
    "title", "source", "target", "separators", "include", "params", "let", "where", "rewrite", "rule", "tie", "detect",
    "optional", "one_way", "notes", "count", "axes", "refuse",
}  # fmt: skip
_RULE = {
    "from", "to", "names", "layout", "where", "sizes", "op", "rank", "if", "unless", "kind", "input", "fill",
    "crop", "pad", "same", "sum", "optional", "note", "doubts", "refuse",
}  # fmt: skip


def parse(
    text: str,
    name: str,
    *,
    folder: Path | None = None,
    let: Mapping[str, Sequence[str]] | None = None,
    files: list[str] | None = None,
) -> Converter:
    """Parse a rule file; UsageError, with the file's name, if it is invalid.

    `let` overrides the file's own; `files` are those that were included so far, by whichever file.
    """
    if _LONG_KEY.search(_QUOTED.sub("", text)):  # the parser takes time quadratic in the parts of a key
        raise UsageError(f"converter {printable(name)}: a key has more than {MAX_PARTS} parts")
    try:
        top = known(tomllib.loads(text), _TOP, "the file")
        return _converter(top, name, folder, let or {}, [] if files is None else files)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"converter {printable(name)}: not valid TOML: {e}") from e
    except RecursionError as e:
        raise UsageError(f"converter {printable(name)}: is nested too deeply") from e
    except (TypeError, ValueError, AttributeError, KeyError) as e:  # a value of the wrong type for its key
        raise UsageError(f"converter {printable(name)}: not a rule file: {e}") from e
    except (UsageError, LayoutError) as e:
        text = e.message if e.message.startswith("converter ") else f"converter {printable(name)}: {e.message}"
        raise UsageError(brief(text, MAX_MESSAGE)) from e


def _converter(
    top: dict[str, Any], name: str, folder: Path | None, outer: Mapping[str, Sequence[str]], files: list[str]
) -> Converter:
    short(top, MAX_LISTED, "let", "where", "tie", "count")
    short(top, MAX_ENTRIES, "params", "rewrite", "axes", "refuse")
    let = {k: spellings(k, v) for k, v in subtable(top, "let").items()} | dict(outer)
    shared = [_included(i, folder, let, files) for i in strings(top.get("include", []))]
    common = {k: spelled(v, let) for k, v in subtable(top, "where").items()}
    detect = known(top.get("detect", {}), {"all", "none", "where"}, "detect")
    short(detect, MAX_LISTED, "all", "none", "where")
    spoken = common | {k: domain(v) for k, v in detect.get("where", {}).items()}
    separators = strings(top.get("separators", list(shared[0].separators) if shared else ["/", "."]))
    if len(separators) != 2:
        raise UsageError("separators must be two strings: that of the source and that of the target")
    own = Converter(
        name=name,
        rules=_limited(_with_common(r, common) for table in top.get("rule", []) for r in _rules(table, let)),
        title=str(top.get("title", "")),
        source=str(top.get("source", "")),
        target=str(top.get("target", "")),
        separators=(separators[0], separators[1]),
        params={k: param(k, v) for k, v in subtable(top, "params").items()},
        rewrites=tuple(rewrite(r) for r in top.get("rewrite", [])),
        ties=tuple(tie(t) for t in top.get("tie", [])),
        counts=tuple(count(k, v, common, let) for k, v in subtable(top, "count").items()),
        axes={k: str(v) for k, v in subtable(top, "axes").items()},
        refusals=tuple(refusal(t) for t in top.get("refuse", [])),
        present=tuple((template(t), spoken) for t in strings(detect.get("all", []))),
        absent=tuple((template(t), spoken) for t in strings(detect.get("none", []))),
        optional=flag(top, "optional", any(s.optional for s in shared)),
        one_way=str(top.get("one_way", "")),
        notes=tuple(strings(top.get("notes", []))),
    )
    return _joined(own, shared)


def _limited(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Refuse rules, before all are made, that would take long to compile or to try."""
    out: list[Rule] = []
    captured = words = 0
    for rule in rules:
        out.append(rule)
        found = [c for t in (*rule.sources, *rule.targets) for c in t.captures]
        captured += sum(bool(t.captures) for t in (*rule.sources, *rule.targets))
        words += sum(d.size * max(found.count(c), 1) for c, d in rule.where.items())
        if len(out) > MAX_TOTAL:
            raise UsageError(f"there are more than {MAX_TOTAL} rules, those of included files counted")
        if captured > MAX_CAPTURED:
            raise UsageError(
                f"the rules have more than {MAX_CAPTURED} names with captures; one rule can take many by `where`"
            )
        if words > MAX_WORDS:
            raise UsageError(f"the tables of `where`, for all rules, have more than {MAX_WORDS} characters")
    return tuple(out)


def _joined(own: Converter, shared: Sequence[Converter]) -> Converter:
    """Append the rules of the included converters to those of the converter itself."""
    return replace(
        own,
        rules=_limited((*own.rules, *(r for s in shared for r in s.rules))),
        params={k: v for s in shared for k, v in s.params.items()} | dict(own.params),
        rewrites=(*own.rewrites, *(r for s in shared for r in s.rewrites)),
        ties=(*own.ties, *(t for s in shared for t in s.ties)),
        counts=tuple({(c.source, c.target): c for c in (*(c for s in shared for c in s.counts), *own.counts)}.values()),
        axes={k: v for s in shared for k, v in s.axes.items()} | dict(own.axes),
        refusals=(*own.refusals, *(r for s in shared for r in s.refusals)),
    )


def _included(name: str, folder: Path | None, let: Mapping[str, Sequence[str]], files: list[str]) -> Converter:
    if len(files) >= MAX_INCLUDES:
        raise UsageError(f"include {name!r}: files include each other, or more than {MAX_INCLUDES} of them")
    path = beside(name, folder)
    files.append(name)
    return parse(read(path), name, folder=path.parent, let=let, files=files)


def beside(name: str, folder: Path | None) -> Path:
    """The file that an include refers to: in the folder of the including file, or among those shipped."""
    if "/" in name or "\\" in name or name.startswith("."):
        raise UsageError(f"include {name!r}: must be the bare name of a file beside this one")
    for home in filter(None, (folder, shipped())):
        if os.path.isfile(path := home / f"{name}.toml"):  # also False for an invalid file name
            if home != shipped() and not inside(str(path), str(home)):  # what is read could be shown in a message
                raise UsageError(f"include {name!r}: is a link that leaves the folder of the file that includes it")
            return path
    raise UsageError(f"include {name!r}: there is no {printable(name)}.toml beside this file")


def _rules(table: Any, let: Mapping[str, Sequence[str]]) -> list[Rule]:
    """The rules of one [[rule]]: one, or one for each pair of `names`."""
    known(table, _RULE, "rule")
    short(table, MAX_LISTED, *_RULE - {"from", "to", "names"})
    short(table, MAX_TOGETHER, "from", "to")
    pairs = [*([(table["from"], table.get("to"))] if "from" in table else ()), *table.get("names", {}).items()]
    if not pairs or any(b is None for _, b in pairs):
        raise UsageError(f"rule {table!r} needs `from` and `to`, or `names`")
    common = _nameless(table, let)
    rules: list[Rule] = []
    spelled = 0
    for a, b in pairs:
        rules.append(_named(common, _side(a, 0, let), _side(b, 1, let)))
        spelled += sum(len(t.text) for t in (*rules[-1].sources, *rules[-1].targets))
        if spelled > MAX_SPELLED:
            raise UsageError(f"the names of a rule have more than {MAX_SPELLED} characters after `let` is expanded")
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


def _side(texts: Any, which: int, let: Mapping[str, Sequence[str]]) -> tuple[Template, ...]:
    return tuple(template(expand(t, let, which)) for t in strings(texts))


def _nameless(table: dict[str, Any], let: Mapping[str, Sequence[str]]) -> Rule:
    """What a [[rule]] says of all its names."""
    side = partial(_side, let=let)
    rank = table.get("rank", [])
    return Rule(
        (), (), " ".join(expand(str(table.get("layout", "")), let, 0).split()),
        where={k: spelled(v, let) for k, v in subtable(table, "where").items()},
        sizes={k: size(expand(v, let, 0), side) for k, v in table.get("sizes", {}).items()},
        ops=tuple(strings(table.get("op", []))),
        when=Conditions(
            tuple(whole(r, "rank") for r in (rank if isinstance(rank, list) else [rank])),
            side(table.get("if", []), 0),
            side(table.get("unless", []), 0),
            tuple(strings(table.get("kind", []))),
            tuple(each_of(table.get("input", []), get_args(State), "input")),
        ),
        fills=tuple((side(k, 1)[0], _fill(v)) for k, v in table.get("fill", {}).items()),
        resize=resize(table, side),
        combine=_combine(table),
        optional=flag(table, "optional"), note=str(table.get("note", "")),
        doubts=tuple(each_of(table.get("doubts", []), doubts.DOUBTS, "doubts")),
        refuse=str(table.get("refuse", "")),
    )  # fmt: skip


def _named(common: Rule, sources: tuple[Template, ...], targets: tuple[Template, ...]) -> Rule:
    """A rule for some names; UsageError if what was said of all of them does not fit."""
    rule = replace(common, sources=sources, targets=targets, layout=common.layout if targets else "")
    if not sources:
        raise UsageError("a rule has no name in `from`")
    try:
        rule.check(common.layout)
    except (UsageError, LayoutError) as e:
        raise UsageError(f"rule {rule.label}: {e.message}") from e
    return rule


def _combine(table: Mapping[str, Any]) -> Combine:
    """`same` or `sum` of a rule."""
    same, how = flag(table, "same"), table.get("sum")
    if how is None:
        return "same" if same else ""
    if how not in get_args(Combine)[2:] or same or "fill" in table:
        raise UsageError('`sum` is "exact", or "zeros" if all but the first are zeros, without `same` or `fill`')
    return cast("Combine", how)


def _fill(value: Any) -> Fill:
    blocks = value if isinstance(value, list) else [value]
    if not 0 < len(blocks) <= MAX_FILL or not all(isinstance(v, int | float | str) for v in blocks):
        raise UsageError(f"fill {value!r} is neither a number (or a parameter's name) nor a list of up to {MAX_FILL}")
    return tuple(v if isinstance(v, str) else float(v) for v in blocks)


# --- files ------------------------------------------------------------------------------------------------------


def included(text: str) -> list[str]:
    """The names that a rule file includes; none if it is not a rule file, which parsing reports."""
    try:
        return strings(tomllib.loads(text).get("include", []))
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
            raise UsageError(f"converter {printable(str(path))}: is not a regular file")
        with path.open("rb") as f:
            data = f.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise UsageError(f"converter {path.name}: is larger than {MAX_FILE} bytes")
        return data.decode()
    except OSError as e:
        raise UsageError(f"converter {printable(str(path))}: {(e.strerror or str(e)).lower()}") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"converter {printable(str(path))}: not UTF-8 text") from e
    except ValueError as e:  # a NUL or half a surrogate pair in its name
        raise UsageError(f"converter {printable(str(path))}: no file has such a name") from e


# --- Parse what a converter's file has beside its rules, and the values that rules have; `let` is expande ---


MAX_TEMPLATE = 1000  # characters, after `let` is expanded
MAX_LISTED = 64  # entries of what is repeated for every rule, or looked at for every name

Let = Mapping[str, Sequence[str]]


def known(table: Any, keys: Iterable[str], what: str) -> dict[str, Any]:
    """Refuse unknown keys: a misspelt one would be ignored silently."""
    if not isinstance(table, dict):
        raise UsageError(f"{printable(what)} must be a table")
    keys = sorted(keys)
    for key in table:
        if key not in keys:
            raise UsageError(f"{printable(what)}: unknown key {key!r}{did_you_mean(key, keys, 'keys')}")
    return table


def subtable(top: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table whose keys are the author's own."""
    return known(top.get(key, {}), top.get(key, {}), key)


def short(table: Mapping[str, Any], most: int, *keys: str) -> None:
    """Refuse long lists and tables: they are repeated for every rule, or looked at for every name."""
    for key in keys:
        if isinstance(value := table.get(key), list | dict) and len(value) > most:
            raise UsageError(f"`{key}` has {len(value)} entries, more than {most}")


def flag(table: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """true or false: "no" would be true."""
    if not isinstance(value := table.get(key, default), bool):
        raise UsageError(f"{key} = {value!r}: give true or false")
    return value


def strings(value: Any) -> list[str]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"{value!r} must be a string or a list of strings")
    return value


def each_of(value: Any, words: Iterable[str], what: str) -> list[str]:
    """A list of strings, each one of the given words."""
    known(dict.fromkeys(found := strings(value)), words, what)
    return found


def spellings(name: str, value: Any) -> list[str]:
    """One entry of `let`."""
    if len(found := strings(value)) not in (1, 2):
        raise UsageError(f"let {printable(name)}: give one text, or two, that of the source and that of the target")
    return found


def expand(text: Any, let: Mapping[str, Sequence[str]], which: int) -> Any:
    """Replace <name> in a text by that of `let`: the first of two in sources, the second in targets."""
    for name, texts in let.items() if isinstance(text, str) else ():
        text = text.replace(f"<{name}>", texts[min(which, len(texts) - 1)])
        if len(text) > MAX_TEMPLATE:
            raise UsageError(f"template {text[:40]!r}...: grows beyond {MAX_TEMPLATE} characters")
    return text


def size(value: Any, side: Any) -> int | str | Of:
    """A number, a parameter's name, or the length of an axis of another tensor."""
    if isinstance(value, dict):
        known(value, {"of", "axis"}, "sizes")
        if not isinstance(value.get("of"), str):
            raise UsageError(f"a size is the length of an axis of one tensor: {{ of = NAME, axis = 0 }}, not {value!r}")
        return Of(side(value["of"], 0)[0], whole(value.get("axis", 0), "axis"))
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"a size is a number, a parameter's name or {{ of, axis }}, not {value!r}")
    return value


def whole(value: Any, key: str) -> int:
    """Refuse what is not a whole number: 2.7 would become 2."""
    if type(value) is not int:
        raise UsageError(f"{key} = {value!r}: give a whole number")
    return value


def spelled(spec: Any, let: Mapping[str, Sequence[str]]) -> Domain:
    return domain(expand(spec, let, 0))


def param(name: str, value: Any) -> Param:
    if isinstance(value, int):
        return Param(default=value)
    known(value, {"of", "axis", "config", "default", "help"}, f"parameter {name}")
    of = Of(template(value["of"]), whole(value.get("axis", 0), "axis")) if "of" in value else None
    default = whole(value["default"], "default") if "default" in value else None
    config = value.get("config", "")
    if not isinstance(config, str) or ("config" in value and not all(config.split("."))):
        raise UsageError(
            f'parameter {printable(name)}: {config!r} is not a key of config.json; write "heads" or "text.heads"'
        )
    return Param(default, of, str(value.get("help", "")), config)


def tie(table: Any) -> Tie:
    short(known(table, {"names", "apart", "if"}, "tie"), MAX_LISTED, "names", "if")
    names = strings(table.get("names", []))
    return Tie(tuple(map(template, names)), flag(table, "apart"), tuple(strings(table.get("if", []))))


def count(head: str, param: Any, common: Mapping[str, Domain], let: Mapping[str, Sequence[str]]) -> Count:
    source, target = (template(expand(head, let, which)) for which in (0, 1))
    where = {k: d for k, d in common.items() if k in (*source.captures, *target.captures)}
    last = [t.parts[-1] for t in (source, target) if t.captures]
    for p in last:
        if isinstance(p, str) or p.kind == "..." or where.setdefault(p.name, Domain("int")).kind != "int":
            raise UsageError(f"count {head!r}: it must end with a capture that is a number")
    if not last:
        raise UsageError(f"count {head!r}: it must end with a capture that is a number")
    return Count(source, target, str(expand(param, let, 0)), where)


def refusal(table: Any) -> Refusal:
    equal = known(table, {"equal", "why"}, "refuse").get("equal")
    if not isinstance(equal, list) or len(equal) != 2 or any(type(v) not in (int, str) for v in equal):
        raise UsageError(f"refuse: `equal` is a list of two parameters or numbers, not {equal!r}")
    return Refusal((equal[0], equal[1]), str(table.get("why", "")))


def rewrite(value: Any) -> Rewrite:
    if isinstance(value, list) and len(strings(value)) == 2:
        value = {"from": value[0], "to": value[1]}
    known(value, {"from", "to", "where", "one", "if"}, "rewrite")
    source, target = str(value.get("from", "")), str(value.get("to", ""))
    start, end = source.startswith("^"), source.endswith("$")
    parsed = template(source[start : len(source) - end])
    if not parsed.parts or any(p.kind for p in parsed.parts if not isinstance(p, str)):
        raise UsageError(f"rewrite {source!r}: it may contain text and {{x}} only")
    begins = start or source.startswith("/")  # else it is tried at each character, as if a capture were before it
    check_free(source, parsed.parts, MAX_FREE - 1 - (not begins), "/")
    short(value, MAX_LISTED, "where")
    where = {k: domain(v) for k, v in value.get("where", {}).items()}
    given = template(value["if"]) if "if" in value else None
    made = Rewrite(parsed, template(target), start, end, where, str(value.get("one", "")), given)
    if odd := ({*made.target.captures, made.one} - {"", *parsed.captures}):
        raise UsageError(f"rewrite {source!r}: {{{min(odd)}}} is not in it")
    return made


def resize(table: Mapping[str, Any], side: Any) -> Resize | None:
    """`crop` or `pad` of a rule."""
    given = [(word, table[word]) for word in ("crop", "pad") if word in table]
    if not given:
        return None
    word, value = given[0]
    known(value, {"axis", "to", "from", "value", "unchecked"}, f"`{word}`")
    axis, number, unchecked = value.get("axis"), value.get("value", 0), value.get("unchecked", False)
    kinds = type(axis) is int and axis >= 0 and type(number) in (int, float) and type(unchecked) is bool
    if len(given) > 1 or "to" not in value or not kinds:
        raise UsageError(f"give one of `crop` and `pad`, as {word} = {{ axis = 0, to = 100, value = 0 }}")
    before = size(value["from"], side) if "from" in value else None
    return Resize(word == "pad", axis, size(value["to"], side), before, float(number), unchecked)
