"""Parse what a converter's file has beside its rules, and the values that rules have; `let` is expanded in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import UsageError
from ..messages import did_you_mean, printable
from .converter import Count, Of, Param, Refusal, Resize, Rewrite, Tie
from .domains import Domain, domain
from .templates import MAX_FREE, check_free, template

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


def table(top: Mapping[str, Any], key: str) -> dict[str, Any]:
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
    known(value, {"axis", "to", "from", "value", "front", "unchecked"}, f"`{word}`")
    axis, number = value.get("axis"), value.get("value", 0)
    flags = [value.get(k, False) for k in ("front", "unchecked")]
    kinds = type(axis) is int and axis >= 0 and type(number) in (int, float) and {*map(type, flags)} == {bool}
    if len(given) > 1 or "to" not in value or not kinds:
        raise UsageError(f"give one of `crop` and `pad`, as {word} = {{ axis = 0, to = 100, value = 0 }}")
    before = size(value["from"], side) if "from" in value else None
    return Resize(word == "pad", axis, size(value["to"], side), before, float(number), *flags)
