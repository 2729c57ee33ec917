"""The command line: one short file per verb; stdout is data, stderr is talk.

`convert` is the default verb: `ckptconv SRC -o DST` is `ckptconv convert SRC -o DST`.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import CkptError, StorageError, printable, redacted
from . import complete, convert, converters, diff, formats, inspect, match, report, show, verify, zoo

HELP = """Convert checkpoints between TensorFlow, Keras, safetensors, PyTorch and more, without any of the frameworks.

Without a verb it converts:

\b
  ckptconv model.ckpt -o model.safetensors            only the format changes
  ckptconv model.ckpt -o part.npz --include 'enc/*'   a subset
  ckptconv a.ckpt b.ckpt -o ab.ckpt --scope a --scope b
  ckptconv inspect model.ckpt --tree                  what is inside
  ckptconv diff model.ckpt model.safetensors          are they the same
  ckptconv report model.ckpt -o report.html           for a browser
"""
EXITS = """Exit codes: 0 done, 1 differs or failed, 2 usage, 3 unknown format, 4 corrupt, 5 unsafe,
6 cannot be converted, 7 verification failed, 8 missing extra, 9 file system."""

app = typer.Typer(
    name="ckptconv",
    help=HELP,
    epilog=EXITS,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich costs as much as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"ckptconv {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for verb, examples in (
    (convert.convert, convert.EXAMPLES),
    (inspect.inspect, inspect.EXAMPLES),
    (diff.diff, diff.EXAMPLES),
    (verify.verify, verify.EXAMPLES),
    (match.match, match.EXAMPLES),
    (report.report, report.EXAMPLES),
    (zoo.zoo, zoo.EXAMPLES),
    (formats.formats, ""),
):
    app.command(epilog=examples)(verb)
app.add_typer(converters.app)
VERBS = {c.name or c.callback.__name__.rstrip("_") for c in app.registered_commands if c.callback} | {"converters"}


def with_verb(argv: list[str]) -> list[str]:
    """Put `convert` in front unless the first word is a verb or a question to the program itself."""
    if not argv or argv[0] in VERBS or argv[0] in {"-h", "--help", "-V", "--version"}:
        return argv
    return argv if argv[0].startswith(("--install-completion", "--show-completion")) else ["convert", *argv]


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the documented code; an expected failure is one message, no traceback."""
    if "_CKPTCONV_COMPLETE" in os.environ:
        os.environ.update(complete.with_verb(os.environ, VERBS))
    argv = with_verb(sys.argv[1:] if argv is None else argv)
    show.escape_unwritable()
    try:
        app(argv, prog_name="ckptconv")
    except CkptError as e:
        fail(e, as_json="--json" in argv)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as e:  # what the library meets is a StorageError: this is our own output
        fail(StorageError(f"cannot write what there is to say: {e.strerror or e}"), as_json=False)


def fail(e: CkptError, *, as_json: bool) -> None:
    """Print one error and exit with its code."""
    if as_json:
        import json

        url = redacted(e.url or "") or None
        what = {"kind": type(e).__name__, "message": e.message, "url": url, "tensor": e.tensor, "exit": e.exit_code}
        print(json.dumps({"error": what}))
    first, *rest = str(e).split("\n")
    print("\n".join([f"error: {printable(first)}", *(printable(line) for line in rest)]), file=sys.stderr)
    sys.exit(e.exit_code)
