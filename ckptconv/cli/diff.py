"""ckptconv diff A B"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..messages import in_digits, in_shape, many
from . import show
from .options import CHANGING, READING, Json, Quiet, takes

if TYPE_CHECKING:
    from .. import Tensor
    from ..verification.compare import Diff, Pair, Values

EXAMPLES = """Examples:

\b
  ckptconv diff model.ckpt model.safetensors     bit for bit, in any formats
  ckptconv diff old.ckpt new.ckpt --include 'encoder/*'
  ckptconv diff a.ckpt b.h5 --rtol 1e-5 --atol 1e-8
  ckptconv diff bert.ckpt bert.safetensors -c auto   names of B, layout of B
"""
KINDS = {"only_a": "only in A", "only_b": "only in B"}  # the other kinds are shown as they are called
COLOURS = {"only_a": "red", "only_b": "green"}


@takes(*READING, *(k for k in CHANGING if k != "scope"), "jobs")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A checkpoint.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other, in any format.")],
    rtol: Annotated[
        float | None, typer.Option("--rtol", help="Allowed difference, as a share of |B|; a dtype alone is none then.")
    ] = None,
    atol: Annotated[float | None, typer.Option("--atol", help="Allowed difference, absolute.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Compare two checkpoints: names, shapes, dtypes and values. Exits with 1 if they differ.

    Tensors that only have another name are recognised by their content. Converter, renames, --dtype and --from
    are for A.
    """
    from .. import api

    found = api.diff(a, b, rtol=rtol, atol=atol, **options)
    if as_json:
        show.as_json({"same": found.same, "equal": found.equal, "differences": [_json(p) for p in found.pairs]})
    elif not quiet:
        _table(found)
        _say(found, a, b, "converter" in options)
    if not found.same:
        raise typer.Exit(1)


def _json(p: Pair) -> dict[str, Any]:
    def side(t: Tensor | None) -> dict[str, Any] | None:
        return {"name": t.name, "dtype": t.dtype.name, "shape": list(t.shape)} if t else None

    return {"kind": p.kind, "a": side(p.a), "b": side(p.b), "values": p.values._asdict() if p.values else None}


def _table(found: Diff) -> None:
    """A line for each pattern of names that changed in the same way."""
    from ..messages import fold

    alike: dict[tuple[str, str, str], dict[str, Pair]] = {}
    for p in found.pairs:
        name = f"{p.a.name} -> {p.b.name}" if p.kind == "renamed" and p.a and p.b else p.name
        alike.setdefault((p.kind, _kind(p.a), _kind(p.b)), {})[name] = p
    measured = any(p.values for p in found.pairs)
    rows, colours = [], []
    for (kind, left, right), pairs in alike.items():
        for line in fold(pairs):
            many = f"x{len(line.names)}" if len(line.names) > 1 else ""
            values = [v for n in line.names if (v := pairs[n].values)]
            sides = (left, right) if kind != "values" else (left, "")
            rows.append((KINDS.get(kind, kind), line.text, many, *sides, *(_values(values) if measured else ())))
            colours.append(COLOURS.get(kind, "yellow"))
    if rows:
        more = ("differ", "max abs", "relative", "ulp", "cosine", "first") if measured else ()
        show.table(("change", "name", "many", "A", "B", *more), rows, "llrllrrrrrl", colours)


def _kind(t: Tensor | None) -> str:
    return f"{t.dtype} {in_shape(t.shape)}" if t else ""


def _values(found: list[Values]) -> tuple[str, ...]:
    """The worst of each measure over a group."""
    if not found:
        return ("",) * 6

    def most(numbers: list[Any]) -> str:
        known = [n for n in numbers if n is not None]
        return in_digits(max(known)) if known else "-"

    cosines = [v.cosine for v in found if v.cosine is not None]
    differ, elements = sum(v.differing for v in found), sum(v.elements for v in found)
    odd = sum(v.unpaired for v in found)
    return (
        f"{differ:,} of {elements:,}" + (f" ({odd:,} NaN or Inf)" if odd else ""),
        most([v.max_abs for v in found]),
        most([v.max_rel for v in found]),
        most([v.max_ulp for v in found]),
        f"{min(cosines):.6f}" if cosines else "-",
        str(list(found[0].first)) if len(found) == 1 else "",
    )


def _say(found: Diff, a: str, b: str, converted: bool) -> None:
    kinds: dict[str, int] = {}
    for p in found.pairs:
        kinds[p.kind] = kinds.get(p.kind, 0) + 1
    counts = [f"{n} {KINDS.get(k) or k}" for k, n in kinds.items()]
    word = "different" if not found.same else "the same within the tolerance" if kinds else "the same"
    show.talk(f"{word}: {many(found.equal, 'tensor')} equal" + (f"; {', '.join(counts)}" if counts else ""))
    if kinds.keys() >= {"only_a", "only_b"} and not converted:
        show.talk("if B is A under other names, -c auto (or -c NAME) compares across; `ckptconv match A B` finds rules")
    elif kinds.keys() == {"renamed"}:
        show.talk(f"only names differ; `ckptconv match {a} {b} -o rules.toml` writes the rules that lead from A to B")
    elif kinds.keys() <= {"dtype", "values"} and found.tolerance.exact and kinds:
        show.talk("--rtol and --atol compare as numbers, whatever the dtype")
