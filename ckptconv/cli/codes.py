"""Exit codes: what each means for all verbs, and what 0, 1 and 7 mean for one of them."""

from __future__ import annotations

ALWAYS = {
    2: "an option, converter or name is unknown or missing",
    3: "the format is unknown, or several fit",
    4: "a file is damaged or truncated",
    5: "a file would run code, leave its folder or expand without bound",
    8: "an optional package is missing",
    9: "the file system or a server refuses, or there is no such file",
}
OF = {
    "convert": {
        0: "converted", 1: "converted, but damaged tensors were left out (--keep-going)",
        6: "some tensors cannot be converted; all are listed", 7: "the output is not what was to be written",
    },
    "inspect": {0: "listed", 1: "--check found errors or warnings, or --keep-going damage"},
    "diff": {
        0: "the same", 1: "different, or not known to be the same: tensors are unread, or damaged (--keep-going)",
        6: "A cannot be converted as asked",
    },
    "verify": {
        0: "every bit is right", 1: "right, but damaged tensors of SRC were left out (--keep-going)",
        6: "SRC cannot be converted as asked", 7: "something differs or is damaged",
    },
    "match": {
        0: "proposed", 1: "the two may not be the same model, or nothing that was tried computes OUTPUTS",
        6: "what is asked of the two cannot be proposed",
    },
    "report": {0: "written", 6: "SRC cannot be converted as asked"},
    "serve": {0: "ended by Ctrl-C"},
    "zoo": {0: "all converted", 1: "some failed or lack damaged tensors (--keep-going), or none was found"},
    "formats": {0: "listed"},
    "converters": {0: "listed, or sound", 1: "lint found a problem"},
}  # fmt: skip


def of(verb: str) -> dict[int, str]:
    """The exit codes of a verb, in order."""
    everyday = ALWAYS if verb not in ("formats", "converters") else {2: ALWAYS[2], 9: ALWAYS[9]}
    return dict(sorted((everyday | OF.get(verb, {0: "done"})).items()))


def epilog(verb: str) -> str:
    """The end of the help of a verb."""
    return "\n".join(["Exit codes:", "", "\b", *(f"  {code}  {what}" for code, what in of(verb).items())])
