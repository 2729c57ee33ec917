"""Write docs/schemas/*.json, a JSON Schema for the output of each `--json`, and the page docs/json.md.

The schemas are kept here by hand; a test compares them with what the verbs print, key by key.
`make docs` runs this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
AT = "https://github.com/ckptconv/ckptconv/blob/main/docs/schemas/"
Schema = dict[str, Any]


def of(kind: str | list[str], description: str = "", **more: Any) -> Schema:
    return {"type": kind, **({"description": description} if description else {}), **more}


def text(description: str = "", *values: str) -> Schema:
    return of("string", description, **({"enum": list(values)} if values else {}))


def count(description: str = "") -> Schema:
    return of("integer", description, minimum=0)


def yes(description: str = "") -> Schema:
    return of("boolean", description)


def many(items: Schema, description: str = "") -> Schema:
    return of("array", description, items=items)


def mapping(values: Schema, description: str = "") -> Schema:
    return of("object", description, additionalProperties=values)


def record(description: str, /, **fields: Schema) -> Schema:
    """An object; `name_` stands for a keyword of Python, `may_name` for a key that need not be there."""
    named = {k.removeprefix("may_").rstrip("_"): v for k, v in fields.items()}
    required = [k.rstrip("_") for k in fields if not k.startswith("may_")]
    return of("object", description, properties=named, required=required)


TEXTS = many(text())
NUMBER = of(["number", "string", "null"])  # NaN and infinite values are not numbers of JSON
NOTES = many(
    record(
        "",
        kind=text("", "skipped", "dropped", "damaged", "lossy", "assumed", "unread", "tied", "hint"),
        text=text("In words."),
        names=many(text(), "The tensors that it concerns."),
    ),
    "What the user should know.",
)
LEFT = NOTES | {"description": "What the file has that is skipped or unread, and was not checked."}
UNREAD = NOTES | {"description": "Tensors of A or B that no reader looks at; then the exit code is not 0."}
BESIDE = NOTES | {"description": "What A or B has that is not compared, as it is not a tensor; the exit code stays."}
LOST = NOTES | {"description": "What --keep-going left out; then the exit code is not 0."}
SHAPE = many(count())
FINDING = record(
    "",
    severity=text("", "error", "warning", "note"),
    check=text("The name of the check."),
    tensor=text(),
    text=text("What was found."),
    index=of(["array", "null"], "The place of the first.", items=count()),
)
SIDE = of(
    ["object", "null"],
    properties={"name": text(), "dtype": text(), "shape": SHAPE},
    required=["name", "dtype", "shape"],
)
CAUSES = many(
    record(
        "", error=text("The class of the error."), message=text(), sources=many(text(), "The checkpoints that failed.")
    ),
    "Failures by cause.",
)
REMARKS = many(
    record(
        "", kind=text("", "damaged", "lossy", "skipped", "unread", "dropped", "hint"), text=text("In words."),
        checkpoints=count("How many of them."),
        examples=many(text(), "Some of them, each with the tensors that it concerns."),
    ),
    "What was left out or changed, by cause.",
)  # fmt: skip
DAMAGED = count("Checkpoints without the tensors that --keep-going left out.")
MEASURED = {
    "differing": count("The number of elements that differ."), "elements": count(),
    "first": of(["array", "null"], "The index of the first.", items=count()), "max_abs": NUMBER, "max_rel": NUMBER,
    "max_ulp": NUMBER, "cosine": NUMBER, "unpaired": count("Elements that are NaN or infinite on one side only."),
    "change": NUMBER, "norm": NUMBER, "apart": NUMBER,
}  # fmt: skip
SCHEMAS: dict[str, tuple[str, Schema]] = {
    "convert": (
        "ckptconv convert ... --json",
        record(
            "What a conversion did.",
            sources=many(text(), "The paths that were read."),
            destination=text("The path that was written."),
            source_format=text(),
            target_format=text(),
            tensors=count("The number of tensors written."),
            bytes=count("Their size."),
            seconds=of("number"),
            files=many(text(), "The paths of the files that were written."),
            notes=NOTES,
            loss=mapping(
                of("array", items=count(), minItems=2, maxItems=2),
                "By tensor: how many finite values became infinite or NaN in a cast, and how many became zero.",
            ),
            verified_bytes=count("Bytes of the sources whose checksums were compared."),
            verify=of(["boolean", "null"], "Whether every byte of the output was read back; null: its headers."),
            damaged=mapping(text(), "Tensors that --keep-going left out, and why."),
            casts=mapping(count(), "The number of tensors by kind of cast, such as 'float32 to float16'."),
        ),
    ),
    "dry-run": (
        "ckptconv convert ... --dry-run --json",
        record(
            "The plan of a conversion.",
            tensors=count(),
            bytes=count(),
            bytes_copied=count("Bytes that are copied as they are."),
            bytes_changed=count("Bytes that are transposed, cast or decoded."),
            files=many(text(), "The files to write, relative to the folder."),
            jobs=count("The number of jobs."),
            workers=count("The number of threads."),
            memory=count("An estimate of the memory that the run takes, in bytes."),
            folder=text("The folder of the output."),
            plan=many(
                record(
                    "",
                    name=text(),
                    dtype=text(),
                    shape=SHAPE,
                    file=text("The file that will hold the tensor."),
                    start=count("Its first byte there."),
                    bytes=count(),
                    how=text("How its bytes get there, such as copy, transpose, cast."),
                    from_=many(text(), "Where they come from: FILE@START+LENGTH."),
                    may_by=record(
                        "The rule of a converter that made the tensor.",
                        rule=text(),
                        from_=many(text(), "The names of the source tensors."),
                    ),
                ),
                "One entry for each tensor.",
            ),
            notes=NOTES,
        ),
    ),
    "inspect": (
        "ckptconv inspect ... --json",
        record(
            "The tensors of a checkpoint.",
            url=text("What was read."),
            format=text("The name of its format."),
            totals=record(
                "",
                tensors=count(),
                bytes=count(),
                parameters=count("Elements of the weights."),
                all=count("Elements of all tensors."),
                roles=mapping(count(), "Tensors by role; '' is a weight."),
                dtypes=mapping(count(), "Bytes by dtype."),
            ),
            tensors=many(
                record(
                    "",
                    name=text(),
                    dtype=text(),
                    shape=SHAPE,
                    parameters=count(),
                    bytes=count(),
                    role=text("Empty for a weight.", "", "buffer", "slot", "step", "average", "state"),
                    may_min=NUMBER,
                    may_max=NUMBER,
                    may_mean=NUMBER,
                    may_std=NUMBER,
                    may_zeros=of(["integer", "null"]),
                    may_nan=of(["integer", "null"]),
                    may_inf=of(["integer", "null"]),
                    may_hash=text("The content hash, with --hash."),
                ),
                "min to inf are there with --stats.",
            ),
            metadata=mapping(text()),
            values=mapping(
                of(["string", "number", "integer", "boolean", "null", "array", "object"]),
                "What the file holds that is not a tensor, such as an epoch.",
            ),
            ties=many(TEXTS, "Groups of names that share one tensor."),
            notes=NOTES,
            may_sound=yes("With --check: whether it found nothing but notes."),
            may_findings=many(FINDING, "With --check."),
            may_graph=of(
                ["object", "null"],
                "With --graph: variables of a graph or Keras configuration, compared with the tensors.",
                properties={
                    "missing": TEXTS, "unknown": TEXTS, "trained": TEXTS, "fixed": TEXTS,
                },
                required=["missing", "unknown", "trained", "fixed"],
            ),
            may_details=of("object", "With --graph: what else the format knows; its keys differ from format to format.",
                           additionalProperties=True),
        ),
    ),
    "diff": (
        "ckptconv diff A B --json",
        record(
            "The differences of two checkpoints.",
            same=yes(),
            equal=count("The number of equal tensors."),
            may_by=text("With --by.", "layer", "part", "kind"),
            may_groups=many(
                record(
                    "",
                    name=text(),
                    tensors=count("That both have in one shape."),
                    changed=count("Of them, those with other values."),
                    change=NUMBER,
                    norm=NUMBER,
                    apart=NUMBER | {"description": "The norm of B - A."},
                    max_abs=NUMBER,
                    unpaired=count("Elements that are NaN or infinite on one side only."),
                ),
                "With --by: sums, the largest change first.",
            ),
            differences=many(
                record(
                    "",
                    kind=text("", "values", "dtype", "shape", "only_a", "only_b", "renamed"),
                    a=SIDE,
                    b=SIDE,
                    values=of(
                        ["object", "null"],
                        "How the values differ, where they could be compared.",
                        properties=MEASURED,
                        required=list(MEASURED),
                    ),
                )
            ),
            damaged=LOST,
            unread=UNREAD,
            beside=BESIDE,
        ),
    ),
    "verify": (
        "ckptconv verify SRC DST --json",
        record("The destination is what the conversion gives; otherwise there is an error.",
               same=yes("Always true."), tensors=count(), bytes=count(), damaged=LOST, notes=LEFT),
    ),
    "verify-one": (
        "ckptconv verify FILE --json",
        record("The file agrees with its own checksums and hashes; otherwise there is an error.",
               sound=yes("Always true."), tensors=count(), bytes=count(),
               hashed=count("Tensors whose content hash was compared."),
               checked_bytes=count("Bytes whose checksums were compared."), notes=LEFT),
    ),
    "match": (
        "ckptconv match SRC TARGET --json",
        record(
            "The pairs of a proposed converter.",
            pairs=many(
                record(
                    "",
                    from_=TEXTS,
                    to=TEXTS,
                    layout=text("How axes move; empty if they do not."),
                    sizes=mapping(count(), "Sizes that the layout names."),
                    evidence=text("What the pair rests on, such as values, equal, names, shape."),
                    assumed=yes("The evidence does not decide."),
                    doubtful=yes("Another pair would do as well."),
                    why=TEXTS,
                    candidates=many(text(), "What it could be instead."),
                    fill=mapping(of("array"), "Tensors of the target that get a constant."),
                    may_pad=of("object", additionalProperties=True),
                    may_crop=of("object", additionalProperties=True),
                    may_flip=text("Axes that are reversed."),
                    may_op=text("What is done before."),
                )
            ),
            ties=many(TEXTS),
            copies=mapping(text(), "Names of the target that repeat a tensor, and the name of that."),
            source_only=TEXTS,
            target_only=TEXTS,
            notes=TEXTS,
        ),
    ),
    "report": (
        "ckptconv report ... --json",
        record(
            "The page that was written.",
            output=text("Its path."),
            bytes=count("Its size."),
            findings=of(["array", "null"], "What is on the page to look at; null with --no-values.", items=FINDING),
            before=of(["array", "null"], "The same in the first of two checkpoints; otherwise null.", items=FINDING),
        ),
    ),
    "zoo": (
        "ckptconv zoo ... --json",
        record("What a run did.", done=count("Checkpoints converted."), up_to_date=count(), failed=count(),
               bytes=count("Bytes written."), seconds=of("number"), causes=CAUSES, damaged=DAMAGED, remarks=REMARKS),
    ),
    "zoo-dry-run": (
        "ckptconv zoo ... --dry-run --json",
        many(
            record("", source=text(), destination=text("Below the output folder."),
                   bytes=count("The size of the source."), what=text("What would be done; done means up to date."),
                   problem=of(["string", "null"], "Why it cannot be converted.")),
            "One entry for each checkpoint.",
        ),
    ),
    "zoo-status": (
        "ckptconv zoo status DIR --json",
        record("How far a zoo is.", ledgers=count("The number of ledgers."), done=count(), failed=count(),
               planned=count("Checkpoints to come."), bytes=count("Bytes written."),
               formats=mapping(count(), "Converted checkpoints by source format."),
               per_second=of("number", "Conversions in each second of the last minutes in which there were any."),
               seconds_since_last_entry=of("number"), causes=CAUSES, damaged=DAMAGED, remarks=REMARKS),
    ),
    "formats": (
        "ckptconv formats --json",
        many(record("", name=text(), title=text("For people."), module=text("The module that implements it."),
                    suffixes=TEXTS, reads=yes(), writes=yes(),
                    hashes=text("Whether outputs carry content hashes.", "always", "asked", "never"),
                    proves=yes("Outputs are also opened with the format's own implementation."))),
    ),
    "converters": (
        "ckptconv converters --json",
        many(record("", name=text(), title=text(), source=text(), target=text())),
    ),
    "converters-show": (
        "ckptconv converters show NAME --json",
        record("The rules of a converter, in the order in which they are tried.", name=text(), title=text(),
               rules=many(record("", from_=TEXTS, to=TEXTS, layout=text(), ops=TEXTS)), notes=TEXTS),
    ),
    "converters-lint": (
        "ckptconv converters lint FILE --json",
        record("Whether a rule file can be applied and inverted.", name=text("The file or converter."),
               problems=many(text(), "Empty if it is sound.")),
    ),
    "error": (
        "any verb that fails, with --json",
        record("The error; the exit code is not 0.",
               error=record("", kind=text("The class of the error."), message=text("As on standard error."),
                            url=of(["string", "null"], "The file that it concerns."),
                            tensor=of(["string", "null"], "The tensor that it concerns."),
                            exit=of("integer", "The exit code."))),
    ),
}  # fmt: skip
HEAD = """# JSON output

<!-- generated by tools/make_schemas.py -->

Every verb has `--json`: one JSON value on standard output, everything else on standard error. Keys keep their names,
types and meaning; new keys may be added at any time ([versions](../RELEASING.md)). Each output has a JSON Schema (draft
2020-12) in `docs/schemas`, and the tests compare it with what the verb prints. Exit codes are the same with and without
`--json` ([exit codes](exit-codes.md)). What each key holds stands in the schema.

| command | prints | schema |
| :-- | :-- | :-- |
"""


def pages() -> dict[Path, str]:
    """The schemas and the page, as they should be."""
    made, text = {}, HEAD
    for name, (command, schema) in SCHEMAS.items():
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{AT}{name}.json", "title": command}
        made[DOCS / "schemas" / f"{name}.json"] = json.dumps(head | schema, indent=1) + "\n"
        what = schema.get("description", "").rstrip(".")
        text += f"| `{command.removesuffix(' --json')}` | {what} | [{name}](schemas/{name}.json) |\n"
    made[DOCS / "json.md"] = text.rstrip() + "\n"
    return made


if __name__ == "__main__":
    (DOCS / "schemas").mkdir(exist_ok=True)
    for path, text_ in pages().items():
        path.write_text(text_, encoding="utf-8")
