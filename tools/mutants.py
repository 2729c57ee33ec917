"""The mutants: every small change of a module that mutate.py may try. Pure; nothing is written.

    comparison   a < b               a <= b, a >= b;  a == b: a != b;  a in b: a not in b;  a is b: a is not b
    boolean      if a:               if not a:;  a and b: a or b
    arithmetic   a + b               a - b, (a + b) + 1, (a + b) - 1;  a * b: a // b;  a << b: a >> b;  a += b: a -= b
    check        if a: raise E       its condition never holds; another `raise`, or a call of check_..., is gone
    constant     8, True, b"PK"      9 or 7, False, b"PJ"; a word that is not part of a message: another word
    statement    f(a)                pass; also for a.b = c, a += b, continue and break

Left alone are annotations, docstrings, the messages of errors, f-strings (whose inner positions older Pythons do not
give), imports, and what runs for the type checker only.
"""

from __future__ import annotations

import ast
import copy
import difflib
import fnmatch
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "ckptconv"
KINDS = ("comparison", "boolean", "arithmetic", "check", "constant", "statement")
CHECKS = re.compile(r"_?(check|refuse|ensure|require|validate)")

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
WORDY = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set)  # what `+` joins rather than adds
NEVER_RUN = {"annotation", "returns", "decorator_list", "type_params", "type_comment"}  # fields of nodes


class Change(NamedTuple):
    """What becomes of the source between the beginning of one node and its end.

    telling: the line that a test must reach to notice, if it is another one than the node's.
    """

    node: ast.stmt | ast.expr
    kind: str
    text: str
    telling: int = 0


class Mutant(NamedTuple):
    """One change of one module; `key` names it for --id, and a test must reach the line `telling` to notice."""

    key: str
    path: str
    line: int
    telling: int
    kind: str
    before: str
    after: str

    def diff(self) -> str:
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])


def mutants(path: str) -> list[tuple[str, Change]]:
    """All changes of a module, each with its key."""
    seen: Counter[str] = Counter()
    out = []
    for change in changes(ast.parse((ROOT / path).read_text())):
        place = f"{path}:{change.node.lineno}:{change.node.col_offset}:{change.kind}"
        out.append((f"{place}:{seen[place]}", change))
        seen[place] += 1
    return out


def made(key: str, change: Change) -> Mutant | None:
    """Apply a change; None if what comes out does not compile or is the same program."""
    path = key.split(":")[0]
    raw = (ROOT / path).read_bytes()
    starts = [0, *(m.end() for m in re.finditer(b"\n", raw))]
    node = change.node
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    text = change.text.replace("\1", raw[start:end].decode())
    before, after = raw.decode(), (raw[:start] + text.encode() + raw[end:]).decode()
    try:
        tree = ast.parse(after)
        compile(tree, path, "exec")
    except (SyntaxError, ValueError):
        return None
    if ast.dump(tree) == ast.dump(ast.parse(before)):
        return None
    return Mutant(key, path, node.lineno, change.telling or node.lineno, change.kind, before, after)


def changes(node: ast.AST, within: tuple[ast.AST, ...] = ()) -> Iterator[Change]:
    """The changes of a node and of all below it; in a text, "\\1" stands for the node's own source."""
    if _never_changed(node, within):
        return
    match node:
        case ast.Compare():
            yield from _comparison(node)
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield Change(node, "boolean", f"({ast.unparse(ast.BoolOp(other, values))})")
        case ast.BinOp():
            yield from _arithmetic(node)
        case ast.Constant():
            yield from _constant(node, within)
        case ast.stmt():
            yield from _statement(node, within)
    yield from _condition(node)
    for name, value in ast.iter_fields(node):
        below = [] if name in NEVER_RUN else value if isinstance(value, list) else [value]
        for child in below:
            if isinstance(child, ast.AST):
                yield from changes(child, (*within, node))


def _never_changed(node: ast.AST, within: tuple[ast.AST, ...]) -> bool:
    """Whether a node is text for people, for the type checker or for importing, or its place is not known exactly."""
    parent = within[-1] if within else None
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.MatchValue():
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring, or ...
            return True
        case ast.If(test=test) if "TYPE_CHECKING" in (said := ast.unparse(test)) or "__name__" in said:
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):  # __all__, __slots__
            return True
        case ast.Subscript(value=ast.Name(id="Literal")) | ast.Call(func=ast.Name(id="cast" | "TypeVar")):
            return True
    return isinstance(parent, ast.Raise)  # its message


def _comparison(node: ast.Compare) -> Iterator[Change]:
    for i, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            changed = ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)
            yield Change(node, "comparison", f"({ast.unparse(changed)})")


def _condition(node: ast.AST) -> Iterator[Change]:
    """Negate what decides a branch or a comprehension."""
    tests = [node.test] if isinstance(node, (ast.If, ast.While, ast.IfExp)) else []
    tests += node.ifs if isinstance(node, ast.comprehension) else []
    for test in tests:
        if not isinstance(test, ast.Compare):  # which has changes of its own
            yield Change(test, "boolean", "(not (\1))")


def _arithmetic(node: ast.BinOp) -> Iterator[Change]:
    other = ARITHMETIC.get(type(node.op))
    if other is None or any(map(_wordy, (node.left, node.right))):
        return
    yield Change(node, "arithmetic", f"({ast.unparse(ast.BinOp(node.left, other(), node.right))})")
    yield Change(node, "arithmetic", "((\1) + 1)")
    yield Change(node, "arithmetic", "((\1) - 1)")


def _wordy(node: ast.AST) -> bool:
    return isinstance(node, WORDY) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _constant(node: ast.Constant, within: tuple[ast.AST, ...]) -> Iterator[Change]:
    match node.value:
        case bool(value):
            yield Change(node, "constant", str(not value))
        case int(value) | float(value):
            yield Change(node, "constant", f"({value + 1!r})")
            yield Change(node, "constant", f"({value - 1!r})")
        case bytes(value) if value:
            yield Change(node, "constant", repr(value[:-1] + bytes([value[-1] ^ 1])))
        case str(value) if re.fullmatch(r"[\w./:-]+", value) and not isinstance(within[-1], (ast.Expr, ast.keyword)):
            yield Change(node, "constant", repr(value + "_other"))


def _statement(node: ast.stmt, within: tuple[ast.AST, ...]) -> Iterator[Change]:
    """Take a check away, or a whole statement where nothing need be bound by it."""
    match node:
        case ast.If(test=test, body=body) if any(isinstance(s, ast.Raise) for s in body):
            yield Change(test, "check", "((\1) and False)", body[0].lineno)
        case ast.Raise() if not isinstance(within[-1], ast.If):
            yield Change(node, "check", "pass")
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            yield Change(node, "check" if CHECKS.match(name) else "statement", "pass")
        case ast.AugAssign(op=op, value=value):
            yield Change(node, "statement", "pass")
            if type(op) in ARITHMETIC and not _wordy(value):
                changed = copy.copy(node)
                changed.op = ARITHMETIC[type(op)]()
                yield Change(node, "arithmetic", ast.unparse(changed))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Continue() | ast.Break() | ast.Delete():
            yield Change(node, "statement", "pass")


def modules(only: Sequence[str]) -> list[str]:
    """Modules of the package by their paths in the tree, generated ones apart."""
    found = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / PACKAGE).rglob("*.py"))
    found = [p for p in found if not p.endswith("_pb2.py")]
    return [p for p in found if not only or any(fnmatch.fnmatch(p, pattern) for pattern in only)]


def drawn(paths: Iterable[str], seed: int) -> Iterator[Mutant]:
    """All mutants in an order that the seed gives, one of each kind in turn."""
    found = [mutant for path in paths for mutant in mutants(path)]
    piles = [[m for m in found if m[1].kind == kind] for kind in KINDS]
    rng = random.Random(seed)
    for pile in piles:
        rng.shuffle(pile)
    while any(piles):
        for pile in filter(None, piles):
            mutant = None
            while pile and mutant is None:
                mutant = made(*pile.pop())
            if mutant:
                yield mutant
