"""Parse a converter's file. converters/README.md describes the language.

    [[rule]]
    from = "bert/encoder/layer_{i}/attention/self/{p}/kernel"
    to = "bert.encoder.layer.{i}.attention.self.{p}.weight"
    where = { p = ["query", "key", "value"] }
    layout = "i o -> o i"

An invalid file is refused with the reason; an unknown key is an error, too. Each table has a schema: which keys there
are, and of which kind. `fields` checks a table by its schema and fills in defaults; the functions below it only build
records from what it returns.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from ..checkpoint.details import State
from ..errors import CkptError, LayoutError, UsageError
from ..messages import brief, did_you_mean, printable
from ..storage.files import read_all
from ..storage.paths import inside
from .assign import DOUBTS
from .converter import Converter, Count, Fill, Param, Refusal, Rewrite, Rule, Size, Tie
from .operations import Of, Resize
from .sizes import KINDS
from .templates import INT, MAX_FREE, Domain, Template, check_free, domain, template

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE = 2**20  # bytes of a rule file
MAX_CAPTURED = 2000  # names with captures, in sources and targets: each is tried on each name
MAX_TOTAL = 100_000  # rules
MAX_TOGETHER = 500  # names of one side of a rule; a layout of MAX_PATTERN characters has no more
MAX_SPELLED = 2**22  # characters of all names
MAX_ENTRIES = 1000  # of a table that is looked at for every name
MAX_LISTED = 64  # entries of what is repeated for every rule, or looked at for every name
MAX_WORDS = 2**18  # characters of the tables in `where`, written out for each rule
MAX_INCLUDES = 16  # files in all
MAX_FILL = 8  # blocks of a filled tensor
MAX_TEMPLATE = 1000  # characters, after `let` is expanded
MAX_MESSAGE = 4000  # characters of an error
MAX_PARTS = 32  # of a dotted key
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*')  # texts and comments
_LONG_KEY = re.compile(rf"(?:\.[\s\w-]*){{{MAX_PARTS}}}")

Let = Mapping[str, Sequence[str]]

# --- schemas --------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """The values that a key may have, and what is made of each; those that are `listed` are given as one or a list."""

    said: str  # in an error
    fits: Callable[[Any], bool]
    default: Any = None
    listed: bool = False
    made: Callable[[Any, Let], Any] = lambda value, let: value


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def _table_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _texts_of(words: Iterable[str]) -> Kind:
    known = tuple(words)
    return Kind(f"some of {', '.join(known)}", known.__contains__, (), listed=True)


def _each(kind: Kind, what: str, table: dict[str, Any], let: Let) -> dict[str, Any]:
    """A table whose keys are free, with values of one kind."""
    return fields(table, dict.fromkeys(table, kind), what, let)


def expand(text: Any, let: Let, which: int = 0) -> Any:
    """Replace <name> in a text by that of `let`: the first of two in sources, the second in targets."""
    for name, texts in let.items() if isinstance(text, str) else ():
        text = text.replace(f"<{name}>", texts[min(which, len(texts) - 1)])
        if len(text) > MAX_TEMPLATE:
            raise UsageError(f"template {text[:40]!r}...: grows beyond {MAX_TEMPLATE} characters")
    return text


def _template(which: int, text: str, let: Let) -> Template:
    return template(expand(text, let, which))


def _size(value: Any, let: Let) -> Size:
    if not isinstance(value, dict):
        return value if isinstance(value, int) else str(expand(value, let))
    return Of(*fields(value, _OF, "sizes", let).values())


def _fills(table: dict[str, Any], let: Let) -> tuple[tuple[Template, Fill], ...]:
    for name, blocks in (out := _each(_FILL, "fill", table, let)).items():
        if not 0 < len(blocks) <= MAX_FILL:
            raise UsageError(f"fill: {printable(name)} is neither a number nor a list of up to {MAX_FILL}")
    return tuple((_template(1, name, let), blocks) for name, blocks in out.items())


def _resize(word: str, table: dict[str, Any], let: Let) -> Resize | None:
    """`crop` or `pad` of a rule; an empty table is none."""
    how = fields(table, _RESIZE, f"`{word}`", let)
    if table and (how["to"] is None or how["axis"] is None or how["axis"] < 0):
        raise UsageError(ONE_OF.format(word))
    return Resize(word == "pad", *how.values()) if table else None


ONE_OF = "give one of `crop` and `pad`, as {} = {{ axis = 0, to = 100, value = 0 }}"
TEXT, FLAG = Kind("a text", _is(str), ""), Kind("true or false", _is(bool), False)
TEXTS = Kind("a text or a list of texts", _is(str), (), listed=True)
NAMES, TARGETS = (TEXTS._replace(made=partial(_template, k)) for k in (0, 1))
WHOLE, NUMBER = Kind("a whole number", _is(int)), Kind("a number", _is(int, float), 0.0, made=lambda v, let: float(v))
NUMBERS = Kind("a whole number or a list of them", _is(int), (), listed=True)
TABLE, LIST = Kind("a table", _is(dict), {}), Kind("a list", _is(list), [])
TEXT_TABLE = Kind("a table of texts", _table_of(_is(str)), {})
WHERE = TABLE._replace(made=lambda table, let: {k: domain(expand(v, let)) for k, v in table.items()})
SIZE = Kind("a number, a parameter's name, or { of = NAME, axis = 0 }", _is(int, str, dict), made=_size)

_TOP = {
    "title": TEXT, "source": TEXT, "target": TEXT, "include": TEXTS, "where": TABLE,
    "let": TABLE._replace(made=partial(_each, TEXTS, "let")), "params": TABLE, "rewrite": LIST, "tie": LIST,
    "rule": LIST, "detect": TABLE, "optional": FLAG, "one_way": TEXT, "ranks": TEXT, "notes": TEXTS,
    "count": TEXT_TABLE, "axes": TEXT_TABLE, "refuse": LIST, "config": TABLE,
}  # fmt: skip
_PAIR = {"from": NAMES, "to": TARGETS}
_RULE = _PAIR | {
    "names": TABLE, "layout": TEXT._replace(made=lambda text, let: " ".join(expand(text, let).split())),
    "where": WHERE, "sizes": TABLE._replace(made=partial(_each, SIZE, "sizes")), "op": TEXTS, "rank": NUMBERS,
    "if": NAMES, "unless": NAMES, "kind": TEXTS, "input": _texts_of(get_args(State)),
    "fill": TABLE._replace(default=(), made=_fills),
    **{word: TABLE._replace(default=None, made=partial(_resize, word)) for word in ("crop", "pad")},
    "flip": TEXT._replace(default=frozenset(), made=lambda text, let: frozenset(text.split())),
    "metadata": TEXT_TABLE, "same": FLAG, "optional": FLAG, "note": TEXT, "doubts": _texts_of(DOUBTS), "refuse": TEXT,
}  # fmt: skip
_FIELDS = {"if": "having", "unless": "lacking"}  # of a rule; others are called as their keys
_OF = {"of": TEXT._replace(made=NAMES.made), "axis": WHOLE._replace(default=0)}
_PARAM = _OF | {"config": TEXTS, "default": WHOLE, "help": TEXT}
_RESIZE = {"axis": WHOLE, "to": SIZE, "from": SIZE, "value": NUMBER, "unchecked": FLAG}
_REWRITE = {"from": TEXT, "to": TEXT, "where": WHERE, "one": TEXT, "if": TEXT}
_FILL = Kind(
    "a number, a parameter's name, or a list of them", _is(int, float, str), (), True,
    lambda v, let: v if isinstance(v, str) else float(v),
)  # fmt: skip
_ANY = Kind("a value", lambda value: True)
_VALUE = dict.fromkeys(("is", "then", "else", "default"), _ANY)
_VALUE |= {"of": TEXT, "axis": WHOLE._replace(default=0), "setting": TEXTS, "if": TEXT}
_REFUSE = {"equal": Kind("a list of two parameters or numbers", _is(int, str), (), listed=True), "why": TEXT}


def _most(key: str) -> int:
    """The entries that a key may have."""
    if key in ("names", "rule"):
        return MAX_TOTAL
    if key in ("from", "to"):
        return MAX_TOGETHER
    return MAX_ENTRIES if key in ("params", "rewrite", "axes") else MAX_LISTED


def fields(table: Any, schema: Mapping[str, Kind], what: str, let: Let = MappingProxyType({})) -> dict[str, Any]:
    """What is made of all keys of a schema, of those that are not in the table the default; lists become tuples.

    UsageError if a key is unknown, or a value is of another kind or has too many entries.
    """
    if not isinstance(table, dict):
        raise UsageError(f"{printable(what)} must be a table")
    out = {key: kind.default for key, kind in schema.items()}
    for key, value in table.items():
        kind = schema.get(key)
        if kind is None:
            raise UsageError(f"{printable(what)}: unknown key {key!r}{did_you_mean(key, sorted(schema), 'keys')}")
        if isinstance(value, list | dict) and len(value) > _most(key):
            raise UsageError(f"{printable(what)}: `{key}` has {len(value)} entries, more than {_most(key)}")
        values = value if kind.listed and isinstance(value, list) else [value]
        if not all(map(kind.fits, values)):
            raise UsageError(f"{printable(what)}: {key} = {value!r}: give {kind.said}")
        made = tuple(kind.made(v, let) for v in values)
        out[key] = made if kind.listed else made[0]
    return out


# --- the file -------------------------------------------------------------------------------------------------------


def parse(
    text: str, name: str, *, folder: Path | None = None, let: Let | None = None, files: list[str] | None = None
) -> Converter:
    """Parse a rule file; UsageError, with the file's name, if it is invalid.

    `let` overrides the file's own; `files` are those that were included so far, by whichever file.
    """
    try:
        if _LONG_KEY.search(_QUOTED.sub("", text)):  # the parser takes time quadratic in the parts of a key
            raise UsageError(f"a key has more than {MAX_PARTS} parts")
        made = _converter(tomllib.loads(text), name, folder, let or {}, [] if files is None else files)
        return replace(made, texts=(text, *made.texts))
    except tomllib.TOMLDecodeError as e:
        why = f"not valid TOML: {e}"
    except RecursionError:
        why = "is nested too deeply"
    except (UsageError, LayoutError) as e:
        why = e.message
    except (ValueError, OverflowError) as e:  # a number with more digits than are read
        why = f"not a rule file: {e}"
    raise UsageError(brief(why if why.startswith("converter ") else f"converter {printable(name)}: {why}", MAX_MESSAGE))


def _separators(rules: Sequence[Rule]) -> tuple[str, str]:
    """What joins segments in source and target: / or ., as the rules spell it most; where they spell none, on both."""
    texts = ["".join(t.text for r in rules for t in getattr(r, side)) for side in ("sources", "targets")]
    a, b = (text.replace("...", "").count for text in texts)
    return max("/.", key=lambda c: (a(c), b(c))), max("/.", key=lambda c: (b(c), a(c)))


def _converter(top: dict[str, Any], name: str, folder: Path | None, outer: Let, files: list[str]) -> Converter:
    """The converter of a file's table: its own rules, then those of the files that it includes."""
    table = fields(top, _TOP, "the file")
    let: Let = table["let"] | dict(outer)
    if any(not 0 < len(texts) <= 2 for texts in let.values()):
        raise UsageError("an entry of `let` is one text, or two: that of the source and that of the target")
    shared = [_included(i, folder, let, files) for i in table["include"]]
    common = WHERE.made(table["where"], let)
    detect = fields(table["detect"], {"all": NAMES, "none": NAMES, "where": WHERE}, "detect")
    spoken = common | detect["where"]
    rules = _limited(chain(*(_rules(r, let, common) for r in table["rule"]), *(s.rules for s in shared)))
    own = Converter(
        name=name,
        rules=rules,
        separators=_separators(rules),
        params={k: _param(k, v) for k, v in table["params"].items()},
        rewrites=tuple(map(_rewrite, table["rewrite"])),
        ties=tuple(map(_tie, table["tie"])),
        counts=tuple(_count(k, v, common, let) for k, v in table["count"].items()),
        refusals=tuple(map(_refusal, table["refuse"])),
        present=tuple((t, spoken) for t in detect["all"]),
        absent=tuple((t, spoken) for t in detect["none"]),
        optional=top.get("optional", any(s.optional for s in shared)),
        config=_config(table["config"]),
        ranks=next(filter(None, (table["ranks"], *(s.ranks for s in shared))), ""),
        **{key: table[key] for key in ("title", "source", "target", "axes", "one_way", "notes")},
    )
    counts = {(c.source, c.target): c for one in (*shared, own) for c in one.counts}
    joined: dict[str, Any] = {"counts": tuple(counts.values())}
    for key in ("rewrites", "ties", "refusals", "texts"):
        joined[key] = tuple(chain.from_iterable(getattr(one, key) for one in (own, *shared)))
    for key in ("params", "axes", "config"):
        joined[key] = {k: v for one in (*shared, own) for k, v in getattr(one, key).items()}
    return replace(own, **joined)


def _limited(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Refuse rules, before all are made, that would take long to compile or to try."""
    out: list[Rule] = []
    captured = words = spelled = 0
    for rule in rules:
        out.append(rule)
        names = (*rule.sources, *rule.targets)
        captures = [c for t in names for c in t.captures]
        captured += sum(bool(t.captures) for t in names)
        words += sum(d.size * max(captures.count(c), 1) for c, d in rule.where.items())
        spelled += sum(len(t.text) for t in names)
        for count, most, what in (
            (len(out), MAX_TOTAL, "rules, those of included files counted"),
            (captured, MAX_CAPTURED, "names with captures; one rule can take many by `where`"),
            (words, MAX_WORDS, "characters in the tables of `where`"),
            (spelled, MAX_SPELLED, "characters in their names after `let` is expanded"),
        ):
            if count > most:
                raise UsageError(f"the rules have more than {most} {what}")
    return tuple(out)


def _included(name: str, folder: Path | None, let: Let, files: list[str]) -> Converter:
    """The converter of an included file: in the folder of the including file, or among those shipped."""
    if len(files) >= MAX_INCLUDES:
        raise UsageError(f"include {name!r}: files include each other, or more than {MAX_INCLUDES} of them")
    if "/" in name or "\\" in name or name.startswith("."):
        raise UsageError(f"include {name!r}: must be the bare name of a file beside this one")
    for home in filter(None, (folder, shipped())):
        path = home / f"{name}.toml"
        if not os.path.isfile(path):  # also False for an invalid file name
            continue
        if home != shipped() and not inside(str(path), str(home)):  # what is read could be shown in a message
            raise UsageError(f"include {name!r}: is a link that leaves the folder of the file that includes it")
        files.append(name)
        return parse(read(path), name, folder=home, let=let, files=files)
    raise UsageError(f"include {name!r}: there is no {printable(name)}.toml beside this file")


@lru_cache(maxsize=1)
def shipped() -> Path:
    """The folder of the shipped converters: in the wheel, or in the source tree."""
    here = Path(__file__).parents[1]
    return here / "converters" if (here / "converters").is_dir() else here.parent / "converters"


def read(path: Path) -> str:
    """The text of a rule file; UsageError if there is none."""
    try:
        return read_all(str(path), MAX_FILE).decode()
    except CkptError as e:
        why = e.message
    except ValueError as e:  # no UTF-8, or a NUL in its name
        why = str(e)
    raise UsageError(f"converter {printable(str(path))}: {why}")


# --- rules ----------------------------------------------------------------------------------------------------------


def _rules(given: Any, let: Let, common: Mapping[str, Domain]) -> Iterator[Rule]:
    """The rules of one [[rule]]: one, or one for each pair of `names`. common: the file's `where`."""
    table = fields(given, _RULE, "rule", let)
    pairs = [table] * ("from" in given) + [
        fields({"from": a, "to": b}, _PAIR, "names", let) for a, b in table["names"].items()
    ]
    if not pairs or ("from" in given and "to" not in given):
        raise UsageError(f"rule {given!r} needs `from` and `to`, or `names`")
    if table["crop"] and table["pad"]:
        raise UsageError(ONE_OF.format("crop"))
    rest = {_FIELDS.get(k, k): v for k, v in table.items() if k not in (*_PAIR, "names", "crop", "pad")}
    where, unused = {**common, **table["where"]}, set(table["where"])
    for sources, targets in ((pair["from"], pair["to"]) for pair in pairs):
        if not sources:
            raise UsageError("a rule has no name in `from`")
        bound = {c for t in (*sources, *targets) for c in t.captures}
        unused -= bound
        here = {
            "where": {k: d for k, d in where.items() if k in bound}, "layout": table["layout"] if targets else "",
            "resize": table["crop"] or table["pad"],
        }  # fmt: skip
        rule = Rule(sources, targets, **{**rest, **here})
        try:
            rule.check(table["layout"])
        except (UsageError, LayoutError) as e:
            raise UsageError(f"rule {rule.label}: {e.message}") from e
        yield rule
    if unused:
        raise UsageError(f"rule {rule.label}: `where` refers to {{{min(unused)}}}, which is in no name")


# --- what a file has beside its rules -------------------------------------------------------------------------------


def _param(name: str, value: Any) -> Param:
    table = fields({"default": value} if type(value) is int else value, _PARAM, f"parameter {name}")
    for key in table["config"]:
        if not all(re.split("[./]", key)):
            what = 'is not a key of config.json; write "heads", "text.heads" or "width/heads"'
            raise UsageError(f"parameter {printable(name)}: {key!r} {what}")
    of = Of(table["of"], table["axis"]) if table["of"] else None
    return Param(table["default"], of, table["help"], table["config"])


def _config(value: Any) -> Any:
    """A template of config.json, or a value of it, whose tables have all of their keys."""
    if isinstance(value, list):
        return list(map(_config, value))
    if not isinstance(value, dict):
        return value
    table = fields(value, _VALUE, "config") if any(kind in value for kind in KINDS) else value
    return {k: v if k == "setting" else _config(v) for k, v in table.items()}


def _tie(value: Any) -> Tie:
    table = fields(value, {"names": NAMES, "apart": FLAG, "if": TEXTS}, "tie")
    return Tie(*table.values())


def _count(head: str, param: str, common: Mapping[str, Domain], let: Let) -> Count:
    source, target = (_template(which, head, let) for which in (0, 1))
    for p in [t.parts[-1] for t in (source, target) if t.captures] or [""]:
        if isinstance(p, str) or p.kind == "..." or common.get(p.name, INT).kind != "int":
            raise UsageError(f"count {head!r}: it must end with a capture that is a number")
    return Count(source, target, str(expand(param, let)))


def _refusal(value: Any) -> Refusal:
    table = fields(value, _REFUSE, "refuse")
    if len(table["equal"]) != 2:
        raise UsageError(f"refuse: give `equal`: {_REFUSE['equal'].said}")
    return Refusal(table["equal"], table["why"])


def _rewrite(value: Any) -> Rewrite:
    if isinstance(value, list) and len(value) == 2:
        value = {"from": value[0], "to": value[1]}
    table = fields(value, _REWRITE, "rewrite")
    source = table["from"]
    start, end = source.startswith("^"), source.endswith("$")
    parsed = template(source[start : len(source) - end])
    if not parsed.parts or any(p.kind for p in parsed.parts if not isinstance(p, str)):
        raise UsageError(f"rewrite {source!r}: it may contain text and {{x}} only")
    begins = start or source.startswith("/")  # else it is tried at each character, as if a capture were before it
    check_free(source, parsed.parts, MAX_FREE - 1 - (not begins), "/")
    target, one = template(table["to"]), table["one"]
    if odd := ({*target.captures, one} - {"", *parsed.captures}):
        raise UsageError(f"rewrite {source!r}: {{{min(odd)}}} is not in it")
    given = template(table["if"]) if table["if"] else None
    return Rewrite(parsed, target, start, end, table["where"], one, given)
