"""The command line: one short file per verb; data goes to stdout, everything else to stderr.

`convert` is the default verb: `ckptconv SRC -o DST` is `ckptconv convert SRC -o DST`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, TextIO

import typer

from .. import __version__
from ..errors import CkptError, StorageError, UsageError
from ..messages import printable
from . import convert, diff, formats, inspect, match, options, report, show, suggestions, verify, zoo

HELP = """Convert checkpoints between TensorFlow, Keras, safetensors, PyTorch and more, without any of the frameworks.

The verb `convert` may be omitted:

\b
  ckptconv model.ckpt -o model.safetensors                only the format changes
  ckptconv model.ckpt -o part.npz --include 'encoder/*'   a subset
  ckptconv a.ckpt b.ckpt -o ab.ckpt --scope a --scope b   a merge
  ckptconv inspect model.ckpt --tree                      what is inside
  ckptconv diff model.ckpt model.safetensors              whether they are the same
  ckptconv report model.ckpt -o report.html               a page for a browser
"""
EXIT_CODES = {  # docs/exit-codes.md says what 0, 1 and 7 mean for a verb
    0: "success",
    1: "what the help of the verb says",
    2: "an option, converter or name is unknown or missing",
    3: "the format is unknown, or several fit",
    4: "a file is damaged or truncated",
    5: "a file would run code, leave its folder or expand without bound",
    6: "the tensors cannot be converted as asked; all are listed",
    7: "verification failed: the output, or a tensor with a hash or checksum, differs",
    8: "an optional package is missing",
    9: "the file system or a server refuses, or there is no such file",
    70: "a defect of ckptconv",
}


CODES = "\n".join(["Exit codes:", "", "\b", *(f"  {code:<3}{what}" for code, what in EXIT_CODES.items())])


def exits(one: str) -> str:
    """The end of a help text; `one` says what the exit code 1 means for a verb, '' if it never ends with that."""
    return f"Exit code 1: {one}. " * bool(one) + "`ckptconv --help` lists all exit codes."


app = typer.Typer(
    name="ckptconv",
    help=HELP,
    epilog=f"{CODES}\n\n`ckptconv VERB --help` has the options of a verb and examples.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich costs as much as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        show.tell(f"ckptconv {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


LOST = "done, but damaged tensors were left out (--keep-going)"
for verb, examples, one in (
    (convert.convert, convert.EXAMPLES, LOST),
    (
        inspect.inspect,
        inspect.EXAMPLES,
        "--check found an error or a warning, or --keep-going left out damaged tensors",
    ),
    (diff.diff, diff.EXAMPLES, "the two differ, or some tensors cannot be read"),
    (verify.verify, verify.EXAMPLES, LOST),
    (match.match, match.EXAMPLES, "a proposal was made, but the two may not be the same model, or outputs differ"),
    (report.report, report.EXAMPLES, ""),
    (report.serve, report.SERVE_EXAMPLES, ""),
    (zoo.zoo, zoo.EXAMPLES, "some conversions failed or left out damaged tensors"),
    (formats.formats, formats.EXAMPLES, ""),
):
    app.command(cls=options.Grouped, epilog=f"{examples}\n{exits(one)}")(verb)
app.add_typer(formats.converters_app, epilog=f"{formats.CONVERTERS_EXAMPLES}\n{exits('lint: there are problems')}")
MISUSED: Any = typer.BadParameter.__mro__[1]  # typer's own UsageError, which it does not export
VERBS = {c.name or c.callback.__name__.rstrip("_") for c in app.registered_commands if c.callback} | {"converters"}


def with_verb(argv: list[str]) -> list[str]:
    """Put `convert` in front unless the first word is a verb or an option of the program itself."""
    if not argv or argv[0] in VERBS or argv[0] in {"-h", "--help", "-V", "--version"}:
        return argv
    if argv[0].startswith(("--install-completion", "--show-completion")):
        return argv
    if argv[0] in suggestions.QUESTIONS and not suggestions.exists(argv[0]):
        return [*argv[1:], suggestions.QUESTIONS[argv[0]]]
    if wrong := suggestions.unknown_verb(argv, VERBS):
        raise UsageError(wrong)
    return ["convert", *argv]


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the documented code; an expected failure prints one message, no traceback."""
    if "_CKPTCONV_COMPLETE" in os.environ:
        os.environ.update(options.with_verb(os.environ, VERBS))
        app(prog_name="ckptconv")
    argv = sys.argv[1:] if argv is None else argv
    _open_closed()
    show.escape_unwritable()
    _tidy_when_ended()
    try:
        code = _code(argv)
        sys.stdout.flush()  # here, where a closed pipe or a full disk is handled
    except BrokenPipeError:  # `| head` has seen enough
        code = 141
        _drop(sys.stdout)
    except OSError as e:  # errors of the library are StorageErrors: this is our own output
        _drop(sys.stdout)
        error = StorageError(f"cannot write the output of this command: {e.strerror or e}")
        code = error.exit_code
        try:
            show.failure(error, machine=False)
        except OSError:  # nor what is wrong
            _drop(sys.stderr)
    sys.exit(code)


def _code(argv: list[str]) -> int:
    """Run a command line and print what failed; return its exit code. OSError where we cannot print."""
    as_json = "--json" in argv
    try:
        _run(with_verb(argv))
    except typer.Exit as e:
        return e.exit_code
    except CkptError as e:
        return show.failure(e, machine=as_json)
    except KeyboardInterrupt as e:
        written = getattr(e, "written", "")
        what = f"{printable(written)} was written, and not checked to the end" if written else "nothing was written"
        show.talk(f"interrupted; {what}")
        return e.args[0] if e.args else 130
    except MemoryError:
        why = "there is not enough memory; --max-memory bounds what a conversion takes, and fewer --jobs take less"
        return show.failure(StorageError(why), machine=as_json)
    except OSError:
        raise
    except Exception:  # a defect of ours
        show.crash()
        return 70
    return 0


def _open_closed() -> None:
    """Open the null device where a standard stream is closed: else a file of ours gets its number, and its text."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115


def _drop(stream: TextIO) -> None:
    """Forget what is buffered: the interpreter writes it when it ends, and a failure then would be the exit code."""
    with suppress(OSError):  # a stream in memory has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tidy_when_ended() -> None:
    """Unwind also when the system or a closed terminal ends us, to remove temporary files; `nohup` still works."""

    def end(number: int, _: object) -> None:
        raise KeyboardInterrupt(128 + number)

    here = threading.current_thread() is threading.main_thread()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and here and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def _run(argv: list[str]) -> None:
    """Run a verb. Not by `app()`, which handles interrupts and closed pipes, and prints usage errors, by itself."""
    suggestions.refuse_empty(argv)
    if argv[:2] == ["zoo", "status"] and {"-h", "--help"} & {*argv}:
        show.document(zoo.STATUS)
        return
    command = typer.main.get_command(app)
    if argv[:1] in (["convert"], ["zoo"]):  # they multiply no matrices, and idle threads of NumPy for that would spin
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with command.make_context("ckptconv", argv) as context:
            if not {"-q", "--quiet"} & set(argv):
                show.warnings()
            command.invoke(context)
    except MISUSED as e:
        if not argv:  # prints the help
            e.show()
            sys.exit(e.exit_code)
        if (option := getattr(e, "option_name", "")) and e.ctx:
            known = [flag for p in e.ctx.command.params for flag in p.opts]
            hint = suggestions.option(_typed(option, argv), known)
            see = "" if hint else f"; see `{e.ctx.command_path} --help`"
            raise UsageError(f"no such option: {printable(_typed(option, argv))}{hint}{see}") from e
        if getattr(getattr(e, "param", None), "name", "") == "output" and e.ctx and e.ctx.params.get("sources"):
            raise suggestions.without_destination(e.ctx.params["sources"], e.ctx.info_name or "") from e
        where = e.ctx.command_path if e.ctx else f"ckptconv {argv[0]}"
        what = e.format_message().rstrip(".").replace("Got unexpected extra argument(s)", "too many arguments:")
        raise UsageError(f"{what[:1].lower()}{what[1:]}; see `{where} --help`") from e


def _typed(option: str, argv: Sequence[str]) -> str:
    """An option as it was typed: of `-dash.pt` the parser names `-d`."""
    return next((a for a in argv if a.startswith(option)), option)
