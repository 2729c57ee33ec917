"""ckptconv report SRC [B ...] · ckptconv serve SRC..."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api.options import CHANGE, SELECT
from ..errors import StorageError
from ..messages import redacted
from . import show
from .options import Json, Quiet, command, spelled, takes

if TYPE_CHECKING:
    from ..reporting.serve import Offered

EXAMPLES = """Examples:

\b
  ckptconv report model.safetensors                 writes model.report.html
  ckptconv report model.safetensors --open          and shows it
  ckptconv report model.ckpt -o page.html --no-values     headers only
  ckptconv report epoch1.pt epoch2.pt               what changed
  ckptconv report epoch*.pt                         how each layer moved
  ckptconv report bert.ckpt bert.safetensors -c auto -o conversion.html
"""


@takes(*SELECT, *CHANGE, "force", "jobs")
def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC [B ...]",
            help="One checkpoint, two to compare, or more in order: files, prefixes, folders or URLs.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="HTML",
            help="Write the page to this .html file. Default: a file in the working directory, named after the last "
            "checkpoint: model.report.html for model.pt.",
        ),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Read all values, for statistics and heat maps.")
    ] = True,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Write an HTML page about one checkpoint, or several.

    With SRC alone, the page shows what is in the checkpoint and what may be wrong with it. With a second one, B, it
    shows what changed from SRC to B. If B was converted from SRC, repeat the options of the conversion: the page then
    shows the rule behind each tensor, and values that are not as converted. With three or more, it shows how much
    each layer changed from one to the next. Of two, --at and --ema change only SRC, as in `diff`; of one or of more
    than two, all. The page is one file and loads nothing from the network.
    """
    from ..reporting import html as page

    told = {k: v for k, v in {**options, "output": output, "no_values": not values}.items() if v and k != "force"}
    with show.progress(quiet or as_json) as progress:
        made = page.make_page(
            sources, output, options | {"progress": progress, "values": values},
            command("report", [*map(redacted, sources)], told), spelled
        )  # fmt: skip
    if as_json:
        show.as_json(made.to_json())
    elif not quiet:
        show.talk(made.sum() + ", or use --open" * (not browse))
    if browse:
        import webbrowser

        webbrowser.open(Path(made.path).absolute().as_uri())


# --- serve ------------------------------------------------------------------------------------------------------------

SERVE_EXAMPLES = """Examples:

\b
  ckptconv serve model.safetensors --open     look at one, of any size
  ckptconv serve runs/                        all checkpoints in a folder, to compare
  ckptconv serve 'runs/*.pt' --port 8123      with a port for `ssh -L 8123:localhost:8123 HOST`
"""


@takes(*SELECT, "jobs")
def serve(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Files, prefixes, folders, globs or URLs.")],
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes any that is free.")] = 0,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    **options: Any,
) -> None:
    """Show checkpoints of any size in a browser.

    The pages are those of `report`; values are read when they are asked for. A checkpoint of any size is shown at once,
    since only headers are read; statistics, histograms and pictures of a tensor follow when it is opened, and zoom from
    the whole matrix to single values. The server answers to this machine only, at an address with a random token, and
    changes nothing. Ctrl-C ends it.
    """
    from ..api.options import Options
    from ..reporting.serve import Server, Shelf

    shelf = Shelf(lambda: found(sources), Options(**options), spelled)
    try:
        started = Server(shelf, port)
    except OSError as e:
        raise StorageError(f"cannot listen on port {port}: {e.strerror or e}") from e
    with started as server:
        show.address(server.url)
        show.talk("only this machine can open it; Ctrl-C ends it")
        try:
            with _browsing(server.url) if browse else nullcontext():
                server.serve_forever()
        except KeyboardInterrupt:
            show.talk("ended")


def found(sources: Sequence[str]) -> list[Offered]:
    """What there is to be shown now."""
    from ..bulk.discover import discover
    from ..reporting.serve import Offered

    return [
        Offered(f.source, f.name + f.suffix, f.size, f.problem.message if f.problem else "", f.files)
        for f in discover(sources)
    ]


@contextmanager
def _browsing(url: str) -> Iterator[None]:
    """Open the page in a browser, by way of a page that only this user can read.

    The address holds the token, and what a browser is started with can be read by every user of the machine.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="ckptconv-") as folder:  # 0700
        page = Path(folder, "open.html")
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">\n')
        if not webbrowser.open(page.as_uri()):
            show.talk("no browser could be started; open the address by hand")
        yield
