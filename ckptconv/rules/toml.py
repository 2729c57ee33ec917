"""Parse a converter's file. converters/README.md describes the language.

    [[rule]]
    from = "bert/encoder/layer_{i}/attention/self/{p}/kernel"
    to = "bert.encoder.layer.{i}.attention.self.{p}.weight"
    where = { p = ["query", "key", "value"] }
    layout = "i o -> o i"

An invalid file is refused with the reason; an unknown key is an error, too. `fields` checks the keys of a table, the
types of their values and how many entries they have; the functions below it only build records from them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, get_args

from ..checkpoint.details import State
from ..errors import LayoutError, UsageError
from ..messages import brief, did_you_mean, printable
from ..storage.paths import inside
from . import doubts
from .converter import Combine, Conditions, Converter, Count, Fill, Param, Refusal, Rewrite, Rule, Size, Tie
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

# --- the values that a key may have ---------------------------------------------------------------------------------

TEXT, TEXTS, FLAG, WHOLE, NUMBER = "a text", "a text or a list of texts", "true or false", "a whole number", "a number"
TABLE, LIST, NUMBERS, ANY = "a table", "a list", "a whole number or a list of them", "a value"
_FITS: dict[str, Callable[[Any], bool]] = {
    TEXT: lambda v: isinstance(v, str),
    TEXTS: lambda v: isinstance(v, str) or (isinstance(v, list) and all(isinstance(t, str) for t in v)),
    FLAG: lambda v: isinstance(v, bool),
    WHOLE: lambda v: type(v) is int,
    NUMBER: lambda v: type(v) in (int, float),
    NUMBERS: lambda v: all(type(n) is int for n in (v if isinstance(v, list) else [v])),
    TABLE: lambda v: isinstance(v, dict),
    LIST: lambda v: isinstance(v, list),
    ANY: lambda v: True,
}
_TOP = {
    "title": TEXT, "source": TEXT, "target": TEXT, "separators": TEXTS, "include": TEXTS, "params": TABLE, "let": TABLE,
    "where": TABLE, "rewrite": LIST, "rule": LIST, "tie": LIST, "detect": TABLE, "optional": FLAG, "one_way": TEXT,
    "notes": TEXTS, "count": TABLE, "axes": TABLE, "refuse": LIST,
}  # fmt: skip
_RULE = {
    "from": TEXTS, "to": TEXTS, "names": TABLE, "layout": TEXT, "where": TABLE, "sizes": TABLE, "op": TEXTS,
    "rank": NUMBERS, "if": TEXTS, "unless": TEXTS, "kind": TEXTS, "input": TEXTS, "fill": TABLE, "crop": TABLE,
    "pad": TABLE, "flip": TEXT, "metadata": TABLE, "same": FLAG, "sum": TEXT, "optional": FLAG,
    "note": TEXT, "doubts": TEXTS, "refuse": TEXT,
}  # fmt: skip
_OF = {"of": TEXT, "axis": WHOLE}


def fields(table: Any, kinds: Mapping[str, str], what: str) -> dict[str, Any]:
    """A table of the file; UsageError if a key is unknown, or a value is of another kind or has too many entries."""
    if not isinstance(table, dict):
        raise UsageError(f"{printable(what)} must be a table")
    longer = dict.fromkeys(("params", "rewrite", "axes"), MAX_ENTRIES) | {"from": MAX_TOGETHER, "to": MAX_TOGETHER}
    for key, value in table.items():
        if key not in kinds:
            raise UsageError(f"{printable(what)}: unknown key {key!r}{did_you_mean(key, sorted(kinds), 'keys')}")
        if not _FITS[kinds[key]](value):
            raise UsageError(f"{printable(what)}: {key} = {value!r}: give {kinds[key]}")
        most = MAX_TOTAL if key in ("names", "rule") else longer.get(key, MAX_LISTED)
        if isinstance(value, list | dict) and len(value) > most:
            raise UsageError(f"{printable(what)}: `{key}` has {len(value)} entries, more than {most}")
    return table


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    return [value] if isinstance(value, str) else value


def _each_of(table: Mapping[str, Any], key: str, words: Iterable[str]) -> tuple[str, ...]:
    """A list of texts, each one of the given words."""
    fields(dict.fromkeys(found := _texts(table, key)), dict.fromkeys(words, ANY), key)
    return tuple(found)


def expand(text: Any, let: Let, which: int) -> Any:
    """Replace <name> in a text by that of `let`: the first of two in sources, the second in targets."""
    for name, texts in let.items() if isinstance(text, str) else ():
        text = text.replace(f"<{name}>", texts[min(which, len(texts) - 1)])
        if len(text) > MAX_TEMPLATE:
            raise UsageError(f"template {text[:40]!r}...: grows beyond {MAX_TEMPLATE} characters")
    return text


def _side(table: Mapping[str, Any], key: str, let: Let, which: int = 0) -> tuple[Template, ...]:
    return tuple(template(expand(t, let, which)) for t in _texts(table, key))


def _domains(table: Mapping[str, Any], let: Let) -> dict[str, Domain]:
    return {k: domain(expand(v, let, 0)) for k, v in table.get("where", {}).items()}


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
        top = fields(tomllib.loads(text), _TOP, "the file")
        return replace(_converter(top, name, folder, let or {}, [] if files is None else files), text=text)
    except tomllib.TOMLDecodeError as e:
        why = f"not valid TOML: {e}"
    except RecursionError:
        why = "is nested too deeply"
    except (TypeError, ValueError, AttributeError, KeyError) as e:  # a value of the wrong type within a table
        why = f"not a rule file: {e}"
    except (UsageError, LayoutError) as e:
        why = e.message
    raise UsageError(brief(why if why.startswith("converter ") else f"converter {printable(name)}: {why}", MAX_MESSAGE))


def _converter(top: dict[str, Any], name: str, folder: Path | None, outer: Let, files: list[str]) -> Converter:
    let: dict[str, Sequence[str]] = {k: _spellings(k, v) for k, v in top.get("let", {}).items()} | dict(outer)
    shared = [_included(i, folder, let, files) for i in _texts(top, "include")]
    common = _domains(top, let)
    detect = fields(top.get("detect", {}), {"all": TEXTS, "none": TEXTS, "where": TABLE}, "detect")
    spoken = common | _domains(detect, {})
    separators = _texts(top, "separators") or (shared[0].separators if shared else ("/", "."))
    if len(separators) != 2:
        raise UsageError("separators must be two strings: that of the source and that of the target")
    own = Converter(
        name=name,
        rules=_limited(r for table in top.get("rule", []) for r in _rules(table, let, common)),
        title=top.get("title", ""),
        source=top.get("source", ""),
        target=top.get("target", ""),
        separators=(separators[0], separators[1]),
        params={k: _param(k, v) for k, v in top.get("params", {}).items()},
        rewrites=tuple(map(_rewrite, top.get("rewrite", []))),
        ties=tuple(map(_tie, top.get("tie", []))),
        counts=tuple(_count(k, v, common, let) for k, v in top.get("count", {}).items()),
        axes=top.get("axes", {}),
        refusals=tuple(map(_refusal, top.get("refuse", []))),
        present=tuple((t, spoken) for t in _side(detect, "all", {})),
        absent=tuple((t, spoken) for t in _side(detect, "none", {})),
        optional=top.get("optional", any(s.optional for s in shared)),
        one_way=top.get("one_way", ""),
        notes=tuple(_texts(top, "notes")),
        included=tuple(shared),
    )
    fields(own.axes, dict.fromkeys(own.axes, TEXT), "axes")
    return _joined(own, shared) if shared else own


def _spellings(name: str, value: Any) -> list[str]:
    """One entry of `let`."""
    texts = [value] if isinstance(value, str) else value
    if not _FITS[TEXTS](texts) or len(texts) not in (1, 2):
        raise UsageError(f"let {printable(name)}: give one text, or two, that of the source and that of the target")
    return texts


def _limited(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Refuse rules, before all are made, that would take long to compile or to try."""
    out: list[Rule] = []
    captured = words = 0
    for rule in rules:
        out.append(rule)
        found = [c for t in (*rule.sources, *rule.targets) for c in t.captures]
        captured += sum(bool(t.captures) for t in (*rule.sources, *rule.targets))
        words += sum(d.size * max(found.count(c), 1) for c, d in rule.where.items())
        for count, most, what in (
            (len(out), MAX_TOTAL, "rules, those of included files counted"),
            (captured, MAX_CAPTURED, "names with captures; one rule can take many by `where`"),
            (words, MAX_WORDS, "characters in the tables of `where`"),
        ):
            if count > most:
                raise UsageError(f"the rules have more than {most} {what}")
    return tuple(out)


def _joined(own: Converter, shared: Sequence[Converter]) -> Converter:
    """Append the rules of the included converters to those of the converter itself."""
    counts = {(c.source, c.target): c for one in (*shared, own) for c in one.counts}
    return replace(
        own,
        rules=_limited((*own.rules, *(r for s in shared for r in s.rules))),
        params={k: v for one in (*shared, own) for k, v in one.params.items()},
        rewrites=(*own.rewrites, *(r for s in shared for r in s.rewrites)),
        ties=(*own.ties, *(t for s in shared for t in s.ties)),
        counts=tuple(counts.values()),
        axes={k: v for one in (*shared, own) for k, v in one.axes.items()},
        refusals=(*own.refusals, *(r for s in shared for r in s.refusals)),
    )


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
        if path.exists() and not path.is_file():  # a pipe would be waited for, for ever
            raise UsageError(f"converter {printable(str(path))}: is not a regular file")
        with path.open("rb") as f:
            data = f.read(MAX_FILE + 1)
        if len(data) <= MAX_FILE:
            return data.decode()
        why = f"is larger than {MAX_FILE} bytes"
    except OSError as e:
        why = (e.strerror or str(e)).lower()
    except UnicodeDecodeError:
        why = "not UTF-8 text"
    except ValueError:  # a NUL or half a surrogate pair in its name
        why = "no file has such a name"
    raise UsageError(f"converter {printable(str(path))}: {why}")


# --- rules ----------------------------------------------------------------------------------------------------------


def _rules(table: Any, let: Let, common: Mapping[str, Domain]) -> list[Rule]:
    """The rules of one [[rule]]: one, or one for each pair of `names`. common: the file's `where`."""
    fields(table, _RULE, "rule")
    pairs = [table] * ("from" in table)
    pairs += [fields({"from": a, "to": b}, _RULE, "names") for a, b in table.get("names", {}).items()]
    if not pairs or any("to" not in p for p in pairs):
        raise UsageError(f"rule {table!r} needs `from` and `to`, or `names`")
    nameless, layout = _nameless(table, let), " ".join(expand(table.get("layout", ""), let, 0).split())
    rules: list[Rule] = []
    spelled = 0
    for pair in pairs:
        sources, targets = _side(pair, "from", let, 0), _side(pair, "to", let, 1)
        if not sources:
            raise UsageError("a rule has no name in `from`")
        rules.append(rule := replace(nameless, sources=sources, targets=targets, layout=layout if targets else ""))
        try:
            rule.check(layout)
        except (UsageError, LayoutError) as e:
            raise UsageError(f"rule {rule.label}: {e.message}") from e
        spelled += sum(len(t.text) for t in (*sources, *targets))
        if spelled > MAX_SPELLED:
            raise UsageError(f"the names of a rule have more than {MAX_SPELLED} characters after `let` is expanded")
    bound = [{c for t in (*r.sources, *r.targets) for c in t.captures} for r in rules]
    loose = {k: d for k, d in nameless.where.items() if not any(k in own for own in bound)}  # which lint reports
    return [
        replace(r, where=loose | {k: d for k, d in {**common, **nameless.where}.items() if k in own})
        for r, own in zip(rules, bound, strict=True)
    ]


def _nameless(table: dict[str, Any], let: Let) -> Rule:
    """What a [[rule]] says of all its names."""
    ranks = table.get("rank", [])
    same, how = table.get("same", False), table.get("sum", "same" if table.get("same") else "")
    if "sum" in table and (how not in ("exact", "zeros") or same or "fill" in table):
        raise UsageError('`sum` is "exact", or "zeros" if all but the first are zeros, without `same` or `fill`')
    return Rule(
        (), (),
        flip=frozenset(table.get("flip", "").split()),
        where=_domains(table, let),
        sizes={k: _size(v, let) for k, v in table.get("sizes", {}).items()},
        ops=tuple(_texts(table, "op")),
        resize=_resize(table, let),
        combine=cast("Combine", how),
        when=Conditions(
            tuple(ranks if isinstance(ranks, list) else [ranks]),
            _side(table, "if", let), _side(table, "unless", let),
            tuple(_texts(table, "kind")), _each_of(table, "input", get_args(State)),
            tuple(fields(said := table.get("metadata", {}), dict.fromkeys(said, TEXT), "metadata").items()),
        ),
        fills=tuple((template(expand(k, let, 1)), _fill(v)) for k, v in table.get("fill", {}).items()),
        optional=table.get("optional", False), note=table.get("note", ""),
        doubts=_each_of(table, "doubts", doubts.DOUBTS), refuse=table.get("refuse", ""),
    )  # fmt: skip


def _fill(value: Any) -> Fill:
    blocks = value if isinstance(value, list) else [value]
    if not 0 < len(blocks) <= MAX_FILL or not all(isinstance(v, int | float | str) for v in blocks):
        raise UsageError(f"fill {value!r} is neither a number (or a parameter's name) nor a list of up to {MAX_FILL}")
    return tuple(v if isinstance(v, str) else float(v) for v in blocks)


def _of(value: Mapping[str, Any], let: Let) -> Of:
    return Of(template(expand(value.get("of"), let, 0)), value.get("axis", 0))


def _size(value: Any, let: Let) -> Size:
    """A number, a parameter's name, or the length of an axis of another tensor."""
    if isinstance(value, dict):
        return _of(fields(value, _OF, "sizes"), let)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"a size is a number, a parameter's name or {{ of = NAME, axis = 0 }}, not {value!r}")
    return value if isinstance(value, int) else str(expand(value, let, 0))


def _resize(table: Mapping[str, Any], let: Let) -> Resize | None:
    """`crop` or `pad` of a rule."""
    kinds = {"axis": WHOLE, "to": ANY, "from": ANY, "value": NUMBER, "unchecked": FLAG}
    given = [(word, fields(table[word], kinds, f"`{word}`")) for word in ("crop", "pad") if word in table]
    for word, how in given:
        if len(given) > 1 or "to" not in how or how.get("axis", -1) < 0:
            raise UsageError(f"give one of `crop` and `pad`, as {word} = {{ axis = 0, to = 100, value = 0 }}")
        before = _size(how["from"], let) if "from" in how else None
        value, unchecked = float(how.get("value", 0)), how.get("unchecked", False)
        return Resize(word == "pad", how["axis"], _size(how["to"], let), before, value, unchecked)
    return None


# --- what a file has beside its rules -------------------------------------------------------------------------------


def _param(name: str, value: Any) -> Param:
    if type(value) is int:
        return Param(default=value)
    kinds = _OF | {"config": TEXT, "default": WHOLE, "help": TEXT}
    fields(value, kinds, f"parameter {name}")
    config = value.get("config", "")
    if "config" in value and not all(config.split(".")):
        raise UsageError(
            f'parameter {printable(name)}: {config!r} is not a key of config.json; write "heads" or "text.heads"'
        )
    return Param(value.get("default"), _of(value, {}) if "of" in value else None, value.get("help", ""), config)


def _tie(table: Any) -> Tie:
    fields(table, {"names": TEXTS, "apart": FLAG, "if": TEXTS}, "tie")
    return Tie(_side(table, "names", {}), table.get("apart", False), tuple(_texts(table, "if")))


def _count(head: str, param: Any, common: Mapping[str, Domain], let: Let) -> Count:
    source, target = (template(expand(head, let, which)) for which in (0, 1))
    where = {k: d for k, d in common.items() if k in (*source.captures, *target.captures)}
    last = [t.parts[-1] for t in (source, target) if t.captures]
    for p in last or [""]:
        if isinstance(p, str) or p.kind == "..." or where.setdefault(p.name, Domain("int")).kind != "int":
            raise UsageError(f"count {head!r}: it must end with a capture that is a number")
    return Count(source, target, str(expand(param, let, 0)), where)


def _refusal(table: Any) -> Refusal:
    fields(table, {"equal": LIST, "why": TEXT}, "refuse")
    a, b = table["equal"]
    if type(a) not in (int, str) or type(b) not in (int, str):
        raise UsageError(f"refuse: `equal` is a list of two parameters or numbers, not {[a, b]!r}")
    return Refusal((a, b), table.get("why", ""))


def _rewrite(value: Any) -> Rewrite:
    if isinstance(value, list) and len(value) == 2:
        value = {"from": value[0], "to": value[1]}
    fields(value, {"from": TEXT, "to": TEXT, "where": TABLE, "one": TEXT, "if": TEXT}, "rewrite")
    source = value.get("from", "")
    start, end = source.startswith("^"), source.endswith("$")
    parsed = template(source[start : len(source) - end])
    if not parsed.parts or any(p.kind for p in parsed.parts if not isinstance(p, str)):
        raise UsageError(f"rewrite {source!r}: it may contain text and {{x}} only")
    begins = start or source.startswith("/")  # else it is tried at each character, as if a capture were before it
    check_free(source, parsed.parts, MAX_FREE - 1 - (not begins), "/")
    given = template(value["if"]) if "if" in value else None
    target, one = template(value.get("to", "")), value.get("one", "")
    if odd := ({*target.captures, one} - {"", *parsed.captures}):
        raise UsageError(f"rewrite {source!r}: {{{min(odd)}}} is not in it")
    return Rewrite(parsed, target, start, end, _domains(value, {}), one, given)
